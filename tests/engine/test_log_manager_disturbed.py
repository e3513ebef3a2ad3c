"""Log rotation, with an event at every await and a failure at every call."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from podkeeper.engine.bounded_runtime import BoundedRuntime
from podkeeper.engine.log_manager import ContainerLogManager
from podkeeper.model.errors import TryLater
from podkeeper.model.log_tree import ContainerLogs, LogTree
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.rules.logs.rotation import RotationPolicy
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import DOCUMENTED, PortCalls, UnexpectedError
from podkeeper.testing.virtual_time import VirtualClock
from tests.doubles import stand_in

WEB, GONE = "ns_web_uid-web", "ns_gone_uid-gone"
POLICY = RotationPolicy(max_bytes=100, max_files=4, interval_seconds=10)
FILE_METHODS = ("list_logs", "remove", "move", "move_back", "compress", "clear")
ERRORS: dict[str, tuple[type[Exception], ...]] = dict.fromkeys(FILE_METHODS, (TryLater,))
METHODS = [
    *(("files", name, ERRORS[name]) for name in FILE_METHODS),
    *(("runtime", name, DOCUMENTED["runtime"][name]) for name in ("list_pods", "reopen_log")),
]


class Node:
    """A log tree in memory, and a runtime whose only container keeps its log open."""

    def __init__(self, calls: PortCalls) -> None:
        self.files: dict[tuple[str, str], list[int]] = {}  # by pod and name: line numbers
        self.aside: set[str] = set()
        self.lines = 0
        self.attempt = 0
        self.runs = True
        self.gone = {"uid-gone"}
        self.files[GONE, "0.log"] = []
        self.disk_seconds = 0.0
        self.moving = False
        self.without_log = 0  # seconds
        self.wrong: list[str] = []
        self._open: list[int] = []
        self._reopen()
        self.manager = ContainerLogManager(
            runtime=stand_in(BoundedRuntime, calls.watch("runtime", self)),
            files=calls.watch("files", self, ERRORS),
            clock=VirtualClock(),
            policy=POLICY,
            is_removed=self.gone.__contains__,
        )

    # Events.

    def write(self, lines: int = 12) -> None:
        """Write lines of ten bytes."""
        for _ in range(lines):
            self.lines += 1
            self._open.append(self.lines)

    def restart(self) -> None:
        self.attempt += 1
        self._reopen()

    def _reopen(self) -> None:
        self._open = self.files.setdefault((WEB, self.log), [])

    @property
    def log(self) -> str:
        return f"{self.attempt}.log"

    def slow_down(self) -> None:
        """Make the disk slow, so that work of one run continues during the next one."""
        self.disk_seconds = 12
        asyncio.get_running_loop().call_later(15, setattr, self, "disk_seconds", 0)

    async def watch(self) -> None:
        """Record if the container is without a log for longer than a rotation takes."""
        while True:
            await asyncio.sleep(1)
            is_written = self.files.get((WEB, self.log)) is self._open
            self.without_log = 0 if is_written else self.without_log + 1
            if self.without_log > 1 and not self.disk_seconds and self.runs:
                self.wrong.append("the container is without a log")

    # The runtime.

    async def list_pods(self) -> list[PodRecord]:
        state = RecordState.RUNNING if self.runs else RecordState.EXITED
        made = ContainerRecord(id="c", name="app", state=state, restart_count=self.attempt)
        before = [
            ContainerRecord(id=f"c{number}", name="app", state=RecordState.EXITED, restart_count=number)
            for number in range(self.attempt)
        ]
        return [PodRecord(uid="uid-web", name="web", namespace="ns", containers=(made, *before))]

    async def reopen_log(self, container_id: str) -> None:
        self._reopen()

    # The files.

    async def list_logs(self) -> LogTree:
        pods = tuple(dict.fromkeys(pod for pod, _ in self.files))
        logs = tuple(
            ContainerLogs(pod, "app", {name: 10 * len(lines) for (of, name), lines in self.files.items() if of == pod})
            for pod in pods
        )
        return LogTree(pods, logs, has_leftovers=bool(self.aside))

    def exists(self, logs: ContainerLogs, name: str) -> bool:
        return (logs.pod, name) in self.files

    async def remove(self, logs: ContainerLogs, names: Sequence[str]) -> None:
        for name in names:
            self.files.pop((logs.pod, name), None)

    async def move(self, logs: ContainerLogs, name: str, to: str) -> None:
        if (logs.pod, to) in self.files:
            self.wrong.append("a part is overwritten")
        if self.disk_seconds and self.moving:
            self.wrong.append("a log is rotated twice at a time")
        self.moving = True
        await asyncio.sleep(self.disk_seconds)
        self.moving = False
        if (logs.pod, name) in self.files:
            self.files[logs.pod, to] = self.files.pop((logs.pod, name))

    async def move_back(self, logs: ContainerLogs, name: str, moved_to: str) -> None:
        if (logs.pod, name) not in self.files:
            self.files[logs.pod, name] = self.files.pop((logs.pod, moved_to))

    async def compress(self, logs: ContainerLogs, name: str) -> None:
        if (logs.pod, name) in self.files:
            self.files[logs.pod, f"{name}.gz"] = self.files.pop((logs.pod, name))

    def put_aside(self, pod: str) -> None:
        self.aside.add(pod)
        for key in [key for key in self.files if key[0] == pod]:
            del self.files[key]

    async def clear(self) -> None:
        self.aside.clear()


def files_of(node: Node) -> object:
    return sorted({pod for pod, _ in node.files}), node.aside


def is_sound(node: Node) -> None:
    assert not node.wrong
    is_complete(node)


def is_complete(node: Node) -> None:
    """Check that the container writes to its log, the log is not too large, and no line is lost."""
    held = sorted(line for lines in node.files.values() for line in lines)
    assert held == list(range(1, node.lines + 1))
    if node.runs:
        node.write(1)
        assert node.files[WEB, node.log][-1] == node.lines
        assert len(node.files[WEB, node.log]) * 10 <= 110


async def the_log_is_rotated_again(node: Node) -> None:
    if node.runs:
        node.write()
        await asyncio.sleep(20)
        is_complete(node)
        parts = [name for _, name in node.files if name.startswith(node.log)]
        assert len(parts) >= 2, "it was not rotated"


@asynccontextmanager
async def setup(calls: PortCalls) -> AsyncIterator[Node]:
    node = Node(calls)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(node.manager.run()), group.create_task(node.watch())]
        await asyncio.sleep(15)
        node.files[GONE, "0.log"] = []
        node.write()
        yield node
        for task in tasks:
            task.cancel()


async def rotate(node: Node) -> None:
    await asyncio.sleep(10)


ROTATING = OperationTest(
    setup=setup, run=rotate, state=files_of, check=is_sound, afterwards=the_log_is_rotated_again, settle_seconds=15
)
EVENTS: dict[str, Event[Node]] = {
    "the log grows": Node.write,
    "the container is restarted": Node.restart,
    "the container exits": lambda node: setattr(node, "runs", False),
    "the disk is slow": Node.slow_down,
    "a log of a removed pod appears": lambda node: node.files.update({(GONE, "0.log"): []}),
}


def test_every_event_while_a_log_is_rotated() -> None:
    interleave(ROTATING, EVENTS, cancel=False)  # work belongs to `run`, which only ends with the agent


def test_every_call_fails_once() -> None:
    moves = [("files", "move", TryLater), ("files", "move", UnexpectedError)]
    fail_each_call(ROTATING, leave_out=moves)
    # If a log was moved although the call failed, only the next run finds the container without a log.
    others = [
        (port, method, error)
        for port, method, errors in METHODS
        for error in (*errors, UnexpectedError)
        if method != "move"
    ]
    fail_each_call(dataclasses.replace(ROTATING, check=is_complete), leave_out=others)
