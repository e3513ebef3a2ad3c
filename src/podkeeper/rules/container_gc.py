"""Container garbage collection: which dead containers and sandboxes to remove.

In: the record of a pod. Out: IDs. The newest exited container of each name is kept, because users see its exit code,
logs and times, and restarts depend on them. Older exits are removed. Containers that never started or are in state
UNKNOWN are removed once there is a newer one. When a pod is deleted, everything is removed. Running containers are
never removed. The newest container of a name and its highest attempt are kept, because either may be about to start.
Kubelet counterpart: pkg/kubelet/pod_container_deletor.go and pkg/kubelet/kuberuntime/kuberuntime_gc.go.
"""

from dataclasses import dataclass

from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState

# The kubelet's MaxPerPodContainerCount.
KEPT_EXITS = 1
"""Exited containers to keep per container name."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """IDs to remove, containers before sandboxes."""

    container_ids: tuple[str, ...] = ()
    sandbox_ids: tuple[str, ...] = ()


def garbage_of(record: PodRecord, *, like: str = "", kept_exits: int = KEPT_EXITS) -> Garbage:
    """Return the garbage of a pod that still exists. `like`: only containers with the name of this container ID."""
    names = {found.name for found in record.containers if like in ("", found.id)}
    dead = [found for found in record.containers if found.name in names and _is_old(record, found, kept_exits)]
    left = [found for found in record.containers if found not in dead]
    in_use = {found.sandbox_id or _newest_sandbox(record) for found in left}
    # As in the kubelet, the newest sandbox stays, even if it is not ready: the plan derives the next attempt from it.
    idle = (sandbox.id for sandbox in record.sandboxes[1:] if not sandbox.ready and sandbox.id not in in_use)
    return Garbage(tuple(found.id for found in dead), tuple(idle))


def all_garbage_of(record: PodRecord) -> Garbage:
    """Return the garbage of a deleted pod: all but running containers, the oldest first.

    With this order, an inspection during the removal never shows an older exit as the last one.
    """
    running = [found for found in record.containers if found.state is RecordState.RUNNING]
    in_use = {found.sandbox_id or _newest_sandbox(record) for found in running}
    return Garbage(
        # Seed 110: with the newest first, an inspection during the removal showed an older exit as the last one.
        tuple(found.id for found in reversed(record.containers) if found not in running),
        tuple(sandbox.id for sandbox in record.sandboxes if not sandbox.ready and sandbox.id not in in_use),
    )


def old_init_containers(pod: Pod, record: PodRecord) -> tuple[str, ...]:
    """Return all but the latest exited container of each init container. They are removed before the next start."""
    seen: set[str] = set()
    old: list[str] = []
    for found in _init_records(pod, record):
        # A created or running init container is the current attempt.
        if found.state not in (RecordState.EXITED, RecordState.UNKNOWN):
            continue
        if found.name in seen:
            old.append(found.id)
        seen.add(found.name)
    return tuple(old)


def all_init_containers(pod: Pod, record: PodRecord) -> tuple[str, ...]:
    """Return all init containers, because initialization restarts with a new sandbox."""
    return tuple(found.id for found in _init_records(pod, record))


def _init_records(pod: Pod, record: PodRecord) -> tuple[ContainerRecord, ...]:
    names = {container.name for container in pod.spec.init_containers or ()}
    return tuple(found for found in record.containers if found.name in names) if names else ()


def _is_old(record: PodRecord, found: ContainerRecord, kept_exits: int) -> bool:
    if found.state is RecordState.EXITED:
        exits = [each for each in record.containers if each.name == found.name and each.state is RecordState.EXITED]
        return found not in exits[:kept_exits]
    # Seed 100043: after the clock was set back, the container that was about to start looked older than the dead ones.
    if found.state is RecordState.CREATED and _may_start_next(record, found):
        return False
    # A container in state UNKNOWN may still run. Its removal kills it, because a newer one has replaced it.
    return found.state is not RecordState.RUNNING and found is not record.container(found.name)


def _may_start_next(record: PodRecord, found: ContainerRecord) -> bool:
    """Return whether a created container is the highest attempt and none of its name runs.

    It may be about to start. If the clock was set back, it looks older than the others.
    """
    others = [each for each in record.containers if each.name == found.name and each is not found]
    return all(each.restart_count < found.restart_count and each.state is not RecordState.RUNNING for each in others)


def _newest_sandbox(record: PodRecord) -> str:
    return record.sandboxes[0].id if record.sandboxes else ""
