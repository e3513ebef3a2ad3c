"""The sync loop with its handlers, admission and preemption, with an event at every await and a failure at every call.

The handlers await nothing. Events reach them between two messages, and while a pod is held.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import (
    API_SOURCE,
    FILE_SOURCE,
    LifecycleEvent,
    LifecycleEventType,
    Op,
    PodUID,
)
from podkeeper.testing.build import container
from podkeeper.testing.failures import check_backoff_resets, fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from tests.engine.loop_harness import LoopHarness, pod

OLD = pod("old", container(requests={"cpu": "4"}))
CRITICAL = pod("critical", container(requests={"cpu": "3"}), source=FILE_SOURCE)
"""Static pods are critical, so pod old is preempted."""
UID = PodUID("critical")


@dataclass
class Harness:
    node: LoopHarness

    def send_update(self, op: Op, *pods: Pod, source: str = API_SOURCE) -> None:
        self.node.send_update(op, *pods, source=source)

    def of_critical(self, op: Op) -> None:
        self.node.send_update(op, CRITICAL, source=FILE_SOURCE)

    def come_back(self) -> None:
        """Remove the manifest and add it again."""
        self.of_critical(Op.REMOVE)
        self.of_critical(Op.ADD)

    def died(self) -> None:
        self.node.inbox.put(LifecycleEvent(UID, LifecycleEventType.CONTAINER_DIED, "c1"))

    def become_unwell(self) -> None:
        """Make the runtime unready for longer than the period of the health check."""
        self.node.runtime.ready = False
        asyncio.get_running_loop().call_later(7, setattr, self.node.runtime, "ready", True)

    def what_runs(self) -> object:
        return sorted(self.node.runtime.running), self.node.preemption.held()

    def what_runs_since(self) -> object:
        """The same, and when the critical pod started. Housekeeping would also start it, but later."""
        return self.what_runs(), self.node.syncer.did("sync", UID)[:1]

    def is_sound(self) -> None:
        """Every desired pod is counted, and those that run have room."""
        desired = {each.metadata.uid for each in self.node.pods.pods()}
        assert not {"critical", "greedy"} <= self.node.runtime.running
        assert self.node.runtime.running <= desired
        assert self.node.loop.health() is None

    async def there_is_no_room_for_another_large_pod(self) -> None:
        """A running pod is counted, so another one does not fit."""
        running = set(self.node.runtime.running)
        self.send_update(Op.ADD, pod("last", container(requests={"cpu": "3"})))
        await asyncio.sleep(0.1)
        assert ("last" in self.node.runtime.running) == running.isdisjoint({"critical", "greedy", "old"})


@asynccontextmanager
async def set_up(calls: PortCalls) -> AsyncIterator[Harness]:
    harness = Harness(LoopHarness(sources=(API_SOURCE, FILE_SOURCE), calls=calls))
    harness.node.syncer.stop_seconds["old"] = 1
    async with harness.node.running():
        harness.send_update(Op.ADD, OLD)
        harness.send_update(Op.ADD, source=FILE_SOURCE)
        await asyncio.sleep(2.1)
        yield harness


async def add_critical(harness: Harness) -> None:
    harness.of_critical(Op.ADD)
    await asyncio.sleep(1.5)


ADDING = OperationTest(
    setup=set_up,
    run=add_critical,
    state=Harness.what_runs,
    check=Harness.is_sound,
    afterwards=Harness.there_is_no_room_for_another_large_pod,
    settle_seconds=15,
)
EVENTS: dict[str, Event[Harness]] = {
    "the pod is updated": lambda harness: harness.of_critical(Op.UPDATE),
    "a container dies": Harness.died,
    "work is due": lambda harness: harness.node.inbox.enqueue(UID, 0),
    "a static pod has ended": lambda harness: harness.node.inbox.static_pod_ended("critical_ns"),
    "housekeeping": lambda harness: harness.node.housekeeping.request(),
    "a mirror comes": lambda harness: harness.send_update(Op.ADD, pod("critical", uid="mirror", mirror="hash")),
    "another pod comes": lambda harness: harness.send_update(Op.ADD, pod("small")),
}
LATE_EVENTS: dict[str, Event[Harness]] = {
    "the pod is removed": lambda harness: harness.of_critical(Op.REMOVE),
    "the pod comes back": Harness.come_back,
    "the victim is removed": lambda harness: harness.send_update(Op.REMOVE, OLD),
    "a large pod comes": lambda harness: harness.send_update(Op.ADD, pod("greedy", container(requests={"cpu": "3"}))),
    "the runtime is not ready": Harness.become_unwell,
}


def test_no_event_delays_a_critical_pod() -> None:
    soon = dataclasses.replace(ADDING, state=Harness.what_runs_since, settle_seconds=0.2)
    interleave(soon, EVENTS, in_call_order=True, cancel=False)


def test_every_event_while_a_critical_pod_is_held() -> None:
    interleave(ADDING, LATE_EVENTS, in_call_order=True, cancel=False)


async def sync_in_time(harness: Harness) -> None:
    harness.node.inbox.enqueue(PodUID("old"), 0.5)
    await asyncio.sleep(1)


WORK: dict[str, Event[Harness]] = {
    "work is due earlier": lambda harness: harness.node.inbox.enqueue(PodUID("small"), 0.1),
    "work is due later": lambda harness: harness.node.inbox.enqueue(PodUID("small"), 0.9),
    "work is due at once": lambda harness: harness.node.inbox.enqueue(PodUID("small"), 0),
    "a pod with a deadline comes": lambda harness: harness.send_update(Op.ADD, pod("job", deadline=1)),
}


def test_no_event_delays_work_that_is_due() -> None:
    """Every enqueued pod is synced, and the pod of the operation in time."""

    @asynccontextmanager
    async def idle(calls: PortCalls) -> AsyncIterator[Harness]:
        harness = Harness(LoopHarness(calls=calls))
        async with harness.node.running():
            harness.send_update(Op.ADD, OLD, pod("small"))
            await asyncio.sleep(2.1)
            harness.node.syncer.log.clear()
            yield harness

    def synced(harness: Harness) -> object:
        return len(harness.node.syncer.did("sync", "small"))

    def in_time(harness: Harness) -> None:
        assert harness.node.syncer.did("sync", "old") == pytest.approx([2.6], abs=0.01)

    syncing = OperationTest(setup=idle, run=sync_in_time, state=synced, check=in_time, settle_seconds=2)
    interleave(syncing, WORK, in_call_order=True, cancel=False)


def test_every_call_fails_once() -> None:
    fail_each_call(dataclasses.replace(ADDING, settle_seconds=4))


def test_the_pause_between_health_checks_doubles_and_a_success_resets_it() -> None:
    @asynccontextmanager
    async def empty(calls: PortCalls) -> AsyncIterator[Harness]:
        harness = Harness(LoopHarness(calls=calls))
        async with harness.node.running():
            yield harness

    waiting = OperationTest(setup=empty, run=lambda _: asyncio.sleep(3), state=lambda _: None)
    pauses = check_backoff_resets(waiting, "runtime", "health", RuntimeUnavailable, lambda _: asyncio.sleep(6))
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8])
