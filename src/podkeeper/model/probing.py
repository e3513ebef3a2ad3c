"""What is asked of a container from outside, and how asking ended: for probes and lifecycle hooks.

`rules.probe` makes the requests and judges the ends; whoever executes them (the prober port, the runtime's
exec) only reports what happened.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exited:
    """The command ended by itself."""

    code: int
    output: bytes = b""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The command did not end within its timeout."""

    message: str


@dataclass(frozen=True, slots=True)
class NotRun:
    """The command could not be run, or its end could not be learnt."""

    message: str


CommandEnd = Exited | TimedOut | NotRun


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A GET request; `host` is what the Host header says, empty for the URL's own."""

    url: str
    headers: Mapping[str, tuple[str, ...]]
    host: str = ""
    method: str = "GET"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The server answered; redirects within the host have been followed."""

    status: int
    body: bytes = b""  # its first part is enough


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No answer came, for instance not in time."""

    message: str


@dataclass(frozen=True, slots=True)
class BrokenBody:
    """An answer came, but its body broke off."""

    message: str


HttpEnd = HttpAnswer | NoAnswer | BrokenBody


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)


@dataclass(frozen=True, slots=True)
class NotConnected:
    """No connection came about."""

    message: str
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class CallFailed:
    """The health call ended with a gRPC status other than OK."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The health service answered with this `ServingStatus`."""

    serving_status: int


GrpcEnd = NotConnected | CallFailed | Answered


def join_host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
