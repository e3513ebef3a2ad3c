"""Somebody who looks at a runtime directly, whatever the agent believes: is anything there twice, is anything left?"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from podkeeper.model.errors import TryLater
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.requests.labels import CONTAINER_NAME, POD_NAME, POD_UID
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import GrpcTransport

LOOKS_EVERY_SECONDS = 0.1


class Witness:
    """Remembers all that it saw twice."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.doubled: set[str] = set()
        self.looks = 0

    async def look(self) -> tuple[str, ...]:
        """Look once. Returns the pods that have anything here, by name. Raises TryLater when nobody answers."""
        boxes, containers = await asyncio.gather(self._calls.sandboxes(), self._calls.containers())
        ready = Counter((box.labels[POD_UID], box.labels[POD_NAME]) for box in boxes if box.state == cri.SANDBOX_READY)
        running = Counter(
            (each.labels[POD_UID], each.labels[POD_NAME], each.labels[CONTAINER_NAME])
            for each in containers
            if each.state == cri.CONTAINER_RUNNING
        )
        for (_, pod), count in ready.items():
            if count > 1:
                self.doubled.add(f"pod {pod} has {count} ready sandboxes")
        for (_, pod, name), count in running.items():
            if count > 1:
                self.doubled.add(f"container {name} of pod {pod} runs {count} times")
        self.looks += 1
        owners = {box.labels[POD_NAME] for box in boxes} | {each.labels[POD_NAME] for each in containers}
        return tuple(sorted(owners))

    async def keep_looking(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            with suppress(TryLater):  # it may not be there just now
                await self.look()
            await asyncio.sleep(LOOKS_EVERY_SECONDS)


@asynccontextmanager
async def witnessed(socket: str) -> AsyncIterator[Witness]:
    """Somebody who looks all the time."""
    transport = GrpcTransport(socket)
    witness = Witness(Calls(transport))
    looking = asyncio.get_running_loop().create_task(witness.keep_looking())
    try:
        yield witness
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await transport.close()
