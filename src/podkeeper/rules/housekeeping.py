"""Housekeeping: what must go, and what must be started again, decided at one moment.

    pod cgroups listed -> workers swept -> runtime listed -> [ plan_of ] -> the shell carries the plan out

The order of looking matters: what was listed *before* the workers were swept cannot contain a pod they do not know of
yet, and what was listed *after* shows what still runs. The loop goes on meanwhile, so whoever was told to the workers
since the sweep counts as known. In: a `Sight`, all of it as it is at this moment. Out: a `Plan`; nothing in it depends
on the success of another part, and what fails is found again by the next housekeeping.

`plan_of` must not run before all sources are ready: the pods of a missing source would look orphaned. `restart_of` may
run earlier: housekeeping uses it to restart static pods while a source is missing. The kubelet counterpart is
`HandlePodCleanups` in pkg/kubelet/kubelet_pods.go.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerState, PodRecord
from podkeeper.rules.phase import is_terminal
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType
from podkeeper.rules.worker.workers import KnownPod, Stage

ORPHAN_GRACE_SECONDS = 1
"""For a pod only the runtime knows: nobody is left who could say how long it may take."""


class Answers(Protocol):
    """What housekeeping asks of the workers."""

    def is_pod_known_terminated(self, uid: PodUID) -> bool:
        """No container of this known pod runs, nor ever will."""

    def is_pod_termination_requested(self, uid: PodUID) -> bool:
        """This known pod is to end."""

    def is_pod_for_mirror_pod_terminating(self, full_name: str) -> bool:
        """The static pod of that name is ending: its mirror must show that to the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What housekeeping sees at its one moment."""

    desired: Sequence[tuple[Pod, Pod | None]]  # each desired pod with its mirror, if it has one
    mirrors: Sequence[Pod]
    orphaned_mirrors: Sequence[str]  # full names
    known: Mapping[PodUID, KnownPod]  # what the sweep of the workers left
    told_since: Collection[PodUID] = ()  # whom the workers were told of after the sweep
    runtime_pods: Sequence[PodRecord] | None = ()  # those that run, listed after the sweep; None: nobody can tell
    stopped_pods: Sequence[PodRecord] = ()  # of which the runtime has something that does not run, listed likewise
    phases: Mapping[PodUID, str]  # as we published them; rejected pods are Failed here before the API knows
    cgroups: Collection[PodUID] = ()  # pods that have one, listed before the sweep
    directories: Collection[PodUID] = ()  # pods that have one
    with_volumes: Collection[PodUID] = ()  # pods of which a volume is still mounted
    absent: Collection[PodUID] | None = None  # pods that the API was asked about and does not have; None: no API


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What housekeeping does. The updates go to the workers in the order of their fields."""

    could_run: frozenset[PodUID]  # the probes of all other pods stop
    statuses_to_keep: frozenset[PodUID]  # all others are orphaned; mirrors have theirs under their own UID
    directories_to_remove: frozenset[PodUID]
    volumes_to_unmount: frozenset[PodUID]  # of pods that nobody wants and no worker takes care of any more
    mirrors_to_delete: tuple[str, ...]  # full names; whatever UID the mirror has
    restarts: tuple[Update, ...]  # desired, but forgotten when their predecessor of the same UID ended
    endings: tuple[Update, ...]  # deleted pods that never ran here: only an ending worker lets the API forget them
    orphan_kills: tuple[Update, ...]  # running, and wanted by nobody
    remains_to_remove: tuple[PodRecord, ...] = ()  # dead, wanted by nobody, and in no worker's care
    cgroups_to_remove: frozenset[PodUID]
    cgroups_to_throttle: frozenset[PodUID]  # of pods that are gone but for a mounted volume, whose memory they bear
    to_confirm: tuple[PodRecord, ...] = ()  # no source names them; ask the API before anything of them is removed

    @property
    def has_work(self) -> bool:
        """Whether anything is to be begun or removed; what is only kept needs no further round."""
        return bool(
            self.directories_to_remove
            or self.volumes_to_unmount
            or self.mirrors_to_delete
            or self.restarts
            or self.endings
            or self.orphan_kills
            or self.remains_to_remove
            or self.cgroups_to_remove
            or self.to_confirm
        )


def plan_of(sight: Sight, workers: Answers) -> Plan:
    """Decide everything housekeeping has to do.

    While nobody can tell what runs, nothing is taken from anybody, and nobody is killed or declared over.
    """
    known = {*sight.known, *sight.told_since}
    could_run = frozenset(known - {uid for uid, pod in sight.known.items() if pod.stage is Stage.TERMINATED})
    desired = {_uid(pod): (pod, mirror) for pod, mirror in sight.desired}
    blind = sight.runtime_pods is None
    running = {PodUID(record.uid): record for record in sight.runtime_pods or ()}

    restarts = {
        uid: update
        for uid, (pod, mirror) in desired.items()
        if uid not in known and (update := restart_of(pod, mirror, sight.phases.get(uid), workers)) is not None
    }
    known |= restarts.keys()
    endings = tuple(
        Update(type=UpdateType.KILL, pod=pod)
        for uid, (pod, _) in desired.items()
        if not blind and uid not in known and uid not in running and _is_deleted_and_over(pod)
    )
    to_confirm = _to_confirm(sight, known, desired.keys())
    doubtful = frozenset(PodUID(record.uid) for record in to_confirm)
    kill = KillOptions(grace_override_seconds=ORPHAN_GRACE_SECONDS)
    orphan_kills = tuple(
        Update(type=UpdateType.KILL, running_pod=record, kill=kill)
        for uid, record in running.items()
        if uid not in known and uid not in doubtful
    )
    with_volumes = frozenset(sight.with_volumes)
    orphaned = (
        frozenset() if blind else frozenset([*sight.directories, *with_volumes]) - desired.keys() - running.keys()
    )
    orphaned -= doubtful
    # Removing a cgroup kills what is in it. The reference spares neither a pod it has just begun to restart nor an
    # orphan it has just begun to kill; with us the one keeps its cgroup and the other its grace.
    cgroups = frozenset() if blind else frozenset(sight.cgroups)
    idle_cgroups = cgroups - could_run - restarts.keys() - running.keys() - doubtful
    return Plan(
        could_run=could_run,
        statuses_to_keep=frozenset([*desired, *map(_uid, sight.mirrors), *doubtful]),
        directories_to_remove=orphaned - with_volumes,
        volumes_to_unmount=orphaned & with_volumes - known,
        mirrors_to_delete=tuple(
            name for name in sight.orphaned_mirrors if not workers.is_pod_for_mirror_pod_terminating(name)
        ),
        restarts=tuple(restarts.values()),
        endings=endings,
        orphan_kills=orphan_kills,
        remains_to_remove=tuple(
            record
            for record in sight.stopped_pods
            if record.uid not in known and record.uid not in desired and record.uid not in doubtful
        ),
        cgroups_to_remove=idle_cgroups - with_volumes,
        cgroups_to_throttle=idle_cgroups & with_volumes,
        to_confirm=to_confirm,
    )


def restart_of(pod: Pod, mirror: Pod | None, published_phase: str | None, workers: Answers) -> Update | None:
    """The update that starts a desired pod which the workers do not know; None if the pod is over."""
    if not is_active(pod, published_phase, workers):
        return None
    return Update(type=UpdateType.CREATE, pod=pod, mirror_pod=mirror)


def _to_confirm(sight: Sight, known: Collection[str], desired: Collection[str]) -> tuple[PodRecord, ...]:
    """Runtime pods that look orphaned, but may only be missing in a list that was old.

    A pod without a name cannot be asked about.
    """
    if sight.absent is None:
        return ()
    records = (*(sight.runtime_pods or ()), *sight.stopped_pods)
    named = [record for record in records if record.name and record.namespace]
    return tuple(
        each for each in named if each.uid not in known and each.uid not in desired and each.uid not in sight.absent
    )


def is_active(pod: Pod, published_phase: str | None, workers: Answers) -> bool:
    """Whether a desired pod takes part in the node's life: admitted, not over. One that still ends does."""
    uid = _uid(pod)
    if workers.is_pod_known_terminated(uid):
        return False
    over = is_terminal(pod.status.phase) or is_terminal(published_phase)
    return not over or workers.is_pod_termination_requested(uid)


def is_running(record: PodRecord) -> bool:
    """Whether anything of a pod runs, be it only its sandbox."""
    for sandbox in record.sandboxes:
        if sandbox.ready:
            return True
    return any(container.state is ContainerState.RUNNING for container in record.containers)


def _is_deleted_and_over(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None and is_terminal(pod.status.phase)


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")
