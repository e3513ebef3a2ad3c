"""Preemption: kill pods to make room for a critical pod.

The sync loop continues while the victims terminate. In: `hold`, with a critical pod, its victims and a callback. Out:
the kills, then the callback. `rules.admission.preempt` selects the victims. Until they are killed, the pod is *held*:
neither the loop nor housekeeping may send it to the workers.

The callback is called even if a kill failed, because the pod is critical and each kill has a time limit.
Kubelet counterpart: pkg/kubelet/preemption, which blocks the whole loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection

from podkeeper.engine.events import EventFunction
from podkeeper.engine.observer import Observer
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.ports.clock import Clock
from podkeeper.rules.admission.admit import Preempt
from podkeeper.rules.evict import PREEMPTED, evicted_status
from podkeeper.rules.static.mirror import full_name

log = logging.getLogger(__name__)


class Preemption:
    """The critical pods that wait for their victims."""

    def __init__(
        self,
        *,
        workers: PodWorkers,
        record_event: EventFunction,
        clock: Clock,
        observer: Observer | None = None,
    ) -> None:
        self._workers = workers
        self._record_event = record_event
        self._clock = clock
        self._observer = observer or Observer()
        self._held: set[PodUID] = set()
        self._pending: deque[tuple[Pod, Preempt, Callable[[], None]]] = deque()
        self._wake = asyncio.Event()

    def hold(self, pod: Pod, preempt: Preempt, then: Callable[[], None]) -> None:
        """Hold a pod, kill its victims, then call `then`."""
        self._held.add(PodUID(pod.metadata.uid or ""))
        self._pending.append((pod, preempt, then))
        self._wake.set()

    def held(self) -> Collection[PodUID]:
        """Return the pods that must not be sent to the workers yet."""
        return self._held

    async def run(self) -> None:
        """Preempt until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._pending:
                    group.create_task(self._preempt(*self._pending.popleft()))

    async def _preempt(self, pod: Pod, preempt: Preempt, then: Callable[[], None]) -> None:
        """Kill the victims of one pod. This is the top of a task, so it logs every exception."""
        async with asyncio.TaskGroup() as kills:
            for victim in preempt.victims:
                kills.create_task(self._kill(victim, pod, preempt.resource))
        # Before `then`, which delivers the pod to the workers only if it is not held.
        self._held.discard(PodUID(pod.metadata.uid or ""))
        try:
            then()
        except Exception:
            log.exception("unexpected error when starting critical pod %s", full_name(pod))

    async def _kill(self, victim: Pod, pod: Pod, resource: str) -> None:
        def preempted_status(status: PodStatus) -> PodStatus:
            return evicted_status(victim, status, PREEMPTED, self._clock.now())

        log.info("preempting pod %s for critical pod %s: not enough %s", full_name(victim), full_name(pod), resource)
        event = PodEvent(EventType.WARNING, PREEMPTED.reason, PREEMPTED.message, victim.metadata.uid or "")
        try:
            self._record_event(event, victim)
            # With the victim's own grace period, as in the kubelet.
            await self._workers.kill_pod(victim, evict=True, status_function=preempted_status)
            self._observer.preempted(resource)
        except TryLater as error:
            log.warning("critical pod %s starts, but a preempted pod may still run: %s", full_name(pod), error)
        except Exception:
            log.exception("unexpected error when preempting pod %s for pod %s", full_name(victim), full_name(pod))
