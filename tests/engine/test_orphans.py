"""Orphans: what the API answers decides, and no answer changes nothing."""

import asyncio
from collections.abc import Awaitable, Callable

from podkeeper.engine.orphans import ASK_AGAIN_SECONDS, CALLS_AT_A_TIME, OrphanCheck
from podkeeper.model.k8s.core import Pod
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.virtual_time import VirtualClock, simulate


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
