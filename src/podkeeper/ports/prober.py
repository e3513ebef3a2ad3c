"""Network requests to pods, for probes and lifecycle hooks."""

from typing import Protocol

from podkeeper.model.probing import Endpoint, GrpcEnd, HttpEnd, HttpRequest


class Prober(Protocol):
    """Makes one request and reports the result. A failure of the other side never raises."""

    async def http(self, request: HttpRequest, timeout_seconds: float) -> HttpEnd:
        """Send a request. Follow redirects within the host. A redirect to another host is returned as the response."""

    async def tcp(self, endpoint: Endpoint, timeout_seconds: float) -> str | None:
        """Connect and close. Return None, or the text of the error."""

    async def grpc(self, endpoint: Endpoint, service: str, timeout_seconds: float) -> GrpcEnd:
        """Call the gRPC health service of an endpoint."""
