"""Security features of CRI containers: seccomp, privileged mode, image user, sysctls, user namespaces."""

import json
from pathlib import Path

import pytest

from tests.e2e.node import Node, ScenarioRunner, pod
from tests.e2e.pod_queries import event_messages, log_after_success, waiting_reason
from tests.e2e.runtime_kinds import containerd_only, containers_only
from tests.e2e.scripts import Wire, sh

pytestmark = pytest.mark.slow

EVERY_CAPABILITY = 1 << 21 | 1 << 12 | 1 << 16  # SYS_ADMIN, NET_ADMIN, SYS_MODULE: not in the default set

FILTERS: dict[str, tuple[Wire, Wire, str]] = {
    "unconfined by default": ({}, {}, "0"),
    "RuntimeDefault": ({"seccompProfile": {"type": "RuntimeDefault"}}, {}, "2"),
    "the container overrides the pod": (
        {"seccompProfile": {"type": "RuntimeDefault"}}, {"seccompProfile": {"type": "Unconfined"}}, "0"
    ),
    "unconfined if privileged": ({"seccompProfile": {"type": "RuntimeDefault"}}, {"privileged": True}, "0"),
}  # fmt: skip


@containers_only
@pytest.mark.parametrize("shared, own, mode", FILTERS.values(), ids=FILTERS.keys())
def test_seccomp_mode(run_on_node: ScenarioRunner, shared: Wire, own: Wire, mode: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {"command": ["grep", "^Seccomp:", "/proc/self/status"], "securityContext": own}
        node.create(pod("app", container=fields, securityContext=shared, restartPolicy="Never"))
        assert (await log_after_success(node)).split() == ["Seccomp:", mode]

    run_on_node(scenario, tmp_path)


@containers_only
def test_a_localhost_seccomp_profile_denies_its_calls(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        profiles = node.root / "seccomp" / "profiles"
        profiles.mkdir(parents=True)
        rule = {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}
        (profiles / "no-mkdir.json").write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}))
        profile = {"seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/no-mkdir.json"}}
        fields = {**sh("touch /tmp/f && echo made; mkdir /tmp/d || echo no"), "securityContext": profile}
        node.create(pod("app", container=fields, restartPolicy="Never"))
        assert "no\n" in await log_after_success(node)
        assert "made\n" in node.log("app")

    run_on_node(scenario, tmp_path)


@containers_only
def test_a_privileged_container_has_all_capabilities_and_devices(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = (
            "grep CapEff /proc/self/status; test -c /dev/kmsg && echo devices; mount -t tmpfs t /tmp && echo mounted"
        )
        node.create(
            pod("app", container={**sh(script), "securityContext": {"privileged": True}}, restartPolicy="Never")
        )
        capabilities, *rest = (await log_after_success(node)).splitlines()
        assert int(capabilities.split()[1], 16) & EVERY_CAPABILITY == EVERY_CAPABILITY
        assert rest == ["devices", "mounted"]

    run_on_node(scenario, tmp_path)


@containers_only
def test_kernel_files_are_masked_in_unprivileged_containers(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        checks = "wc -c </proc/keys; ls /sys/firmware 2>/dev/null | wc -l; echo 1 >/proc/sys/kernel/panic || echo no"
        script = f"exec 2>&1; {checks}"  # one stream, because the order of two is undefined
        node.create(pod("app", container=sh(script), restartPolicy="Never"))
        lines = (await log_after_success(node)).splitlines()
        assert lines[:2] == ["0", "0"]
        assert "no" in lines

    run_on_node(scenario, tmp_path)


@containers_only
def test_run_as_non_root_rejects_an_image_that_runs_as_root(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", securityContext={"runAsNonRoot": True}))
        await node.until(lambda: waiting_reason(node, "app") == "CreateContainerConfigError")
        waiting = node.status("app").state.waiting
        assert waiting is not None
        assert "container has runAsNonRoot and image will run as root" in (waiting.message or "")

    run_on_node(scenario, tmp_path)


@containers_only
def test_sysctls_apply_to_one_pod(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        wanted = {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "81"}]}
        path = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
        node.create(pod("app", command=("cat", path), securityContext=wanted, restartPolicy="Never"))
        node.create(pod("other", command=("cat", path), restartPolicy="Never"))
        assert await log_after_success(node) == "81\n"
        assert await log_after_success(node, "other") != "81\n"

    run_on_node(scenario, tmp_path)


@containers_only
def test_an_unsafe_sysctl_is_forbidden(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "65536"}]}))
        await node.until_phase("app", "Failed")
        assert node.see("app").status.reason == "SysctlForbidden"

    run_on_node(scenario, tmp_path)


@containerd_only
def test_user_namespaces_are_rejected_if_the_runtime_has_no_support(
    run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", hostUsers=False))
        await node.until(lambda: bool(event_messages(node, "FailedCreatePodSandBox")))
        assert any("user namespaces" in message for message in event_messages(node, "FailedCreatePodSandBox"))
        assert node.phase("app") == "Pending"

    run_on_node(scenario, tmp_path)
