"""The publisher of static pods with an event at every await and refused updates: its last updates are correct.

Its source reads two locations one after the other, so that at first not all of it has been read.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

from podkeeper.model.messages import FILE_SOURCE
from podkeeper.ports.source import SendUpdate
from podkeeper.rules.static.pod import FromFile
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.manifest_content import ManifestReader, unreadable
from podkeeper.sources.static_publisher import LocationContent, StaticPublisher
from podkeeper.sources.stored_manifests import StoredManifests
from podkeeper.sources.stored_pods import SOURCE_TIMEOUT_SECONDS
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls, UnexpectedError
from tests.sources.static_harness import StaticHarness, manifest

READER = ManifestReader("n1", has_store=True)
PERIOD_SECONDS = 2 * SOURCE_TIMEOUT_SECONDS
UNREADABLE = LocationContent(unreadable("cannot read the file: permission denied", "/m/a"), b"")


def found(name: str, image: str) -> LocationContent:
    return LocationContent(READER.read(manifest(name, image).encode(), FromFile(f"/m/{name}"), f"/m/{name}"), image)


CONTENTS = {(name, image): found(name, image) for name in ("a", "b", "c") for image in ("v1", "v2", "v3")}


class Harness(StaticHarness):
    def __init__(self, calls: PortCalls, group: asyncio.TaskGroup) -> None:
        self.locations = {"/m/a": CONTENTS["a", "v1"], "/m/b": CONTENTS["b", "v1"]}
        self.is_readable = True  # False: the source reads nothing
        self.is_complete = True  # False: there may be more locations
        self.read: Callable[[], None] = lambda: None
        super().__init__(calls, group)

    def build(self, objects: LocalObjects, checkpoints: StoredManifests) -> "Locations":
        return Locations(self, StaticPublisher(FILE_SOURCE, objects, None, checkpoints))

    def write(self, name: str, image: str) -> None:
        self.locations = {**self.locations, f"/m/{name}": CONTENTS[name, image]}

    def write_and_report(self, name: str, image: str) -> None:
        self.write(name, image)
        self.read()

    def remove(self, name: str) -> None:
        self.locations = {location: each for location, each in self.locations.items() if location != f"/m/{name}"}

    def become_unreadable(self) -> None:
        if "/m/a" in self.locations:
            self.locations = {**self.locations, "/m/a": UNREADABLE}

    def check(self) -> None:
        super().check()
        there = {location.removeprefix("/m/") for location, each in self.locations.items() if each is not UNREADABLE}
        assert there <= set(self.received())
        assert all(self.received()[name] == self.locations[f"/m/{name}"].version for name in there)


class Locations:
    """A source that reads its locations periodically."""

    name = FILE_SOURCE

    def __init__(self, harness: Harness, publisher: StaticPublisher) -> None:
        self._harness = harness
        self._publisher = publisher

    async def run(self, send: SendUpdate) -> None:
        self._publisher.begin()
        self._harness.read = partial(self.read, send)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publisher.run(send))
            while True:
                self.read(send)
                await asyncio.sleep(PERIOD_SECONDS)

    def read(self, send: SendUpdate) -> None:
        with suppress(UnexpectedError):  # the sources log it and retry
            if self._harness.is_readable:
                self._publisher.publish(self._harness.locations, {}, send, complete=self._harness.is_complete)


@asynccontextmanager
async def open_harness(calls: PortCalls) -> AsyncIterator[Harness]:
    async with asyncio.TaskGroup() as group:
        made = Harness(calls, group)
        made.start()
        await asyncio.sleep(1)
        made.is_readable = False
        calls.log.clear()
        yield made
        made.stop()


async def restart(harness: Harness) -> None:
    """Start without a readable location, read some locations, then all of them."""
    harness.start()
    while set(harness.received()) != {"a", "b"}:  # from the stored manifests
        await asyncio.sleep(PERIOD_SECONDS)
    assert not harness.ready
    harness.is_complete, harness.is_readable = False, True
    await asyncio.sleep(PERIOD_SECONDS)
    harness.remove("b")
    harness.write("c", "v1")
    # Some locations may stay unlisted, so the pod must be removed without a SET.
    while "b" in harness.received() or "c" not in harness.received():
        await asyncio.sleep(PERIOD_SECONDS)
    assert not harness.ready
    harness.is_complete = True
    await asyncio.sleep(PERIOD_SECONDS)


def check_and_durable(harness: Harness) -> None:
    harness.check()
    assert harness.journal.unsynced_writes == 0


async def changes_still_arrive(harness: Harness) -> None:
    harness.refusals = harness.lost_answers = harness.journal.failures = 0  # in case no update was affected
    harness.write("b", "v3")
    await asyncio.sleep(2 * PERIOD_SECONDS)
    check_and_durable(harness)
    assert harness.received()["b"] == "v3"


RESTART = OperationTest(
    setup=open_harness,
    run=restart,
    state=Harness.received,
    check=Harness.check,
    afterwards=changes_still_arrive,
    settle_seconds=1.5 * PERIOD_SECONDS,
)
EVENTS: dict[str, Event[Harness]] = {
    "a location changes": lambda harness: harness.write("a", "v2"),
    "a location changes and is read at once": lambda harness: harness.write_and_report("a", "v3"),
    "a location is removed": lambda harness: harness.remove("a"),
    "a location is unreadable": Harness.become_unreadable,
    "an update is refused": Harness.refuse,
    "an update is processed, but raises an error": Harness.lose_answer,
    "a write of the journal fails": lambda harness: harness.journal.fail(),
    "the source runs again": Harness.run_again,
    "the agent restarts": Harness.start,
}


def test_every_event_at_every_await() -> None:
    interleave(replace(RESTART, check=check_and_durable), EVENTS, cancel=False)


def test_every_call_fails_once() -> None:
    fail_each_call(RESTART)
