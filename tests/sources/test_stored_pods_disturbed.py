"""A source with stored pods, with an event at every await: updates and checkpoints match the source."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.engine.storage import PodStorage
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.ports.source import SendUpdate
from podkeeper.sources.stored_pods import SOURCE_TIMEOUT_SECONDS, StoredPodsSource, StoreUpdate
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls, UnexpectedError
from podkeeper.testing.virtual_time import VirtualClock
from tests.sources.static_harness import FailingJournal
from tests.sources.test_stored_pods import pod

RELIST_SECONDS = 3.0


class Cluster:
    """A source that lists its pods, then sends each change. It lists again after a refused update."""

    name = "api"

    def __init__(self) -> None:
        self.pods = {name: pod(name) for name in ("stays", "goes")}
        self.is_up = True
        self._remember: StoreUpdate = lambda update: None
        self._deliver: SendUpdate | None = None

    def stored_by(self, store: StoreUpdate) -> "Cluster":
        self._remember = store
        return self

    async def run(self, send: SendUpdate) -> None:
        self._deliver, listed = None, False
        while True:
            if self.is_up and not listed:
                listed = self._sent(PodUpdate(Op.SET, tuple(self.pods.values()), self.name), send)
            self._deliver = send if listed else None
            await asyncio.sleep(RELIST_SECONDS)
            listed = listed and self._deliver is not None

    def put(self, made: Pod) -> None:
        self.pods[made.metadata.name or ""] = made
        self._send(Op.UPDATE, made)

    def remove(self, name: str) -> None:
        if (gone := self.pods.pop(name, None)) is not None:
            self._send(Op.REMOVE, gone)

    def _send(self, op: Op, changed: Pod) -> None:
        if (
            self.is_up
            and self._deliver is not None
            and not self._sent(PodUpdate(op, (changed,), self.name), self._deliver)
        ):
            self._deliver = None

    def _sent(self, update: PodUpdate, send: SendUpdate) -> bool:
        try:
            self._remember(update)
            send(update)
        except UnexpectedError:
            return False
        return True


class Harness:
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
        return PodStorage(emit=lambda _: None, record_event=lambda _: None, now=self.clock.now)

    def start(self) -> None:
        """Start a new agent and stop the earlier one. Unsynced writes are lost."""
        self.stop()
        self.storage = self._storage()
        self._running = self._group.create_task(self._live(self._running, self.storage))

    async def _live(self, before: "asyncio.Task[None] | None", storage: PodStorage) -> None:
        if before is not None:
            await asyncio.wait([before])
            self.journal.crash()
        await StoredPodsSource(self.cluster.stored_by, Checkpoints(self._watched, "pod/")).run(
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
        if update.op is not Op.REMOVE and not self.checkpointed() >= {each.metadata.name for each in update.pods}:
            self.wrong.append("a pod was sent before it was stored")
        if self.refusals:
            self.refusals -= 1
            raise UnexpectedError("cannot take the update")
        storage.merge(update)

    def received(self) -> dict[str, str]:
        return {each.metadata.name or "": image(each) for each in self.storage.merged_state()}

    def expected_pods(self) -> dict[str, str]:
        return {name: image(each) for name, each in self.cluster.pods.items()}

    def checkpointed(self) -> set[str]:
        return {key.removeprefix("pod/uid-") for key in self.journal.load()}

    def check(self) -> None:
        assert self.wrong == [], self.wrong
        assert self.received() == self.expected_pods()
        assert self.checkpointed() == set(self.expected_pods())


def check_and_durable(harness: Harness) -> None:
    harness.check()
    assert harness.journal.unsynced_writes == 0


def image(each: Pod) -> str:
    return each.spec.containers[0].image or ""


@asynccontextmanager
async def open_harness(calls: PortCalls) -> AsyncIterator[Harness]:
    async with asyncio.TaskGroup() as group:
        made = Harness(calls, group)
        made.start()
        await asyncio.sleep(1)
        made.cluster.is_up = False
        calls.log.clear()
        yield made
        made.stop()


async def restart(harness: Harness) -> None:
    """Start without the API, use the stored pods, then receive from the API again."""
    harness.start()
    while set(harness.received()) != set(harness.checkpointed()):
        await asyncio.sleep(SOURCE_TIMEOUT_SECONDS)
    await asyncio.sleep(2 * SOURCE_TIMEOUT_SECONDS)
    harness.cluster.remove("goes")
    harness.cluster.is_up = True
    await asyncio.sleep(2 * RELIST_SECONDS)
    harness.cluster.put(pod("comes"))
    await asyncio.sleep(1)


async def a_restart_without_the_api_has_all_pods(harness: Harness) -> None:
    harness.refusals = harness.journal.failures = 0  # in case nothing was affected
    harness.cluster.put(pod("last"))
    await asyncio.sleep(2 * RELIST_SECONDS)
    check_and_durable(harness)
    harness.cluster.is_up = False
    harness.start()
    await asyncio.sleep(2 * SOURCE_TIMEOUT_SECONDS)
    assert harness.received() == harness.expected_pods()


RESTART = OperationTest(
    setup=open_harness,
    run=restart,
    state=Harness.received,
    check=Harness.check,
    afterwards=a_restart_without_the_api_has_all_pods,
    settle_seconds=20,
)
EVENTS: dict[str, Event[Harness]] = {
    "a pod changes": lambda harness: harness.cluster.put(pod("stays", image="app:v3")),
    "a pod goes": lambda harness: harness.cluster.remove("stays"),
    "a pod is removed and restored": Harness.replace_pod,
    "an update is refused": Harness.refuse,
    "a write of the journal fails": lambda harness: harness.journal.fail(),
    "the agent restarts": Harness.start,
    "the clock jumps": lambda harness: harness.clock.jump(3600),
}


def test_every_event_at_every_await() -> None:
    interleave(replace(RESTART, check=check_and_durable), EVENTS, cancel=False)


def test_every_call_fails_once() -> None:
    fail_each_call(RESTART)
