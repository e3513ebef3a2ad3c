"""What a runtime tells of itself: from answers of any kind, and from containerd."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.runtimes.cri.about import About, News, about, configured_cgroup_driver, has_image, news_of
from podkeeper.runtimes.cri.transport import GrpcTransport, Transport
from tests.runtimes.cri.containerd import PAUSE, Containerd
from tests.runtimes.cri.crio import Crio
from tests.runtimes.cri.fake_server import FakeCri, served


def asked(fake: FakeCri, question: Callable[[Transport], Awaitable[Any]]) -> Any:
    async def scenario() -> Any:
        async with served(fake) as path:
            transport = GrpcTransport(path)
            try:
                return await question(transport)
            finally:
                await transport.close()

    return asyncio.run(scenario())


def containerd_config(*, systemd: bool | None, runtime: str = "runc") -> dict[str, Any]:
    options = {} if systemd is None else {"SystemdCgroup": systemd}
    return {"containerd": {"defaultRuntimeName": "runc", "runtimes": {runtime: {"options": options}}}}


DRIVERS: dict[str, tuple[dict[str, Any], str]] = {
    "systemd": (containerd_config(systemd=True), "systemd"),
    "cgroupfs": (containerd_config(systemd=False), "cgroupfs"),
    "another handler's": (containerd_config(systemd=True, runtime="kata"), ""),
    "no word of it": (containerd_config(systemd=None), ""),
    "the old way": ({"systemdCgroup": True}, "systemd"),
    "the old way, unused": (containerd_config(systemd=True) | {"systemdCgroup": False}, "systemd"),
    "CRI-O's, systemd": ({"crio": {"CgroupManagerName": "systemd"}}, "systemd"),
    "CRI-O's, cgroupfs": ({"crio": {"CgroupManagerName": "cgroupfs"}}, "cgroupfs"),
    "nothing": ({}, ""),
    "nonsense": ({"containerd": [1], "cni": 5}, ""),
}


@pytest.mark.parametrize("config, expected", DRIVERS.values(), ids=DRIVERS.keys())
def test_the_cgroup_driver_in_a_configuration(config: dict[str, Any], expected: str) -> None:
    assert configured_cgroup_driver(config) == expected


def test_a_runtime_that_is_asked_for_its_driver_knows_best() -> None:
    fake = FakeCri()
    fake.info = {"config": json.dumps(containerd_config(systemd=False))}
    assert asked(fake, about).cgroup_driver == "cgroupfs"
    fake = FakeCri()
    fake.unknown_calls.discard("RuntimeConfig")
    fake.info = {"config": json.dumps(containerd_config(systemd=False))}
    assert asked(fake, about).cgroup_driver == "systemd"


CONFIGS: dict[str, tuple[str, str]] = {
    "told": (json.dumps({"sandboxImage": "reg.test/pause:1"}), "reg.test/pause:1"),
    "not told": ("{}", ""),
    "nothing told": ("", ""),
    "no JSON": ("sandboxImage: x", ""),
    "another thing": ("[1]", ""),
    "no text": (json.dumps({"sandboxImage": 5}), ""),
}


@pytest.mark.parametrize("config, expected", CONFIGS.values(), ids=CONFIGS.keys())
def test_the_image_of_sandboxes(config: str, expected: str) -> None:
    fake = FakeCri()
    fake.info = {"config": config}
    assert asked(fake, about).sandbox_image == expected


def test_a_network_that_is_not_ready_is_told_with_where_its_parts_should_be() -> None:
    fake = FakeCri()
    fake.conditions["NetworkReady"] = False
    fake.info = {"config": json.dumps({"cni": {"confDir": "/etc/cni/net.d", "binDir": "/opt/cni/bin"}})}
    expected = About(network_directory="/etc/cni/net.d", plugin_directory="/opt/cni/bin", network_trouble="so")
    assert asked(fake, about) == expected


STREAMS: dict[str, tuple[set[str], set[str], News]] = {
    "CRI's": (set(), set(), News.CRI),
    "containerd's": (set(), {"GetContainerEvents"}, News.CONTAINERD),
    "none": ({"containerd.services.events.v1.Events"}, {"GetContainerEvents"}, News.NONE),
}


@pytest.mark.parametrize("services, calls, expected", STREAMS.values(), ids=STREAMS.keys())
def test_which_stream_a_runtime_serves(services: set[str], calls: set[str], expected: News) -> None:
    fake = FakeCri()
    fake.unknown_services, fake.unknown_calls = services, calls
    assert asked(fake, news_of) is expected


def test_nobody_serves_a_stream_where_nobody_is() -> None:
    async def scenario() -> None:
        transport = GrpcTransport("/nowhere/at-all.sock")
        assert await news_of(transport) is News.NONE
        with pytest.raises(RuntimeUnavailable):
            await about(transport)
        await transport.close()

    asyncio.run(scenario())


def test_containerd_tells_of_itself(containerd: Containerd) -> None:
    async def scenario() -> None:
        transport = GrpcTransport(containerd.socket)
        try:
            own = await about(transport)
            assert (own.cgroup_driver, own.sandbox_image, own.network_trouble) == ("cgroupfs", PAUSE, "")
            assert own.network_directory == str(containerd.root / "cni")
            assert await has_image(transport, PAUSE)
            assert not await has_image(transport, "localhost/never:1")
            assert await news_of(transport) in (News.CRI, News.CONTAINERD)
        finally:
            await transport.close()

    containerd.run(scenario())


@pytest.mark.slow
def test_crio_tells_of_itself(crio: Crio) -> None:
    async def scenario() -> None:
        transport = GrpcTransport(crio.socket)
        try:
            own = await about(transport)
            assert (own.cgroup_driver, own.sandbox_image, own.network_trouble) == ("cgroupfs", PAUSE, "")
            assert await news_of(transport) is News.CRI
            assert await has_image(transport, PAUSE)
        finally:
            await transport.close()

    crio.run(scenario())
