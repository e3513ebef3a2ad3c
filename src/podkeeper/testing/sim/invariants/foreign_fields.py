"""I17: a status update preserves the fields of other writers.

These are conditions of others and the time of PodScheduled.

* A condition that another controller has set stays in the status.
* The last status of an evicted pod has a reason if the pod failed. (As in the kubelet, the pod succeeds if all its
  containers exit with 0.)
* The transition time of PodScheduled never changes. Other conditions may have changed twice between two updates.

There are two exceptions. Static pods are not scheduled, so an agent without a current mirror pod sets a new time. An
agent whose disk lost the status and whose list is stale also sets a new time.
"""

from podkeeper.model.k8s.core import Pod, PodCondition
from podkeeper.model.messages import PodUID
from podkeeper.rules.static.mirror import is_mirror_pod, shown_uid
from podkeeper.rules.status.phase import Phase, is_terminal
from podkeeper.testing.sim.invariants.pods import is_rejected
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.records import AgentStarted, EvictionEnded, PodChanged
from podkeeper.testing.sim.world import World

SCHEDULED = "PodScheduled"
REFUSED_WRITE_SECONDS = 600.0  # a write that the disk refused this long ago may still be missing


class ForeignFields:
    """Checks every status with which the agent replaces another one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._evicted: set[PodUID] = set()  # by the current agent process
        world.bus.subscribe(PodChanged, self._on_pod_changed)
        world.bus.subscribe(EvictionEnded, self._on_eviction_ended)
        world.bus.subscribe(AgentStarted, lambda _: self._evicted.clear())

    def _on_eviction_ended(self, eviction: EvictionEnded) -> None:
        if eviction.done:
            self._evicted.add(eviction.uid)

    def _on_pod_changed(self, change: PodChanged) -> None:
        old, new = change.old, change.new
        if not change.by or old is None or new is None or old.status.conditions is new.status.conditions:
            return
        if is_rejected(self._world, shown_uid(new)):
            return  # as in the kubelet, the status of a rejected pod has nothing but the rejection
        self._check_eviction(new)
        now = {each.type: each for each in new.status.conditions or ()}
        for condition in old.status.conditions or ():
            self._world.checked("I17")
            published = now.get(condition.type)
            if published is None:
                self._report(new, f"condition {condition.type} was removed")
            elif published.type == SCHEDULED and _time_changed(condition, published) and not self._may_be_unknown(new):
                self._report(
                    new, f"condition {condition.type} is still {published.status}, {_times(condition, published)}"
                )

    def _may_be_unknown(self, pod: Pod) -> bool:
        """Return whether the agent may have lost the time at which a pod was scheduled."""
        faults, since = self._world.fault_log, self._world.now() - REFUSED_WRITE_SECONDS
        needed = ("disk-full", "stale-lists")
        return is_mirror_pod(pod) or all(faults.any_since(since, None, FAULT_RATES.keys() - {each}) for each in needed)

    def _check_eviction(self, pod: Pod) -> None:
        if pod.metadata.uid in self._evicted and is_terminal(pod.status.phase):
            self._evicted.discard(PodUID(pod.metadata.uid))
            self._world.checked("I17")
            if pod.status.phase == Phase.FAILED and not pod.status.reason:
                self._report(pod, "the pod was evicted, and its last status has no reason for its failure")

    def _report(self, pod: Pod, text: str) -> None:
        self._world.violated("I17", pod.metadata.uid or "", text)


def _time_changed(before: PodCondition, now: PodCondition) -> bool:
    return now.last_transition_time != before.last_transition_time


def _times(before: PodCondition, now: PodCondition) -> str:
    return f"but since {now.last_transition_time}, not since {before.last_transition_time}"
