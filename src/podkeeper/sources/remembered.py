"""A source with a memory: what it last said is told again after a restart, if the source itself has nothing to say.

    source --SET, ADD, UPDATE, REMOVE--> remember, then tell
                                            |
    notes of a former life --(the source is silent)--> tell: ADD, until the source speaks

In: a source that may be out of reach when the agent starts (the API's), and notes that survive a restart. Out: its
words, unchanged. When the node comes up and the API does not, the last known pods start from the notes.

What may be relied on:

* Memory only ever adds. It is told as an ADD, which does not count as the source having spoken: nobody is taken for an
  orphan because a note was lost. The source's first list (its SET) replaces all that memory said.
* A pod is noted before it is told. What only its status changes is not noted, save its end: a pod is noted when it
  comes, when it is changed or deleted, and once when it is over. So a pod seen deleted is remembered as being deleted,
  and one that is over as being over.
* The source passes each update to `remember` before it tells it. A source that notes its own progress writes that after
  `remember`. The journal keeps the order of writes, so a crash never leaves progress that is ahead of the pods' notes.
* Mirrors are not remembered: they are shadows of pods that the node has itself.

The writes become durable with the next sync of the journal; a disk that refuses holds nobody up.
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
"""How long a source may take for its first words before memory speaks."""


Remember = Callable[[PodUpdate], None]
"""Notes what is new in an update. The source calls it with each update, before it tells the update."""


class Notes(Protocol):
    """What this room asks of a notebook: notes by key that survive a restart."""

    def old_keys(self) -> Iterable[str]:
        """The keys of notes from before the restart that nobody has taken or changed."""

    def take(self, key: str) -> bytes | None:
        """The note of before the restart, once."""

    def write(self, key: str, note: bytes) -> None:
        """Write a note."""

    def drop(self, key: str) -> None:
        """Forget a note."""

    async def settle(self, key: str | None = None) -> None:
        """Return once every note is safe, or cannot be waited for any longer."""


class RememberedSource:
    """A source whose last words outlive the agent."""

    def __init__(
        self, make_source: Callable[[Remember], Source], notes: Notes, *, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._notes = notes
        self._patience_seconds = patience_seconds
        self._noted: dict[str, Pod] = {}  # by UID, as the notes have them
        self._has_spoken = False
        self._written = asyncio.Event()
        self._source = make_source(self._remember)  # last: the source may pass an update at once

    @property
    def name(self) -> str:
        """The source's."""
        return self._source.name

    async def run(self, tell: Tell) -> None:
        """Tell what the source tells; and what it told a former life, while it says nothing."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._speak_for_it(tell))
            group.create_task(self._keep_safe())
            await self._source.run(partial(self._pass_on, tell))

    def _pass_on(self, tell: Tell, update: PodUpdate) -> None:
        self._has_spoken = True
        tell(update)

    # What is told from memory.

    async def _speak_for_it(self, tell: Tell) -> None:
        await asyncio.sleep(self._patience_seconds)
        while not self._has_spoken:
            self._recall()
            if not self._noted or self._tells_noted(tell):
                return
            await asyncio.sleep(self._patience_seconds)  # again: the source may be out of reach for days

    def _tells_noted(self, tell: Tell) -> bool:
        """Tell the noted pods. Returns whether they were taken."""
        pods = tuple(self._noted.values())
        log.warning("source %s says nothing: going on with the %d pods it last had", self.name, len(pods))
        try:
            tell(PodUpdate(Op.ADD, pods, self.name))
        except Exception:
            log.exception("cannot go on with the pods that source %s last had, will retry", self.name)
            return False
        return True

    def _recall(self) -> None:
        """Read the notes of before the restart that nothing has read yet."""
        for uid in tuple(self._notes.old_keys()):
            note = self._notes.take(uid) or b""
            try:
                pod = msgspec.json.decode(note, type=Pod)
                if pod.metadata.uid != uid or not pod.metadata.name:
                    # The update with all noted pods would be refused because of this one.
                    raise ValueError("its UID differs from its key, or it has no name")
                self._noted[uid] = pod
            except UNDECODABLE as error:
                log.warning("noted pod %s is dropped: cannot read it: %s", uid, error)
                self._notes.drop(uid)

    # What is remembered.

    def _remember(self, update: PodUpdate) -> None:
        """Note what is new in a word of the source."""
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
                self._noted[uid] = (
                    pod  # after the write: a pod that could not be noted is noted when it is listed again
                )
                self._written.set()

    def _forget(self, uids: Iterable[str]) -> None:
        for uid in tuple(uids):
            del self._noted[uid]
            self._notes.drop(uid)
            self._written.set()

    async def _keep_safe(self) -> None:
        """Have the notes synced. What a full disk refuses, the next sync of the journal takes along, whoever asks."""
        while True:
            await self._written.wait()
            self._written.clear()
            await self._notes.settle()


def _is_news(noted: Pod, pod: Pod) -> bool:
    """Whether a pod has to be noted again: for what it should be, or because it is over."""
    if is_terminal(pod.status.phase) and not is_terminal(noted.status.phase):
        return True
    return compare(noted, pod) in (Verdict.UPDATE, Verdict.DELETE)


def _without_ballast(pod: Pod) -> Pod:
    """A pod without the book the API keeps on who wrote which field."""
    return replace(pod, metadata=replace(pod.metadata, managed_fields=None)) if pod.metadata.managed_fields else pod
