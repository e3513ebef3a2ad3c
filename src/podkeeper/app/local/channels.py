"""Streams over a WebSocket, in the protocol v5.channel.k8s.io.

    client --> 0 stdin   4 size of the terminal, {"Width": 80, "Height": 24}   255 close of a channel
    server --> 1 stdout  2 stderr  3 a Status with the exit code

Each message is one byte with the channel, followed by the data. Kubelet counterparts:
k8s.io/apimachinery/pkg/util/remotecommand and pkg/kubelet's `remotecommand` server.
"""

import asyncio
import contextlib
import select
from typing import Final

import msgspec
from aiohttp import WSMsgType, web

from podkeeper.app.local.streams import StreamSession, failure_message
from podkeeper.linux.logline import STDERR, STDOUT
from podkeeper.model.k8s.meta import Status, StatusCause, StatusDetails
from podkeeper.model.probing import CommandEnd, CommandExited

PROTOCOL: Final = "v5.channel.k8s.io"
STDIN_CHANNEL: Final = 0
ERROR_CHANNEL: Final = 3
RESIZE_CHANNEL: Final = 4
CLOSE_CHANNEL: Final = 255
OUTPUT_CHANNELS: Final = {STDOUT: 1, STDERR: 2}
EXIT_CODE_CAUSE: Final = "ExitCode"
NON_ZERO_EXIT: Final = "NonZeroExitCode"
POLL_SECONDS: Final = 1.0


class TerminalSize(msgspec.Struct, frozen=True):
    """The size of a terminal, with kubectl's field names."""

    Width: int = 0
    Height: int = 0


async def relay(session: StreamSession, socket: web.WebSocketResponse) -> None:
    """Pass data in both directions until the process exits or the client disconnects."""
    parts = (_receive(session, socket), _send(session, socket), _wait_for_disconnect(socket))
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await asyncio.gather(*tasks)
        await socket.close()


async def _wait_for_disconnect(socket: web.WebSocketResponse) -> None:
    # Poll the socket to detect a disconnect. While the process reads no input, no task reads the socket.
    poll = select.poll()
    poll.register(socket.get_extra_info("socket").fileno(), select.POLLRDHUP)
    while not poll.poll(0):
        await asyncio.sleep(POLL_SECONDS)


async def _send(session: StreamSession, socket: web.WebSocketResponse) -> None:
    """Send all output, then the exit status."""
    async for stream, data in session.output():
        await socket.send_bytes(bytes([OUTPUT_CHANNELS[stream]]) + data)
    status = msgspec.json.encode(status_of(await session.wait()))
    await socket.send_bytes(bytes([ERROR_CHANNEL]) + status)


async def _receive(session: StreamSession, socket: web.WebSocketResponse) -> None:
    """Receive input until the client closes."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == STDIN_CHANNEL:
            await session.send(data)
        elif channel == RESIZE_CHANNEL:
            with contextlib.suppress(msgspec.DecodeError):
                size = msgspec.json.decode(data, type=TerminalSize)
                await session.resize(size.Width, size.Height)
        elif channel == CLOSE_CHANNEL and data[:1] == bytes([STDIN_CHANNEL]):
            await session.close_input()


def status_of(end: CommandEnd) -> Status:
    """Return the Status that the kubelet sends for this end of a command."""
    if isinstance(end, CommandExited) and end.code == 0:
        return Status(status="Success")
    if isinstance(end, CommandExited):
        return Status(
            status="Failure",
            reason=NON_ZERO_EXIT,
            message=f"command terminated with exit code {end.code}",
            details=StatusDetails(causes=(StatusCause(reason=EXIT_CODE_CAUSE, message=str(end.code)),)),
        )
    return Status(status="Failure", reason="InternalError", message=failure_message(end), code=500)
