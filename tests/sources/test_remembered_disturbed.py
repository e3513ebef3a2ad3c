"""A source with a memory, with an event at every await: in the end it has told, and noted, what the source has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from podkeeper.engine.notebook import Notebook
from podkeeper.engine.storage import PodStorage
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.ports.source import Tell
from podkeeper.sources.remembered import PATIENCE_SECONDS, Remember, RememberedSource
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls, Unexpected
from podkeeper.testing.virtual_time import VirtualClock
from tests.sources.static_stage import FailingJournal
from tests.sources.test_remembered import pod

RELIST_SECONDS = 3.0


class Cluster:
    """A source that lists its pods when it can, and sends each change after that. It lists again after a refusal."""

    name = "api"

    def __init__(self) -> None:
        self.pods = {name: pod(name) for name in ("stays", "goes")}
        self.is_up = True
        self._remember: Remember = lambda update: None
        self._tell: Tell | None = None

    def remembered_by(self, remember: Remember) -> "Cluster":
        self._remember = remember
        return self

    async def run(self, tell: Tell) -> None:
        self._tell, listed = None, False
        while True:
            if self.is_up and not listed:
                listed = self._sent(PodUpdate(Op.SET, tuple(self.pods.values()), self.name), tell)
            self._tell = tell if listed else None
            await asyncio.sleep(RELIST_SECONDS)
            listed = listed and self._tell is not None

    def put(self, made: Pod) -> None:
        self.pods[made.metadata.name or ""] = made
        self._send(Op.UPDATE, made)

    def remove(self, name: str) -> None:
        if (gone := self.pods.pop(name, None)) is not None:
            self._send(Op.REMOVE, gone)

    def _send(self, op: Op, changed: Pod) -> None:
        if self.is_up and self._tell is not None and not self._sent(PodUpdate(op, (changed,), self.name), self._tell):
            self._tell = None

    def _sent(self, update: PodUpdate, tell: Tell) -> bool:
        try:
            self._remember(update)
            tell(update)
        except Unexpected:
            return False
        return True


class Stage:
    def __init__(self, calls: PortCalls, group: asyncio.TaskGroup) -> None:
        self.clock = VirtualClock()
        self.journal = FailingJournal()
        self.cluster = Cluster()
        self.refusals = 0
        self.wrong: list[str] = []
        self.storage = self._storage()
        self._watched = calls.watch("journal", self.journal)
        self._group = group
        self._running: asyncio.Task[None] | None = None

    def _storage(self) -> PodStorage:
        return PodStorage(emit=lambda _: None, record=lambda _: None, now=self.clock.now)

    def start(self) -> None:
        """Start an agent. An earlier one ends, and what it did not sync is lost."""
        self.stop()
        self.storage = self._storage()
        self._running = self._group.create_task(self._live(self._running, self.storage))

    async def _live(self, before: "asyncio.Task[None] | None", storage: PodStorage) -> None:
        if before is not None:
            await asyncio.wait([before])
            self.journal.crash()
        await RememberedSource(self.cluster.remembered_by, Notebook(self._watched, "pod/")).run(
            lambda update: self._merge(update, storage)
        )

    def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def replace_pod(self) -> None:
        self.cluster.remove("stays")
        self.cluster.put(pod("stays"))

    def refuse(self) -> None:
        self.refusals += 1

    def _merge(self, update: PodUpdate, storage: PodStorage) -> None:
        if update.op is not Op.REMOVE and not self.noted() >= {each.metadata.name for each in update.pods}:
            self.wrong.append("a pod was told before it was noted")
        if self.refusals:
            self.refusals -= 1
            raise Unexpected("cannot take the update")
        storage.merge(update)

    def told(self) -> dict[str, str]:
        return {each.metadata.name or "": image(each) for each in self.storage.merged_state()}

    def true(self) -> dict[str, str]:
        return {name: image(each) for name, each in self.cluster.pods.items()}

    def noted(self) -> set[str]:
        return {key.removeprefix("pod/uid-") for key in self.journal.load()}

    def check(self) -> None:
        assert self.wrong == [], self.wrong
        assert self.told() == self.true()
        assert self.noted() == set(self.true())


def check_and_all_is_durable(stage: Stage) -> None:
    stage.check()
    assert stage.journal.unsynced_writes == 0


def image(each: Pod) -> str:
    return each.spec.containers[0].image or ""


@asynccontextmanager
async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
    async with asyncio.TaskGroup() as group:
        made = Stage(calls, group)
        made.start()
        await asyncio.sleep(1)
        made.cluster.is_up = False
        calls.log.clear()
        yield made
        made.stop()


async def restart(stage: Stage) -> None:
    """Start without the API, go on with the notes, and hear of the API again."""
    stage.start()
    while set(stage.told()) != set(stage.noted()):
        await asyncio.sleep(PATIENCE_SECONDS)
    await asyncio.sleep(2 * PATIENCE_SECONDS)
    stage.cluster.remove("goes")
    stage.cluster.is_up = True
    await asyncio.sleep(2 * RELIST_SECONDS)
    stage.cluster.put(pod("comes"))
    await asyncio.sleep(1)


async def a_restart_without_the_api_has_all_pods(stage: Stage) -> None:
    stage.refusals = stage.journal.failures = 0  # those that nothing met
    stage.cluster.put(pod("last"))
    await asyncio.sleep(2 * RELIST_SECONDS)
    check_and_all_is_durable(stage)
    stage.cluster.is_up = False
    stage.start()
    await asyncio.sleep(2 * PATIENCE_SECONDS)
    assert stage.told() == stage.true()


RESTART = Operation(
    stage=stage,
    run=restart,
    state=Stage.told,
    check=Stage.check,
    afterwards=a_restart_without_the_api_has_all_pods,
    settle_seconds=20,
)
EVENTS: dict[str, Event[Stage]] = {
    "a pod changes": lambda stage: stage.cluster.put(pod("stays", image="app:v3")),
    "a pod goes": lambda stage: stage.cluster.remove("stays"),
    "a pod goes and comes back": Stage.replace_pod,
    "an update is refused": Stage.refuse,
    "a write of the journal fails": lambda stage: stage.journal.fail(),
    "the agent restarts": Stage.start,
    "the clock jumps": lambda stage: stage.clock.jump(3600),
}


def test_every_event_at_every_await() -> None:
    interleave(replace(RESTART, check=check_and_all_is_durable), EVENTS, cancel=False)


def test_every_call_fails_once() -> None:
    fail_each_call(RESTART)
