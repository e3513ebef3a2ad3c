"""Order of containers: init containers, sidecars, ephemeral containers."""

from pathlib import Path

import pytest
from msgspec import convert
from msgspec.structs import replace

from podkeeper.model.k8s.core import EphemeralContainer
from tests.e2e.node import Node, ScenarioRunner, pod
from tests.e2e.pod_queries import restart_count
from tests.e2e.scripts import LINGER, POLITE, EventLog, named, sh

pytestmark = pytest.mark.slow

# Init containers.


def test_init_containers_run_in_order_before_the_main_containers(
    run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog
) -> None:
    async def scenario(node: Node) -> None:
        turns = [
            event_log.writes(name, f"echo {name} >>/events/all; sleep 0.1; echo {name}-end >>/events/all")
            for name in ("a", "b")
        ]
        app = event_log.writes("app", "echo app >>/events/all; " + POLITE)
        node.create(pod("app", initContainers=turns, containers=[app], volumes=event_log.volumes))
        await node.until_ready("app")
        await node.until(lambda: event_log.words == ["a", "a-end", "b", "b-end", "app"])
        assert [node.exit_code("app", name) for name in ("a", "b")] == [0, 0]

    run_on_node(scenario, tmp_path)


def test_with_restart_policy_never_a_failed_init_container_fails_the_pod(
    run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", initContainers=[named("first", "exit 9")], restartPolicy="Never"))
        await node.until_phase("app", "Failed")
        assert node.exit_code("app", "first") == 9
        assert node.status("app").state.running is None
        assert node.log("app") == ""

    run_on_node(scenario, tmp_path)


def test_a_failed_init_container_is_retried_until_it_succeeds(
    run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog
) -> None:
    async def scenario(node: Node) -> None:
        first = event_log.writes("first", "echo run >>/events/all; test $(wc -l </events/all) -eq 2")
        node.create(pod("app", container=sh(POLITE), initContainers=[first], volumes=event_log.volumes))
        await node.until_ready("app")
        assert event_log.words == ["run", "run"]
        assert node.status("app", "first").restart_count == 1

    run_on_node(scenario, tmp_path)


# Sidecars and ephemeral containers.

STARTED = {"exec": {"command": ["grep", "-q", "^ready-a", "/events/all"]}, "periodSeconds": 1, "failureThreshold": 20}


def test_a_sidecar_starts_before_later_containers(
    run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog
) -> None:
    async def scenario(node: Node) -> None:
        script = "echo a >>/events/all; sleep 0.3; echo ready-a >>/events/all; " + POLITE
        sidecar = event_log.writes("a", script, restartPolicy="Always", startupProbe=STARTED)
        app = event_log.writes("app", "echo app >>/events/all; " + POLITE)
        first = event_log.writes("first", "echo first >>/events/all")
        quick = {"startup.probe-period-milliseconds.podkeeper.io/a": "100"}
        node.create(
            pod("app", initContainers=[sidecar, first], containers=[app], volumes=event_log.volumes, annotations=quick)
        )
        await node.until_ready("app")
        await node.until(lambda: event_log.words == ["a", "ready-a", "first", "app"])
        assert node.status("app", "a").started

    run_on_node(scenario, tmp_path)


def test_sidecars_are_stopped_last_and_in_reverse_order(
    run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog
) -> None:
    async def scenario(node: Node) -> None:
        def ending(name: str) -> str:
            return f"trap 'sleep 0.1; echo {name} >>/events/all; exit 0' TERM; {LINGER}"

        node.create(
            pod(
                "app",
                initContainers=[event_log.writes(name, ending(name), restartPolicy="Always") for name in ("a", "b")],
                containers=[event_log.writes("app", ending("app"))],
                volumes=event_log.volumes,
                terminationGracePeriodSeconds=20,
            )
        )
        await node.until_ready("app")
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        assert event_log.words == ["app", "b", "a"]

    run_on_node(scenario, tmp_path)


def test_an_exited_sidecar_is_restarted_alone(run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog) -> None:
    async def scenario(node: Node) -> None:
        script = f"echo side >>/events/all; test $(wc -l </events/all) -ge 2 || exit 0; {POLITE}"
        sidecar = event_log.writes("side", script, restartPolicy="Always")
        node.create(pod("app", container=sh(POLITE), initContainers=[sidecar], volumes=event_log.volumes))
        await node.until(lambda: event_log.words == ["side", "side"])
        await node.until_ready("app")
        assert (node.status("app", "side").restart_count, restart_count(node)) == (1, 0)

    run_on_node(scenario, tmp_path)


def test_a_job_does_not_wait_for_its_sidecar(run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog) -> None:
    async def scenario(node: Node) -> None:
        sidecar = event_log.writes(
            "side", f"trap 'echo side >>/events/all; exit 0' TERM; {LINGER}", restartPolicy="Always"
        )
        app = event_log.writes("app", "echo app >>/events/all")
        node.create(
            pod("app", initContainers=[sidecar], containers=[app], volumes=event_log.volumes, restartPolicy="Never")
        )
        await node.until_phase("app", "Succeeded")
        assert event_log.words == ["app", "side"]

    run_on_node(scenario, tmp_path)


def test_an_ephemeral_container_joins_a_running_pod(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh(f"echo target; {POLITE}")))
        await node.until_ready("app")
        before = node.status("app").container_id
        looking = sh("cat /proc/1/cmdline | tr '\\0' ' '; exit 5")
        wire = {"name": "debug", "image": node.image, "targetContainerName": "app", **looking}
        spec = replace(node.see("app").spec, ephemeral_containers=[convert(wire, EphemeralContainer)])
        node.api.replace_spec("app", spec)
        await node.until(lambda: bool(node.see("app").status.ephemeral_container_statuses))
        await node.until(lambda: node.exit_code("app", "debug") == 5)
        assert "echo target" in node.log("app", "debug")
        assert node.status("app", "debug").restart_count == 0
        assert (node.status("app").container_id, node.is_ready("app")) == (before, True)

    run_on_node(scenario, tmp_path)
