"""gRPC probes of containers, by an agent in a process of its own.

gRPC connects from threads of its own, which stay in the network in which they were begun. The tests' process is now in
the network of one runtime and now in another's; an agent that runs as a command is in one for all its life.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.house import roots_house, until
from tests.e2e.kinds import AND_CRIO, CONTAINERD
from tests.e2e.scripts import POLITE, sh
from tests.e2e.ways import way_of
from tests.host.loopback import grpc_server

pytestmark = pytest.mark.slow


class HealthService:
    """A health service that says what it is told to, and notes what it was asked."""

    def __init__(self) -> None:
        self.port = 0
        self.answer = b"\x08\x02"  # NOT_SERVING
        self.asked: list[bytes] = []

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve in the network of whoever calls, from a thread of its own."""
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
        self.asked.append(request)
        return self.answer


@pytest.mark.parametrize("kind", [CONTAINERD, *AND_CRIO])
def test_readiness_by_grpc_follows_the_health_service(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    way, health = way_of(request, kind), HealthService()
    with way.inside(), health.serving():
        probe = {"grpc": {"port": health.port, "service": "shop"}, "failureThreshold": 1, "periodSeconds": 1}
        containers = {"app": {**sh(POLITE), "readinessProbe": probe}}
        with roots_house(tmp_path, way, containers, hostNetwork=True) as house:
            until(lambda: b"NOT_SERVING" in house.call("describe", "app").stdout, "it is told why the pod is not ready")
            assert health.asked[0] == b"\x0a\x04shop"
            assert not house.container("app")["ready"]
            health.answer = b"\x08\x01"
            until(lambda: house.container("app")["ready"], "the pod is ready")
