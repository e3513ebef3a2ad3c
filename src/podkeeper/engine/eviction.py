"""Eviction: kill pods that exceed their own limits on local storage.

In: `evict`, called repeatedly while a pod exceeds its limit. Out: one event and one kill. The kill sets the final
status. As in the kubelet, a critical pod is not evicted, because nothing would start it again. Instead, an event
reports the excess. Kubelet counterpart: `evictPod` in pkg/kubelet/eviction.
"""

import logging
from collections.abc import Callable

from podkeeper.engine.background import Spawn
from podkeeper.engine.events import EventFunction
from podkeeper.engine.observer import Observer
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.ports.clock import Clock
from podkeeper.rules.admission.preempt import is_critical_pod
from podkeeper.rules.evict import evicted_status, shortage_eviction
from podkeeper.rules.static.mirror import full_name

log = logging.getLogger(__name__)

# The kubelet's immediateEvictionGracePeriodSeconds.
GRACE_SECONDS = 1
EMPTY_DIR_SIGNAL = "emptydirfs.limit"


class EvictionManager:
    def __init__(
        self,
        *,
        workers: PodWorkers,
        pod_by_uid: Callable[[PodUID], Pod | None],
        record_event: EventFunction,
        spawn: Spawn,
        clock: Clock,
        observer: Observer | None = None,
    ) -> None:
        self._workers = workers
        self._pod_by_uid = pod_by_uid
        self._record_event = record_event
        self._spawn = spawn
        self._clock = clock
        self._observer = observer or Observer()
        self._not_evicted: set[PodUID] = set()
        self._evicting: set[PodUID] = set()

    def evict(self, uid: PodUID, message: str) -> None:
        """Kill a pod that exceeds a limit, unless it is terminating already."""
        pod = self._pod_by_uid(uid)
        # The workers receive the kill only when its task begins, so `evict` may be called twice before.
        if pod is None or uid in self._evicting or self._workers.is_pod_termination_requested(uid):
            return
        if is_critical_pod(pod):
            self._spare(pod, uid, message)
            return
        self._record_event(PodEvent(EventType.WARNING, "Evicted", message, uid), pod)
        # Before the task begins. Otherwise a pod with two volumes that are too large would be killed twice, with two
        # events.
        self._evicting.add(uid)
        self._spawn(self._kill(pod, message)).add_done_callback(lambda _: self._evicting.discard(uid))

    def _spare(self, pod: Pod, uid: PodUID, message: str) -> None:
        """Record once that a pod exceeds a limit but is not evicted."""
        self._not_evicted = {each for each in self._not_evicted if self._pod_by_uid(each) is not None}
        if uid not in self._not_evicted:
            self._not_evicted.add(uid)
            text = f"{message.strip()} Not evicted: critical pods, including all static pods, are never evicted."
            log.error("pod %s exceeds a limit: %s", full_name(pod), text)
            self._record_event(PodEvent(EventType.WARNING, "NotEvicted", text, uid), pod)

    async def _kill(self, pod: Pod, message: str) -> None:
        def final_status(status: PodStatus) -> PodStatus:
            return evicted_status(pod, status, shortage_eviction(message, by_own_limits=True), self._clock.now())

        log.info("evicting pod %s: %s", full_name(pod), message)
        self._observer.evicted(EMPTY_DIR_SIGNAL)
        try:
            await self._workers.kill_pod(
                pod, evict=True, grace_override_seconds=GRACE_SECONDS, status_function=final_status
            )
        except TryLater as error:
            log.warning("evicted pod %s may still run: %s", full_name(pod), error)
