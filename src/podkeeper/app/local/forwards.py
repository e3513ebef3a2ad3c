"""Forward a TCP connection to a port of a pod.

    Forwards.forward(sandbox, port) -> StreamSession: its output is the pod's data, its end is success or the error

The command line listens for connections. This module connects to the pod. Runtimes with pod networks implement
`Forwards`. `HostForwards` is for pods in the network of the machine.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

from podkeeper.app.local.streams import StreamSession
from podkeeper.linux.logline import STDOUT
from podkeeper.model.errors import BadInput, RuntimeRefused
from podkeeper.model.k8s.core import Pod
from podkeeper.model.probing import CommandEnd, CommandExited, NotRun
from podkeeper.model.runtime import SandboxRecord
from podkeeper.rules.validate.names import missing, within

LOOPBACKS: Final = ("127.0.0.1", "::1")
CONNECT_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 1.0
_BLOCK_BYTES: Final = 65536
_LARGEST_PORT: Final = 65535


class Forwards(Protocol):
    """A runtime that supports port forwarding."""

    async def forward(self, sandbox_id: str, port: int) -> StreamSession:
        """Connect to a port of a running pod. Raises RuntimeRefused with the reason."""


class NoForwards:
    """For a runtime whose pods have no network."""

    async def forward(self, sandbox_id: str, port: int) -> StreamSession:
        raise RuntimeRefused("cannot forward to a port: the pods of this runtime have no network")


class HostForwards:
    """For pods in the network of this machine. Their ports are on the loopback addresses."""

    async def forward(self, sandbox_id: str, port: int) -> StreamSession:
        errors = []
        for address in LOOPBACKS:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return _TcpSession(*await asyncio.open_connection(address, port))
            except TimeoutError:
                errors.append(f"{address}: no answer within {CONNECT_SECONDS:g} s")
            except OSError as error:
                errors.append(f"{address}: {_reason(error)}")
        raise RuntimeRefused(f"cannot connect to port {port}: {'; '.join(errors)}")


class _TcpSession:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._end: CommandEnd = CommandExited(0)

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        try:
            while data := await self._reader.read(_BLOCK_BYTES):
                yield STDOUT, data
        except OSError as error:
            self._end = NotRun(f"the connection broke: {_reason(error)}")

    async def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # continue, because the pod may still send data
            self._writer.write(data)
            await self._writer.drain()

    async def close_input(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    async def resize(self, columns: int, rows: int) -> None:
        pass

    async def wait(self) -> CommandEnd:
        return self._end

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):  # TimeoutError is an OSError
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._writer.wait_closed()
        self._writer.transport.abort()  # discard data that the pod does not read


def _reason(error: OSError) -> str:
    """Return the system's text for an error, because asyncio's own text does not contain the reason."""
    return os.strerror(error.errno) if error.errno else str(error)


def ready_sandbox(pod: Pod, sandboxes: Sequence[SandboxRecord]) -> str:
    """Return the ready sandbox of a pod. Raises RuntimeRefused if there is none."""
    for sandbox in sandboxes:
        if sandbox.ready:
            return sandbox.id
    raise RuntimeRefused(f"cannot forward to pod {pod.metadata.name!r}: it is not running")


def requested_port(port: int | None) -> int:
    """Return the port of a request. Raises BadInput."""
    if port is None:
        raise BadInput(missing("port"))
    if problems := [*within("port", port, 1, _LARGEST_PORT)]:
        raise BadInput(*problems)
    return port
