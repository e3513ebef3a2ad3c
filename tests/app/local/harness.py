"""Harness of the local API: an agent on the fake runtime, in real time, with its socket.

with harness(tmp_path) as it:
    it.write("web.yaml", manifest("web"))
    it.until(lambda: it.status("web") == "Running")

The agent runs in a thread with its own event loop, so tests can call blocking commands.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from podkeeper.app.agent import Agent
from podkeeper.app.build import Engine
from podkeeper.app.cli import main
from podkeeper.app.cli.terminal_session import CLOSE, STDIN
from podkeeper.app.local.client import TABLE_ACCEPTED, ChannelSocket, LocalClient, RequestFailed
from podkeeper.app.local.forwards import Forwards
from podkeeper.app.local.pod_queries import PodQueries
from podkeeper.app.local.server import AgentInfo, LocalServer
from podkeeper.app.local.stop_filter import StopFilter
from podkeeper.app.standalone import Standalone, open_agent_parts
from podkeeper.model.messages import PodUID
from podkeeper.rules.naming import pod_log_directory
from podkeeper.runtimes.fake import FakeRuntime

NODE = "n1"


def manifest(
    name: str,
    *containers: str,
    lives: Mapping[str, Mapping[str, object]] | None = None,
    inits: tuple[str, ...] = (),
    policy: str = "Always",
    grace: int = 30,
    namespace: str = "default",
) -> str:
    """Return the manifest of a pod. `lives` scripts the fake containers."""
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
    """Append to a log, as its container would."""
    with path.open("ab") as file:
        file.write(data)


def is_open(path: Path) -> bool:
    """Return whether this process has a file open."""
    here = Path("/proc/self/fd")
    return any(os.path.realpath(each) == str(path) for each in here.iterdir())


@contextmanager
def sending(channels: ChannelSocket, data: bytes) -> Iterator[None]:
    """Send data and the end of the input in a thread, while the test receives."""

    def send() -> None:
        for start in range(0, len(data), 70_000):
            channels.send(STDIN, data[start : start + 70_000])
        channels.send(CLOSE, bytes([STDIN]))

    thread = threading.Thread(target=send)
    thread.start()
    yield
    thread.join()


class Harness:
    def __init__(
        self, directory: Path, agent: Agent, queries: PodQueries, stop_filter: StopFilter, socket: Path
    ) -> None:
        self.manifests = directory / "manifests"
        self.agent = agent
        self.stop_filter = stop_filter
        self.socket = socket
        self.queries = queries
        self.client = LocalClient(socket)
        self.loop = asyncio.get_running_loop()

    def write(self, name: str, *manifests: str) -> None:
        """Write manifests to a file atomically."""
        unfinished = self.manifests / f".{name}"
        unfinished.write_text("\n---\n".join(manifests))
        unfinished.rename(self.manifests / name)

    def call(self, *arguments: str, input: str | None = None) -> Result:
        """Invoke a command of the CLI."""
        return CliRunner().invoke(main, [*arguments[:1], "--socket", str(self.socket), *arguments[1:]], input=input)

    def status(self, name: str) -> str:
        """Return the column STATUS of `podkeeper ps`, or "" if the pod is not listed."""
        rows = self.client.get("pods", accept=TABLE_ACCEPTED)["rows"]
        return next((row["cells"][2] for row in rows if row["cells"][0] == f"{name}-{NODE}"), "")

    def pod(self, name: str) -> dict[str, Any]:
        return self.client.get("pods", "default", name)

    def log(self, name: str, container: str = "app", attempt: int = 0) -> Path:
        """Return the path of a container's log. Create its directory."""
        found = next(each for each in self.queries.pods() if each.metadata.name == f"{name}-{NODE}")
        path = Path(pod_log_directory(self.agent.engine.settings.log_root, found), container, f"{attempt}.log")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def end(self, name: str, container: str = "app", exit_code: int = 0) -> None:
        """Make a container exit."""
        runtime = self.agent.engine.ports.runtime
        assert isinstance(runtime, FakeRuntime)
        self.loop.call_soon_threadsafe(
            runtime.end_container, PodUID(self.pod(name)["metadata"]["uid"]), container, exit_code
        )

    def until(self, condition: Callable[[], object], within: float = 10.0) -> None:
        """Wait for a condition."""
        end = time.monotonic() + within
        while not self._holds(condition):
            assert time.monotonic() < end, f"not within {within} s"
            time.sleep(0.02)

    def _holds(self, condition: Callable[[], object]) -> bool:
        try:
            return bool(condition())
        except RequestFailed:
            return False


async def run_together(agent: Agent, queries: PodQueries) -> None:
    """Run what `podkeeper run` runs in parallel."""
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.run())
        group.create_task(queries.run())


@contextmanager
def harness(directory: Path, *, forwards: Forwards | None = None) -> Iterator[Harness]:
    """Run an agent during the context. `forwards` replaces port forwarding, because fake pods have no ports."""
    (directory / "manifests").mkdir()
    made: list[Harness] = []
    failed: list[BaseException] = []
    ready, over = threading.Event(), asyncio.Event()

    async def live() -> None:
        wanted = Standalone(paths=(directory / "manifests",), root=directory / "root", node_name=NODE, runtime="fake")
        async with open_agent_parts(wanted) as parts:
            agent = Agent(Engine(parts.ports, parts.settings))
            socket = directory / "s"
            info = AgentInfo(version="test", node=NODE, root=str(wanted.root), runtime="fake", pid=os.getpid())
            queries = PodQueries(agent, parts.stop_filter)
            streams = parts.streams(agent)
            server = LocalServer(
                agent=agent,
                queries=queries,
                stop_filter=parts.stop_filter,
                streams=streams,
                forwards=forwards,
                info=info,
                path=socket,
            )
            await server.start()
            made.append(Harness(directory, agent, queries, parts.stop_filter, socket))
            running = asyncio.create_task(run_together(agent, made[0].queries))
            ready.set()
            try:
                await over.wait()
            finally:
                running.cancel()
                await asyncio.wait((running,))
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
