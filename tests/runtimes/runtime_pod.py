"""A pod that tests create step by step on any runtime."""

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.ports.runtime import Runtime

TIMEOUT_SECONDS = 20.0


class RuntimePod(ABC):
    """One pod. Subclasses create its sandbox and containers on their runtime."""

    runtime: Runtime
    uid: PodUID

    @abstractmethod
    async def sandbox(self, attempt: int = 0) -> str:
        """Create a sandbox and return its id."""

    @abstractmethod
    async def create(self, sandbox_id: str, *command: str, name: str = "c", **spec: Any) -> str:
        """Create a container and return its id."""

    async def start(self, *command: str, name: str = "c", **spec: Any) -> str:
        """Create a sandbox, and create and start a container in it."""
        container_id = await self.create(await self.sandbox(), *command, name=name, **spec)
        await self.runtime.start_container(container_id)
        return container_id

    async def record(self) -> PodRecord:
        return await self.runtime.pod_record(self.uid)

    async def container(self, container_id: str) -> ContainerRecord:
        return next(it for it in (await self.record()).containers if it.id == container_id)

    async def exited(self, container_id: str) -> ContainerRecord:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (record := await self.container(container_id)).state is not RecordState.EXITED:
                await asyncio.sleep(0.01)
        return record
