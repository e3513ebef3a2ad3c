"""The phase of a pod: one word for where all its containers stand.

A pod and the statuses of its containers come in, a `Phase` goes out. Each container stands in one of
three places, and the pod follows:

    an init container failed and will not run again      -> Failed
    something still has to start                         -> Pending
    something runs                                       -> Running
    all stopped: one will run again                      -> Running
                 none will, every exit was 0             -> Succeeded
                 none will, some exit was not            -> Failed

Sidecars count while they wait or run; a stopped one says nothing about its pod. That a terminal phase
is never left is not decided here (no history comes in) but in `rules.status.pod`. The Go ancestor is
`getPhase` in pkg/kubelet/kubelet_pods.go.
"""

from collections.abc import Iterable, Sequence
from enum import Enum, StrEnum

from podkeeper.model.k8s.core import Container, ContainerStateTerminated, ContainerStatus, Pod
from podkeeper.rules.mirror import is_static_pod
from podkeeper.rules.restart import is_sidecar, restarts_after_exit

RESTARTING_ALL_CONTAINERS = "RestartingAllContainers"
"""The reason of an end that only makes room: all containers of the pod start over."""


class Phase(StrEnum):
    """Where a pod as a whole stands."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class _Standing(Enum):
    """Where one container stands, as far as its pod's phase goes."""

    TO_START = "waits for its first start, or nothing is known of it"
    RUNS = "runs"
    STOPPED = "ran and stopped"


def is_terminal(phase: str | None) -> bool:
    """Whether a phase is one that no pod ever leaves."""
    return phase in (Phase.SUCCEEDED, Phase.FAILED)


def phase_of(pod: Pod, statuses: Iterable[ContainerStatus], *, ended: bool, initialized: bool) -> Phase:
    """The phase that container statuses (regular and init, in any order) give a pod.

    `ended`: no container of this pod will ever start again, whatever its policy. `initialized`: a
    regular container of the present sandbox was started, so a sidecar that starts again holds nothing up.
    """
    by_name: dict[str, ContainerStatus] = {}
    for status in statuses:
        by_name.setdefault(status.name, status)
    init_containers = pod.spec.init_containers or ()
    initializers = [(each, by_name.get(each.name)) for each in init_containers if not is_sidecar(each)]
    sidecars = [by_name.get(each.name) for each in init_containers if is_sidecar(each)]
    regular = [(each, by_name.get(each.name)) for each in pod.spec.containers]

    if any(_failed_for_good(pod, container, status) for container, status in initializers):
        return Phase.FAILED
    if any(_standing(status) is not _Standing.STOPPED for _, status in initializers):
        return Phase.PENDING
    if not initialized and any(_is_starting(status) for status in sidecars):
        return Phase.PENDING
    standings = [_standing(status) for status in [*sidecars, *(status for _, status in regular)]]
    if _Standing.TO_START in standings:
        return Phase.PENDING
    if _Standing.RUNS in standings:
        return Phase.RUNNING
    return _stopped_phase(pod, regular, ended)


def _stopped_phase(pod: Pod, regular: Sequence[tuple[Container, ContainerStatus | None]], ended: bool) -> Phase:
    """The phase of a pod whose containers have all stopped."""
    if not regular:
        return Phase.PENDING
    # A static pod never ends by itself: its source wants it for as long as it names it.
    if (not ended or is_static_pod(pod)) and any(_runs_again(pod, container, status) for container, status in regular):
        return Phase.RUNNING
    # One that waits after a success has not succeeded: it was to run again, and did not.
    succeeded = all(
        status is not None and status.state.terminated is not None and status.state.terminated.exit_code == 0
        for _, status in regular
    )
    return Phase.SUCCEEDED if succeeded else Phase.FAILED


def _standing(status: ContainerStatus | None) -> _Standing:
    if status is not None and status.state.running is not None:
        return _Standing.RUNS
    return _Standing.TO_START if _ending(status) is None else _Standing.STOPPED


def _ending(status: ContainerStatus | None) -> ContainerStateTerminated | None:
    """How a container that does not run came to its end, if it ever ran."""
    if status is None or status.state.running is not None:
        return None
    if status.state.terminated is not None:
        return status.state.terminated
    return status.last_state.terminated if status.state.waiting is not None else None


def _is_starting(status: ContainerStatus | None) -> bool:
    return status is not None and status.state.running is not None and not status.started


def _failed_for_good(pod: Pod, container: Container, status: ContainerStatus | None) -> bool:
    ending = _ending(status)
    return ending is not None and ending.exit_code != 0 and not _runs_again(pod, container, status)


def _runs_again(pod: Pod, container: Container, status: ContainerStatus | None) -> bool:
    ending = _ending(status)
    return ending is not None and (
        ending.reason == RESTARTING_ALL_CONTAINERS or restarts_after_exit(container, pod.spec, ending.exit_code)
    )
