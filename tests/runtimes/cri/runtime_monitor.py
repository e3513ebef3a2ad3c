"""Inspect a runtime independently of the agent, to find duplicates and leftovers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from podkeeper.model.errors import TryLater
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.requests.labels import CONTAINER_NAME, POD_NAME, POD_UID
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import GrpcTransport

INTERVAL_SECONDS = 0.1


class RuntimeMonitor:
    """Collects duplicate ready sandboxes and duplicate running containers."""

    def __init__(self, calls: CriCalls) -> None:
        self._calls = calls
        self.duplicates: set[str] = set()
        self.inspections = 0

    async def inspect(self) -> tuple[str, ...]:
        """Inspect once. Return the names of all pods with sandboxes or containers. Raise TryLater without an answer."""
        boxes, containers = await asyncio.gather(self._calls.sandboxes(), self._calls.containers())
        ready = Counter((box.labels[POD_UID], box.labels[POD_NAME]) for box in boxes if box.state == cri.SANDBOX_READY)
        running = Counter(
            (each.labels[POD_UID], each.labels[POD_NAME], each.labels[CONTAINER_NAME])
            for each in containers
            if each.state == cri.CONTAINER_RUNNING
        )
        for (_, pod), count in ready.items():
            if count > 1:
                self.duplicates.add(f"pod {pod} has {count} ready sandboxes")
        for (_, pod, name), count in running.items():
            if count > 1:
                self.duplicates.add(f"container {name} of pod {pod} runs {count} times")
        self.inspections += 1
        owners = {box.labels[POD_NAME] for box in boxes} | {each.labels[POD_NAME] for each in containers}
        return tuple(sorted(owners))

    async def run(self) -> None:
        """Inspect periodically, until cancelled."""
        while True:
            with suppress(TryLater):  # the runtime may be down
                await self.inspect()
            await asyncio.sleep(INTERVAL_SECONDS)


@asynccontextmanager
async def monitored(socket: str) -> AsyncIterator[RuntimeMonitor]:
    """Run a monitor."""
    transport = GrpcTransport(socket)
    monitor = RuntimeMonitor(CriCalls(transport))
    task = asyncio.get_running_loop().create_task(monitor.run())
    try:
        yield monitor
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await transport.close()
