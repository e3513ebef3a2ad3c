"""Compute container statuses from the runtime records and the old statuses.

In: a container of the spec, its records (newest first) and its old status. Out: its new status without the `started`
and `ready` flags, which `rules.probe.flags` sets:

    never created               -> waiting, with the last state of the old status
    created, running, exited    -> that state; the previous record that ever ran is its last state
    ran, and has disappeared    -> terminated with 137 (ContainerStatusUnknown), because its exit code is lost
    should start, but cannot    -> waiting, with the reason of the failed start

Restart counts never decrease. Kubelet counterpart: `convertToAPIContainerStatuses` in pkg/kubelet/kubelet_pods.go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from podkeeper.model.k8s.core import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    ContainerUser,
    EphemeralContainer,
    LinuxContainerUser,
    Pod,
    VolumeMount,
    VolumeMountStatus,
)
from podkeeper.model.runtime import ContainerRecord, LinuxUser, PodRecord, RecordState, api_container_id
from podkeeper.model.times import format_time
from podkeeper.rules.container.restart import container_should_restart, is_sidecar
from podkeeper.rules.status.phase import RESTARTING_ALL_CONTAINERS
from podkeeper.rules.status.resources import container_resources
from podkeeper.rules.status.revise import CONTAINER_STATUS_UNKNOWN, NOT_LOCATED, UNSEEN_EXIT_CODE

POD_INITIALIZING = "PodInitializing"
CONTAINER_CREATING = "ContainerCreating"


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why the last attempt to start a container failed. It is shown until an attempt succeeds."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerView:
    """The input for the container statuses of one pod."""

    pod: Pod
    record: PodRecord
    runtime_name: str
    start_failures: Mapping[str, StartFailure] = field(default_factory=dict)  # by container name
    restarting_all: bool = False  # all containers are being removed for a restart of the pod
    recursive_read_only: bool = False  # the runtime supports it
    keeps_init_exits: bool = False  # keep known exits of init containers; not in the kubelet
    pod_is_terminal: bool = False  # no container will start again


def regular_statuses(view: ContainerView, old: Sequence[ContainerStatus] | None) -> tuple[ContainerStatus, ...]:
    """Return the statuses of the regular containers, sorted by name."""
    return _by_name(view, view.pod.spec.containers, old)


def ephemeral_statuses(view: ContainerView, old: Sequence[ContainerStatus] | None) -> tuple[ContainerStatus, ...]:
    """Return the statuses of the ephemeral containers, sorted by name."""
    ephemeral = view.pod.spec.ephemeral_containers or ()
    return _by_name(view, [_as_container(container) for container in ephemeral], old)


def init_statuses(view: ContainerView, old: Sequence[ContainerStatus] | None) -> tuple[ContainerStatus, ...]:
    """Return the statuses of the init containers, in the order of the spec."""
    before = {status.name: status for status in old or ()}
    newest_regular = [view.record.container(container.name) for container in view.pod.spec.containers]
    past_init = any(record is not None and record.state is not RecordState.UNKNOWN for record in newest_regular)
    return tuple(
        _init_status(view, container, before.get(container.name), past_init)
        for container in view.pod.spec.init_containers or ()
    )


def _by_name(
    view: ContainerView, containers: Sequence[Container], old: Sequence[ContainerStatus] | None
) -> tuple[ContainerStatus, ...]:
    before = {status.name: status for status in old or ()}
    statuses = (
        _or_start_failure(view, container, _known_status(view, container, before.get(container.name)))
        for container in containers
    )
    # As in the kubelet, because clients expect the same order in every status.
    return tuple(sorted(statuses, key=lambda status: status.name))


def _init_status(
    view: ContainerView, container: Container, old: ContainerStatus | None, past_init: bool
) -> ContainerStatus:
    status = _known_status(view, container, old)
    newest = view.record.container(container.name)
    # A completed init container never shows a start failure of an earlier attempt.
    if newest is not None and newest.state is RecordState.EXITED and newest.exit_code == 0:
        return status
    if newest is None and status.state.waiting is not None:
        # Seed 364: the kubelet replaces the known exit by an assumed one here, and the true exit code is lost.
        if view.keeps_init_exits and (end := status.last_state.terminated) is not None and end.container_id:
            if view.pod_is_terminal:
                return _with_final_exit(status, end)
        elif past_init and not is_sidecar(container):
            # Finished init containers may have been removed. A regular container shows that they succeeded.
            return replace(status, state=_ASSUMED_COMPLETED)
    return _or_start_failure(view, container, status)


def _with_final_exit(status: ContainerStatus, end: ContainerStateTerminated) -> ContainerStatus:
    """Return the status of a container that will not restart after all. Its last exit is final."""
    terminated = ContainerState(terminated=end)
    return replace(status, container_id=end.container_id, state=terminated, last_state=ContainerState())


def _known_status(view: ContainerView, container: Container, old: ContainerStatus | None) -> ContainerStatus:
    """Return the status from the runtime, otherwise from the old status."""
    records = [record for record in view.record.containers if record.name == container.name]
    if not records:
        return _from_old_status(view, container, old)
    status = _from_record(view, container, records[0], old)
    # A container that was created and never started (the agent died in between) must not hide an exit code.
    before = next((record for record in records[1:] if record.state is not RecordState.CREATED), None)
    if before is not None:
        return replace(status, last_state=_from_record(view, container, before, old).state)
    return status


def _or_start_failure(view: ContainerView, container: Container, status: ContainerStatus) -> ContainerStatus:
    """Return the status, or a waiting state if the container should run but could not start."""
    failure = view.start_failures.get(container.name)
    # A failure of a container that will not start again would hide its exit code.
    if failure is None or not container_should_restart(container, view.pod, view.record.container(container.name)):
        return status
    waiting = ContainerStateWaiting(reason=failure.reason or None, message=failure.message or None)
    return replace(
        status,
        state=ContainerState(waiting=waiting),
        # The exit moves to lastState, so that `CrashLoopBackOff` does not hide it.
        last_state=status.last_state if status.state.terminated is None else status.state,
    )


def _from_old_status(view: ContainerView, container: Container, old: ContainerStatus | None) -> ContainerStatus:
    """Return the status of a container that the runtime does not have."""
    reason = POD_INITIALIZING if view.pod.spec.init_containers else CONTAINER_CREATING
    status = ContainerStatus(
        name=container.name,
        image=container.image or "",
        state=ContainerState(waiting=ContainerStateWaiting(reason=reason)),
        volume_mounts=tuple(_mount_status(view, mount) for mount in container.volume_mounts or ()) or None,
    )
    if old is None:
        return status
    if view.restarting_all and old.state.waiting is None:
        kept = old if old.state.terminated is not None else status
        return replace(
            kept,
            state=_REMOVED_FOR_RESTART,
            last_state=replace(old.last_state, terminated=_EXITED_FOR_RESTART),
            restart_count=old.restart_count + 1,
        )
    if old.state.terminated is not None:
        return old
    status = replace(status, restart_count=old.restart_count, last_state=old.last_state)
    if old.state.running is None or old.last_state.terminated is not None:
        return status
    # It ran, and its exit was not observed. Without an exit it would count as never started, and a pod with
    # `restartPolicy: Never` would run twice.
    # As in the kubelet: the container of a deleted pod does not restart.
    restarts = 0 if view.pod.metadata.deletion_timestamp is not None else 1
    return replace(
        status,
        restart_count=old.restart_count + restarts,
        last_state=replace(old.last_state, terminated=_UNOBSERVED_EXIT),
    )


def _from_record(
    view: ContainerView, container: Container, record: ContainerRecord, old: ContainerStatus | None
) -> ContainerStatus:
    """Return the status of a container from one runtime record."""
    container_id = api_container_id(view.runtime_name, record.id)
    running = record.state is RecordState.RUNNING
    return ContainerStatus(
        name=record.name,
        image=record.image,
        image_id=record.image_ref or record.image_id,
        container_id=container_id,
        restart_count=_restart_count(record, old),
        state=_state(view, record, container_id, old),
        last_state=ContainerState(terminated=None if old is None else _last_exit(container_id, old)),
        # Keep the published flag of this container until the probes have a result, also after a restart of the agent.
        # The kubelet compares names, so the next container briefly counts as started.
        started=old.started if running and old is not None and old.container_id == container_id else None,
        volume_mounts=None if old is None else old.volume_mounts,
        resources=container_resources(container, record, container_id, old),
        allocated_resources=container.resources.requests or None,
        user=_user(record.user),
    )


def _restart_count(record: ContainerRecord, old: ContainerStatus | None) -> int:
    """Return the higher of the runtime's count and the published count.

    The runtime's count starts from 0 again after it loses its containers.
    """
    if old is None:
        return record.restart_count
    match record.state:
        case RecordState.RUNNING if old.state.terminated is not None and old.restart_count >= record.restart_count:
            return old.restart_count + 1
        case RecordState.UNKNOWN if old.state.running is not None:
            return old.restart_count + 1
        case _:
            return max(old.restart_count, record.restart_count)


def _last_exit(container_id: str, old: ContainerStatus) -> ContainerStateTerminated | None:
    """Return the previous exit, if the runtime has removed its container."""
    if old.container_id != container_id and old.state.terminated is not None:
        return old.state.terminated
    return old.last_state.terminated


def _state(
    view: ContainerView, record: ContainerRecord, container_id: str, old: ContainerStatus | None
) -> ContainerState:
    started_at = None if record.started_at is None else format_time(record.started_at)
    match record.state:
        case RecordState.RUNNING:
            return ContainerState(running=ContainerStateRunning(started_at=started_at))
        case RecordState.EXITED:
            return ContainerState(
                terminated=ContainerStateTerminated(
                    exit_code=record.exit_code,
                    reason=record.reason or None,
                    message=record.message or None,
                    started_at=started_at,
                    finished_at=None if record.finished_at is None else format_time(record.finished_at),
                    container_id=container_id,
                )
            )
        case RecordState.UNKNOWN if old is not None and old.state.running is not None:
            return _NOT_LOCATED_FOR_RESTART if view.restarting_all else NOT_LOCATED
        case RecordState.UNKNOWN | RecordState.CREATED:
            return ContainerState(waiting=ContainerStateWaiting())


def _user(user: LinuxUser | None) -> ContainerUser | None:
    if user is None:
        return None
    groups = user.supplemental_groups or None
    return ContainerUser(linux=LinuxContainerUser(uid=user.uid, gid=user.gid, supplemental_groups=groups))


def _mount_status(view: ContainerView, mount: VolumeMount) -> VolumeMountStatus:
    mode = None
    if mount.read_only:
        mode = "Enabled" if view.recursive_read_only and _wants_recursive_read_only(mount) else "Disabled"
    return VolumeMountStatus(
        name=mount.name, mount_path=mount.mount_path, read_only=mount.read_only or None, recursive_read_only=mode
    )


def _wants_recursive_read_only(mount: VolumeMount) -> bool:
    """Return whether a mount requests recursive read-only. With mount propagation, it is not possible."""
    return mount.recursive_read_only in ("Enabled", "IfPossible") and mount.mount_propagation in (None, "None")


def _as_container(ephemeral: EphemeralContainer) -> Container:
    """Return an ephemeral container as a container, without its target."""
    return Container(**{name: getattr(ephemeral, name) for name in Container.__struct_fields__})


_ASSUMED_COMPLETED = ContainerState(
    terminated=ContainerStateTerminated(
        reason="Completed",
        message="Unable to get init container status from container runtime and pod has been initialized, "
        "treat it as exited normally",
        exit_code=0,
    )
)
"""A removed init container counts as completed if regular containers exist."""

_UNOBSERVED_EXIT = ContainerStateTerminated(
    reason=CONTAINER_STATUS_UNKNOWN,
    message="The container could not be located when the pod was deleted.  The container used to be Running",
    exit_code=UNSEEN_EXIT_CODE,
)

_NOT_LOCATED_FOR_RESTART = ContainerState(
    terminated=ContainerStateTerminated(
        reason=RESTARTING_ALL_CONTAINERS,
        message="The container could not be located when the pod was terminated",
        exit_code=UNSEEN_EXIT_CODE,
    )
)

_REMOVED_MESSAGE = "The container is removed because RestartAllContainers in place"

_REMOVED_FOR_RESTART = ContainerState(
    waiting=ContainerStateWaiting(reason=RESTARTING_ALL_CONTAINERS, message=_REMOVED_MESSAGE)
)

_EXITED_FOR_RESTART = ContainerStateTerminated(
    reason=RESTARTING_ALL_CONTAINERS, message=_REMOVED_MESSAGE, exit_code=UNSEEN_EXIT_CODE
)
