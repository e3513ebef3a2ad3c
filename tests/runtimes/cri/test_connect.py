"""Errors when no usable runtime answers on the socket."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from podkeeper.model.errors import BadInput, CallTimedOut, RuntimeUnavailable
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.connect import runtime_version
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import Answer, GrpcTransport, Unimplemented
from tests.runtimes.cri.cri_pod import runtime_on_fake
from tests.runtimes.cri.fake_server import FakeCri, served
from tests.violations import violation


class Scripted:
    """A transport that has an answer, or an error, for each version of CRI."""

    def __init__(self, **answers: Message | Exception) -> None:
        self._answers = answers

    async def unary(self, method: str, request: Message, answer: type[Answer], seconds: float) -> Answer:
        scripted = self._answers[method.split(".")[1]]
        if isinstance(scripted, Exception):
            raise scripted
        assert isinstance(scripted, answer)
        return scripted

    def stream(self, method: str, request: Message, answer: type[Answer]) -> AsyncIterator[Answer]:
        raise violation("a version check opens no stream")

    async def close(self) -> None: ...


def version_of(transport: Scripted) -> Coroutine[Any, Any, cri.VersionResponse]:
    return runtime_version(CriCalls(transport), "/run/it.sock")


def test_an_open_runtime_has_a_name() -> None:
    async def scenario() -> None:
        async with runtime_on_fake(FakeCri()) as runtime:
            assert runtime.name == "fakerd"

    asyncio.run(scenario())


CASES = {
    "not allowed": (
        Scripted(v1=RuntimeUnavailable("cannot reach: unix:/x: Permission denied")),
        BadInput,
        "permission denied; run as root",
    ),
    "no answer": (Scripted(v1=CallTimedOut("no answer")), RuntimeUnavailable, "no response within 10 s"),
    "too old": (
        Scripted(
            v1=Unimplemented("unknown service"),
            v1alpha2=cri.VersionResponse(runtime_name="containerd", runtime_version="1.5.0"),
        ),
        BadInput,
        "containerd 1.5.0 supports only CRI v1alpha2, expected v1; "
        "install containerd 1.6 or later, or CRI-O 1.23 or later",
    ),
    "its CRI is disabled": (
        Scripted(v1=Unimplemented("unknown service"), v1alpha2=Unimplemented("unknown service")),
        BadInput,
        "remove `cri` from `disabled_plugins`",
    ),
    "another version": (
        Scripted(v1=cri.VersionResponse(runtime_name="x", runtime_api_version="v2")),
        BadInput,
        "it supports CRI v2, expected v1",
    ),
    "anything else": (
        Scripted(v1=RuntimeUnavailable("cannot reach: something odd")),
        RuntimeUnavailable,
        "something odd",
    ),
}


@pytest.mark.parametrize("transport, error, message", CASES.values(), ids=CASES.keys())
def test_messages_of_failed_connections(transport: Scripted, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"cannot use the container runtime at /run/it.sock: .*{message}"):
        asyncio.run(version_of(transport))


async def opened_at(path: str) -> None:
    transport = GrpcTransport(path)
    try:
        await runtime_version(CriCalls(transport), path)
    finally:
        await transport.close()


def test_a_missing_socket_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="the socket does not exist"):
        asyncio.run(opened_at(str(tmp_path / "none.sock")))


def test_a_refused_connection_is_reported(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    assert os.path.exists(path)
    with pytest.raises(RuntimeUnavailable, match="connection refused; start the runtime"):
        asyncio.run(opened_at(path))


async def error_of_late_connect(path: str) -> str:
    """Fails calls after the first one."""
    transport = GrpcTransport(path)
    try:
        await CriCalls(transport).status()
    except RuntimeUnavailable as error:
        return str(error)
    finally:
        await transport.close()
    return ""


async def hung_up_on(path: str) -> str:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_unix_server(hang_up, path):
        return await error_of_late_connect(path)


def test_messages_of_unreachable_runtimes(tmp_path: Path) -> None:
    # Two paths, because grpcio caches the result of the last connection to a path for a moment.
    missing, rude = str(tmp_path / "missing"), str(tmp_path / "rude")
    to = "cannot reach the container runtime at "
    assert asyncio.run(error_of_late_connect(missing)) == (
        f"{to}{missing}: no such file or directory; it may be restarting, or is not running"
    )
    assert asyncio.run(hung_up_on(rude)) == f"{to}{rude}: it closed the connection; it may be restarting"


def test_a_server_without_cri_is_reported() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        fake.unknown_services.add("runtime.v1.RuntimeService")
        async with served(fake) as path:
            with pytest.raises(BadInput, match="disabled_plugins"):
                await opened_at(path)

    asyncio.run(scenario())
