"""Order of containers: init containers, sidecars, ephemeral containers."""

from pathlib import Path

import pytest
from msgspec import convert
from msgspec.structs import replace

from podkeeper.model.k8s.core import EphemeralContainer
from tests.e2e.node import Node, ScenarioRunner, pod
from tests.e2e.pod_queries import restart_count
from tests.e2e.scripts import LINGER, POLITE, Diary, named, sh

pytestmark = pytest.mark.slow

# Init containers.


def test_init_containers_run_in_order_before_the_main_containers(
    run_on_node: ScenarioRunner, tmp_path: Path, diary: Diary
) -> None:
    async def scenario(node: Node) -> None:
        turns = [
            diary.writes(name, f"echo {name} >>/diary/all; sleep 0.1; echo {name}-end >>/diary/all")
            for name in ("a", "b")
        ]
        app = diary.writes("app", "echo app >>/diary/all; " + POLITE)
        node.create(pod("app", initContainers=turns, containers=[app], volumes=diary.volumes))
        await node.until_ready("app")
        await node.until(lambda: diary.words == ["a", "a-end", "b", "b-end", "app"])
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
    run_on_node: ScenarioRunner, tmp_path: Path, diary: Diary
) -> None:
    async def scenario(node: Node) -> None:
        first = diary.writes("first", "echo run >>/diary/all; test $(wc -l </diary/all) -eq 2")
        node.create(pod("app", container=sh(POLITE), initContainers=[first], volumes=diary.volumes))
        await node.until_ready("app")
        assert diary.words == ["run", "run"]
        assert node.status("app", "first").restart_count == 1

    run_on_node(scenario, tmp_path)


# Sidecars and ephemeral containers.

STARTED = {"exec": {"command": ["grep", "-q", "^ready-a", "/diary/all"]}, "periodSeconds": 1, "failureThreshold": 20}


def test_a_sidecar_starts_before_later_containers(run_on_node: ScenarioRunner, tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        script = "echo a >>/diary/all; sleep 0.3; echo ready-a >>/diary/all; " + POLITE
        sidecar = diary.writes("a", script, restartPolicy="Always", startupProbe=STARTED)
        app = diary.writes("app", "echo app >>/diary/all; " + POLITE)
        first = diary.writes("first", "echo first >>/diary/all")
        quick = {"startup.probe-period-milliseconds.podkeeper.io/a": "100"}
        node.create(
            pod("app", initContainers=[sidecar, first], containers=[app], volumes=diary.volumes, annotations=quick)
        )
        await node.until_ready("app")
        await node.until(lambda: diary.words == ["a", "ready-a", "first", "app"])
        assert node.status("app", "a").started

    run_on_node(scenario, tmp_path)


def test_sidecars_are_stopped_last_and_in_reverse_order(
    run_on_node: ScenarioRunner, tmp_path: Path, diary: Diary
) -> None:
    async def scenario(node: Node) -> None:
        def ending(name: str) -> str:
            return f"trap 'sleep 0.1; echo {name} >>/diary/all; exit 0' TERM; {LINGER}"

        node.create(
            pod(
                "app",
                initContainers=[diary.writes(name, ending(name), restartPolicy="Always") for name in ("a", "b")],
                containers=[diary.writes("app", ending("app"))],
                volumes=diary.volumes,
                terminationGracePeriodSeconds=20,
            )
        )
        await node.until_ready("app")
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        assert diary.words == ["app", "b", "a"]

    run_on_node(scenario, tmp_path)


def test_an_exited_sidecar_is_restarted_alone(run_on_node: ScenarioRunner, tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        script = f"echo side >>/diary/all; test $(wc -l </diary/all) -ge 2 || exit 0; {POLITE}"
        sidecar = diary.writes("side", script, restartPolicy="Always")
        node.create(pod("app", container=sh(POLITE), initContainers=[sidecar], volumes=diary.volumes))
        await node.until(lambda: diary.words == ["side", "side"])
        await node.until_ready("app")
        assert (node.status("app", "side").restart_count, restart_count(node)) == (1, 0)

    run_on_node(scenario, tmp_path)


def test_a_job_does_not_wait_for_its_sidecar(run_on_node: ScenarioRunner, tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        sidecar = diary.writes("side", f"trap 'echo side >>/diary/all; exit 0' TERM; {LINGER}", restartPolicy="Always")
        app = diary.writes("app", "echo app >>/diary/all")
        node.create(
            pod("app", initContainers=[sidecar], containers=[app], volumes=diary.volumes, restartPolicy="Never")
        )
        await node.until_phase("app", "Succeeded")
        assert diary.words == ["app", "side"]

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
