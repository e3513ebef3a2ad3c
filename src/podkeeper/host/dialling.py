"""Connecting to an address or a name, and the reference's words for why it failed.

Names are looked up in threads, one for each name however many ask: a name server that does not answer holds up
nobody who asks for another name, or for an address. The Go ancestor is the standard library's net.Dialer as
pkg/probe/tcp uses it.
"""

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from podkeeper.host.threads import in_thread
from podkeeper.model.probing import Endpoint, join_host_port

IO_TIMEOUT = "i/o timeout"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a socket connects to; `place` is what the socket module calls an address."""

    family: socket.AddressFamily
    place: tuple[str, int] | tuple[str, int, int, int]

    def with_port(self, port: int) -> "Address":
        """The same machine's other door."""
        host, _, *scope = self.place
        return Address(self.family, (host, port, *scope))  # type: ignore[arg-type]  # an address keeps its length, which mypy cannot count

    def __str__(self) -> str:
        return join_host_port(self.place[0], self.place[1])


class DialFailed(Exception):
    """No connection; the message is the reference's."""


@dataclass(slots=True)
class Names:
    """Looks up the addresses of names."""

    _asked: "dict[str, asyncio.Future[list[Address] | Exception]]" = field(default_factory=dict)

    async def look_up(self, host: str) -> Sequence[Address]:
        """The addresses of a host, without a port. Raises DialFailed. May take as long as a name server likes."""
        try:
            return _addresses(host, socket.AI_NUMERICHOST)
        except (OSError, ValueError):
            pass  # a name
        asked = self._asked.get(host)
        if asked is None:
            try:
                asked = in_thread(lambda: _addresses(host), f"look up {host}")
            except RuntimeError as error:
                raise DialFailed(f"dial tcp: lookup {host}: {error}") from error
            self._asked[host] = asked
            asked.add_done_callback(lambda _: self._asked.pop(host, None))
        await asyncio.wait((asked,))  # not the future itself: others may wait for it
        found = asked.result()
        if isinstance(found, Exception):
            raise DialFailed(f"dial tcp: lookup {host}: {_why_unknown(found)}") from found
        return found


async def dial(names: Names, endpoint: Endpoint, timeout_seconds: float) -> socket.socket:
    """A connected socket, which is the caller's to close. Raises DialFailed."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    try:
        async with asyncio.timeout_at(deadline):
            addresses = await names.look_up(endpoint.host)
    except TimeoutError:
        raise DialFailed(f"dial tcp: lookup {endpoint.host}: {IO_TIMEOUT}") from None
    first: DialFailed | None = None
    for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
        share = (deadline - loop.time()) / left  # so that one that is silent leaves time for the others
        try:
            return await _connected(address.with_port(endpoint.port), share)
        except DialFailed as error:
            first = first or error
    raise first or DialFailed(f"dial tcp: lookup {endpoint.host}: no such host")


def strerror(error: OSError) -> str:
    """The kernel's words for an error, as Go spells them."""
    return os.strerror(error.errno).lower() if error.errno else str(error)


async def _connected(address: Address, timeout_seconds: float) -> socket.socket:
    # No SO_LINGER, which the reference sets: with it the kernel makes `close` wait for the other side, also on a socket
    # that does not block, and the whole loop would wait.
    made = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        async with asyncio.timeout(timeout_seconds):
            await asyncio.get_running_loop().sock_connect(made, address.place)
    except TimeoutError:
        made.close()
        raise DialFailed(f"dial tcp {address}: {IO_TIMEOUT}") from None
    except OSError as error:
        made.close()
        raise DialFailed(f"dial tcp {address}: connect: {strerror(error)}") from error
    except BaseException:
        made.close()
        raise
    return made


def _addresses(host: str, flags: int = 0) -> list[Address]:
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=flags)
    return [Address(family, place) for family, _, _, _, place in found]  # type: ignore[arg-type]  # TCP over IP has only these two forms


def _why_unknown(error: Exception) -> str:
    if not isinstance(error, OSError):  # for instance a label that is too long
        return "no such host"
    if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
        return "no such host"
    return (error.strerror or str(error)).lower()
