"""Deletion of dead containers: everything only of a finished pod whose last status is saved."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from podkeeper.engine.cache import PodCache
from podkeeper.engine.container_deletor import PodContainerDeletor
from podkeeper.engine.executor import PlanExecutor
from podkeeper.engine.status import StatusManager
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.states import State
from podkeeper.rules.worker.updates import UpdateType
from podkeeper.rules.worker.workers import WorkerTable
from podkeeper.testing import build
from podkeeper.testing.virtual_time import simulate
from tests.doubles import stand_in
from tests.engine.small_node import pod

T = TypeVar("T")

POD = pod("web")
WEB = uid_of(POD)
RECORD = PodRecord(uid=WEB, name="web", namespace="ns")


class DeletorModules:
    def __init__(self, *, known: bool, finished: bool, saved: bool) -> None:
        self.finished, self.saved = finished, saved
        self.states = WorkerTable()
        if known:
            self.states.update(build.update(UpdateType.CREATE, POD), None)
        self.deleted: list[tuple[PodRecord, str, bool]] = []
        self.tasks: list[asyncio.Future[Any]] = []

    def state(self, uid: PodUID) -> State:
        return self.states.state(uid)

    def should_pod_be_finished(self, uid: PodUID) -> bool:
        return self.finished

    async def is_saved(self, uid: PodUID) -> bool:
        await asyncio.sleep(1)
        return self.saved

    def get(self, uid: PodUID) -> PodRecord:
        return RECORD

    async def collect_dead_containers(
        self, record: PodRecord, *, container_id: str = "", everything: bool = False
    ) -> None:
        self.deleted.append((record, container_id, everything))

    def spawn(self, coroutine: Coroutine[Any, Any, T], /) -> asyncio.Future[T]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.append(task)
        return task


CASES: dict[str, tuple[bool, bool, bool, bool, bool]] = {
    # requested, known, finished, saved, deleted
    "a finished pod with a saved status": (True, True, True, True, True),
    "only one container was requested": (False, True, True, True, False),
    "the pod has no worker, so it may still run": (True, False, True, True, False),
    "the pod has not finished": (True, True, False, True, False),
    "the status is not saved": (True, True, True, False, False),
}


@pytest.mark.parametrize("requested, known, finished, saved, deleted", CASES.values(), ids=CASES.keys())
def test_everything_is_deleted(requested: bool, known: bool, finished: bool, saved: bool, deleted: bool) -> None:
    async def scenario() -> None:
        modules = DeletorModules(known=known, finished=finished, saved=saved)
        deletor = PodContainerDeletor(
            executor=stand_in(PlanExecutor, modules),
            cache=stand_in(PodCache, modules),
            workers=stand_in(PodWorkers, modules),
            statuses=stand_in(StatusManager, modules),
            spawn=modules.spawn,
        )
        deletor.delete_containers_in_pod(WEB, "c1", requested)
        assert modules.deleted == []
        await asyncio.gather(*modules.tasks)
        assert modules.deleted == [(RECORD, "c1", deleted)]

    simulate(scenario())
