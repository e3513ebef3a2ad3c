"""Reaching into a pod over the network, for probes and lifecycle hooks."""

from typing import Protocol

from podkeeper.model.probing import Endpoint, GrpcEnd, HttpEnd, HttpRequest


class Prober(Protocol):
    """Makes one request and reports how it ended. Never raises for what the other side does."""

    async def http(self, request: HttpRequest, timeout_seconds: float) -> HttpEnd:
        """Send a request. Redirects within the host are followed, one to another host is the answer."""

    async def tcp(self, endpoint: Endpoint, timeout_seconds: float) -> str | None:
        """Connect and hang up. None when that worked, else the error's text."""

    async def grpc(self, endpoint: Endpoint, service: str, timeout_seconds: float) -> GrpcEnd:
        """Ask the gRPC health service at an endpoint."""
