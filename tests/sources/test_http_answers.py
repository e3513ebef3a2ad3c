"""The HTTP source, response by response: ETags, reports and pauses."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.messages import PodUpdate
from podkeeper.sources.http import HttpSource
from podkeeper.sources.http_fetch import FetchedBody, FetchFailed, HttpFetcher, shown_url
from podkeeper.testing.virtual_time import FixedJitterClock, simulate
from tests.sources.static_listener import InlineExecutor, Receiver, pod_text, running
from tests.sources.web_server import serving

URL = "http://user:secret@example.test/pods"
PLACE = "http://example.test/pods"
WEB, DB = pod_text("web").encode(), pod_text("db").encode()


class ScriptedFetcher:
    """Returns the next response, and records the time and ETag of each request."""

    def __init__(self, *answers: FetchedBody | Exception | None) -> None:
        self._answers = list(answers)
        self.requests: list[tuple[float, str]] = []
        self.finished = asyncio.Event()
        self.open = 0

    async def __aenter__(self) -> "ScriptedFetcher":
        self.open += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.open -= 1

    async def fetch(self, etag: str) -> FetchedBody | None:
        if not self._answers:
            self.finished.set()
            await asyncio.Event().wait()
        self.requests.append((asyncio.get_running_loop().time(), etag))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def results_of(
    *answers: FetchedBody | Exception | None, jitter: float = 0.0, **options: Any
) -> tuple[list[tuple[float, str]], list[list[str]], list[tuple[str, tuple[Problem, ...]]], tuple[Problem, ...]]:
    """Return the requests, the names of each SET, the reports, and the last problems."""
    receiver = Receiver()

    async def scenario() -> tuple[list[tuple[float, str]], tuple[Problem, ...]]:
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        fetcher = ScriptedFetcher(*answers)
        source = HttpSource(URL, "n1", FixedJitterClock(jitter), fetcher=fetcher, report=receiver.report, **options)
        assert source.name == "http"
        async with running(source, receiver):
            await fetcher.finished.wait()
            problems = source.problems()
        assert fetcher.open == 0
        return fetcher.requests, problems

    requests, problems = simulate(scenario())[0]
    updates = [[(pod.metadata.name or "").removesuffix("-n1") for pod in update.pods] for update in receiver.updates]
    return requests, updates, receiver.reports, problems


def test_a_body_is_sent_once_and_its_etag_is_sent_back() -> None:
    requests, updates, reports, problems = results_of(
        FetchedBody(WEB, "one"), None, FetchedBody(WEB, "two"), FetchedBody(DB, ""), FetchedBody(DB, "three"), None
    )
    assert requests == [(0, ""), (20, "one"), (40, "one"), (60, "two"), (80, ""), (100, "three")]
    assert (updates, reports, problems) == ([["web"], ["db"]], [], ())


def test_failures_are_reported_and_retried_with_a_backoff() -> None:
    why = "cannot fetch the manifest: HTTP status 503, expected 200"
    refused = FetchFailed(why)
    requests, updates, reports, problems = results_of(
        FetchedBody(WEB, "e"), refused, refused, ZeroDivisionError("odd"), None
    )
    assert [at for at, _ in requests] == [0, 20, 21, 23, 27]
    assert {etag for _, etag in requests[1:]} == {"e"}
    odd = "unexpected error: ZeroDivisionError('odd'); please report this bug"
    assert reports[:2] == [
        (PLACE, (Problem(why, file=PLACE),)),
        (PLACE, (Problem(odd, file=PLACE),)),
    ]
    assert (updates, problems) == ([["web"]], ())


@pytest.mark.parametrize("jitter, expected", [(0.0, [0, 1, 3, 7, 12, 17]), (1.0, [0, 1.5, 4.5, 10.5, 18, 25.5])])
def test_pauses_grow_up_to_the_period_and_are_jittered(jitter: float, expected: list[float]) -> None:
    requests, updates, _, problems = results_of(*[FetchFailed("no")] * 6, jitter=jitter, period_seconds=5.0)
    assert [at for at, _ in requests] == expected
    assert (updates, problems) == ([], (Problem("no", file=PLACE),))


def test_not_modified_as_the_first_answer_is_an_error() -> None:
    requests, updates, _, problems = results_of(None)
    assert (requests, updates) == ([(0, "")], [])
    assert problems == (Problem("cannot fetch the manifest: status 304 without a previous body", file=PLACE),)


def test_an_empty_body_is_an_empty_set_only_as_the_first_answer() -> None:
    empty = FetchedBody(b" \n", "e")
    why = "the manifest is empty; to remove its pods, serve an empty PodList"
    requests, updates, _, problems = results_of(empty, FetchedBody(WEB, "w"), empty, FetchedBody(DB, "d"))
    assert requests == [(0, ""), (20, ""), (40, "w"), (41, "w")]
    assert (updates, problems) == ([[], ["web"], ["db"]], ())
    assert results_of(FetchedBody(WEB, ""), empty)[3] == (Problem(why, file=PLACE),)


@pytest.mark.parametrize("url", ["ftp://h/p", "http:///p", "/p", "https://", "h"])
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match=r"expected http\[s\]://HOST/PATH"):
        HttpSource(url, "n1", Unused())


class Unused:
    """A clock that is never used."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


URLS = {
    "http://h/p?q#f": "http://h/p?q#f",
    "https://user@h:1/p": "https://h:1/p",
    "https://user:a@b@h/p": "https://h/p",
}


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_shown_without_its_password(url: str) -> None:
    assert shown_url(url) == URLS[url]


def test_updates_come_from_the_source_http() -> None:
    sources: list[str] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        fetcher = ScriptedFetcher(FetchedBody(WEB, ""))

        def send(update: PodUpdate) -> None:
            sources.append(update.source)

        running_source = asyncio.ensure_future(HttpSource(URL, "n1", FixedJitterClock(), fetcher=fetcher).run(send))
        await fetcher.finished.wait()
        running_source.cancel()
        await asyncio.wait([running_source])

    simulate(scenario())
    assert sources == ["http"]


def test_a_url_is_fetched_with_its_headers() -> None:
    requests: list[tuple[str | None, list[str]]] = []

    async def answer(request: web.Request) -> web.Response:
        requests.append((request.headers.get("If-None-Match"), request.headers.getall("X-Own", [])))
        if request.headers.get("If-None-Match") == "e":
            return web.Response(status=304)
        status = 404 if len(requests) > 3 else 200
        return web.Response(text="body", status=status, headers={"ETag": "e"} if len(requests) == 1 else None)

    async def scenario() -> None:
        async with serving(answer) as url:
            fetcher = HttpFetcher(url, {"X-Own": ("one", "two")})
            async with fetcher:
                assert await fetcher.fetch("") == FetchedBody(b"body", "e")
                assert await fetcher.fetch("e") is None
                assert await fetcher.fetch("f") == FetchedBody(b"body", "")
                with pytest.raises(
                    FetchFailed, match=r"^cannot fetch the manifest: HTTP status 404 Not Found, expected 200$"
                ):
                    await fetcher.fetch("")
            with pytest.raises(RuntimeError):
                await fetcher.fetch("")

    asyncio.run(scenario())
    assert requests == [(None, ["one", "two"]), ("e", ["one", "two"]), ("f", ["one", "two"]), (None, ["one", "two"])]
