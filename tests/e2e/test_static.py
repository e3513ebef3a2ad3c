"""Static pods with real processes: manifests, mirror pods, local config maps and secrets."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from tests.e2e.node import NODE, Node, ScenarioRunner
from tests.manifests import manifest

pytestmark = pytest.mark.slow

SERVE = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


def static_pod(
    name: str, script: str = SERVE, container: Mapping[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    return manifest(name, {"command": ["sh", "-c", script], **(container or {})}, **spec)


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def documents(*each: dict[str, Any]) -> str:
    return "---\n".join(yaml.safe_dump(document) for document in each)


def mirror(name: str) -> str:
    return f"{name}-{NODE}"


def container_id(node: Node, name: str) -> str:
    return node.status(mirror(name)).container_id or ""


def test_a_static_pod_runs_and_has_a_mirror_pod(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("web", static_pod("web", f"echo hello; {SERVE}"))
        await node.until_ready(mirror("web"))
        shown = node.see(mirror("web"))
        annotations = shown.metadata.annotations or {}
        assert annotations["kubernetes.io/config.source"] == "file"
        assert annotations["kubernetes.io/config.mirror"] == annotations["kubernetes.io/config.hash"]
        assert (shown.spec.node_name, shown.status.phase) == (NODE, "Running")
        assert (shown.metadata.owner_references or ())[0].kind == "Node"

    run_on_node(scenario, tmp_path)


def test_several_pods_per_file_in_yaml_and_json(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("both", documents(static_pod("one"), static_pod("two")))
        node.write("third", '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "three"}, "spec": {"containers":'
                   ' [{"name": "app", "image": "host", "command": ["sleep", "100"]}],'
                   ' "terminationGracePeriodSeconds": 1}}')  # fmt: skip
        await node.until_ready(mirror("one"), mirror("two"), mirror("three"))

    run_on_node(scenario, tmp_path)


def test_an_edited_file_replaces_its_pod(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("web", static_pod("web"))
        await node.until_ready(mirror("web"))
        before = node.see(mirror("web"))
        node.write("web", static_pod("web", "echo changed; " + SERVE))
        await node.until(lambda: _is_another(node, before) and node.is_ready(mirror("web")))
        after = node.see(mirror("web"))
        assert (after.spec.containers[0].command or ())[2].startswith("echo changed")

    run_on_node(scenario, tmp_path)


def _is_another(node: Node, before: Pod) -> bool:
    found = node.find(mirror(before.metadata.name.removesuffix(f"-{NODE}") if before.metadata.name else ""))
    return found is not None and found.metadata.uid != before.metadata.uid


def test_an_edit_of_one_pod_does_not_affect_others_in_the_file(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("both", documents(static_pod("one"), static_pod("two")))
        await node.until_ready(mirror("one"), mirror("two"))
        one, two = container_id(node, "one"), container_id(node, "two")
        node.write("both", documents(static_pod("one", f"echo changed; {SERVE}"), static_pod("two")))
        await node.until(lambda: node.is_ready(mirror("one")) and container_id(node, "one") not in ("", one))
        assert container_id(node, "two") == two
        assert node.status(mirror("two")).restart_count == 0

    run_on_node(scenario, tmp_path)


def test_a_file_rewritten_without_changes_has_no_effect(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("web", static_pod("web"))
        await node.until_ready(mirror("web"))
        before = container_id(node, "web")
        node.write("web", "# a comment\n" + documents(static_pod("web")))
        node.write("mark", static_pod("mark"))
        await node.until_ready(mirror("mark"))
        assert container_id(node, "web") == before

    run_on_node(scenario, tmp_path)


def test_a_removed_file_stops_its_pod_with_its_grace_period(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        shared = tmp_path / "shared"
        shared.mkdir()
        script = "trap 'echo bye > /shared/word; exit 0' TERM; while :; do sleep 0.05; done"
        mounts = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
        volumes = [{"name": "shared", "hostPath": {"path": str(shared)}}]
        node.write("web", static_pod("web", script, mounts, volumes=volumes))
        await node.until_ready(mirror("web"))
        node.remove_manifest("web")
        await node.until(lambda: node.is_gone(mirror("web")))
        assert (shared / "word").read_text() == "bye\n"

    run_on_node(scenario, tmp_path / "node")


def test_a_file_with_a_syntax_error_keeps_its_pods_and_is_reported_with_its_line(
    run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        node.write("web", static_pod("web"))
        await node.until_ready(mirror("web"))
        before = container_id(node, "web")
        node.write("web", "apiVersion: v1\nkind: Pod\nmetadata: {name: web\n")
        await node.until(lambda: bool(node.problems()))
        (problem,) = node.problems()
        assert "web.yaml" in problem
        assert ":4" in problem or ":3" in problem
        node.write("other", static_pod("other"))  # other files are not affected
        await node.until_ready(mirror("other"))
        assert container_id(node, "web") == before
        node.write("web", static_pod("web"))
        await node.until(lambda: not node.problems())
        assert container_id(node, "web") == before
        assert node.is_ready(mirror("web"))

    run_on_node(scenario, tmp_path)


def test_an_invalid_pod_is_reported_with_its_field(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("bad", static_pod("bad", restartPolicy="Sometimes"))
        await node.until(lambda: bool(node.problems()))
        assert "spec.restartPolicy" in node.problems()[0]
        assert node.find(mirror("bad")) is None

    run_on_node(scenario, tmp_path)


def test_a_deleted_mirror_pod_is_recreated_without_a_restart(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("web", static_pod("web"))
        await node.until_ready(mirror("web"))
        before = node.see(mirror("web"))
        running = container_id(node, "web")
        node.delete(mirror("web"), grace_seconds=0)
        await node.until(lambda: _is_another(node, before) and node.is_ready(mirror("web")))
        assert container_id(node, "web") == running
        assert node.status(mirror("web")).restart_count == 0

    run_on_node(scenario, tmp_path)


def test_a_static_pod_survives_a_restart_of_the_agent(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("web", static_pod("web"))
        await node.until_ready(mirror("web"))
        before = container_id(node, "web")
        await node.restart_agent()
        node.write("mark", static_pod("mark"))
        await node.until_ready(mirror("mark"))
        static_uid = PodUID((node.see(mirror("web")).metadata.annotations or {})["kubernetes.io/config.mirror"])
        status = await node.until_synced(static_uid)
        assert (status.container_id, status.ready) == (before, True)
        assert container_id(node, "web") == before

    run_on_node(scenario, tmp_path)


def test_a_file_removed_while_no_agent_ran_stops_its_pod(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        shared = tmp_path / "shared"
        shared.mkdir()
        script = "trap 'touch /shared/end; exit 0' TERM; while :; do sleep 0.05; done"
        mounts = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
        volumes = [{"name": "shared", "hostPath": {"path": str(shared)}}]
        node.write("web", static_pod("web", script, mounts, volumes=volumes))
        node.write("stays", static_pod("stays"))
        await node.until_ready(mirror("web"), mirror("stays"))
        before = container_id(node, "stays")
        await node.end()
        node.remove_manifest("web")
        await node.start_agent()
        await node.until(lambda: node.is_gone(mirror("web")) and (shared / "end").exists())
        assert container_id(node, "stays") == before

    run_on_node(scenario, tmp_path / "node")


def test_a_completed_static_job_is_not_run_again(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("job", static_pod("job", "exit 3", restartPolicy="Never"))
        await node.until_phase(mirror("job"), "Failed")
        assert node.exit_code(mirror("job")) == 3
        before = container_id(node, "job")
        await node.restart_agent()
        node.write("mark", static_pod("mark"))
        await node.until_ready(mirror("mark"))
        assert (node.phase(mirror("job")), container_id(node, "job")) == ("Failed", before)

    run_on_node(scenario, tmp_path)


# Local config maps and secrets.


def test_a_local_config_map_sets_variables_and_volumes_and_updates_live(
    run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        shared = tmp_path / "shared"
        shared.mkdir()
        script = "trap 'exit 0' TERM; while :; do echo $COLOUR $(cat /v/colour) > /shared/word; sleep 0.02; done"
        more = {
            "env": [{"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "paint", "key": "colour"}}}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "shared", "mountPath": "/shared"}],
        }
        volumes = [
            {"name": "v", "configMap": {"name": "paint"}},
            {"name": "shared", "hostPath": {"path": str(shared)}},
        ]
        node.write("paint", config_map("paint", colour="blue"))
        node.write("web", static_pod("web", script, more, volumes=volumes))
        await node.until_ready(mirror("web"))
        before = container_id(node, "web")
        await node.until(lambda: (shared / "word").exists() and (shared / "word").read_text() == "blue blue\n")
        node.write("paint", config_map("paint", colour="red"))
        await node.until(lambda: (shared / "word").read_text() == "blue red\n")
        assert container_id(node, "web") == before

    run_on_node(scenario, tmp_path / "node")


def test_a_static_pod_waits_for_a_missing_local_secret(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        volumes = [{"name": "v", "secret": {"secretName": "door"}}]
        mounts = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
        node.write("job", static_pod("job", "grep -q sesame /v/key", mounts, volumes=volumes, restartPolicy="Never"))
        await node.until(lambda: any(reason == "FailedMount" for _, reason, _ in node.events(mirror("job"))))
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "door"}, "stringData": {"key": "sesame"}}
        node.write("door", secret)
        await node.until_phase(mirror("job"), "Succeeded")

    run_on_node(scenario, tmp_path, retry_seconds=0.3)
