"""A process runtime for a test, and the certainty that nothing of it is left when the test is over."""

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
from podkeeper.runtimes.process.keepers import Patience
from podkeeper.runtimes.process.runtime import ProcessRuntime
from tests.runtimes.scene import PATIENCE_SECONDS, PodScene

LONG = Patience(silent_seconds=10, force_seconds=20)
HOST_IPS = ("192.0.2.7", "2001:db8::7")


@contextmanager
def home_directory() -> Iterator[str]:
    """A root directory; in the end whatever still runs there is killed, and that is a failure."""
    with tempfile.TemporaryDirectory(prefix="podkeeper-test-", ignore_cleanup_errors=True) as root:
        try:
            yield root
        finally:
            left = processes_of(root)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not any(map(is_alive, left)), "killed processes are gone")
    assert left == [], f"processes were left over: {left}"


@asynccontextmanager
async def opened(root: str, jail: str = "plain", patience: Patience = LONG) -> AsyncIterator[ProcessRuntime]:
    """A runtime that is open; what it has is left alone in the end."""
    async with ProcessRuntime(root, host_ips=lambda: HOST_IPS, jail=jail, patience=patience) as runtime:
        yield runtime


@asynccontextmanager
async def at_home(jail: str = "plain", patience: Patience = LONG) -> AsyncIterator[ProcessRuntime]:
    """A runtime with a directory of its own; in the end all it has is removed, and nothing may be left."""
    with home_directory() as root:
        async with opened(root, jail, patience) as runtime:
            try:
                yield runtime
            finally:
                await remove_all(runtime, root)


async def remove_all(runtime: ProcessRuntime, root: str) -> None:
    """Remove every pod, and see that its processes are gone."""
    running = processes_of(root)
    await asyncio.gather(
        *(runtime.remove_sandbox(box.id) for pod in await runtime.list_pods() for box in pod.sandboxes)
    )
    await eventually(lambda: not any(map(is_alive, running)), f"of {running} none is left")
    assert os.listdir(os.path.join(root, "sandboxes")) == []


class Scene(PodScene):
    """One pod, made step by step."""

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

    async def said(self, word: bytes) -> None:
        """Wait until the container has said something: what it does before, it has done."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while word not in self.log():
                await asyncio.sleep(0.01)


Act = Callable[[ProcessRuntime], Awaitable[None]]


def in_runtime(act: Act, jail: str = "plain") -> None:
    """Do something with a runtime of its own."""

    async def whole() -> None:
        async with at_home(jail) as runtime, asyncio.timeout(30):
            await act(runtime)

    asyncio.run(whole())


def contents(log: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """(stream, tag, content) of every whole line; the last may still be being written."""
    lines = (line.split(b" ", 3) for line in log.splitlines())
    return [(words[1], words[2], words[3]) for words in lines if len(words) == 4]


# What the machine says.


def keepers_of(root: str) -> dict[str, int]:
    """The keepers that live in a root directory: sandbox -> pid."""
    found = {}
    home = os.path.join(root, "sandboxes")
    for name in os.listdir(home) if os.path.isdir(home) else ():
        about = read_json(os.path.join(home, name, "keeper.json"))
        if about is not None and is_alive(about["pid"]):
            found[name] = int(about["pid"])
    return found


def pid_of(root: str, container_id: str) -> int:
    """The first process of a container, as its state file says."""
    state = next(Path(root).glob(f"sandboxes/*/containers/{container_id}/state.json"))
    return int((read_json(str(state)) or {}).get("pid", 0))


def processes_of(root: str) -> list[int]:
    """Every keeper of a root directory, and everything below it."""
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
    """Whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def running(word: str) -> list[int]:
    """Processes with a word in their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            try:
                if word.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
            except OSError:
                continue
    return found


async def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"it never came about that {what}") from None


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """The same without a loop."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"it never came about that {what}"
        time.sleep(0.01)
