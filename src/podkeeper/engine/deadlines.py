"""Active deadlines: find pods that have exceeded their activeDeadlineSeconds.

In: desired pods as they are added, changed and removed (`follow`, `forget`). Out: `past`, the pods past their deadline,
and `seconds_to_next`, so the caller does not need to poll. Only pods with a deadline are stored, and only pods that
are due are checked. `rules.evict` computes the deadline.

A deadline counts wall time from the start time in the pod's status. This module receives no status changes, so it
checks a pod without a start time again after a few seconds. Kubelet counterpart: pkg/kubelet/active_deadline.go.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from podkeeper.concurrency.due_heap import DueHeap
from podkeeper.engine.status import StatusManager
from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.ports.clock import Clock
from podkeeper.rules.evict import deadline_of
from podkeeper.rules.static.mirror import full_name

log = logging.getLogger(__name__)

# The kubelet checks deadlines with its sync tick, every second.
REPEAT_SECONDS = 1.0  # how often a pod past its deadline is reported until its termination begins
LONGEST_WAIT_SECONDS = 60.0  # the wall clock may jump
RECHECK_UNSTARTED = timedelta(seconds=5)
RECHECK_TERMINATING = timedelta(seconds=60)  # a source may add a pod with the same UID again


class ActiveDeadlines:
    """The desired pods that have a deadline, by the time of their next check."""

    def __init__(self, *, statuses: StatusManager, is_terminating: Callable[[PodUID], bool], clock: Clock) -> None:
        self._statuses = statuses
        self._is_terminating = is_terminating
        self._clock = clock
        self._pods: dict[PodUID, Pod] = {}
        self._due_pods: DueHeap[PodUID, datetime] = DueHeap()

    def follow(self, pod: Pod) -> None:
        """Add or update a desired pod."""
        uid = PodUID(pod.metadata.uid or "")
        if pod.spec.active_deadline_seconds is None:
            self.forget(uid)
        else:
            self._schedule(pod, uid, self._due(pod, uid))

    def forget(self, uid: PodUID) -> None:
        """Remove a pod. An unknown pod is ignored."""
        self._pods.pop(uid, None)
        self._due_pods.discard(uid)

    def past(self) -> list[PodUID]:
        """Return the pods past their deadline that are not terminating, the longest overdue first."""
        now = self._clock.now()
        due_uids = []
        while (due := self._due_pods.next_due()) is not None and due <= now:
            due_uids.append(self._due_pods.pop())
        past = []
        for uid in due_uids:
            pod = self._pods[uid]
            if self._is_terminating(uid):
                # Seed 258: such a pod was synced every second until its cleanup succeeded. Its failed cleanup now has
                # its own backoff.
                self._schedule(pod, uid, now + RECHECK_TERMINATING)
                continue
            due = self._due(pod, uid)
            if due <= now:
                past.append(uid)
            self._schedule(pod, uid, due)
        return past

    def seconds_to_next(self) -> float | None:
        """Return the seconds until `past` must be called again, or None if no pod has a deadline."""
        due = self._due_pods.next_due()
        if due is None:
            return None
        seconds = (due - self._clock.now()).total_seconds()
        return REPEAT_SECONDS if seconds <= 0 else min(seconds, LONGEST_WAIT_SECONDS)

    def _due(self, pod: Pod, uid: PodUID) -> datetime:
        try:
            deadline = deadline_of(pod, self._statuses.get_pod_status(uid))
        except BadInput as error:
            log.warning("cannot read the start time of pod %s (%s): %s", full_name(pod), uid, error)
            deadline = None
        return deadline or self._clock.now() + RECHECK_UNSTARTED

    def _schedule(self, pod: Pod, uid: PodUID, when: datetime) -> None:
        self._pods[uid] = pod
        self._due_pods.set(uid, when)
