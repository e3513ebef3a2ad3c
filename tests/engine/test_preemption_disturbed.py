"""Preemption, with an event at every await and a failure of every kill."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from podkeeper.engine.preemption import Preemption
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.rules.admission.admit import Preempt
from podkeeper.rules.worker.updates import StatusFunction
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock
from tests.doubles import stand_in
from tests.engine.loop_harness import pod, uids

DNS, PROXY = pod("dns"), pod("proxy")
ONE, TWO, THREE = pod("one"), pod("two"), pod("three")
KILL_SECONDS = 1.0


class Workers:
    def __init__(self) -> None:
        self.killed: list[str] = []

    async def kill_pod(self, pod: Pod, *, evict: bool, status_function: StatusFunction) -> None:
        assert evict
        assert status_function(PodStatus(phase="Running")).phase == "Failed"
        await asyncio.sleep(KILL_SECONDS)
        self.killed.append(pod.metadata.name or "")


@dataclass
class Setup:
    preemption: Preemption
    workers: Workers
    calls: PortCalls
    started: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def hold(self, pod: Pod, *victims: Pod, fails: bool = False) -> None:
        name, loop = pod.metadata.name or "", asyncio.get_running_loop()
        begun = loop.time()

        def start() -> None:
            if name in self.preemption.held():
                self.wrong.append(f"{name} starts while it is held")
            running = {victim.metadata.name for victim in victims}.difference(self.workers.killed)
            if running and not any(happened.failed for happened in self.calls.log):
                self.wrong.append(f"{name} starts before {running} are dead")
            if loop.time() > begun + KILL_SECONDS:
                self.wrong.append(f"{name} waits for the victims of other pods")
            self.started.append(name)
            if fails:
                raise RuntimeError("a bug")

        self.preemption.hold(pod, Preempt(victims, "cpu"), start)
        if victims:
            loop.call_later(KILL_SECONDS / 2, self._expect_held, PodUID(name))

    def _expect_held(self, uid: PodUID) -> None:
        if uid not in self.preemption.held() and not any(happened.failed for happened in self.calls.log):
            self.wrong.append(f"{uid} is not held until its victims are dead")

    def started_pods(self) -> object:
        return sorted(self.started), self.preemption.held()

    def is_sound(self) -> None:
        assert not self.wrong

    async def another_pod_can_be_held(self) -> None:
        self.hold(pod("late"), pod("last"))
        await asyncio.sleep(2)
        assert self.started[-1] == "late"
        assert self.preemption.held() == uids()


@asynccontextmanager
async def setup(calls: PortCalls) -> AsyncIterator[Setup]:
    workers = Workers()
    preemption = Preemption(
        workers=calls.watch("workers", stand_in(PodWorkers, workers), {"kill_pod": (TryLater,)}),
        record_event=lambda event, about: None,
        clock=VirtualClock(),
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(preemption.run())
        yield Setup(preemption, workers, calls)
        running.cancel()


async def make_room(setup: Setup) -> None:
    setup.hold(DNS, ONE, TWO)
    await asyncio.sleep(2)


MAKING_ROOM = OperationTest(
    setup=setup,
    run=make_room,
    state=Setup.started_pods,
    check=Setup.is_sound,
    afterwards=Setup.another_pod_can_be_held,
    settle_seconds=3,
)
EVENTS: dict[str, Event[Setup]] = {
    "another pod needs room": lambda setup: setup.hold(PROXY, THREE),
    "another pod has the same victim": lambda setup: setup.hold(PROXY, TWO),
    "another pod needs no victim": lambda setup: setup.hold(PROXY),
    "another pod cannot start": lambda setup: setup.hold(PROXY, THREE, fails=True),
}


def test_every_event_while_victims_are_killed() -> None:
    # The handlers never hold a pod twice, so the operation is not begun again.
    interleave(MAKING_ROOM, EVENTS, cancel=False, in_call_order=True)


def test_a_pod_starts_even_if_a_kill_failed() -> None:
    fail_each_call(MAKING_ROOM)
