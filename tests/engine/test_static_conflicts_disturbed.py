"""Stopping previous copies of static pods, with an event at every await and a failure of every call."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from podkeeper.engine.manager import PodManager
from podkeeper.engine.static_conflicts import StaticConflicts
from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.messages import FILE_SOURCE, PodUID
from podkeeper.model.runtime import PodRecord, RecordState
from podkeeper.testing import build
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from tests.engine.small_node import pod
from tests.engine.test_pleg import RUNNING, Runtime

STATIC = pod("web", source=FILE_SOURCE)
COPIES = PodUID("old"), PodUID("older")
DESIRED = PodUID("desired")  # has the same name, and is kept


@dataclass
class Harness:
    runtime: Runtime
    static_conflicts: StaticConflicts = field(init=False)

    async def kill(self, record: PodRecord, grace_seconds: int) -> None:
        self.runtime.pods.pop(PodUID(record.uid), None)

    async def resolve(self) -> None:
        await self.static_conflicts.resolve(STATIC)
        assert self.running() == {DESIRED}

    def running(self) -> set[PodUID]:
        return {uid for uid, containers in self.runtime.pods.items() if RecordState.RUNNING in containers.values()}


class Copies(Runtime):
    """All pods have the name of the static pod."""

    def record(self, uid: PodUID) -> PodRecord:
        found = super().record(uid)
        return PodRecord(uid=uid, name="web", namespace="ns", containers=found.containers)


@asynccontextmanager
async def set_up(calls: PortCalls) -> AsyncIterator[Harness]:
    runtime = Copies()
    for uid in (*COPIES, DESIRED):
        runtime.put(uid, RUNNING)
    made = Harness(runtime)
    pods = PodManager()
    pods.update(build.pod("desired", namespace="ns", uid=DESIRED))
    made.static_conflicts = StaticConflicts(
        runtime=calls.watch("runtime", runtime),
        kill=calls.watch("stopper", made, {"kill": (RuntimeUnavailable,)}).kill,
        pods=pods,
    )
    yield made


def exit_by_itself(harness: Harness) -> None:
    harness.runtime.pods.pop(COPIES[0], None)


EVENTS: dict[str, Event[Harness]] = {
    "a copy exits by itself": exit_by_itself,
    "the same call": Harness.resolve,
}


def test_every_event_at_every_await() -> None:
    interleave(OperationTest(setup=set_up, run=Harness.resolve, state=Harness.running), EVENTS)


def test_every_call_fails_once() -> None:
    fail_each_call(OperationTest(setup=set_up, run=Harness.resolve, state=Harness.running))
