"""Containers that run again, or do not: policies, rules, crash loops."""

from pathlib import Path

import pytest

from tests.e2e.asking import restarts, waits_for
from tests.e2e.node import Node, OnANode, pod
from tests.e2e.scripts import POLITE, Diary, Wire, named, sh

pytestmark = pytest.mark.slow

HASTY = {"podkeeper.io/restart-backoff-initial": "1s", "podkeeper.io/restart-backoff-maximum": "1s"}
"""Annotations of a pod whose containers run again soon."""


# Run again, or not.

POLICIES: dict[str, tuple[str, str, str, int]] = {
    "after a failure, where always": ("Always", "exit 1", "Running", 1),
    "after a success too, where always": ("Always", "exit 0", "Running", 1),
    "after a failure, where on failure": ("OnFailure", "exit 1", "Running", 1),
    "not after a success, where on failure": ("OnFailure", "exit 0", "Succeeded", 0),
    "not after a failure, where never": ("Never", "exit 1", "Failed", 0),
}


@pytest.mark.parametrize("policy, script, phase, times", POLICIES.values(), ids=POLICIES.keys())
def test_a_container_runs_again(
    on_a_node: OnANode, policy: str, script: str, phase: str, times: int, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh(script), restartPolicy=policy))
        await node.until(lambda: node.phase("app") == phase and restarts(node) == times)
        assert node.exit_code("app") == int(script.split()[1])

    on_a_node(scenario, tmp_path)


def test_a_container_that_succeeds_at_last_has_succeeded(on_a_node: OnANode, tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        app = diary.writes("app", "echo run >>/diary/all; test $(wc -l </diary/all) -eq 2")
        node.create(pod("app", containers=[app], volumes=diary.volumes, restartPolicy="OnFailure"))
        await node.until_phase("app", "Succeeded")
        assert (restarts(node), diary.words) == (1, ["run", "run"])
        assert node.log("app", attempt=1) == ""

    on_a_node(scenario, tmp_path)


def test_one_failure_of_two_is_a_failure_once_both_have_ended(on_a_node: OnANode, tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        waiting = diary.writes("waiting", "until grep -q go /diary/all; do sleep 0.02; done 2>/dev/null")
        node.create(
            pod("app", containers=[named("app", "exit 3"), waiting], volumes=diary.volumes, restartPolicy="Never")
        )
        await node.until(lambda: node.phase("app") == "Running" and node.exit_code("app") == 3)
        await node.until(lambda: node.status("app", "waiting").state.running is not None)
        await node.exec("app", "sh", "-c", "echo go >>/diary/all", container="waiting")
        await node.until_phase("app", "Failed")
        assert node.exit_code("app", "waiting") == 0

    on_a_node(scenario, tmp_path)


RULES: dict[str, tuple[Wire, int, str]] = {
    "again after a code its rule names": ({"operator": "In", "values": [42]}, 42, "again"),
    "not after a code its rule does not name": ({"operator": "In", "values": [42]}, 43, "ended"),
    "again after a code its rule does not exclude": ({"operator": "NotIn", "values": [0, 42]}, 43, "again"),
}


@pytest.mark.parametrize("codes, code, fate", RULES.values(), ids=RULES.keys())
def test_a_container_with_a_rule_of_its_own_runs(
    on_a_node: OnANode, codes: Wire, code: int, fate: str, tmp_path: Path, diary: Diary
) -> None:
    async def scenario(node: Node) -> None:
        rules = [{"action": "Restart", "exitCodes": codes}]
        script = f"echo run >>/diary/all; test $(wc -l </diary/all) -eq 2 || exit {code}"
        app = diary.writes("app", script, restartPolicy="Never", restartPolicyRules=rules)
        node.create(pod("app", containers=[app], volumes=diary.volumes, restartPolicy="Never"))
        await node.until_phase("app", "Succeeded" if fate == "again" else "Failed")
        assert len(diary.words) == (2 if fate == "again" else 1)

    on_a_node(scenario, tmp_path)


def test_a_container_may_ask_that_all_start_over(on_a_node: OnANode, tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}]
        script = "echo app >>/diary/all; test $(grep -c app /diary/all) -eq 2 || exit 88; " + POLITE
        node.create(
            pod(
                "app",
                initContainers=[diary.writes("first", "echo first >>/diary/all")],
                containers=[
                    diary.writes("app", script, restartPolicy="Never", restartPolicyRules=rules),
                    diary.writes("other", "echo other >>/diary/all; " + POLITE),
                ],
                volumes=diary.volumes,
                restartPolicy="Never",
            )
        )
        await node.until(lambda: all(diary.words.count(word) == 2 for word in ("first", "app", "other")))
        assert diary.words.index("first") < diary.words.index("app")
        await node.until_ready("app")

    on_a_node(scenario, tmp_path)


# Crash loops.


def test_a_crash_loop_is_told_and_slowed_down(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh("exit 1")))
        await node.until(lambda: waits_for(node, "app") == "CrashLoopBackOff")
        waiting = node.status("app").state.waiting
        assert waiting is not None
        assert (waiting.message or "").startswith("back-off 10s restarting failed container=app pod=app_default(")
        await node.until(lambda: ("Warning", "BackOff") in [told[:2] for told in node.events("app")])
        assert (restarts(node), node.exit_code("app"), node.is_ready("app")) == (1, 1, False)

    on_a_node(scenario, tmp_path)


def test_a_pod_may_ask_for_a_quicker_crash_loop(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh("exit 1"), annotations=HASTY))
        await node.until(lambda: waits_for(node, "app") == "CrashLoopBackOff")
        waiting = node.status("app").state.waiting
        assert waiting is not None
        assert (waiting.message or "").startswith("back-off 1s restarting")
        await node.until(lambda: restarts(node) >= 2, within=9)

    on_a_node(scenario, tmp_path)
