"""Pods from a real web server: what is asked, what is told, and what no answer takes away."""

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
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.web_page import Fetched, NoAnswer
from podkeeper.testing.virtual_time import simulate
from tests.sources.static_listener import (
    FailingStore,
    InlineExecutor,
    Listener,
    config_map_text,
    pod_text,
    running,
    until,
)
from tests.sources.web_server import serving


class Server:
    """Says what a test says, and remembers what it was asked."""

    def __init__(self, body: str = "", *, etag: str = "") -> None:
        self.body = body
        self.etag = etag
        self.status = 200
        self.asked: list[web.Request] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        if self.etag and request.headers.get("If-None-Match") == self.etag:
            return web.Response(status=304)
        return web.Response(text=self.body, status=self.status, headers={"ETag": self.etag} if self.etag else None)

    async def is_asked_again(self) -> None:
        count = len(self.asked)
        await until(lambda: len(self.asked) >= count + 2)


@asynccontextmanager
async def listening(
    server: Server, *, headers: dict[str, tuple[str, ...]] | None = None, objects: LocalObjects | None = None
) -> AsyncIterator[tuple[Listener, HttpSource]]:
    listener = Listener()
    async with serving(server.answer) as server.url:
        source = HttpSource(
            server.url,
            "n1",
            SystemClock(),
            headers=headers,
            objects=objects,
            period_seconds=0.02,
            report=listener.report,
        )
        async with running(source, listener):
            yield listener, source


BODIES = {
    "one pod": (pod_text("web"), ("web",)),
    "many documents": (f"{pod_text('web')}---\n{pod_text('db')}", ("web", "db")),
    "an empty list": ('{"apiVersion": "v1", "kind": "PodList", "items": []}', ()),
    "a list without items": ('{"apiVersion": "v1", "kind": "PodList"}', ()),
    "nothing, as the first answer": ("", ()),
}


@pytest.mark.parametrize("body, names", BODIES.values(), ids=BODIES.keys())
def test_a_body_is_a_manifest(body: str, names: tuple[str, ...]) -> None:
    async def scenario() -> None:
        async with listening(Server(body)) as (listener, _):
            await listener.hears(*names)
            assert {update.source for update in listener.told} == {"http"}

    asyncio.run(scenario())


def test_headers_are_sent_and_a_body_that_did_not_change_is_not_sent_again() -> None:
    async def scenario() -> None:
        server = Server(pod_text("web"), etag='"one"')
        async with listening(server, headers={"X-Node": ("n1", "again")}) as (listener, _):
            await listener.hears("web")
            await server.is_asked_again()
            assert server.asked[0].headers.getall("X-Node") == ["n1", "again"]
            assert "If-None-Match" not in server.asked[0].headers
            assert server.asked[-1].headers["If-None-Match"] == '"one"'
            assert len(listener.told) == 1
            server.body, server.etag = pod_text("db"), '"two"'
            await listener.hears("db")

    asyncio.run(scenario())


def set_status(server: Server) -> None:
    server.status = 404


def set_empty(server: Server) -> None:
    server.body = " \n"


def set_huge(server: Server) -> None:
    server.body = "#" * (11 * 1024 * 1024)


def set_broken(server: Server) -> None:
    server.body = "kind: Pod\nmetadata: [\n"


TROUBLES: dict[str, tuple[Callable[[Server], None], str]] = {
    "not found": (set_status, "404 Not Found"),
    "an empty body": (set_empty, "the manifest is empty"),
    "a body too large": (set_huge, "larger than"),
    "a broken body": (set_broken, "cannot parse YAML"),
}


@pytest.mark.parametrize("spoil, reason", TROUBLES.values(), ids=TROUBLES.keys())
def test_failures_are_reported_once_and_change_no_pods(spoil: Callable[[Server], None], reason: str) -> None:
    async def scenario() -> None:
        server = Server(pod_text("web"))
        async with listening(server) as (listener, source):
            await listener.hears("web")
            spoil(server)
            await until(lambda: bool(source.problems()))
            await server.is_asked_again()
            assert reason in source.problems()[0].message
            assert [place for place, _ in listener.reports] == [server.url]
            assert listener.names() == ["web"]
            server.status, server.body = 200, pod_text("web", "mended")
            await until(lambda: listener.images() == {"web": "mended"})
            assert source.problems() == ()

    asyncio.run(scenario())


REFUSED = {name: TROUBLES[name] for name in ("an empty body", "a body too large")}


@pytest.mark.parametrize("spoil, reason", REFUSED.values(), ids=REFUSED.keys())
def test_the_etag_of_a_refused_body_is_not_sent_back(spoil: Callable[[Server], None], reason: str) -> None:
    """A server that answers 304 to it would make the trouble look gone."""

    async def scenario() -> None:
        server = Server(pod_text("web"), etag='"good"')
        async with listening(server) as (listener, source):
            await listener.hears("web")
            spoil(server)
            server.etag = '"refused"'
            await until(lambda: bool(source.problems()))
            for _ in range(2):
                await server.is_asked_again()
                assert reason in source.problems()[0].message
            assert '"refused"' not in {request.headers.get("If-None-Match") for request in server.asked}
            server.body, server.etag = pod_text("web"), '"good"'
            await until(lambda: not source.problems())
            assert len(listener.told) == 1

    asyncio.run(scenario())


def test_the_etag_of_a_first_answer_that_was_empty_is_not_sent_back() -> None:
    async def scenario() -> None:
        server = Server("", etag='"empty"')
        async with listening(server) as (listener, source):
            await until(lambda: bool(listener.told))
            await until(lambda: bool(source.problems()))  # only the first answer may be empty
            await server.is_asked_again()
            assert {request.headers.get("If-None-Match") for request in server.asked} == {None}

    asyncio.run(scenario())


def test_an_unexpected_failure_is_reported_and_the_same_body_is_taken_by_the_next_try() -> None:
    async def scenario() -> None:
        server, store = Server(pod_text("web"), etag='"one"'), FailingStore()
        async with listening(server, objects=store) as (listener, source):
            await listener.hears("web")
            store.failures = 1
            server.body, server.etag = pod_text("db"), '"two"'
            await listener.hears("db")
            assert any("please report this" in each.message for _, problems in listener.reports for each in problems)
            assert source.problems() == ()

    asyncio.run(scenario())


def test_what_was_refused_by_the_listener_is_told_again_though_the_server_says_nothing_new() -> None:
    async def scenario() -> None:
        server = Server(pod_text("web"), etag='"one"')
        refusals = [TryLater("the loop is not ready"), RuntimeError("a bug")]
        told: list[PodUpdate] = []

        def tell(update: PodUpdate) -> None:
            if refusals:
                raise refusals.pop()
            told.append(update)

        async with serving(server.answer) as url:
            source = HttpSource(url, "n1", SystemClock(), period_seconds=0.02)
            async with asyncio.TaskGroup() as group:
                running_source = group.create_task(source.run(tell))
                await until(lambda: bool(told))
                await server.is_asked_again()
                running_source.cancel()
        assert len(told) == 1

    asyncio.run(scenario())


def test_a_server_that_is_not_there_says_nothing_about_pods() -> None:
    async def scenario() -> None:
        async with serving(Server().answer) as gone:
            pass
        listener = Listener()
        source = HttpSource(gone, "n1", SystemClock(), period_seconds=0.02)
        async with running(source, listener):
            await until(lambda: bool(source.problems()))
            assert "cannot fetch it" in source.problems()[0].message
        assert listener.told == []

    asyncio.run(scenario())


def test_a_first_answer_that_is_an_error_is_no_empty_set() -> None:
    async def scenario() -> None:
        server = Server(pod_text("web"))
        server.status = 503
        async with listening(server) as (listener, source):
            await until(lambda: bool(source.problems()))
            assert listener.told == []
            server.status = 200
            await listener.hears("web")

    asyncio.run(scenario())


class Steady(SystemClock):
    """A clock without chance."""

    def fraction(self) -> float:
        return 0.0


class ScriptedPage:
    """Succeeds or fails as scripted, and notes when it is fetched."""

    def __init__(self, succeeds: list[bool]) -> None:
        self._succeeds = succeeds
        self.times: list[float] = []
        self.finished = asyncio.Event()

    async def __aenter__(self) -> "ScriptedPage":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def fetch(self, etag: str) -> Fetched:
        if len(self.times) == len(self._succeeds):
            self.finished.set()
            await asyncio.Event().wait()
        self.times.append(asyncio.get_running_loop().time())
        if not self._succeeds[len(self.times) - 1]:
            raise NoAnswer("cannot fetch it: 503")
        return Fetched(pod_text("web").encode())


def test_pauses_grow_with_failures_up_to_the_period_and_start_over_after_a_success() -> None:
    async def scenario() -> list[float]:
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        page = ScriptedPage([False] * 6 + [True, False, False, True, True, True])
        async with running(HttpSource("http://example.test", "n1", Steady(), page=page), Listener()):
            await page.finished.wait()
        return [after - before for before, after in pairwise(page.times)]

    assert simulate(scenario())[0] == [1, 2, 4, 8, 16, 20, 20, 1, 2, 20, 20]


def test_a_fleet_that_shares_a_url_shares_uids() -> None:
    async def uid_on(node: str, url: str) -> str | None:
        listener = Listener()
        async with running(HttpSource(url, node, SystemClock()), listener):
            await until(lambda: bool(listener.told))
        return listener.told[0].pods[0].metadata.uid

    async def scenario() -> None:
        async with serving(Server(pod_text("web")).answer) as url:
            assert await uid_on("n1", url) == await uid_on("n2", url)

    asyncio.run(scenario())


def test_config_maps_of_a_url_are_kept_in_the_store() -> None:
    async def scenario() -> None:
        objects = LocalObjects()
        server = Server(f"{config_map_text('c', 'v1')}---\n{pod_text('web')}")
        async with listening(server, objects=objects) as (listener, _):
            await listener.hears("web")
            assert (await objects.get(ConfigMap, "c")).data == {"key": "v1"}

    asyncio.run(scenario())


def test_a_password_in_the_url_is_used_and_never_shown() -> None:
    async def scenario() -> None:
        server = Server("kind: [")
        listener = Listener()
        async with serving(server.answer) as url:
            with_password = url.replace("http://", "http://node:hush@")
            source = HttpSource(with_password, "n1", SystemClock(), report=listener.report)
            async with running(source, listener):
                await until(lambda: bool(listener.reports))
        assert server.asked[0].headers["Authorization"].startswith("Basic ")
        assert "hush" not in repr(listener.reports)
        assert listener.reports[0][0] == url

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
