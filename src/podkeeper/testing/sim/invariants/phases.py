"""I1 and I13: terminal phases never change, restart counts never decrease.

API objects are compared by UID, so a recreated mirror pod is a new object. As in the kubelet, a mirror pod shows the
current static pod with its name. Until it is replaced, that may be the successor of its pod, or the same pod after it
was removed and added again. Such a pod has not ended and has no restarts yet.
"""

from collections.abc import Iterable

from podkeeper.model.k8s.core import ContainerStatus, Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import bare_container_id
from podkeeper.rules.static.mirror import is_mirror_pod
from podkeeper.rules.status.phase import is_terminal
from podkeeper.testing.sim.invariants.pods import TrackedPods
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.world import World

PodTerm = tuple[PodUID, bool]
"""A pod, and whether the container belongs to its current term (`TrackedPod`)."""


class MonotonicStatus:
    """Checks every change that the agent makes to a pod's status."""

    def __init__(self, world: World, pods: TrackedPods) -> None:
        self._world = world
        self._pods = pods
        world.bus.subscribe(PodChanged, self._on_pod_changed)

    def _on_pod_changed(self, change: PodChanged) -> None:
        if not change.by or change.old is None or change.new is None:
            return
        uid, before, after = change.new.metadata.uid or "", change.old.status, change.new.status
        if is_terminal(before.phase) and self._same_pod(change.new, every_status(before), every_status(after)):
            self._world.checked("I1")
            if after.phase != before.phase:
                self._world.violated("I1", uid, f"a pod that was {before.phase} became {after.phase}")
        elif is_terminal(after.phase) and not is_mirror_pod(change.new):
            self._world.checked("I1")
            if running := self._world.truth.running(PodUID(uid)):
                names = ", ".join(f"{run.name} ({run.id})" for run in running)
                self._world.violated("I1", uid, f"the pod is published as {after.phase} while {names} runs")
        former = {status.name: status for status in every_status(before)}
        for status in every_status(after):
            known = former.get(status.name)
            if known is not None and known.restart_count and self._same_pod(change.new, [known], [status]):
                self._world.checked("I13")
                if status.restart_count < known.restart_count:
                    change_text = f"from {known.restart_count} to {status.restart_count}"
                    self._world.violated("I13", uid, f"the restart count of {status.name} fell {change_text}")

    def _same_pod(self, pod: Pod, one: Iterable[ContainerStatus], other: Iterable[ContainerStatus]) -> bool:
        """Whether two statuses of an object are known to be about the same pod."""
        if not is_mirror_pod(pod):
            return True
        return bool(self._pods_in(one) & self._pods_in(other))

    def _pods_in(self, statuses: Iterable[ContainerStatus]) -> set[PodTerm]:
        runs = (self._world.truth.containers.get(bare_container_id(each.container_id or "")) for each in statuses)
        found = ((run, self._pods.get(run.uid)) for run in runs if run is not None)
        return {(run.uid, known is None or run.created >= known.began) for run, known in found}


def every_status(status: PodStatus) -> Iterable[ContainerStatus]:
    """Return the statuses of all containers, of any kind."""
    yield from status.init_container_statuses or ()
    yield from status.container_statuses or ()
    yield from status.ephemeral_container_statuses or ()
