"""The teller of static pods, with an event at every await and refusals: in the end it has told what counts.

Its source reads two places one after the other, so that at first not all of it has been read.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

from podkeeper.model.messages import FILE_SOURCE
from podkeeper.ports.source import Tell
from podkeeper.rules.static import FromFile
from podkeeper.sources.contents import Reader, broken
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.manifest_notes import ManifestNotes
from podkeeper.sources.remembered import PATIENCE_SECONDS
from podkeeper.sources.static_teller import Found, StaticTeller
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls, Unexpected
from tests.sources.static_stage import StaticStage, manifest

READER = Reader("n1", has_store=True)
PERIOD_SECONDS = 2 * PATIENCE_SECONDS
UNREADABLE = Found(broken("cannot read it: permission denied", "/m/a"), b"")


def found(name: str, image: str) -> Found:
    return Found(READER.read(manifest(name, image).encode(), FromFile(f"/m/{name}"), f"/m/{name}"), image)


CONTENTS = {(name, image): found(name, image) for name in ("a", "b", "c") for image in ("v1", "v2", "v3")}


class Stage(StaticStage):
    def __init__(self, calls: PortCalls, group: asyncio.TaskGroup) -> None:
        self.places = {"/m/a": CONTENTS["a", "v1"], "/m/b": CONTENTS["b", "v1"]}
        self.is_readable = True  # False: the source reads nothing at all
        self.is_complete = True  # False: there may be more places than these
        self.look: Callable[[], None] = lambda: None
        super().__init__(calls, group)

    def build(self, objects: LocalObjects, notes: ManifestNotes) -> "Places":
        return Places(self, StaticTeller(FILE_SOURCE, objects, None, notes))

    def write(self, name: str, image: str) -> None:
        self.places = {**self.places, f"/m/{name}": CONTENTS[name, image]}

    def write_and_report(self, name: str, image: str) -> None:
        self.write(name, image)
        self.look()

    def remove(self, name: str) -> None:
        self.places = {place: each for place, each in self.places.items() if place != f"/m/{name}"}

    def become_unreadable(self) -> None:
        if "/m/a" in self.places:
            self.places = {**self.places, "/m/a": UNREADABLE}

    def check(self) -> None:
        super().check()
        there = {place.removeprefix("/m/") for place, each in self.places.items() if each is not UNREADABLE}
        assert there <= set(self.told())
        assert all(self.told()[name] == self.places[f"/m/{name}"].version for name in there)


class Places:
    """A source that reads its places in intervals."""

    name = FILE_SOURCE

    def __init__(self, stage: Stage, teller: StaticTeller) -> None:
        self._stage = stage
        self._teller = teller

    async def run(self, tell: Tell) -> None:
        self._teller.begin()
        self._stage.look = partial(self.look, tell)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._teller.run(tell))
            while True:
                self.look(tell)
                await asyncio.sleep(PERIOD_SECONDS)

    def look(self, tell: Tell) -> None:
        with suppress(Unexpected):  # the sources log it, and try again
            if self._stage.is_readable:
                self._teller.take(self._stage.places, {}, tell, complete=self._stage.is_complete)


@asynccontextmanager
async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
    async with asyncio.TaskGroup() as group:
        made = Stage(calls, group)
        made.start()
        await asyncio.sleep(1)
        made.is_readable = False
        calls.log.clear()
        yield made
        made.stop()


async def restart(stage: Stage) -> None:
    """Start while nothing can be read, read some places, then all of them."""
    stage.start()
    while set(stage.told()) != {"a", "b"}:  # from the notes
        await asyncio.sleep(PERIOD_SECONDS)
    assert not stage.ready
    stage.is_complete, stage.is_readable = False, True
    await asyncio.sleep(PERIOD_SECONDS)
    stage.remove("b")
    stage.write("c", "v1")
    # Places that cannot be listed may stay so: the removed pod must be gone without a SET.
    while "b" in stage.told() or "c" not in stage.told():
        await asyncio.sleep(PERIOD_SECONDS)
    assert not stage.ready
    stage.is_complete = True
    await asyncio.sleep(PERIOD_SECONDS)


def check_and_all_is_durable(stage: Stage) -> None:
    stage.check()
    assert stage.journal.unsynced_writes == 0


async def news_still_arrives(stage: Stage) -> None:
    stage.refusals = stage.lost_answers = stage.journal.failures = 0  # those that no update met
    stage.write("b", "v3")
    await asyncio.sleep(2 * PERIOD_SECONDS)
    check_and_all_is_durable(stage)
    assert stage.told()["b"] == "v3"


RESTART = Operation(
    stage=stage,
    run=restart,
    state=Stage.told,
    check=Stage.check,
    afterwards=news_still_arrives,
    settle_seconds=1.5 * PERIOD_SECONDS,
)
EVENTS: dict[str, Event[Stage]] = {
    "a place changes": lambda stage: stage.write("a", "v2"),
    "a place changes and is read at once": lambda stage: stage.write_and_report("a", "v3"),
    "a place goes": lambda stage: stage.remove("a"),
    "a place cannot be read": Stage.become_unreadable,
    "an update is refused": Stage.refuse,
    "an update is taken with an error": Stage.lose_answer,
    "a write of the journal fails": lambda stage: stage.journal.fail(),
    "the source runs again": Stage.run_again,
    "the agent restarts": Stage.start,
}


def test_every_event_at_every_await() -> None:
    interleave(replace(RESTART, check=check_and_all_is_durable), EVENTS, cancel=False)


def test_every_call_fails_once() -> None:
    fail_each_call(RESTART)
