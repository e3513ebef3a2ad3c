"""Getting images, with an event at every await and a failure of every call."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from podkeeper.model.errors import ImagePullFailed, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import ImageRecord
from podkeeper.rules.images.keyring import PullSecret
from podkeeper.runtimes.fake import FakeRuntime
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock
from tests.engine.image_harness import IMAGE, ImageHarness, pod_with_image, running_image_harness, secret

WEB, DB, UNAUTHORIZED = pod_with_image("web"), pod_with_image("db"), pod_with_image("thief")
RIGHT, OTHER, WRONG = secret("right"), secret("other", "s2"), secret("wrong", "s3")


class Registry(FakeRuntime):
    """A runtime that records concurrent pulls of one image with the same credentials."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.private_images[IMAGE] = frozenset({"right", "other"})
        self.in_flight: Counter[object] = Counter()
        self.concurrent: list[object] = []

    async def pull_image(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        key = (reference, tuple(secrets))
        if self.in_flight[key]:
            self.concurrent.append(key)
        self.in_flight[key] += 1
        try:
            await asyncio.sleep(0)
            return await super().pull_image(reference, secrets)
        finally:
            self.in_flight[key] -= 1


@dataclass
class Setup:
    harness: ImageHarness
    registry: Registry
    journal: FakeJournal
    used: set[str] = field(default_factory=set)

    async def ensure(self, of: Pod = WEB, with_secret: PullSecret = RIGHT) -> None:
        reason = await self.harness.ensure(of, with_secret)
        if reason != "used":
            raise TryLater(f"cannot use the image: {reason}")
        self.used.add(of.metadata.name or "")

    async def try_without_access(self) -> None:
        """Check that a pod with wrong credentials does not get the image."""
        assert await self.harness.ensure(UNAUTHORIZED, WRONG) != "used"

    def users(self) -> frozenset[str]:
        return frozenset(self.used)

    def holds(self) -> None:
        assert self.registry.concurrent == []
        assert not +self.registry.in_flight

    def no_intent_is_recorded(self) -> None:
        self.holds()
        assert [key for key in self.journal.load() if key.startswith("begun/")] == []

    async def only_authorized_pods_use_it(self) -> None:
        """Check that only a pod which has not presented valid credentials needs another pull."""
        await self.ensure()  # the image may have been removed
        pulls = self.harness.pulls()
        await self.ensure()
        assert self.harness.pulls() == pulls
        await asyncio.sleep(1000)  # no pull is in backoff any more
        await self.try_without_access()
        assert self.harness.pulls() == pulls + 1


@asynccontextmanager
async def setup(calls: PortCalls) -> AsyncIterator[Setup]:
    clock = VirtualClock()
    registry, journal = Registry(clock), FakeJournal()
    async with running_image_harness(
        calls.watch("runtime", registry), clock, calls.watch("journal", journal)
    ) as harness:
        yield Setup(harness, registry, journal)


EVENTS: dict[str, Event[Setup]] = {
    "the same pod": Setup.ensure,
    "another pod with the same credentials": lambda setup: setup.ensure(DB),
    "another pod with other credentials": lambda setup: setup.ensure(DB, OTHER),
    "a pod with wrong credentials": Setup.try_without_access,
    "the image is removed": lambda setup: setup.registry.remove_image(IMAGE),
}


def test_every_event_at_every_await() -> None:
    operation = OperationTest(
        setup=setup,
        run=Setup.ensure,
        state=Setup.users,
        check=Setup.no_intent_is_recorded,
        afterwards=Setup.only_authorized_pods_use_it,
    )
    interleave(operation, EVENTS)


def test_a_shared_pull_continues_when_one_pod_is_cancelled() -> None:
    @asynccontextmanager
    async def with_another_pod(calls: PortCalls) -> AsyncIterator[Setup]:
        async with setup(calls) as empty:
            other = asyncio.ensure_future(empty.ensure(DB))
            for _ in range(4):
                await asyncio.sleep(0)
            yield empty
            await other

    operation = OperationTest(
        setup=with_another_pod,
        run=Setup.ensure,
        state=Setup.users,
        check=Setup.no_intent_is_recorded,
        settle_seconds=1,
    )
    interleave(operation, {})


def test_every_call_fails_once() -> None:
    operation = OperationTest(
        setup=setup,
        run=Setup.ensure,
        state=Setup.users,
        check=Setup.holds,
        afterwards=Setup.only_authorized_pods_use_it,
        retry_seconds=11,  # the backoff of a failed pull
    )
    # ImagePullFailed is an answer of the registry, so the image must not arrive.
    fail_each_call(operation, leave_out=[("runtime", "pull_image", ImagePullFailed)])
    fail_each_call(operation, unexpected=False, lost_answers=False)
