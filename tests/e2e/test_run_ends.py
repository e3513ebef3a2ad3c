"""What `podkeeper run` leaves running: nothing after a graceful stop, all pods if only the agent exits."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podkeeper.runtimes.process.keeper.cleanup import remove_trees
from tests.e2e.agent_process import AgentProcess
from tests.e2e.cli_runtimes import cli_runtime
from tests.e2e.runtime_kinds import ALL_RUNTIMES
from tests.manifests import manifest

pytestmark = pytest.mark.slow

STARTED = {"web": "Running", "job": "Succeeded", "loop": "Running"}


class AgentRun(AgentProcess):
    """An agent whose pods share its directory at `/shared`."""

    @property
    def runs(self) -> Path:
        return self.directory / "runs"

    def write_pod(self, name: str, *command: str, **spec: Any) -> None:
        mounts = [{"name": "shared", "mountPath": "/shared"}]
        app = {"image": self.runtime.image, "command": list(command), "volumeMounts": mounts}
        volumes = [{"name": "shared", "hostPath": {"path": str(self.directory)}}]
        self.write(name, manifest(name, app, volumes=volumes, **spec))

    def ids(self) -> dict[str, str]:
        """Return the ids of the running containers by pod."""
        found = {pod["metadata"]["name"]: pod["status"].get("containerStatuses", [{}])[0] for pod in self.pods() or ()}
        return {name: each["containerID"] for name, each in found.items() if "running" in each.get("state", {})}

    def phases(self) -> dict[str, str]:
        return {
            pod["metadata"]["name"].removesuffix("-n1"): pod["status"].get("phase", "") for pod in self.pods() or ()
        }

    def until_started(self) -> None:
        self.until(lambda: self.phases() == STARTED, f"the pods are {STARTED}")

    def sandboxes(self) -> list[str]:
        return self.runtime.sandboxes(self.root)

    def left(self) -> list[Any]:
        return self.runtime.left(self.root)

    def clear(self) -> None:
        self.kill()
        self.runtime.remove(self.root)
        self.until(lambda: not self.left(), "nothing is left")
        remove_trees(str(self.directory))


@pytest.fixture(params=ALL_RUNTIMES)
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentRun]:
    (tmp_path / "agent").mkdir()
    made = AgentRun(tmp_path / "agent", cli_runtime(request, request.param))
    made.write_pod("web", "sleep", "36000")
    made.write_pod("job", "sh", "-c", "echo ran >> /shared/runs", restartPolicy="Never")
    made.write_pod("loop", "sh", "-c", "exit 3", restartPolicy="OnFailure")
    made.start()
    try:
        made.until_started()
        yield made
    finally:
        made.clear()


def test_after_a_graceful_stop_nothing_is_left_and_the_next_run_starts_from_scratch(agent: AgentRun) -> None:
    assert agent.end(signal.SIGINT) == 0
    assert (agent.sandboxes(), agent.left()) == ([], [])
    agent.start()
    agent.until(lambda: agent.phases().get("job") == "Succeeded", "the job succeeds")
    assert agent.runs.read_text() == "ran\nran\n"
    assert agent.end(signal.SIGINT) == 0


def test_completed_pods_are_not_run_again_after_an_agent_restart(agent: AgentRun) -> None:
    assert agent.end(signal.SIGTERM) == 0
    assert len(agent.sandboxes()) == 3
    agent.start()
    agent.until_started()
    assert agent.runs.read_text() == "ran\n"
    assert agent.end(signal.SIGINT) == 0
    assert agent.sandboxes() == []


def test_a_killed_agent_is_restarted_without_container_restarts(agent: AgentRun) -> None:
    before = agent.ids()
    assert "web-n1" in before
    for _ in range(3):
        assert agent.end(signal.SIGKILL) == -signal.SIGKILL
        agent.start()
        agent.until_started()
        assert agent.ids()["web-n1"] == before["web-n1"]
    assert (len(agent.sandboxes()), agent.runs.read_text()) == (3, "ran\n")
    assert agent.end(signal.SIGINT) == 0
    assert agent.sandboxes() == []
