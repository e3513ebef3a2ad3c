"""Stopping and removing sandboxes and containers, by force: what still runs in them is not waited for.

containerd does so by itself. CRI-O asks whatever still runs, or was created and never started, to end, and gives it all
of the caller's deadline: two minutes. Whoever calls here has had his patience before: so what is left is killed first,
and as CRI-O does not list what it was still creating when its caller went away, its first deadline is short.
And it notes another end for what is stopped once more: so that is not asked for. Which of the two a runtime is, `learn`
is told; one that nobody knows is taken to be as CRI-O. What is not there is gone.
"""

import asyncio
from contextlib import suppress
from typing import Final

from podkeeper.model.errors import CallTimedOut, RuntimeRefused
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import NotThere

FORCE_SECONDS: Final = 4.0
"""How long CRI-O may take at first to stop a sandbox; it kills what it does not list a second before."""

_FORCES: Final = ("containerd",)


class Ending:
    """Stops and removes."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._forces = False

    def learn(self, runtime_name: str) -> None:
        """Who answers."""
        self._forces = runtime_name in _FORCES

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Ask a container to end, and force it after the grace; one that has ended stays as it is."""
        if not self._forces:
            try:
                if (await self._calls.container_status(container_id)).state == cri.CONTAINER_EXITED:
                    return
            except NotThere:
                return
        await self._calls.stop_container(container_id, grace_seconds)

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox and all in it."""
        if not self._forces:
            await self._kill_all_in(sandbox_id)
            with suppress(CallTimedOut):  # what was left is killed by then, or something else takes its time
                await self._calls.stop_sandbox(sandbox_id, FORCE_SECONDS)
                return
        await self._calls.stop_sandbox(sandbox_id)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox and all in it."""
        if not self._forces:
            await self.stop_sandbox(sandbox_id)
        try:
            await self._calls.remove_sandbox(sandbox_id)
        except RuntimeRefused:
            # Not all runtimes remove what runs.
            await self._calls.stop_sandbox(sandbox_id)
            await self._calls.remove_sandbox(sandbox_id)

    async def remove_container(self, container_id: str) -> None:
        """Remove a container."""
        if not self._forces:
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
