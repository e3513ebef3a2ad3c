"""Runtime information: from scripted responses and from a real containerd."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.runtimes.cri.runtime_info import (
    EventStreamKind,
    RuntimeInfo,
    configured_cgroup_driver,
    event_stream_kind,
    has_image,
    runtime_info,
)
from podkeeper.runtimes.cri.transport import GrpcTransport, Transport
from tests.runtimes.cri.containerd import PAUSE, Containerd
from tests.runtimes.cri.crio import Crio
from tests.runtimes.cri.fake_server import FakeCri, served


def answer_of(fake: FakeCri, question: Callable[[Transport], Awaitable[Any]]) -> Any:
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
    "no entry": (containerd_config(systemd=None), ""),
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


def test_the_reported_cgroup_driver_wins_over_the_configuration() -> None:
    fake = FakeCri()
    fake.info = {"config": json.dumps(containerd_config(systemd=False))}
    assert answer_of(fake, runtime_info).cgroup_driver == "cgroupfs"
    fake = FakeCri()
    fake.unknown_calls.discard("RuntimeConfig")
    fake.info = {"config": json.dumps(containerd_config(systemd=False))}
    assert answer_of(fake, runtime_info).cgroup_driver == "systemd"


CONFIGS: dict[str, tuple[str, str]] = {
    "reported": (json.dumps({"sandboxImage": "reg.test/pause:1"}), "reg.test/pause:1"),
    "not reported": ("{}", ""),
    "no info": ("", ""),
    "no JSON": ("sandboxImage: x", ""),
    "another thing": ("[1]", ""),
    "no text": (json.dumps({"sandboxImage": 5}), ""),
}


@pytest.mark.parametrize("config, expected", CONFIGS.values(), ids=CONFIGS.keys())
def test_the_image_of_sandboxes(config: str, expected: str) -> None:
    fake = FakeCri()
    fake.info = {"config": config}
    assert answer_of(fake, runtime_info).sandbox_image == expected


def test_an_unready_network_is_reported_with_the_cni_directories() -> None:
    fake = FakeCri()
    fake.conditions["NetworkReady"] = False
    fake.info = {"config": json.dumps({"cni": {"confDir": "/etc/cni/net.d", "binDir": "/opt/cni/bin"}})}
    expected = RuntimeInfo(network_directory="/etc/cni/net.d", plugin_directory="/opt/cni/bin", network_problem="so")
    assert answer_of(fake, runtime_info) == expected


STREAMS: dict[str, tuple[set[str], set[str], EventStreamKind]] = {
    "CRI's": (set(), set(), EventStreamKind.CRI),
    "containerd's": (set(), {"GetContainerEvents"}, EventStreamKind.CONTAINERD),
    "none": ({"containerd.services.events.v1.Events"}, {"GetContainerEvents"}, EventStreamKind.NONE),
}


@pytest.mark.parametrize("services, calls, expected", STREAMS.values(), ids=STREAMS.keys())
def test_the_event_stream_kind_of_a_runtime(services: set[str], calls: set[str], expected: EventStreamKind) -> None:
    fake = FakeCri()
    fake.unknown_services, fake.unknown_calls = services, calls
    assert answer_of(fake, event_stream_kind) is expected


def test_no_event_stream_without_a_server() -> None:
    async def scenario() -> None:
        transport = GrpcTransport("/nowhere/at-all.sock")
        assert await event_stream_kind(transport) is EventStreamKind.NONE
        with pytest.raises(RuntimeUnavailable):
            await runtime_info(transport)
        await transport.close()

    asyncio.run(scenario())


def test_the_configuration_of_containerd(containerd: Containerd) -> None:
    async def scenario() -> None:
        transport = GrpcTransport(containerd.socket)
        try:
            own = await runtime_info(transport)
            assert (own.cgroup_driver, own.sandbox_image, own.network_problem) == ("cgroupfs", PAUSE, "")
            assert own.network_directory == str(containerd.root / "cni")
            assert await has_image(transport, PAUSE)
            assert not await has_image(transport, "localhost/never:1")
            assert await event_stream_kind(transport) in (EventStreamKind.CRI, EventStreamKind.CONTAINERD)
        finally:
            await transport.close()

    containerd.run(scenario())


@pytest.mark.slow
def test_the_configuration_of_crio(crio: Crio) -> None:
    async def scenario() -> None:
        transport = GrpcTransport(crio.socket)
        try:
            own = await runtime_info(transport)
            assert (own.cgroup_driver, own.sandbox_image, own.network_problem) == ("cgroupfs", PAUSE, "")
            assert await event_stream_kind(transport) is EventStreamKind.CRI
            assert await has_image(transport, PAUSE)
        finally:
            await transport.close()

    crio.run(scenario())
