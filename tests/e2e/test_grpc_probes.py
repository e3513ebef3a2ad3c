"""gRPC probes of containers, with the agent in a separate process.

gRPC connects from its own threads, which stay in the network namespace in which they were started. The process of the
tests enters the network of several runtimes. An agent that runs as a command stays in one.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_process import agent_with_pods, until
from tests.e2e.cli_runtimes import cli_runtime
from tests.e2e.runtime_kinds import AND_CRIO, CONTAINERD
from tests.e2e.scripts import POLITE, sh
from tests.host.loopback import grpc_server

pytestmark = pytest.mark.slow


class HealthService:
    """A health service with a configurable status, which records its requests."""

    def __init__(self) -> None:
        self.port = 0
        self.answer = b"\x08\x02"  # NOT_SERVING
        self.requests: list[bytes] = []

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve from a thread, in the network namespace of the caller."""
        begun, over = threading.Event(), asyncio.Event()
        loops: list[asyncio.AbstractEventLoop] = []

        async def serve() -> None:
            async with grpc_server(self._check) as there:
                self.port = there.port
                loops.append(asyncio.get_running_loop())
                begun.set()
                await over.wait()

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        assert begun.wait(30)
        try:
            yield
        finally:
            loops[0].call_soon_threadsafe(over.set)
            thread.join()

    async def _check(self, request: bytes, context: Any) -> bytes:
        self.requests.append(request)
        return self.answer


@pytest.mark.parametrize("kind", [CONTAINERD, *AND_CRIO])
def test_grpc_readiness_follows_the_health_service(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    runtime, health = cli_runtime(request, kind), HealthService()
    with runtime.in_network(), health.serving():
        probe = {"grpc": {"port": health.port, "service": "shop"}, "failureThreshold": 1, "periodSeconds": 1}
        containers = {"app": {**sh(POLITE), "readinessProbe": probe}}
        with agent_with_pods(tmp_path, runtime, containers, hostNetwork=True) as agent:
            until(
                lambda: b"NOT_SERVING" in agent.call("describe", "app").stdout,
                "an event has the reason why the pod is not ready",
            )
            assert health.requests[0] == b"\x0a\x04shop"
            assert not agent.container("app")["ready"]
            health.answer = b"\x08\x01"
            until(lambda: agent.container("app")["ready"], "the pod is ready")
