"""Pod cache: the runtime's last known state of each pod, and its age.

Input: the inspections and listings of the PLEG, each with the instant at which it began. Output: `get` returns the
last known state. `get_newer_than` waits for an inspection that began after the caller's own last action.

Instants come from one `IncreasingClock` and strictly increase, so "newer" is a plain `>`. A reader that finds the cache
too old requests an inspection and does not wait for a relist. A pod that the runtime does not have is an empty record.
Before the first listing, `get_newer_than` always waits. Otherwise a restarted agent would treat running pods as absent.
Kubelet counterpart: pkg/kubelet/container/cache.go.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from math import inf, nextafter

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.clock import Clock

_NEVER = -inf


def _no_inspection(uid: PodUID, since: float) -> None: ...


class IncreasingClock:
    """Strictly increasing instants of the monotonic clock. No two instants are equal."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = _NEVER

    def __call__(self) -> float:
        # Two calls may get the same reading of the clock. Then neither would be newer, and a reader could accept an old
        # record.
        self._last = max(self._clock.monotonic(), nextafter(self._last, inf))
        return self._last


@dataclass(frozen=True, slots=True)
class _CachedPod:
    record: PodRecord
    at: float
    known_at: float  # when the record was true: earlier than `at` if the newest inspection failed
    error: Exception | None = None  # of the newest inspection, which failed. The record is from an older one.


@dataclass(slots=True, eq=False)
class _Waiter:
    since: float
    woken: asyncio.Future[None]


class PodCache:
    def __init__(self) -> None:
        self._inspect: Callable[[PodUID, float], object] = _no_inspection
        self._entries: dict[PodUID, _CachedPod] = {}
        self._gone: set[PodUID] = set()  # pods that the runtime no longer has; their entries store only since when
        self._all_seen_at = _NEVER
        self._held: set[PodUID] = set()  # pods that the last listing did not confirm
        self._waiters: dict[PodUID, dict[_Waiter, None]] = {}
        self._subscribers: list[Callable[[PodUID], None]] = []

    def subscribe(self, subscriber: Callable[[PodUID], None]) -> None:
        """Call the subscriber with the UID of each pod whose record was replaced."""
        self._subscribers.append(subscriber)

    def connect(self, inspect: Callable[[PodUID, float], object]) -> None:
        """Set the function that inspects pods.

        `inspect(uid, since)` starts an inspection unless one began after `since`.
        """
        self._inspect = inspect

    def request(self, uid: PodUID) -> None:
        """Request an inspection that begins after this call."""
        self._inspect(uid, inf)

    def get(self, uid: PodUID) -> PodRecord:
        """Return the last known state. An empty record if the runtime does not have the pod."""
        entry = self._entries.get(uid)
        return PodRecord(uid=uid) if entry is None else entry.record

    def get_if_sure(self, uid: PodUID) -> PodRecord | None:
        """Return the last known state, or None if the runtime may have containers that were never inspected."""
        entry = self._entries.get(uid)
        if entry is None:
            return None if self._all_seen_at == _NEVER else PodRecord(uid=uid)
        known_at = self._known_at(uid)
        # A pod whose only inspection failed, or that a listing showed as changed. Its containers are not known.
        if known_at == _NEVER or (uid in self._held and known_at <= self._all_seen_at):
            return None
        return entry.record

    async def get_newer_than(self, uid: PodUID, since: float | None) -> PodRecord:
        """Wait for an inspection that began after `since` (None: any). Return its record or raise its error."""
        after = _NEVER if since is None else since
        if self._seen_at(uid) > after:
            return self._answer(uid)
        waiter = _Waiter(after, asyncio.get_running_loop().create_future())
        self._waiters.setdefault(uid, {})[waiter] = None
        try:
            self._inspect(uid, after)
            await waiter.woken
        finally:
            self._forget(uid, waiter)
        return self._answer(uid)  # may be newer than the inspection that woke this waiter

    def set(self, uid: PodUID, record: PodRecord, at: float) -> bool:
        """Store the record of an inspection that began at `at`, unless the cache has a newer one.

        Return whether the record was stored. The caller must not treat a refused record as the pod's state.
        """
        return self._put(uid, _CachedPod(record, at, at))

    def set_error(self, uid: PodUID, error: Exception, at: float) -> None:
        """Store the error of an inspection. The record stays, but readers that wait for this inspection raise it."""
        self._put(uid, _CachedPod(self.get(uid), at, self._known_at(uid), error))

    def drop(self, uid: PodUID, at: float) -> bool:
        """Store that the runtime does not have a pod. Return False if the cache has a newer inspection."""
        taken = self._put(uid, _CachedPod(PodRecord(uid=uid), at, at))
        if taken:
            self._gone.add(uid)
        return taken

    def all_seen(self, at: float, but: Collection[PodUID] = ()) -> None:
        """Store that a listing that began at `at` confirms all entries except `but`, which need an inspection."""
        # Freeze the age of these entries before `_all_seen_at` moves on, because this listing does not confirm them.
        for uid in but:
            entry = self._entries.get(uid) or _CachedPod(PodRecord(uid=uid), _NEVER, _NEVER)
            self._entries[uid] = replace(entry, at=self._seen_at(uid), known_at=self._known_at(uid))
        self._held = set(but)
        self._all_seen_at = max(self._all_seen_at, at)
        for uid in [uid for uid in self._gone - self._held if self._entries[uid].at <= self._all_seen_at]:
            self._gone.remove(uid)
            del self._entries[uid]
        for uid in tuple(self._waiters):
            self._wake(uid)

    def _put(self, uid: PodUID, entry: _CachedPod) -> bool:
        known = self._entries.get(uid)
        # Inspections overlap, and a slow one may end after a later one.
        if known is not None and entry.at <= known.at:
            return False
        self._entries[uid] = entry
        self._gone.discard(uid)
        if entry.at < self._all_seen_at:  # the listing confirmed the previous entry, not this late, older inspection
            self._held.add(uid)
        self._wake(uid)
        for subscriber in self._subscribers:
            subscriber(uid)
        return True

    def _seen_at(self, uid: PodUID) -> float:
        entry = self._entries.get(uid)
        if entry is None:
            return self._all_seen_at
        return entry.at if uid in self._held else max(entry.at, self._all_seen_at)

    def _known_at(self, uid: PodUID) -> float:
        entry = self._entries.get(uid)
        if entry is None:
            return self._all_seen_at
        return entry.known_at if uid in self._held else max(entry.known_at, self._all_seen_at)

    def _answer(self, uid: PodUID) -> PodRecord:
        entry = self._entries.get(uid)
        if entry is not None and entry.error is not None:
            raise entry.error.with_traceback(None)  # many waiters raise it, and its traceback must not grow
        return self.get(uid)

    def _wake(self, uid: PodUID) -> None:
        waiters = self._waiters.get(uid)
        if not waiters:
            return
        seen_at = self._seen_at(uid)
        for waiter in waiters:
            if seen_at > waiter.since and not waiter.woken.done():
                waiter.woken.set_result(None)

    def _forget(self, uid: PodUID, waiter: _Waiter) -> None:
        waiters = self._waiters[uid]
        del waiters[waiter]
        if not waiters:
            del self._waiters[uid]
