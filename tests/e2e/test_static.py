"""Static pods with real processes: they live and end with their files, and the API shows them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from podkeeper.model.k8s.core import Pod
from tests.e2e.node import NODE, Node, OnANode

pytestmark = pytest.mark.slow

SERVE = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


def manifest(name: str, script: str = SERVE, container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    first = {"name": "app", "image": "host", "command": ["sh", "-c", script], **(container or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [first], "terminationGracePeriodSeconds": 1, **spec},
    }


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def documents(*each: dict[str, Any]) -> str:
    return "---\n".join(yaml.safe_dump(document) for document in each)


def mirror(name: str) -> str:
    return f"{name}-{NODE}"


def container_id(node: Node, name: str) -> str:
    return node.status(mirror(name)).container_id or ""


def test_a_pod_in_a_file_runs_and_the_api_shows_its_mirror(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("web", manifest("web", f"echo hello; {SERVE}"))
        await node.until_ready(mirror("web"))
        shown = node.see(mirror("web"))
        annotations = shown.metadata.annotations or {}
        assert annotations["kubernetes.io/config.source"] == "file"
        assert annotations["kubernetes.io/config.mirror"] == annotations["kubernetes.io/config.hash"]
        assert (shown.spec.node_name, shown.status.phase) == (NODE, "Running")
        assert (shown.metadata.owner_references or ())[0].kind == "Node"

    on_a_node(scenario, tmp_path)


def test_many_pods_in_one_file_and_json_beside_yaml(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("both", documents(manifest("one"), manifest("two")))
        node.write("third", '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "three"}, "spec": {"containers":'
                   ' [{"name": "app", "image": "host", "command": ["sleep", "100"]}],'
                   ' "terminationGracePeriodSeconds": 1}}')  # fmt: skip
        await node.until_ready(mirror("one"), mirror("two"), mirror("three"))

    on_a_node(scenario, tmp_path)


def test_an_edited_file_ends_the_old_pod_and_starts_the_new_one(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("web", manifest("web"))
        await node.until_ready(mirror("web"))
        before = node.see(mirror("web"))
        node.write("web", manifest("web", "echo changed; " + SERVE))
        await node.until(lambda: _is_another(node, before) and node.is_ready(mirror("web")))
        after = node.see(mirror("web"))
        assert (after.spec.containers[0].command or ())[2].startswith("echo changed")

    on_a_node(scenario, tmp_path)


def _is_another(node: Node, before: Pod) -> bool:
    found = node.find(mirror(before.metadata.name.removesuffix(f"-{NODE}") if before.metadata.name else ""))
    return found is not None and found.metadata.uid != before.metadata.uid


def test_an_edit_of_one_pod_leaves_the_other_of_the_same_file_alone(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("both", documents(manifest("one"), manifest("two")))
        await node.until_ready(mirror("one"), mirror("two"))
        one, two = container_id(node, "one"), container_id(node, "two")
        node.write("both", documents(manifest("one", f"echo changed; {SERVE}"), manifest("two")))
        await node.until(lambda: node.is_ready(mirror("one")) and container_id(node, "one") not in ("", one))
        assert container_id(node, "two") == two
        assert node.status(mirror("two")).restart_count == 0

    on_a_node(scenario, tmp_path)


def test_a_file_that_is_only_written_anew_changes_nothing(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("web", manifest("web"))
        await node.until_ready(mirror("web"))
        before = container_id(node, "web")
        node.write("web", "# a comment\n" + documents(manifest("web")))
        node.write("mark", manifest("mark"))
        await node.until_ready(mirror("mark"))
        assert container_id(node, "web") == before

    on_a_node(scenario, tmp_path)


def test_a_removed_file_ends_its_pod_with_its_grace(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        told = tmp_path / "told"
        told.mkdir()
        script = "trap 'echo bye > /told/word; exit 0' TERM; while :; do sleep 0.05; done"
        mounts = {"volumeMounts": [{"name": "told", "mountPath": "/told"}]}
        volumes = [{"name": "told", "hostPath": {"path": str(told)}}]
        node.write("web", manifest("web", script, mounts, volumes=volumes))
        await node.until_ready(mirror("web"))
        node.unwrite("web")
        await node.until(lambda: node.is_gone(mirror("web")))
        assert (told / "word").read_text() == "bye\n"

    on_a_node(scenario, tmp_path / "node")


def test_a_broken_file_keeps_its_pods_and_is_named_with_its_line(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("web", manifest("web"))
        await node.until_ready(mirror("web"))
        before = container_id(node, "web")
        node.write("web", "apiVersion: v1\nkind: Pod\nmetadata: {name: web\n")
        await node.until(lambda: bool(node.problems()))
        (problem,) = node.problems()
        assert "web.yaml" in problem
        assert ":4" in problem or ":3" in problem
        node.write("other", manifest("other"))  # nobody else suffers
        await node.until_ready(mirror("other"))
        assert container_id(node, "web") == before
        node.write("web", manifest("web"))
        await node.until(lambda: not node.problems())
        assert container_id(node, "web") == before
        assert node.is_ready(mirror("web"))

    on_a_node(scenario, tmp_path)


def test_a_file_with_an_invalid_pod_says_which_field_is_wrong(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("bad", manifest("bad", restartPolicy="Sometimes"))
        await node.until(lambda: bool(node.problems()))
        assert "spec.restartPolicy" in node.problems()[0]
        assert node.find(mirror("bad")) is None

    on_a_node(scenario, tmp_path)


def test_a_mirror_that_is_deleted_comes_back_and_its_pod_does_not_notice(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("web", manifest("web"))
        await node.until_ready(mirror("web"))
        before = node.see(mirror("web"))
        running = container_id(node, "web")
        node.delete(mirror("web"), grace_seconds=0)
        await node.until(lambda: _is_another(node, before) and node.is_ready(mirror("web")))
        assert container_id(node, "web") == running
        assert node.status(mirror("web")).restart_count == 0

    on_a_node(scenario, tmp_path)


def test_a_static_pod_survives_a_restart_of_the_agent(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("web", manifest("web"))
        await node.until_ready(mirror("web"))
        before = container_id(node, "web")
        await node.restarted()
        node.write("mark", manifest("mark"))
        await node.until_ready(mirror("web"), mirror("mark"))
        assert container_id(node, "web") == before

    on_a_node(scenario, tmp_path)


def test_a_file_that_is_removed_while_the_agent_is_away_ends_its_pod(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        told = tmp_path / "told"
        told.mkdir()
        script = "trap 'touch /told/end; exit 0' TERM; while :; do sleep 0.05; done"
        mounts = {"volumeMounts": [{"name": "told", "mountPath": "/told"}]}
        volumes = [{"name": "told", "hostPath": {"path": str(told)}}]
        node.write("web", manifest("web", script, mounts, volumes=volumes))
        node.write("stays", manifest("stays"))
        await node.until_ready(mirror("web"), mirror("stays"))
        before = container_id(node, "stays")
        await node.end()
        node.unwrite("web")
        await node.begin()
        await node.until(lambda: node.is_gone(mirror("web")) and (told / "end").exists())
        assert container_id(node, "stays") == before

    on_a_node(scenario, tmp_path / "node")


def test_a_static_job_ends_and_stays_ended(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("job", manifest("job", "exit 3", restartPolicy="Never"))
        await node.until_phase(mirror("job"), "Failed")
        assert node.exit_code(mirror("job")) == 3
        before = container_id(node, "job")
        await node.restarted()
        node.write("mark", manifest("mark"))
        await node.until_ready(mirror("mark"))
        assert (node.phase(mirror("job")), container_id(node, "job")) == ("Failed", before)

    on_a_node(scenario, tmp_path)


# Config maps and secrets beside the pods.


def test_a_config_map_beside_the_pods_gives_environment_and_volumes_and_is_seen_live(
    on_a_node: OnANode, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        told = tmp_path / "told"
        told.mkdir()
        script = "trap 'exit 0' TERM; while :; do echo $COLOUR $(cat /v/colour) > /told/word; sleep 0.02; done"
        more = {
            "env": [{"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "paint", "key": "colour"}}}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "told", "mountPath": "/told"}],
        }
        volumes = [
            {"name": "v", "configMap": {"name": "paint"}},
            {"name": "told", "hostPath": {"path": str(told)}},
        ]
        node.write("paint", config_map("paint", colour="blue"))
        node.write("web", manifest("web", script, more, volumes=volumes))
        await node.until_ready(mirror("web"))
        before = container_id(node, "web")
        await node.until(lambda: (told / "word").exists() and (told / "word").read_text() == "blue blue\n")
        node.write("paint", config_map("paint", colour="red"))
        await node.until(lambda: (told / "word").read_text() == "blue red\n")
        assert container_id(node, "web") == before

    on_a_node(scenario, tmp_path / "node")


def test_a_pod_waits_for_the_secret_that_is_not_beside_it_yet(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        volumes = [{"name": "v", "secret": {"secretName": "door"}}]
        mounts = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
        node.write("job", manifest("job", "grep -q sesame /v/key", mounts, volumes=volumes, restartPolicy="Never"))
        await node.until(lambda: any(reason == "FailedMount" for _, reason, _ in node.events(mirror("job"))))
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "door"}, "stringData": {"key": "sesame"}}
        node.write("door", secret)
        await node.until_phase(mirror("job"), "Succeeded")

    on_a_node(scenario, tmp_path, retry_seconds=0.3)
