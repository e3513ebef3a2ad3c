"""Compute the conditions of a pod that the node agent owns.

In: a pod, its container statuses and its phase. Out: `PodCondition`s without times, which `rules.status.publish` sets.
The agent writes its own conditions and `DisruptionTarget`, which other components may write too. It never changes any
other condition.

As in the kubelet, an initialized pod stays initialized, and a condition has the generation of the pod for which it was
computed. Kubelet counterpart: pkg/kubelet/status/generate.go and pkg/kubelet/types/pod_status.go.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from podkeeper.model.k8s.core import Container, ContainerStatus, Pod, PodCondition, PodStatus
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.container.restart import (
    ALL_CONTAINERS_RESTARTING,
    all_containers_are_removed,
    all_containers_should_restart,
    is_sidecar,
)
from podkeeper.rules.plan.sandbox import sandbox_change
from podkeeper.rules.status.phase import Phase

READY = "Ready"
CONTAINERS_READY = "ContainersReady"
INITIALIZED = "Initialized"
POD_SCHEDULED = "PodScheduled"
READY_TO_START_CONTAINERS = "PodReadyToStartContainers"
DISRUPTION_TARGET = "DisruptionTarget"
RESIZE_PENDING = "PodResizePending"
RESIZE_IN_PROGRESS = "PodResizeInProgress"

TRUE = "True"
FALSE = "False"

UNKNOWN_CONTAINER_STATUSES = "UnknownContainerStatuses"
POD_COMPLETED = "PodCompleted"
POD_FAILED = "PodFailed"
CONTAINERS_NOT_READY = "ContainersNotReady"
CONTAINERS_NOT_INITIALIZED = "ContainersNotInitialized"
READINESS_GATES_NOT_READY = "ReadinessGatesNotReady"
RESTART_ALL_CONTAINERS_STARTED = "RestartAllContainersStarted"
TERMINATION_BY_KUBELET = "TerminationByKubelet"

_OURS = frozenset(
    {
        POD_SCHEDULED,
        READY,
        INITIALIZED,
        CONTAINERS_READY,
        RESIZE_IN_PROGRESS,
        RESIZE_PENDING,
        READY_TO_START_CONTAINERS,
        ALL_CONTAINERS_RESTARTING,
    }
)


def is_ours(condition: PodCondition) -> bool:
    """Return whether only the node agent writes a condition."""
    return condition.type in _OURS


def is_shared(condition: PodCondition) -> bool:
    """Return whether the node agent and others write a condition."""
    return condition.type == DISRUPTION_TARGET


def find_condition(conditions: Iterable[PodCondition] | None, wanted: str) -> PodCondition | None:
    return next((condition for condition in conditions or () if condition.type == wanted), None)


def with_condition(conditions: Sequence[PodCondition] | None, new: PodCondition) -> tuple[PodCondition, ...]:
    """Return the list with a condition in place of the first of its type, otherwise at the end."""
    old = tuple(conditions or ())
    place = next((index for index, condition in enumerate(old) if condition.type == new.type), len(old))
    return (*old[:place], new, *old[place + 1 :])


def updated_condition(
    conditions: Sequence[PodCondition] | None, new: PodCondition, now: str
) -> tuple[PodCondition, ...]:
    """Return the list with a condition. Its transition time becomes `now` only if its status changed."""
    old = find_condition(conditions, new.type)
    since = old.last_transition_time if old is not None and old.status == new.status else now
    return with_condition(conditions, replace(new, last_transition_time=since))


def containers_ready_condition(pod: Pod, statuses: Sequence[ContainerStatus] | None, phase: str | None) -> PodCondition:
    """Return whether all regular containers and sidecars are ready. `statuses` is None if unknown."""
    if statuses is None:
        return _condition(pod, CONTAINERS_READY, FALSE, UNKNOWN_CONTAINER_STATUSES)
    wanted = [*(each for each in pod.spec.init_containers or () if is_sidecar(each)), *pod.spec.containers]
    by_name = _by_name(statuses)
    unknown = [container.name for container in wanted if container.name not in by_name]
    unready = [each.name for each in wanted if each.name in by_name and not by_name[each.name].ready]
    # In a failed pod, containers may still be terminating and must not receive traffic.
    if phase == Phase.FAILED or (phase == Phase.SUCCEEDED and not unknown):
        return unready_terminal_condition(pod, CONTAINERS_READY, phase)
    message = _not_ready_message(unknown, "unready", unready)
    if message:
        return _condition(pod, CONTAINERS_READY, FALSE, CONTAINERS_NOT_READY, message)
    return _condition(pod, CONTAINERS_READY, TRUE)


def ready_condition(
    pod: Pod,
    conditions: Sequence[PodCondition] | None,
    statuses: Sequence[ContainerStatus] | None,
    phase: str | None,
) -> PodCondition:
    """Return whether a pod may receive traffic: its containers are ready, and all its readiness gates are true."""
    containers_ready = containers_ready_condition(pod, statuses, phase)
    if containers_ready.status != TRUE:
        return replace(containers_ready, type=READY)
    closed = []
    for gate in pod.spec.readiness_gates or ():
        found = find_condition(conditions, gate.condition_type)
        if found is None:
            closed.append(
                f"corresponding condition of pod readiness gate {_quoted(gate.condition_type)} does not exist."
            )
        elif found.status != TRUE:
            closed.append(
                f'the status of pod readiness gate {_quoted(gate.condition_type)} is not "True", but {found.status}'
            )
    if closed:
        return _condition(pod, READY, FALSE, READINESS_GATES_NOT_READY, ", ".join(closed))
    return _condition(pod, READY, TRUE)


def initialized_condition(
    pod: Pod,
    old_conditions: Sequence[PodCondition] | None,
    statuses: Sequence[ContainerStatus] | None,
    phase: str | None,
) -> PodCondition:
    """Return whether all init containers have completed, now or before."""
    init_containers = pod.spec.init_containers or ()
    if statuses is None and init_containers:
        return _condition(pod, INITIALIZED, FALSE, UNKNOWN_CONTAINER_STATUSES)
    by_name = _by_name(statuses or ())
    unknown = [container.name for container in init_containers if container.name not in by_name]
    incomplete = [
        container.name
        for container in init_containers
        if container.name in by_name and not _has_initialized(container, by_name[container.name])
    ]
    if phase == Phase.SUCCEEDED and not unknown:
        return _condition(pod, INITIALIZED, TRUE, POD_COMPLETED)
    message = _not_ready_message(unknown, "incomplete", incomplete)
    # Both show that the pod was initialized before. A restart of sidecars or of all containers does not change that.
    before = find_condition((each for each in old_conditions or () if each.status == TRUE), INITIALIZED)
    if not message or before is not None or _any_regular_started(pod, statuses or ()):
        return _condition(pod, INITIALIZED, TRUE)
    return _condition(pod, INITIALIZED, FALSE, CONTAINERS_NOT_INITIALIZED, message)


def ready_to_start_containers_condition(pod: Pod, record: PodRecord) -> PodCondition:
    """Return whether the pod has a sandbox with a network."""
    sandbox = sandbox_change(bool(pod.spec.host_network), record.sandboxes)
    return _condition(pod, READY_TO_START_CONTAINERS, FALSE if sandbox.changed else TRUE)


def pod_scheduled_condition(pod: Pod) -> PodCondition:
    return _condition(pod, POD_SCHEDULED, TRUE)


def all_containers_restarting_condition(pod: Pod, record: PodRecord, old: PodStatus, phase: str | None) -> PodCondition:
    """Return whether all containers are being removed for a restart. It has no generation."""
    condition = PodCondition(type=ALL_CONTAINERS_RESTARTING, status=FALSE)
    if phase in (Phase.SUCCEEDED, Phase.FAILED):
        # A terminal pod restarts nothing, even if its containers were not removed in time.
        return replace(condition, reason=POD_COMPLETED if phase == Phase.SUCCEEDED else POD_FAILED)
    if not all_containers_should_restart(pod, record, old) or all_containers_are_removed(pod, record):
        return condition
    return replace(
        condition,
        status=TRUE,
        reason=RESTART_ALL_CONTAINERS_STARTED,
        message="container exited with restart policy rule",
    )


def disruption_condition(pod: Pod, message: str) -> PodCondition:
    """Return the condition of a pod that the node agent terminates for a reason outside of the pod."""
    return _condition(pod, DISRUPTION_TARGET, TRUE, TERMINATION_BY_KUBELET, message)


def unready_terminal_condition(pod: Pod, condition_type: str, phase: str | None) -> PodCondition:
    """Return the Ready or ContainersReady condition of a pod in a terminal phase."""
    reasons = {Phase.FAILED.value: POD_FAILED, Phase.SUCCEEDED.value: POD_COMPLETED}
    return _condition(pod, condition_type, FALSE, reasons.get(phase or ""))


def changed_readiness_later(one: PodStatus, other: PodStatus) -> bool:
    """Return whether the readiness of the first status changed after that of the second.

    If both changed in the same second, the ready one is later. A container is first unready, and a probe cannot reach
    its failure threshold within a second.
    """
    changed = [find_condition(each.conditions, READY) for each in (one, other)]
    # All times have the same format, so they can be compared as text.
    first, second = (
        ("", False) if each is None else (each.last_transition_time or "", each.status == TRUE) for each in changed
    )
    return first > second


def readiness_is_stale(pod: Pod) -> bool:
    """Return whether the Ready condition in the API does not match the containers and readiness gates."""
    if not pod.spec.readiness_gates:
        return False
    status = pod.status
    current = find_condition(status.conditions, READY)
    expected = ready_condition(pod, status.conditions, status.container_statuses, status.phase)
    return current is not None and (current.status, current.message or "") != (expected.status, expected.message or "")


def _condition(
    pod: Pod, condition_type: str, status: str, reason: str | None = None, message: str | None = None
) -> PodCondition:
    return PodCondition(
        type=condition_type,
        status=status,
        reason=reason,
        message=message,
        observed_generation=pod.metadata.generation or None,
    )


def _by_name(statuses: Iterable[ContainerStatus]) -> dict[str, ContainerStatus]:
    by_name: dict[str, ContainerStatus] = {}
    for status in statuses:
        by_name.setdefault(status.name, status)
    return by_name


def _has_initialized(container: Container, status: ContainerStatus) -> bool:
    return bool(status.started) if is_sidecar(container) else status.ready


def _any_regular_started(pod: Pod, statuses: Iterable[ContainerStatus]) -> bool:
    regular = {container.name for container in pod.spec.containers}
    return any(
        status.name in regular and (status.state.running is not None or status.state.terminated is not None)
        for status in statuses
    )


def _not_ready_message(unknown: Sequence[str], problem: str, names: Sequence[str]) -> str:
    """Return the message with the names of containers that are not ready, as Go prints lists: [a b]."""
    parts = []
    if unknown:
        parts.append(f"containers with unknown status: [{' '.join(unknown)}]")
    if names:
        parts.append(f"containers with {problem} status: [{' '.join(names)}]")
    return ", ".join(parts)


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
