"""The network prober: HTTP, TCP and gRPC requests for probes and hooks.

Input: requests. Output: their results, always within the timeout. Failures of the peer are results, not exceptions.
Requests do not wait for each other and share no connection.

The libraries for HTTP (aiohttp) and gRPC are loaded in a thread before the first request. So an agent without such
probes does not load them, and the timeout of the first probe does not include the loading. Kubelet counterparts:
pkg/probe/http, tcp and grpc.
"""

import asyncio
import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from podkeeper.concurrency.threads import in_thread
from podkeeper.host.dial import DialFailed, HostResolver, dial
from podkeeper.model.probing import Endpoint, GrpcEnd, HttpEnd, HttpRequest

if TYPE_CHECKING:
    from podkeeper.host.http_client import HttpClient


class NetworkProber:
    """Sends requests over the network."""

    def __init__(self, *, version: str) -> None:
        """`version` is the Kubernetes version of the agent (`1.36`), for the user agent of gRPC requests."""
        self._user_agent = f"kube-probe/{version}"
        self._resolver = HostResolver()
        self._http: HttpClient | None = None
        self._loaded: dict[str, asyncio.Future[ModuleType | BaseException]] = {}

    async def http(self, request: HttpRequest, timeout_seconds: float) -> HttpEnd:
        """Send a request. Follow redirects within the host. A redirect to another host is the result."""
        await self._load("podkeeper.host.http_client")
        return await self._http_client().request(request, timeout_seconds)

    async def tcp(self, endpoint: Endpoint, timeout_seconds: float) -> str | None:
        """Connect and close the connection. Return None, or the text of the error."""
        try:
            connection = await dial(self._resolver, endpoint, timeout_seconds)
        except DialFailed as error:
            return str(error)
        connection.close()
        return None

    async def grpc(self, endpoint: Endpoint, service: str, timeout_seconds: float) -> GrpcEnd:
        """Call the gRPC health service of an endpoint."""
        await self._load("podkeeper.host.grpc_client")
        from podkeeper.host.grpc_client import check

        return await check(endpoint, service, timeout_seconds, self._user_agent)

    async def close(self) -> None:
        """Close all connections. A later request opens new ones."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    def _http_client(self) -> "HttpClient":
        from podkeeper.host.http_client import HttpClient

        if self._http is None:
            self._http = HttpClient(self._resolver)
        return self._http

    async def _load(self, module: str) -> None:
        """Import a module without blocking the event loop."""
        if module not in self._loaded:
            try:
                self._loaded[module] = in_thread(lambda: importlib.import_module(module), f"import {module}")
            except RuntimeError:
                return  # no thread available: the caller imports the module itself
        await asyncio.wait((self._loaded[module],))
