"""Getting images, with an event at every await and a failure of every call."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from podkeeper.model.errors import ImagePullFailed, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import ImageRecord
from podkeeper.rules.keyring import PullSecret
from podkeeper.runtimes.fake import FakeRuntime
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock
from tests.engine.image_house import IMAGE, ImageHouse, image_house, secret, wants

WEB, DB, THIEF = wants("web"), wants("db"), wants("thief")
RIGHT, OTHER, WRONG = secret("right"), secret("other", "s2"), secret("wrong", "s3")


class Registry(FakeRuntime):
    """A runtime that notes pulls of the same image with the same credentials side by side."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.private_images[IMAGE] = frozenset({"right", "other"})
        self.under_way: Counter[object] = Counter()
        self.side_by_side: list[object] = []

    async def pull_image(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        key = (reference, tuple(secrets))
        if self.under_way[key]:
            self.side_by_side.append(key)
        self.under_way[key] += 1
        try:
            await asyncio.sleep(0)
            return await super().pull_image(reference, secrets)
        finally:
            self.under_way[key] -= 1


@dataclass
class Stage:
    home: ImageHouse
    registry: Registry
    journal: FakeJournal
    used: set[str] = field(default_factory=set)

    async def ensure(self, of: Pod = WEB, with_secret: PullSecret = RIGHT) -> None:
        reason = await self.home.ensure(of, with_secret)
        if reason != "used":
            raise TryLater(f"cannot use the image: {reason}")
        self.used.add(of.metadata.name or "")

    async def steal(self) -> None:
        """A pod with wrong credentials wants the image. It must never get it."""
        assert await self.home.ensure(THIEF, WRONG) != "used"

    def who_uses_it(self) -> frozenset[str]:
        return frozenset(self.used)

    def holds(self) -> None:
        assert self.registry.side_by_side == []
        assert not +self.registry.under_way

    def no_pull_is_noted(self) -> None:
        self.holds()
        assert [key for key in self.journal.load() if key.startswith("begun/")] == []

    async def only_the_right_pods_use_it(self) -> None:
        """Who has shown valid credentials needs no other pull. Who has not shows them first."""
        await self.ensure()  # the image may have been removed
        pulls = self.home.pulls()
        await self.ensure()
        assert self.home.pulls() == pulls
        await asyncio.sleep(1000)  # no pull is held back
        await self.steal()
        assert self.home.pulls() == pulls + 1


@asynccontextmanager
async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
    clock = VirtualClock()
    registry, journal = Registry(clock), FakeJournal()
    async with image_house(calls.watch("runtime", registry), clock, calls.watch("journal", journal)) as home:
        yield Stage(home, registry, journal)


EVENTS: dict[str, Event[Stage]] = {
    "the same pod": Stage.ensure,
    "another pod with the same credentials": lambda stage: stage.ensure(DB),
    "another pod with other credentials": lambda stage: stage.ensure(DB, OTHER),
    "a pod with wrong credentials": Stage.steal,
    "the image is removed": lambda stage: stage.registry.remove_image(IMAGE),
}


def test_every_event_at_every_await() -> None:
    operation = Operation(
        stage=stage,
        run=Stage.ensure,
        state=Stage.who_uses_it,
        check=Stage.no_pull_is_noted,
        afterwards=Stage.only_the_right_pods_use_it,
    )
    interleave(operation, EVENTS)


def test_a_pull_goes_on_for_the_others_when_a_pod_is_cancelled() -> None:
    @asynccontextmanager
    async def with_another_pod(calls: PortCalls) -> AsyncIterator[Stage]:
        async with stage(calls) as empty:
            other = asyncio.ensure_future(empty.ensure(DB))
            for _ in range(4):
                await asyncio.sleep(0)
            yield empty
            await other

    operation = Operation(
        stage=with_another_pod,
        run=Stage.ensure,
        state=Stage.who_uses_it,
        check=Stage.no_pull_is_noted,
        settle_seconds=1,
    )
    interleave(operation, {})


def test_every_call_fails_once() -> None:
    operation = Operation(
        stage=stage,
        run=Stage.ensure,
        state=Stage.who_uses_it,
        check=Stage.holds,
        afterwards=Stage.only_the_right_pods_use_it,
        retry_seconds=11,  # a failed pull is held back for 10 s
    )
    # ImagePullFailed is the registry's answer: the image does not arrive all the same.
    fail_each_call(operation, leave_out=[("runtime", "pull_image", ImagePullFailed)])
    fail_each_call(operation, unexpected=False, lost_answers=False)
