"""Preemption: a critical pod is held until all kills of its victims have ended, even if one failed."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import TypeVar

import pytest

from podkeeper.engine.observer import Observer
from podkeeper.engine.preemption import Preemption
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.admission.admit import Preempt
from podkeeper.rules.worker.updates import StatusFunction
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in
from tests.engine.small_node import pod

T = TypeVar("T")
WEB, DNS, FIRST, SECOND = (pod(name) for name in ("web", "dns", "first", "second"))


class Harness:
    """A preemption, and workers whose kills take time or fail."""

    def __init__(self) -> None:
        self.seconds: dict[PodUID, float] = {}
        self.failures: dict[PodUID, Exception] = {}
        self.killed: list[tuple[float, PodUID]] = []
        self.admitted: list[tuple[float, PodUID, frozenset[PodUID]]] = []  # time, pod, pods held at that time
        self.failing: set[PodUID] = set()
        self.counted: list[str] = []
        self.events: list[tuple[PodEvent, Pod | PodRecord | None]] = []
        self.record_error: Exception | None = None
        self.recorded_before_kill = True
        self.orders: list[tuple[bool, PodStatus]] = []  # `evict`, and the final status
        self.preemption = Preemption(
            workers=stand_in(PodWorkers, self),
            record_event=self.record,
            clock=VirtualClock(),
            observer=stand_in(Observer, SimpleNamespace(preempted=self.counted.append)),
        )

    def record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.events.append((event, about))
        if self.record_error is not None:
            raise self.record_error

    async def kill_pod(self, pod: Pod, *, evict: bool, status_function: StatusFunction) -> None:
        self.orders.append((evict, status_function(PodStatus(phase="Running"))))
        self.recorded_before_kill &= any(about is pod for _, about in self.events)
        await asyncio.sleep(self.seconds.get(uid_of(pod), 0))
        if (failure := self.failures.get(uid_of(pod))) is not None:
            raise failure
        self.killed.append((_now(), uid_of(pod)))

    def hold(self, pod: Pod, *victims: Pod) -> None:
        self.preemption.hold(pod, Preempt(victims, "cpu"), lambda: self._then(uid_of(pod)))

    def _then(self, uid: PodUID) -> None:
        self.admitted.append((_now(), uid, frozenset(self.preemption.held())))
        if uid in self.failing:
            raise RuntimeError("a bug")


def _now() -> float:
    return asyncio.get_running_loop().time()


def run_scenario(scenario: Callable[[Harness], Awaitable[T]]) -> T:
    async def main() -> T:
        harness = Harness()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(harness.preemption.run())
            result = await scenario(harness)
            running.cancel()
        return result

    return simulate(main())[0]


def test_a_pod_is_no_longer_held_when_it_is_admitted() -> None:
    """The callback sends the pod to the workers, and held pods must not be sent."""

    async def scenario(harness: Harness) -> None:
        harness.seconds = {uid_of(FIRST): 3}
        harness.hold(WEB, FIRST)
        assert harness.preemption.held() == {uid_of(WEB)}
        await asyncio.sleep(5)
        assert harness.admitted == [(3, uid_of(WEB), frozenset())]

    run_scenario(scenario)


@pytest.mark.parametrize("failure", [TryLater("it takes too long"), RuntimeError("a bug")], ids=["late", "a bug"])
def test_a_pod_waits_for_all_its_victims_even_if_one_kill_fails(failure: Exception) -> None:
    async def scenario(harness: Harness) -> None:
        harness.seconds = {uid_of(FIRST): 1, uid_of(SECOND): 4}
        harness.failures = {uid_of(FIRST): failure}
        harness.hold(WEB, FIRST, SECOND)
        await asyncio.sleep(2)
        assert harness.preemption.held() == {uid_of(WEB)}
        await asyncio.sleep(3)
        assert harness.killed == [(4, uid_of(SECOND))]
        assert harness.admitted == [(4, uid_of(WEB), frozenset())]
        assert harness.counted == ["cpu"]  # failed kills are not counted

    run_scenario(scenario)


def test_a_failed_callback_does_not_block_other_pods() -> None:
    async def scenario(harness: Harness) -> None:
        harness.seconds = {uid_of(FIRST): 1, uid_of(SECOND): 1}
        harness.failing = {uid_of(WEB)}
        harness.hold(WEB, FIRST)
        await asyncio.sleep(2)
        harness.hold(DNS, SECOND)
        await asyncio.sleep(2)
        assert [(at, admitted) for at, admitted, _ in harness.admitted] == [(1, uid_of(WEB)), (3, uid_of(DNS))]
        assert not harness.preemption.held()

    run_scenario(scenario)


def test_a_pod_does_not_wait_for_the_victims_of_another_pod() -> None:
    async def scenario(harness: Harness) -> None:
        harness.seconds = {uid_of(FIRST): 30, uid_of(SECOND): 1}
        harness.hold(WEB, FIRST)
        await asyncio.sleep(5)
        harness.hold(DNS, SECOND)
        await asyncio.sleep(5)
        assert harness.admitted == [(6, uid_of(DNS), frozenset({uid_of(WEB)}))]

    run_scenario(scenario)


def test_a_victim_is_evicted_with_an_event_and_a_status() -> None:
    async def scenario(harness: Harness) -> None:
        harness.hold(WEB, FIRST, SECOND)
        await asyncio.sleep(1)
        text = "Preempted in order to admit critical pod"
        assert harness.events == [
            (PodEvent(EventType.WARNING, "Preempting", text, uid_of(victim)), victim) for victim in (FIRST, SECOND)
        ]
        assert [evict for evict, _ in harness.orders] == [True, True]
        assert harness.recorded_before_kill
        for _, status in harness.orders:
            assert (status.phase, status.reason, status.message) == ("Failed", "Preempting", text)
            assert [each.type for each in status.conditions or ()] == ["DisruptionTarget"]
        assert harness.counted == ["cpu", "cpu"]

    run_scenario(scenario)


def test_pods_held_at_the_same_time_are_all_admitted() -> None:
    async def scenario(harness: Harness) -> None:
        harness.seconds = {uid_of(FIRST): 1, uid_of(SECOND): 2}
        harness.hold(WEB, FIRST)
        harness.hold(DNS, SECOND)
        assert harness.preemption.held() == {uid_of(WEB), uid_of(DNS)}
        await asyncio.sleep(3)
        assert harness.admitted == [(1, uid_of(WEB), frozenset({uid_of(DNS)})), (2, uid_of(DNS), frozenset())]

    run_scenario(scenario)


def test_a_pod_without_victims_is_admitted_at_once() -> None:
    async def scenario(harness: Harness) -> None:
        harness.hold(WEB)
        await asyncio.sleep(1)
        assert harness.admitted == [(0, uid_of(WEB), frozenset())]

    run_scenario(scenario)


def test_a_pod_is_admitted_even_if_an_event_cannot_be_recorded() -> None:
    async def scenario(harness: Harness) -> None:
        harness.record_error = RuntimeError("a bug")
        harness.hold(WEB, FIRST)
        await asyncio.sleep(1)
        assert harness.admitted == [(0, uid_of(WEB), frozenset())]

    run_scenario(scenario)
