"""The gate, with an event at every await: each pod is let through, held back, or leaving."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from podkeeper.app.local.gate import Gate
from podkeeper.engine.notebook import Notebook
from podkeeper.engine.storage import PodStorage
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import Op, PodUID, PodUpdate
from podkeeper.ports.source import Tell
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock
from tests.app.local.test_gate import A, B, pod

PODS = {A: pod("a", A), B: pod("b", B)}


class Files:
    """A source of manifests, that has read everything or not."""

    def __init__(self, name: str, op: Op) -> None:
        self.name = name
        self.pods: dict[PodUID, Pod] = {}
        self._op = op  # SET, or ADD and REMOVE while it cannot read everything
        self._tell: Tell = lambda _: None

    async def run(self, tell: Tell) -> None:
        self._tell = tell
        await asyncio.Event().wait()

    def write(self, *uids: PodUID) -> None:
        gone = tuple(each for uid, each in self.pods.items() if uid not in uids)
        self.pods = {uid: PODS[uid] for uid in uids}
        if self._op is Op.ADD and gone:
            self._tell(PodUpdate(Op.REMOVE, gone, self.name))
        self._tell(PodUpdate(self._op, tuple(self.pods.values()), self.name))


@dataclass
class Stage:
    clock: VirtualClock
    journal: FakeJournal
    gate: Gate
    files: Files
    web: Files
    storage: PodStorage

    def through(self) -> set[str]:
        return {each.metadata.uid or "" for each in self.storage.merged_state()}

    def replace_manifest(self) -> None:
        self.files.write()
        self.files.write(A)

    def state(self) -> object:
        return self.through(), set(self.gate.held()), set(self.gate.leaving()), self.gate.closed

    def check(self) -> None:
        through, leaving = self.through(), set(self.gate.leaving())
        noted = {key.removeprefix("stopped/") for key in self.journal.load()}
        there = {*self.files.pods, *self.web.pods}
        assert noted <= there
        assert not through & (noted | leaving)
        if self.gate.closed:
            assert not through
        else:
            assert through == there - noted - leaving
        assert set(self.gate.held()) == noted - leaving
        assert {uid for uid in there if self.gate.seen_since(uid) is not None} == there


@asynccontextmanager
async def stage(calls: PortCalls, op: Op) -> AsyncIterator[Stage]:
    clock, journal = VirtualClock(), FakeJournal()
    gate = Gate(clock=clock, notes=Notebook(calls.watch("journal", journal), "stopped/"))
    storage = PodStorage(emit=lambda _: None, record=lambda _: None, now=clock.now)
    files, web = Files("file", op), Files("http", Op.SET)
    made = Stage(clock, journal, gate, files, web, storage)
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(gate.behind(each).run(storage.merge)) for each in (files, web)]
        await asyncio.sleep(1)
        files.write(A)
        web.write(B)
        yield made
        for task in running:
            task.cancel()


async def all_come_back(stage: Stage) -> None:
    """Whatever happened, a person can start every pod that has a manifest."""
    if stage.gate.closed:
        return
    stage.files.write(A)
    for uid in (A, B):
        await stage.gate.release(uid)
        stage.gate.gone(uid)
    stage.check()
    assert stage.through() == {A, B}
    assert not stage.journal.load()
    assert stage.journal.unsynced_writes == 0


async def hold(stage: Stage) -> None:
    await stage.gate.hold(A, 5)


async def hold_and_release(stage: Stage) -> None:
    await stage.gate.hold(A)
    await asyncio.sleep(1)
    stage.gate.gone(A)
    await stage.gate.release(A)


OPERATIONS = {"hold": hold, "hold and release": hold_and_release}
# No update is refused: `PodStorage.merge` refuses only pods without a name or UID, and `rules/static.py` makes none.
EVENTS: dict[str, Event[Stage]] = {
    "the pod is held": lambda stage: stage.gate.hold(A),
    "the pod is released": lambda stage: stage.gate.release(A),
    "the pod is gone": lambda stage: stage.gate.gone(A),
    "another pod is held": lambda stage: stage.gate.hold(B),
    "the manifest goes": lambda stage: stage.files.write(),
    "the manifest goes and comes back": Stage.replace_manifest,
    "the gate closes": lambda stage: stage.gate.close(),
    "the clock jumps": lambda stage: stage.clock.jump(3600),
}


def operation(name: str, op: Op) -> Operation[Stage]:
    return Operation(
        stage=lambda calls: stage(calls, op),
        run=OPERATIONS[name],
        state=Stage.state,
        check=Stage.check,
        afterwards=all_come_back,
        settle_seconds=10,
    )


@pytest.mark.parametrize("op", [Op.SET, Op.ADD])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_event_at_every_await(name: str, op: Op) -> None:
    interleave(operation(name, op), EVENTS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_call_fails_once(name: str) -> None:
    fail_each_call(replace(operation(name, Op.SET), afterwards=None))
