"""Store the pods of a source across restarts of the agent.

They start if the source is unreachable after a restart.

    source --SET, ADD, UPDATE, REMOVE--> store, then pass on
                                            |
    stored pods --(the source does not answer)--> ADD, until the source answers

Input: a source that may be unreachable when the agent starts (the API), and checkpoints that survive a restart.
Output: the source's updates, unchanged. If the node boots without the API, the stored pods start.

Guarantees:

* Stored pods are sent as an ADD, which does not make the source ready. So a pod whose checkpoint was lost does not
  become an orphan. The first SET of the source replaces all stored pods.
* A pod is stored before it is sent: when it is added, changed or deleted, and when it becomes terminal. Other
  changes of its status are not stored. So a deleted pod stays deleted after a restart, and a terminal one terminal.
* The source passes each update to `store` before it sends it. If it stores its own progress, it does so after
  `store`. The journal keeps the order of writes, so a crash never leaves progress that is ahead of the stored pods.
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
from podkeeper.ports.source import SendUpdate, Source
from podkeeper.rules.merge import PodDifference, compare
from podkeeper.rules.static.mirror import is_mirror_pod
from podkeeper.rules.status.phase import is_terminal
from podkeeper.sources.journal_sync import JournalSync

log = logging.getLogger(__name__)

SOURCE_TIMEOUT_SECONDS = 5.0
"""How long to wait for the source's first update before the stored pods are sent."""


StoreUpdate = Callable[[PodUpdate], None]
"""Stores the changes of an update. The source calls it with each update, before it sends the update."""


class CheckpointStore(Protocol):
    """Bytes by key that survive a restart: the part of `Checkpoints` that the sources use."""

    def old_keys(self) -> Iterable[str]:
        """Return the keys from before the restart that were neither taken nor changed."""

    def take(self, key: str) -> bytes | None:
        """Return the data from before the restart. Later calls return None."""

    def write(self, key: str, data: bytes) -> None:
        """Replace the data of a key. It becomes durable with the next sync of the journal."""

    def drop(self, key: str) -> None:
        """Remove a key."""

    async def settle(self, key: str | None = None) -> None:
        """Return when the data of a key, or of all keys, is durable, or after a timeout."""


class StoredPodsSource:
    """A source whose pods survive a restart of the agent."""

    def __init__(
        self,
        make_source: Callable[[StoreUpdate], Source],
        checkpoints: CheckpointStore,
        *,
        timeout_seconds: float = SOURCE_TIMEOUT_SECONDS,
    ) -> None:
        self._checkpoints = checkpoints
        self._timeout_seconds = timeout_seconds
        self._stored: dict[str, Pod] = {}  # the stored pods, by UID
        self._has_answered = False
        self._sync = JournalSync(checkpoints.settle)
        self._source = make_source(self._store)  # last, because the source may send an update at once

    @property
    def name(self) -> str:
        return self._source.name

    async def run(self, send: SendUpdate) -> None:
        """Pass on the source's updates. Send the stored pods while the source does not answer."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_stored_if_silent(send))
            group.create_task(self._sync.run())
            await self._source.run(partial(self._send, send))

    def _send(self, send: SendUpdate, update: PodUpdate) -> None:
        self._has_answered = True
        send(update)

    # Sending stored pods.

    async def _send_stored_if_silent(self, send: SendUpdate) -> None:
        await asyncio.sleep(self._timeout_seconds)
        while not self._has_answered:
            self._load()
            if not self._stored or self._send_stored(send):
                return
            await asyncio.sleep(self._timeout_seconds)  # retry, because the source may be unreachable for days

    def _send_stored(self, send: SendUpdate) -> bool:
        """Send the stored pods. Returns whether they were accepted."""
        pods = tuple(self._stored.values())
        log.warning("source %s does not answer: using its %d stored pods", self.name, len(pods))
        try:
            # ADD and not SET: a SET would make the source ready, and housekeeping would end all pods without a
            # checkpoint.
            send(PodUpdate(Op.ADD, pods, self.name))
        except Exception:
            log.exception("cannot use the stored pods of source %s, will retry", self.name)
            return False
        return True

    def _load(self) -> None:
        """Read the pods from before the restart, once."""
        for uid in tuple(self._checkpoints.old_keys()):
            data = self._checkpoints.take(uid) or b""
            try:
                pod = msgspec.json.decode(data, type=Pod)
                if pod.metadata.uid != uid or not pod.metadata.name:
                    # The storage would reject the whole update because of this one pod.
                    raise ValueError("its UID differs from its key, or it has no name")
                self._stored[uid] = pod
            except UNDECODABLE as error:
                log.warning("dropped stored pod %s, which cannot be decoded: %s", uid, error)
                self._checkpoints.drop(uid)

    # Storing pods.

    def _store(self, update: PodUpdate) -> None:
        self._has_answered = True  # the source may wait for the journal before it sends the update
        self._load()
        # Without mirror pods, because the node has their static pods itself.
        pods = {pod.metadata.uid or "": pod for pod in update.pods if not is_mirror_pod(pod)}
        if update.op is Op.SET:
            self._drop(uid for uid in self._stored if uid not in pods)
        if update.op is Op.REMOVE:
            self._drop(uid for uid in pods if uid in self._stored)
            return
        for uid, pod in pods.items():
            stored = self._stored.get(uid)
            if uid and (stored is None or _must_store(stored, pod)):
                self._checkpoints.write(uid, msgspec.json.encode(_without_managed_fields(pod)))
                # After the write: if it fails, the pod is stored when it is listed again.
                self._stored[uid] = pod
                self._sync.request()

    def _drop(self, uids: Iterable[str]) -> None:
        for uid in tuple(uids):
            del self._stored[uid]
            self._checkpoints.drop(uid)
            self._sync.request()


def _must_store(stored: Pod, pod: Pod) -> bool:
    """Return whether a pod must be stored again: its spec or deletion has changed, or it has become terminal."""
    # Otherwise the next agent would run a finished pod again. Other status changes would cause a write per sync.
    if is_terminal(pod.status.phase) and not is_terminal(stored.status.phase):
        return True
    return compare(stored, pod) in (PodDifference.UPDATE, PodDifference.DELETE)


def _without_managed_fields(pod: Pod) -> Pod:
    """Return a pod without `managedFields`, which the agent does not use."""
    return replace(pod, metadata=replace(pod.metadata, managed_fields=None)) if pod.metadata.managed_fields else pod
