"""Image garbage collection, with an event at every await and a failure at every call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from podkeeper.rules.image_gc import USUAL_POLICY
from podkeeper.runtimes.fake import Operation as RuntimeOperation
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from tests.engine.test_image_care import A, B, C, Home


@asynccontextmanager
async def stage(calls: PortCalls) -> AsyncIterator[Home]:
    """A disk that is too full by one image. A and B are used, and a listing does not show the image of B."""
    home = Home(USUAL_POLICY, calls=calls)
    home.fake.used.add(A)
    home.fake.silent.add(B)
    await home.care.collect()
    await asyncio.sleep(3600)  # images are old enough now
    home.fill(85)
    calls.log.clear()
    yield home


def what_was_removed(home: Home) -> object:
    return sorted({call.subject for call in home.fake.ledger if call.operation == RuntimeOperation.REMOVE_IMAGE})


def is_sound(home: Home) -> None:
    """No image is removed or counted twice."""
    removals = [call.subject for call in home.fake.ledger if call.operation == RuntimeOperation.REMOVE_IMAGE]
    assert len(removals) == len(set(removals)) >= len(home.removed)


async def the_rest_can_be_deleted(home: Home) -> None:
    home.fake.used.clear()
    home.fake.silent.clear()
    await asyncio.sleep(3000)  # until those used last are old enough, too
    await home.care.delete_unused()
    assert await home.names() == []


def operation(run: Callable[[Home], Awaitable[object]]) -> Operation[Home]:
    return Operation(stage=stage, run=run, state=what_was_removed, check=is_sound, afterwards=the_rest_can_be_deleted)


OPERATIONS = {
    "collect": operation(lambda home: home.care.collect()),
    "delete unused": operation(lambda home: home.care.delete_unused()),
}
EVENTS: dict[str, Event[Home]] = {
    "another collection": lambda home: home.care.collect(),
    "space is needed": lambda home: home.care.delete_unused(),
    "an image is used": lambda home: home.fake.used.add(C),
    "an image is no longer used": lambda home: home.fake.used.discard(A),
    "the disk is empty": lambda home: home.fill(50),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_every_event_while_images_are_collected(operation: Operation[Home]) -> None:
    interleave(operation, EVENTS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_call_fails_once(name: str) -> None:
    def enough(home: Home) -> object:
        """If an image cannot be removed, the collection takes the next one instead."""
        return what_was_removed(home) if name == "delete unused" else what_was_removed(home) != []

    failing = OPERATIONS[name]
    fail_each_call(Operation(stage=stage, run=failing.run, state=enough, afterwards=failing.afterwards))
