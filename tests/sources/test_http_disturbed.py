"""The http source, with an event at every await and a failure at every call: in the end it has told what is served."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from podkeeper.ports.source import Source
from podkeeper.sources.http import PERIOD_SECONDS, HttpSource
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.manifest_notes import ManifestNotes
from podkeeper.sources.web_page import Fetched, NoAnswer, Page
from podkeeper.testing.failures import check_backoff_resets, fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from tests.sources.static_stage import StaticStage, manifest

BROKEN = "kind: Pod\nmetadata: [\n"
UNUSABLE = ("", BROKEN)


class FakePage:
    """A page whose ETag is a digest of its body, as many servers have it, also of a body that cannot be used."""

    def __init__(self, calls: PortCalls) -> None:
        self.body = ""
        self.is_up = True
        self.answered = ""  # the last usable body that was handed out
        self._watched: Page = calls.watch("page", self, {"fetch": (NoAnswer,)})

    async def __aenter__(self) -> Page:
        return self._watched

    async def __aexit__(self, *_: object) -> None:
        pass

    async def fetch(self, etag: str) -> Fetched | None:
        if not self.is_up:
            raise NoAnswer("cannot fetch it: 503 Service Unavailable")
        if self.body not in UNUSABLE:
            self.answered = self.body
        digest = hashlib.blake2b(self.body.encode(), digest_size=8).hexdigest()
        return None if etag == digest else Fetched(self.body.encode(), digest)


class Stage(StaticStage):
    def __init__(self, calls: PortCalls, group: asyncio.TaskGroup) -> None:
        self.page = FakePage(calls)
        self.images: dict[str, dict[str, str]] = {}  # by body
        super().__init__(calls, group)

    def build(self, objects: LocalObjects, notes: ManifestNotes) -> Source:
        return HttpSource("http://host/m", "n1", self.clock, objects=objects, notes=notes, page=self.page)

    def serve(self, **images: str) -> None:
        self.page.is_up = True
        items = [manifest(name, image) for name, image in images.items()]
        self.page.body = "---\n".join(items) or '{"apiVersion": "v1", "kind": "PodList"}'
        self.images[self.page.body] = images

    def spoil(self, body: str) -> None:
        self.page.body = body

    def go_down(self) -> None:
        self.page.is_up = False

    def problems(self) -> tuple[str, ...]:
        assert isinstance(self.source, HttpSource)
        return tuple(problem.message for problem in self.source.problems())

    def check(self) -> None:
        super().check()
        is_good = self.page.is_up and self.page.body not in UNUSABLE
        assert (self.problems() == ()) == is_good, self.problems()
        assert self.told() == self.images[self.page.body if is_good else self.page.answered]


@asynccontextmanager
async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
    async with asyncio.TaskGroup() as group:
        made = Stage(calls, group)
        made.serve(stays="v1", goes="v1")
        yield made
        made.stop()


async def live(stage: Stage) -> None:
    """Tell what is served, and then what is served instead."""
    stage.start()
    await asyncio.sleep(1)
    stage.serve(stays="v2", comes="v1")
    await asyncio.sleep(PERIOD_SECONDS)


async def recover(stage: Stage) -> None:
    """Find the URL without an answer, with an empty body, and well again."""
    stage.start()
    await asyncio.sleep(1)
    stage.go_down()
    await asyncio.sleep(PERIOD_SECONDS)
    stage.page.is_up = True
    stage.spoil("")
    await asyncio.sleep(PERIOD_SECONDS)
    stage.serve(stays="v2", comes="v1")
    await asyncio.sleep(PERIOD_SECONDS)


async def news_still_arrives(stage: Stage) -> None:
    stage.refusals = stage.lost_answers = 0  # those that no update met
    stage.serve(last="v1")
    await asyncio.sleep(2 * PERIOD_SECONDS)
    stage.check()
    assert stage.told() == {"last": "v1"}
    assert stage.journal.unsynced_writes == 0


LIVE = Operation(
    stage=stage,
    run=live,
    state=Stage.problems,  # which pods are right depends on the bodies that were fetched: `check` knows
    check=Stage.check,
    afterwards=news_still_arrives,
    settle_seconds=60,
)
EVENTS: dict[str, Event[Stage]] = {
    "a pod comes, another changes": lambda stage: stage.serve(other="v1", stays="v3"),
    "all pods go": lambda stage: stage.serve(),
    "the body is empty": lambda stage: stage.spoil(""),
    "the body is broken": lambda stage: stage.spoil(BROKEN),
    "the server fails": Stage.go_down,
    "an update is refused": Stage.refuse,
    "an update is taken with an error": Stage.lose_answer,
    "the source runs again": Stage.run_again,
    "the agent restarts": Stage.start,
}


def test_every_event_at_every_await() -> None:
    interleave(replace(LIVE, run=recover), EVENTS, cancel=False)


def test_every_call_fails_once() -> None:
    fail_each_call(replace(LIVE, run=recover))


def test_a_success_resets_the_pause_between_tries() -> None:
    async def a_period(stage: Stage) -> None:
        await asyncio.sleep(PERIOD_SECONDS)

    assert check_backoff_resets(LIVE, "page", "fetch", NoAnswer, a_period) == [1, 2, 4, 8]
