"""Servers on the loopback interface, which stop at the end of their block."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import grpc
import grpc.aio

from podkeeper.model.probing import Endpoint

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEALTH = "grpc.health.v1.Health"


@asynccontextmanager
async def server(handle: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[Endpoint]:
    """A server that calls `handle` for every connection."""
    tasks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await handle(reader, writer)
        finally:
            tasks.discard(task)
            writer.close()

    listening = await asyncio.start_server(one, "127.0.0.1", 0, ssl=tls)
    try:
        yield Endpoint("127.0.0.1", listening.sockets[0].getsockname()[1])
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def replying(text: str | bytes) -> Handler:
    """Read a request, send a text, close."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(text.encode() if isinstance(text, str) else text)
        await writer.drain()

    return handle


def recording(requests: list[str], answer: str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") -> Handler:
    """Like `replying`, and record the request."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(answer.encode())
        await writer.drain()

    return handle


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read forever and never reply."""
    while await reader.read(1000):
        pass


@contextmanager
def closed() -> Iterator[Endpoint]:
    """A port on which no server listens and no other process can listen."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield Endpoint("127.0.0.1", taken.getsockname()[1])


@contextmanager
def unreachable() -> Iterator[Endpoint]:
    """A port that does not accept: its queue is full, so the kernel drops new connections."""
    with socket.socket() as listening, socket.socket() as first, socket.socket() as second, socket.socket() as third:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for client in (first, second, third):
            client.setblocking(False)
            client.connect_ex(listening.getsockname())
        yield Endpoint("127.0.0.1", listening.getsockname()[1])


@asynccontextmanager
async def grpc_server(
    check: "Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]] | None",
) -> AsyncIterator[Endpoint]:
    """A gRPC server with this health service, or without one."""
    serving = grpc.aio.server()
    if check is not None:
        method = grpc.unary_unary_rpc_method_handler(check)
        serving.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(HEALTH, {"Check": method}),))
    port = serving.add_insecure_port("127.0.0.1:0")
    await serving.start()
    try:
        yield Endpoint("127.0.0.1", port)
    finally:
        await serving.stop(None)
