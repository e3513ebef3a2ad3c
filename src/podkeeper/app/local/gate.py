"""The gate between the sources and the agent: lets pods through, and holds back those that a person stopped.

    source --SET--> gate --SET, without those held back--> storage
    source that cannot read everything yet --ADD, REMOVE--> gate --ADD, REMOVE, likewise--> storage

A static pod has nobody who could delete it but the owner of its manifest. So "stop" means: as if its manifest were not
there, until somebody starts it again or the manifest changes. A changed manifest is another pod, with another UID, and
the gate goes by UIDs; nothing else is needed. What is held back is noted, and stays held back when the agent is
started anew.

Closing the gate holds everything back, for as long as this agent lives and without a note: so a person leaves.
Pods that were let through and are no more wanted are remembered as leaving until somebody says that they are gone:
the agent itself knows them only by UID by then. Who is wanted again meanwhile (started by hand, or its manifest is
back) waits for that: it begins anew, instead of being taken for one that crashed.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import msgspec

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import Op, PodUID, PodUpdate
from podkeeper.model.times import format_micro_time, format_time, parse_micro_time
from podkeeper.ports.clock import Clock
from podkeeper.ports.source import Source, Tell
from podkeeper.rules.grace import effective_grace
from podkeeper.sources.remembered import Notes


@dataclass(frozen=True, slots=True)
class Since:
    """A pod, and since when what is said of it is true."""

    pod: Pod
    at: datetime
    grace_seconds: int = 0  # of one that is leaving: after so long it is killed

    def left(self, now: datetime) -> timedelta:
        """How much of its grace is left."""
        return max(timedelta(0), self.at + timedelta(seconds=self.grace_seconds) - now)


class Gate:
    """Holds pods of some sources back."""

    def __init__(self, *, clock: Clock, notes: Notes) -> None:
        self._clock = clock
        self._notes = notes
        self._told: dict[str, tuple[Pod, ...]] = {}  # by source: what it said last
        self._ready: set[str] = set()  # sources that have said all they have: a SET
        self._through: dict[str, tuple[Pod, ...]] = {}  # by source: what the agent was told last
        self._tells: dict[str, Tell] = {}
        self._seen: dict[PodUID, datetime] = {}  # when each was named first
        self._held: dict[PodUID, datetime] = {}
        self._leaving: dict[PodUID, Since] = {}
        self._news = asyncio.Event()  # somebody leaves
        self.closed = False

    def behind(self, source: Source) -> Source:
        """The same source, seen through the gate."""
        return _Gated(source, self._hear)

    def pods(self) -> tuple[Pod, ...]:
        """All that the sources name, held back or not."""
        return tuple(pod for pods in self._told.values() for pod in pods)

    def seen_since(self, uid: PodUID) -> datetime | None:
        """Since when a source names a pod."""
        return self._seen.get(uid)

    def held(self) -> Mapping[PodUID, Since]:
        """The pods that a person stopped."""
        return {
            uid: Since(pod, at)
            for pod in self.pods()
            if (at := self._held.get(uid := _uid(pod))) is not None and uid not in self._leaving
        }

    def leaving(self) -> Mapping[PodUID, Since]:
        """The pods that were let through, are not wanted any more, and may not be gone."""
        return dict(self._leaving)

    async def until_one_leaves(self) -> None:
        """Wait until a pod is leaving; return at once where one is."""
        while not self._leaving:
            self._news.clear()
            await self._news.wait()

    def comes_back(self, uid: PodUID) -> bool:
        """Whether a pod that is leaving is let through again once it is gone."""
        wanted = not self.closed and uid not in self._held and uid in self._seen
        return wanted and uid in self._leaving

    def gone(self, uid: PodUID) -> None:
        """Learn that nothing is left of a pod that was leaving."""
        comes_back = self.comes_back(uid)
        self._leaving.pop(uid, None)
        if comes_back:
            self._tell_all()

    async def hold(self, uid: PodUID, grace_seconds: int | None = None) -> None:
        """Hold a pod back from now on; returns once that is noted. `grace_seconds`, if not what the pod asks for."""
        now = self._clock.now()
        # Not if its manifest is gone and it is only leaving: nothing would ever drop the note.
        if uid in self._seen and uid not in self._held:
            self._held[uid] = now
            self._notes.write(uid, format_micro_time(now).encode())
            self._tell_all()
        if grace_seconds is not None and (since := self._leaving.get(uid)) is not None:
            shorter = math.ceil((now - since.at).total_seconds()) + grace_seconds
            self._leaving[uid] = replace(since, grace_seconds=min(shorter, since.grace_seconds))
        await self._notes.settle(uid)

    async def release(self, uid: PodUID) -> None:
        """Let a pod through again; one that is not held back is let through already."""
        if self._held.pop(uid, None) is not None:
            self._notes.drop(uid)
            self._tell_all()
        await self._notes.settle()

    def close(self) -> None:
        """Hold everything back, whatever the sources say, while this agent lives."""
        self.closed = True
        self._tell_all()

    # ---- small parts ----

    def _hear(self, source: str, change: PodUpdate, tell: Tell) -> None:
        self._tells[source] = tell
        told = {_uid(pod): pod for pod in self._told.get(source, ())}
        match change.op:
            case Op.SET:
                told = {_uid(pod): pod for pod in change.pods}
                self._ready.add(source)
            case Op.REMOVE:
                for pod in change.pods:
                    told.pop(_uid(pod), None)
            case _:
                told |= {_uid(pod): pod for pod in change.pods}
        self._told[source] = tuple(told.values())
        self._recall(change.pods if change.op is not Op.REMOVE else ())
        self._tell(source)

    def _recall(self, pods: tuple[Pod, ...]) -> None:
        """Hold back what a former life of the agent held back; forget what was said of pods that are no more."""
        for uid in map(_uid, pods):
            self._seen.setdefault(uid, self._clock.now())
            if (note := self._notes.take(uid)) is not None:
                self._held[uid] = _moment(note) or self._clock.now()
        for gone in self._seen.keys() - set(map(_uid, self.pods())):
            del self._seen[gone]
            if self._held.pop(gone, None) is not None:
                self._notes.drop(gone)

    def _tell_all(self) -> None:
        for source in self._told:
            self._tell(source)

    def _tell(self, source: str) -> None:
        """Tell the agent what a source says, without those held back; who does not come through any more leaves."""
        said = () if self.closed else self._told[source]
        through = tuple(pod for pod in said if _uid(pod) not in self._held and _uid(pod) not in self._leaving)
        kept, now = set(map(_uid, through)), self._clock.now()
        stopped = tuple(pod for pod in self._through.get(source, ()) if _uid(pod) not in kept)
        for pod in stopped:
            self._leaving.setdefault(_uid(pod), Since(pod, now, _grace_of(pod)))
            self._news.set()
        self._through[source] = through
        if source in self._ready:
            self._tells[source](PodUpdate(Op.SET, through, source))
            return
        if stopped:
            self._tells[source](PodUpdate(Op.REMOVE, stopped, source))
        if through:
            self._tells[source](PodUpdate(Op.ADD, through, source))


class _Gated:
    """A source whose words go through the gate."""

    def __init__(self, source: Source, hear: Callable[[str, PodUpdate, Tell], None]) -> None:
        self._source = source
        self._hear = hear

    @property
    def name(self) -> str:
        return self._source.name

    async def run(self, tell: Tell) -> None:
        await self._source.run(lambda change: self._hear(self.name, change, tell))


def with_deletion(since: Since) -> Pod:
    """A pod that is leaving, as the API shows one that is being deleted."""
    metadata = msgspec.structs.replace(
        since.pod.metadata,
        deletion_timestamp=format_time(since.at + timedelta(seconds=since.grace_seconds)),
        deletion_grace_period_seconds=since.grace_seconds,
    )
    return msgspec.structs.replace(since.pod, metadata=metadata)


def _grace_of(pod: Pod) -> int:
    return effective_grace(None, spec_seconds=pod.spec.termination_grace_period_seconds).seconds


def _moment(note: bytes) -> datetime | None:
    try:
        return parse_micro_time(note.decode())
    except (BadInput, ValueError):
        return None


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")
