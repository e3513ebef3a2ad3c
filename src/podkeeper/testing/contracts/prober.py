"""Contract of the prober port: every probe returns a result in time and never raises for the peer's behaviour."""

import asyncio
from dataclasses import dataclass

from podkeeper.model.probing import Endpoint, HealthAnswer, HttpAnswer, HttpRequest, NoHttpAnswer, NotConnected
from podkeeper.ports.prober import Prober
from podkeeper.testing.contracts.contract import Contract

PROBER: "Contract[ProberSubject]" = Contract()

SERVING = 1
_TIMEOUT_SECONDS = 1.0


@dataclass(frozen=True)
class ProberSubject:
    """A prober and the endpoints to probe.

    `answering` serves HTTP: 200 at `/`, 500 at `/broken`. `serving` is a healthy gRPC service. `closed` refuses
    connections. `silent` accepts connections and sends nothing. `unreachable` drops connection requests.
    """

    prober: Prober
    answering: Endpoint
    serving: Endpoint
    closed: Endpoint
    silent: Endpoint
    unreachable: Endpoint


def _get(endpoint: Endpoint, path: str = "/") -> HttpRequest:
    return HttpRequest(f"http://{endpoint}{path}", {})


@PROBER.scenario
async def http_returns_the_status_of_the_response(subject: ProberSubject) -> None:
    """`http` returns the status code of the response, success or error."""
    good = await subject.prober.http(_get(subject.answering), _TIMEOUT_SECONDS)
    bad = await subject.prober.http(_get(subject.answering, "/broken"), _TIMEOUT_SECONDS)
    assert isinstance(good, HttpAnswer)
    assert isinstance(bad, HttpAnswer)
    assert (good.status, bad.status) == (200, 500)


@PROBER.scenario
async def a_refused_connection_is_reported(subject: ProberSubject) -> None:
    """If the connection is refused, no method raises.

    Each returns a failure: `http` and `tcp` with a message, `grpc` as NotConnected.
    """
    end = await subject.prober.http(_get(subject.closed), _TIMEOUT_SECONDS)
    assert isinstance(end, NoHttpAnswer)
    assert end.message
    assert await subject.prober.tcp(subject.closed, _TIMEOUT_SECONDS)
    assert isinstance(await subject.prober.grpc(subject.closed, "", _TIMEOUT_SECONDS), NotConnected)


@PROBER.scenario
async def tcp_succeeds_when_the_connection_is_accepted(subject: ProberSubject) -> None:
    """`tcp` returns None when the connection is accepted, even if the server sends nothing."""
    assert await subject.prober.tcp(subject.answering, _TIMEOUT_SECONDS) is None
    assert await subject.prober.tcp(subject.silent, _TIMEOUT_SECONDS) is None


@PROBER.scenario
async def every_method_ends_at_its_timeout(subject: ProberSubject) -> None:
    """Each method returns a failure when its timeout has passed without a response.

    The limit is longer than the timeout, so that the test passes on a busy machine.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert isinstance(await subject.prober.http(_get(subject.silent), _TIMEOUT_SECONDS), NoHttpAnswer)
    assert await subject.prober.tcp(subject.unreachable, _TIMEOUT_SECONDS)
    await subject.prober.grpc(subject.unreachable, "", _TIMEOUT_SECONDS)
    assert loop.time() - begun < 3 * _TIMEOUT_SECONDS + 20


@PROBER.scenario
async def grpc_returns_the_health_status(subject: ProberSubject) -> None:
    """`grpc` returns the serving status that the health service reports."""
    assert await subject.prober.grpc(subject.serving, "", _TIMEOUT_SECONDS) == HealthAnswer(SERVING)
