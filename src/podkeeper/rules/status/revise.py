"""Revisions of a pod's status that need no look at the runtime: a probe's word, and the pod's end.

The pod and its last status come in, the revised status (or None: nothing to revise) goes out;
`rules.publish.accept` decides what becomes of it. At the end no container may be left without a final
state: what was never located is taken to have failed, so that no pod is called successful by mistake.
The Go ancestors are `SetContainerReadiness`, `SetContainerStartup` and `TerminatePod` in
pkg/kubelet/status/status_manager.go.
"""

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from podkeeper.model.k8s.core import ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus
from podkeeper.rules.mirror import is_static_pod
from podkeeper.rules.phase import Phase, is_terminal
from podkeeper.rules.restart import is_sidecar
from podkeeper.rules.status.conditions import containers_ready_condition, ready_condition, with_condition

CONTAINER_STATUS_UNKNOWN = "ContainerStatusUnknown"
"""The reason of an end that nobody saw."""

UNSEEN_EXIT_CODE = 137
"""The exit code of an end that nobody saw: as if killed."""

NOT_LOCATED = ContainerState(
    terminated=ContainerStateTerminated(
        reason=CONTAINER_STATUS_UNKNOWN,
        message="The container could not be located when the pod was terminated",
        exit_code=UNSEEN_EXIT_CODE,
    )
)


def with_readiness(pod: Pod, status: PodStatus, container_id: str, ready: bool) -> PodStatus | None:
    """The status with a container's readiness set and the pod's readiness drawn from it.

    None: no container has that id (any more), or it says so already.
    """
    found = _find(status, container_id)
    if found is None or found.ready == ready:
        return None
    revised = _revised(status, found, lambda container: replace(container, ready=ready))
    statuses = (*(revised.init_container_statuses or ()), *(revised.container_statuses or ()))
    ready_now = ready_condition(pod, revised.conditions, statuses, revised.phase)
    containers_ready = containers_ready_condition(pod, statuses, revised.phase)
    return replace(revised, conditions=with_condition(with_condition(revised.conditions, ready_now), containers_ready))


def is_container_running(status: PodStatus, container_id: str) -> bool:
    """Whether a container runs, by a status of its pod."""
    found = _find(status, container_id)
    return found is not None and found.state.running is not None


def with_startup(status: PodStatus, container_id: str, started: bool) -> PodStatus | None:
    """The status with a container's started flag set; None as in `with_readiness`."""
    found = _find(status, container_id)
    if found is None or found.started is started:
        return None
    return _revised(status, found, lambda container: replace(container, started=started))


def ended_status(pod: Pod, cached: PodStatus | None) -> PodStatus:
    """The last status of a pod of which nothing is left: every container and the pod itself have ended.

    A static pod keeps its phase: its source may want it again under the same UID.
    """
    status = pod.status if cached is None else cached
    if _was_initialized(pod):
        status = replace(status, container_statuses=_ended(status.container_statuses))
    attempted = _attempted(status.init_container_statuses or ())
    if attempted:
        rest = (status.init_container_statuses or ())[len(attempted) :]
        status = replace(status, init_container_statuses=(*(_ended(attempted) or ()), *rest))
    if not is_static_pod(pod) and not is_terminal(status.phase):
        status = replace(status, phase=Phase.FAILED)
    return status


def _find(status: PodStatus, container_id: str) -> ContainerStatus | None:
    every = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    return next((found for found in every if (found.container_id or "") == container_id), None)


def _revised(
    status: PodStatus, found: ContainerStatus, revise: Callable[[ContainerStatus], ContainerStatus]
) -> PodStatus:
    """The status with one container's (the very object `found`) revised."""

    def each(statuses: Iterable[ContainerStatus] | None) -> tuple[ContainerStatus, ...] | None:
        return None if statuses is None else tuple(revise(held) if held is found else held for held in statuses)

    return replace(
        status,
        container_statuses=each(status.container_statuses),
        init_container_statuses=each(status.init_container_statuses),
    )


def _ended(statuses: Iterable[ContainerStatus] | None) -> tuple[ContainerStatus, ...] | None:
    """Each container with a final state."""
    if statuses is None:
        return None
    return tuple(
        status if status.state.terminated is not None else replace(status, state=NOT_LOCATED) for status in statuses
    )


def _was_initialized(pod: Pod) -> bool:
    """Whether the API's record shows that regular containers could have started.

    If not, a failed init container says enough, and regular ones may go on waiting.
    """
    init_containers = pod.spec.init_containers or ()
    if not init_containers:
        return True
    if any(has_begun(status) for status in pod.status.container_statuses or ()):
        return True
    statuses = pod.status.init_container_statuses or ()
    if not statuses or len(statuses) > len(init_containers):
        return False
    container, last = init_containers[len(statuses) - 1], statuses[-1]
    if container.name != last.name:
        return False
    if is_sidecar(container):
        return last.state.running is not None and last.started is True
    return any(
        state.terminated is not None and state.terminated.exit_code == 0 for state in (last.state, last.last_state)
    )


def _attempted(statuses: tuple[ContainerStatus, ...]) -> tuple[ContainerStatus, ...]:
    """The init containers up to the last that ever began; at least the first, for that one was due."""
    begun = [index for index, status in enumerate(statuses) if has_begun(status)]
    return statuses[: begun[-1] + 1 if begun else 1]


def has_begun(status: ContainerStatus) -> bool:
    """Whether a container ever ran, as far as its status knows."""
    return status.state.waiting is None or status.last_state.terminated is not None
