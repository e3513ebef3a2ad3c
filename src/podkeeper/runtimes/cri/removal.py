"""Stop and remove sandboxes and containers.

Processes that still run in them get SIGKILL.

containerd does this itself when a sandbox is stopped. For CRI-O, this module kills the containers first. `learn()`
records the runtime's name. Objects that do not exist count as removed.
"""

import asyncio
from contextlib import suppress
from typing import Final

from podkeeper.model.errors import CallTimedOut, RuntimeRefused
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import ObjectNotFound

FORCE_SECONDS: Final = 4.0
"""First deadline for CRI-O to stop a sandbox.

One second before a deadline, CRI-O kills all containers, also those that it does not list.
"""

# Runtimes that kill the containers of a sandbox when it is stopped. Unknown runtimes are treated like CRI-O.
_KILLING: Final = ("containerd",)


class Removal:
    def __init__(self, calls: CriCalls) -> None:
        self._calls = calls
        self._kills = False

    def learn(self, runtime_name: str) -> None:
        """Record the name of the runtime."""
        self._kills = runtime_name in _KILLING

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Send SIGTERM, and SIGKILL after the grace period. An exited container is not touched."""
        # CRI-O overwrites the exit status of a container that is stopped again.
        if not self._kills:
            try:
                if (await self._calls.container_status(container_id)).state == cri.CONTAINER_EXITED:
                    return
            except ObjectNotFound:
                return
        await self._calls.stop_container(container_id, grace_seconds)

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox and its containers."""
        if not self._kills:
            # CRI-O would send SIGTERM and wait until the deadline of the call, two minutes, also for containers that
            # never started. The engine has already waited for the grace period.
            await self._kill_all_in(sandbox_id)
            # A short deadline at first, because CRI-O does not list containers that it is still creating. At the
            # deadline, CRI-O has killed them, too, and the next call waits for the slow step.
            with suppress(CallTimedOut):
                await self._calls.stop_sandbox(sandbox_id, FORCE_SECONDS)
                return
        await self._calls.stop_sandbox(sandbox_id)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox and its containers."""
        if not self._kills:
            await self.stop_sandbox(sandbox_id)
        try:
            await self._calls.remove_sandbox(sandbox_id)
        except RuntimeRefused:
            # Not all runtimes remove running containers.
            await self._calls.stop_sandbox(sandbox_id)
            await self._calls.remove_sandbox(sandbox_id)

    async def remove_container(self, container_id: str) -> None:
        if not self._kills:
            await self._calls.stop_container(container_id, 0)
        try:
            await self._calls.remove_container(container_id)
        except RuntimeRefused:
            await self._calls.stop_container(container_id, 0)
            await self._calls.remove_container(container_id)

    async def _kill_all_in(self, sandbox_id: str) -> None:
        listed = await self._calls.containers(sandbox_id=sandbox_id)
        alive = [each.id for each in listed if each.state != cri.CONTAINER_EXITED]
        await asyncio.gather(*(self._calls.stop_container(each, 0) for each in alive))
