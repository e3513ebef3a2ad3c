"""Basic pod lifecycle with real processes: start, readiness, completion, deletion, agent restart."""

from pathlib import Path

from podkeeper.rules.worker.states import Syncing
from tests.e2e.node import Node, ScenarioRunner, pod


def test_a_pod_starts_becomes_ready_and_is_deleted(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("web", command=("sh", "-c", "echo hello; trap 'exit 0' TERM; while :; do sleep 0.1; done")))
        await node.until_ready("web")
        await node.until(lambda: node.log("web") == "hello\n")
        node.delete("web")
        await node.until(lambda: node.is_gone("web"))

    run_on_node(scenario, tmp_path)


def test_a_job_succeeds(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("job", command=("true",), restartPolicy="Never"))
        await node.until_phase("job", "Succeeded")
        assert node.exit_code("job") == 0

    run_on_node(scenario, tmp_path)


def test_a_restarted_agent_adopts_its_pods(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("web"))
        await node.until_ready("web")
        before = node.status("web").container_id or ""
        await node.restart_agent()
        status = await node.until_synced(node.uid("web"))
        assert (status.container_id, status.restart_count, status.ready) == (before, 0, True)
        records = node.agent.engine.cache.get(node.uid("web")).containers
        assert [each.id for each in records] == [before.rpartition("://")[2]]
        assert isinstance(node.agent.engine.workers.state(node.uid("web")), Syncing)

    run_on_node(scenario, tmp_path)
