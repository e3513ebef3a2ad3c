"""Calls over gRPC: the error for each status code."""

import asyncio

import grpc
import pytest

from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable, TryLater
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import GrpcTransport, ObjectNotFound, Unimplemented
from tests.runtimes.cri.fake_server import FakeCri, served
from tests.runtimes.cri.faults import Refuse

VERSION = "/runtime.v1.RuntimeService/Version"
CODE = grpc.StatusCode
HUNG_UP = "cannot reach the container runtime at {}: it closed the connection; it may be restarting"
STATUSES: dict[str, tuple[grpc.StatusCode, str, type[TryLater], str]] = {
    "not found": (CODE.NOT_FOUND, "no such id", ObjectNotFound, "no such id"),
    "unimplemented": (CODE.UNIMPLEMENTED, "unknown method", Unimplemented, "unknown method"),
    "late": (
        CODE.DEADLINE_EXCEEDED, "late", CallTimedOut, "Version timed out: no response within 5 s"),
    "unknown": (CODE.UNKNOWN, "no space", RuntimeRefused, "rpc error: code = Unknown desc = no space"),
    "two words": (
        CODE.INVALID_ARGUMENT, "bad", RuntimeRefused, "rpc error: code = InvalidArgument desc = bad"),
    "no words": (CODE.INTERNAL, "", RuntimeRefused, "rpc error: code = Internal desc = INTERNAL"),
    "away": (
        CODE.UNAVAILABLE, "connection refused", RuntimeUnavailable,
        "cannot reach the container runtime at {}: connection refused; it may be restarting, or is not running"),
    "hung up": (CODE.UNAVAILABLE, "recvmsg:Connection reset by peer", RuntimeUnavailable, HUNG_UP),
    "closed": (CODE.UNAVAILABLE, "Socket closed", RuntimeUnavailable, HUNG_UP),
    "broken": (CODE.UNAVAILABLE, "sendmsg: Broken pipe", RuntimeUnavailable, HUNG_UP),
    "away for another reason": (
        CODE.UNAVAILABLE, "shutting down", RuntimeUnavailable,
        "cannot reach the container runtime at {}: shutting down"),
}  # fmt: skip


def test_each_grpc_status_has_its_own_error() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with served(fake) as path:
            transport = GrpcTransport(path)
            for name, (code, words, kind, expected) in STATUSES.items():
                fake.next("Version", Refuse(code, words))
                with pytest.raises(TryLater) as raised:
                    await transport.unary(VERSION, cri.VersionRequest(), cri.VersionResponse, 5.0)
                assert (name, type(raised.value), str(raised.value)) == (name, kind, expected.format(path))
            events = transport.stream(
                "/runtime.v1.RuntimeService/GetContainerEvents", cri.GetEventsRequest(), cri.ContainerEventResponse
            )
            with pytest.raises(Unimplemented):
                await anext(aiter(events))
            answer = await transport.unary(VERSION, cri.VersionRequest(), cri.VersionResponse, 5.0)
            assert answer.runtime_name
            await transport.close()
            await transport.close()
            await transport.unary(VERSION, cri.VersionRequest(), cri.VersionResponse, 5.0)  # it opens again
            await transport.close()

    asyncio.run(scenario())
