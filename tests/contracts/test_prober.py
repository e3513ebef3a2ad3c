"""Every prober against the prober contract."""

import math

import pytest

from podkeeper.model.probing import Endpoint, GrpcEnd, HttpAnswer, HttpEnd, HttpRequest, NoAnswer, NotConnected
from podkeeper.ports.prober import Prober
from podkeeper.testing.contracts import Implementation, name_of, opened
from podkeeper.testing.contracts.contract import Scenario
from podkeeper.testing.contracts.prober import PROBER, ProberSubject
from podkeeper.testing.fakes import FakeProber

CLOSED = Endpoint("10.0.0.9", 81)


def fake() -> ProberSubject:
    def http(request: HttpRequest) -> HttpEnd | None:
        if str(CLOSED) in request.url:
            return NoAnswer("connection refused")
        return HttpAnswer(500) if request.url.endswith("/broken") else None

    def tcp(endpoint: Endpoint) -> str | None:
        return "connection refused" if endpoint == CLOSED else None

    def grpc(endpoint: Endpoint, service: str) -> GrpcEnd | None:
        return NotConnected("connection refused") if endpoint == CLOSED else None

    made = FakeProber(http=http, tcp=tcp, grpc=grpc)
    silent, unreachable = Endpoint("10.0.0.2", 80), Endpoint("10.0.0.3", 80)
    made.silent_hosts.add(silent.host)
    made.latency_seconds[unreachable.host] = math.inf
    prober: Prober = made  # the type checker's own contract
    return ProberSubject(
        prober,
        answering=Endpoint("10.0.0.1", 80),
        serving=Endpoint("10.0.0.1", 9000),
        closed=CLOSED,
        silent=silent,
        unreachable=unreachable,
    )


IMPLEMENTATIONS = {"fake": Implementation(opened(fake))}


@pytest.mark.parametrize("scenario", PROBER.scenarios, ids=name_of)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_a_promise_is_kept(implementation: Implementation[ProberSubject], scenario: Scenario[ProberSubject]) -> None:
    implementation.check(scenario)
