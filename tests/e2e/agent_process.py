"""An agent that `podkeeper run` starts, and the other commands that query it."""

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
from tests.e2e.cli_runtimes import CliRuntime
from tests.manifests import manifest

TIMEOUT_SECONDS = 30.0
CALL = [sys.executable, "-c", "from podkeeper.app.cli import main; main(prog_name='podkeeper')"]
CONFIGURATION = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}


def until(holds: Callable[[], object], what: str) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not holds():
        assert time.monotonic() < end, f"not within {TIMEOUT_SECONDS:g} s: {what}"
        time.sleep(0.02)


class AgentClient:
    """Commands and queries for the agent of a state directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def argv(self, command: str, *arguments: str) -> list[str]:
        return [*CALL, command, "--root", str(self.root), *arguments]

    def call(self, command: str, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a command without a terminal."""
        argv = self.argv(command, *arguments)
        return subprocess.run(argv, input=stdin, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)

    def pods(self) -> list[dict[str, Any]] | None:
        """Return all pods, or None while the agent does not answer."""
        try:
            return list(LocalClient(self.root / "podkeeper.sock").get("pods")["items"])
        except RequestFailed:
            return None

    def container(self, pod: str) -> dict[str, Any]:
        """Return the status of a pod's container, or {} if there is none yet."""
        try:
            found = LocalClient(self.root / "podkeeper.sock").get("pods", f"{pod}-n1")
        except RequestFailed:
            return {}
        return dict((found["status"].get("containerStatuses") or [{}])[0])

    def restarts(self, pod: str) -> int:
        return int(self.container(pod).get("restartCount", 0))


class AgentProcess(AgentClient):
    """The agent of one directory. `start` runs another process on the state that the previous one left.

    `config` has fields of a KubeletConfiguration.
    """

    def __init__(
        self,
        directory: Path,
        runtime: CliRuntime,
        *,
        manifests: Path | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(directory / "state")
        self.directory = directory
        self.runtime = runtime
        self.manifests = manifests or directory / "manifests"
        self.manifests.mkdir(exist_ok=True)
        self._output = directory / "output"
        self._arguments = [*runtime.arguments]
        self._process: subprocess.Popen[bytes] | None = None
        if config is not None:
            (directory / "config.yaml").write_text(yaml.safe_dump({**CONFIGURATION, **config}))
            self._arguments += ["--config", str(directory / "config.yaml")]

    def write(self, name: str, *documents: Mapping[str, Any]) -> None:
        """Write a file of manifests."""
        (self.manifests / f"{name}.yaml").write_text(yaml.safe_dump_all(map(dict, documents)))

    def start(self) -> None:
        argv = self.argv("run", str(self.manifests), "--node-name", "n1", *self._arguments)
        with self._output.open("ab") as out, self.runtime.in_network():
            self._process = subprocess.Popen(argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def end(self, number: signal.Signals) -> int:
        """Send a signal to the agent and return its exit status."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(TIMEOUT_SECONDS)

    def kill(self) -> None:
        """Kill the agent if it runs. Its pods keep running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait for a condition. Fail with the output of the agent."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not holds():
            assert time.monotonic() < end, (
                f"not within {TIMEOUT_SECONDS:g} s: {what}\n{self._output.read_text()[-4000:]}"
            )
            time.sleep(0.02)


@contextmanager
def agent_with_pods(
    directory: Path, runtime: CliRuntime, containers: Mapping[str, dict[str, Any]], **spec: Any
) -> Iterator[AgentProcess]:
    """Run an agent as the user of the tests. Each container becomes one pod; `spec` has more fields of its spec."""
    agent = AgentProcess(directory, runtime)
    agent.write(
        "pods",
        *(manifest(name, {"image": runtime.image, **container}, **spec) for name, container in containers.items()),
    )
    with _running(agent):
        yield agent


@contextmanager
def agent_with_manifests(directory: Path, runtime: CliRuntime, folder: Path) -> Iterator[AgentProcess]:
    """Run an agent as the user of the tests, on an existing folder of manifests."""
    agent = AgentProcess(directory, runtime, manifests=folder)
    with _running(agent):
        yield agent


@contextmanager
def _running(agent: AgentProcess) -> Iterator[None]:
    """Run an agent, then stop it and its pods, and remove its files."""
    agent.start()
    try:
        yield
    finally:
        with suppress(subprocess.TimeoutExpired):
            agent.end(signal.SIGINT)
        agent.kill()
        agent.runtime.remove(agent.root)
        remove_trees(str(agent.directory))
