"""An agent on the fake runtime in real time, with its local API on a socket; and who asks it, from outside.

with house(tmp_path) as it:
    it.write("web.yaml", pod("web"))
    it.until(lambda: it.status("web") == "Running")

The agent lives in a thread with a loop of its own: commands are asked as a person asks them, and wait.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from click.testing import CliRunner, Result

from podkeeper.app.build import Agent
from podkeeper.app.cli import main
from podkeeper.app.cli.talking import CLOSE, STDIN
from podkeeper.app.local.board import Board
from podkeeper.app.local.client import TABLE_ACCEPTED, AskingFailed, LocalClient, Talk
from podkeeper.app.local.forwards import Forwards
from podkeeper.app.local.gate import Gate
from podkeeper.app.local.server import Info, LocalServer
from podkeeper.app.standalone import Standalone, assembled
from podkeeper.model.messages import PodUID
from podkeeper.rules.naming import pod_log_directory
from podkeeper.runtimes.fake import FakeRuntime

T = TypeVar("T")
NODE = "n1"


def pod(
    name: str,
    *containers: str,
    lives: Mapping[str, Mapping[str, object]] | None = None,
    inits: tuple[str, ...] = (),
    policy: str = "Always",
    grace: int = 30,
    namespace: str = "default",
) -> str:
    """A manifest; `lives` says how fake containers live."""
    annotations = {f"fake.podkeeper.io/{each}": json.dumps(life) for each, life in (lives or {}).items()}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
            "spec": {
                "restartPolicy": policy,
                "terminationGracePeriodSeconds": grace,
                "initContainers": [{"name": each, "image": "host"} for each in inits],
                "containers": [{"name": each, "image": "host"} for each in containers or ("app",)],
            },
        }
    )


def append(path: Path, data: bytes) -> None:
    """Write more to a log, as its container would."""
    with path.open("ab") as file:
        file.write(data)


def is_open(path: Path) -> bool:
    """Whether somebody in this process reads a file."""
    here = Path("/proc/self/fd")
    return any(os.path.realpath(each) == str(path) for each in here.iterdir())


@contextmanager
def speaking(conversation: Talk, words: bytes) -> Iterator[None]:
    """Say much, to the end of it, while somebody listens."""

    def speak() -> None:
        for start in range(0, len(words), 70_000):
            conversation.send(STDIN, words[start : start + 70_000])
        conversation.send(CLOSE, bytes([STDIN]))

    mouth = threading.Thread(target=speak)
    mouth.start()
    yield
    mouth.join()


class House:
    """What a test may ask for."""

    def __init__(self, directory: Path, agent: Agent, gate: Gate, socket: Path) -> None:
        self.manifests = directory / "manifests"
        self.agent = agent
        self.gate = gate
        self.socket = socket
        self.board = Board(agent, gate)
        self.client = LocalClient(socket)
        self.loop = asyncio.get_running_loop()

    def write(self, name: str, *manifests: str) -> None:
        """Put manifests into a file, at once."""
        unfinished = self.manifests / f".{name}"
        unfinished.write_text("\n---\n".join(manifests))
        unfinished.rename(self.manifests / name)

    def call(self, *arguments: str, input: str | None = None) -> Result:
        """Call a command as a person would."""
        return CliRunner().invoke(main, [*arguments[:1], "--socket", str(self.socket), *arguments[1:]], input=input)

    def ask(self, coroutine: Coroutine[None, None, T]) -> T:
        """Have the agent's loop do something."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(5)

    def status(self, name: str) -> str:
        """What `ps` shows as a pod's status; nothing when it is not there."""
        rows = self.client.get("pods", accept=TABLE_ACCEPTED)["rows"]
        return next((row["cells"][2] for row in rows if row["cells"][0] == f"{name}-{NODE}"), "")

    def pod(self, name: str) -> dict[str, Any]:
        """A pod as the API shows it."""
        return self.client.get("pods", "default", name)

    def log(self, name: str, container: str = "app", attempt: int = 0) -> Path:
        """Where a container's log is; its directory is there."""
        found = next(each for each in self.board.pods() if each.metadata.name == f"{name}-{NODE}")
        path = Path(pod_log_directory(self.agent.settings.log_root, found), container, f"{attempt}.log")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def end(self, name: str, container: str = "app", exit_code: int = 0) -> None:
        """Let a container end by itself."""
        runtime = self.agent.ports.runtime
        assert isinstance(runtime, FakeRuntime)
        self.loop.call_soon_threadsafe(
            runtime.end_container, PodUID(self.pod(name)["metadata"]["uid"]), container, exit_code
        )

    def until(self, condition: Callable[[], object], within: float = 10.0) -> None:
        """Wait for something."""
        end = time.monotonic() + within
        while not self._holds(condition):
            assert time.monotonic() < end, f"not within {within} s"
            time.sleep(0.02)

    def _holds(self, condition: Callable[[], object]) -> bool:
        try:
            return bool(condition())
        except AskingFailed:
            return False


async def live_together(agent: Agent, board: Board) -> None:
    """What `podkeeper run` has live beside each other."""
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.run())
        group.create_task(board.see_off())


@contextmanager
def house(directory: Path, *, forwards: Forwards | None = None) -> Iterator[House]:
    """An agent that lives as long as the context; `forwards`: a way to ports, which its fake pods do not have."""
    (directory / "manifests").mkdir()
    made: list[House] = []
    failed: list[BaseException] = []
    ready, over = threading.Event(), asyncio.Event()

    async def live() -> None:
        wanted = Standalone(paths=(directory / "manifests",), root=directory / "root", node_name=NODE, runtime="fake")
        async with assembled(wanted) as parts:
            agent = Agent(parts.ports, parts.settings)
            socket = directory / "s"
            info = Info(version="test", node=NODE, root=str(wanted.root), runtime="fake", pid=os.getpid())
            talking = parts.streams(agent)
            server = LocalServer(
                agent=agent, gate=parts.gate, streams=talking, forwards=forwards, info=info, path=socket
            )
            await server.start()
            made.append(House(directory, agent, parts.gate, socket))
            living = asyncio.create_task(live_together(agent, made[0].board))
            ready.set()
            try:
                await over.wait()
            finally:
                living.cancel()
                await asyncio.wait((living,))
                await server.close()

    def run() -> None:
        try:
            asyncio.run(live())
        except BaseException as error:
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(10)
    try:
        if failed:
            raise failed[0]
        yield made[0]
    finally:
        if made:
            made[0].loop.call_soon_threadsafe(over.set)
        thread.join(10)
    assert not failed, failed
