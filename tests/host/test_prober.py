"""TCP and gRPC probes against real servers, names that are slow to look up, and what the prober costs when unused."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from podkeeper.host.dialling import Address, DialFailed, Names, dial
from podkeeper.host.prober import NetworkProber
from podkeeper.host.threads import in_thread
from podkeeper.model.probing import Answered, CallFailed, Endpoint, GrpcEnd, NotConnected
from podkeeper.rules.probe.net import judge_grpc
from tests.host.loopback import closed, grpc_server, server, silence, unreachable

Check = Callable[[bytes, Any], Awaitable[bytes]]


def tcp(endpoint: Endpoint, timeout_seconds: float = 5) -> str | None:
    return asyncio.run(NetworkProber(version="1.36").tcp(endpoint, timeout_seconds))


def test_a_tcp_probe_connects_and_hangs_up() -> None:
    async def scenario() -> tuple[str | None, bytes]:
        heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.set_result(await reader.read())

        async with server(talk) as endpoint:
            return await NetworkProber(version="1.36").tcp(endpoint, 5), await heard

    assert asyncio.run(scenario()) == (None, b"")


def test_a_tcp_probe_tells_in_the_reference_s_words_why_it_could_not_connect() -> None:
    with closed() as endpoint:
        assert tcp(endpoint) == f"dial tcp {endpoint}: connect: connection refused"
    with unreachable() as endpoint:
        assert tcp(endpoint, 0.1) == f"dial tcp {endpoint}: i/o timeout"
    assert tcp(Endpoint("::1", 1)) in {
        "dial tcp [::1]:1: connect: connection refused",
        "dial tcp [::1]:1: connect: cannot assign requested address",  # a machine without IPv6
        "dial tcp [::1]:1: connect: network is unreachable",
    }
    for name in ("nobody.invalid", "x" * 70 + ".invalid"):
        assert (tcp(Endpoint(name, 80), 20) or "").startswith(f"dial tcp: lookup {name}: ")


def test_of_several_addresses_the_first_that_answers_counts() -> None:
    async def scenario() -> None:
        async with server(silence) as endpoint:
            (await dial(Names(), Endpoint("localhost", endpoint.port), 5)).close()

    asyncio.run(scenario())


def _own_threads() -> list[str]:
    """The threads that we began; libraries in the same process begin and end theirs as they like."""
    return [thread.name for thread in threading.enumerate() if "look up" in thread.name]


def test_a_name_that_is_slow_to_look_up_takes_one_thread_and_delays_nobody() -> None:
    async def scenario() -> None:
        names, gate = Names(), threading.Event()

        def look_up() -> list[Address]:
            gate.wait(20)
            return []

        slow = in_thread(look_up, "look up slow.invalid")
        names._asked["slow.invalid"] = slow  # no name server of ours is that slow
        threads = _own_threads()
        tries = [dial(names, Endpoint("slow.invalid", 80), 0.1) for _ in range(50)]
        async with server(silence) as endpoint:
            for end in await asyncio.gather(*tries, return_exceptions=True):
                assert isinstance(end, DialFailed)
                assert str(end) == "dial tcp: lookup slow.invalid: i/o timeout"
            assert _own_threads() == threads
            (await dial(names, endpoint, 5)).close()
        gate.set()
        await slow

    asyncio.run(scenario())


async def _refuses(request: bytes, context: Any) -> bytes:
    return bytes(await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service"))


async def _hangs(request: bytes, context: Any) -> bytes:
    await asyncio.sleep(20)
    return b""


def answering(message: bytes) -> Check:
    async def check(request: bytes, context: Any) -> bytes:
        return message

    return check


UNKNOWN_FIELDS = b"\x12\x03abc" + b"\x1d" + bytes(4) + b"\x21" + bytes(8) + b"\x28\x96\x01"
GRPC: dict[str, tuple[Check | None, GrpcEnd]] = {
    "serving": (answering(b"\x08\x01"), Answered(1)),
    "not serving": (answering(b"\x08\x02"), Answered(2)),
    "an empty answer means unknown": (answering(b""), Answered(0)),
    "fields nobody knows are passed over": (answering(UNKNOWN_FIELDS + b"\x08\x01"), Answered(1)),
    "a status by many bytes": (answering(b"\x08\xac\x02"), Answered(300)),
    "refused": (_refuses, CallFailed(5, "unknown service")),
}  # fmt: skip


@pytest.mark.parametrize("check, expected", GRPC.values(), ids=GRPC.keys())
def test_a_health_service_s_answer_is_told(check: Check | None, expected: GrpcEnd) -> None:
    async def scenario() -> GrpcEnd:
        async with grpc_server(check) as endpoint:
            return await NetworkProber(version="1.36").grpc(endpoint, "", 5)

    assert asyncio.run(scenario()) == expected


def test_who_has_no_health_service_or_talks_nonsense_or_is_too_slow_is_told() -> None:
    async def scenario(check: Check | None) -> GrpcEnd:
        async with grpc_server(check) as endpoint:
            return await NetworkProber(version="1.36").grpc(endpoint, "", 1)

    for check, code in ((None, 12), (answering(b"\x08"), 13), (answering(b"\x0f"), 13), (_hangs, 4)):
        end = asyncio.run(scenario(check))
        assert isinstance(end, CallFailed)
        assert end.code == code


def test_a_health_check_names_the_service_and_the_agent() -> None:
    heard: list[tuple[bytes, str]] = []

    async def check(request: bytes, context: Any) -> bytes:
        heard.append((request, dict(context.invocation_metadata())["user-agent"]))
        return b"\x08\x01"

    async def scenario() -> None:
        async with grpc_server(check) as endpoint:
            for service in ("", "readiness", "s" * 200):
                assert await NetworkProber(version="1.36").grpc(endpoint, service, 5) == Answered(1)

    asyncio.run(scenario())
    assert [request for request, _ in heard] == [b"", b"\x0a\x09readiness", b"\x0a\xc8\x01" + b"s" * 200]
    assert {agent.split()[0] for _, agent in heard} == {"kube-probe/1.36"}


def test_who_cannot_be_reached_by_grpc_is_told_in_the_reference_s_words() -> None:
    async def scenario() -> None:
        prober = NetworkProber(version="1.36")
        async with server(silence) as silent:
            with closed() as nobody, unreachable() as far:
                for endpoint in (silent, nobody, far):
                    end = await prober.grpc(endpoint, "", 0.1)
                    assert end == NotConnected("context deadline exceeded", timed_out=True)
                    assert judge_grpc(endpoint, 1, end).output == (
                        f'timeout: failed to connect service "{endpoint}" within 1s: context deadline exceeded'
                    )

    asyncio.run(scenario())


def test_a_check_may_be_cancelled() -> None:
    async def scenario() -> None:
        prober = NetworkProber(version="1.36")
        async with server(silence) as silent:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await prober.grpc(silent, "", 20)

    asyncio.run(scenario())


def test_libraries_are_loaded_only_when_they_are_needed() -> None:
    script = """
import asyncio, sys
from podkeeper.host.prober import NetworkProber
from podkeeper.model.probing import Endpoint, HttpRequest

def loaded():
    return [name for name in ("aiohttp", "grpc") if name in sys.modules]

async def main():
    prober = NetworkProber(version="1.36")
    await prober.tcp(Endpoint("127.0.0.1", 1), 1)
    print(*loaded(), "-")
    await prober.http(HttpRequest("http://127.0.0.1:1/", {}), 1)
    print(*loaded(), "-")
    await prober.close()

asyncio.run(main())
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == ["-", "aiohttp -"]
