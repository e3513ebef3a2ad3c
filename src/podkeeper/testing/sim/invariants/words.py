"""I17: what the agent says of a pod takes nothing away from what others said, and dates nothing anew.

* A condition that somebody else put into a pod's status stays there.
* The last status of a pod that was evicted says so, or why else it failed. (One whose containers all take it well, with
  exit code 0, succeeds in the end, as in the reference.)
* What never changes has never changed: that a pod was scheduled has the time it had. (Other conditions may have changed
  and changed back before anybody was told; and a static pod was never scheduled: an agent that finds no mirror of it,
  or an old one, begins anew. So does one whose disk kept no note and which is shown an old list.)
"""

from podkeeper.model.k8s.core import Pod, PodCondition
from podkeeper.model.messages import PodUID
from podkeeper.rules.mirror import is_mirror_pod, shown_uid
from podkeeper.rules.phase import Phase, is_terminal
from podkeeper.testing.sim.invariants.pods import turned_away
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.records import EvictionEnded, LifeBegan, PodChanged
from podkeeper.testing.sim.world import World

SCHEDULED = "PodScheduled"
FORGOTTEN_SECONDS = 600.0  # what the disk refused so long ago may still be missing


class Words:
    """Judges every status that the agent writes over another one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._evicted: set[PodUID] = set()  # by the agent that lives now
        world.bus.subscribe(PodChanged, self._see)
        world.bus.subscribe(EvictionEnded, self._see_eviction)
        world.bus.subscribe(LifeBegan, lambda _: self._evicted.clear())

    def _see_eviction(self, eviction: EvictionEnded) -> None:
        if eviction.done:
            self._evicted.add(eviction.uid)

    def _see(self, change: PodChanged) -> None:
        old, new = change.old, change.new
        if not change.by or old is None or new is None or old.status.conditions is new.status.conditions:
            return
        if turned_away(self._world, shown_uid(new)):
            return  # what is said of a pod that finds no room is just that, as in the reference
        self._judge_eviction(new)
        now = {each.type: each for each in new.status.conditions or ()}
        for condition in old.status.conditions or ():
            self._world.checked("I17")
            said = now.get(condition.type)
            if said is None:
                self._break(new, f"condition {condition.type}, which was there, is no more")
            elif said.type == SCHEDULED and _is_moved(condition, said) and not self._may_forget(new):
                self._break(new, f"condition {condition.type} is {said.status} as before, {_times(condition, said)}")

    def _may_forget(self, pod: Pod) -> bool:
        """Whether the agent may never have heard when a pod was scheduled."""
        troubles, since = self._world.troubles, self._world.now() - FORGOTTEN_SECONDS
        needed = ("disk-full", "stale-lists")
        return is_mirror_pod(pod) or all(troubles.touched(since, None, FAULT_RATES.keys() - {each}) for each in needed)

    def _judge_eviction(self, pod: Pod) -> None:
        if pod.metadata.uid in self._evicted and is_terminal(pod.status.phase):
            self._evicted.discard(PodUID(pod.metadata.uid))
            self._world.checked("I17")
            if pod.status.phase == Phase.FAILED and not pod.status.reason:
                self._break(pod, "the pod was evicted, and its last status does not say why it failed")

    def _break(self, pod: Pod, text: str) -> None:
        self._world.broken("I17", pod.metadata.uid or "", text)


def _is_moved(before: PodCondition, now: PodCondition) -> bool:
    return now.last_transition_time != before.last_transition_time


def _times(before: PodCondition, now: PodCondition) -> str:
    return f"but since {now.last_transition_time}, not since {before.last_transition_time}"
