"""What every prober promises: it reports, in time, and never raises for what the other side does."""

import asyncio
from dataclasses import dataclass

from podkeeper.model.probing import Answered, Endpoint, HttpAnswer, HttpRequest, NoAnswer, NotConnected
from podkeeper.ports.prober import Prober
from podkeeper.testing.contracts.contract import Contract

PROBER: "Contract[ProberSubject]" = Contract()

SERVING = 1
_TIMEOUT_SECONDS = 1.0


@dataclass(frozen=True)
class ProberSubject:
    """A prober, and ends to try it on.

    `answering` serves HTTP: 200 at `/`, 500 at `/broken`. `serving` is a healthy gRPC service. Nobody listens at
    `closed`. `silent` accepts connections and never says a word; `unreachable` does not even accept them.
    """

    prober: Prober
    answering: Endpoint
    serving: Endpoint
    closed: Endpoint
    silent: Endpoint
    unreachable: Endpoint


def _get(endpoint: Endpoint, path: str = "/") -> HttpRequest:
    return HttpRequest(f"http://{endpoint}{path}", {})


@PROBER.promises
async def an_answer_is_told_whatever_it_is(subject: ProberSubject) -> None:
    """`http` tells the status the server answered with, good or bad."""
    good = await subject.prober.http(_get(subject.answering), _TIMEOUT_SECONDS)
    bad = await subject.prober.http(_get(subject.answering, "/broken"), _TIMEOUT_SECONDS)
    assert isinstance(good, HttpAnswer)
    assert isinstance(bad, HttpAnswer)
    assert (good.status, bad.status) == (200, 500)


@PROBER.promises
async def nobody_there_is_no_answer(subject: ProberSubject) -> None:
    """A refused connection is told as such by every method, with some text."""
    end = await subject.prober.http(_get(subject.closed), _TIMEOUT_SECONDS)
    assert isinstance(end, NoAnswer)
    assert end.message
    assert await subject.prober.tcp(subject.closed, _TIMEOUT_SECONDS)
    assert isinstance(await subject.prober.grpc(subject.closed, "", _TIMEOUT_SECONDS), NotConnected)


@PROBER.promises
async def a_connection_is_all_tcp_wants(subject: ProberSubject) -> None:
    """`tcp` returns None when somebody listens, even without a word."""
    assert await subject.prober.tcp(subject.answering, _TIMEOUT_SECONDS) is None
    assert await subject.prober.tcp(subject.silent, _TIMEOUT_SECONDS) is None


@PROBER.promises
async def silence_ends_with_the_timeout(subject: ProberSubject) -> None:
    """No method waits longer than its timeout, give or take what a busy machine needs."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert isinstance(await subject.prober.http(_get(subject.silent), _TIMEOUT_SECONDS), NoAnswer)
    assert await subject.prober.tcp(subject.unreachable, _TIMEOUT_SECONDS)
    await subject.prober.grpc(subject.unreachable, "", _TIMEOUT_SECONDS)
    assert loop.time() - begun < 3 * _TIMEOUT_SECONDS + 20


@PROBER.promises
async def a_health_service_is_asked(subject: ProberSubject) -> None:
    """`grpc` tells what the health service answered."""
    assert await subject.prober.grpc(subject.serving, "", _TIMEOUT_SECONDS) == Answered(SERVING)
