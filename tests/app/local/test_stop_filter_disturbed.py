"""The stop filter with an event at every await: each pod is sent, stopped or terminating."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from podkeeper.app.local.stop_filter import StopFilter
from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.engine.storage import PodStorage
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import Op, PodUID, PodUpdate
from podkeeper.ports.source import SendUpdate
from podkeeper.testing.build import pod
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock
from tests.app.local.test_stop_filter import A, B

PODS = {A: pod("a"), B: pod("b")}


class Files:
    """A source of manifests. With ADD, it has not read all of them."""

    def __init__(self, name: str, op: Op) -> None:
        self.name = name
        self.pods: dict[PodUID, Pod] = {}
        self._op = op  # SET, or ADD and REMOVE while it cannot read everything
        self._emit: SendUpdate = lambda _: None

    async def run(self, emit: SendUpdate) -> None:
        self._emit = emit
        await asyncio.Event().wait()

    def write(self, *uids: PodUID) -> None:
        gone = tuple(each for uid, each in self.pods.items() if uid not in uids)
        self.pods = {uid: PODS[uid] for uid in uids}
        if self._op is Op.ADD and gone:
            self._emit(PodUpdate(Op.REMOVE, gone, self.name))
        self._emit(PodUpdate(self._op, tuple(self.pods.values()), self.name))


@dataclass
class Node:
    clock: VirtualClock
    journal: FakeJournal
    stop_filter: StopFilter
    files: Files
    web: Files
    storage: PodStorage

    def sent(self) -> set[str]:
        return {each.metadata.uid or "" for each in self.storage.merged_state()}

    def replace_manifest(self) -> None:
        self.files.write()
        self.files.write(A)

    def state(self) -> object:
        return (
            self.sent(),
            set(self.stop_filter.stopped()),
            set(self.stop_filter.terminating()),
            self.stop_filter.closed,
        )

    def check(self) -> None:
        sent, terminating = self.sent(), set(self.stop_filter.terminating())
        stored = {key.removeprefix("stopped/") for key in self.journal.load()}
        existing = {*self.files.pods, *self.web.pods}
        assert stored <= existing
        assert not sent & (stored | terminating)
        if self.stop_filter.closed:
            assert not sent
        else:
            assert sent == existing - stored - terminating
        assert set(self.stop_filter.stopped()) == stored - terminating
        assert {uid for uid in existing if self.stop_filter.first_seen(uid) is not None} == existing


@asynccontextmanager
async def open_node(calls: PortCalls, op: Op) -> AsyncIterator[Node]:
    clock, journal = VirtualClock(), FakeJournal()
    stop_filter = StopFilter(clock=clock, checkpoints=Checkpoints(calls.watch("journal", journal), "stopped/"))
    storage = PodStorage(emit=lambda _: None, record_event=lambda _: None, now=clock.now)
    files, web = Files("file", op), Files("http", Op.SET)
    made = Node(clock, journal, stop_filter, files, web, storage)
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(stop_filter.filtered(each).run(storage.merge)) for each in (files, web)]
        await asyncio.sleep(1)
        files.write(A)
        web.write(B)
        yield made
        for task in running:
            task.cancel()


async def all_pods_can_be_started(node: Node) -> None:
    """After any history, every pod that has a manifest can be started."""
    if node.stop_filter.closed:
        return
    node.files.write(A)
    for uid in (A, B):
        await node.stop_filter.start(uid)
        node.stop_filter.mark_terminated(uid)
    node.check()
    assert node.sent() == {A, B}
    assert not node.journal.load()
    assert node.journal.unsynced_writes == 0


async def stop(node: Node) -> None:
    await node.stop_filter.stop(A, 5)


async def stop_and_start(node: Node) -> None:
    await node.stop_filter.stop(A)
    await asyncio.sleep(1)
    node.stop_filter.mark_terminated(A)
    await node.stop_filter.start(A)


OPERATIONS = {"stop": stop, "stop and start": stop_and_start}
# No update is refused: `PodStorage.merge` refuses only pods without a name or UID, and static pods have both.
EVENTS: dict[str, Event[Node]] = {
    "the pod is stopped": lambda node: node.stop_filter.stop(A),
    "the pod is started": lambda node: node.stop_filter.start(A),
    "the pod has terminated": lambda node: node.stop_filter.mark_terminated(A),
    "another pod is stopped": lambda node: node.stop_filter.stop(B),
    "the manifest is removed": lambda node: node.files.write(),
    "the manifest is removed and restored": Node.replace_manifest,
    "the filter is closed": lambda node: node.stop_filter.close(),
    "the clock jumps": lambda node: node.clock.jump(3600),
}


def operation(name: str, op: Op) -> OperationTest[Node]:
    return OperationTest(
        setup=lambda calls: open_node(calls, op),
        run=OPERATIONS[name],
        state=Node.state,
        check=Node.check,
        afterwards=all_pods_can_be_started,
        settle_seconds=10,
    )


@pytest.mark.parametrize("op", [Op.SET, Op.ADD])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_event_at_every_await(name: str, op: Op) -> None:
    interleave(operation(name, op), EVENTS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_call_fails_once(name: str) -> None:
    fail_each_call(replace(operation(name, Op.SET), afterwards=None))
