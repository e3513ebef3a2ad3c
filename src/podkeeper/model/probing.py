"""What is asked of a container from outside, and how asking ended: for probes and lifecycle hooks.

`rules.probe` makes the requests and judges the ends; whoever executes them (the prober port, the runtime's
exec) only reports what happened.
"""

from collections.abc import Mapping

import msgspec


class Exited(msgspec.Struct, frozen=True):
    """The command ended by itself."""

    code: int
    output: bytes = b""


class TimedOut(msgspec.Struct, frozen=True):
    """The command did not end within its timeout."""

    message: str


class NotRun(msgspec.Struct, frozen=True):
    """The command could not be run, or its end could not be learnt."""

    message: str


CommandEnd = Exited | TimedOut | NotRun


class HttpRequest(msgspec.Struct, frozen=True):
    """A GET request; `host` is what the Host header says, empty for the URL's own."""

    url: str
    headers: Mapping[str, tuple[str, ...]]
    host: str = ""
    method: str = "GET"


class HttpAnswer(msgspec.Struct, frozen=True):
    """The server answered; redirects within the host have been followed."""

    status: int
    body: bytes = b""  # its first part is enough


class NoAnswer(msgspec.Struct, frozen=True):
    """No answer came, for instance not in time."""

    message: str


class BrokenBody(msgspec.Struct, frozen=True):
    """An answer came, but its body broke off."""

    message: str


HttpEnd = HttpAnswer | NoAnswer | BrokenBody


class Endpoint(msgspec.Struct, frozen=True):
    """Where to connect."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)


class NotConnected(msgspec.Struct, frozen=True):
    """No connection came about."""

    message: str
    timed_out: bool = False


class CallFailed(msgspec.Struct, frozen=True):
    """The health call ended with a gRPC status other than OK."""

    code: int
    message: str


class Answered(msgspec.Struct, frozen=True):
    """The health service answered with this `ServingStatus`."""

    serving_status: int


GrpcEnd = NotConnected | CallFailed | Answered


def join_host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
