"""The conditions of a pod: which are ours, and what we say in them.

A pod, its container statuses and its phase come in; `PodCondition`s without times go out: when a
condition last changed is settled where history is known (`rules.status.publish`). Conditions are owned: we
write only our own, share `DisruptionTarget` with others, and carry everything else along untouched.

Kept from the reference: a pod once initialised stays so; a condition speaks of the generation of
the pod it was computed for. The Go ancestors are pkg/kubelet/status/generate.go and
pkg/kubelet/types/pod_status.go.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from podkeeper.model.k8s.core import Container, ContainerStatus, Pod, PodCondition, PodStatus
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.phase import Phase
from podkeeper.rules.plan.sandbox import sandbox_change
from podkeeper.rules.restart import (
    ALL_CONTAINERS_RESTARTING,
    all_containers_are_removed,
    all_containers_should_restart,
    is_sidecar,
)

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
    """Whether the node agent alone writes a condition."""
    return condition.type in _OURS


def is_shared(condition: PodCondition) -> bool:
    """Whether the node agent and others both write a condition."""
    return condition.type == DISRUPTION_TARGET


def find_condition(conditions: Iterable[PodCondition] | None, wanted: str) -> PodCondition | None:
    """The first condition of a type."""
    return next((condition for condition in conditions or () if condition.type == wanted), None)


def with_condition(conditions: Sequence[PodCondition] | None, new: PodCondition) -> tuple[PodCondition, ...]:
    """The list with a condition in the place of the first of its type, or at the end."""
    held = tuple(conditions or ())
    place = next((index for index, condition in enumerate(held) if condition.type == new.type), len(held))
    return (*held[:place], new, *held[place + 1 :])


def updated_condition(
    conditions: Sequence[PodCondition] | None, new: PodCondition, now: str
) -> tuple[PodCondition, ...]:
    """The list with a condition set, its time moved to `now` only if its status is another than before."""
    old = find_condition(conditions, new.type)
    since = old.last_transition_time if old is not None and old.status == new.status else now
    return with_condition(conditions, replace(new, last_transition_time=since))


def containers_ready_condition(pod: Pod, statuses: Sequence[ContainerStatus] | None, phase: str | None) -> PodCondition:
    """Whether every regular container and every sidecar is ready; None: no status is known at all."""
    if statuses is None:
        return _condition(pod, CONTAINERS_READY, FALSE, UNKNOWN_CONTAINER_STATUSES)
    wanted = [*(each for each in pod.spec.init_containers or () if is_sidecar(each)), *pod.spec.containers]
    by_name = _by_name(statuses)
    unknown = [container.name for container in wanted if container.name not in by_name]
    unready = [each.name for each in wanted if each.name in by_name and not by_name[each.name].ready]
    # In a failed pod containers may still be on their way down, and must take no traffic there.
    if phase == Phase.FAILED or (phase == Phase.SUCCEEDED and not unknown):
        return unready_at_the_end(pod, CONTAINERS_READY, phase)
    complaint = _complaint(unknown, "unready", unready)
    if complaint:
        return _condition(pod, CONTAINERS_READY, FALSE, CONTAINERS_NOT_READY, complaint)
    return _condition(pod, CONTAINERS_READY, TRUE)


def ready_condition(
    pod: Pod,
    conditions: Sequence[PodCondition] | None,
    statuses: Sequence[ContainerStatus] | None,
    phase: str | None,
) -> PodCondition:
    """Whether a pod may take traffic: its containers are ready, and so say all its readiness gates."""
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
    """Whether every init container did its work, now or at any time before."""
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
    complaint = _complaint(unknown, "incomplete", incomplete)
    # Both say that the pod was initialised before: sidecars that start again, or all containers that
    # start over, do not take that back.
    before = find_condition((each for each in old_conditions or () if each.status == TRUE), INITIALIZED)
    if not complaint or before is not None or _any_regular_started(pod, statuses or ()):
        return _condition(pod, INITIALIZED, TRUE)
    return _condition(pod, INITIALIZED, FALSE, CONTAINERS_NOT_INITIALIZED, complaint)


def ready_to_start_containers_condition(pod: Pod, record: PodRecord) -> PodCondition:
    """Whether the pod has its sandbox, with a network."""
    sandbox = sandbox_change(bool(pod.spec.host_network), record.sandboxes)
    return _condition(pod, READY_TO_START_CONTAINERS, FALSE if sandbox.changed else TRUE)


def pod_scheduled_condition(pod: Pod) -> PodCondition:
    """A pod that is here has been scheduled."""
    return _condition(pod, POD_SCHEDULED, TRUE)


def all_containers_restarting_condition(pod: Pod, record: PodRecord, old: PodStatus, phase: str | None) -> PodCondition:
    """Whether all containers are being removed in order to start over. It names no generation."""
    condition = PodCondition(type=ALL_CONTAINERS_RESTARTING, status=FALSE)
    if phase in (Phase.SUCCEEDED, Phase.FAILED):
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
    """The node agent itself ends this pod, for a reason that is not the pod's own."""
    return _condition(pod, DISRUPTION_TARGET, TRUE, TERMINATION_BY_KUBELET, message)


def unready_at_the_end(pod: Pod, condition_type: str, phase: str | None) -> PodCondition:
    """The Ready or ContainersReady condition of a pod in a terminal phase."""
    reasons = {Phase.FAILED.value: POD_FAILED, Phase.SUCCEEDED.value: POD_COMPLETED}
    return _condition(pod, condition_type, FALSE, reasons.get(phase or ""))


def changed_readiness_later(one: PodStatus, other: PodStatus) -> bool:
    """Whether the first of two statuses of a pod changed its mind about readiness after the second.

    Where both changed in one second (times have no parts of it), it is the one that says yes: what starts is unready
    first, and no probe fails as often as it takes within a second.
    """
    changed = [find_condition(each.conditions, READY) for each in (one, other)]
    # Times of one form: as text they compare as times.
    first, second = (
        ("", False) if each is None else (each.last_transition_time or "", each.status == TRUE) for each in changed
    )
    return first > second


def readiness_is_stale(pod: Pod) -> bool:
    """Whether the Ready condition in the API no longer follows from the rest of the pod, gates included."""
    if not pod.spec.readiness_gates:
        return False
    status = pod.status
    held = find_condition(status.conditions, READY)
    right = ready_condition(pod, status.conditions, status.container_statuses, status.phase)
    return held is not None and (held.status, held.message or "") != (right.status, right.message or "")


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
    """The first status of each name."""
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


def _complaint(unknown: Sequence[str], lacking: str, names: Sequence[str]) -> str:
    """Which containers stand in the way, as Go prints lists: [a b]."""
    parts = []
    if unknown:
        parts.append(f"containers with unknown status: [{' '.join(unknown)}]")
    if names:
        parts.append(f"containers with {lacking} status: [{' '.join(names)}]")
    return ", ".join(parts)


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
