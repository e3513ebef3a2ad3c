"""The phase of a pod.

In: a pod and its container statuses. Out: a `Phase`, by the first rule that applies:

    an init container failed and will not run again      -> Failed
    a container still has to start                       -> Pending
    a container runs                                     -> Running
    all stopped: one will run again                      -> Running
                 none will, every exit code was 0        -> Succeeded
                 none will, some exit code was not 0     -> Failed

Sidecars count while they wait or run. A stopped sidecar has no effect. `rules.status.pod` ensures that a terminal phase
never changes. Kubelet counterpart: `getPhase` in pkg/kubelet/kubelet_pods.go.
"""

from collections.abc import Iterable, Sequence
from enum import Enum, StrEnum

from podkeeper.model.k8s.core import Container, ContainerStateTerminated, ContainerStatus, Pod
from podkeeper.rules.container.restart import is_sidecar, restarts_after_exit
from podkeeper.rules.static.mirror import is_static_pod

RESTARTING_ALL_CONTAINERS = "RestartingAllContainers"
"""The exit reason of a container that was removed because all containers of the pod restart."""


class Phase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class _Progress(Enum):
    """The progress of one container, as far as the phase depends on it."""

    TO_START = "has never run, or is unknown"
    RUNNING = "is running"
    STOPPED = "has run and stopped"


def is_terminal(phase: str | None) -> bool:
    """Return whether a phase is Succeeded or Failed."""
    return phase in (Phase.SUCCEEDED, Phase.FAILED)


def phase_of(pod: Pod, statuses: Iterable[ContainerStatus], *, pod_is_terminal: bool, initialized: bool) -> Phase:
    """Return the phase of a pod from its regular and init container statuses, in any order.

    `pod_is_terminal`: no container will start again, whatever its policy is. `initialized`: a regular container of the
    current sandbox was started, so a restarting sidecar does not make the pod Pending.
    """
    by_name: dict[str, ContainerStatus] = {}
    for status in statuses:
        by_name.setdefault(status.name, status)
    init_containers = pod.spec.init_containers or ()
    initializers = [(each, by_name.get(each.name)) for each in init_containers if not is_sidecar(each)]
    sidecars = [by_name.get(each.name) for each in init_containers if is_sidecar(each)]
    regular = [(each, by_name.get(each.name)) for each in pod.spec.containers]

    # Before all other rules: regular containers of such a pod never start, so they would keep it Pending forever.
    if any(_failed_finally(pod, container, status) for container, status in initializers):
        return Phase.FAILED
    if any(_progress(status) is not _Progress.STOPPED for _, status in initializers):
        return Phase.PENDING
    if not initialized and any(_is_starting(status) for status in sidecars):
        return Phase.PENDING
    progress = [_progress(status) for status in [*sidecars, *(status for _, status in regular)]]
    if _Progress.TO_START in progress:
        return Phase.PENDING
    if _Progress.RUNNING in progress:
        return Phase.RUNNING
    return _stopped_phase(pod, regular, pod_is_terminal)


def _stopped_phase(
    pod: Pod, regular: Sequence[tuple[Container, ContainerStatus | None]], pod_is_terminal: bool
) -> Phase:
    if not regular:
        return Phase.PENDING
    # A static pod never completes while a container restarts, because its source still has it.
    if (not pod_is_terminal or is_static_pod(pod)) and any(
        _runs_again(pod, container, status) for container, status in regular
    ):
        return Phase.RUNNING
    # A container that waits after exit code 0 has not succeeded, because its restart policy requires another run.
    succeeded = all(
        status is not None and status.state.terminated is not None and status.state.terminated.exit_code == 0
        for _, status in regular
    )
    return Phase.SUCCEEDED if succeeded else Phase.FAILED


def _progress(status: ContainerStatus | None) -> _Progress:
    if status is not None and status.state.running is not None:
        return _Progress.RUNNING
    return _Progress.TO_START if _last_exit(status) is None else _Progress.STOPPED


def _last_exit(status: ContainerStatus | None) -> ContainerStateTerminated | None:
    """Return the last exit of a container that does not run. None if it never ran."""
    if status is None:
        return None
    if status.state.terminated is not None:
        return status.state.terminated
    return status.last_state.terminated if status.state.waiting is not None else None


def _is_starting(status: ContainerStatus | None) -> bool:
    return status is not None and status.state.running is not None and not status.started


def _failed_finally(pod: Pod, container: Container, status: ContainerStatus | None) -> bool:
    last_exit = _last_exit(status)
    return last_exit is not None and last_exit.exit_code != 0 and not _runs_again(pod, container, status)


def _runs_again(pod: Pod, container: Container, status: ContainerStatus | None) -> bool:
    last_exit = _last_exit(status)
    return last_exit is not None and (
        last_exit.reason == RESTARTING_ALL_CONTAINERS or restarts_after_exit(container, pod.spec, last_exit.exit_code)
    )
