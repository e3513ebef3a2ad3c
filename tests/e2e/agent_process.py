"""An agent started by `podkeeper run`, and the other commands that query it."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from podkeeper.app.local.client import LocalClient, RequestFailed
from podkeeper.runtimes.process.keeper.cleanup import remove_trees
from tests.e2e.backends import IMAGE
from tests.e2e.cli_runtimes import CliRuntime

TIMEOUT_SECONDS = 30.0
CALL = [sys.executable, "-c", "from podkeeper.app.cli import main; main(prog_name='podkeeper')"]


def manifest(name: str, container: dict[str, Any], image: str = IMAGE, **more: Any) -> dict[str, Any]:
    app = {"name": "app", "image": image, **container}
    spec = {"containers": [app], "terminationGracePeriodSeconds": 1, "restartPolicy": "Always", **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def until(holds: Callable[[], object], what: str) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not holds():
        assert time.monotonic() < end, f"not within {TIMEOUT_SECONDS:g} s: {what}"
        time.sleep(0.02)


class AgentProcess:
    """A running agent. Without `process` it was started elsewhere and can only be queried."""

    def __init__(self, root: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        self.root = root
        self._process = process

    def argv(self, command: str, *arguments: str) -> list[str]:
        return [*CALL, command, "--root", str(self.root), *arguments]

    def call(self, command: str, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a command without a terminal."""
        argv = self.argv(command, *arguments)
        return subprocess.run(argv, input=stdin, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)

    def container(self, pod: str) -> dict[str, Any]:
        """Return the status of a pod's container, or {} if there is none yet."""
        try:
            found = LocalClient(self.root / "podkeeper.sock").get("pods", f"{pod}-n1")
        except RequestFailed:
            return {}
        return dict((found["status"].get("containerStatuses") or [{}])[0])

    def restarts(self, pod: str) -> int:
        return int(self.container(pod).get("restartCount", 0))

    def interrupt(self) -> int:
        """Send SIGINT (Ctrl-C) and return the agent's exit status."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(TIMEOUT_SECONDS)
            self._process.kill()
        return self._process.wait()


@contextmanager
def agent_with_pods(
    directory: Path, runtime: CliRuntime, containers: Mapping[str, dict[str, Any]], **spec: Any
) -> Iterator[AgentProcess]:
    """Run an agent as the user of the tests. Each container becomes one pod; `spec` has more fields of its spec."""
    (directory / "manifests").mkdir()
    pods = [manifest(name, container, runtime.image, **spec) for name, container in containers.items()]
    (directory / "manifests" / "pods.yaml").write_text(yaml.safe_dump_all(pods))
    with agent_with_manifests(directory, runtime, directory / "manifests") as agent:
        yield agent


@contextmanager
def agent_with_manifests(directory: Path, runtime: CliRuntime, folder: Path) -> Iterator[AgentProcess]:
    """Run an agent as the user of the tests, on an existing folder of manifests."""
    argv = [*CALL, "run", str(folder), "--root", str(directory / "state"), "--node-name", "n1", *runtime.arguments]
    with (directory / "output").open("wb") as out, runtime.in_network():
        process = subprocess.Popen(argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    agent = AgentProcess(directory / "state", process)
    try:
        yield agent
    finally:
        agent.interrupt()
        runtime.remove(agent.root)
        remove_trees(str(directory))
