"""The first steps of a pod with real processes: it starts, is seen, ends and is gone."""

from pathlib import Path

from tests.e2e.node import Node, OnANode, pod


def test_a_pod_starts_becomes_ready_and_is_deleted(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("web", command=("sh", "-c", "echo hello; trap 'exit 0' TERM; while :; do sleep 0.1; done")))
        await node.until_ready("web")
        await node.until(lambda: node.log("web") == "hello\n")
        node.delete("web")
        await node.until(lambda: node.is_gone("web"))

    on_a_node(scenario, tmp_path)


def test_a_job_succeeds(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("job", command=("true",), restartPolicy="Never"))
        await node.until_phase("job", "Succeeded")
        assert node.exit_code("job") == 0

    on_a_node(scenario, tmp_path)


def test_a_restarted_agent_finds_its_pods_as_they_were(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("web"))
        await node.until_ready("web")
        before = node.status("web").container_id
        await node.restarted()
        await node.until(lambda: node.agent.workers.state(node.uid("web")) is not None)
        await node.until_ready("web")
        assert node.status("web").container_id == before
        assert node.status("web").restart_count == 0

    on_a_node(scenario, tmp_path)
