"""I18: a running container stays published as running.

Once the agent has published that a container runs, it may publish another state only after that container has ended. A
failed start or an old inspection must not change the published state of other containers. No fault is an excuse,
because the agent already had the correct state.

Two cases are excluded: a pod that is rejected at admission, and a mirror pod whose static pod was dropped. Such a
mirror pod may already show the successor.
"""

from collections.abc import Iterator

from podkeeper.model.k8s.core import ContainerStatus, Pod
from podkeeper.model.runtime import bare_container_id
from podkeeper.rules.static.mirror import is_mirror_pod, shown_uid
from podkeeper.testing.sim.invariants.pods import TrackedPods, is_rejected
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.world import World


class PublishedRunning:
    """Checks every status that replaces one with a running container."""

    def __init__(self, world: World, pods: TrackedPods) -> None:
        self._world = world
        self._pods = pods
        world.bus.subscribe(PodChanged, self._on_pod_changed)

    def _on_pod_changed(self, change: PodChanged) -> None:
        old, new = change.old, change.new
        if not change.by or old is None or new is None:
            return
        before = {each.name: id_ for each in _statuses(old) if (id_ := _running_id(each))}
        if not before:
            return
        now = {each.name: each for each in _statuses(new)}
        for name, id_ in before.items():
            run = self._world.truth.containers.get(id_)
            if run is None or not run.running:
                continue
            self._world.checked("I18")
            status = now.get(name)
            if (status is None or _running_id(status) != id_) and not self._is_excused(new):
                text = (
                    f"{name} ({id_}) runs and was published as running, but is now published as {_state_text(status)}"
                )
                self._world.violated("I18", shown_uid(new), text)

    def _is_excused(self, pod: Pod) -> bool:
        uid = shown_uid(pod)
        known = self._pods.get(uid)
        if is_mirror_pod(pod) and (known is None or not known.named or known.dropped):
            return True
        return is_rejected(self._world, uid)


def _statuses(pod: Pod) -> Iterator[ContainerStatus]:
    status = pod.status
    yield from status.init_container_statuses or ()
    yield from status.container_statuses or ()
    yield from status.ephemeral_container_statuses or ()


def _running_id(status: ContainerStatus) -> str:
    return bare_container_id(status.container_id or "") if status.state.running is not None else ""


def _state_text(status: ContainerStatus | None) -> str:
    if status is None:
        return "nothing"
    state = status.state
    if state.running is not None:
        return f"running as {bare_container_id(status.container_id or '')}"
    if state.terminated is not None:
        return f"terminated with exit code {state.terminated.exit_code}"
    return (state.waiting.reason if state.waiting is not None else None) or "waiting"
