"""Rules of the status manager: which statuses to accept and to send.

Inputs: a computed status, the cached status, the sent version, the pod of the source and of the API, the time. The
outputs are values. `engine/status.py` stores them and calls the API.

    a status     -> `accept`: Stored (version + 1) | Unchanged | IllegalTransition
    a batch      -> `send_reason`: why a cached status must be sent now, or None
    before call  -> `merged_status`: what the API must show, `status_patch`: the patch for it
    after call   -> `can_be_deleted`: whether the API object can be deleted
    order        -> `is_urgent`: whether other components wait for this status

Guarantees:

* A terminated container never becomes non-terminated, unless its restart policy allows it.
* `lastTransitionTime` changes only with the status of its condition. The start time never changes.
* The observed generation never decreases.
* Fields and conditions of other writers are kept.
* A new terminal phase is not sent while containers can still run.

Kubelet counterpart: pkg/kubelet/status/status_manager.go.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from podkeeper.model.k8s.core import Container, ContainerStatus, Pod, PodSpec, PodStatus
from podkeeper.model.times import format_time
from podkeeper.rules.container.restart import (
    ALL_CONTAINERS_RESTARTING,
    RestartPolicy,
    could_restart_all,
    is_sidecar,
    restarts_after_exit,
)
from podkeeper.rules.patch.strategic import two_way_diff
from podkeeper.rules.patch.value import JsonObject
from podkeeper.rules.resource_version import is_older
from podkeeper.rules.static.mirror import is_mirror_pod, is_static_pod
from podkeeper.rules.status.conditions import (
    CONTAINERS_READY,
    DISRUPTION_TARGET,
    INITIALIZED,
    POD_SCHEDULED,
    READY,
    READY_TO_START_CONTAINERS,
    TRUE,
    find_condition,
    is_ours,
    is_shared,
    unready_terminal_condition,
    updated_condition,
    with_condition,
)
from podkeeper.rules.status.normalise import equal_by_kubelet, normalised
from podkeeper.rules.status.phase import is_terminal
from podkeeper.rules.status.revise import has_run

_TIMED_CONDITIONS = (
    CONTAINERS_READY,
    READY,
    INITIALIZED,
    READY_TO_START_CONTAINERS,
    POD_SCHEDULED,
    DISRUPTION_TARGET,
    ALL_CONTAINERS_RESTARTING,
)
"""Conditions whose transition time is set here. The conditions of a resize have their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSnapshot:
    """The last known state of an API object.

    A checkpoint contains it, so that a restarted agent can decide whether the checkpoint or the API is newer.
    """

    uid: str  # of the API object
    resource_version: str
    digest: str  # `status_digest` of its status
    unanswered: tuple[str, ...] = ()  # digests of statuses that may have been sent since


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedStatus:
    """The last accepted status of a pod. Its JSON form is a checkpoint in the journal."""

    version: int  # starts at 1, one more for each accepted status
    name: str
    namespace: str
    status: PodStatus
    finished: bool  # the pod was cleaned up before this status was stored
    changed_at: datetime | None  # time of the oldest unsent change; None: the API has all
    shown: ApiSnapshot | None = None  # only in a checkpoint, and in a status restored from one


@dataclass(frozen=True, slots=True)
class Stored:
    """The status is a new version: store and send it."""

    cached: CachedStatus


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The status has no change: store and send nothing."""


@dataclass(frozen=True, slots=True)
class IllegalTransition:
    """The status revives a terminated container: log `reason` and drop it."""

    reason: str


Acceptance = Stored | Unchanged | IllegalTransition


class StoreMode(StrEnum):
    """When a legal status is stored."""

    IF_CHANGED = "if it has changed"
    ALWAYS = "always"  # for a deleted pod, because the API object is deleted only after a status is sent
    AS_LAST = "always, and the pod is cleaned up"


class SendReason(StrEnum):
    """Why a cached status is sent."""

    NEW_VERSION = "this version was not sent yet"
    DELETABLE = "the API object can be deleted"
    OVERWRITTEN = "another client overwrote it"  # the caller drops the sent version, so that the status is sent again


@dataclass(frozen=True, slots=True)
class MergedStatus:
    """`to_send` is sent to the API. `cached` replaces the cached status, with the same version."""

    to_send: PodStatus
    cached: PodStatus


def accept_status(
    pod: Pod, status: PodStatus, cached: CachedStatus | None, mirror: Pod | None, now: datetime
) -> Acceptance:
    """Decide about a computed status. A pod that is being deleted always gets a new version."""
    # The status was computed from this version of the spec.
    seen = replace(status, observed_generation=pod.metadata.generation or None)
    store = StoreMode.IF_CHANGED if pod.metadata.deletion_timestamp is None else StoreMode.ALWAYS
    return accept(pod, seen, cached, mirror, now, store)


def accept(
    pod: Pod,
    status: PodStatus,
    cached: CachedStatus | None,
    mirror: Pod | None,
    now: datetime,
    store: StoreMode = StoreMode.IF_CHANGED,
) -> Acceptance:
    """Decide about a status. The old status is the cached one, or else the one in the API (in the mirror pod)."""
    if cached is not None:
        old = cached.status
        # Only a static pod can run again with the same UID.
        finished = store is StoreMode.AS_LAST or (cached.finished and not is_static_pod(pod))
    else:
        old = (pod if mirror is None else mirror).status
        finished = store is StoreMode.AS_LAST
    problem = illegal_transition(pod.spec, old, status)
    if problem is not None:
        return IllegalTransition(problem)
    # The times first: without them, each new status would differ from the cached one.
    new = normalised(pod.spec, _with_history(status, old, format_time(now)))
    if cached is not None and store is StoreMode.IF_CHANGED and equal_by_kubelet(cached.status, new):
        return Unchanged()
    return Stored(
        CachedStatus(
            version=1 if cached is None else cached.version + 1,
            name=pod.metadata.name or "",
            namespace=pod.metadata.namespace or "",
            status=new,
            finished=finished,
            changed_at=now if cached is None else cached.changed_at or now,
        )
    )


def aligned_with(in_api: Pod, status: PodStatus, first: bool) -> PodStatus:
    """Add to a status what a restarted agent may have lost: times, restart counts, ephemeral containers.

    `first`: no status of this pod was aligned since the agent started or forgot the pod.
    """
    # Seed 450: after a full disk and an old list, the agent removed a running ephemeral container from the status.
    status = _with_ephemeral_containers_of(in_api, status)
    # Only for the first status. Later, a count that another client overwrites is corrected instead of accepted.
    return _with_restart_counts_of(in_api.status, _with_times_of(in_api.status, status)) if first else status


def _with_ephemeral_containers_of(in_api: Pod, status: PodStatus) -> PodStatus:
    """Add the ephemeral containers that only the API shows.

    Only ephemeral containers can be added to an existing pod, so only they can be missing from an old list.
    """
    wanted = {container.name for container in in_api.spec.ephemeral_containers or ()}
    wanted.difference_update(each.name for each in status.ephemeral_container_statuses or ())
    missing = tuple(each for each in in_api.status.ephemeral_container_statuses or () if each.name in wanted)
    if not missing:
        return status
    return replace(status, ephemeral_container_statuses=(*(status.ephemeral_container_statuses or ()), *missing))


def _with_times_of(shown: PodStatus, status: PodStatus) -> PodStatus:
    """Set the start time of the API, and its transition times for conditions with the same status.

    A status that was computed from a stored pod or an old list may have other times.
    """
    for condition_type in _TIMED_CONDITIONS:
        condition = find_condition(status.conditions, condition_type)
        if condition is not None:
            status = _with_transition_time(status, shown, condition_type, condition.last_transition_time)
    return replace(status, start_time=shown.start_time or status.start_time)


def _with_restart_counts_of(shown: PodStatus, status: PodStatus) -> PodStatus:
    """Raise restart counts to those that the API shows for the same containers.

    The count of a container never decreases. If the API shows a higher one, the status was made from an old checkpoint.
    """
    counts = {each.container_id: each.restart_count for each in _containers_of(shown).values() if each.container_id}

    def raised(statuses: tuple[ContainerStatus, ...] | None) -> tuple[ContainerStatus, ...] | None:
        if statuses is None:
            return None
        return tuple(
            replace(each, restart_count=max(each.restart_count, counts.get(each.container_id or "", 0)))
            for each in statuses
        )

    return replace(
        status,
        container_statuses=raised(status.container_statuses),
        init_container_statuses=raised(status.init_container_statuses),
    )


def _with_history(status: PodStatus, old: PodStatus, now: str) -> PodStatus:
    """Take the times and the observed generation over from the previous status."""
    for condition_type in _TIMED_CONDITIONS:
        status = _with_transition_time(status, old, condition_type, now)
    generation = max(old.observed_generation or 0, status.observed_generation or 0)
    return replace(
        status,
        start_time=old.start_time or status.start_time or now,
        observed_generation=generation or None,
    )


def _with_transition_time(status: PodStatus, old: PodStatus, condition_type: str, now: str | None) -> PodStatus:
    condition = find_condition(status.conditions, condition_type)
    if condition is None:
        return status
    before = find_condition(old.conditions, condition_type)
    since = before.last_transition_time if before is not None and before.status == condition.status else now
    return replace(status, conditions=with_condition(status.conditions, replace(condition, last_transition_time=since)))


def illegal_transition(spec: PodSpec, old: PodStatus, new: PodStatus) -> str | None:
    """Return why the containers cannot change from one status to the other. None: they can.

    A terminated container that may not restart cannot wait or run. Init container statuses must be in the order of
    the spec, because otherwise the status of one could be compared with another.
    """
    # Any container may run again, so no transition is illegal.
    if spec.restart_policy == RestartPolicy.ALWAYS or could_restart_all(spec):
        return None
    revived = {status.name for status in new.container_statuses or () if status.state.terminated is None}
    for status in old.container_statuses or ():
        ended = status.state.terminated
        if (
            ended is not None
            and status.name in revived
            and not _may_restart(spec, spec.containers, status.name, ended.exit_code)
        ):
            return f"terminated container {status.name} attempted illegal transition to non-terminated state"
    init_containers = spec.init_containers or ()
    revived = {status.name for status in new.init_container_statuses or () if status.state.terminated is None}
    for index, status in enumerate(old.init_container_statuses or ()):
        if index >= len(init_containers) or init_containers[index].name != status.name:
            return f"found mismatch between pod spec and status, container: {status.name}"
        ended = status.state.terminated
        if ended is None or is_sidecar(init_containers[index]) or status.name not in revived:
            continue
        if not _may_restart(spec, init_containers, status.name, ended.exit_code):
            return f"terminated init container {status.name} attempted illegal transition to non-terminated state"
    return None


def _may_restart(spec: PodSpec, containers: tuple[Container, ...], name: str, exit_code: int) -> bool:
    """Return whether a container may restart after this exit code."""
    if exit_code != 0 and spec.restart_policy == RestartPolicy.ON_FAILURE:
        return True  # even if the policy of the container differs
    return any(each.name == name and restarts_after_exit(each, spec, exit_code) for each in containers)


def send_reason(
    cached: CachedStatus, sent_version: int | None, *, every: bool, pod: Pod | None, api_pod: Pod | None
) -> SendReason | None:
    """Return why a cached status must be sent now.

    `every`: make all checks of the periodic batch. False: check only for a new version. `pod`: the desired pod
    with the UID of the API object, so None for a static pod. `api_pod`: the last received API object, so the mirror
    pod of a static pod.
    """
    if sent_version is None or sent_version < cached.version:
        return SendReason.NEW_VERSION
    if not every:
        return None
    if pod is not None and can_be_deleted(pod, cached):
        return SendReason.DELETABLE
    if api_pod is not None and needs_reconcile(api_pod, cached):
        return SendReason.OVERWRITTEN
    return None


def is_behind(restored: CachedStatus, pod: Pod) -> bool:
    """Return whether a checkpoint is older than the status in the API.

    This happens if the disk was full, so that a status was sent without a durable checkpoint.
    """
    ours, shown = restored.status, pod.status
    # Fields that change in one direction come first, because they also work for checkpoints without a snapshot.
    if _is_newer(shown, ours):
        return True
    return not _is_newer(ours, shown) and _was_sent_later(pod, restored)


def _is_newer(later: PodStatus, earlier: PodStatus) -> bool:
    """Return whether one status is newer than another, by fields that only change in one direction."""
    if is_terminal(later.phase) and not is_terminal(earlier.phase):
        return True
    before, after = _containers_of(earlier), _containers_of(later)
    return any(name in before and _has_advanced(before[name], status) for name, status in after.items())


def _was_sent_later(pod: Pod, restored: CachedStatus) -> bool:
    """Return whether the API has a newer object, with a status that was sent after the checkpoint was written.

    Times do not help: clocks jump, and a container can change without the conditions of its pod.
    """
    shown = restored.shown
    if shown is None or shown.uid != pod.metadata.uid:
        return False
    # An object of the same or an older version cannot contain anything sent after the checkpoint.
    if not is_older(shown.resource_version, pod.metadata.resource_version or ""):
        return False
    return status_digest(pod.status) not in (status_digest(restored.status), shown.digest, *shown.unanswered)


def snapshot_of(pod: Pod, unanswered: tuple[str, ...] = ()) -> ApiSnapshot:
    return ApiSnapshot(
        uid=pod.metadata.uid or "",
        resource_version=pod.metadata.resource_version or "",
        digest=status_digest(pod.status),
        unanswered=unanswered,
    )


def status_digest(status: PodStatus) -> str:
    """Return a digest of the phase, and of the regular and init containers. Only the agent writes these fields."""
    # No conditions: other writers set conditions, too, and the checkpoint would look older than the API.
    fields = (status.phase, [_digest_fields(each) for each in _containers_of(status).values()])
    return blake2b(msgspec.json.encode(fields), digest_size=12).hexdigest()


def continues(restored: PodStatus, shown: PodStatus) -> bool:
    """Return whether the API shows a running pod with the containers of a restored status.

    A mirror pod with other containers may show a previous run of its static pod.
    """
    before, after = (
        {name: each.container_id for name, each in _containers_of(status).items()} for status in (restored, shown)
    )
    return not is_terminal(shown.phase) and before == after


def _containers_of(status: PodStatus) -> dict[str, ContainerStatus]:
    return {each.name: each for each in (*(status.init_container_statuses or ()), *(status.container_statuses or ()))}


def _has_advanced(before: ContainerStatus, after: ContainerStatus) -> bool:
    """Return whether one status is newer than another, by fields that only change in one direction."""
    if after.restart_count > before.restart_count or (has_run(after) and not has_run(before)):
        return True
    if after.container_id != before.container_id:
        return False
    ended = _has_ended(after) and not _has_ended(before)
    started = after.started is True and before.started is not True and before.state.running is not None
    return ended or started


def _has_ended(status: ContainerStatus) -> bool:
    """Return whether the container with the ID in a status has exited.

    In CrashLoopBackOff the container is waiting, and its exit is in the last state.
    """
    last = status.last_state.terminated
    return status.state.terminated is not None or (last is not None and last.container_id == status.container_id)


def _digest_fields(status: ContainerStatus) -> tuple[object, ...]:
    return status.name, status.container_id, status.restart_count, status.state, status.started, status.ready


def would_revive(in_api: Pod, ours: PodStatus) -> bool:
    """Return whether a status reports a pod as running that the API shows as finished.

    An agent that lost its state and received an old list computes such a status until its source is up to date. Mirror
    pods are excluded, because a static pod can run again.
    """
    return is_terminal(in_api.status.phase) and not is_terminal(ours.phase) and not is_mirror_pod(in_api)


def is_urgent(old: PodStatus | None, new: PodStatus) -> bool:
    """Return whether other components wait for this change: the pod became ready or unready, or finished.

    `old` is the previous status. None: there was none.
    """
    was_terminal, was_ready = (False, False) if old is None else (is_terminal(old.phase), _is_ready(old))
    # Services and controllers wait for these changes, so they are sent first in a burst (k/k 39113, 27385).
    return is_terminal(new.phase) != was_terminal or _is_ready(new) != was_ready


def _is_ready(status: PodStatus) -> bool:
    condition = find_condition(status.conditions, READY)
    return condition is not None and condition.status == TRUE


def needs_reconcile(api_pod: Pod, cached: CachedStatus) -> bool:
    """Return whether the API shows another status than the cached one."""
    return not equal_by_kubelet(normalised(api_pod.spec, api_pod.status), cached.status)


def can_be_deleted(pod: Pod, cached: CachedStatus) -> bool:
    """Return whether the API object can be deleted.

    The pod must be deleted and cleaned up, and the API must already show its terminal phase.
    """
    return (
        pod.metadata.deletion_timestamp is not None
        and not is_mirror_pod(pod)
        and is_terminal(pod.status.phase)
        and cached.finished
    )


def versions_to_keep(sent: Mapping[str, int], cached: Collection[str], mirrors: Collection[str]) -> dict[str, int]:
    """Return the sent versions without those of forgotten pods, by UID of the API object."""
    return {uid: version for uid, version in sent.items() if uid in cached or uid in mirrors}


def merged_status(api_pod: Pod, new: PodStatus, *, could_run: bool, now: datetime) -> MergedStatus:
    """Merge our status with the one in the API. Fields and conditions of other writers are kept.

    `could_run`: containers of the pod could still run. A new terminal phase and the DisruptionTarget condition then
    have to wait.
    """
    old, moment = api_pod.status, format_time(now)
    becomes_terminal = not is_terminal(old.phase) and is_terminal(new.phase)
    if becomes_terminal and not could_run:
        # The transition time is now, because the condition was held back until all containers had stopped.
        new = _with_transition_time(new, old, DISRUPTION_TARGET, moment)
    # Conditions of other writers first, and from the API, because our copy of them may be old.
    conditions = tuple(each for each in old.conditions or () if not is_ours(each))
    for condition in new.conditions or ():
        if is_ours(condition):
            conditions = (*conditions, condition)
        elif is_shared(condition) and becomes_terminal and not could_run:
            conditions = with_condition(conditions, condition)
    to_send = replace(
        new,
        conditions=conditions or None,
        resource_claim_statuses=old.resource_claim_statuses,
        extended_resource_claim_status=old.extended_resource_claim_status,
        node_allocatable_resource_claim_statuses=old.node_allocatable_resource_claim_statuses,
    )
    # Controllers take a terminal phase as the end of all containers, and may start a replacement.
    if becomes_terminal and could_run:
        to_send = replace(to_send, phase=old.phase, reason=old.reason, message=old.message)
    return MergedStatus(_unready_if_terminal(api_pod, to_send, moment), new)


def _unready_if_terminal(pod: Pod, status: PodStatus, now: str) -> PodStatus:
    """Set the Ready conditions to False if the phase is terminal."""
    if not is_terminal(status.phase):
        return status
    # A terminated pod must not receive requests, even if its last probe succeeded.
    shown = [find_condition(status.conditions, each) for each in (READY, CONTAINERS_READY)]
    if not any(condition is not None and condition.status == TRUE for condition in shown):
        return status
    conditions = status.conditions
    for condition_type in (CONTAINERS_READY, READY):
        conditions = updated_condition(conditions, unready_terminal_condition(pod, condition_type, status.phase), now)
    return replace(status, conditions=conditions)


def status_patch(api_pod: Pod, to_send: PodStatus) -> JsonObject | None:
    """Return the strategic merge patch that changes the status in the API to ours. None: nothing to change.

    The UID in it is a precondition, so that a pod recreated with the same name is not changed.
    """
    old, new = (msgspec.json.decode(msgspec.json.encode({"status": each})) for each in (api_pod.status, to_send))
    change = two_way_diff(old, new, "v1/Pod")
    return {"metadata": {"uid": api_pod.metadata.uid}, **change} if change else None
