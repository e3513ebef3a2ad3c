"""What only containers have: filters of system calls, privileges, an image's own user, kernel settings, users apart."""

import json
from pathlib import Path

import pytest

from tests.e2e.asking import said, told, waits_for
from tests.e2e.kinds import containerd_only, containers_only
from tests.e2e.node import Node, OnANode, pod
from tests.e2e.scripts import Wire, sh

pytestmark = pytest.mark.slow

EVERY_CAPABILITY = 1 << 21 | 1 << 12 | 1 << 16  # SYS_ADMIN, NET_ADMIN, SYS_MODULE: three that usual ones lack

FILTERS: dict[str, tuple[Wire, Wire, str]] = {
    "none unless asked for": ({}, {}, "0"),
    "the runtime's own": ({"seccompProfile": {"type": "RuntimeDefault"}}, {}, "2"),
    "the container's word before the pod's": (
        {"seccompProfile": {"type": "RuntimeDefault"}}, {"seccompProfile": {"type": "Unconfined"}}, "0"
    ),
    "none where privileged": ({"seccompProfile": {"type": "RuntimeDefault"}}, {"privileged": True}, "0"),
}  # fmt: skip


@containers_only
@pytest.mark.parametrize("shared, own, mode", FILTERS.values(), ids=FILTERS.keys())
def test_system_calls_are_filtered(on_a_node: OnANode, shared: Wire, own: Wire, mode: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {"command": ["grep", "^Seccomp:", "/proc/self/status"], "securityContext": own}
        node.create(pod("app", container=fields, securityContext=shared, restartPolicy="Never"))
        assert (await said(node)).split() == ["Seccomp:", mode]

    on_a_node(scenario, tmp_path)


@containers_only
def test_a_filter_of_the_nodes_own_forbids_what_it_names(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        profiles = node.root / "seccomp" / "profiles"
        profiles.mkdir(parents=True)
        rule = {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}
        (profiles / "no-mkdir.json").write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}))
        profile = {"seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/no-mkdir.json"}}
        fields = {**sh("touch /tmp/f && echo made; mkdir /tmp/d || echo no"), "securityContext": profile}
        node.create(pod("app", container=fields, restartPolicy="Never"))
        assert "no\n" in await said(node)
        assert "made\n" in node.log("app")

    on_a_node(scenario, tmp_path)


@containers_only
def test_a_privileged_container_has_it_all(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = (
            "grep CapEff /proc/self/status; test -c /dev/kmsg && echo devices; mount -t tmpfs t /tmp && echo mounted"
        )
        node.create(
            pod("app", container={**sh(script), "securityContext": {"privileged": True}}, restartPolicy="Never")
        )
        capabilities, *rest = (await said(node)).splitlines()
        assert int(capabilities.split()[1], 16) & EVERY_CAPABILITY == EVERY_CAPABILITY
        assert rest == ["devices", "mounted"]

    on_a_node(scenario, tmp_path)


@containers_only
def test_an_ordinary_container_sees_no_secrets_of_the_kernel(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        look = "wc -c </proc/keys; ls /sys/firmware 2>/dev/null | wc -l; echo 1 >/proc/sys/kernel/panic || echo no"
        script = f"exec 2>&1; {look}"  # two streams would be mixed in any order
        node.create(pod("app", container=sh(script), restartPolicy="Never"))
        heard = (await said(node)).splitlines()
        assert heard[:2] == ["0", "0"]
        assert "no" in heard

    on_a_node(scenario, tmp_path)


@containers_only
def test_an_image_that_would_run_as_root_is_refused_where_the_pod_says_so(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", securityContext={"runAsNonRoot": True}))
        await node.until(lambda: waits_for(node, "app") == "CreateContainerConfigError")
        waiting = node.status("app").state.waiting
        assert waiting is not None
        assert "container has runAsNonRoot and image will run as root" in (waiting.message or "")

    on_a_node(scenario, tmp_path)


@containers_only
def test_settings_of_the_kernel_are_the_pods_own(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        wanted = {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "81"}]}
        path = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
        node.create(pod("app", command=("cat", path), securityContext=wanted, restartPolicy="Never"))
        node.create(pod("other", command=("cat", path), restartPolicy="Never"))
        assert await said(node) == "81\n"
        assert await said(node, "other") != "81\n"

    on_a_node(scenario, tmp_path)


@containers_only
def test_a_setting_that_is_not_safe_is_forbidden(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "65536"}]}))
        await node.until_phase("app", "Failed")
        assert node.see("app").status.reason == "SysctlForbidden"

    on_a_node(scenario, tmp_path)


@containerd_only
def test_users_apart_are_refused_where_the_runtime_cannot_keep_them_apart(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", hostUsers=False))
        await node.until(lambda: bool(told(node, "FailedCreatePodSandBox")))
        assert any("user namespaces" in message for message in told(node, "FailedCreatePodSandBox"))
        assert node.phase("app") == "Pending"

    on_a_node(scenario, tmp_path)
