"""Security contexts: user, groups, capabilities, privilege escalation."""

from pathlib import Path

import pytest

from tests.e2e.machine import needs_other_users, without_other_users
from tests.e2e.node import Node, ScenarioRunner, pod
from tests.e2e.pod_queries import log_after_success, waiting_reason
from tests.e2e.runtime_kinds import processes_only
from tests.e2e.scripts import Wire, sh

pytestmark = pytest.mark.slow


# User and group.

IDENTITIES: dict[str, tuple[Wire, Wire, str]] = {
    "root by default": ({}, {}, "0 0"),
    "the pod's user and group": ({"runAsUser": 1234, "runAsGroup": 2345}, {}, "1234 2345"),
    "the container overrides the pod": (
        {"runAsUser": 1234, "runAsGroup": 2345}, {"runAsUser": 4321}, "4321 2345"
    ),
    "an unknown user has the root group": ({"runAsUser": 1234}, {}, "1234 0"),
}  # fmt: skip


@needs_other_users
@pytest.mark.parametrize("shared, own, expected", IDENTITIES.values(), ids=IDENTITIES.keys())
def test_user_and_group_of_a_container(
    run_on_node: ScenarioRunner, shared: Wire, own: Wire, expected: str, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        fields = {**sh('echo "$(id -u) $(id -g)"'), "securityContext": own}
        node.create(pod("app", container=fields, securityContext=shared, restartPolicy="Never"))
        assert await log_after_success(node) == f"{expected}\n"

    run_on_node(scenario, tmp_path)


@processes_only
@without_other_users
@pytest.mark.parametrize("context", [{"runAsUser": 1234}, {"runAsGroup": 1234}, {"fsGroup": 1234, "runAsUser": 0}])
def test_without_subordinate_ids_run_as_user_fails_with_instructions(
    run_on_node: ScenarioRunner, context: Wire, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", securityContext=context, restartPolicy="Never"))
        await node.until_phase("app", "Failed")
        end = node.status("app").state.terminated
        assert end is not None
        assert "1234: podkeeper may not use" in (end.message or "")
        assert "/etc/subuid" in (end.message or "")

    run_on_node(scenario, tmp_path)


@needs_other_users
def test_a_container_has_the_supplemental_groups_of_its_pod(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        context = {"runAsUser": 1234, "runAsGroup": 2345, "supplementalGroups": [3001, 3002], "fsGroup": 4000}
        node.create(pod("app", command=("id", "-G"), securityContext=context, restartPolicy="Never"))
        assert {"2345", "3001", "3002", "4000"} == set((await log_after_success(node)).split())

    run_on_node(scenario, tmp_path)


CHOWN, NET_ADMIN, SYS_ADMIN = 1 << 0, 1 << 12, 1 << 21

CAPABILITIES: dict[str, tuple[Wire, int, int]] = {
    "the default set": ({}, CHOWN, NET_ADMIN | SYS_ADMIN),
    "none if ALL is dropped": ({"capabilities": {"drop": ["ALL"]}}, 0, (1 << 40) - 1),
    "only the added one": (
        {"capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}}, NET_ADMIN, ((1 << 40) - 1) & ~NET_ADMIN,
    ),
    "without the dropped one": ({"capabilities": {"drop": ["CHOWN"]}}, 1 << 3, CHOWN),
}  # fmt: skip


@pytest.mark.parametrize("context, held, lacking", CAPABILITIES.values(), ids=CAPABILITIES.keys())
def test_capabilities_of_a_container(
    run_on_node: ScenarioRunner, context: Wire, held: int, lacking: int, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        fields = {"command": ["grep", "CapEff", "/proc/self/status"], "securityContext": context}
        node.create(pod("app", container=fields, restartPolicy="Never"))
        effective = int((await log_after_success(node)).split()[1], 16)
        assert effective & held == held
        assert effective & lacking == 0

    run_on_node(scenario, tmp_path)


@needs_other_users
def test_a_dropped_capability_denies_the_operation(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {**sh("touch /tmp/f && chown 5 /tmp/f"), "securityContext": {"capabilities": {"drop": ["CHOWN"]}}}
        node.create(pod("app", container=fields, restartPolicy="Never"))
        await node.until_phase("app", "Failed")
        assert "not permitted" in node.log("app")

    run_on_node(scenario, tmp_path)


@pytest.mark.parametrize("allowed, flag", [(False, "1"), (True, "0")], ids=["forbidden", "allowed"])
def test_privilege_escalation(run_on_node: ScenarioRunner, allowed: bool, flag: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {
            "command": ["grep", "NoNewPrivs", "/proc/self/status"],
            "securityContext": {"allowPrivilegeEscalation": allowed},
        }
        node.create(pod("app", container=fields, restartPolicy="Never"))
        assert (await log_after_success(node)).split() == ["NoNewPrivs:", flag]

    run_on_node(scenario, tmp_path)


def test_run_as_non_root_rejects_root(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", securityContext={"runAsNonRoot": True, "runAsUser": 0}))
        await node.until(lambda: waiting_reason(node, "app") == "CreateContainerConfigError")
        waiting = node.status("app").state.waiting
        assert waiting is not None
        assert "breaks non-root policy" in (waiting.message or "")

    run_on_node(scenario, tmp_path)
