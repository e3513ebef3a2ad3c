"""Convert messages of the sync loop to updates for the pod workers.

    config updates, lifecycle events, probe results, due work  -->  updates for the workers (or nothing)

In: the change, and the pod with its mirror pod as the pod manager stores them after the change. Out: the update for
the workers, or `AdmissionNeeded`. The handlers (`engine/handlers.py`) call the pod manager first, then this module,
then the workers.

A mirror pod starts and stops nothing. A change of a mirror pod becomes an update of its static pod. Without a static
pod, it is ignored. Kubelet counterpart: `syncLoopIteration` and the `HandlePod...` functions in
pkg/kubelet/kubelet.go.
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
from podkeeper.rules.qos import qos_of
from podkeeper.rules.static.mirror import PodAndMirror, is_static_pod
from podkeeper.rules.status.conditions import readiness_is_stale
from podkeeper.rules.status.phase import Phase, is_terminal
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType

# The API has no object any more, so nothing waits for this pod. The kubelet grants the full grace period (k/k 120449).
FORCED_GRACE_SECONDS = 2
"""The grace period of a force-deleted pod: the minimum between SIGTERM and SIGKILL."""

_BEFORE_ALL = datetime.min.replace(tzinfo=UTC)
_BY_FORCE = KillOptions(grace_override_seconds=FORCED_GRACE_SECONDS)


class AdmissionNeeded(msgspec.Struct, frozen=True):
    """The caller must decide about admission.

    If the pod is admitted, send `update` to the workers. Otherwise call `rejection`.
    """

    update: Update


class PodRejection(msgspec.Struct, frozen=True):
    """The status and the event of a pod that was not admitted."""

    status: PodStatus
    event: PodEvent


class Reconciliation(msgspec.Struct, frozen=True):
    """What to do after the status of a pod changed in the API."""

    update: Update | None = None
    clean_dead_containers: bool = False  # of an evicted pod: its status in the API is complete


class LifecycleAction(msgspec.Struct, frozen=True):
    """What to do after a lifecycle event."""

    sync: bool
    collect_dead_containers: bool  # a container died, so older dead ones of its pod may be removed


class ProbeAction(msgspec.Struct, frozen=True):
    """What to do after a probe result. A flag that is None does not change."""

    sync: bool
    ready: bool | None = None
    started: bool | None = None


def pods_by_creation_time(pods: Iterable[Pod]) -> list[Pod]:
    """Sort pods by creation time, because the oldest is admitted first. A pod without a time comes first."""
    return sorted(pods, key=_created)


def _created(pod: Pod) -> datetime:
    try:
        return instant(pod.metadata.creation_timestamp) or _BEFORE_ALL
    except BadInput:  # one invalid time must not block the other pods
        return _BEFORE_ALL


def on_addition(pair: PodAndMirror, at: float, *, termination_requested: bool) -> Update | AdmissionNeeded | None:
    """Handle a pod that is new in a source, or known from before a restart of the agent.

    A terminating or terminal pod uses no more resources, so it needs no admission.
    """
    if pair.pod is None or pair.was_mirror:
        return on_update(pair, at)
    create = Update(type=UpdateType.CREATE, pod=pair.pod, mirror_pod=pair.mirror, start_time=at)
    # Such a pod was admitted before. Rejecting it now would replace its real status by Failed.
    return create if termination_requested or is_terminal(pair.pod.status.phase) else AdmissionNeeded(create)


def on_update(pair: PodAndMirror, at: float) -> Update | None:
    """Handle a changed pod. A graceful deletion is also such a change."""
    if pair.pod is None:
        return None
    return Update(type=UpdateType.UPDATE, pod=pair.pod, mirror_pod=pair.mirror, start_time=at)


def on_removal(pair: PodAndMirror, at: float, *, all_sources_ready: bool) -> Update | None:
    """Handle a pod that a source no longer has, as the kubelet does.

    Until all sources are ready, nothing happens, because another source may have the pod. Housekeeping kills it later.
    """
    if pair.was_mirror:
        return on_update(pair, at)
    return Update(type=UpdateType.KILL, pod=pair.pod) if all_sources_ready else None


def on_removal_at_once(pair: PodAndMirror, at: float, *, all_sources_ready: bool) -> Update | None:
    """Handle a pod that a source no longer has, as podkeeper does.

    Three differences from the kubelet:

    * The pod's own source decides, whether or not the others are ready. So a static pod stops and its successor
      starts although the API has never answered. The kubelet leaves it to housekeeping, which waits for the API.
    * The API keeps a pod until its node has stopped it. A pod that disappears was force-deleted, so its grace period
      no longer applies. The kubelet grants the full grace period.
    * A static pod whose mirror pod was removed gets a new one now. The kubelet creates it up to a minute later.
    """
    pod = pair.pod
    if pod is None:
        return None
    # Without the mirror pod: the next sync then sees that it is gone and creates a new one at once.
    if pair.was_mirror:
        return on_update(PodAndMirror(pod, None, was_mirror=False), at)
    # A static pod has its full grace period: its manifest was removed, which is not a forced deletion.
    return Update(type=UpdateType.KILL, pod=pod, kill=None if is_static_pod(pod) else _BY_FORCE)


def on_reconciliation(pair: PodAndMirror, at: float) -> Reconciliation:
    """Handle a status in the API that differs from ours."""
    pod = pair.pod
    if pod is None:
        return Reconciliation()
    return Reconciliation(
        on_sync(pod, pair.mirror, at) if readiness_is_stale(pod) else None,
        # As in the kubelet: the API has the final status of the evicted pod now, so its dead containers are not needed.
        clean_dead_containers=pod.status.phase == Phase.FAILED and pod.status.reason == EVICTED,
    )


def on_sync(pod: Pod, mirror: Pod | None, at: float) -> Update:
    """Return a sync update for a pod that did not change."""
    return Update(type=UpdateType.SYNC, pod=pod, mirror_pod=mirror, start_time=at)


def on_lifecycle_event(event: LifecycleEvent) -> LifecycleAction:
    """Handle a lifecycle event. The removal of a container needs no sync."""
    return LifecycleAction(
        sync=event.type is not LifecycleEventType.CONTAINER_REMOVED,
        collect_dead_containers=event.type is LifecycleEventType.CONTAINER_DIED,
    )


def on_probe_result(kind: ProbeKind, result: ProbeResult) -> ProbeAction:
    """Handle a changed probe result. Only a successful liveness probe needs no sync."""
    succeeded = result is ProbeResult.SUCCESS
    match kind:
        case ProbeKind.LIVENESS:
            # A successful liveness probe changes neither the status nor the plan.
            return ProbeAction(sync=result is ProbeResult.FAILURE)
        case ProbeKind.READINESS:
            return ProbeAction(sync=True, ready=succeeded)
        case ProbeKind.STARTUP:
            return ProbeAction(sync=True, started=succeeded)


def pods_to_sync(pods: Iterable[Pod], due: Collection[PodUID], requested: Callable[[Pod], bool]) -> list[Pod]:
    """Return the desired pods whose work is due, or that `requested` selects (an expired active deadline)."""
    return [pod for pod in pods if pod.metadata.uid in due or requested(pod)]


def rejection(pod: Pod, reason: str, message: str) -> PodRejection:
    """Return the status and the event of a pod that was not admitted."""
    text = f"Pod was rejected: {message}"
    status = PodStatus(phase=Phase.FAILED.value, reason=reason, message=text, qos_class=qos_of(pod))
    return PodRejection(status, PodEvent(EventType.WARNING, reason, message, pod.metadata.uid or ""))


def is_rejection(status: PodStatus) -> bool:
    """Return whether a status is that of a rejected pod: terminal and without container statuses."""
    return is_terminal(status.phase) and not (status.container_statuses or status.init_container_statuses)
