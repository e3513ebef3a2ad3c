"""An agent that runs as a command, and a way to ask it with others."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from podkeeper.app.local.client import AskingFailed, LocalClient
from podkeeper.runtimes.process.keeper.demolition import demolish
from tests.e2e.homes import IMAGE
from tests.e2e.ways import Way

PATIENCE_SECONDS = 30.0
CALL = [sys.executable, "-c", "from podkeeper.app.cli import main; main(prog_name='podkeeper')"]


def manifest(name: str, container: dict[str, Any], image: str = IMAGE, **more: Any) -> dict[str, Any]:
    app = {"name": "app", "image": image, **container}
    spec = {"containers": [app], "terminationGracePeriodSeconds": 1, "restartPolicy": "Always", **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def until(holds: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, f"it never came about that {what}"
        time.sleep(0.02)


class House:
    """Where an agent runs, and a way to ask it."""

    def __init__(self, root: Path, agent: subprocess.Popen[bytes] | None = None) -> None:
        self.root = root
        self._agent = agent

    def argv(self, command: str, *arguments: str) -> list[str]:
        return [*CALL, command, "--root", str(self.root), *arguments]

    def call(self, command: str, *arguments: str, said: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """A command without a terminal."""
        argv = self.argv(command, *arguments)
        return subprocess.run(argv, input=said, capture_output=True, timeout=PATIENCE_SECONDS, check=False)

    def container(self, pod: str) -> dict[str, Any]:
        """The status of a pod's container; empty: there is none yet."""
        try:
            found = LocalClient(self.root / "podkeeper.sock").get("pods", f"{pod}-n1")
        except AskingFailed:
            return {}
        return dict((found["status"].get("containerStatuses") or [{}])[0])

    def restarts(self, pod: str) -> int:
        return int(self.container(pod).get("restartCount", 0))

    def leave(self) -> int:
        """Press Ctrl-C; the agent's exit status."""
        assert self._agent is not None
        if self._agent.poll() is None:
            self._agent.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._agent.wait(PATIENCE_SECONDS)
            self._agent.kill()
        return self._agent.wait()


@contextmanager
def roots_house(home: Path, way: Way, containers: Mapping[str, dict[str, Any]], **spec: Any) -> Iterator[House]:
    """An agent that runs as whoever runs the tests; each container is a pod of its own (`spec`: more fields of it)."""
    (home / "manifests").mkdir()
    pods = [manifest(name, container, way.image, **spec) for name, container in containers.items()]
    (home / "manifests" / "pods.yaml").write_text(yaml.safe_dump_all(pods))
    with folders_house(home, way, home / "manifests") as house:
        yield house


@contextmanager
def folders_house(home: Path, way: Way, folder: Path) -> Iterator[House]:
    """The same with a folder of manifests that is there."""
    argv = [*CALL, "run", str(folder), "--root", str(home / "state"), "--node-name", "n1", *way.arguments]
    with (home / "said").open("wb") as out, way.inside():
        agent = subprocess.Popen(argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    house = House(home / "state", agent)
    try:
        yield house
    finally:
        house.leave()
        way.remove(house.root)
        demolish(str(home))
