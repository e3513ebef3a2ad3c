"""Forwarding a TCP connection to a port of a pod.

    Forwards.forward(sandbox, port) -> Conversation: what comes back is its output, its end says whether it came about

Who listens where people connect is the command line; here is only the way from there to the pod. A runtime whose pods
have networks of their own offers `Forwards` itself; for pods on the network of the machine there is `HostForwards`.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

from podkeeper.app.local.streams import Conversation
from podkeeper.model.errors import BadInput, Problem, RuntimeRefused
from podkeeper.model.k8s.core import Pod
from podkeeper.model.probing import CommandEnd, Exited, NotRun
from podkeeper.model.runtime import SandboxRecord
from podkeeper.rules.logline import STDOUT

LOOPBACKS: Final = ("127.0.0.1", "::1")
CONNECT_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 1.0
_BLOCK_BYTES: Final = 65536
_LARGEST_PORT: Final = 65535


class Forwards(Protocol):
    """A runtime whose pods' ports can be reached."""

    async def forward(self, sandbox_id: str, port: int) -> Conversation:
        """Connect to a port of a pod that runs. Raises RuntimeRefused with the reason."""


class NoForwards:
    """For a runtime whose pods have no ports."""

    async def forward(self, sandbox_id: str, port: int) -> Conversation:
        """Refuse."""
        raise RuntimeRefused("cannot forward to a port: the pods of this runtime have no network")


class HostForwards:
    """For pods on the network of this machine: what they listen on is found on its loopback."""

    async def forward(self, sandbox_id: str, port: int) -> Conversation:
        """Connect."""
        troubles = []
        for address in LOOPBACKS:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return _Connected(*await asyncio.open_connection(address, port))
            except TimeoutError:
                troubles.append(f"{address}: no answer within {CONNECT_SECONDS:g} s")
            except OSError as error:
                troubles.append(f"{address}: {_reason(error)}")
        raise RuntimeRefused(f"cannot connect to port {port}: {'; '.join(troubles)}")


class _Connected:
    """A TCP connection, as a conversation."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._end: CommandEnd = Exited(0)

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        try:
            while data := await self._reader.read(_BLOCK_BYTES):
                yield STDOUT, data
        except OSError as error:
            self._end = NotRun(f"the connection broke: {_reason(error)}")

    async def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # what it still says is worth hearing
            self._writer.write(data)
            await self._writer.drain()

    async def close_input(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    async def resize(self, columns: int, rows: int) -> None:
        """There is no terminal."""

    async def wait(self) -> CommandEnd:
        return self._end

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):  # a timeout is one as well
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._writer.wait_closed()
        self._writer.transport.abort()  # what the other end does not take is not waited for


def _reason(error: OSError) -> str:
    """Why, in the system's words: asyncio has its own, in which the reason is missing."""
    return os.strerror(error.errno) if error.errno else str(error)


def sandbox_to_reach(pod: Pod, sandboxes: Sequence[SandboxRecord]) -> str:
    """The sandbox in which a pod's ports are. Raises RuntimeRefused when it does not run."""
    for sandbox in sandboxes:
        if sandbox.ready:
            return sandbox.id
    raise RuntimeRefused(f"cannot forward to pod {pod.metadata.name!r}: it does not run")


def port_asked(port: int | None) -> int:
    """A port to which one can connect. Raises BadInput."""
    if port is None or not 0 < port <= _LARGEST_PORT:
        raise BadInput(Problem(f"cannot forward to it; right would be a port, 1 to {_LARGEST_PORT}", field="port"))
    return port
