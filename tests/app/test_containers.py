"""An agent on a container runtime: socket, cgroups, configuration and errors."""

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

from podkeeper.app.build import Engine
from podkeeper.app.cli import main
from podkeeper.app.container_cgroups import cgroup_root_of, driver_of, parent_of, policy_of
from podkeeper.app.containers import facts_with, retry_while_starting
from podkeeper.app.runtime_sockets import socket_of
from podkeeper.app.standalone import SUPPORTED_CRI_FIELDS, SUPPORTED_FIELDS, AgentParts, Standalone, open_agent_parts
from podkeeper.host.cgroups import own_root
from podkeeper.host.systemd import PRIVATE_SOCKET
from podkeeper.model.errors import BadInput, RuntimeUnavailable
from podkeeper.model.k8s.core import NodeFeatures, Pod
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.kubelet_config import Duration, KubeletConfiguration
from podkeeper.rules.admission.admit import Enforcement
from podkeeper.rules.cgroup.limits import CpuPolicy
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.connect import runtime_version
from podkeeper.runtimes.cri.requests.node import NodeFacts
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.app.cri_thread import cri_served_in_thread
from tests.runtimes.cri.fake_server import FakeCri, served

UNPRIVILEGED_UID = 65534
FACTS = NodeFacts(memory_bytes=2**30, pods_root="/pods", seccomp_root="/seccomp", cgroup_v2=False)
SYSTEMD = {"containerd": {"defaultRuntimeName": "runc", "runtimes": {"runc": {"options": {"SystemdCgroup": True}}}}}


# ---- the socket ----


def test_a_socket_is_a_path_or_a_unix_url() -> None:
    assert socket_of("/run/my.sock") == socket_of("unix:///run/my.sock") == "/run/my.sock"


def test_the_default_socket_is_the_first_that_exists(tmp_path: Path) -> None:
    (tmp_path / "second").write_text("")
    (tmp_path / "third").write_text("")
    defaults = [str(tmp_path / name) for name in ("first", "second", "third")]
    assert socket_of("", defaults) == defaults[1]
    with pytest.raises(BadInput, match=r"none of .*/first exists; install one .*containerd.*--runtime-endpoint"):
        socket_of("", defaults[:1])


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:99", "containerd.sock", "unix://here.sock"])
def test_an_invalid_endpoint_is_an_error_with_an_example(endpoint: str) -> None:
    with pytest.raises(BadInput, match=r"such as unix:///run/containerd/containerd\.sock"):
        socket_of(endpoint)


# ---- cgroups and configuration ----

ROOTS: dict[str, tuple[str, str]] = {
    "the agent's own name": ("", own_root("/root")),
    "the kubelet's name": ("/", "kubepods"),
    "the kubelet's name below another cgroup": ("/burst/", "burst/kubepods"),
}


@pytest.mark.parametrize("wanted, expected", ROOTS.values(), ids=ROOTS.keys())
def test_the_parent_of_pod_cgroups(wanted: str, expected: str) -> None:
    assert cgroup_root_of(Path("/root"), KubeletConfiguration(cgroup_root=wanted)) == expected


DRIVERS: dict[str, tuple[str, str, str]] = {
    "the runtime reports systemd": ("systemd", "cgroupfs", "systemd"),
    "the runtime reports cgroupfs": ("cgroupfs", "systemd", "cgroupfs"),
    "the runtime reports none, the configuration has one": ("", "systemd", "systemd"),
    "neither has one": ("", "", "cgroupfs"),
}


@pytest.mark.parametrize("reported, configured, expected", DRIVERS.values(), ids=DRIVERS.keys())
def test_the_cgroup_driver(reported: str, configured: str, expected: str) -> None:
    assert driver_of(reported, KubeletConfiguration(cgroup_driver=configured)) == expected


def test_an_unknown_driver_is_an_error() -> None:
    with pytest.raises(
        BadInput, match=r'cgroupDriver: Unsupported value: "kvm": supported values: "cgroupfs", "systemd"'
    ):
        driver_of("", KubeletConfiguration(cgroup_driver="kvm"))


def test_the_cgroup_parent_of_both_drivers() -> None:
    pod = Pod(metadata=ObjectMeta(name="web", uid="12-ab"))
    assert parent_of("cgroupfs", "burst/kubepods")(pod) == "/burst/kubepods/besteffort/pod12-ab"
    above = "/burst.slice/burst-kubepods.slice/burst-kubepods-besteffort.slice"
    assert parent_of("systemd", "burst/kubepods")(pod) == f"{above}/burst-kubepods-besteffort-pod12_ab.slice"


def test_the_cpu_policy_of_the_configuration() -> None:
    assert policy_of(KubeletConfiguration()) == CpuPolicy()
    config = KubeletConfiguration(cpu_cfs_quota=False, cpu_cfs_quota_period=Duration("10ms"))
    assert policy_of(config) == CpuPolicy(enforce=False, period=10_000)


def test_settings_are_added_to_the_facts_of_the_machine() -> None:
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


def test_a_sysctl_of_the_host_cannot_be_allowed() -> None:
    config = KubeletConfiguration(allowed_unsafe_sysctls=("vm.swappiness", "net.*", "kernel.panic"))
    with pytest.raises(BadInput) as caught:
        facts_with(FACTS, config)
    assert [problem.field for problem in caught.value.problems] == ["allowedUnsafeSysctls"] * 2


def test_the_cri_runtime_supports_more_fields(tmp_path: Path) -> None:
    assert SUPPORTED_FIELDS < SUPPORTED_CRI_FIELDS
    config = tmp_path / "kubelet.yaml"
    config.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "containerRuntimeEndpoint: unix:///nowhere/c.sock\nseccompDefault: true\n"
    )
    processes = invoked("run", "--config", str(config), str(tmp_path), root=tmp_path / "r", runtime="fake", once=True)
    assert "containerRuntimeEndpoint: unsupported" in processes.output
    containers = invoked("run", "--config", str(config), str(tmp_path), root=tmp_path / "r")
    assert "unsupported by" not in containers.output
    assert "/nowhere/c.sock" in containers.output  # the endpoint of the configuration


def test_admission_checks_what_the_runtime_can_enforce(tmp_path: Path) -> None:
    async def scenario() -> AgentParts:
        async with served(FakeCri()) as path, open_agent_parts(containers(tmp_path, path)) as parts:
            return parts

    parts = asyncio.run(scenario())
    assert isinstance(parts.settings.enforcement, Enforcement)
    assert parts.settings.enforcement.unsafe_sysctls == ()
    assert parts.settings.node.status.features is not None
    assert parts.settings.node.status.features.supplemental_groups_policy is False
    assert parts.settings.node.status.runtime_handlers is None


def test_the_node_status_has_the_features_of_the_runtime(tmp_path: Path) -> None:
    fake = FakeCri()
    fake.features.supplemental_groups_policy = True
    for name in ("runc", ""):
        features = cri.RuntimeHandlerFeatures(recursive_read_only_mounts=not name, user_namespaces=True)
        fake.handlers.append(cri.RuntimeHandler(name=name, features=features))

    async def scenario() -> None:
        async with served(fake) as path, open_agent_parts(containers(tmp_path, path)) as parts:
            status = parts.settings.node.status
            assert status.features == NodeFeatures(supplemental_groups_policy=True)
            assert [each.name for each in status.runtime_handlers or ()] == ["", "runc"]
            assert Engine(parts.ports, parts.settings).node_info.view().recursive_read_only

    asyncio.run(scenario())


def test_the_directory_of_log_links() -> None:
    def links(**options: Any) -> Path | None:
        config = KubeletConfiguration(pod_logs_dir=options.pop("logs", ""))
        return Standalone(paths=(), root=Path("/r"), node_name="n", config=config, **options).log_link_root

    assert links() is None
    assert links(logs="/elsewhere") is None
    assert links(logs="/var/log/pods") == Path("/var/log/containers")
    assert links(log_links=Path("/mine")) == Path("/mine")


# ---- error messages ----


def test_a_missing_runtime_is_an_error_with_a_hint(tmp_path: Path) -> None:
    result = invoked("run", str(tmp_path), "--runtime-endpoint", str(tmp_path / "none.sock"), root=tmp_path / "r")
    assert result.exit_code == 1
    assert "the socket does not exist; check that containerd or CRI-O is running" in result.output


def test_a_runtime_without_cri_has_its_own_error(tmp_path: Path) -> None:
    fake = FakeCri()
    fake.unknown_services.add("runtime.v1.RuntimeService")
    with cri_served_in_thread(fake) as path:
        result = invoked("run", str(tmp_path), "--runtime-endpoint", f"unix://{path}", root=tmp_path / "r")
    assert result.exit_code == 1
    assert "remove `cri` from `disabled_plugins`" in result.output


@pytest.mark.skipif(
    os.path.exists(PRIVATE_SOCKET),
    reason="needs a machine without systemd",
)
def test_the_systemd_driver_without_systemd_is_an_error(tmp_path: Path) -> None:
    fake = FakeCri()
    fake.info = {"config": json.dumps(SYSTEMD)}
    with cri_served_in_thread(fake) as path:
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
    with cri_served_in_thread(FakeCri()) as path:
        words = ("--runtime-endpoint", path, "--config", str(config))
        result = invoked("run", str(pods), *words, root=tmp_path / "r")
    assert result.exit_code == 1
    assert "cgroupRoot: cannot create pod cgroups in /no-such-root-of-podkeeper: no cgroups: " in result.output
    assert "or leave cgroupRoot empty" in result.output


def test_a_socket_without_permission_is_an_error() -> None:
    async def scenario(path: str) -> None:
        transport = GrpcTransport(path)
        try:
            await retry_while_starting(path, lambda: greet(path, transport), 20)
        finally:
            await transport.close()

    with cri_served_in_thread(FakeCri()) as path:
        os.chmod(path, 0)
        message = "permission denied; run as root, or as a user with write permission"
        with unprivileged_user(), pytest.raises(BadInput, match=message):
            asyncio.run(scenario(path))


def test_an_endpoint_without_runtime_cri_is_a_usage_error(tmp_path: Path) -> None:
    arguments = ["run", str(tmp_path), "--runtime-endpoint", "/x.sock"]
    result = CliRunner().invoke(main, [*arguments, "--root", str(tmp_path / "r")])
    assert result.exit_code == 2
    assert "--runtime-endpoint requires --runtime cri" in result.output


# ---- a runtime that is starting ----


async def greet(path: str, transport: GrpcTransport) -> str:
    return (await runtime_version(CriCalls(transport), path)).runtime_name


def test_a_runtime_that_is_starting_is_awaited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "c.sock")

    async def scenario() -> None:
        leave_dead_socket(path)
        transport, fake = GrpcTransport(path), FakeCri()

        async def begin() -> None:
            await asyncio.sleep(0.3)
            await fake.serve(path)

        beginning = asyncio.create_task(begin())
        try:
            assert await retry_while_starting(path, lambda: greet(path, transport), 20) == "fakerd"
        finally:
            await beginning
            await transport.close()
            await fake.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert len([record for record in caplog.records if record.name == "podkeeper.app.containers"]) == 1


def test_a_runtime_that_does_not_start_is_an_error_after_the_timeout(tmp_path: Path) -> None:
    path = str(tmp_path / "c.sock")

    async def scenario() -> None:
        leave_dead_socket(path)
        transport = GrpcTransport(path)
        try:
            await retry_while_starting(path, lambda: greet(path, transport), 0.6)
        finally:
            await transport.close()

    with pytest.raises(RuntimeUnavailable, match="connection refused; start the runtime"):
        asyncio.run(scenario())


# ---- helpers ----


def containers(directory: Path, path: str) -> Standalone:
    return Standalone(paths=(), root=directory / "r", node_name="n1", runtime="cri", runtime_endpoint=path)


def invoked(*arguments: str, root: Path, runtime: str = "cri", once: bool = False) -> Result:
    options = ["--root", str(root), "--runtime", runtime, "--plain", *(["--once"] if once else [])]
    return CliRunner().invoke(main, [*arguments, *options])


def leave_dead_socket(path: str) -> None:
    """Create a socket without a listener."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)


@contextmanager
def unprivileged_user() -> Iterator[None]:
    """Run as a user without privileges."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(UNPRIVILEGED_UID)
    try:
        yield
    finally:
        os.seteuid(before)
