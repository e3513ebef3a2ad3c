"""Contracts find bugs: each implementation here has one bug and must fail at least one scenario."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandEnd, CommandExited
from podkeeper.model.runtime import PodRecord, RecordState
from podkeeper.model.runtime_calls import ContainerConfig, SandboxConfig
from podkeeper.model.wire import JSONObject
from podkeeper.runtimes.fake import FakeRuntime
from podkeeper.testing.contracts import Contract, Implementation, opened
from podkeeper.testing.contracts.api import API, ApiSubject
from podkeeper.testing.contracts.journal import JOURNAL
from podkeeper.testing.contracts.runtime import RUNTIME, RuntimeSubject
from podkeeper.testing.contracts.volumes import VOLUMES
from podkeeper.testing.fakes import FakeJournal, FakeVolumes
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.virtual_time import VirtualClock


class StopsWithoutWaiting(FakeRuntime):
    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        asyncio.get_running_loop().call_later(grace_seconds, self._node.kill, self._node.containers[container_id])


class ForgetsExitCodes(FakeRuntime):
    async def pod_record(self, uid: PodUID) -> PodRecord:
        record = await super().pod_record(uid)
        alive = tuple(it for it in record.containers if it.state is not RecordState.EXITED)
        return PodRecord(uid=record.uid, sandboxes=record.sandboxes, containers=alive)


class CreatesASandboxOnEveryCall(FakeRuntime):
    tries = 0

    async def run_sandbox(self, config: SandboxConfig) -> str:
        self.tries += 1
        return await super().run_sandbox(SandboxConfig(pod=config.pod, attempt=self.tries))


class ReplacesRunningContainers(FakeRuntime):
    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        for old in self._node.containers_of(PodUID(config.pod.metadata.uid or "")):
            if (old.record.name, old.record.restart_count) == (config.container.name, config.attempt):
                await self.remove_container(old.record.id)
        return await super().create_container(sandbox_id, config)


class RunsCommandsInExitedContainers(FakeRuntime):
    async def exec_sync(self, container_id: str, command: Any, timeout_seconds: float) -> CommandEnd:
        return CommandExited(0)


class DeletesAtOnce(MemoryApi):
    async def delete(self, kind: Any, name: str, namespace: str = "", **options: Any) -> None:
        self.remove(kind, name, namespace)


class IgnoresTheUid(MemoryApi):
    async def patch_status(self, kind: Any, name: str, patch: JSONObject, namespace: str = "") -> Any:
        return await super().patch_status(kind, name, {"status": patch.get("status", {})}, namespace)


class NeverCompacts(MemoryApi):
    def expire(self) -> None:
        return


class LosesTheFirstWrite(FakeJournal):
    def crash(self, keep: int = 0) -> None:
        del self._unsynced[:1]
        super().crash(keep=5)


class SyncsNothing(FakeJournal):
    async def sync(self) -> None:
        return


class ReturnsItsInternalDictionary(FakeJournal):
    def load(self) -> Mapping[str, bytes]:
        return self._current


class RemovesMountedDirectories(FakeVolumes):
    async def remove_directory(self, uid: PodUID) -> None:
        self._directories.discard(uid)


class ReturnsAnotherPathOnEveryMount(FakeVolumes):
    async def mount(self, pod: Pod) -> Mapping[str, str]:
        return {name: f"{path}.{len(self.call_log)}" for name, path in (await super().mount(pod)).items()}


class FakeJournalSubject:
    def __init__(self, journal: FakeJournal) -> None:
        self.journal = journal

    async def open(self) -> FakeJournal:
        return self.journal

    async def crash(self) -> None:
        self.journal.crash()


def runtime(broken: type[FakeRuntime]) -> RuntimeSubject:
    made = broken(VirtualClock())
    made.missing_images.add("podkeeper.invalid/missing:1")
    return RuntimeSubject(made, image="busybox:1")


def api(broken: type[MemoryApi]) -> ApiSubject:
    made = broken(VirtualClock())

    async def expire() -> None:
        made.expire()

    return ApiSubject(made, expire)


BROKEN: list[tuple[Contract[Any], type, Callable[[Any], Any]]] = [
    *((RUNTIME, kind, runtime) for kind in (StopsWithoutWaiting, ForgetsExitCodes, CreatesASandboxOnEveryCall)),
    *((RUNTIME, kind, runtime) for kind in (RunsCommandsInExitedContainers, ReplacesRunningContainers)),
    *((API, kind, api) for kind in (DeletesAtOnce, IgnoresTheUid, NeverCompacts)),
    *((JOURNAL, kind, lambda it: FakeJournalSubject(it())) for kind in (LosesTheFirstWrite, SyncsNothing)),
    (JOURNAL, ReturnsItsInternalDictionary, lambda it: FakeJournalSubject(it())),
    *(
        (VOLUMES, kind, lambda it: it(VirtualClock()))
        for kind in (RemovesMountedDirectories, ReturnsAnotherPathOnEveryMount)
    ),
]


@pytest.mark.parametrize("contract, kind, make", BROKEN, ids=[kind.__name__ for _, kind, _ in BROKEN])
def test_a_bug_fails_a_scenario(contract: Contract[Any], kind: type, make: Callable[[Any], Any]) -> None:
    implementation = Implementation(opened(lambda: make(kind)))
    broken = []
    for scenario in contract.scenarios:
        try:
            implementation.check(scenario)
        except Exception as error:
            broken.append((scenario.__name__, type(error).__name__))
    assert broken
    assert len(broken) < len(contract.scenarios), "every scenario fails, so this is not only the planted bug"
