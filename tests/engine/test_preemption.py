"""Preemption: a critical pod is held until all its victims are dead, and let in whatever became of them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from podkeeper.engine.preemption import Preemption
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.admit import Preempt
from podkeeper.rules.worker.updates import StatusFunction
from podkeeper.testing.virtual_time import VirtualClock, simulate
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
        self.preemption = Preemption(
            workers=self, record=lambda event, about: None, clock=VirtualClock(), preempted=self.counted.append
        )

    async def kill_pod(self, pod: Pod, *, evict: bool, status_function: StatusFunction) -> None:
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
