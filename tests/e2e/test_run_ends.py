"""What `podkeeper run` leaves behind: nothing after a graceful stop, everything when only the agent ends."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from podkeeper.app.local.client import AskingFailed, LocalClient
from podkeeper.runtimes.process.keeper.demolition import demolish
from tests.e2e.kinds import EVERY_KIND
from tests.e2e.ways import Way, way_of

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 30.0


class Place:
    """A directory with manifests and state, and an agent in it now and then."""

    def __init__(self, home: Path, way: Way) -> None:
        self._way = way
        self.state = home / "state"
        self.runs = home / "runs"
        self._said = home / "said"
        self._manifests = home / "manifests"
        self._manifests.mkdir()
        self._agent: subprocess.Popen[bytes] | None = None

    def write(self, name: str, *command: str, **spec: Any) -> None:
        mounts = [{"name": "home", "mountPath": "/home-of-the-test"}]
        app = {"name": "app", "image": self._way.image, "command": command, "volumeMounts": mounts}
        volumes = [{"name": "home", "hostPath": {"path": str(self._manifests.parent)}}]
        whole = {"containers": [app], "volumes": volumes, "terminationGracePeriodSeconds": 1, **spec}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}
        (self._manifests / f"{name}.yaml").write_text(yaml.safe_dump(manifest))

    def start(self) -> None:
        call = [sys.executable, "-c", "from podkeeper.app.cli import main; main(prog_name='podkeeper')", "run"]
        argv = [*call, str(self._manifests), "--root", str(self.state), "--node-name", "n1", *self._way.arguments]
        with self._said.open("ab") as out, self._way.inside():
            self._agent = subprocess.Popen(argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def end(self, number: signal.Signals) -> int:
        assert self._agent is not None
        self._agent.send_signal(number)
        status = self._agent.wait(PATIENCE_SECONDS)
        self._agent = None
        return status

    def ids(self) -> dict[str, str]:
        """The containers that run, by pod."""
        try:
            pods = LocalClient(self.state / "podkeeper.sock").get("pods")["items"]
        except AskingFailed:
            return {}
        found = {pod["metadata"]["name"]: pod["status"].get("containerStatuses", [{}])[0] for pod in pods}
        return {name: each["containerID"] for name, each in found.items() if "running" in each.get("state", {})}

    def phases(self) -> dict[str, str]:
        try:
            pods = LocalClient(self.state / "podkeeper.sock").get("pods")["items"]
        except AskingFailed:
            return {}
        return {pod["metadata"]["name"].removesuffix("-n1"): pod["status"].get("phase", "") for pod in pods}

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < end, f"waited in vain: {self.phases()}\n{self._said.read_text()}"
            time.sleep(0.02)

    def sandboxes(self) -> list[str]:
        return self._way.sandboxes(self.state)

    def left(self) -> list[Any]:
        return self._way.left(self.state)

    def clear(self) -> None:
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait()
        self._way.remove(self.state)
        self.until(lambda: not self.left())
        demolish(str(self._manifests.parent))


@pytest.fixture(params=EVERY_KIND)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "home").mkdir()
    made = Place(tmp_path / "home", way_of(request, request.param))
    made.write("web", "sleep", "36000")
    made.write("job", "sh", "-c", "echo ran >> /home-of-the-test/runs", restartPolicy="Never")
    made.write("loop", "sh", "-c", "exit 3", restartPolicy="OnFailure")
    made.start()
    try:
        made.until(lambda: made.phases() == {"web": "Running", "job": "Succeeded", "loop": "Running"})
        yield made
    finally:
        made.clear()


def test_a_graceful_stop_leaves_no_process_and_no_sandbox_and_the_next_run_begins_afresh(place: Place) -> None:
    assert place.end(signal.SIGINT) == 0
    assert (place.sandboxes(), place.left()) == ([], [])
    place.start()
    place.until(lambda: place.phases().get("job") == "Succeeded")
    assert place.runs.read_text() == "ran\nran\n"
    assert place.end(signal.SIGINT) == 0


def test_when_only_the_agent_ends_nothing_that_has_finished_runs_again(place: Place) -> None:
    assert place.end(signal.SIGTERM) == 0
    assert len(place.sandboxes()) == 3
    place.start()
    place.until(lambda: place.phases() == {"web": "Running", "job": "Succeeded", "loop": "Running"})
    assert place.runs.read_text() == "ran\n"
    assert place.end(signal.SIGINT) == 0
    assert place.sandboxes() == []


def test_an_agent_that_was_killed_finds_everything_as_it_was(place: Place) -> None:
    before = place.ids()
    assert "web-n1" in before
    for _ in range(3):
        assert place.end(signal.SIGKILL) == -signal.SIGKILL
        place.start()
        place.until(lambda: place.phases() == {"web": "Running", "job": "Succeeded", "loop": "Running"})
        assert place.ids()["web-n1"] == before["web-n1"]
    assert (len(place.sandboxes()), place.runs.read_text()) == (3, "ran\n")
    assert place.end(signal.SIGINT) == 0
    assert place.sandboxes() == []
