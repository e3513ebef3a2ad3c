"""Preemption: has pods killed so that a critical one fits, while everybody else goes on.

In: `hold`, a critical pod that is let in once its victims are dead, and what to call then. Out: kills, and that call.
Whom to kill is decided in `rules.preempt`. Until its victims are dead the pod is *held*: the workers must not be told
of it, neither by the loop nor by housekeeping.

The pod is let in whatever became of its victims: it is critical, and each kill has its time limit. The Go ancestor is
pkg/kubelet/preemption, which makes the whole loop wait.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection

from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.clock import Clock
from podkeeper.rules.admit import Preempt
from podkeeper.rules.evict import PREEMPTED, evicted_status
from podkeeper.rules.mirror import full_name

log = logging.getLogger(__name__)


def _ignore(*_: object) -> None:
    """Nobody wants to know."""


class Preemption:
    """The critical pods that wait for room, and the kills that make it."""

    def __init__(
        self,
        *,
        workers: PodWorkers,
        record: Callable[[PodEvent, Pod | PodRecord | None], None],
        clock: Clock,
        preempted: Callable[[str], None] = _ignore,
    ) -> None:
        """`preempted` hears, for each pod killed, of which resource there was not enough."""
        self._workers = workers
        self._record = record
        self._clock = clock
        self._preempted = preempted
        self._held: set[PodUID] = set()
        self._to_begin: deque[tuple[Pod, Preempt, Callable[[], None]]] = deque()
        self._news = asyncio.Event()

    def hold(self, pod: Pod, preempt: Preempt, then: Callable[[], None]) -> None:
        """Hold a pod, have its victims killed, and call `then`."""
        self._held.add(PodUID(pod.metadata.uid or ""))
        self._to_begin.append((pod, preempt, then))
        self._news.set()

    def held(self) -> Collection[PodUID]:
        """The pods that the workers must not be told of yet."""
        return self._held

    async def run(self) -> None:
        """Preempt until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._to_begin:
                    group.create_task(self._preempt(*self._to_begin.popleft()))

    async def _preempt(self, pod: Pod, preempt: Preempt, then: Callable[[], None]) -> None:
        """Make room for one pod; the task's boundary."""
        async with asyncio.TaskGroup() as kills:
            for victim in preempt.victims:
                kills.create_task(self._kill(victim, pod, preempt.resource))
        self._held.discard(PodUID(pod.metadata.uid or ""))
        try:
            then()
        except Exception:
            log.exception("cannot go on with pod %s, for which there is room now", full_name(pod))

    async def _kill(self, victim: Pod, pod: Pod, resource: str) -> None:
        def last_words(status: PodStatus) -> PodStatus:
            return evicted_status(victim, status, PREEMPTED, self._clock.now())

        log.info("pod %s is preempted for pod %s: not enough %s", full_name(victim), full_name(pod), resource)
        event = PodEvent(EventType.WARNING, PREEMPTED.reason, PREEMPTED.message, victim.metadata.uid or "")
        try:
            self._record(event, victim)
            await self._workers.kill_pod(victim, evict=True, status_function=last_words)
            self._preempted(resource)
        except TryLater as error:
            log.warning("pod %s starts although its victim may still run: %s", full_name(pod), error)
        except Exception:
            log.exception("cannot preempt pod %s for pod %s", full_name(victim), full_name(pod))
