"""Requests to containers and their results, for probes and lifecycle hooks.

`rules.probe` creates the requests and evaluates the results. The prober port and the runtime's exec only report the
result.
"""

from collections.abc import Mapping

import msgspec


class CommandExited(msgspec.Struct, frozen=True):
    """The command exited by itself."""

    code: int
    output: bytes = b""


class TimedOut(msgspec.Struct, frozen=True):
    """The command did not exit within its timeout."""

    message: str


class NotRun(msgspec.Struct, frozen=True):
    """The command could not run, or its exit status is unknown."""

    message: str


CommandEnd = CommandExited | TimedOut | NotRun


class HttpRequest(msgspec.Struct, frozen=True):
    """A GET request. `host` is the Host header, "" for the host of the URL."""

    url: str
    headers: Mapping[str, tuple[str, ...]]
    host: str = ""
    method: str = "GET"


class HttpAnswer(msgspec.Struct, frozen=True):
    """The server responded. Redirects within the host have been followed."""

    status: int
    body: bytes = b""  # may be cut off


class NoHttpAnswer(msgspec.Struct, frozen=True):
    """No response arrived, for example before the timeout."""

    message: str


class BrokenBody(msgspec.Struct, frozen=True):
    """A response arrived, but its body is incomplete."""

    message: str


HttpEnd = HttpAnswer | NoHttpAnswer | BrokenBody


class Endpoint(msgspec.Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)


class NotConnected(msgspec.Struct, frozen=True):
    """The connection failed."""

    message: str
    timed_out: bool = False


class CallFailed(msgspec.Struct, frozen=True):
    """The health call failed with a gRPC status other than OK."""

    code: int
    message: str


class HealthAnswer(msgspec.Struct, frozen=True):
    """The health service returned this `ServingStatus`."""

    serving_status: int


GrpcEnd = NotConnected | CallFailed | HealthAnswer


def join_host_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
