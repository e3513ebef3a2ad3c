"""Connect to an address or a host name, with the error messages of Go.

Each name is looked up in one thread, which serves all concurrent callers. So an unresponsive name server delays only
the lookups that need it. Kubelet counterpart: Go's net.Dialer, as pkg/probe/tcp uses it.
"""

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from podkeeper.concurrency.threads import in_thread
from podkeeper.model.probing import Endpoint, join_host_port

IO_TIMEOUT = "i/o timeout"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a socket. `sockaddr` is the address tuple of the socket module."""

    family: socket.AddressFamily
    sockaddr: tuple[str, int] | tuple[str, int, int, int]

    def with_port(self, port: int) -> "Address":
        host, _, *scope = self.sockaddr
        return Address(self.family, (host, port, *scope))  # type: ignore[arg-type]  # an address keeps its length, which mypy cannot count

    def __str__(self) -> str:
        return join_host_port(self.sockaddr[0], self.sockaddr[1])


class DialFailed(Exception):
    """The connection failed. The message is that of Go."""


@dataclass(slots=True)
class HostResolver:
    """Resolves host names to addresses."""

    _lookups: "dict[str, asyncio.Future[list[Address] | BaseException]]" = field(default_factory=dict)

    async def look_up(self, host: str) -> Sequence[Address]:
        """Return the addresses of a host, without a port. Raises DialFailed. Has no timeout."""
        try:
            return _addresses(host, socket.AI_NUMERICHOST)
        except (OSError, ValueError):
            pass  # a name
        lookup = self._lookups.get(host)
        if lookup is None:
            try:
                lookup = in_thread(lambda: _addresses(host), f"look up {host}")
            except RuntimeError as error:
                raise DialFailed(f"dial tcp: lookup {host}: {error}") from error
            self._lookups[host] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(host, None))
        # Not a plain await: if this caller is cancelled, the lookup must continue for the other callers.
        await asyncio.wait((lookup,))
        found = lookup.result()
        if isinstance(found, BaseException):
            raise DialFailed(f"dial tcp: lookup {host}: {_lookup_error(found)}") from found
        return found


async def dial(resolver: HostResolver, endpoint: Endpoint, timeout_seconds: float) -> socket.socket:
    """Return a connected socket, which the caller closes. Raises DialFailed."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    try:
        async with asyncio.timeout_at(deadline):
            addresses = await resolver.look_up(endpoint.host)
    except TimeoutError:
        raise DialFailed(f"dial tcp: lookup {endpoint.host}: {IO_TIMEOUT}") from None
    first: DialFailed | None = None
    for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
        # Split the remaining time, so that an address that does not reply leaves time for the others.
        share = (deadline - loop.time()) / left
        try:
            return await _connected(address.with_port(endpoint.port), share)
        except DialFailed as error:
            first = first or error
    raise first or DialFailed(f"dial tcp: lookup {endpoint.host}: no such host")


def strerror(error: OSError) -> str:
    """Return the text of an error as Go writes it."""
    return os.strerror(error.errno).lower() if error.errno else str(error)


async def _connected(address: Address, timeout_seconds: float) -> socket.socket:
    # The kubelet sets SO_LINGER. With it, `close` would wait for the peer even on a non-blocking socket, and block the
    # event loop.
    connection = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        async with asyncio.timeout(timeout_seconds):
            await asyncio.get_running_loop().sock_connect(connection, address.sockaddr)
    except TimeoutError:
        connection.close()
        raise DialFailed(f"dial tcp {address}: {IO_TIMEOUT}") from None
    except OSError as error:
        connection.close()
        raise DialFailed(f"dial tcp {address}: connect: {strerror(error)}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _addresses(host: str, flags: int = 0) -> list[Address]:
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=flags)
    return [Address(family, sockaddr) for family, _, _, _, sockaddr in found]  # type: ignore[arg-type]  # TCP over IP has only these two forms


def _lookup_error(error: BaseException) -> str:
    if not isinstance(error, OSError):  # for example, a label that is too long
        return "no such host"
    if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
        return "no such host"
    return (error.strerror or str(error)).lower()
