"""What the status manager decides: which status of a pod it keeps, and what of it the API is told.

In: a status somebody computed, what is cached and sent so far, the pod as we and as the API know it, the
time. Out: values. The shell (`engine/status.py`) keeps the cache and talks to the API.

    a status -> `accept`: Stored (version + 1) | Unchanged | Refused
    one pass -> `sending`: why a cached status has to be sent now, or None
    sending  -> `merged_status`: what the API shall show; `status_patch`: what it is sent for that
    sent     -> `can_be_deleted`: the API object may go, the pod is over
    order    -> `is_urgent`: somebody out there waits for this one

Promises: a container that ended never comes back unless its policy says so; `lastTransitionTime` moves
only with a condition's status; the start time never moves; the observed generation never shrinks; what
others wrote is kept; a new terminal phase is not told while containers could still run. The Go ancestor
is pkg/kubelet/status/status_manager.go.
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
from podkeeper.rules.mirror import is_mirror_pod, is_static_pod
from podkeeper.rules.patch.strategic import two_way_diff
from podkeeper.rules.patch.value import JsonObject
from podkeeper.rules.phase import is_terminal
from podkeeper.rules.resource_version import is_older
from podkeeper.rules.restart import (
    ALL_CONTAINERS_RESTARTING,
    RestartPolicy,
    could_restart_all,
    is_sidecar,
    restarts_after_exit,
)
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
    unready_at_the_end,
    updated_condition,
    with_condition,
)
from podkeeper.rules.status.normalise import equal_by_kubelet, normalised
from podkeeper.rules.status.revise import has_begun

_TIMED_CONDITIONS = (
    CONTAINERS_READY,
    READY,
    INITIALIZED,
    READY_TO_START_CONTAINERS,
    POD_SCHEDULED,
    DISRUPTION_TARGET,
    ALL_CONTAINERS_RESTARTING,
)
"""Conditions whose time of change we keep; those of a resize bring their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The last state of an API object that the agent knew when it wrote a note.

    Compared after a restart, to decide whether the note or the API is newer.
    """

    uid: str  # of the API object
    resource_version: str
    digest: str  # `status_digest` of its status
    unanswered: tuple[str, ...] = ()  # digests of statuses that may have been sent since


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedStatus:
    """The last status of a pod that was accepted."""

    version: int  # from 1, one more for each accepted status
    name: str
    namespace: str
    status: PodStatus
    finished: bool  # stored when, or after, the last of the pod was cleaned up
    changed_at: datetime | None  # of the oldest change that the API has not been told; None: it knows all
    shown: Shown | None = None  # in a note, and in what was recalled from one


@dataclass(frozen=True, slots=True)
class Stored:
    """The status is new: keep it and wake the sender."""

    cached: CachedStatus


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Nothing to keep and nothing to send."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The status contradicts what we know; it is dropped, and `reason` is worth a log line."""

    reason: str


Acceptance = Stored | Unchanged | Refused


class Store(StrEnum):
    """When a status that contradicts nothing is stored."""

    IF_CHANGED = "if anything changed"
    ALWAYS = "always"  # a pod being deleted: its worker waits for a status to be sent
    AS_LAST = "always, and the last of the pod is cleaned up"


class Sending(StrEnum):
    """Why a cached status is sent."""

    NEW_VERSION = "a version the API has not seen"
    DELETABLE = "the pod is over, and its object can go"
    OVERWRITTEN = "somebody else changed what is ours"  # forget which version was sent: it must be sent again


@dataclass(frozen=True, slots=True)
class Merged:
    """`to_send` goes to the API; `cached` takes the place of the cached status, under the same version."""

    to_send: PodStatus
    cached: PodStatus


def accept_status(
    pod: Pod, status: PodStatus, cached: CachedStatus | None, mirror: Pod | None, now: datetime
) -> Acceptance:
    """What becomes of a status that was just computed; a pod being deleted always gets a new version."""
    seen = replace(status, observed_generation=pod.metadata.generation or None)
    store = Store.IF_CHANGED if pod.metadata.deletion_timestamp is None else Store.ALWAYS
    return accept(pod, seen, cached, mirror, now, store)


def accept(
    pod: Pod,
    status: PodStatus,
    cached: CachedStatus | None,
    mirror: Pod | None,
    now: datetime,
    store: Store = Store.IF_CHANGED,
) -> Acceptance:
    """What becomes of a status: it is held against the cached one, or else the API's (a static pod's mirror's)."""
    if cached is not None:
        old = cached.status
        # Only a static pod comes back after its end, under the same UID.
        finished = store is Store.AS_LAST or (cached.finished and not is_static_pod(pod))
    else:
        old = (pod if mirror is None else mirror).status
        finished = store is Store.AS_LAST
    problem = illegal_transition(pod.spec, old, status)
    if problem is not None:
        return Refused(problem)
    new = normalised(pod.spec, _with_history(status, old, format_time(now)))
    if cached is not None and store is Store.IF_CHANGED and equal_by_kubelet(cached.status, new):
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
    status = _with_debuggers_of(in_api, status)
    return _with_counts_of(in_api.status, _with_dates_of(in_api.status, status)) if first else status


def _with_debuggers_of(in_api: Pod, status: PodStatus) -> PodStatus:
    """A status with the ephemeral containers that only the API shows.

    Ephemeral containers are the only ones that are added to a pod that exists: an old list may not name them.
    """
    wanted = {container.name for container in in_api.spec.ephemeral_containers or ()}
    wanted.difference_update(each.name for each in status.ephemeral_container_statuses or ())
    missing = tuple(each for each in in_api.status.ephemeral_container_statuses or () if each.name in wanted)
    if not missing:
        return status
    return replace(status, ephemeral_container_statuses=(*(status.ephemeral_container_statuses or ()), *missing))


def _with_dates_of(shown: PodStatus, status: PodStatus) -> PodStatus:
    """A status with the start time in the API, and with its transition times for conditions that are equal there.

    A status that was made from a note of the pod, or from an old list, has different times.
    """
    for condition_type in _TIMED_CONDITIONS:
        condition = find_condition(status.conditions, condition_type)
        if condition is not None:
            status = _with_transition_time(status, shown, condition_type, condition.last_transition_time)
    return replace(status, start_time=shown.start_time or status.start_time)


def _with_counts_of(shown: PodStatus, status: PodStatus) -> PodStatus:
    """A status whose restart counts are at least those that the API shows for the same containers.

    The count of one container never falls. If the API shows a higher one, the status was made from an old note.
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
    """The status with the times that only its predecessor knows."""
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
    """Why the containers cannot have gone from one status to the other; None: they can.

    A container that ended and may not run again cannot wait or run. Init statuses stand where the spec
    has them: anything else would let one init container answer for another.
    """
    if spec.restart_policy == RestartPolicy.ALWAYS or could_restart_all(spec):
        return None
    revived = {status.name for status in new.container_statuses or () if status.state.terminated is None}
    for status in old.container_statuses or ():
        ended = status.state.terminated
        if (
            ended is not None
            and status.name in revived
            and not _may_leave(spec, spec.containers, status.name, ended.exit_code)
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
        if not _may_leave(spec, init_containers, status.name, ended.exit_code):
            return f"terminated init container {status.name} attempted illegal transition to non-terminated state"
    return None


def _may_leave(spec: PodSpec, containers: tuple[Container, ...], name: str, exit_code: int) -> bool:
    """Whether a container that exited so may run again."""
    if exit_code != 0 and spec.restart_policy == RestartPolicy.ON_FAILURE:
        return True  # even where the container's own policy says otherwise
    return any(each.name == name and restarts_after_exit(each, spec, exit_code) for each in containers)


def sending(
    cached: CachedStatus, sent_version: int | None, *, every: bool, pod: Pod | None, api_pod: Pod | None
) -> Sending | None:
    """Why one pass has to send a cached status.

    `every`: the periodic pass, which looks at all; the pass on a wake-up looks for new versions only. `pod`:
    our pod under the UID of its API object, so None for a static pod. `api_pod`: the pod whose status the
    API shows, so a static pod's mirror, as we last saw it.
    """
    if sent_version is None or sent_version < cached.version:
        return Sending.NEW_VERSION
    if not every:
        return None
    if pod is not None and can_be_deleted(pod, cached):
        return Sending.DELETABLE
    if api_pod is not None and needs_reconcile(api_pod, cached):
        return Sending.OVERWRITTEN
    return None


def is_behind(noted: CachedStatus, pod: Pod) -> bool:
    """Whether a note from before a restart is older than what the API shows of its pod.

    This is rare: the disk was full, so the agent sent a status whose note could not be written.
    """
    ours, shown = noted.status, pod.status
    if _goes_beyond(shown, ours):
        return True
    return not _goes_beyond(ours, shown) and _was_sent_later(pod, noted)


def _goes_beyond(later: PodStatus, earlier: PodStatus) -> bool:
    """Whether one status is newer than another, by what never goes back."""
    if is_terminal(later.phase) and not is_terminal(earlier.phase):
        return True
    before, after = _containers_of(earlier), _containers_of(later)
    return any(name in before and _has_moved_on(before[name], status) for name, status in after.items())


def _was_sent_later(pod: Pod, noted: CachedStatus) -> bool:
    """Whether the API shows a newer version with a status that is neither noted nor known to have been sent before.

    Times do not tell: clocks jump, and a container changes while the conditions of its pod do not.
    """
    shown = noted.shown
    if shown is None or shown.uid != pod.metadata.uid:
        return False
    if not is_older(shown.resource_version, pod.metadata.resource_version or ""):
        return False
    return status_digest(pod.status) not in (status_digest(noted.status), shown.digest, *shown.unanswered)


def as_shown(pod: Pod, unanswered: tuple[str, ...] = ()) -> Shown:
    """What the API shows of a pod, in short."""
    return Shown(
        uid=pod.metadata.uid or "",
        resource_version=pod.metadata.resource_version or "",
        digest=status_digest(pod.status),
        unanswered=unanswered,
    )


def status_digest(status: PodStatus) -> str:
    """A digest of the phase, and of the regular and init containers. Only the agent writes these fields."""
    said = (status.phase, [_stage(each) for each in _containers_of(status).values()])
    return blake2b(msgspec.json.encode(said), digest_size=12).hexdigest()


def continues(noted: PodStatus, shown: PodStatus) -> bool:
    """Whether the API shows the pod alive and with the containers of a noted status.

    A mirror with other containers may show a former run of its static pod.
    """
    before, after = ({n: each.container_id for n, each in _containers_of(status).items()} for status in (noted, shown))
    return not is_terminal(shown.phase) and before == after


def _containers_of(status: PodStatus) -> dict[str, ContainerStatus]:
    return {each.name: each for each in (*(status.init_container_statuses or ()), *(status.container_statuses or ()))}


def _has_moved_on(noted: ContainerStatus, shown: ContainerStatus) -> bool:
    """Whether a container went on after a note, by what never goes back."""
    if shown.restart_count > noted.restart_count or (has_begun(shown) and not has_begun(noted)):
        return True
    if shown.container_id != noted.container_id:
        return False
    ended = _has_ended(shown) and not _has_ended(noted)
    started = shown.started is True and noted.started is not True and noted.state.running is not None
    return ended or started


def _has_ended(status: ContainerStatus) -> bool:
    """Whether the container that a status names has exited.

    A container in CrashLoopBackOff is waiting, and its exit is in the last state.
    """
    last = status.last_state.terminated
    return status.state.terminated is not None or (last is not None and last.container_id == status.container_id)


def _stage(status: ContainerStatus) -> tuple[object, ...]:
    """How far a container is, and what its probes say."""
    return status.name, status.container_id, status.restart_count, status.state, status.started, status.ready


def takes_back(in_api: Pod, ours: PodStatus) -> bool:
    """Whether a status calls a pod alive that the API shows to be over.

    An agent that forgot, and was shown an old list, makes such a status until its source catches up. A mirror is only
    the image of a static pod, which may come back.
    """
    return is_terminal(in_api.status.phase) and not is_terminal(ours.phase) and not is_mirror_pod(in_api)


def is_urgent(old: PodStatus | None, new: PodStatus) -> bool:
    """Whether others wait for this change: the pod became ready or unready, or came to its end.

    `old` is the status before it; None: there was none.
    """
    was_over, was_ready = (False, False) if old is None else (is_terminal(old.phase), _is_ready(old))
    return is_terminal(new.phase) != was_over or _is_ready(new) != was_ready


def _is_ready(status: PodStatus) -> bool:
    condition = find_condition(status.conditions, READY)
    return condition is not None and condition.status == TRUE


def needs_reconcile(api_pod: Pod, cached: CachedStatus) -> bool:
    """Whether the API shows something else than what we say."""
    return not equal_by_kubelet(normalised(api_pod.spec, api_pod.status), cached.status)


def can_be_deleted(pod: Pod, cached: CachedStatus) -> bool:
    """Whether the API object of a pod may go: deleted, over, and known there to be over."""
    return (
        pod.metadata.deletion_timestamp is not None
        and not is_mirror_pod(pod)
        and is_terminal(pod.status.phase)
        and cached.finished
    )


def versions_to_keep(sent: Mapping[str, int], cached: Collection[str], mirrors: Collection[str]) -> dict[str, int]:
    """The sent versions without those of forgotten pods; all by UID of the API object."""
    return {uid: version for uid, version in sent.items() if uid in cached or uid in mirrors}


def merged_status(api_pod: Pod, new: PodStatus, *, could_run: bool, now: datetime) -> Merged:
    """What is sent: our status over the API's, with the conditions that others wrote.

    `could_run`: containers of the pod could still run, so a new terminal phase has to wait, and with it the
    news that the pod was disrupted.
    """
    old, moment = api_pod.status, format_time(now)
    ending = not is_terminal(old.phase) and is_terminal(new.phase)
    if ending and not could_run:
        # The disruption counts from now: until all containers had stopped, nobody was told.
        new = _with_transition_time(new, old, DISRUPTION_TARGET, moment)
    conditions = tuple(each for each in old.conditions or () if not is_ours(each))
    for condition in new.conditions or ():
        if is_ours(condition):
            conditions = (*conditions, condition)
        elif is_shared(condition) and ending and not could_run:
            conditions = with_condition(conditions, condition)
    to_send = replace(
        new,
        conditions=conditions or None,
        resource_claim_statuses=old.resource_claim_statuses,
        extended_resource_claim_status=old.extended_resource_claim_status,
        node_allocatable_resource_claim_statuses=old.node_allocatable_resource_claim_statuses,
    )
    if ending and could_run:
        to_send = replace(to_send, phase=old.phase, reason=old.reason, message=old.message)
    return Merged(_unready_when_over(api_pod, to_send, moment), new)


def _unready_when_over(pod: Pod, status: PodStatus, now: str) -> PodStatus:
    """No pod is ever shown as over and ready at once."""
    if not is_terminal(status.phase):
        return status
    shown = [find_condition(status.conditions, each) for each in (READY, CONTAINERS_READY)]
    if not any(condition is not None and condition.status == TRUE for condition in shown):
        return status
    conditions = status.conditions
    for condition_type in (CONTAINERS_READY, READY):
        conditions = updated_condition(conditions, unready_at_the_end(pod, condition_type, status.phase), now)
    return replace(status, conditions=conditions)


def status_patch(api_pod: Pod, to_send: PodStatus) -> JsonObject | None:
    """The strategic merge patch that brings the API's status to ours; None: there is nothing to change.

    The UID in it is a precondition: a pod that was recreated under the same name is not touched.
    """
    old, new = (msgspec.json.decode(msgspec.json.encode({"status": each})) for each in (api_pod.status, to_send))
    change = two_way_diff(old, new, "v1/Pod")
    return {"metadata": {"uid": api_pod.metadata.uid}, **change} if change else None
