"""Orphans: what the API answers decides, and no answer changes nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from podkeeper.engine.orphans import ASK_AGAIN_SECONDS, CALLS_AT_A_TIME, OrphanCheck
from podkeeper.model.errors import ApiUnavailable, NotFound
from podkeeper.model.k8s.core import Pod
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.api import K
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.violations import violation


class Node:
    """An API and a runtime's pods, as housekeeping sees them in each round."""

    def __init__(self) -> None:
        clock = VirtualClock()
        self.api = MemoryApi(clock)
        self.check = OrphanCheck(api=self.api, clock=clock)
        self.hurried = 0

    def records(self, *names: str) -> list[PodRecord]:
        return [PodRecord(uid=f"uid-{name}", name=name, namespace="default") for name in names]

    async def rounds(self, *names: str, seconds: float = 1.0) -> set[str]:
        """Ask every two seconds, as housekeeping does. Returns the names of the confirmed orphans."""
        async with asyncio.TaskGroup() as group:
            for _ in range(int(seconds / 2) + 1):
                doubtful = [each for each in self.records(*names) if PodUID(each.uid) not in self.check.confirmed]
                self.check.ask(doubtful, group, self._hurry)
                await asyncio.sleep(2)
        return {uid.removeprefix("uid-") for uid in self.check.confirmed}

    def _hurry(self) -> None:
        self.hurried += 1

    def put(self, name: str, uid: str = "") -> None:
        self.api.put(Pod(metadata=ObjectMeta(name=name, namespace="default", uid=uid or f"uid-{name}")))

    @property
    def gets(self) -> int:
        return sum(1 for call in self.api.ledger if call.operation == "get")


def play(story: Callable[[Node], Awaitable[None]]) -> None:
    async def played() -> None:
        await story(Node())

    simulate(played())


def test_a_pod_that_the_api_does_not_have_is_confirmed_and_one_that_it_has_is_not() -> None:
    async def story(node: Node) -> None:
        node.put("wanted")
        assert await node.rounds("wanted", "gone") == {"gone"}
        assert node.hurried == 1
        assert node.check.is_in_doubt(PodUID("uid-wanted"))
        assert not node.check.is_in_doubt(PodUID("uid-gone"))

    play(story)


def test_a_pod_whose_name_belongs_to_a_successor_is_confirmed() -> None:
    async def story(node: Node) -> None:
        node.put("web", uid="uid-of-the-successor")
        assert await node.rounds("web") == {"web"}

    play(story)


def test_while_the_api_does_not_answer_nothing_is_confirmed() -> None:
    async def story(node: Node) -> None:
        node.api.go_down()
        assert await node.rounds("gone", seconds=60) == set()
        node.api.come_up()
        assert await node.rounds("gone") == {"gone"}

    play(story)


def test_a_call_that_hangs_is_given_up_and_repeated() -> None:
    async def story(node: Node) -> None:
        node.api.faults.hang("get", "gone", seconds=1000)
        assert await node.rounds("gone", "other") == {"other"}
        assert await node.rounds("gone", seconds=12) == {"gone", "other"}

    play(story)


def test_a_pod_that_the_api_has_is_asked_about_again_only_now_and_then() -> None:
    async def story(node: Node) -> None:
        node.put("wanted")
        await node.rounds("wanted", seconds=58)
        assert 58 / ASK_AGAIN_SECONDS - 1 <= node.gets <= 58 / ASK_AGAIN_SECONDS + 1

    play(story)


def test_a_thousand_orphans_are_asked_about_a_few_at_a_time() -> None:
    async def story(node: Node) -> None:
        node.api.go_down()
        await node.rounds(*map(str, range(1000)))
        assert node.gets == CALLS_AT_A_TIME

    play(story)


def test_answers_about_pods_that_the_runtime_does_not_have_any_more_are_dropped() -> None:
    async def story(node: Node) -> None:
        await node.rounds("gone")
        node.check.keep_only(())
        assert not node.check.confirmed

    play(story)


class Api:
    """Has no pod but those it is given, and answers when it is told to."""

    def __init__(self) -> None:
        self.has: dict[str, str] = {}  # UIDs by name
        self.asked: list[tuple[float, str, str]] = []
        self.seconds = 0.0
        self.error: Exception | None = None

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        if kind is not Pod:
            raise violation(f"asked for a {kind}")
        self.asked.append((asyncio.get_running_loop().time(), namespace, name))
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        if name not in self.has:
            raise NotFound(name)
        return cast("K", Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid=self.has[name])))


class Asking:
    """A check over such an API."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.api = Api()
        self.check = OrphanCheck(api=self.api, clock=VirtualClock())
        self.hurried = 0
        self._group = group

    async def round(self, *names: str, seconds: float = 0.0) -> list[float]:
        """Make one round, and wait. Returns when the API was asked since the last round."""
        before = len(self.api.asked)
        records = [PodRecord(uid=f"uid-{name}", name=name, namespace="ns") for name in names]
        self.check.ask(records, self._group, self._hurry)
        await asyncio.sleep(seconds)
        return [at for at, _, _ in self.api.asked[before:]]

    def _hurry(self) -> None:
        self.hurried += 1


def asking(story: Callable[[Asking], Awaitable[None]]) -> None:
    async def played() -> None:
        async with asyncio.TaskGroup() as group:
            await story(Asking(group))

    simulate(played())


def test_the_api_is_asked_by_name_and_namespace() -> None:
    async def story(it: Asking) -> None:
        await it.round("web", seconds=1)
        assert it.api.asked == [(0.0, "ns", "web")]
        assert (it.check.confirmed, it.hurried) == ({PodUID("uid-web")}, 1)

    asking(story)


def test_a_pod_that_the_api_has_is_asked_about_again_after_ten_seconds() -> None:
    async def story(it: Asking) -> None:
        it.api.has = {"web": "uid-web"}
        seen = [await it.round("web", seconds=seconds) for seconds in (9.75, 0.25, 1, 1)]
        assert seen == [[0.0], [], [10.0], []]
        it.check.keep_only([PodUID("uid-web")])
        assert await it.round("web", seconds=1) == []
        it.check.keep_only([])
        assert await it.round("web", seconds=1) == [13.0]
        assert it.hurried == 0

    asking(story)


def test_an_answer_may_take_ten_seconds() -> None:
    async def story(it: Asking) -> None:
        it.api.seconds = 9.9
        await it.round("quick", seconds=20)
        it.api.seconds = 10.1
        assert await it.round("slow", seconds=5) == [20.0]
        assert await it.round("slow", seconds=15) == []  # one call at a time
        assert it.check.confirmed == {PodUID("uid-quick")}
        assert await it.round("slow", seconds=20) == [40.0]

    asking(story)


def test_no_more_than_16_calls_go_on_at_a_time_and_the_others_follow() -> None:
    async def story(it: Asking) -> None:
        it.api.seconds = 5.0
        names = [str(number) for number in range(20)]
        assert len(await it.round(*names, seconds=1)) == 16
        assert await it.round(*names, seconds=5) == []
        assert all(it.check.is_in_doubt(PodUID(f"uid-{name}")) for name in names[16:])
        rest = [name for name in names if PodUID(f"uid-{name}") not in it.check.confirmed]
        assert rest == names[16:]
        assert len(await it.round(*rest, seconds=6)) == 4
        assert len(it.check.confirmed) == 20
        assert not it.check.is_in_doubt(PodUID("uid-19"))

    asking(story)


def test_a_pod_that_is_not_asked_about_any_more_is_in_no_doubt() -> None:
    async def story(it: Asking) -> None:
        it.api.has = {"web": "uid-web"}
        await it.round("web", seconds=1)
        assert it.check.is_in_doubt(PodUID("uid-web"))
        await it.round(seconds=1)
        assert not it.check.is_in_doubt(PodUID("uid-web"))

    asking(story)


@pytest.mark.parametrize("error", [ApiUnavailable("down"), ZeroDivisionError()], ids=["expected", "unexpected"])
def test_a_call_that_fails_is_repeated_in_the_next_round(error: Exception) -> None:
    async def story(it: Asking) -> None:
        it.api.error = error
        assert [await it.round("web", seconds=2) for _ in range(2)] == [[0.0], [2.0]]
        assert (it.check.confirmed, it.hurried) == (set(), 0)

    asking(story)


def test_an_api_that_cannot_be_asked_is_logged_once_for_each_pod(caplog: pytest.LogCaptureFixture) -> None:
    def warnings() -> int:
        number = len(caplog.records)
        caplog.clear()
        return number

    async def story(it: Asking) -> None:
        seen = []
        it.api.has = {"web": "uid-web"}
        for error in (ApiUnavailable("down"), ApiUnavailable("down"), None, ApiUnavailable("down")):
            it.api.error = error
            await it.round("web", seconds=20)
            seen.append(warnings())
        assert seen == [1, 0, 1, 1]  # the third is about the list that lacked the pod
        it.api.error = None
        await it.round("web", seconds=20)
        assert warnings() == 0
        it.api.error = ApiUnavailable("down")
        await it.round("web", seconds=20)
        it.check.keep_only([PodUID("uid-web")])
        await it.round("web", seconds=20)
        assert warnings() == 1
        it.check.keep_only([])
        await it.round("web", seconds=20)
        assert warnings() == 1

    asking(story)


def test_answers_about_pods_that_the_runtime_still_has_are_kept() -> None:
    async def story(it: Asking) -> None:
        await it.round("a", "b", seconds=1)
        it.check.keep_only([PodUID("uid-b"), PodUID("uid-c")])
        assert it.check.confirmed == {PodUID("uid-b")}

    asking(story)
