"""What `podkeeper run` leaves running: nothing after a graceful stop, all pods if only the agent exits."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from podkeeper.app.local.client import LocalClient, RequestFailed
from podkeeper.runtimes.process.keeper.cleanup import remove_trees
from tests.e2e.cli_runtimes import CliRuntime, cli_runtime
from tests.e2e.runtime_kinds import ALL_RUNTIMES

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 30.0


class AgentRun:
    """A directory with manifests and state, and the agents that run on it."""

    def __init__(self, directory: Path, runtime: CliRuntime) -> None:
        self._runtime = runtime
        self.state = directory / "state"
        self.runs = directory / "runs"
        self._output = directory / "output"
        self._manifests = directory / "manifests"
        self._manifests.mkdir()
        self._agent: subprocess.Popen[bytes] | None = None

    def write(self, name: str, *command: str, **spec: Any) -> None:
        mounts = [{"name": "shared", "mountPath": "/shared"}]
        app = {"name": "app", "image": self._runtime.image, "command": command, "volumeMounts": mounts}
        volumes = [{"name": "shared", "hostPath": {"path": str(self._manifests.parent)}}]
        whole = {"containers": [app], "volumes": volumes, "terminationGracePeriodSeconds": 1, **spec}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}
        (self._manifests / f"{name}.yaml").write_text(yaml.safe_dump(manifest))

    def start(self) -> None:
        call = [sys.executable, "-c", "from podkeeper.app.cli import main; main(prog_name='podkeeper')", "run"]
        argv = [*call, str(self._manifests), "--root", str(self.state), "--node-name", "n1", *self._runtime.arguments]
        with self._output.open("ab") as out, self._runtime.in_network():
            self._agent = subprocess.Popen(argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def end(self, number: signal.Signals) -> int:
        assert self._agent is not None
        self._agent.send_signal(number)
        status = self._agent.wait(TIMEOUT_SECONDS)
        self._agent = None
        return status

    def ids(self) -> dict[str, str]:
        """Return the ids of the running containers by pod."""
        try:
            pods = LocalClient(self.state / "podkeeper.sock").get("pods")["items"]
        except RequestFailed:
            return {}
        found = {pod["metadata"]["name"]: pod["status"].get("containerStatuses", [{}])[0] for pod in pods}
        return {name: each["containerID"] for name, each in found.items() if "running" in each.get("state", {})}

    def phases(self) -> dict[str, str]:
        try:
            pods = LocalClient(self.state / "podkeeper.sock").get("pods")["items"]
        except RequestFailed:
            return {}
        return {pod["metadata"]["name"].removesuffix("-n1"): pod["status"].get("phase", "") for pod in pods}

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + TIMEOUT_SECONDS
        while not holds():
            assert time.monotonic() < end, (
                f"not within {TIMEOUT_SECONDS:g} s: {self.phases()}\n{self._output.read_text()}"
            )
            time.sleep(0.02)

    def sandboxes(self) -> list[str]:
        return self._runtime.sandboxes(self.state)

    def left(self) -> list[Any]:
        return self._runtime.left(self.state)

    def clear(self) -> None:
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait()
        self._runtime.remove(self.state)
        self.until(lambda: not self.left())
        remove_trees(str(self._manifests.parent))


@pytest.fixture(params=ALL_RUNTIMES)
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentRun]:
    (tmp_path / "directory").mkdir()
    made = AgentRun(tmp_path / "directory", cli_runtime(request, request.param))
    made.write("web", "sleep", "36000")
    made.write("job", "sh", "-c", "echo ran >> /shared/runs", restartPolicy="Never")
    made.write("loop", "sh", "-c", "exit 3", restartPolicy="OnFailure")
    made.start()
    try:
        made.until(lambda: made.phases() == {"web": "Running", "job": "Succeeded", "loop": "Running"})
        yield made
    finally:
        made.clear()


def test_after_a_graceful_stop_nothing_is_left_and_the_next_run_starts_from_scratch(agent: AgentRun) -> None:
    assert agent.end(signal.SIGINT) == 0
    assert (agent.sandboxes(), agent.left()) == ([], [])
    agent.start()
    agent.until(lambda: agent.phases().get("job") == "Succeeded")
    assert agent.runs.read_text() == "ran\nran\n"
    assert agent.end(signal.SIGINT) == 0


def test_completed_pods_are_not_run_again_after_an_agent_restart(agent: AgentRun) -> None:
    assert agent.end(signal.SIGTERM) == 0
    assert len(agent.sandboxes()) == 3
    agent.start()
    agent.until(lambda: agent.phases() == {"web": "Running", "job": "Succeeded", "loop": "Running"})
    assert agent.runs.read_text() == "ran\n"
    assert agent.end(signal.SIGINT) == 0
    assert agent.sandboxes() == []


def test_a_killed_agent_is_restarted_without_container_restarts(agent: AgentRun) -> None:
    before = agent.ids()
    assert "web-n1" in before
    for _ in range(3):
        assert agent.end(signal.SIGKILL) == -signal.SIGKILL
        agent.start()
        agent.until(lambda: agent.phases() == {"web": "Running", "job": "Succeeded", "loop": "Running"})
        assert agent.ids()["web-n1"] == before["web-n1"]
    assert (len(agent.sandboxes()), agent.runs.read_text()) == (3, "ran\n")
    assert agent.end(signal.SIGINT) == 0
    assert agent.sandboxes() == []
