"""TCP and gRPC probes against real servers, slow name lookups, and late imports."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from podkeeper.concurrency.threads import in_thread
from podkeeper.host.dial import Address, DialFailed, HostResolver, dial
from podkeeper.host.prober import NetworkProber
from podkeeper.model.probing import CallFailed, Endpoint, GrpcEnd, HealthAnswer, NotConnected
from podkeeper.rules.probe.net import grpc_report
from tests.host.loopback import closed, grpc_server, server, silent, unreachable

Check = Callable[[bytes, Any], Awaitable[bytes]]


def tcp(endpoint: Endpoint, timeout_seconds: float = 5) -> str | None:
    return asyncio.run(NetworkProber(version="1.36").tcp(endpoint, timeout_seconds))


def test_a_tcp_probe_connects_and_closes() -> None:
    async def scenario() -> tuple[str | None, bytes]:
        received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.set_result(await reader.read())

        async with server(handle) as endpoint:
            return await NetworkProber(version="1.36").tcp(endpoint, 5), await received

    assert asyncio.run(scenario()) == (None, b"")


def test_the_error_of_a_tcp_probe_is_that_of_the_kubelet() -> None:
    with closed() as endpoint:
        assert tcp(endpoint) == f"dial tcp {endpoint}: connect: connection refused"
    with unreachable() as endpoint:
        assert tcp(endpoint, 0.1) == f"dial tcp {endpoint}: i/o timeout"
    assert tcp(Endpoint("::1", 1)) in {
        "dial tcp [::1]:1: connect: connection refused",
        "dial tcp [::1]:1: connect: cannot assign requested address",  # no IPv6 on this machine
        "dial tcp [::1]:1: connect: network is unreachable",
    }
    for name in ("unknown.invalid", "x" * 70 + ".invalid"):
        assert (tcp(Endpoint(name, 80), 20) or "").startswith(f"dial tcp: lookup {name}: ")


def test_the_first_address_that_accepts_is_used() -> None:
    async def scenario() -> None:
        async with server(silent) as endpoint:
            (await dial(HostResolver(), Endpoint("localhost", endpoint.port), 5)).close()

    asyncio.run(scenario())


def _own_threads() -> list[str]:
    """Return our threads, without those of libraries."""
    return [thread.name for thread in threading.enumerate() if "look up" in thread.name]


def test_a_slow_name_lookup_takes_one_thread_and_delays_no_other_request() -> None:
    async def scenario() -> None:
        resolver, gate = HostResolver(), threading.Event()

        def look_up() -> list[Address]:
            gate.wait(20)
            return []

        slow = in_thread(look_up, "look up slow.invalid")
        resolver._lookups["slow.invalid"] = slow  # instead of a slow name server
        threads = _own_threads()
        tries = [dial(resolver, Endpoint("slow.invalid", 80), 0.1) for _ in range(50)]
        async with server(silent) as endpoint:
            for end in await asyncio.gather(*tries, return_exceptions=True):
                assert isinstance(end, DialFailed)
                assert str(end) == "dial tcp: lookup slow.invalid: i/o timeout"
            assert _own_threads() == threads
            (await dial(resolver, endpoint, 5)).close()
        gate.set()
        await slow

    asyncio.run(scenario())


async def _refuses(request: bytes, context: Any) -> bytes:
    return bytes(await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service"))


async def _hangs(request: bytes, context: Any) -> bytes:
    await asyncio.sleep(20)
    return b""


def replying(message: bytes) -> Check:
    async def check(request: bytes, context: Any) -> bytes:
        return message

    return check


UNKNOWN_FIELDS = b"\x12\x03abc" + b"\x1d" + bytes(4) + b"\x21" + bytes(8) + b"\x28\x96\x01"
GRPC: dict[str, tuple[Check | None, GrpcEnd]] = {
    "serving": (replying(b"\x08\x01"), HealthAnswer(1)),
    "not serving": (replying(b"\x08\x02"), HealthAnswer(2)),
    "an empty response means unknown": (replying(b""), HealthAnswer(0)),
    "unknown fields are ignored": (replying(UNKNOWN_FIELDS + b"\x08\x01"), HealthAnswer(1)),
    "a status of several bytes": (replying(b"\x08\xac\x02"), HealthAnswer(300)),
    "refused": (_refuses, CallFailed(5, "unknown service")),
}  # fmt: skip


@pytest.mark.parametrize("check, expected", GRPC.values(), ids=GRPC.keys())
def test_the_status_of_a_health_service_is_returned(check: Check | None, expected: GrpcEnd) -> None:
    async def scenario() -> GrpcEnd:
        async with grpc_server(check) as endpoint:
            return await NetworkProber(version="1.36").grpc(endpoint, "", 5)

    assert asyncio.run(scenario()) == expected


def test_missing_invalid_and_slow_health_services_fail_with_a_code() -> None:
    async def scenario(check: Check | None) -> GrpcEnd:
        async with grpc_server(check) as endpoint:
            return await NetworkProber(version="1.36").grpc(endpoint, "", 1)

    for check, code in ((None, 12), (replying(b"\x08"), 13), (replying(b"\x0f"), 13), (_hangs, 4)):
        end = asyncio.run(scenario(check))
        assert isinstance(end, CallFailed)
        assert end.code == code


def test_a_health_check_names_the_service_and_the_agent() -> None:
    received: list[tuple[bytes, str]] = []

    async def check(request: bytes, context: Any) -> bytes:
        received.append((request, dict(context.invocation_metadata())["user-agent"]))
        return b"\x08\x01"

    async def scenario() -> None:
        async with grpc_server(check) as endpoint:
            for service in ("", "readiness", "s" * 200):
                assert await NetworkProber(version="1.36").grpc(endpoint, service, 5) == HealthAnswer(1)

    asyncio.run(scenario())
    assert [request for request, _ in received] == [b"", b"\x0a\x09readiness", b"\x0a\xc8\x01" + b"s" * 200]
    assert {agent.split()[0] for _, agent in received} == {"kube-probe/1.36"}


def test_the_error_of_an_unreachable_grpc_server_is_that_of_the_kubelet() -> None:
    async def scenario() -> None:
        prober = NetworkProber(version="1.36")
        async with server(silent) as silent_endpoint:
            with closed() as nothing, unreachable() as far:
                for endpoint in (silent_endpoint, nothing, far):
                    end = await prober.grpc(endpoint, "", 0.1)
                    assert end == NotConnected("context deadline exceeded", timed_out=True)
                    assert grpc_report(endpoint, 1, end).output == (
                        f'timeout: failed to connect service "{endpoint}" within 1s: context deadline exceeded'
                    )

    asyncio.run(scenario())


def test_a_check_can_be_cancelled() -> None:
    async def scenario() -> None:
        prober = NetworkProber(version="1.36")
        async with server(silent) as silent_endpoint:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await prober.grpc(silent_endpoint, "", 20)

    asyncio.run(scenario())


def test_libraries_are_loaded_at_the_first_request() -> None:
    script = """
import asyncio, sys
from podkeeper.host.prober import NetworkProber
from podkeeper.model.probing import Endpoint, HttpRequest

def loaded():
    return [name for name in ("aiohttp", "google.protobuf", "grpc") if name in sys.modules]

async def main():
    prober = NetworkProber(version="1.36")
    await prober.tcp(Endpoint("127.0.0.1", 1), 1)
    print(*loaded(), "-")
    await prober.http(HttpRequest("http://127.0.0.1:1/", {}), 1)
    print(*loaded(), "-")
    await prober.close()

asyncio.run(main())
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == ["-", "aiohttp -"]
