"""Image garbage collection, with an event at every await and a failure at every call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from podkeeper.engine.image_gc import ImageGCFailed
from podkeeper.rules.images.gc import GcPolicy
from podkeeper.runtimes.fake import Operation as RuntimeOperation
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from tests.engine.test_image_gc import A, B, C, ImageGCHarness

Setup = Callable[[PortCalls], AbstractAsyncContextManager[ImageGCHarness]]


@asynccontextmanager
async def setup(calls: PortCalls) -> AsyncIterator[ImageGCHarness]:
    """A disk that is too full by one image. A and B are used, and a list of pods does not show the image of B."""
    harness = ImageGCHarness(GcPolicy(), calls=calls)
    harness.fake.used.add(A)
    harness.fake.unlisted.add(B)
    await harness.gc.collect()
    await asyncio.sleep(3600)  # images are old enough now
    harness.fill(85)
    calls.log.clear()
    yield harness


def removed_images(harness: ImageGCHarness) -> object:
    return sorted({call.subject for call in harness.fake.call_log if call.operation == RuntimeOperation.REMOVE_IMAGE})


def is_sound(harness: ImageGCHarness) -> None:
    """Check that no image is removed or counted twice."""
    removals = [call.subject for call in harness.fake.call_log if call.operation == RuntimeOperation.REMOVE_IMAGE]
    assert len(removals) == len(set(removals)) >= len(harness.removed)


async def the_rest_can_be_deleted(harness: ImageGCHarness) -> None:
    harness.fake.used.clear()
    harness.fake.unlisted.clear()
    await asyncio.sleep(3000)  # until the images used last are old enough, too
    harness.fill(100)  # other files take 80 %, so every image must be removed
    await harness.gc.collect()
    assert await harness.names() == []


@asynccontextmanager
async def fuller(calls: PortCalls) -> AsyncIterator[ImageGCHarness]:
    """The same, but the disk is too full by two images."""
    async with setup(calls) as harness:
        harness.fill(90)
        yield harness


async def collect_what_is_unused(harness: ImageGCHarness) -> None:
    """Collect images. If too few are unused, removing those is enough."""
    try:
        await harness.gc.collect()
    except ImageGCFailed as error:
        if "Insufficient free disk space" not in str(error):
            raise


def need_more_space(harness: ImageGCHarness) -> Awaitable[None]:
    harness.fill(90)
    return collect_what_is_unused(harness)


def operation(run: Callable[[ImageGCHarness], Awaitable[object]], setup: Setup) -> OperationTest[ImageGCHarness]:
    return OperationTest(setup=setup, run=run, state=removed_images, check=is_sound, afterwards=the_rest_can_be_deleted)


OPERATIONS = {
    "collect": operation(lambda harness: harness.gc.collect(), setup),
    "collect all unused images": operation(collect_what_is_unused, fuller),
}
EVENTS: dict[str, Event[ImageGCHarness]] = {
    "another collection": lambda harness: harness.gc.collect(),
    "more space is needed": need_more_space,
    "an image is used": lambda harness: harness.fake.used.add(C),
    "an image is no longer used": lambda harness: harness.fake.used.discard(A),
    "the disk is empty": lambda harness: harness.fill(50),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_every_event_while_images_are_collected(operation: OperationTest[ImageGCHarness]) -> None:
    interleave(operation, EVENTS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_call_fails_once(name: str) -> None:
    def enough(harness: ImageGCHarness) -> object:
        """If an image cannot be removed, the collection takes the next one instead."""
        return removed_images(harness) if name == "collect all unused images" else removed_images(harness) != []

    failing = OPERATIONS[name]
    fail_each_call(OperationTest(setup=failing.setup, run=failing.run, state=enough, afterwards=failing.afterwards))
