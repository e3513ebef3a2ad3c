"""Probe workers, with an event at every await and a failure of every execution."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import ProbeKind, ProbeResult, ProbeUpdate
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from tests.engine.probe_house import (
    FAILURE,
    ILL,
    READINESS,
    SUCCESS,
    WELL,
    World,
    container,
    pod,
    probe,
    uid,
)

WEB = pod(container(readiness=probe(10, 1), liveness=probe(10, 1)))
DB = pod(container("db", readiness=probe(10, 1)), name="db")
EXECUTION_SECONDS = 0.3
PERIODS_SECONDS = 21.0
"""Long enough for two ticks of each worker: one sees what changed, one is quiet."""


class Witness(World):
    """Notes what is wrong at the moment when something is told."""

    def __init__(self, *, slots: int, lease_seconds: float, calls: PortCalls) -> None:
        super().__init__(slots=slots, lease_seconds=lease_seconds, calls=calls)
        # An execution that outlives its lease goes on beside the next one.
        self.limit = slots if lease_seconds > EXECUTION_SECONDS else 2 * slots
        self.wrong: list[str] = []

    def tell(self, update: ProbeUpdate) -> None:
        super().tell(update)
        view = self.probes.view(update.uid)
        if update.kind is READINESS and view.readiness.get(update.container_id) is not update.result:
            self.wrong.append(f"{update} is not what the view shows")
        (found,) = self.statuses[update.uid].container_statuses or (None,)
        if found is None or found.container_id != update.container_id:
            self.wrong.append(f"{update} is about a container that is gone")
        elif found.state.running is None and update.result is SUCCESS:
            self.wrong.append(f"{update} is about a container that has exited")

    def probed(self, pod: Pod, container: str, kind: ProbeKind, result: ProbeResult, seconds: float) -> None:
        super().probed(pod, container, kind, result, seconds)
        if (container, kind) not in self.probes.view(uid(pod)).workers:
            self.wrong.append(f"the stopped {kind} probe of {container} was counted")


@dataclass
class Stage:
    world: Witness

    def add(self) -> None:
        """Add pod db first: those of pod web then wait for the slot."""
        for each, name in ((DB, "db-1"), (WEB, "web-1")):
            self.world.runs(each, name)
            self.world.probes.add_pod(each)

    def wake(self) -> None:
        self.world.probes.wake(uid(WEB), ["web"])

    def replace_container(self) -> None:
        self.world.runs(WEB, "web-2")

    def come_back(self) -> None:
        """The pod ends, and its UID starts again."""
        self.world.probes.remove_pod(uid(WEB))
        self.world.runs(WEB, "web-2")
        self.world.probes.add_pod(WEB)

    def fail(self) -> None:
        self.world.report = ILL

    def end(self) -> None:
        """The pod has ended, and its worker publishes that."""
        self.world.statuses[uid(WEB)] = PodStatus(phase="Succeeded")

    def results(self) -> object:
        probes = self.world.probes
        views = {each: probes.view(uid(each)) for each in (WEB, DB)}
        return [
            (view.readiness, view.startup, view.workers, probes.liveness(uid(each))) for each, view in views.items()
        ]

    def is_sound(self) -> None:
        world = self.world
        assert not world.wrong
        assert world.most_of_one <= 1
        assert world.most_at_a_time <= world.limit
        assert world.under_way.total() == 0
        told = {container_id: result for _, kind, container_id, result in world.told if kind is READINESS}
        for each in (WEB, DB):
            for container_id, result in world.probes.view(uid(each)).readiness.items():
                assert told.get(container_id, FAILURE) is result  # a container that begins unready is no news

    async def every_worker_goes_on(self) -> None:
        """No worker has lost its timer, and no slot is lost."""
        world = self.world
        world.report = WELL
        for each, name in ((WEB, "web-9"), (DB, "db-9")):
            world.runs(each, name)
        before = len(world.executed)
        self.wake()
        await asyncio.sleep(1)
        woken = {(name, kind) for _, name, kind in world.executed[before:]}
        assert (("web", READINESS) in woken) == (("web", READINESS) in world.probes.view(uid(WEB)).workers)
        await asyncio.sleep(PERIODS_SECONDS)
        workers = world.probes.view(uid(WEB)).workers | world.probes.view(uid(DB)).workers
        assert {(name, kind) for _, name, kind in world.executed[before:]} == workers
        assert len(world.probes) == len(workers)
        results = {**world.probes.view(uid(WEB)).readiness, **world.probes.view(uid(DB)).readiness}
        assert results == {f"fake://{name}-9": SUCCESS for name, kind in workers if kind is READINESS}


Stages = Callable[[PortCalls], AbstractAsyncContextManager[Stage]]


def stage(slots: int, lease_seconds: float, *, added: bool) -> Stages:
    """Few slots for three workers. `added`: two pods are probed already."""

    @asynccontextmanager
    async def made(calls: PortCalls) -> AsyncIterator[Stage]:
        world = Witness(slots=slots, lease_seconds=lease_seconds, calls=calls)
        world.takes = lambda _: EXECUTION_SECONDS
        async with asyncio.TaskGroup() as group:
            running = group.create_task(world.probes.run())
            await asyncio.sleep(3600)  # a young agent would spread its first ticks
            it = Stage(world)
            if added:
                it.add()
                await asyncio.sleep(2)
            yield it
            running.cancel()

    return made


async def begin(stage: Stage) -> None:
    stage.add()
    await asyncio.sleep(1)


async def probe_at_once(stage: Stage) -> None:
    stage.wake()
    await asyncio.sleep(1)


OPERATIONS = {
    name: Operation(
        stage=on,
        run=run,
        state=Stage.results,
        check=Stage.is_sound,
        afterwards=Stage.every_worker_goes_on,
        settle_seconds=PERIODS_SECONDS,
    )
    for name, on, run in (
        ("first ticks", stage(1, 60, added=False), begin),
        ("first ticks with short leases", stage(1, 0.2, added=False), begin),
        ("at once", stage(2, 60, added=True), probe_at_once),
    )
}
EVENTS: dict[str, Event[Stage]] = {
    "a wake-up": Stage.wake,
    "the pod is added again": lambda stage: stage.world.probes.add_pod(replace(WEB)),
    "the container is replaced": Stage.replace_container,
    "the container exits": lambda stage: stage.world.exits(WEB, "web-1", 1),
    "the containers become ill": Stage.fail,
    "the pod ends": Stage.end,
    "the pod terminates": lambda stage: stage.world.probes.stop_liveness_and_startup(WEB),
    "the pod is removed": lambda stage: stage.world.probes.keep_only([uid(DB)]),
    "the pod comes back": Stage.come_back,
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_every_event_while_probes_are_executed(operation: Operation[Stage]) -> None:
    # There is nothing to cancel: executions belong to `run`, which is cancelled only when the agent ends.
    interleave(operation, EVENTS, in_call_order=True, cancel=False)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_every_execution_fails_once(operation: Operation[Stage]) -> None:
    fail_each_call(operation)
