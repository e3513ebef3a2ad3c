"""Dispatch: what each piece of news means for the workers.

    config updates, lifecycle events, probe results, due work  -->  updates for the workers (or nothing)

In: the news, and the pod it is about with its mirror, as the pod manager has them once it has taken the news in. Out:
the update to hand to the workers, or what must be asked first (admission). The loop (`engine/loop.py`) keeps the order:
manager first, then this, then the workers.

A mirror starts and stops nothing: its news reach its static pod as an update, and without a static pod they are
dropped. The Go ancestors are `syncLoopIteration` and the `HandlePod...` functions in pkg/kubelet/kubelet.go.
"""

from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime

import msgspec

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import (
    EventType,
    LifecycleEvent,
    LifecycleEventType,
    PodEvent,
    PodUID,
    ProbeKind,
    ProbeResult,
)
from podkeeper.model.times import instant
from podkeeper.rules.evict import EVICTED
from podkeeper.rules.mirror import Couple, is_static_pod
from podkeeper.rules.phase import Phase, is_terminal
from podkeeper.rules.qos import qos_of
from podkeeper.rules.status.conditions import readiness_is_stale
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType

FORCED_GRACE_SECONDS = 2
"""What is left to a pod that was deleted by force: as little as every container gets between TERM and KILL."""

_BEFORE_ALL = datetime.min.replace(tzinfo=UTC)
_BY_FORCE = KillOptions(grace_override_seconds=FORCED_GRACE_SECONDS)


class Admission(msgspec.Struct, frozen=True):
    """The pod must be admitted first: then tell the workers, else `rejection`."""

    update: Update


class Rejection(msgspec.Struct, frozen=True):
    """How a pod that was not admitted ends, and the event that says so."""

    status: PodStatus
    event: PodEvent


class Reconciliation(msgspec.Struct, frozen=True):
    """What a changed status in the API asks for."""

    update: Update | None = None
    clean_dead_containers: bool = False  # of an evicted pod: the API has what they could tell


class LifecycleAnswer(msgspec.Struct, frozen=True):
    """What a lifecycle event asks for."""

    sync: bool
    collect_dead_containers: bool  # the event's container is dead; older dead ones of its pod may go


class ProbeAnswer(msgspec.Struct, frozen=True):
    """What a probe result asks for; a flag that is None stays as it is."""

    sync: bool
    ready: bool | None = None
    started: bool | None = None


def in_order_of_creation(pods: Iterable[Pod]) -> list[Pod]:
    """The order in which additions are taken up: the oldest has the first claim; one without a time is the oldest."""
    return sorted(pods, key=_created)


def _created(pod: Pod) -> datetime:
    """When a pod was created; one that cannot tell must not hold up the others."""
    try:
        return instant(pod.metadata.creation_timestamp) or _BEFORE_ALL
    except BadInput:
        return _BEFORE_ALL


def on_addition(couple: Couple, at: float, *, termination_requested: bool) -> Update | Admission | None:
    """A source has a new pod (or, after a restart of the agent, an old one).

    A pod that is ending, or is over, uses up nothing new: it needs no admission, and its worker knows what to do.
    """
    if couple.pod is None or couple.asked_by_mirror:
        return on_update(couple, at)
    create = Update(type=UpdateType.CREATE, pod=couple.pod, mirror_pod=couple.mirror, start_time=at)
    return create if termination_requested or is_terminal(couple.pod.status.phase) else Admission(create)


def on_update(couple: Couple, at: float) -> Update | None:
    """A source changed a pod, or asks for its graceful deletion: that, too, is only a changed pod."""
    if couple.pod is None:
        return None
    return Update(type=UpdateType.UPDATE, pod=couple.pod, mirror_pod=couple.mirror, start_time=at)


def on_removal(couple: Couple, at: float, *, all_sources_ready: bool) -> Update | None:
    """A source no longer has a pod; what the reference makes of it.

    Before every source has spoken the pod is left alone (another may have it); housekeeping makes good for that later.
    """
    if couple.asked_by_mirror:
        return on_update(couple, at)
    return Update(type=UpdateType.KILL, pod=couple.pod) if all_sources_ready else None


def on_removal_at_once(couple: Couple, at: float, *, all_sources_ready: bool) -> Update | None:
    """A source no longer has a pod; what we make of it: nobody waits in vain.

    A pod's own source decides about it, whether or not every other has spoken: a static pod goes, and its successor
    comes, though the API has never answered. (Should a second source have the same UID, it is asked for again.) The API
    keeps a pod until its node is done with it: one that is gone was deleted by force, so its grace has no meaning any
    more. And a static pod whose mirror is gone has none, and gets a new one now. The reference leaves the first to
    housekeeping, which the API may hold up for ever, gives the second all of its grace, and sees the third a minute
    later.
    """
    pod = couple.pod
    if pod is None:
        return None
    if couple.asked_by_mirror:
        return on_update(Couple(pod, None, asked_by_mirror=False), at)
    return Update(type=UpdateType.KILL, pod=pod, kill=None if is_static_pod(pod) else _BY_FORCE)


def on_reconciliation(couple: Couple, at: float) -> Reconciliation:
    """Somebody else wrote a pod's status."""
    pod = couple.pod
    if pod is None:
        return Reconciliation()
    return Reconciliation(
        on_sync(pod, couple.mirror, at) if readiness_is_stale(pod) else None,
        clean_dead_containers=pod.status.phase == Phase.FAILED and pod.status.reason == EVICTED,
    )


def on_sync(pod: Pod, mirror: Pod | None, at: float) -> Update:
    """A desired pod wants to be looked after, though its source has nothing new about it."""
    return Update(type=UpdateType.SYNC, pod=pod, mirror_pod=mirror, start_time=at)


def on_lifecycle_event(event: LifecycleEvent) -> LifecycleAnswer:
    """Something happened in a pod. That a container is removed changes nothing for the pod."""
    return LifecycleAnswer(
        sync=event.type is not LifecycleEventType.CONTAINER_REMOVED,
        collect_dead_containers=event.type is LifecycleEventType.CONTAINER_DIED,
    )


def on_probe_result(kind: ProbeKind, result: ProbeResult) -> ProbeAnswer:
    """A probe's result changed. Only a liveness probe that succeeds needs no answer."""
    succeeded = result is ProbeResult.SUCCESS
    match kind:
        case ProbeKind.LIVENESS:
            return ProbeAnswer(sync=result is ProbeResult.FAILURE)
        case ProbeKind.READINESS:
            return ProbeAnswer(sync=True, ready=succeeded)
        case ProbeKind.STARTUP:
            return ProbeAnswer(sync=True, started=succeeded)


def pods_to_sync(pods: Iterable[Pod], due: Collection[PodUID], asked_for: Callable[[Pod], bool]) -> list[Pod]:
    """The desired pods whose work is due, or which somebody asks for (a deadline that has passed)."""
    return [pod for pod in pods if pod.metadata.uid in due or asked_for(pod)]


def rejection(pod: Pod, reason: str, message: str) -> Rejection:
    """The end of a pod that does not fit here."""
    told = f"Pod was rejected: {message}"
    status = PodStatus(phase=Phase.FAILED.value, reason=reason, message=told, qos_class=qos_of(pod))
    return Rejection(status, PodEvent(EventType.WARNING, reason, message, pod.metadata.uid or ""))


def is_rejection(status: PodStatus) -> bool:
    """Whether a status is that of a pod that was not admitted: it is over, and has not a word about containers."""
    return is_terminal(status.phase) and not (status.container_statuses or status.init_container_statuses)
