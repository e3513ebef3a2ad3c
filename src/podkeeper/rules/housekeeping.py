"""Housekeeping: decide what to remove, kill and restart.

    list pod cgroups -> sync known pods -> list the runtime -> [ cleanup_plan ] -> the shell executes the plan

The order matters (`engine.housekeeping`, `Housekeeping.clean_up_pods`). In: a `CleanupInput`, taken at one moment. Out:
a `CleanupPlan`. Its parts do not depend on each other. The next round repeats what failed.

`cleanup_plan` must not run before all sources are ready, because the pods of a missing source would look orphaned.
`restart_of` may run earlier: housekeeping uses it to restart static pods while a source is missing. Kubelet
counterpart: `HandlePodCleanups` in pkg/kubelet/kubelet_pods.go.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime import PodRecord, RecordState
from podkeeper.rules.status.phase import is_terminal
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType
from podkeeper.rules.worker.workers import PodWorkerState, PodWorkerSync

ORPHAN_GRACE_SECONDS = 1
"""The grace period of a pod that only the runtime has. Its own grace period is unknown, because there is no spec."""


class WorkerPredicates(Protocol):
    """The predicates of the pod workers that housekeeping needs."""

    def is_pod_known_terminated(self, uid: PodUID) -> bool:
        """Return whether the pod is known and none of its containers runs or will start."""

    def is_pod_termination_requested(self, uid: PodUID) -> bool:
        """Return whether the pod is known and must stop."""

    def is_pod_for_mirror_pod_terminating(self, full_name: str) -> bool:
        """Return whether the static pod of that full name must stop. Its mirror pod stays until the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupInput:
    """The state of the node at the moment of housekeeping."""

    desired: Sequence[tuple[Pod, Pod | None]]  # each desired pod with its mirror pod, if any
    mirrors: Sequence[Pod]
    orphaned_mirrors: Sequence[str]  # full names
    known: Mapping[PodUID, PodWorkerSync]  # the result of `sync_known_pods`
    updated_since: Collection[PodUID] = ()  # pods that the workers received after `sync_known_pods`
    runtime_pods: Sequence[PodRecord] | None = ()  # running pods, listed after `sync_known_pods`; None: unknown
    stopped_pods: Sequence[PodRecord] = ()  # pods with dead sandboxes or containers, listed likewise
    phases: Mapping[PodUID, str]  # as published; a rejected pod is Failed here before it is in the API
    cgroups: Collection[PodUID] = ()  # pods that have one, listed before `sync_known_pods`
    directories: Collection[PodUID] = ()  # pods that have one
    with_volumes: Collection[PodUID] = ()  # pods with a mounted volume
    absent: Collection[PodUID] | None = None  # pods that the API confirmed it does not have; None: no API


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPlan:
    """What housekeeping does. The workers receive the updates in the order of the fields."""

    could_run: frozenset[PodUID]  # pods whose probes continue
    statuses_to_keep: frozenset[PodUID]  # all others are orphaned; a mirror pod has its own UID
    directories_to_remove: frozenset[PodUID]
    volumes_to_unmount: frozenset[PodUID]  # of orphaned pods without a worker
    mirrors_to_delete: tuple[str, ...]  # full names, for any UID
    restarts: tuple[Update, ...]  # desired pods whose finished worker was removed
    terminations: tuple[Update, ...]  # deleted pods that never ran here: only a worker can confirm the deletion
    orphan_kills: tuple[Update, ...]  # running orphaned pods
    dead_pods_to_remove: tuple[PodRecord, ...] = ()  # dead orphaned pods without a worker
    cgroups_to_remove: frozenset[PodUID]
    cgroups_to_throttle: frozenset[PodUID]  # of removed pods with a mounted volume; it accounts for memory
    to_confirm: tuple[PodRecord, ...] = ()  # no source has them; query the API before their resources are removed

    @property
    def has_work(self) -> bool:
        """Return whether the plan starts or removes anything, so that another round is needed."""
        return bool(
            self.directories_to_remove
            or self.volumes_to_unmount
            or self.mirrors_to_delete
            or self.restarts
            or self.terminations
            or self.orphan_kills
            or self.dead_pods_to_remove
            or self.cgroups_to_remove
            or self.to_confirm
        )


def cleanup_plan(given: CleanupInput, workers: WorkerPredicates) -> CleanupPlan:
    """Return the plan of one round.

    Without a runtime listing, it removes and kills nothing.
    """
    # The sync loop continues during the listings, so pods that were updated since then count as known.
    known = {*given.known, *given.updated_since}
    could_run = frozenset(known - {uid for uid, pod in given.known.items() if pod.state is PodWorkerState.TERMINATED})
    desired = {uid_of(pod): (pod, mirror) for pod, mirror in given.desired}
    runtime_unknown = given.runtime_pods is None
    running = {PodUID(record.uid): record for record in given.runtime_pods or ()}

    restarts = {
        uid: update
        for uid, (pod, mirror) in desired.items()
        if uid not in known and (update := restart_of(pod, mirror, given.phases.get(uid), workers)) is not None
    }
    # A pod that this round restarts must not be killed or removed by the same round.
    known |= restarts.keys()
    # Such a pod has no worker that could report it as cleaned up. Without a KILL, its API object would stay forever
    # (k/k 51835).
    terminations = tuple(
        Update(type=UpdateType.KILL, pod=pod)
        for uid, (pod, _) in desired.items()
        if not runtime_unknown and uid not in known and uid not in running and _is_deleted_and_terminal(pod)
    )
    # Seed 100140: a list from a lagging cache lacked running pods. They were killed, and a job ran again.
    to_confirm = _to_confirm(given, known, desired.keys())
    unconfirmed = frozenset(PodUID(record.uid) for record in to_confirm)
    kill = KillOptions(grace_override_seconds=ORPHAN_GRACE_SECONDS)
    orphan_kills = tuple(
        Update(type=UpdateType.KILL, running_pod=record, kill=kill)
        for uid, record in running.items()
        if uid not in known and uid not in unconfirmed
    )
    with_volumes = frozenset(given.with_volumes)
    orphaned = (
        frozenset()
        if runtime_unknown
        else frozenset([*given.directories, *with_volumes]) - desired.keys() - running.keys()
    )
    # A pod that the API may still have keeps its directory and volumes.
    orphaned -= unconfirmed
    # Removing a cgroup kills its processes. Unlike the kubelet, keep the cgroup of a pod that this round restarts, and
    # of an orphaned pod that it kills, so that its grace period applies.
    cgroups = frozenset() if runtime_unknown else frozenset(given.cgroups)
    idle_cgroups = cgroups - could_run - restarts.keys() - running.keys() - unconfirmed
    return CleanupPlan(
        could_run=could_run,
        statuses_to_keep=frozenset([*desired, *map(uid_of, given.mirrors), *unconfirmed]),
        # Never a directory with a mounted volume: removing it would delete the data of the volume (k/k 60987).
        directories_to_remove=orphaned - with_volumes,
        # Not while a worker has the pod, because that worker unmounts the volumes itself.
        volumes_to_unmount=orphaned & with_volumes - known,
        # As in the kubelet, the mirror pod stays until its static pod has stopped.
        mirrors_to_delete=tuple(
            name for name in given.orphaned_mirrors if not workers.is_pod_for_mirror_pod_terminating(name)
        ),
        restarts=tuple(restarts.values()),
        terminations=terminations,
        orphan_kills=orphan_kills,
        dead_pods_to_remove=tuple(
            record
            for record in given.stopped_pods
            if record.uid not in known and record.uid not in desired and record.uid not in unconfirmed
        ),
        # As in the kubelet: the memory of a mounted volume is charged to the cgroup, and would be charged to its parent
        # after the removal. Until the volume is unmounted, the cgroup only gets the lowest CPU share.
        cgroups_to_remove=idle_cgroups - with_volumes,
        cgroups_to_throttle=idle_cgroups & with_volumes,
        to_confirm=to_confirm,
    )


def restart_of(pod: Pod, mirror: Pod | None, published_phase: str | None, workers: WorkerPredicates) -> Update | None:
    """Return the update that starts a desired pod without a worker. None if the pod is terminal."""
    if not is_active(pod, published_phase, workers):
        return None
    return Update(type=UpdateType.CREATE, pod=pod, mirror_pod=mirror)


def _to_confirm(given: CleanupInput, known: Collection[str], desired: Collection[str]) -> tuple[PodRecord, ...]:
    """Return runtime pods that look orphaned, but may only be missing in a stale list.

    Skip pods without a name, because a GET needs one.
    """
    if given.absent is None:
        return ()
    records = (*(given.runtime_pods or ()), *given.stopped_pods)
    named = [record for record in records if record.name and record.namespace]
    return tuple(
        each for each in named if each.uid not in known and each.uid not in desired and each.uid not in given.absent
    )


def is_active(pod: Pod, published_phase: str | None, workers: WorkerPredicates) -> bool:
    """Return whether a desired pod is admitted and not terminal. A pod that still terminates is active."""
    uid = uid_of(pod)
    if workers.is_pod_known_terminated(uid):
        return False
    terminal = is_terminal(pod.status.phase) or is_terminal(published_phase)
    # A terminating pod still uses its resources, whatever its published phase is.
    return not terminal or workers.is_pod_termination_requested(uid)


def is_running(record: PodRecord) -> bool:
    """Return whether a container or a sandbox of a pod runs."""
    for sandbox in record.sandboxes:
        if sandbox.ready:
            return True
    return any(container.state is RecordState.RUNNING for container in record.containers)


def _is_deleted_and_terminal(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None and is_terminal(pod.status.phase)
