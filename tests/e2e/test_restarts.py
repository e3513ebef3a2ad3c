"""Container restarts: policies, rules, crash loops."""

from pathlib import Path

import pytest

from tests.e2e.node import Node, ScenarioRunner, pod
from tests.e2e.pod_queries import restart_count, waiting_reason
from tests.e2e.scripts import POLITE, EventLog, Wire, named, sh

pytestmark = pytest.mark.slow

FAST_BACKOFF = {"podkeeper.io/restart-backoff-initial": "1s", "podkeeper.io/restart-backoff-maximum": "1s"}
"""Annotations of a pod whose containers run again soon."""


# Restart policies and rules.

POLICIES: dict[str, tuple[str, str, str, int]] = {
    "Always, after a failure": ("Always", "exit 1", "Running", 1),
    "Always, after a success": ("Always", "exit 0", "Running", 1),
    "OnFailure, after a failure": ("OnFailure", "exit 1", "Running", 1),
    "OnFailure, not after a success": ("OnFailure", "exit 0", "Succeeded", 0),
    "Never, not after a failure": ("Never", "exit 1", "Failed", 0),
}


@pytest.mark.parametrize("policy, script, phase, times", POLICIES.values(), ids=POLICIES.keys())
def test_restart_policy(
    run_on_node: ScenarioRunner, policy: str, script: str, phase: str, times: int, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh(script), restartPolicy=policy))
        await node.until(lambda: node.phase("app") == phase and restart_count(node) == times)
        assert node.exit_code("app") == int(script.split()[1])

    run_on_node(scenario, tmp_path)


def test_a_container_that_succeeds_after_a_restart_completes_the_pod(
    run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog
) -> None:
    async def scenario(node: Node) -> None:
        app = event_log.writes("app", "echo run >>/events/all; test $(wc -l </events/all) -eq 2")
        node.create(pod("app", containers=[app], volumes=event_log.volumes, restartPolicy="OnFailure"))
        await node.until_phase("app", "Succeeded")
        assert (restart_count(node), event_log.words) == (1, ["run", "run"])
        assert node.log("app", attempt=1) == ""

    run_on_node(scenario, tmp_path)


def test_a_pod_with_one_failed_container_fails_after_both_exit(
    run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog
) -> None:
    async def scenario(node: Node) -> None:
        waiting = event_log.writes("waiting", "until grep -q go /events/all; do sleep 0.02; done 2>/dev/null")
        node.create(
            pod("app", containers=[named("app", "exit 3"), waiting], volumes=event_log.volumes, restartPolicy="Never")
        )
        await node.until(lambda: node.phase("app") == "Running" and node.exit_code("app") == 3)
        await node.until(lambda: node.status("app", "waiting").state.running is not None)
        await node.exec("app", "sh", "-c", "echo go >>/events/all", container="waiting")
        await node.until_phase("app", "Failed")
        assert node.exit_code("app", "waiting") == 0

    run_on_node(scenario, tmp_path)


RULES: dict[str, tuple[Wire, int, str]] = {
    "restart after a code in the rule": ({"operator": "In", "values": [42]}, 42, "again"),
    "no restart after a code that is not in the rule": ({"operator": "In", "values": [42]}, 43, "ended"),
    "restart after a code that the rule does not exclude": ({"operator": "NotIn", "values": [0, 42]}, 43, "again"),
}


@pytest.mark.parametrize("codes, code, fate", RULES.values(), ids=RULES.keys())
def test_container_restart_rules(
    run_on_node: ScenarioRunner, codes: Wire, code: int, fate: str, tmp_path: Path, event_log: EventLog
) -> None:
    async def scenario(node: Node) -> None:
        rules = [{"action": "Restart", "exitCodes": codes}]
        script = f"echo run >>/events/all; test $(wc -l </events/all) -eq 2 || exit {code}"
        app = event_log.writes("app", script, restartPolicy="Never", restartPolicyRules=rules)
        node.create(pod("app", containers=[app], volumes=event_log.volumes, restartPolicy="Never"))
        await node.until_phase("app", "Succeeded" if fate == "again" else "Failed")
        assert len(event_log.words) == (2 if fate == "again" else 1)

    run_on_node(scenario, tmp_path)


def test_a_restart_rule_can_restart_all_containers(
    run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog
) -> None:
    async def scenario(node: Node) -> None:
        rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}]
        script = "echo app >>/events/all; test $(grep -c app /events/all) -eq 2 || exit 88; " + POLITE
        node.create(
            pod(
                "app",
                initContainers=[event_log.writes("first", "echo first >>/events/all")],
                containers=[
                    event_log.writes("app", script, restartPolicy="Never", restartPolicyRules=rules),
                    event_log.writes("other", "echo other >>/events/all; " + POLITE),
                ],
                volumes=event_log.volumes,
                restartPolicy="Never",
            )
        )
        await node.until(lambda: all(event_log.words.count(word) == 2 for word in ("first", "app", "other")))
        assert event_log.words.index("first") < event_log.words.index("app")
        await node.until_ready("app")

    run_on_node(scenario, tmp_path)


# Crash loops.


def test_a_crash_loop_is_reported_and_backed_off(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh("exit 1")))
        await node.until(lambda: waiting_reason(node, "app") == "CrashLoopBackOff")
        waiting = node.status("app").state.waiting
        assert waiting is not None
        assert (waiting.message or "").startswith("back-off 10s restarting failed container=app pod=app_default(")
        await node.until(lambda: ("Warning", "BackOff") in [event[:2] for event in node.events("app")])
        assert (restart_count(node), node.exit_code("app"), node.is_ready("app")) == (1, 1, False)

    run_on_node(scenario, tmp_path)


def test_annotations_shorten_the_crash_loop_backoff(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh("exit 1"), annotations=FAST_BACKOFF))
        await node.until(lambda: waiting_reason(node, "app") == "CrashLoopBackOff")
        waiting = node.status("app").state.waiting
        assert waiting is not None
        assert (waiting.message or "").startswith("back-off 1s restarting")
        await node.until(lambda: restart_count(node) >= 2, within=9)

    run_on_node(scenario, tmp_path)
