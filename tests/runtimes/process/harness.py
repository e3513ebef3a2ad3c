"""A process runtime for tests. It checks that no process or file is left behind."""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import ContainerConfig, Mount, SandboxConfig
from podkeeper.runtimes.process.keeper.files import read_json
from podkeeper.runtimes.process.keeper_client import KeeperTimeouts
from podkeeper.runtimes.process.runtime import ProcessRuntime
from tests.runtimes.runtime_pod import TIMEOUT_SECONDS, RuntimePod

LONG = KeeperTimeouts(answer_seconds=10, kill_seconds=20)
HOST_IPS = ("192.0.2.7", "2001:db8::7")


@contextmanager
def temporary_root() -> Iterator[str]:
    """A root directory. At the end, running processes in it are killed and fail the test."""
    with tempfile.TemporaryDirectory(prefix="podkeeper-test-", ignore_cleanup_errors=True) as root:
        try:
            yield root
        finally:
            left = processes_of(root)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not any(map(is_alive, left)), "killed processes are gone")
    assert left == [], f"processes left behind: {left}"


@asynccontextmanager
async def opened(root: str, jail: str = "plain", timeouts: KeeperTimeouts = LONG) -> AsyncIterator[ProcessRuntime]:
    """An open runtime. Its pods keep running at the end."""
    async with ProcessRuntime(root, host_ips=lambda: HOST_IPS, jail=jail, timeouts=timeouts) as runtime:
        yield runtime


@asynccontextmanager
async def temporary_runtime(jail: str = "plain", timeouts: KeeperTimeouts = LONG) -> AsyncIterator[ProcessRuntime]:
    """An open runtime with its own directory. At the end, all pods are removed and nothing may be left."""
    with temporary_root() as root:
        async with opened(root, jail, timeouts) as runtime:
            try:
                yield runtime
            finally:
                await remove_all(runtime, root)


async def remove_all(runtime: ProcessRuntime, root: str) -> None:
    """Remove all pods and check that their processes have ended."""
    running = processes_of(root)
    await asyncio.gather(
        *(runtime.remove_sandbox(box.id) for pod in await runtime.list_pods() for box in pod.sandboxes)
    )
    await eventually(lambda: not any(map(is_alive, running)), f"none of {running} is left")
    assert os.listdir(os.path.join(root, "sandboxes")) == []


class RuntimeHarness(RuntimePod):
    """One pod, created step by step."""

    def __init__(self, runtime: ProcessRuntime, logs: str = "", **spec: Any) -> None:
        self.runtime = runtime
        self.uid = PodUID(str(uuid4()))
        self.logs = logs
        self.pod = Pod(
            metadata=ObjectMeta(name=f"p{self.uid[:8]}", namespace="default", uid=self.uid),
            spec=PodSpec(**spec),
        )

    async def sandbox(self, attempt: int = 0, hostname: str = "") -> str:
        return await self.runtime.run_sandbox(
            SandboxConfig(pod=self.pod, attempt=attempt, log_directory=self.logs, hostname=hostname)
        )

    async def create(
        self,
        sandbox_id: str,
        *command: str,
        name: str = "c",
        attempt: int = 0,
        env: Mapping[str, str] | None = None,
        mounts: Sequence[Mount] = (),
        **spec: Any,
    ) -> str:
        container = Container(name=name, image="host", command=command, **spec)
        return await self.runtime.create_container(
            sandbox_id,
            ContainerConfig(
                pod=self.pod,
                container=container,
                attempt=attempt,
                image="host",
                spec_hash="cafe",
                command=command,
                env=dict(env or {}),
                mounts=tuple(mounts),
                log_path=f"{name}/{attempt}.log" if self.logs else "",
            ),
        )

    def log(self, name: str = "c", attempt: int = 0) -> bytes:
        return Path(self.logs, name, f"{attempt}.log").read_bytes()

    async def wait_for_log(self, word: bytes) -> None:
        """Wait until a word is in the container's log."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while word not in self.log():
                await asyncio.sleep(0.01)


Act = Callable[[ProcessRuntime], Awaitable[None]]


def in_runtime(act: Act, jail: str = "plain") -> None:
    """Run a scenario with a new runtime."""

    async def main() -> None:
        async with temporary_runtime(jail) as runtime, asyncio.timeout(30):
            await act(runtime)

    asyncio.run(main())


def contents(log: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Return (stream, tag, content) of every complete line. The last line may be incomplete."""
    lines = (line.split(b" ", 3) for line in log.splitlines())
    return [(words[1], words[2], words[3]) for words in lines if len(words) == 4]


# Processes of this machine.


def keepers_of(root: str) -> dict[str, int]:
    """Return the running keepers of a root directory: sandbox ID -> PID."""
    found = {}
    sandboxes = os.path.join(root, "sandboxes")
    for name in os.listdir(sandboxes) if os.path.isdir(sandboxes) else ():
        about = read_json(os.path.join(sandboxes, name, "keeper.json"))
        if about is not None and is_alive(about["pid"]):
            found[name] = int(about["pid"])
    return found


def pid_of(root: str, container_id: str) -> int:
    """Return the PID of a container's first process from its state file."""
    state = next(Path(root).glob(f"sandboxes/*/containers/{container_id}/state.json"))
    return int((read_json(str(state)) or {}).get("pid", 0))


def processes_of(root: str) -> list[int]:
    """Return all keepers of a root directory and their descendants."""
    below: dict[int, list[int]] = {}
    keepers = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
            below.setdefault(int(parent), []).append(int(name))
            if state != b"Z" and os.readlink(f"/proc/{name}/cwd").startswith(f"{root}/sandboxes/"):
                keepers.append(int(name))
        except OSError:
            continue
    found: list[int] = []
    while keepers:
        pid = keepers.pop()
        if pid not in found:
            found.append(pid)
            keepers += below.get(pid, [])
    return sorted(pid for pid in found if is_alive(pid))


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def running(word: str) -> list[int]:
    """Return the processes with a word in their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            try:
                if word.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
            except OSError:
                continue
    return found


async def eventually(holds: Callable[[], bool], condition: str) -> None:
    """Wait until a condition is true."""
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not holds():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"timed out: {condition}") from None


def wait_until(holds: Callable[[], bool], condition: str) -> None:
    """Wait until a condition is true, without an event loop."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"timed out: {condition}"
        time.sleep(0.01)
