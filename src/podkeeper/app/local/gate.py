"""The gate between sources and agent: holds back pods stopped by `podkeeper stop`.

    source --SET--> gate --SET without stopped pods--> storage
    source that is not ready --ADD, REMOVE--> gate --ADD, REMOVE without stopped pods--> storage

A static pod cannot be deleted without removing its manifest. So "stop" hides the manifest from the agent until
`podkeeper start` or a change of the manifest. The gate uses UIDs, and a changed manifest is a new pod with a new UID.
The journal stores the stopped pods across restarts of the agent.

`close()` holds back all pods until this agent exits, and stores nothing. `podkeeper run` uses it on Ctrl-C.

A pod that is no longer wanted counts as leaving until the board reports that it is gone, because the agent itself
only knows its UID by then. If the pod is wanted again in the meantime, it waits until it is gone. Then it starts from
scratch. Otherwise the agent would take its old containers for a crash.
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
    """A pod, and the time since when it is stopped or leaving."""

    pod: Pod
    at: datetime
    grace_seconds: int = 0  # grace period of a leaving pod

    def left(self, now: datetime) -> timedelta:
        """Return the rest of the grace period."""
        return max(timedelta(0), self.at + timedelta(seconds=self.grace_seconds) - now)


class Gate:
    def __init__(self, *, clock: Clock, notes: Notes) -> None:
        self._clock = clock
        self._notes = notes
        self._told: dict[str, tuple[Pod, ...]] = {}  # the pods of each source
        self._ready: set[str] = set()  # sources that have sent a SET with all their pods
        self._through: dict[str, tuple[Pod, ...]] = {}  # the pods of each source that were passed to the agent
        self._tells: dict[str, Tell] = {}
        self._seen: dict[PodUID, datetime] = {}  # when each pod was first received
        self._held: dict[PodUID, datetime] = {}
        self._leaving: dict[PodUID, Since] = {}
        self._news = asyncio.Event()  # set when a pod starts to leave
        self.closed = False

    def behind(self, source: Source) -> Source:
        """Return the source with its updates filtered by the gate."""
        return _Gated(source, self._hear)

    def pods(self) -> tuple[Pod, ...]:
        """Return all pods of the sources, including stopped ones."""
        return tuple(pod for pods in self._told.values() for pod in pods)

    def seen_since(self, uid: PodUID) -> datetime | None:
        """Return when a source first sent a pod."""
        return self._seen.get(uid)

    def held(self) -> Mapping[PodUID, Since]:
        """Return the stopped pods, without those that are still leaving."""
        return {
            uid: Since(pod, at)
            for pod in self.pods()
            if (at := self._held.get(uid := _uid(pod))) is not None and uid not in self._leaving
        }

    def leaving(self) -> Mapping[PodUID, Since]:
        """Return the pods that are no longer wanted and may still run."""
        return dict(self._leaving)

    async def until_one_leaves(self) -> None:
        """Wait until there is a leaving pod."""
        while not self._leaving:
            self._news.clear()
            await self._news.wait()

    def comes_back(self, uid: PodUID) -> bool:
        """Return whether a leaving pod is started again once it is gone."""
        wanted = not self.closed and uid not in self._held and uid in self._seen
        return wanted and uid in self._leaving

    def gone(self, uid: PodUID) -> None:
        """Record that a leaving pod has terminated and is cleaned up."""
        comes_back = self.comes_back(uid)
        self._leaving.pop(uid, None)
        if comes_back:
            self._tell_all()

    async def hold(self, uid: PodUID, grace_seconds: int | None = None) -> None:
        """Stop a pod. Returns when the journal has stored that. `grace_seconds` overrides the pod's grace period."""
        now = self._clock.now()
        # Store nothing for a pod whose manifest is removed, because nothing would ever drop that note.
        if uid in self._seen and uid not in self._held:
            self._held[uid] = now
            self._notes.write(uid, format_micro_time(now).encode())
            self._tell_all()
        if grace_seconds is not None and (since := self._leaving.get(uid)) is not None:
            shorter = math.ceil((now - since.at).total_seconds()) + grace_seconds
            self._leaving[uid] = replace(since, grace_seconds=min(shorter, since.grace_seconds))
        await self._notes.settle(uid)

    async def release(self, uid: PodUID) -> None:
        """Start a stopped pod. For other pods this is a no-op."""
        if self._held.pop(uid, None) is not None:
            self._notes.drop(uid)
            self._tell_all()
        await self._notes.settle()

    def close(self) -> None:
        """Hold back all pods until this agent exits."""
        self.closed = True
        self._tell_all()

    # ---- helpers ----

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
        """Restore pods stopped before a restart. Forget pods that no source has any more."""
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
        """Send the pods of a source without the stopped ones. Pods that were sent before and are missing now leave."""
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
    """A source behind the gate."""

    def __init__(self, source: Source, hear: Callable[[str, PodUpdate, Tell], None]) -> None:
        self._source = source
        self._hear = hear

    @property
    def name(self) -> str:
        return self._source.name

    async def run(self, tell: Tell) -> None:
        await self._source.run(lambda change: self._hear(self.name, change, tell))


def with_deletion(since: Since) -> Pod:
    """Return a leaving pod with the deletion timestamp that the API would show."""
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
