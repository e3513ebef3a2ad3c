"""The pod cache: what the runtime was last seen to have, and as of when.

In: PLEG's looks (`set`, `set_error`, `drop`, and `all_seen` after a full listing), each with the instant it began. Out:
`get`, what is known, and `get_newer_than`, which waits for a look that began after the caller's own last action.

Instants come from the engine's one generator and only ever grow, so "newer" is a plain `>`. Whoever finds the cache too
old has the pod looked at there and then (`refresh`); nobody waits for a relist. A pod nobody knows is an empty record.
Before anything at all was seen, not even that is known: then `get_newer_than` waits whatever it is asked, or a
restarted agent would take running pods for absent ones. The Go ancestor is pkg/kubelet/container/cache.go.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class _Entry:
    record: PodRecord
    at: float
    known_at: float  # the age of the record: older than `at` if the newest inspection failed
    error: Exception | None = None  # the newest look failed; the record is from an older one


@dataclass(slots=True, eq=False)
class _Waiter:
    since: float
    woken: asyncio.Future[None]


class PodCache:
    """The runtime's last known state of each pod."""

    def __init__(self, *, refresh: Callable[[PodUID, float], object]) -> None:
        """`refresh` has a pod looked at, unless a look is under way that began after the instant it is told."""
        self._refresh = refresh
        self._entries: dict[PodUID, _Entry] = {}
        self._gone: set[PodUID] = set()  # entries that only tell since when there is nothing
        self._all_seen_at = _NEVER
        self._held: set[PodUID] = set()  # the last listing says nothing for these: they are as old as their entries
        self._waiters: dict[PodUID, dict[_Waiter, None]] = {}

    def get(self, uid: PodUID) -> PodRecord:
        """What was last seen of a pod; an empty record if that is nothing."""
        entry = self._entries.get(uid)
        return PodRecord(uid=uid) if entry is None else entry.record

    def get_if_sure(self, uid: PodUID) -> PodRecord | None:
        """What was last seen of a pod; None while something of it is there, or could be, that was never looked at."""
        entry = self._entries.get(uid)
        if entry is None:
            return None if self._all_seen_at == _NEVER else PodRecord(uid=uid)
        known_at = self._known_at(uid)
        if known_at == _NEVER or (uid in self._held and known_at <= self._all_seen_at):
            return None
        return entry.record

    async def get_newer_than(self, uid: PodUID, since: float | None) -> PodRecord:
        """What a look begun after `since` saw; None: what any look saw. Raises the error such a look ended with."""
        after = _NEVER if since is None else since
        if self._seen_at(uid) > after:
            return self._answer(uid)
        waiter = _Waiter(after, asyncio.get_running_loop().create_future())
        self._waiters.setdefault(uid, {})[waiter] = None
        try:
            self._refresh(uid, after)
            await waiter.woken
        finally:
            self._forget(uid, waiter)
        return self._answer(uid)  # the newest, which may be newer still than what woke us

    def set(self, uid: PodUID, record: PodRecord, at: float) -> bool:
        """Take what a look that began at `at` has seen, unless a newer one was there before.

        Returns whether the record was taken. The caller must not treat a refused record as the pod's state.
        """
        return self._put(uid, _Entry(record, at, at))

    def set_error(self, uid: PodUID, error: Exception, at: float) -> None:
        """Note that a look failed: the record stays, but whoever waited for this look gets its error."""
        self._put(uid, _Entry(self.get(uid), at, self._known_at(uid), error))

    def drop(self, uid: PodUID, at: float) -> bool:
        """Note that a look found nothing of a pod. Returns False if a newer look was there before."""
        taken = self._put(uid, _Entry(PodRecord(uid=uid), at, at))
        if taken:
            self._gone.add(uid)
        return taken

    def all_seen(self, at: float, but: Collection[PodUID] = ()) -> None:
        """Note that a listing begun at `at` agrees with everything here, but for pods that are yet to be looked at."""
        for uid in but:
            entry = self._entries.get(uid) or _Entry(PodRecord(uid=uid), _NEVER, _NEVER)
            self._entries[uid] = replace(entry, at=self._seen_at(uid), known_at=self._known_at(uid))
        self._held = set(but)
        self._all_seen_at = max(self._all_seen_at, at)
        for uid in [uid for uid in self._gone - self._held if self._entries[uid].at <= self._all_seen_at]:
            self._gone.remove(uid)
            del self._entries[uid]
        for uid in tuple(self._waiters):
            self._wake(uid)

    def _put(self, uid: PodUID, entry: _Entry) -> bool:
        known = self._entries.get(uid)
        if known is not None and entry.at <= known.at:
            return False
        self._entries[uid] = entry
        self._gone.discard(uid)
        if entry.at < self._all_seen_at:  # the listing confirmed what was here, not what comes late from an older look
            self._held.add(uid)
        self._wake(uid)
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
            raise entry.error.with_traceback(None)  # one error, many waiters: theirs must not pile up
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
