"""Active deadlines: which pods have been active for longer than their spec allows.

In: desired pods as they come, change and go (`follow`, `forget`). Out: `past`, those whose deadline has passed, and
`seconds_to_next`, so that nobody needs to poll. Only pods that have a deadline are remembered, and only those whose
time may have come are looked at. What a deadline means is decided in `rules.evict`.

A deadline counts wall time from the start time in the pod's status, which this room is not told of: a pod without one
is looked at again soon. The Go ancestor is pkg/kubelet/active_deadline.go.
"""

import heapq
import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from podkeeper.engine.status import StatusManager
from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.ports.clock import Clock
from podkeeper.rules.evict import deadline_of
from podkeeper.rules.mirror import full_name

log = logging.getLogger(__name__)

REPEAT_SECONDS = 1.0  # how often a pod past its deadline is reported until its termination begins
LONGEST_WAIT_SECONDS = 60.0  # the wall clock may jump
LOOK_AGAIN = timedelta(seconds=5)  # at a pod that has not started
LOOK_AT_ENDING = timedelta(seconds=60)  # it may be created again under its UID


class ActiveDeadlines:
    """The desired pods that have a deadline, by the time to look at them."""

    def __init__(self, *, status: StatusManager, is_ending: Callable[[PodUID], bool], clock: Clock) -> None:
        self._status = status
        self._is_ending = is_ending
        self._clock = clock
        self._pods: dict[PodUID, tuple[datetime, Pod]] = {}
        self._heap: list[tuple[datetime, PodUID]] = []  # with leftovers of entries that were moved or forgotten

    def follow(self, pod: Pod) -> None:
        """Take in a desired pod, or what has become of it."""
        uid = PodUID(pod.metadata.uid or "")
        if pod.spec.active_deadline_seconds is None:
            self.forget(uid)
        else:
            self._look_at(pod, uid, self._due(pod, uid))

    def forget(self, uid: PodUID) -> None:
        """Forget a pod; an unknown one is forgotten."""
        self._pods.pop(uid, None)

    def past(self) -> list[PodUID]:
        """The pods whose deadline has passed and whose end has not begun, the longest overdue first."""
        now = self._clock.now()
        at_hand: dict[PodUID, Pod] = {}
        while (due := self._next_due()) is not None and due <= now:
            _, uid = heapq.heappop(self._heap)
            at_hand[uid] = self._pods[uid][1]
        past = []
        for uid, pod in at_hand.items():
            if self._is_ending(uid):
                self._look_at(pod, uid, now + LOOK_AT_ENDING)
                continue
            due = self._due(pod, uid)
            if due <= now:
                past.append(uid)
            self._look_at(pod, uid, due)
        return past

    def seconds_to_next(self) -> float | None:
        """How long nothing is going to happen; None: for ever."""
        due = self._next_due()
        if due is None:
            return None
        seconds = (due - self._clock.now()).total_seconds()
        return REPEAT_SECONDS if seconds <= 0 else min(seconds, LONGEST_WAIT_SECONDS)

    def _due(self, pod: Pod, uid: PodUID) -> datetime:
        try:
            deadline = deadline_of(pod, self._status.get_pod_status(uid))
        except BadInput as error:
            log.warning("cannot tell when pod %s (%s) started: %s", full_name(pod), uid, error)
            deadline = None
        return deadline or self._clock.now() + LOOK_AGAIN

    def _look_at(self, pod: Pod, uid: PodUID, when: datetime) -> None:
        self._pods[uid] = (when, pod)
        heapq.heappush(self._heap, (when, uid))
        if len(self._heap) > 2 * len(self._pods) + 64:
            self._heap = [(when, uid) for uid, (when, _) in self._pods.items()]
            heapq.heapify(self._heap)

    def _next_due(self) -> datetime | None:
        while self._heap:
            due, uid = self._heap[0]
            entry = self._pods.get(uid)
            if entry is not None and entry[0] == due:
                return due
            heapq.heappop(self._heap)
        return None
