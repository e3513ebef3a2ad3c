"""What scenes have in common, on whatever runtime: one pod, made step by step, and how it is."""

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord
from podkeeper.ports.runtime import Runtime

PATIENCE_SECONDS = 20.0


class PodScene(ABC):
    """One pod. How its sandbox and its containers are made, each runtime's tests say."""

    runtime: Runtime
    uid: PodUID

    @abstractmethod
    async def sandbox(self, attempt: int = 0) -> str:
        """Make a sandbox."""

    @abstractmethod
    async def create(self, sandbox_id: str, *command: str, name: str = "c", **spec: Any) -> str:
        """Make a container."""

    async def start(self, *command: str, name: str = "c", **spec: Any) -> str:
        """A container that runs, in a sandbox that is ready."""
        container_id = await self.create(await self.sandbox(), *command, name=name, **spec)
        await self.runtime.start_container(container_id)
        return container_id

    async def record(self) -> PodRecord:
        return await self.runtime.pod_record(self.uid)

    async def container(self, container_id: str) -> ContainerRecord:
        return next(it for it in (await self.record()).containers if it.id == container_id)

    async def exited(self, container_id: str) -> ContainerRecord:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (record := await self.container(container_id)).state is not ContainerState.EXITED:
                await asyncio.sleep(0.01)
        return record
