"""Harness for sources of manifests: the journal, the receiving storage, and checks of all updates.

Each manifest has a pod and a config map of the same name, and the config map's value is the pod's image. So the
receiver of a pod can check that the objects of the same manifest are already in the store.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.engine.storage import PodStorage
from podkeeper.model.k8s.core import ConfigMap, Pod
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.ports.journal import Journal
from podkeeper.ports.source import Source
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.stored_manifests import StoredManifests
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.port_calls import PortCalls, UnexpectedError
from podkeeper.testing.virtual_time import FixedJitterClock
from tests.sources.static_listener import config_map_text, pod_text


class FailingJournal(FakeJournal):
    """A journal whose next writes fail unexpectedly."""

    failures = 0

    def put(self, key: str, value: bytes) -> None:
        if self.failures:
            self.failures -= 1
            raise UnexpectedError("cannot write")
        super().put(key, value)

    def fail(self) -> None:
        self.failures += 1


def manifest(name: str, image: str) -> str:
    return f"{config_map_text(name, image)}---\n{pod_text(name, image)}"


Build = Callable[[LocalObjects, StoredManifests], Source]


class StaticHarness(ABC):
    """A source of manifests and the agents that use it, one after the other."""

    def __init__(self, calls: PortCalls, group: asyncio.TaskGroup) -> None:
        self.clock = FixedJitterClock()
        self.journal = FailingJournal()
        self.refusals = 0  # number of the next updates to refuse
        self.lost_answers = 0  # number of the next updates that are merged, but raise an error
        self.never_removed = ""  # a pod that must not be removed once it was received
        self.wrong: list[str] = []
        self._watched: Journal = calls.watch("journal", self.journal)
        self._group = group
        self._running: asyncio.Task[None] | None = None
        self._open_checkpoints()
        self.storage = self._empty_storage()
        self.ready = False
        self._ended: list[PodStorage] = []

    @abstractmethod
    def build(self, objects: LocalObjects, checkpoints: StoredManifests) -> Source:
        """Return the source under test. Each test file builds its own."""

    def start(self) -> None:
        """Start the source of a new agent. Received pods and unsynced writes of an earlier one are lost."""
        self._replace(new_agent=True)

    def run_again(self) -> None:
        """Run the same source again, for an agent without pods."""
        self._replace(new_agent=False)

    def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def _replace(self, *, new_agent: bool) -> None:
        self.stop()
        self.storage = self._empty_storage()
        self.ready = False
        self._running = self._group.create_task(self._live(self._running, self.storage, new_agent=new_agent))

    async def _live(self, before: "asyncio.Task[None] | None", storage: PodStorage, *, new_agent: bool) -> None:
        if before is not None:
            await asyncio.wait([before])
        if new_agent:
            self.journal.crash()
            self._open_checkpoints()
        try:
            await self.source.run(lambda update: self._merge(update, storage))
        finally:
            self._ended.append(storage)

    def _empty_storage(self) -> PodStorage:
        return PodStorage(emit=lambda _: None, record_event=lambda _: None, now=self.clock.now)

    def _open_checkpoints(self) -> None:
        self.objects = LocalObjects()
        self.source = self.build(self.objects, self._checkpoints(self._watched))

    def refuse(self) -> None:
        self.refusals += 1

    def lose_answer(self) -> None:
        self.lost_answers += 1

    def _checkpoints(self, journal: Journal) -> StoredManifests:
        return StoredManifests(Checkpoints(journal, "manifest/"), "n1", keep_secrets=True)

    def _merge(self, update: PodUpdate, storage: PodStorage) -> None:
        if storage in self._ended:
            self.wrong.append("a source sent pods after it was stopped")
        checkpointed = b"".join(self.journal.load().values())
        stored = {each.metadata.name: each for each in self.objects.objects()}
        for pod in update.pods if update.op is not Op.REMOVE else ():
            config_map = stored.get(_name(pod))
            if not isinstance(config_map, ConfigMap) or (config_map.data or {}).get("key") != _image(pod):
                self.wrong.append(f"{_name(pod)} was sent before its config map was stored")
            if (pod.metadata.uid or "?").encode() not in checkpointed:
                self.wrong.append(f"{_name(pod)} was sent before it was stored")
        if self.refusals:
            self.refusals -= 1
            raise UnexpectedError("cannot take the update")
        had = self.received()
        storage.merge(update)
        if self.never_removed in had and self.never_removed not in self.received():
            self.wrong.append(f"{self.never_removed} was removed for a moment")
        self.ready = self.ready or (update.op is Op.SET and storage is self.storage)
        if self.lost_answers:
            self.lost_answers -= 1
            raise UnexpectedError("took the update, and failed")

    # Results.

    def received(self) -> dict[str, str]:
        return {_name(pod): _image(pod) for pod in self.storage.merged_state()}

    def stored(self) -> dict[str, str]:
        return {
            each.metadata.name or "": (each.data or {}).get("key", "")
            for each in self.objects.objects()
            if isinstance(each, ConfigMap)
        }

    def checkpointed(self) -> dict[str, str]:
        """Return what an agent that starts now would load."""
        items = [item for items in self._checkpoints(self.journal).load().values() for item in items]
        return {_name(item.value): _image(item.value) for item in items if isinstance(item.value, Pod)}

    def check(self) -> None:
        """Check that pods, config maps and checkpoints are from the same manifests."""
        assert self.wrong == [], self.wrong
        assert self.received() == self.stored() == self.checkpointed()
        assert self.ready


def _name(pod: Pod) -> str:
    return (pod.metadata.name or "").removesuffix("-n1")


def _image(pod: Pod) -> str:
    return pod.spec.containers[0].image or ""
