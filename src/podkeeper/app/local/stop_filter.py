"""Filter that hides pods stopped by `podkeeper stop` from the agent.

    source --SET--> stop filter --SET without stopped pods--> storage
    source that is not ready --ADD, REMOVE--> stop filter --ADD, REMOVE without stopped pods--> storage

A static pod cannot be deleted without removing its manifest. So "stop" hides the manifest from the agent until
`podkeeper start` or a change of the manifest. The filter uses UIDs, and a changed manifest is a new pod with a new UID.
The journal stores the stopped pods across restarts of the agent.

`close()` stops all pods until this agent exits, and stores nothing. `podkeeper run` uses it on Ctrl-C.

A pod that is no longer sent to the agent counts as terminating until `PodQueries` reports its end. The filter keeps the
pod until then, because the agent only has its UID. If the pod is wanted again in the meantime, it starts from scratch
after its end. Otherwise the agent would treat its old containers as crashed.

Grace periods are measured with the monotonic clock. Wall time is only stored and printed.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import Op, PodUID, PodUpdate
from podkeeper.model.pods import uid_of
from podkeeper.model.times import format_micro_time, format_time, parse_micro_time
from podkeeper.ports.clock import Clock
from podkeeper.ports.source import SendUpdate, Source
from podkeeper.rules.grace import effective_grace
from podkeeper.sources.stored_pods import CheckpointStore

_LONGEST_GRACE_SECONDS: Final = 10**9  # 31 years, as shown


@dataclass(frozen=True, slots=True)
class StoppedPod:
    pod: Pod
    at: datetime  # wall time of `podkeeper stop`


@dataclass(frozen=True, slots=True)
class TerminatingPod:
    """A pod that is no longer sent to the agent and may still run."""

    pod: Pod
    since: float  # on the monotonic clock
    grace_seconds: int

    def with_deletion(self, clock: Clock) -> Pod:
        """Return the pod with the deletion timestamp that the API would show."""
        # The API accepts grace periods beyond the year 9999.
        left = timedelta(seconds=min(self.since + self.grace_seconds - clock.monotonic(), _LONGEST_GRACE_SECONDS))
        metadata = msgspec.structs.replace(
            self.pod.metadata,
            # Computed from the current wall time, so that the remaining time stays correct if the wall clock is set.
            deletion_timestamp=format_time(clock.now() + left),
            deletion_grace_period_seconds=self.grace_seconds,
        )
        return msgspec.structs.replace(self.pod, metadata=metadata)


class StopFilter:
    def __init__(self, *, clock: Clock, checkpoints: CheckpointStore) -> None:
        self._clock = clock
        self._checkpoints = checkpoints
        self._received: dict[str, tuple[Pod, ...]] = {}  # the pods of each source
        self._ready: set[str] = set()  # sources that have sent a SET with all their pods
        self._sent: dict[str, tuple[Pod, ...]] = {}  # the pods of each source that were sent to the agent
        self._senders: dict[str, SendUpdate] = {}
        self._first_seen: dict[PodUID, datetime] = {}
        self._stopped: dict[PodUID, datetime] = {}
        self._terminating: dict[PodUID, TerminatingPod] = {}
        self._subscribers: list[Callable[[], None]] = []
        self.closed = False

    def filtered(self, source: Source) -> Source:
        """Return the source without stopped pods."""
        return _FilteredSource(source, self._receive)

    def subscribe(self, subscriber: Callable[[], None]) -> None:
        """Call the subscriber after each update of a source, and after a pod was stopped, started or has ended."""
        self._subscribers.append(subscriber)

    def pods(self) -> tuple[Pod, ...]:
        """Return all pods of the sources, including stopped ones."""
        return tuple(pod for pods in self._received.values() for pod in pods)

    def first_seen(self, uid: PodUID) -> datetime | None:
        """Return when a source first sent a pod."""
        return self._first_seen.get(uid)

    def stopped(self) -> Mapping[PodUID, StoppedPod]:
        """Return the stopped pods, without those that are still terminating."""
        return {
            uid: StoppedPod(pod, at)
            for pod in self.pods()
            if (at := self._stopped.get(uid := uid_of(pod))) is not None and uid not in self._terminating
        }

    def terminating(self) -> Mapping[PodUID, TerminatingPod]:
        return dict(self._terminating)

    def is_terminating(self, uid: PodUID) -> bool:
        return uid in self._terminating

    def will_restart(self, uid: PodUID) -> bool:
        """Return whether a terminating pod is started again after its end."""
        wanted = not self.closed and uid not in self._stopped and uid in self._first_seen
        return wanted and uid in self._terminating

    def mark_terminated(self, uid: PodUID) -> None:
        """Record that a terminating pod has ended and is cleaned up. Start it again if it is wanted again."""
        will_restart = self.will_restart(uid)
        self._terminating.pop(uid, None)
        if will_restart:
            self._send_all()
        self._notify()

    async def stop(self, uid: PodUID, grace_seconds: int | None = None) -> None:
        """Stop a pod. Return when the journal has stored that. `grace_seconds` can shorten the pod's grace period."""
        now = self._clock.monotonic()
        # If the manifest of the pod is removed, store nothing, because that checkpoint would never be dropped.
        if uid in self._first_seen and uid not in self._stopped:
            self._stopped[uid] = self._clock.now()
            self._checkpoints.write(uid, format_micro_time(self._stopped[uid]).encode())
            self._send_all()
        if grace_seconds is not None and (terminating := self._terminating.get(uid)) is not None:
            shorter = math.ceil(now - terminating.since) + grace_seconds
            grace_seconds = min(shorter, terminating.grace_seconds)
            self._terminating[uid] = replace(terminating, grace_seconds=grace_seconds)
        self._notify()
        await self._checkpoints.settle(uid)

    async def start(self, uid: PodUID) -> None:
        """Start a stopped pod. For other pods this is a no-op."""
        if self._stopped.pop(uid, None) is not None:
            self._checkpoints.drop(uid)
            self._send_all()
            self._notify()
        await self._checkpoints.settle()

    def close(self) -> None:
        """Stop all pods until this agent exits."""
        self.closed = True
        self._send_all()
        self._notify()

    # ---- helpers ----

    def _receive(self, source: str, update: PodUpdate, send: SendUpdate) -> None:
        self._senders[source] = send
        pods = {uid_of(pod): pod for pod in self._received.get(source, ())}
        match update.op:
            case Op.SET:
                pods = {uid_of(pod): pod for pod in update.pods}
                self._ready.add(source)
            case Op.REMOVE:
                for pod in update.pods:
                    pods.pop(uid_of(pod), None)
            case _:
                pods |= {uid_of(pod): pod for pod in update.pods}
        self._received[source] = tuple(pods.values())
        self._restore(update.pods if update.op is not Op.REMOVE else ())
        self._send(source)
        self._notify()

    def _restore(self, pods: tuple[Pod, ...]) -> None:
        """Restore pods stopped before a restart. Drop pods that no source has any more."""
        for uid in map(uid_of, pods):
            self._first_seen.setdefault(uid, self._clock.now())
            if (stored := self._checkpoints.take(uid)) is not None:
                self._stopped[uid] = _time_of(stored) or self._clock.now()
        for removed in self._first_seen.keys() - set(map(uid_of, self.pods())):
            del self._first_seen[removed]
            if self._stopped.pop(removed, None) is not None:
                self._checkpoints.drop(removed)

    def _send_all(self) -> None:
        for source in self._received:
            self._send(source)

    def _send(self, source: str) -> None:
        """Send the pods of a source without the stopped ones.

        The agent terminates pods that an earlier update had and this one lacks.
        """
        wanted = () if self.closed else self._received[source]
        pods = tuple(pod for pod in wanted if uid_of(pod) not in self._stopped and uid_of(pod) not in self._terminating)
        kept, now = set(map(uid_of, pods)), self._clock.monotonic()
        removed = tuple(pod for pod in self._sent.get(source, ()) if uid_of(pod) not in kept)
        for pod in removed:
            self._terminating.setdefault(uid_of(pod), TerminatingPod(pod, now, _grace_of(pod)))
        self._sent[source] = pods
        if source in self._ready:
            self._senders[source](PodUpdate(Op.SET, pods, source))
            return
        if removed:
            self._senders[source](PodUpdate(Op.REMOVE, removed, source))
        if pods:
            self._senders[source](PodUpdate(Op.ADD, pods, source))

    def _notify(self) -> None:
        for subscriber in self._subscribers:
            subscriber()


class _FilteredSource:
    def __init__(self, source: Source, receive: Callable[[str, PodUpdate, SendUpdate], None]) -> None:
        self._source = source
        self._receive = receive

    @property
    def name(self) -> str:
        return self._source.name

    async def run(self, send: SendUpdate) -> None:
        await self._source.run(lambda update: self._receive(self.name, update, send))


def _grace_of(pod: Pod) -> int:
    return effective_grace(None, spec_seconds=pod.spec.termination_grace_period_seconds).seconds


def _time_of(stored: bytes) -> datetime | None:
    try:
        return parse_micro_time(stored.decode())
    except (BadInput, ValueError):
        return None
