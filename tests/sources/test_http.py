"""Pods from a real web server: requests, updates, and failures that change no pods."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from aiohttp import web

from podkeeper.host.clock import SystemClock
from podkeeper.model.errors import BadInput, TryLater
from podkeeper.model.k8s.core import ConfigMap
from podkeeper.model.messages import PodUpdate
from podkeeper.sources.http import HttpSource
from podkeeper.sources.http_fetch import FetchedBody, FetchFailed
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.testing.virtual_time import simulate
from tests.sources.static_listener import (
    FailingStore,
    InlineExecutor,
    Receiver,
    config_map_text,
    pod_text,
    running,
    until,
)
from tests.sources.web_server import serving


class Server:
    """Serves the body of a test and records the requests."""

    def __init__(self, body: str = "", *, etag: str = "") -> None:
        self.body = body
        self.etag = etag
        self.status = 200
        self.requests: list[web.Request] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        if self.etag and request.headers.get("If-None-Match") == self.etag:
            return web.Response(status=304)
        return web.Response(text=self.body, status=self.status, headers={"ETag": self.etag} if self.etag else None)

    async def has_another_request(self) -> None:
        count = len(self.requests)
        await until(lambda: len(self.requests) >= count + 2)


@asynccontextmanager
async def listening(
    server: Server, *, headers: dict[str, tuple[str, ...]] | None = None, objects: LocalObjects | None = None
) -> AsyncIterator[tuple[Receiver, HttpSource]]:
    receiver = Receiver()
    async with serving(server.answer) as server.url:
        source = HttpSource(
            server.url,
            "n1",
            SystemClock(),
            headers=headers,
            objects=objects,
            period_seconds=0.02,
            report=receiver.report,
        )
        async with running(source, receiver):
            yield receiver, source


BODIES = {
    "one pod": (pod_text("web"), ("web",)),
    "many documents": (f"{pod_text('web')}---\n{pod_text('db')}", ("web", "db")),
    "an empty list": ('{"apiVersion": "v1", "kind": "PodList", "items": []}', ()),
    "a list without items": ('{"apiVersion": "v1", "kind": "PodList"}', ()),
    "an empty body as the first answer": ("", ()),
}


@pytest.mark.parametrize("body, names", BODIES.values(), ids=BODIES.keys())
def test_a_body_is_a_manifest(body: str, names: tuple[str, ...]) -> None:
    async def scenario() -> None:
        async with listening(Server(body)) as (receiver, _):
            await receiver.receives(*names)
            assert {update.source for update in receiver.updates} == {"http"}

    asyncio.run(scenario())


def test_headers_are_sent_and_a_body_that_did_not_change_is_not_sent_again() -> None:
    async def scenario() -> None:
        server = Server(pod_text("web"), etag='"one"')
        async with listening(server, headers={"X-Node": ("n1", "again")}) as (receiver, _):
            await receiver.receives("web")
            await server.has_another_request()
            assert server.requests[0].headers.getall("X-Node") == ["n1", "again"]
            assert "If-None-Match" not in server.requests[0].headers
            assert server.requests[-1].headers["If-None-Match"] == '"one"'
            assert len(receiver.updates) == 1
            server.body, server.etag = pod_text("db"), '"two"'
            await receiver.receives("db")

    asyncio.run(scenario())


def set_status(server: Server) -> None:
    server.status = 404


def set_empty(server: Server) -> None:
    server.body = " \n"


def set_huge(server: Server) -> None:
    server.body = "#" * (11 * 1024 * 1024)


def set_invalid(server: Server) -> None:
    server.body = "kind: Pod\nmetadata: [\n"


TROUBLES: dict[str, tuple[Callable[[Server], None], str]] = {
    "not found": (set_status, "404 Not Found"),
    "an empty body": (set_empty, "the manifest is empty"),
    "a body too large": (set_huge, "larger than"),
    "an invalid body": (set_invalid, "cannot parse YAML"),
}


@pytest.mark.parametrize("spoil, reason", TROUBLES.values(), ids=TROUBLES.keys())
def test_failures_are_reported_once_and_change_no_pods(spoil: Callable[[Server], None], reason: str) -> None:
    async def scenario() -> None:
        server = Server(pod_text("web"))
        async with listening(server) as (receiver, source):
            await receiver.receives("web")
            spoil(server)
            await until(lambda: bool(source.problems()))
            await server.has_another_request()
            assert reason in source.problems()[0].message
            assert [location for location, _ in receiver.reports] == [server.url]
            assert receiver.names() == ["web"]
            server.status, server.body = 200, pod_text("web", "fixed")
            await until(lambda: receiver.images() == {"web": "fixed"})
            assert source.problems() == ()

    asyncio.run(scenario())


REFUSED = {name: TROUBLES[name] for name in ("an empty body", "a body too large")}


@pytest.mark.parametrize("spoil, reason", REFUSED.values(), ids=REFUSED.keys())
def test_the_etag_of_a_refused_body_is_not_sent_back(spoil: Callable[[Server], None], reason: str) -> None:
    """If it were sent, a server could answer 304, and the problem would seem to be fixed."""

    async def scenario() -> None:
        server = Server(pod_text("web"), etag='"good"')
        async with listening(server) as (receiver, source):
            await receiver.receives("web")
            spoil(server)
            server.etag = '"refused"'
            await until(lambda: bool(source.problems()))
            for _ in range(2):
                await server.has_another_request()
                assert reason in source.problems()[0].message
            assert '"refused"' not in {request.headers.get("If-None-Match") for request in server.requests}
            server.body, server.etag = pod_text("web"), '"good"'
            await until(lambda: not source.problems())
            assert len(receiver.updates) == 1

    asyncio.run(scenario())


def test_the_etag_of_an_empty_first_answer_is_not_sent_back() -> None:
    async def scenario() -> None:
        server = Server("", etag='"empty"')
        async with listening(server) as (receiver, source):
            await until(lambda: bool(receiver.updates))
            await until(lambda: bool(source.problems()))  # only the first answer may be empty
            await server.has_another_request()
            assert {request.headers.get("If-None-Match") for request in server.requests} == {None}

    asyncio.run(scenario())


def test_an_unexpected_failure_is_reported_and_the_same_body_is_processed_again() -> None:
    async def scenario() -> None:
        server, store = Server(pod_text("web"), etag='"one"'), FailingStore()
        async with listening(server, objects=store) as (receiver, source):
            await receiver.receives("web")
            store.failures = 1
            server.body, server.etag = pod_text("db"), '"two"'
            await receiver.receives("db")
            assert any("please report this" in each.message for _, problems in receiver.reports for each in problems)
            assert source.problems() == ()

    asyncio.run(scenario())


def test_a_refused_update_is_sent_again_although_the_body_has_not_changed() -> None:
    async def scenario() -> None:
        server = Server(pod_text("web"), etag='"one"')
        refusals = [TryLater("the loop is not ready"), RuntimeError("a bug")]
        updates: list[PodUpdate] = []

        def send(update: PodUpdate) -> None:
            if refusals:
                raise refusals.pop()
            updates.append(update)

        async with serving(server.answer) as url:
            source = HttpSource(url, "n1", SystemClock(), period_seconds=0.02)
            async with asyncio.TaskGroup() as group:
                running_source = group.create_task(source.run(send))
                await until(lambda: bool(updates))
                await server.has_another_request()
                running_source.cancel()
        assert len(updates) == 1

    asyncio.run(scenario())


def test_an_unreachable_server_changes_no_pods() -> None:
    async def scenario() -> None:
        async with serving(Server().answer) as gone:
            pass
        receiver = Receiver()
        source = HttpSource(gone, "n1", SystemClock(), period_seconds=0.02)
        async with running(source, receiver):
            await until(lambda: bool(source.problems()))
            assert "cannot fetch the manifest" in source.problems()[0].message
        assert receiver.updates == []

    asyncio.run(scenario())


def test_an_error_as_the_first_answer_is_not_an_empty_set() -> None:
    async def scenario() -> None:
        server = Server(pod_text("web"))
        server.status = 503
        async with listening(server) as (receiver, source):
            await until(lambda: bool(source.problems()))
            assert receiver.updates == []
            server.status = 200
            await receiver.receives("web")

    asyncio.run(scenario())


class ClockWithoutJitter(SystemClock):
    def fraction(self) -> float:
        return 0.0


class ScriptedFetcher:
    """Succeeds or fails as scripted, and records the times of the requests."""

    def __init__(self, succeeds: list[bool]) -> None:
        self._succeeds = succeeds
        self.times: list[float] = []
        self.finished = asyncio.Event()

    async def __aenter__(self) -> "ScriptedFetcher":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def fetch(self, etag: str) -> FetchedBody:
        if len(self.times) == len(self._succeeds):
            self.finished.set()
            await asyncio.Event().wait()
        self.times.append(asyncio.get_running_loop().time())
        if not self._succeeds[len(self.times) - 1]:
            raise FetchFailed("cannot fetch the manifest: HTTP status 503, expected 200")
        return FetchedBody(pod_text("web").encode())


def test_pauses_grow_with_failures_up_to_the_period_and_are_reset_by_a_success() -> None:
    async def scenario() -> list[float]:
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        fetcher = ScriptedFetcher([False] * 6 + [True, False, False, True, True, True])
        async with running(HttpSource("http://example.test", "n1", ClockWithoutJitter(), fetcher=fetcher), Receiver()):
            await fetcher.finished.wait()
        return [after - before for before, after in pairwise(fetcher.times)]

    assert simulate(scenario())[0] == [1, 2, 4, 8, 16, 20, 20, 1, 2, 20, 20]


def test_nodes_with_the_same_url_have_the_same_uids() -> None:
    async def uid_on(node: str, url: str) -> str | None:
        receiver = Receiver()
        async with running(HttpSource(url, node, SystemClock()), receiver):
            await until(lambda: bool(receiver.updates))
        return receiver.updates[0].pods[0].metadata.uid

    async def scenario() -> None:
        async with serving(Server(pod_text("web")).answer) as url:
            assert await uid_on("n1", url) == await uid_on("n2", url)

    asyncio.run(scenario())


def test_config_maps_of_a_url_are_stored() -> None:
    async def scenario() -> None:
        objects = LocalObjects()
        server = Server(f"{config_map_text('c', 'v1')}---\n{pod_text('web')}")
        async with listening(server, objects=objects) as (receiver, _):
            await receiver.receives("web")
            assert (await objects.get(ConfigMap, "c")).data == {"key": "v1"}

    asyncio.run(scenario())


def test_a_password_in_the_url_is_used_and_never_shown() -> None:
    async def scenario() -> None:
        server = Server("kind: [")
        receiver = Receiver()
        async with serving(server.answer) as url:
            with_password = url.replace("http://", "http://node:hush@")
            source = HttpSource(with_password, "n1", SystemClock(), report=receiver.report)
            async with running(source, receiver):
                await until(lambda: bool(receiver.reports))
        assert server.requests[0].headers["Authorization"].startswith("Basic ")
        assert "hush" not in repr(receiver.reports)
        assert receiver.reports[0][0] == url

    asyncio.run(scenario())


@pytest.mark.parametrize("url", ["", "manifests.yaml", "ftp://host/x", "http://"])
def test_an_invalid_url_is_rejected_at_once(url: str) -> None:
    async def scenario() -> None:
        with pytest.raises(BadInput, match="expected http"):
            HttpSource(url, "n1", SystemClock())

    asyncio.run(scenario())


def test_aiohttp_is_loaded_only_when_a_source_runs() -> None:
    code = "import sys, podkeeper.sources.http; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
