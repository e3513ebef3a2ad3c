"""Who a container is, and what it may: user, groups, capabilities, new privileges."""

from pathlib import Path

import pytest

from tests.e2e.asking import said, waits_for
from tests.e2e.kinds import processes_only
from tests.e2e.machine import needs_other_users, without_other_users
from tests.e2e.node import Node, OnANode, pod
from tests.e2e.scripts import Wire, sh

pytestmark = pytest.mark.slow


# Who it is, and what it may.

IDENTITIES: dict[str, tuple[Wire, Wire, str]] = {
    "root unless said otherwise": ({}, {}, "0 0"),
    "the pod's user and group": ({"runAsUser": 1234, "runAsGroup": 2345}, {}, "1234 2345"),
    "the container's own before the pod's": (
        {"runAsUser": 1234, "runAsGroup": 2345}, {"runAsUser": 4321}, "4321 2345"
    ),
    "a user nobody knows is of the group of root": ({"runAsUser": 1234}, {}, "1234 0"),
}  # fmt: skip


@needs_other_users
@pytest.mark.parametrize("shared, own, expected", IDENTITIES.values(), ids=IDENTITIES.keys())
def test_a_container_runs_as(on_a_node: OnANode, shared: Wire, own: Wire, expected: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {**sh('echo "$(id -u) $(id -g)"'), "securityContext": own}
        node.create(pod("app", container=fields, securityContext=shared, restartPolicy="Never"))
        assert await said(node) == f"{expected}\n"

    on_a_node(scenario, tmp_path)


@processes_only
@without_other_users
@pytest.mark.parametrize("context", [{"runAsUser": 1234}, {"runAsGroup": 1234}, {"fsGroup": 1234, "runAsUser": 0}])
def test_an_ordinary_user_without_others_is_told_how_to_get_some(
    on_a_node: OnANode, context: Wire, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", securityContext=context, restartPolicy="Never"))
        await node.until_phase("app", "Failed")
        end = node.status("app").state.terminated
        assert end is not None
        assert "1234: it is not among podkeeper's" in (end.message or "")
        assert "/etc/subuid" in (end.message or "")

    on_a_node(scenario, tmp_path)


@needs_other_users
def test_a_container_has_the_groups_of_its_pod(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        context = {"runAsUser": 1234, "runAsGroup": 2345, "supplementalGroups": [3001, 3002], "fsGroup": 4000}
        node.create(pod("app", command=("id", "-G"), securityContext=context, restartPolicy="Never"))
        assert {"2345", "3001", "3002", "4000"} == set((await said(node)).split())

    on_a_node(scenario, tmp_path)


CHOWN, NET_ADMIN, SYS_ADMIN = 1 << 0, 1 << 12, 1 << 21

CAPABILITIES: dict[str, tuple[Wire, int, int]] = {
    "the usual ones": ({}, CHOWN, NET_ADMIN | SYS_ADMIN),
    "none, all being dropped": ({"capabilities": {"drop": ["ALL"]}}, 0, (1 << 40) - 1),
    "only the one that is added": (
        {"capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}}, NET_ADMIN, ((1 << 40) - 1) & ~NET_ADMIN,
    ),
    "one less": ({"capabilities": {"drop": ["CHOWN"]}}, 1 << 3, CHOWN),
}  # fmt: skip


@pytest.mark.parametrize("context, held, lacking", CAPABILITIES.values(), ids=CAPABILITIES.keys())
def test_a_container_has_the_capabilities(
    on_a_node: OnANode, context: Wire, held: int, lacking: int, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        fields = {"command": ["grep", "CapEff", "/proc/self/status"], "securityContext": context}
        node.create(pod("app", container=fields, restartPolicy="Never"))
        effective = int((await said(node)).split()[1], 16)
        assert effective & held == held
        assert effective & lacking == 0

    on_a_node(scenario, tmp_path)


@needs_other_users
def test_a_dropped_capability_is_missed(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {**sh("touch /tmp/f && chown 5 /tmp/f"), "securityContext": {"capabilities": {"drop": ["CHOWN"]}}}
        node.create(pod("app", container=fields, restartPolicy="Never"))
        await node.until_phase("app", "Failed")
        assert "not permitted" in node.log("app")

    on_a_node(scenario, tmp_path)


@pytest.mark.parametrize(
    "allowed, flag", [(False, "1"), (True, "0")], ids=["no new ones where forbidden", "new ones otherwise"]
)
def test_privileges_can_be_gained(on_a_node: OnANode, allowed: bool, flag: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {
            "command": ["grep", "NoNewPrivs", "/proc/self/status"],
            "securityContext": {"allowPrivilegeEscalation": allowed},
        }
        node.create(pod("app", container=fields, restartPolicy="Never"))
        assert (await said(node)).split() == ["NoNewPrivs:", flag]

    on_a_node(scenario, tmp_path)


def test_root_is_refused_where_the_pod_says_so(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", securityContext={"runAsNonRoot": True, "runAsUser": 0}))
        await node.until(lambda: waits_for(node, "app") == "CreateContainerConfigError")
        waiting = node.status("app").state.waiting
        assert waiting is not None
        assert "breaks non-root policy" in (waiting.message or "")

    on_a_node(scenario, tmp_path)
