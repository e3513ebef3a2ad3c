"""The `create` request of a keeper, built from a container's spec."""

import grp
import os
import pwd
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pytest
from msgspec.structs import replace

from podkeeper.linux import cgroup
from podkeeper.linux.capabilities import bounding_set
from podkeeper.linux.devices import DEFAULT, device_at
from podkeeper.model.errors import ImagePullFailed, RuntimeRefused
from podkeeper.model.k8s.core import (
    Capabilities,
    Container,
    HostPathVolumeSource,
    Lifecycle,
    Pod,
    PodSecurityContext,
    PodSpec,
    ResourceRequirements,
    SecurityContext,
    Volume,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.runtime import LinuxUser
from podkeeper.model.runtime_calls import ContainerConfig, Mount
from podkeeper.rules.cgroup.limits import container_limits, files_of
from podkeeper.runtimes.process.images import HostImages
from podkeeper.runtimes.process.keeper.launch import DEFAULT_PATH, Bind, Launch
from podkeeper.runtimes.process.launch_requests import KeeperSandbox, request_of, user_of
from podkeeper.runtimes.process.seccomp_profiles import seccomp_filter_of
from tests.runtimes.process.jail_harness import in_keeper

PLACE = KeeperSandbox("/state/sandboxes/s", hostname="web", hidden=("/state",))
TERMINATION = Bind("/state/sandboxes/s/containers/x/termination", "/dev/termination-log", optional=True)


def config(pod: PodSpec | None = None, **spec: Any) -> ContainerConfig:
    container = Container(name="c", image="host", **spec)
    full_pod = Pod(metadata=ObjectMeta(name="p", namespace="default", uid="u"), spec=pod or PodSpec())
    return ContainerConfig(
        pod=full_pod, container=container, attempt=0, image="host", spec_hash="", command=("sh", "-c"), args=("exit 1",)
    )


def launch(wanted: ContainerConfig) -> Launch:
    return Launch.from_json(request_of(wanted, "x", PLACE)["launch"])


LAUNCHES: dict[str, tuple[ContainerConfig, Mapping[str, object]]] = {
    "command, then args": (config(), {"argv": ("sh", "-c", "exit 1")}),
    "the agent's state is hidden": (config(), {"hidden": ("/state",), "directory": "/state/sandboxes/s/containers/x"}),
    "a working directory": (config(working_dir="/srv"), {"cwd": "/srv"}),
    "a pid namespace of its own": (config(), {"pid": "own", "ipc": "pod", "uts": "pod"}),
    "the pod's pid namespace": (config(PodSpec(share_process_namespace=True)), {"pid": "pod"}),
    "the host's namespaces": (
        config(PodSpec(host_pid=True, host_ipc=True, host_network=True, share_process_namespace=True)),
        {"pid": "host", "ipc": "host", "uts": "host"},
    ),
    "capabilities": (
        config(security_context=SecurityContext(capabilities=Capabilities(add=("NET_ADMIN",), drop=("ALL",)))),
        {"capabilities_add": ("NET_ADMIN",), "capabilities_drop": ("ALL",)},
    ),
    "no privilege escalation": (
        config(security_context=SecurityContext(allow_privilege_escalation=False)),
        {"no_new_privileges": True},
    ),
    "privileged": (config(security_context=SecurityContext(privileged=True)), {"privileged": True}),
    "a read-only root": (
        config(security_context=SecurityContext(read_only_root_filesystem=True)),
        {"read_only_root": True},
    ),
    "an unmasked /proc": (
        config(security_context=SecurityContext(proc_mount="Unmasked")),
        {"masked": (), "read_only_paths": ()},
    ),
    "the container's user overrides the pod's": (
        config(
            PodSpec(security_context=PodSecurityContext(run_as_user=1, run_as_group=1)),
            security_context=SecurityContext(run_as_user=4_000_000),
        ),
        {"user": 4_000_000, "group": 1, "groups": (1,)},
    ),
    "a termination message path": (config(), {"binds": (TERMINATION,)}),
    "another termination message path": (
        config(termination_message_path="/tmp/words"),
        {"binds": (Bind(TERMINATION.source, "/tmp/words", optional=True),)},
    ),
}


@pytest.mark.parametrize(("wanted", "expected"), LAUNCHES.values(), ids=LAUNCHES.keys())
def test_a_launch(wanted: ContainerConfig, expected: Mapping[str, object]) -> None:
    made = launch(wanted)
    assert {name: getattr(made, name) for name in expected} == expected


def test_mounts_become_binds_and_one_at_the_termination_path_replaces_the_file() -> None:
    mounts = (
        Mount(container_path="/data", host_path="/v/data", read_only=True, propagation="HostToContainer"),
        Mount(container_path="/dev/termination-log", host_path="/v/log", sub_path="a/b"),
    )
    made = launch(replace(config(), mounts=mounts))
    assert made.binds == (
        Bind("/v/data", "/data", True, "HostToContainer"),
        Bind("/v/log", "/dev/termination-log", sub_path="a/b"),
    )


def test_the_environment_has_the_variables_of_an_image() -> None:
    home = pwd.getpwuid(os.geteuid()).pw_dir
    plain = {"PATH": DEFAULT_PATH, "HOSTNAME": "web", "HOME": home}
    assert launch(config()).env == plain
    assert launch(replace(config(tty=True), env={"PATH": "/bin", "X": "1"})).env == {
        **plain,
        "PATH": "/bin",
        "X": "1",
        "TERM": "xterm",
    }


def test_a_container_without_a_command_is_refused() -> None:
    with pytest.raises(RuntimeRefused, match="no command specified"):
        request_of(replace(config(), command=(), args=()), "x", PLACE)


def test_the_other_fields_of_a_request() -> None:
    made = request_of(
        config(
            stdin=True,
            stdin_once=True,
            termination_message_policy="FallbackToLogsOnError",
            lifecycle=Lifecycle(stop_signal="SIGUSR1"),
        ),
        "x",
        PLACE,
    )
    beside = {
        name: made[name] for name in ("container", "stdin", "stdin_once", "message_policy", "stop_signal", "cgroup")
    }
    assert beside == {
        "container": "x",
        "stdin": True,
        "stdin_once": True,
        "message_policy": "FallbackToLogsOnError",
        "stop_signal": "SIGUSR1",
        "cgroup": None,
    }


def test_a_user_gets_its_groups_of_the_host_unless_the_policy_is_strict() -> None:
    account = pwd.getpwnam("daemon")
    others = {group.gr_gid for group in grp.getgrall() if "daemon" in group.gr_mem}
    for policy, groups in (("Merge", {account.pw_gid, 7, 9} | others), ("Strict", {account.pw_gid, 7, 9})):
        shared = PodSecurityContext(
            run_as_user=account.pw_uid, fs_group=7, supplemental_groups=(9,), supplemental_groups_policy=policy
        )
        wanted = config(PodSpec(security_context=shared))
        expected = LinuxUser(uid=account.pw_uid, gid=account.pw_gid, supplemental_groups=tuple(sorted(groups)))
        assert user_of(wanted.pod, wanted.container) == expected


CAPACITY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def requesting(memory: int, name: str = "c", **spec: Any) -> Container:
    return Container(name=name, resources=ResourceRequirements(requests={"memory": str(memory)}), **spec)


SOME = ResourceRequirements(requests={"cpu": "1", "memory": "64Mi"})
ALL = ResourceRequirements(requests={"cpu": "1", "memory": "64Mi"}, limits={"cpu": "1", "memory": "64Mi"})
SIDECAR = Container(name="side", restart_policy="Always")
HALF = requesting(CAPACITY // 2)
HALF_OF_THE_POD = ResourceRequirements(requests={"memory": str(CAPACITY // 2)})
SCORES = {
    "BestEffort": (PodSpec(containers=(Container(name="c"),)), range(1000, 1001)),
    "Burstable": (PodSpec(containers=(Container(name="c", resources=SOME),)), range(3, 1000)),
    "Guaranteed": (PodSpec(containers=(Container(name="c", resources=ALL),)), range(-997, -996)),
    "node-critical": (
        PodSpec(
            containers=(Container(name="c"),), priority_class_name="system-node-critical", priority=2_000_001_000
        ),
        range(-997, -996),
    ),
    "half of the memory requested": (PodSpec(containers=(HALF,)), range(500, 501)),
    "a sidecar has the score of its app": (PodSpec(containers=(HALF,), init_containers=(SIDECAR,)), range(500, 501)),
    "a pod-level request counts": (
        PodSpec(containers=(Container(name="c"),), resources=HALF_OF_THE_POD), range(500, 501)),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "scores"), SCORES.values(), ids=SCORES.keys())
def test_the_oom_score_follows_the_rules(spec: PodSpec, scores: range) -> None:
    container = (spec.init_containers or spec.containers)[0]
    wanted = replace(config(spec), container=container)
    assert request_of(wanted, "x", PLACE)["oom_score_adj"] in scores


def default_filter(held: frozenset[int]) -> str:
    return seccomp_filter_of(config().pod, config().container, held, "").program


IMAGES = {
    "host": True,
    "host:latest": True,
    "docker.io/library/busybox:1.36": True,
    "busybox": True,
    "busybox:latest": True,
    "nginx": False,
    "hosts": False,
}


@pytest.mark.parametrize(("reference", "is_host"), IMAGES.items())
def test_names_of_the_host_image(reference: str, is_host: bool) -> None:
    images = HostImages(["docker.io/library/*", "busybox"])
    assert (images.find(reference) is not None) is is_host


def test_the_pull_error_names_the_alternative() -> None:
    with pytest.raises(ImagePullFailed) as caught:
        HostImages().pull("nginx:1")
    assert all(part in str(caught.value) for part in ('"nginx:1"', "image: host", "--host-image", "--runtime cri"))


# ---- whole requests --------------------------------------------------------------------------


def test_the_request_of_a_minimal_container() -> None:
    made = request_of(config(), "x", KeeperSandbox("/state/s"))
    home = pwd.getpwuid(os.geteuid())
    user = user_of(config().pod, config().container)
    assert made == {
        "container": "x",
        "launch": Launch(
            argv=("sh", "-c", "exit 1"),
            env={"PATH": DEFAULT_PATH, "HOME": home.pw_dir},
            directory="/state/s/containers/x",
            binds=(Bind("/state/s/containers/x/termination", "/dev/termination-log", optional=True),),
            user=None if user is None else user.uid,
            group=None if user is None else user.gid,
            groups=() if user is None else user.supplemental_groups,
            seccomp=default_filter(bounding_set((), (), False)),
            keyring="podkeeper-x",
        ).to_json(),
        "log": "",
        "stdin": False,
        "stdin_once": False,
        "message_policy": "",
        "stop_signal": "",
        "oom_score_adj": 1000,
        "cgroup": None,
    }


def test_the_request_of_a_container_with_all_options() -> None:
    shared = PodSecurityContext(run_as_user=9, run_as_group=9, supplemental_groups_policy="Strict", fs_group=12)
    own = SecurityContext(
        run_as_user=4_000_000,
        run_as_group=4_000_001,
        privileged=True,
        allow_privilege_escalation=True,
        read_only_root_filesystem=True,
        capabilities=Capabilities(add=("NET_ADMIN", "SYS_TIME"), drop=("KILL",)),
    )
    wanted = config(
        PodSpec(security_context=shared, share_process_namespace=True),
        security_context=own,
        tty=True,
        working_dir="/srv",
        termination_message_path="tmp/words",
        lifecycle=Lifecycle(),
    )
    place = KeeperSandbox("/state/s", "web", "", ("/state", "/more"), 77)
    made = request_of(replace(wanted, log_path="c/0.log", env={"A": "1"}), "y", place)
    assert Launch.from_json(made["launch"]) == Launch(
        argv=("sh", "-c", "exit 1"),
        env={"PATH": DEFAULT_PATH, "HOSTNAME": "web", "TERM": "xterm", "HOME": "/", "A": "1"},
        cwd="/srv",
        hostname="web",
        directory="/state/s/containers/y",
        binds=(Bind("/state/s/containers/y/termination", "/tmp/words", optional=True),),
        hidden=("/state", "/more"),
        user=4_000_000,
        group=4_000_001,
        groups=(12, 4_000_001),
        capabilities_add=("NET_ADMIN", "SYS_TIME"),
        capabilities_drop=("KILL",),
        keyring="podkeeper-y",
        privileged=True,
        read_only_root=True,
        pid="pod",
        tty=True,
        most_processes=77,
    )
    assert (made["log"], made["stop_signal"]) == ("c/0.log", "")


USERS = {
    "no user": (None, None, None),
    "only a group": (None, 7, LinuxUser(uid=0, gid=7, supplemental_groups=(7,))),
    "an unknown user": (4_000_000, None, LinuxUser(uid=4_000_000, gid=0, supplemental_groups=(0,))),
    "an unknown user with a group": (4_000_000, 7, LinuxUser(uid=4_000_000, gid=7, supplemental_groups=(7,))),
}


@pytest.mark.parametrize("name", USERS)
def test_the_user_of_a_container_if_the_agent_is_not_root(name: str) -> None:
    user, group, expected = USERS[name]
    shared = PodSecurityContext(supplemental_groups_policy="Strict")
    own = SecurityContext(run_as_user=user, run_as_group=group)
    wanted = config(PodSpec(security_context=shared), security_context=own)
    found, made = in_keeper(lambda: (user_of(wanted.pod, wanted.container), launch(wanted)), "user")
    assert found == expected
    if expected is None:
        assert (made.user, made.group, made.groups) == (None, None, ())
        assert made.env["HOME"] == (pwd.getpwuid(65534).pw_dir if os.geteuid() == 0 else os.path.expanduser("~"))


BURSTABLE = {
    "half of the machine": (CAPACITY // 2, 500),
    "a quarter of it": (CAPACITY // 4, 750),
    "one byte": (1, 999),
    "almost all": (CAPACITY * 998 // 1000, 3),
    "more than the machine has": (CAPACITY * 2, 3),
}


@pytest.mark.parametrize("name", BURSTABLE)
def test_a_larger_memory_request_lowers_the_oom_score(name: str) -> None:
    memory, score = BURSTABLE[name]
    container = requesting(memory)
    wanted = replace(config(PodSpec(containers=(container,))), container=container)
    assert request_of(wanted, "x", PLACE)["oom_score_adj"] == score


def test_a_pod_with_the_strict_policy_has_only_its_own_groups() -> None:
    member = next((group for group in grp.getgrall() if group.gr_mem), None)
    if member is None:
        pytest.skip("no user of this machine is in another group")
    account = pwd.getpwnam(member.gr_mem[0])
    for policy, is_member in (("Strict", False), ("Merge", True), (None, True)):
        shared = PodSecurityContext(run_as_user=account.pw_uid, supplemental_groups_policy=policy)
        found = user_of(config(PodSpec(security_context=shared)).pod, config().container)
        assert found is not None
        assert (member.gr_gid in found.supplemental_groups) is (is_member or member.gr_gid == account.pw_gid)


def test_a_container_gets_a_cgroup_with_its_limits_below_the_pods() -> None:
    parent = cgroup.find("/")
    if parent is None:
        pytest.skip("no cgroups are mounted")
    limits = ResourceRequirements(limits={"memory": "64Mi"})
    wanted = config(resources=limits)
    made = request_of(wanted, "x", KeeperSandbox("/state/s", cgroup_parent="/"))
    settings = files_of(container_limits(wanted.pod.spec, wanted.container), parent.version)
    devices = [asdict(device) for device in DEFAULT]
    place = cgroup.descendant(parent, "x").to_json()
    assert made["cgroup"] == {"place": place, "settings": settings, "devices": devices}
    assert "67108864" in settings.values()


@pytest.mark.parametrize("kind, works", [("CharDevice", True), ("", False), ("File", False)])
def test_a_device_volume_works_as_a_device(kind: str, works: bool) -> None:
    if cgroup.find("/") is None:
        pytest.skip("no cgroups are mounted")
    volume = Volume(name="tun", host_path=HostPathVolumeSource(path="/dev/zero", type=kind))
    mount = Mount(container_path="/dev/tun", host_path="/dev/zero", volume="tun", read_only=True)
    made = request_of(
        replace(config(PodSpec(volumes=(volume,))), mounts=(mount,)), "x", KeeperSandbox("/state/s", cgroup_parent="/")
    )
    allowed = asdict(device_at("/dev/zero", read_only=True))
    assert [bind.get("device", False) for bind in made["launch"]["binds"] if bind["target"] == "/dev/tun"] == [works]
    assert (allowed in made["cgroup"]["devices"]) is works


def test_a_privileged_container_may_use_all_devices() -> None:
    if cgroup.find("/") is None:
        pytest.skip("no cgroups are mounted")
    privileged = config(security_context=SecurityContext(privileged=True))
    assert request_of(privileged, "x", KeeperSandbox("/state/s", cgroup_parent="/"))["cgroup"]["devices"] is None


def test_a_missing_pod_cgroup_is_reported() -> None:
    with pytest.raises(RuntimeRefused, match=r"^cannot create container c: cgroup /never/was of its pod not found$"):
        request_of(config(), "x", KeeperSandbox("/state/s", cgroup_parent="/never/was"))


# ---- agents and keepers of different versions ---------------------------------------------------


def test_fields_of_a_newer_agent_are_ignored() -> None:
    made = Launch(argv=("true",), env={}, binds=(Bind("/a", "/b"),))
    data = made.to_json() | {"later": 1}
    data["binds"][0]["later"] = 1
    assert Launch.from_json(data) == made


def test_binds_without_a_device_suit_an_older_keeper() -> None:
    plain, node = Bind("/a", "/b"), Bind("/dev/zero", "/node", device=True)
    data = Launch(argv=("true",), env={}, binds=(plain, node)).to_json()
    assert ["device" in bind for bind in data["binds"]] == [False, True]
    assert Launch.from_json(data).binds == (plain, node)
