"""I1 and I13: what only moves one way in the API never moves the other way by the agent's hand.

An object of the API is meant, by its own UID: a mirror that was made anew is another one. And a mirror shows whatever
static pod bears its name, as in the reference: until it is replaced that may be the successor of the pod it was made
for, or the same one come back. That is another pod, which has not ended and has counted nothing yet.
"""

from collections.abc import Iterable

from podkeeper.model.k8s.core import ContainerStatus, Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import bare_container_id
from podkeeper.rules.mirror import is_mirror_pod
from podkeeper.rules.phase import is_terminal
from podkeeper.testing.sim.invariants.pods import Pods
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.world import World

Shown = tuple[PodUID, bool]
"""A pod, and whether it is meant as it is in its present term."""


class Phases:
    """Judges every change the agent makes to a pod's status."""

    def __init__(self, world: World, pods: Pods) -> None:
        self._world = world
        self._pods = pods
        world.bus.subscribe(PodChanged, self._see)

    def _see(self, change: PodChanged) -> None:
        if not change.by or change.old is None or change.new is None:
            return
        uid, before, after = change.new.metadata.uid or "", change.old.status, change.new.status
        if is_terminal(before.phase) and self._show_the_same(change.new, every_status(before), every_status(after)):
            self._world.checked("I1")
            if after.phase != before.phase:
                self._world.broken("I1", uid, f"a pod that was {before.phase} became {after.phase}")
        elif is_terminal(after.phase) and not is_mirror_pod(change.new):
            self._world.checked("I1")
            if running := self._world.truth.running(PodUID(uid)):
                names = ", ".join(f"{life.name} ({life.id})" for life in running)
                self._world.broken("I1", uid, f"the pod is called {after.phase} while {names} runs")
        former = {status.name: status for status in every_status(before)}
        for status in every_status(after):
            known = former.get(status.name)
            if known is not None and known.restart_count and self._show_the_same(change.new, [known], [status]):
                self._world.checked("I13")
                if status.restart_count < known.restart_count:
                    fall = f"from {known.restart_count} to {status.restart_count}"
                    self._world.broken("I13", uid, f"the restart count of {status.name} fell {fall}")

    def _show_the_same(self, pod: Pod, one: Iterable[ContainerStatus], other: Iterable[ContainerStatus]) -> bool:
        """Whether two statuses of an object are known to be about one and the same pod."""
        if not is_mirror_pod(pod):
            return True
        return bool(self._shown_in(one) & self._shown_in(other))

    def _shown_in(self, statuses: Iterable[ContainerStatus]) -> set[Shown]:
        lives = (self._world.truth.containers.get(bare_container_id(each.container_id or "")) for each in statuses)
        found = ((life, self._pods.get(life.uid)) for life in lives if life is not None)
        return {(life.uid, known is None or life.created >= known.begun) for life, known in found}


def every_status(status: PodStatus) -> Iterable[ContainerStatus]:
    """The statuses of all containers, of any kind."""
    yield from status.init_container_statuses or ()
    yield from status.container_statuses or ()
    yield from status.ephemeral_container_statuses or ()
