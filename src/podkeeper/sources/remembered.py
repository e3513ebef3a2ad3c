"""Store the pods of a source, so that they can start after a restart while the source is unreachable.

    source --SET, ADD, UPDATE, REMOVE--> store, then pass on
                                            |
    stored pods --(the source does not answer)--> ADD, until the source answers

Input: a source that may be unreachable when the agent starts (the API), and notes that survive a restart. Output: the
source's updates, unchanged. If the node boots without the API, the stored pods start.

Guarantees:

* Stored pods are sent as an ADD, which does not make the source ready. So no pod becomes an orphan because its note was
  lost. The first SET of the source replaces all stored pods.
* A pod is stored before it is passed on: when it is added, changed or deleted, and when it becomes terminal. Other
  changes of its status are not stored. So a deleted pod stays deleted after a restart, and a terminal one terminal.
* The source passes each update to `remember` before it sends it. If it stores its own progress, it does so after
  `remember`. The journal keeps the order of writes, so a crash never leaves progress that is ahead of the stored pods.
* Mirror pods are not stored, because the node has their static pods itself.

The writes become durable with the next sync of the journal. A failing disk delays nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import msgspec
from msgspec.structs import replace

from podkeeper.model.errors import UNDECODABLE
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.ports.source import Source, Tell
from podkeeper.rules.merge import Verdict, compare
from podkeeper.rules.mirror import is_mirror_pod
from podkeeper.rules.phase import is_terminal

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 5.0
"""How long to wait for the source's first update before the stored pods are sent."""


Remember = Callable[[PodUpdate], None]
"""Stores the changes of an update. The source calls it with each update, before it sends the update."""


class Notes(Protocol):
    """Notes by key that survive a restart: the part of `Notebook` that this module uses."""

    def old_keys(self) -> Iterable[str]:
        """Return the keys of notes from before the restart that were neither taken nor changed."""

    def take(self, key: str) -> bytes | None:
        """Return the note from before the restart. Later calls return None."""

    def write(self, key: str, note: bytes) -> None:
        """Write a note."""

    def drop(self, key: str) -> None:
        """Remove a note."""

    async def settle(self, key: str | None = None) -> None:
        """Return when all notes are durable, or after a timeout."""


class RememberedSource:
    """A source whose pods survive a restart of the agent."""

    def __init__(
        self, make_source: Callable[[Remember], Source], notes: Notes, *, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._notes = notes
        self._patience_seconds = patience_seconds
        self._noted: dict[str, Pod] = {}  # the stored pods, by UID
        self._has_spoken = False
        self._written = asyncio.Event()
        self._source = make_source(self._remember)  # last, because the source may send an update at once

    @property
    def name(self) -> str:
        return self._source.name

    async def run(self, tell: Tell) -> None:
        """Pass on the source's updates. Send the stored pods while the source does not answer."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._speak_for_it(tell))
            group.create_task(self._keep_safe())
            await self._source.run(partial(self._pass_on, tell))

    def _pass_on(self, tell: Tell, update: PodUpdate) -> None:
        self._has_spoken = True
        tell(update)

    # Sending stored pods.

    async def _speak_for_it(self, tell: Tell) -> None:
        await asyncio.sleep(self._patience_seconds)
        while not self._has_spoken:
            self._recall()
            if not self._noted or self._tells_noted(tell):
                return
            await asyncio.sleep(self._patience_seconds)  # retry, because the source may be unreachable for days

    def _tells_noted(self, tell: Tell) -> bool:
        """Send the stored pods. Returns whether they were accepted."""
        pods = tuple(self._noted.values())
        log.warning("source %s does not answer: using its %d stored pods", self.name, len(pods))
        try:
            tell(PodUpdate(Op.ADD, pods, self.name))
        except Exception:
            log.exception("cannot use the stored pods of source %s, will retry", self.name)
            return False
        return True

    def _recall(self) -> None:
        """Read the notes from before the restart, once."""
        for uid in tuple(self._notes.old_keys()):
            note = self._notes.take(uid) or b""
            try:
                pod = msgspec.json.decode(note, type=Pod)
                if pod.metadata.uid != uid or not pod.metadata.name:
                    # The update with all noted pods would be refused because of this one.
                    raise ValueError("its UID differs from its key, or it has no name")
                self._noted[uid] = pod
            except UNDECODABLE as error:
                log.warning("dropped stored pod %s, which cannot be decoded: %s", uid, error)
                self._notes.drop(uid)

    # Storing pods.

    def _remember(self, update: PodUpdate) -> None:
        self._has_spoken = True  # the source may wait for the journal before it sends the update
        self._recall()
        pods = {pod.metadata.uid or "": pod for pod in update.pods if not is_mirror_pod(pod)}
        if update.op is Op.SET:
            self._forget(uid for uid in self._noted if uid not in pods)
        if update.op is Op.REMOVE:
            self._forget(uid for uid in pods if uid in self._noted)
            return
        for uid, pod in pods.items():
            noted = self._noted.get(uid)
            if uid and (noted is None or _is_news(noted, pod)):
                self._notes.write(uid, msgspec.json.encode(_without_ballast(pod)))
                # After the write: if it fails, the pod is stored when it is listed again.
                self._noted[uid] = pod
                self._written.set()

    def _forget(self, uids: Iterable[str]) -> None:
        for uid in tuple(uids):
            del self._noted[uid]
            self._notes.drop(uid)
            self._written.set()

    async def _keep_safe(self) -> None:
        """Sync the journal after each change. If the disk fails, the next sync of the journal includes the notes."""
        while True:
            await self._written.wait()
            self._written.clear()
            await self._notes.settle()


def _is_news(noted: Pod, pod: Pod) -> bool:
    """Return whether a pod must be stored again: its spec or deletion has changed, or it has become terminal."""
    if is_terminal(pod.status.phase) and not is_terminal(noted.status.phase):
        return True
    return compare(noted, pod) in (Verdict.UPDATE, Verdict.DELETE)


def _without_ballast(pod: Pod) -> Pod:
    """Return a pod without `managedFields`, which the agent does not use."""
    return replace(pod, metadata=replace(pod.metadata, managed_fields=None)) if pod.metadata.managed_fields else pod
