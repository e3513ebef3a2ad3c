"""The end of pods that went beyond their own limits on local storage, while everybody else goes on.

In: `evict`, told again and again as long as a pod is too large. Out: one event and one kill, whose last words the
pod's status keeps. A critical pod stays, as in the reference (nobody would start it again), and an event says so. The
Go ancestor is `evictPod` in pkg/kubelet/eviction.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.clock import Clock
from podkeeper.rules.evict import evicted_status, shortage_eviction
from podkeeper.rules.mirror import full_name
from podkeeper.rules.preempt import is_critical_pod

log = logging.getLogger(__name__)

GRACE_SECONDS = 1
EMPTY_DIR_SIGNAL = "emptydirfs.limit"


class Evictor:
    """Ends pods that are too large."""

    def __init__(
        self,
        *,
        workers: PodWorkers,
        pod_by_uid: Callable[[PodUID], Pod | None],
        record: Callable[[PodEvent, Pod | PodRecord | None], None],
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Future[None]"],
        clock: Clock,
        evicted: Callable[[str], None],
    ) -> None:
        """`evicted` hears, for each pod, which limit it went beyond."""
        self._workers = workers
        self._pod_by_uid = pod_by_uid
        self._record = record
        self._spawn = spawn
        self._clock = clock
        self._evicted = evicted
        self._spared: set[PodUID] = set()
        self._evicting: set[PodUID] = set()

    def evict(self, uid: PodUID, message: str) -> None:
        """A pod is larger than it may be: have it killed, unless it ends already."""
        pod = self._pod_by_uid(uid)
        # The workers learn of the kill only when its task begins, and a pod may be too large twice by then.
        if pod is None or uid in self._evicting or self._workers.is_pod_termination_requested(uid):
            return
        if is_critical_pod(pod):
            self._spare(pod, uid, message)
            return
        self._record(PodEvent(EventType.WARNING, "Evicted", message, uid), pod)
        self._evicting.add(uid)
        self._spawn(self._kill(pod, message)).add_done_callback(lambda _: self._evicting.discard(uid))

    def _spare(self, pod: Pod, uid: PodUID, message: str) -> None:
        """Say, once, that a pod is too large and stays."""
        self._spared = {each for each in self._spared if self._pod_by_uid(each) is not None}
        if uid not in self._spared:
            self._spared.add(uid)
            words = f"{message.strip()} It stays: critical pods, and so all pods from manifests, are not evicted."
            log.error("pod %s is too large: %s", full_name(pod), words)
            self._record(PodEvent(EventType.WARNING, "NotEvicted", words, uid), pod)

    async def _kill(self, pod: Pod, message: str) -> None:
        def last_words(status: PodStatus) -> PodStatus:
            return evicted_status(pod, status, shortage_eviction(message, by_own_limits=True), self._clock.now())

        log.info("pod %s is evicted: %s", full_name(pod), message)
        self._evicted(EMPTY_DIR_SIGNAL)
        try:
            await self._workers.kill_pod(
                pod, evict=True, grace_override_seconds=GRACE_SECONDS, status_function=last_words
            )
        except TryLater as error:
            log.warning("pod %s is evicted, and may still run: %s", full_name(pod), error)
