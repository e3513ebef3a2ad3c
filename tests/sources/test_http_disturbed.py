"""The HTTP source with an event at every await and a failure at every call: its last updates match the server."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from podkeeper.ports.source import Source
from podkeeper.sources.http import PERIOD_SECONDS, HttpSource
from podkeeper.sources.http_fetch import FetchedBody, Fetcher, FetchFailed
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.stored_manifests import StoredManifests
from podkeeper.testing.failures import check_backoff_resets, fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from tests.sources.static_harness import StaticHarness, manifest

BROKEN = "kind: Pod\nmetadata: [\n"
UNUSABLE = ("", BROKEN)


class FakeFetcher:
    """A URL whose ETag is a digest of its body, even of an invalid body, as on many servers."""

    def __init__(self, calls: PortCalls) -> None:
        self.body = ""
        self.is_up = True
        self.answered = ""  # the last valid body that was returned
        self._watched: Fetcher = calls.watch("page", self, {"fetch": (FetchFailed,)})

    async def __aenter__(self) -> Fetcher:
        return self._watched

    async def __aexit__(self, *_: object) -> None:
        pass

    async def fetch(self, etag: str) -> FetchedBody | None:
        if not self.is_up:
            raise FetchFailed("cannot fetch the manifest: HTTP status 503 Service Unavailable, expected 200")
        if self.body not in UNUSABLE:
            self.answered = self.body
        digest = hashlib.blake2b(self.body.encode(), digest_size=8).hexdigest()
        return None if etag == digest else FetchedBody(self.body.encode(), digest)


class Harness(StaticHarness):
    def __init__(self, calls: PortCalls, group: asyncio.TaskGroup) -> None:
        self.fetcher = FakeFetcher(calls)
        self.images: dict[str, dict[str, str]] = {}  # by body
        super().__init__(calls, group)

    def build(self, objects: LocalObjects, stored_manifests: StoredManifests) -> Source:
        return HttpSource(
            "http://host/m", "n1", self.clock, objects=objects, stored_manifests=stored_manifests, fetcher=self.fetcher
        )

    def serve(self, **images: str) -> None:
        self.fetcher.is_up = True
        items = [manifest(name, image) for name, image in images.items()]
        self.fetcher.body = "---\n".join(items) or '{"apiVersion": "v1", "kind": "PodList"}'
        self.images[self.fetcher.body] = images

    def damage(self, body: str) -> None:
        self.fetcher.body = body

    def go_down(self) -> None:
        self.fetcher.is_up = False

    def problems(self) -> tuple[str, ...]:
        assert isinstance(self.source, HttpSource)
        return tuple(problem.message for problem in self.source.problems())

    def check(self) -> None:
        super().check()
        is_good = self.fetcher.is_up and self.fetcher.body not in UNUSABLE
        assert (self.problems() == ()) == is_good, self.problems()
        assert self.received() == self.images[self.fetcher.body if is_good else self.fetcher.answered]


@asynccontextmanager
async def open_harness(calls: PortCalls) -> AsyncIterator[Harness]:
    async with asyncio.TaskGroup() as group:
        made = Harness(calls, group)
        made.serve(stays="v1", goes="v1")
        yield made
        made.stop()


async def change_pods(harness: Harness) -> None:
    """Send what is served, then its replacement."""
    harness.start()
    await asyncio.sleep(1)
    harness.serve(stays="v2", comes="v1")
    await asyncio.sleep(PERIOD_SECONDS)


async def recover(harness: Harness) -> None:
    """Fetch the URL without an answer, with an empty body, and then with a valid one."""
    harness.start()
    await asyncio.sleep(1)
    harness.go_down()
    await asyncio.sleep(PERIOD_SECONDS)
    harness.fetcher.is_up = True
    harness.damage("")
    await asyncio.sleep(PERIOD_SECONDS)
    harness.serve(stays="v2", comes="v1")
    await asyncio.sleep(PERIOD_SECONDS)


async def changes_still_arrive(harness: Harness) -> None:
    harness.refusals = harness.lost_answers = 0  # in case no update was affected
    harness.serve(last="v1")
    await asyncio.sleep(2 * PERIOD_SECONDS)
    harness.check()
    assert harness.received() == {"last": "v1"}
    assert harness.journal.unsynced_writes == 0


LIVE = OperationTest(
    setup=open_harness,
    run=change_pods,
    state=Harness.problems,  # `check` compares the pods, because they depend on the fetched bodies
    check=Harness.check,
    afterwards=changes_still_arrive,
    settle_seconds=60,
)
EVENTS: dict[str, Event[Harness]] = {
    "a pod is added, another changes": lambda harness: harness.serve(other="v1", stays="v3"),
    "all pods go": lambda harness: harness.serve(),
    "the body is empty": lambda harness: harness.damage(""),
    "the body is invalid": lambda harness: harness.damage(BROKEN),
    "the server fails": Harness.go_down,
    "an update is refused": Harness.refuse,
    "an update is processed, but raises an error": Harness.lose_answer,
    "the source runs again": Harness.run_again,
    "the agent restarts": Harness.start,
}


def test_every_event_at_every_await() -> None:
    interleave(replace(LIVE, run=recover), EVENTS, cancel=False)


def test_every_call_fails_once() -> None:
    fail_each_call(replace(LIVE, run=recover))


def test_a_success_resets_the_backoff() -> None:
    async def a_period(harness: Harness) -> None:
        await asyncio.sleep(PERIOD_SECONDS)

    assert check_backoff_resets(LIVE, "page", "fetch", FetchFailed, a_period) == [1, 2, 4, 8]
