"""An agent on a container runtime: which socket, which cgroups, what the configuration says, and what is refused."""

import asyncio
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from podkeeper.app.build import Agent
from podkeeper.app.cli import main
from podkeeper.app.container_cgroups import cgroup_root_of, driver_of, parent_of, policy_of
from podkeeper.app.containers import facts_with, waited_for
from podkeeper.app.runtime_sockets import socket_of
from podkeeper.app.standalone import HONOURED, HONOURED_FOR_CONTAINERS, Assembly, Standalone, assembled
from podkeeper.host.cgroups import own_root
from podkeeper.host.systemd import PRIVATE_SOCKET
from podkeeper.model.errors import BadInput, RuntimeUnavailable
from podkeeper.model.k8s.core import NodeFeatures, Pod
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.kubelet_config import Duration, KubeletConfiguration
from podkeeper.rules.admit import Enforcement
from podkeeper.rules.cgroup_limits import CpuPolicy
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.opening import who_answers
from podkeeper.runtimes.cri.requests.node import NodeFacts
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.app.serving_aside import serving_aside
from tests.runtimes.cri.fake_server import FakeCri, served

NOBODY = 65534
FACTS = NodeFacts(memory_bytes=2**30, pods_root="/pods", seccomp_root="/seccomp", cgroup_v2=False)
SYSTEMD = {"containerd": {"defaultRuntimeName": "runc", "runtimes": {"runc": {"options": {"SystemdCgroup": True}}}}}


# ---- which socket ----


def test_a_socket_may_be_named_as_a_path_or_as_kubelets_do() -> None:
    assert socket_of("/run/my.sock") == socket_of("unix:///run/my.sock") == "/run/my.sock"


def test_the_default_socket_is_the_first_that_exists(tmp_path: Path) -> None:
    (tmp_path / "second").write_text("")
    (tmp_path / "third").write_text("")
    usual = [str(tmp_path / name) for name in ("first", "second", "third")]
    assert socket_of("", usual) == usual[1]
    with pytest.raises(BadInput, match=r"none of .*/first exists; install one .*containerd.*--runtime-endpoint"):
        socket_of("", usual[:1])


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:99", "containerd.sock", "unix://here.sock"])
def test_what_is_no_socket_is_refused_with_one_that_would_be(endpoint: str) -> None:
    with pytest.raises(BadInput, match=r"such as unix:///run/containerd/containerd\.sock"):
        socket_of(endpoint)


# ---- which cgroups, and what else the configuration says ----

ROOTS: dict[str, tuple[str, str]] = {
    "a name of its own": ("", own_root("/root")),
    "the reference's": ("/", "kubepods"),
    "the reference's, below another": ("/burst/", "burst/kubepods"),
}


@pytest.mark.parametrize("wanted, expected", ROOTS.values(), ids=ROOTS.keys())
def test_where_pods_have_their_cgroups(wanted: str, expected: str) -> None:
    assert cgroup_root_of(Path("/root"), KubeletConfiguration(cgroup_root=wanted)) == expected


DRIVERS: dict[str, tuple[str, str, str]] = {
    "the runtime's": ("systemd", "cgroupfs", "systemd"),
    "the runtime's, the other way round": ("cgroupfs", "systemd", "cgroupfs"),
    "the configuration's, where the runtime does not tell": ("", "systemd", "systemd"),
    "cgroupfs, where nobody does": ("", "", "cgroupfs"),
}


@pytest.mark.parametrize("told, configured, expected", DRIVERS.values(), ids=DRIVERS.keys())
def test_who_makes_cgroups(told: str, configured: str, expected: str) -> None:
    assert driver_of(told, KubeletConfiguration(cgroup_driver=configured)) == expected


def test_a_driver_that_nobody_knows_is_refused() -> None:
    with pytest.raises(
        BadInput, match=r'cgroupDriver: Unsupported value: "kvm": supported values: "cgroupfs", "systemd"'
    ):
        driver_of("", KubeletConfiguration(cgroup_driver="kvm"))


def test_a_runtime_is_told_the_same_kind_of_parent_under_both_drivers() -> None:
    pod = Pod(metadata=ObjectMeta(name="web", uid="12-ab"))
    assert parent_of("cgroupfs", "burst/kubepods")(pod) == "/burst/kubepods/besteffort/pod12-ab"
    above = "/burst.slice/burst-kubepods.slice/burst-kubepods-besteffort.slice"
    assert parent_of("systemd", "burst/kubepods")(pod) == f"{above}/burst-kubepods-besteffort-pod12_ab.slice"


def test_pods_are_held_to_their_limits_as_the_configuration_says() -> None:
    assert policy_of(KubeletConfiguration()) == CpuPolicy()
    config = KubeletConfiguration(cpu_cfs_quota=False, cpu_cfs_quota_period=Duration("10ms"))
    assert policy_of(config) == CpuPolicy(enforce=False, period=10_000)


def test_the_configuration_has_its_say_in_what_is_known_of_the_machine() -> None:
    assert facts_with(FACTS, KubeletConfiguration()) == FACTS
    config = KubeletConfiguration(
        seccomp_default=True,
        cpu_cfs_quota=False,
        cpu_cfs_quota_period=Duration("50ms"),
        allowed_unsafe_sysctls=("net.core.*",),
    )
    facts = facts_with(FACTS, config)
    assert (facts.default_seccomp, facts.cpu_cfs_quota, facts.cpu_period) == (True, False, 50_000)
    assert facts.allowed_unsafe_sysctls == ("net.core.*",)


def test_settings_that_all_pods_share_cannot_be_allowed_to_one() -> None:
    config = KubeletConfiguration(allowed_unsafe_sysctls=("vm.swappiness", "net.*", "kernel.panic"))
    with pytest.raises(BadInput) as caught:
        facts_with(FACTS, config)
    assert [problem.field for problem in caught.value.problems] == ["allowedUnsafeSysctls"] * 2


def test_containers_honour_more_of_a_configuration(tmp_path: Path) -> None:
    assert HONOURED < HONOURED_FOR_CONTAINERS
    config = tmp_path / "kubelet.yaml"
    config.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "containerRuntimeEndpoint: unix:///nowhere/c.sock\nseccompDefault: true\n"
    )
    processes = invoked("run", "--config", str(config), str(tmp_path), root=tmp_path / "r", runtime="fake", once=True)
    assert "containerRuntimeEndpoint: unsupported" in processes.output
    containers = invoked("run", "--config", str(config), str(tmp_path), root=tmp_path / "r")
    assert "unsupported by" not in containers.output
    assert "/nowhere/c.sock" in containers.output  # nobody said another one


def test_what_the_runtime_can_do_is_asked_about_at_admission(tmp_path: Path) -> None:
    async def scenario() -> Assembly:
        async with served(FakeCri()) as path, assembled(containers(tmp_path, path)) as parts:
            return parts

    parts = asyncio.run(scenario())
    assert isinstance(parts.settings.enforcement, Enforcement)
    assert parts.settings.enforcement.unsafe_sysctls == ()
    assert parts.settings.node.status.features is not None
    assert parts.settings.node.status.features.supplemental_groups_policy is False
    assert parts.settings.node.status.runtime_handlers is None


def test_what_a_newer_runtime_offers_is_part_of_the_nodes_status(tmp_path: Path) -> None:
    fake = FakeCri()
    fake.features.supplemental_groups_policy = True
    for name in ("runc", ""):
        features = cri.RuntimeHandlerFeatures(recursive_read_only_mounts=not name, user_namespaces=True)
        fake.handlers.append(cri.RuntimeHandler(name=name, features=features))

    async def scenario() -> None:
        async with served(fake) as path, assembled(containers(tmp_path, path)) as parts:
            status = parts.settings.node.status
            assert status.features == NodeFeatures(supplemental_groups_policy=True)
            assert [each.name for each in status.runtime_handlers or ()] == ["", "runc"]
            assert Agent(parts.ports, parts.settings).node_view().recursive_read_only

    asyncio.run(scenario())


def test_links_to_logs_are_made_where_collectors_look_for_them() -> None:
    def links(**said: Any) -> Path | None:
        config = KubeletConfiguration(pod_logs_dir=said.pop("logs", ""))
        return Standalone(paths=(), root=Path("/r"), node_name="n", config=config, **said).log_link_root

    assert links() is None
    assert links(logs="/elsewhere") is None
    assert links(logs="/var/log/pods") == Path("/var/log/containers")
    assert links(log_links=Path("/mine")) == Path("/mine")


# ---- what a person is told ----


def test_without_a_runtime_it_says_what_to_do(tmp_path: Path) -> None:
    result = invoked("run", str(tmp_path), "--runtime-endpoint", str(tmp_path / "none.sock"), root=tmp_path / "r")
    assert result.exit_code == 1
    assert "there is no such socket; is containerd (or CRI-O) installed and running" in result.output


def test_a_runtime_without_cri_is_told_apart(tmp_path: Path) -> None:
    fake = FakeCri()
    fake.unknown_services.add("runtime.v1.RuntimeService")
    with serving_aside(fake) as path:
        result = invoked("run", str(tmp_path), "--runtime-endpoint", f"unix://{path}", root=tmp_path / "r")
    assert result.exit_code == 1
    assert "take `cri` out of `disabled_plugins`" in result.output


@pytest.mark.skipif(
    os.path.exists(PRIVATE_SOCKET),
    reason="what is said where there is no systemd cannot be seen here: it runs this machine",
)
def test_a_runtime_with_systemds_cgroups_on_a_machine_without_systemd_is_refused(tmp_path: Path) -> None:
    fake = FakeCri()
    fake.info = {"config": json.dumps(SYSTEMD)}
    with serving_aside(fake) as path:
        result = invoked("run", str(tmp_path), "--runtime-endpoint", path, root=tmp_path / "r")
    assert result.exit_code == 1
    assert "cannot reach systemd: " in result.output
    assert "run podkeeper as root, or on a machine without systemd, switch the runtime to cgroupfs" in result.output
    assert "SystemdCgroup = false" in result.output


def test_a_missing_cgroup_root_is_reported(tmp_path: Path) -> None:
    config, pods = tmp_path / "config.yaml", tmp_path / "pods"
    pods.mkdir()
    head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    config.write_text(f"{head}cgroupRoot: /no-such-root-of-podkeeper\n")
    with serving_aside(FakeCri()) as path:
        words = ("--runtime-endpoint", path, "--config", str(config))
        result = invoked("run", str(pods), *words, root=tmp_path / "r")
    assert result.exit_code == 1
    assert "cgroupRoot: cannot create pod cgroups in /no-such-root-of-podkeeper: no cgroups: " in result.output
    assert "or leave cgroupRoot empty" in result.output


def test_a_runtime_that_is_closed_to_this_user_is_told_so() -> None:
    async def scenario(path: str) -> None:
        transport = GrpcTransport(path)
        try:
            await waited_for(path, lambda: greet(path, transport), 20)
        finally:
            await transport.close()

    with serving_aside(FakeCri()) as path:
        os.chmod(path, 0)
        with nobody(), pytest.raises(BadInput, match="permission denied; run as root, or as a user who may write"):
            asyncio.run(scenario(path))


def test_an_endpoint_without_runtime_cri_is_a_usage_error(tmp_path: Path) -> None:
    arguments = ["run", str(tmp_path), "--runtime-endpoint", "/x.sock"]
    result = CliRunner().invoke(main, [*arguments, "--root", str(tmp_path / "r")])
    assert result.exit_code == 2
    assert "--runtime-endpoint requires --runtime cri" in result.output


# ---- a runtime that is late ----


async def greet(path: str, transport: GrpcTransport) -> str:
    return (await who_answers(Calls(transport), path)).runtime_name


def test_a_runtime_that_is_just_starting_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "c.sock")

    async def scenario() -> None:
        leave_behind(path)
        transport, fake = GrpcTransport(path), FakeCri()

        async def begin() -> None:
            await asyncio.sleep(0.3)
            await fake.serve(path)

        beginning = asyncio.create_task(begin())
        try:
            assert await waited_for(path, lambda: greet(path, transport), 20) == "fakerd"
        finally:
            await beginning
            await transport.close()
            await fake.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert len([record for record in caplog.records if record.name == "podkeeper.app.containers"]) == 1


def test_one_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    path = str(tmp_path / "c.sock")

    async def scenario() -> None:
        leave_behind(path)
        transport = GrpcTransport(path)
        try:
            await waited_for(path, lambda: greet(path, transport), 0.6)
        finally:
            await transport.close()

    with pytest.raises(RuntimeUnavailable, match="nobody listens on that socket; start the runtime"):
        asyncio.run(scenario())


# ---- helpers ----


def containers(directory: Path, path: str) -> Standalone:
    return Standalone(paths=(), root=directory / "r", node_name="n1", runtime="cri", runtime_endpoint=path)


def invoked(*arguments: str, root: Path, runtime: str = "cri", once: bool = False) -> Result:
    options = ["--root", str(root), "--runtime", runtime, "--plain", *(["--once"] if once else [])]
    return CliRunner().invoke(main, [*arguments, *options])


def leave_behind(path: str) -> None:
    """A socket that nobody listens on any more."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)


@contextmanager
def nobody() -> Iterator[None]:
    """Be somebody who may not do everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)
