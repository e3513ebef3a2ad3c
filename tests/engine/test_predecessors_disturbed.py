"""Ending former copies of static pods, with an event at every await and a failure of every call."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from podkeeper.engine.predecessors import Predecessors
from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.messages import FILE_SOURCE, PodUID
from podkeeper.model.runtime import ContainerState, PodRecord
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from tests.engine.small_node import pod
from tests.engine.test_pleg import RUNNING, Runtime

STATIC = pod("web", source=FILE_SOURCE)
COPIES = PodUID("old"), PodUID("older")
DESIRED = PodUID("desired")  # of the same name, and wanted: it is left alone


@dataclass
class Stage:
    runtime: Runtime
    predecessors: Predecessors = field(init=False)

    async def kill(self, record: PodRecord, grace_seconds: int) -> None:
        self.runtime.pods.pop(PodUID(record.uid), None)

    async def end(self) -> None:
        await self.predecessors.end(STATIC)
        assert self.running() == {DESIRED}

    def running(self) -> set[PodUID]:
        return {uid for uid, containers in self.runtime.pods.items() if ContainerState.RUNNING in containers.values()}


class Copies(Runtime):
    """All pods have the static pod's name."""

    def record(self, uid: PodUID) -> PodRecord:
        found = super().record(uid)
        return PodRecord(uid=uid, name="web", namespace="ns", containers=found.containers)


@asynccontextmanager
async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
    runtime = Copies()
    for uid in (*COPIES, DESIRED):
        runtime.put(uid, RUNNING)
    made = Stage(runtime)
    made.predecessors = Predecessors(
        runtime=calls.watch("runtime", runtime),
        kill=calls.watch("stopper", made, {"kill": (RuntimeUnavailable,)}).kill,
        is_desired=DESIRED.__eq__,
    )
    yield made


def end_by_itself(stage: Stage) -> None:
    stage.runtime.pods.pop(COPIES[0], None)


EVENTS: dict[str, Event[Stage]] = {
    "a copy ends by itself": end_by_itself,
    "the same call": Stage.end,
}


def test_every_event_at_every_await() -> None:
    interleave(Operation(stage=stage, run=Stage.end, state=Stage.running), EVENTS)


def test_every_call_fails_once() -> None:
    fail_each_call(Operation(stage=stage, run=Stage.end, state=Stage.running))
