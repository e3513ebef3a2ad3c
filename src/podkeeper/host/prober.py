"""The network prober: HTTP, TCP and gRPC requests into pods, for probes and lifecycle hooks.

Requests come in, how they ended goes out: always within the timeout, and never as an error for what the other side
does. Requests do not wait for one another, and share no connection. The libraries behind HTTP (aiohttp) and gRPC are
loaded, in a thread, when the first such request is made: an agent whose pods have no such probes does not pay for
them, and the time that takes is not counted against the first pod. At rest nothing runs here and nothing is open. The
Go ancestors are pkg/probe/http, tcp and grpc.
"""

import asyncio
import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from podkeeper.host.dialling import DialFailed, Names, dial
from podkeeper.host.threads import in_thread
from podkeeper.model.probing import Endpoint, GrpcEnd, HttpEnd, HttpRequest

if TYPE_CHECKING:
    from podkeeper.host.http_client import HttpClient


class NetworkProber:
    """Makes requests over the network."""

    def __init__(self, *, version: str) -> None:
        """`version` is the agent's Kubernetes version (`1.36`), for gRPC servers to see."""
        self._user_agent = f"kube-probe/{version}"
        self._names = Names()
        self._http: HttpClient | None = None
        self._loaded: dict[str, asyncio.Future[ModuleType | Exception]] = {}

    async def http(self, request: HttpRequest, timeout_seconds: float) -> HttpEnd:
        """Send a request. Redirects within the host are followed, one to another host is the answer."""
        await self._load("podkeeper.host.http_client")
        return await self._http_client().request(request, timeout_seconds)

    async def tcp(self, endpoint: Endpoint, timeout_seconds: float) -> str | None:
        """Connect and hang up. None when that worked, else the error's text."""
        try:
            connected = await dial(self._names, endpoint, timeout_seconds)
        except DialFailed as error:
            return str(error)
        connected.close()
        return None

    async def grpc(self, endpoint: Endpoint, service: str, timeout_seconds: float) -> GrpcEnd:
        """Ask the gRPC health service at an endpoint."""
        await self._load("podkeeper.host.grpc_client")
        from podkeeper.host.grpc_client import check

        return await check(endpoint, service, timeout_seconds, self._user_agent)

    async def close(self) -> None:
        """Hang up everywhere. A later request begins anew."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    def _http_client(self) -> "HttpClient":
        from podkeeper.host.http_client import HttpClient

        if self._http is None:
            self._http = HttpClient(self._names)
        return self._http

    async def _load(self, module: str) -> None:
        """Import a module without holding up the loop."""
        if module not in self._loaded:
            try:
                self._loaded[module] = in_thread(lambda: importlib.import_module(module), f"import {module}")
            except RuntimeError:
                return  # no thread to be had: whoever asked imports it himself
        await asyncio.wait((self._loaded[module],))
