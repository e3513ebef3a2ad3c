"""Status changes without the runtime: probe results and terminations.

In: the pod and its last status. Out: the changed status, or None if nothing changes. `rules.status.publish.accept`
decides whether to send it. When a pod has terminated, every container needs a final state. A container whose exit was
never observed counts as failed, so that no pod succeeds by mistake. Kubelet counterpart: `SetContainerReadiness`,
`SetContainerStartup` and `TerminatePod` in pkg/kubelet/status/status_manager.go.
"""

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from podkeeper.model.k8s.core import ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus
from podkeeper.rules.container.restart import is_sidecar
from podkeeper.rules.static.mirror import is_static_pod
from podkeeper.rules.status.conditions import containers_ready_condition, ready_condition, with_condition
from podkeeper.rules.status.phase import Phase, is_terminal

CONTAINER_STATUS_UNKNOWN = "ContainerStatusUnknown"
"""The reason of an exit that was not observed."""

# Never 0: a container whose exit is unknown must not count as a success (k/k PR 88440).
UNSEEN_EXIT_CODE = 137
"""The exit code of an exit that was not observed, as for SIGKILL."""

NOT_LOCATED = ContainerState(
    terminated=ContainerStateTerminated(
        reason=CONTAINER_STATUS_UNKNOWN,
        message="The container could not be located when the pod was terminated",
        exit_code=UNSEEN_EXIT_CODE,
    )
)


def with_readiness(pod: Pod, status: PodStatus, container_id: str, ready: bool) -> PodStatus | None:
    """Return the status with a container's readiness, and the resulting readiness of the pod.

    None if no container has this ID, or if nothing changes.
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
    found = _find(status, container_id)
    return found is not None and found.state.running is not None


def with_startup(status: PodStatus, container_id: str, started: bool) -> PodStatus | None:
    """Return the status with a container's started flag. None as in `with_readiness`."""
    found = _find(status, container_id)
    if found is None or found.started is started:
        return None
    return _revised(status, found, lambda container: replace(container, started=started))


def terminated_status(pod: Pod, cached: PodStatus | None) -> PodStatus:
    """Return the final status of a pod without containers: all its containers are terminated.

    A static pod keeps its phase, because its source may add it again with the same UID.
    """
    status = pod.status if cached is None else cached
    if _was_initialized(pod):
        status = replace(status, container_statuses=_with_terminated_states(status.container_statuses))
    attempted = _attempted(status.init_container_statuses or ())
    if attempted:
        rest = (status.init_container_statuses or ())[len(attempted) :]
        status = replace(status, init_container_statuses=(*(_with_terminated_states(attempted) or ()), *rest))
    # The API object is deleted only with a terminal phase.
    if not is_static_pod(pod) and not is_terminal(status.phase):
        status = replace(status, phase=Phase.FAILED)
    return status


def _find(status: PodStatus, container_id: str) -> ContainerStatus | None:
    every = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    return next((found for found in every if (found.container_id or "") == container_id), None)


def _revised(
    status: PodStatus, found: ContainerStatus, revise: Callable[[ContainerStatus], ContainerStatus]
) -> PodStatus:
    """Return the status with one container status (the object `found`) changed."""

    def revised(statuses: Iterable[ContainerStatus] | None) -> tuple[ContainerStatus, ...] | None:
        return None if statuses is None else tuple(revise(each) if each is found else each for each in statuses)

    return replace(
        status,
        container_statuses=revised(status.container_statuses),
        init_container_statuses=revised(status.init_container_statuses),
    )


def _with_terminated_states(statuses: Iterable[ContainerStatus] | None) -> tuple[ContainerStatus, ...] | None:
    """Return the statuses with a terminated state for each container."""
    if statuses is None:
        return None
    return tuple(
        status if status.state.terminated is not None else replace(status, state=NOT_LOCATED) for status in statuses
    )


def _was_initialized(pod: Pod) -> bool:
    """Return whether regular containers could have started, by the status in the API.

    If not, regular containers stay waiting, because the failed init container is enough.
    """
    init_containers = pod.spec.init_containers or ()
    if not init_containers:
        return True
    if any(has_run(status) for status in pod.status.container_statuses or ()):
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
    """Return the init containers up to the last one that has run, at least the first."""
    has_run_at = [index for index, status in enumerate(statuses) if has_run(status)]
    return statuses[: has_run_at[-1] + 1 if has_run_at else 1]


def has_run(status: ContainerStatus) -> bool:
    """Return whether a container has ever run, by its status."""
    return status.state.waiting is None or status.last_state.terminated is not None
