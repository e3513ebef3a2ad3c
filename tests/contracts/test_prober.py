"""Each prober against the prober contract."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from podkeeper.host.prober import NetworkProber
from podkeeper.model.probing import Endpoint, GrpcEnd, HttpAnswer, HttpEnd, HttpRequest, NoHttpAnswer, NotConnected
from podkeeper.ports.prober import Prober
from podkeeper.testing.contracts import Implementation, name_of, opened
from podkeeper.testing.contracts.contract import ContractCase
from podkeeper.testing.contracts.prober import PROBER, ProberSubject
from podkeeper.testing.fakes import FakeProber
from tests.host import loopback

CLOSED = Endpoint("10.0.0.9", 81)


def fake() -> ProberSubject:
    def http(request: HttpRequest) -> HttpEnd | None:
        if str(CLOSED) in request.url:
            return NoHttpAnswer("connection refused")
        return HttpAnswer(500) if request.url.endswith("/broken") else None

    def tcp(endpoint: Endpoint) -> str | None:
        return "connection refused" if endpoint == CLOSED else None

    def grpc(endpoint: Endpoint, service: str) -> GrpcEnd | None:
        return NotConnected("connection refused") if endpoint == CLOSED else None

    made = FakeProber(http=http, tcp=tcp, grpc=grpc)
    silent, unreachable = Endpoint("10.0.0.2", 80), Endpoint("10.0.0.3", 80)
    made.silent_hosts.add(silent.host)
    made.latency_seconds[unreachable.host] = math.inf
    prober: Prober = made  # mypy checks the signatures
    return ProberSubject(
        prober,
        answering=Endpoint("10.0.0.1", 80),
        serving=Endpoint("10.0.0.1", 9000),
        closed=CLOSED,
        silent=silent,
        unreachable=unreachable,
    )


async def _web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    status = "500 Broken" if head.startswith(b"GET /broken ") else "200 OK"
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nhi".encode())


async def _healthy(request: bytes, context: Any) -> bytes:
    return b"\x08\x01"


@asynccontextmanager
async def network() -> AsyncIterator[ProberSubject]:
    made = NetworkProber(version="1.36")
    prober: Prober = made
    async with (
        loopback.server(_web) as answering,
        loopback.server(loopback.silent) as silent,
        loopback.grpc_server(_healthy) as serving,
    ):
        with loopback.closed() as closed, loopback.unreachable() as unreachable:
            yield ProberSubject(
                prober, answering=answering, serving=serving, closed=closed, silent=silent, unreachable=unreachable
            )
            await made.close()


IMPLEMENTATIONS = {
    "fake": Implementation(opened(fake)),
    "network": Implementation(network, run=asyncio.run),
}


@pytest.mark.parametrize("scenario", PROBER.scenarios, ids=name_of)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_contract(implementation: Implementation[ProberSubject], scenario: ContractCase[ProberSubject]) -> None:
    implementation.check(scenario)
