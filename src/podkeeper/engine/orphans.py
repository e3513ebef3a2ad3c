"""Orphan check: query the API for pods that only the runtime has.

Housekeeping removes such a pod only after this check.

    runtime pods without a source --check--> GET pod --NotFound or another UID--> confirmed: housekeeping stops them
                                                |----the same UID---------------> the list was old: check again later
                                                `----no answer------------------> check again

The cache of an API server can lag, so the first list of a new agent can be stale. A pod that is missing from a stale
list seems to be an orphan, although the API has it and its containers run. The journal stores the last seen
resourceVersion under `seen/`, which normally identifies a stale list. After a full disk or with a new journal, there is
no such version. A `get` does not lag (see `ports.api.ObjectReader`), so its answer decides.

`confirmed` has the UIDs that the API does not have. The API never reuses a UID, so the answer stays true.
The kubelet has no counterpart: `HandlePodCleanups` kills every pod that is missing from the list.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from podkeeper.concurrency.once import LogOnce
from podkeeper.model.errors import NotFound, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.api import ObjectReader
from podkeeper.ports.clock import Clock

log = logging.getLogger(__name__)

RECHECK_SECONDS = 10.0
"""Delay after the API has returned the pod. The watch normally delivers it sooner."""

TIMEOUT_SECONDS = 10.0
# After a stale list, all pods of the node are candidates at once.
MAX_CALLS = 16


class OrphanCheck:
    def __init__(self, *, api: ObjectReader, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._confirmed: set[PodUID] = set()
        self._candidates: frozenset[PodUID] = frozenset()
        self._in_flight: set[PodUID] = set()
        self._problems: LogOnce[PodUID] = LogOnce(log)
        self._recheck_at: dict[PodUID, float] = {}  # pods that the API has; monotonic time

    @property
    def confirmed(self) -> Collection[PodUID]:
        """Return the UIDs that the API does not have."""
        return self._confirmed

    def is_unconfirmed(self, uid: PodUID) -> bool:
        """Return whether a pod of the last `check` is not confirmed yet."""
        return uid in self._candidates and uid not in self._confirmed

    def keep_only(self, uids: Collection[PodUID]) -> None:
        """Drop the answers about all other pods."""
        self._confirmed.intersection_update(uids)
        self._problems.keep_only(uids)
        for uid in self._recheck_at.keys() - set(uids):
            del self._recheck_at[uid]

    def check(self, records: Sequence[PodRecord], group: asyncio.TaskGroup, confirmed: Callable[[], None]) -> None:
        """Check pods in the background. Call `confirmed` for each pod that the API does not have."""
        self._candidates = frozenset(PodUID(record.uid) for record in records)
        now = self._clock.monotonic()
        for record in records:
            uid = PodUID(record.uid)
            if len(self._in_flight) >= MAX_CALLS:
                return  # the next housekeeping checks the others
            # Housekeeping calls `check` every 2 s. Without the delay, each call would send a GET for a pod in the API.
            if uid not in self._in_flight and now >= self._recheck_at.get(uid, now):
                self._in_flight.add(uid)
                group.create_task(self._check(record, confirmed))

    async def _check(self, record: PodRecord, confirmed: Callable[[], None]) -> None:
        uid = PodUID(record.uid)
        try:
            if await self._is_in_api(record):
                if uid not in self._recheck_at:
                    log.warning("pod %s is in the API but was missing from the list, waiting for the watch", uid)
                self._recheck_at[uid] = self._clock.monotonic() + RECHECK_SECONDS
            else:
                self._confirmed.add(uid)
                confirmed()
            self._problems.solved(uid)
        except (TryLater, TimeoutError) as error:
            reason = str(error) or "timeout"
            self._problems.first(uid, "cannot check whether the API has pod %s, will retry: %s", uid, reason)
        except Exception:
            log.exception("unexpected error while checking whether the API has pod %s, will retry", uid)
        finally:
            self._in_flight.discard(uid)

    async def _is_in_api(self, record: PodRecord) -> bool:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                found = await self._api.get(Pod, record.name, record.namespace)
        except NotFound:
            return False
        # A pod that was recreated with the same name has another UID. The one in the runtime is then orphaned.
        return found.metadata.uid == record.uid
