"""Ask the API about pods that only the runtime knows, before anything of them is removed.

    runtime pods that no source names --ask--> GET pod --NotFound, or another UID--> confirmed: housekeeping acts
                                                  |----the same UID----------------> the list was old: leave it alone
                                                  `----no answer-------------------> asked again

The first list of a new agent can come from an API server whose cache lags. A pod that it lacks looks like an orphan,
although the API has it and its container runs. The version noted under `seen/` normally exposes such a list, but a
full disk or a new journal has no note. A `get` does not lag (see `ports.api.Reader`), so it decides.

`confirmed` holds UIDs that the API does not have. UIDs of the API are never used twice, so the answer stays true for
the life of the agent. The kubelet does not ask: `HandlePodCleanups` kills every pod that the list lacks.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from podkeeper.model.errors import NotFound, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.api import Reader
from podkeeper.ports.clock import Clock

log = logging.getLogger(__name__)

ASK_AGAIN_SECONDS = 10.0
"""After the API has answered that it has the pod; the watch normally reports it sooner."""

ANSWER_SECONDS = 10.0
CALLS_AT_A_TIME = 16


class OrphanCheck:
    """Knows which pods of the runtime the API does not have."""

    def __init__(self, *, api: Reader, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._confirmed: set[PodUID] = set()
        self._doubtful: frozenset[PodUID] = frozenset()
        self._asking: set[PodUID] = set()
        self._logged: set[PodUID] = set()  # pods that the API could not be asked about
        self._ask_again_at: dict[PodUID, float] = {}  # pods that the API has, on the monotonic clock

    @property
    def confirmed(self) -> Collection[PodUID]:
        """UIDs that the API does not have."""
        return self._confirmed

    def is_in_doubt(self, uid: PodUID) -> bool:
        """Whether the last round found a pod in the runtime that no source names and the API may have."""
        return uid in self._doubtful and uid not in self._confirmed

    def keep_only(self, uids: Collection[PodUID]) -> None:
        """Forget the answers about all other pods: the runtime has nothing of them any more."""
        self._confirmed.intersection_update(uids)
        self._logged.intersection_update(uids)
        for uid in self._ask_again_at.keys() - set(uids):
            del self._ask_again_at[uid]

    def ask(self, records: Sequence[PodRecord], group: asyncio.TaskGroup, confirmed: Callable[[], None]) -> None:
        """Ask about pods in the background. Calls `confirmed` whenever a pod turns out to be an orphan."""
        self._doubtful = frozenset(PodUID(record.uid) for record in records)
        now = self._clock.monotonic()
        for record in records:
            uid = PodUID(record.uid)
            if len(self._asking) >= CALLS_AT_A_TIME:
                return  # the next round asks about the others
            if uid not in self._asking and now >= self._ask_again_at.get(uid, now):
                self._asking.add(uid)
                group.create_task(self._ask(record, confirmed))

    async def _ask(self, record: PodRecord, confirmed: Callable[[], None]) -> None:
        uid = PodUID(record.uid)
        try:
            if await self._has(record):
                if uid not in self._ask_again_at:
                    log.warning("pod %s is in the API, though the list lacked it: waiting for the watch", uid)
                self._ask_again_at[uid] = self._clock.monotonic() + ASK_AGAIN_SECONDS
            else:
                self._confirmed.add(uid)
                confirmed()
            self._logged.discard(uid)
        except (TryLater, TimeoutError) as error:
            if uid not in self._logged:
                why = str(error) or "no answer in time"
                log.warning("cannot ask the API whether it has pod %s, will retry: %s", uid, why)
            self._logged.add(uid)
        except Exception:
            log.exception("cannot ask the API whether it has pod %s, will retry", uid)
        finally:
            self._asking.discard(uid)

    async def _has(self, record: PodRecord) -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                found = await self._api.get(Pod, record.name, record.namespace)
        except NotFound:
            return False
        return found.metadata.uid == record.uid
