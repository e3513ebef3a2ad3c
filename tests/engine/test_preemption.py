"""Preemption: a critical pod is held until all its victims are dead, and let in whatever became of them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from podkeeper.engine.preemption import Preemption
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.admit import Preempt
from podkeeper.rules.worker.updates import StatusFunction
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in
from tests.engine.small_node import pod, uid

T = TypeVar("T")
WEB, DNS, FIRST, SECOND = (pod(name) for name in ("web", "dns", "first", "second"))


class House:
    """A preemption, and workers whose kills take a while or fail."""

    def __init__(self) -> None:
        self.seconds: dict[PodUID, float] = {}
        self.failures: dict[PodUID, Exception] = {}
        self.killed: list[tuple[float, PodUID]] = []
        self.let_in: list[tuple[float, PodUID, frozenset[PodUID]]] = []  # when, which, and what is held at that moment
        self.failing: set[PodUID] = set()
        self.counted: list[str] = []
        self.events: list[tuple[PodEvent, Pod | PodRecord | None]] = []
        self.record_error: Exception | None = None
        self.told_before_kill = True
        self.orders: list[tuple[bool, PodStatus]] = []  # as an eviction or not, and the last status of a running pod
        self.preemption = Preemption(
            workers=stand_in(PodWorkers, self), record=self.record, clock=VirtualClock(), preempted=self.counted.append
        )

    def record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.events.append((event, about))
        if self.record_error is not None:
            raise self.record_error

    async def kill_pod(self, pod: Pod, *, evict: bool, status_function: StatusFunction) -> None:
        self.orders.append((evict, status_function(PodStatus(phase="Running"))))
        self.told_before_kill &= any(about is pod for _, about in self.events)
        await asyncio.sleep(self.seconds.get(uid(pod), 0))
        if (failure := self.failures.get(uid(pod))) is not None:
            raise failure
        self.killed.append((_now(), uid(pod)))

    def hold(self, pod: Pod, *victims: Pod) -> None:
        self.preemption.hold(pod, Preempt(victims, "cpu"), lambda: self._then(uid(pod)))

    def _then(self, whom: PodUID) -> None:
        self.let_in.append((_now(), whom, frozenset(self.preemption.held())))
        if whom in self.failing:
            raise RuntimeError("a bug")


def _now() -> float:
    return asyncio.get_running_loop().time()


def in_house(scenario: Callable[[House], Awaitable[T]]) -> T:
    async def play() -> T:
        house = House()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(house.preemption.run())
            result = await scenario(house)
            running.cancel()
        return result

    return simulate(play())[0]


def test_a_pod_is_no_longer_held_when_it_is_let_in() -> None:
    """The callback tells the workers, which take nothing about a pod that is held."""

    async def scenario(house: House) -> None:
        house.seconds = {uid(FIRST): 3}
        house.hold(WEB, FIRST)
        assert house.preemption.held() == {uid(WEB)}
        await asyncio.sleep(5)
        assert house.let_in == [(3, uid(WEB), frozenset())]

    in_house(scenario)


@pytest.mark.parametrize("failure", [TryLater("it takes too long"), RuntimeError("a bug")], ids=["late", "a bug"])
def test_a_pod_waits_for_all_its_victims_whatever_becomes_of_one(failure: Exception) -> None:
    async def scenario(house: House) -> None:
        house.seconds = {uid(FIRST): 1, uid(SECOND): 4}
        house.failures = {uid(FIRST): failure}
        house.hold(WEB, FIRST, SECOND)
        await asyncio.sleep(2)
        assert house.preemption.held() == {uid(WEB)}
        await asyncio.sleep(3)
        assert house.killed == [(4, uid(SECOND))]
        assert house.let_in == [(4, uid(WEB), frozenset())]
        assert house.counted == ["cpu"]  # only what was killed counts

    in_house(scenario)


def test_one_pod_that_cannot_go_on_keeps_no_other_out() -> None:
    async def scenario(house: House) -> None:
        house.seconds = {uid(FIRST): 1, uid(SECOND): 1}
        house.failing = {uid(WEB)}
        house.hold(WEB, FIRST)
        await asyncio.sleep(2)
        house.hold(DNS, SECOND)
        await asyncio.sleep(2)
        assert [(at, who) for at, who, _ in house.let_in] == [(1, uid(WEB)), (3, uid(DNS))]
        assert not house.preemption.held()

    in_house(scenario)


def test_a_pod_that_comes_while_another_waits_does_not_wait_for_it() -> None:
    async def scenario(house: House) -> None:
        house.seconds = {uid(FIRST): 30, uid(SECOND): 1}
        house.hold(WEB, FIRST)
        await asyncio.sleep(5)
        house.hold(DNS, SECOND)
        await asyncio.sleep(5)
        assert house.let_in == [(6, uid(DNS), frozenset({uid(WEB)}))]

    in_house(scenario)


def test_a_victim_is_evicted_with_an_event_and_a_status_that_say_why() -> None:
    async def scenario(house: House) -> None:
        house.hold(WEB, FIRST, SECOND)
        await asyncio.sleep(1)
        text = "Preempted in order to admit critical pod"
        assert house.events == [
            (PodEvent(EventType.WARNING, "Preempting", text, uid(victim)), victim) for victim in (FIRST, SECOND)
        ]
        assert [evict for evict, _ in house.orders] == [True, True]
        assert house.told_before_kill
        for _, status in house.orders:
            assert (status.phase, status.reason, status.message) == ("Failed", "Preempting", text)
            assert [each.type for each in status.conditions or ()] == ["DisruptionTarget"]
        assert house.counted == ["cpu", "cpu"]

    in_house(scenario)


def test_pods_that_come_together_are_all_held_and_all_let_in() -> None:
    async def scenario(house: House) -> None:
        house.seconds = {uid(FIRST): 1, uid(SECOND): 2}
        house.hold(WEB, FIRST)
        house.hold(DNS, SECOND)
        assert house.preemption.held() == {uid(WEB), uid(DNS)}
        await asyncio.sleep(3)
        assert house.let_in == [(1, uid(WEB), frozenset({uid(DNS)})), (2, uid(DNS), frozenset())]

    in_house(scenario)


def test_a_pod_without_victims_is_let_in_at_once() -> None:
    async def scenario(house: House) -> None:
        house.hold(WEB)
        await asyncio.sleep(1)
        assert house.let_in == [(0, uid(WEB), frozenset())]

    in_house(scenario)


def test_an_event_that_cannot_be_recorded_keeps_no_pod_out() -> None:
    async def scenario(house: House) -> None:
        house.record_error = RuntimeError("a bug")
        house.hold(WEB, FIRST)
        await asyncio.sleep(1)
        assert house.let_in == [(0, uid(WEB), frozenset())]

    in_house(scenario)
