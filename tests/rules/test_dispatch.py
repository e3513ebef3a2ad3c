"""The updates for the pod workers, one sentence per row."""

from functools import partial
from itertools import product

import pytest

from podkeeper.model.k8s.core import ContainerStatus, Pod, PodCondition, PodReadinessGate, PodSpec, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import (
    CONFIG_SOURCE_ANNOTATION,
    EventType,
    LifecycleEvent,
    LifecycleEventType,
    PodEvent,
    PodUID,
    ProbeKind,
    ProbeResult,
)
from podkeeper.rules.dispatch import (
    FORCED_GRACE_SECONDS,
    AdmissionNeeded,
    LifecycleAction,
    ProbeAction,
    Reconciliation,
    is_rejection,
    on_addition,
    on_lifecycle_event,
    on_probe_result,
    on_reconciliation,
    on_removal,
    on_removal_at_once,
    on_sync,
    on_update,
    pods_by_creation_time,
    pods_to_sync,
    rejection,
)
from podkeeper.rules.static.mirror import PodAndMirror
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType
from podkeeper.testing import build

AT = 12.5


pod = partial(build.pod, namespace="ns", phase="Running")


WEB, DONE, MIRROR = pod(), pod(phase="Succeeded"), pod("mirror")
STATIC = Pod(metadata=ObjectMeta(name="web", uid="uid-static", annotations={CONFIG_SOURCE_ANNOTATION: "file"}))
ALONE = PodAndMirror(WEB, None, was_mirror=False)
STATIC_ALONE = PodAndMirror(STATIC, None, was_mirror=False)
FORCE_KILL = KillOptions(grace_override_seconds=FORCED_GRACE_SECONDS)
WITH_MIRROR = PodAndMirror(WEB, MIRROR, was_mirror=False)
BY_MIRROR = PodAndMirror(WEB, MIRROR, was_mirror=True)
ORPHANED_MIRROR = PodAndMirror(None, MIRROR, was_mirror=True)


def update(kind: UpdateType, of: Pod = WEB, mirror: Pod | None = None) -> Update:
    return build.update(kind, of, mirror=mirror, start_time=AT)


CREATE, UPDATE, SYNC, KILL = UpdateType

ADDITIONS = {
    "a new pod must be admitted": (ALONE, False, AdmissionNeeded(update(CREATE))),
    "the update contains the mirror pod": (WITH_MIRROR, False, AdmissionNeeded(update(CREATE, mirror=MIRROR))),
    "a terminating pod needs no admission": (ALONE, True, update(CREATE)),
    "a terminal pod needs no admission": (PodAndMirror(DONE, None, False), False, update(CREATE, DONE)),
    "a new mirror pod is an update of its static pod": (BY_MIRROR, False, update(UPDATE, mirror=MIRROR)),
    "a mirror pod without a static pod is ignored": (ORPHANED_MIRROR, False, None),
}


@pytest.mark.parametrize("pair, terminating, expected", ADDITIONS.values(), ids=ADDITIONS.keys())
def test_addition(pair: PodAndMirror, terminating: bool, expected: Update | AdmissionNeeded | None) -> None:
    assert on_addition(pair, AT, termination_requested=terminating) == expected


UPDATES = {
    "a changed pod is an update": (WITH_MIRROR, update(UPDATE, mirror=MIRROR)),
    "a changed mirror pod is an update of its static pod": (BY_MIRROR, update(UPDATE, mirror=MIRROR)),
    "a mirror pod without a static pod is ignored": (ORPHANED_MIRROR, None),
}


@pytest.mark.parametrize("pair, expected", UPDATES.values(), ids=UPDATES.keys())
def test_update(pair: PodAndMirror, expected: Update | None) -> None:
    assert on_update(pair, AT) == expected


REMOVALS = {
    "a removed pod is killed": (ALONE, True, build.update(KILL, WEB)),
    "a removed pod is not killed before all sources are ready": (ALONE, False, None),
    "a removed mirror pod is an update of its static pod": (BY_MIRROR, True, update(UPDATE, mirror=MIRROR)),
    "a removed mirror pod is an update even before all sources are ready": (
        BY_MIRROR,
        False,
        update(UPDATE, mirror=MIRROR),
    ),
    "a mirror pod without a static pod is ignored": (ORPHANED_MIRROR, True, None),
}


@pytest.mark.parametrize("pair, ready, expected", REMOVALS.values(), ids=REMOVALS.keys())
def test_removal(pair: PodAndMirror, ready: bool, expected: Update | None) -> None:
    assert on_removal(pair, AT, all_sources_ready=ready) == expected


REMOVALS_AT_ONCE = {
    "a pod that is missing in the API was force-deleted": (ALONE, True, build.update(KILL, WEB, kill=FORCE_KILL)),
    "a force-deleted pod is killed before all sources are ready": (
        ALONE,
        False,
        build.update(KILL, WEB, kill=FORCE_KILL),
    ),
    "a removed static pod is killed with its own grace period": (STATIC_ALONE, True, build.update(KILL, STATIC)),
    "a removed static pod is killed although the API has never answered": (
        STATIC_ALONE,
        False,
        build.update(KILL, STATIC),
    ),
    "the update for a removed mirror pod has no mirror pod": (BY_MIRROR, True, update(UPDATE)),
    "a mirror pod without a static pod is ignored": (ORPHANED_MIRROR, True, None),
}


@pytest.mark.parametrize("pair, ready, expected", REMOVALS_AT_ONCE.values(), ids=REMOVALS_AT_ONCE.keys())
def test_removal_at_once(pair: PodAndMirror, ready: bool, expected: Update | None) -> None:
    assert on_removal_at_once(pair, AT, all_sources_ready=ready) == expected


STALE = Pod(
    metadata=ObjectMeta(name="web", namespace="ns", uid="uid-web"),
    spec=PodSpec(readiness_gates=(PodReadinessGate(condition_type="gate"),)),
    status=PodStatus(phase="Running", conditions=(PodCondition(type="Ready", status="True"),)),
)

RECONCILIATIONS = {
    "a current status needs nothing": (WITH_MIRROR, Reconciliation()),
    "a readiness that does not match its gates is synced":
        (PodAndMirror(STALE, MIRROR, False), Reconciliation(update(SYNC, STALE, MIRROR))),
    "a readiness that does not match is synced if the mirror pod changed":
        (PodAndMirror(STALE, MIRROR, True), Reconciliation(update(SYNC, STALE, MIRROR))),
    "the dead containers of an evicted pod may be removed":
        (PodAndMirror(pod(status=PodStatus(phase="Failed", reason="Evicted")), None, False),
         Reconciliation(clean_dead_containers=True)),
    "the dead containers of a pod that failed by itself stay":
        (PodAndMirror(pod(status=PodStatus(phase="Failed", reason="DeadlineExceeded")), None, False), Reconciliation()),
    "a mirror pod without a static pod is ignored": (ORPHANED_MIRROR, Reconciliation()),
}  # fmt: skip


@pytest.mark.parametrize("pair, expected", RECONCILIATIONS.values(), ids=RECONCILIATIONS.keys())
def test_reconciliation(pair: PodAndMirror, expected: Reconciliation) -> None:
    assert on_reconciliation(pair, AT) == expected


def test_pods_are_sorted_by_creation_time_then_by_order_received() -> None:
    late, early = pod("late", created="2024-01-02T00:00:00Z"), pod("early", created="2024-01-01T23:00:00-02:00")
    never, twin = pod("never"), pod("twin", created="2024-01-02T00:00:00Z")
    ordered = pods_by_creation_time([early, late, never, twin])
    assert [pod.metadata.name for pod in ordered] == ["never", "late", "twin", "early"]


def test_every_lifecycle_event_but_a_removal_causes_a_sync_and_a_death_causes_garbage_collection() -> None:
    answers = {kind: on_lifecycle_event(LifecycleEvent(PodUID("uid"), kind)) for kind in LifecycleEventType}
    assert answers == {
        kind: LifecycleAction(
            sync=kind is not LifecycleEventType.CONTAINER_REMOVED,
            collect_dead_containers=kind is LifecycleEventType.CONTAINER_DIED,
        )
        for kind in LifecycleEventType
    }


PROBES = {
    (ProbeKind.LIVENESS, ProbeResult.SUCCESS): ProbeAction(sync=False),
    (ProbeKind.LIVENESS, ProbeResult.UNKNOWN): ProbeAction(sync=False),
    (ProbeKind.LIVENESS, ProbeResult.FAILURE): ProbeAction(sync=True),
    (ProbeKind.READINESS, ProbeResult.SUCCESS): ProbeAction(sync=True, ready=True),
    (ProbeKind.READINESS, ProbeResult.UNKNOWN): ProbeAction(sync=True, ready=False),
    (ProbeKind.READINESS, ProbeResult.FAILURE): ProbeAction(sync=True, ready=False),
    (ProbeKind.STARTUP, ProbeResult.SUCCESS): ProbeAction(sync=True, started=True),
    (ProbeKind.STARTUP, ProbeResult.UNKNOWN): ProbeAction(sync=True, started=False),
    (ProbeKind.STARTUP, ProbeResult.FAILURE): ProbeAction(sync=True, started=False),
}


def test_probe_results() -> None:
    assert {key: on_probe_result(*key) for key in product(ProbeKind, ProbeResult)} == PROBES


def test_pods_to_sync_have_due_work_or_are_requested() -> None:
    pods = [pod("due"), pod("late"), pod("idle")]
    due = {PodUID("uid-due"), PodUID("uid-gone")}
    chosen = pods_to_sync(pods, due, lambda pod: pod.metadata.name == "late")
    assert [pod.metadata.name for pod in chosen] == ["due", "late"]
    assert on_sync(WEB, MIRROR, AT) == update(SYNC, mirror=MIRROR)


def test_a_rejected_pod_fails_with_the_reason_and_keeps_its_qos_class() -> None:
    rejected = rejection(WEB, "OutOfcpu", "no cpu")
    assert rejected.status == PodStatus(
        phase="Failed", reason="OutOfcpu", message="Pod was rejected: no cpu", qos_class="BestEffort"
    )
    assert rejected.event == PodEvent(EventType.WARNING, "OutOfcpu", "no cpu", "uid-web")


ENDED = ContainerStatus(name="app")
REJECTIONS = {
    "rejected":                         (rejection(WEB, "OutOfcpu", "no cpu").status, True),
    "not terminal":                     (PodStatus(phase="Pending"), False),
    "terminal with containers":         (PodStatus(phase="Failed", container_statuses=(ENDED,)), False),
    "failed with init containers only": (PodStatus(phase="Failed", init_container_statuses=(ENDED,)), False),
}  # fmt: skip


@pytest.mark.parametrize("status, expected", REJECTIONS.values(), ids=REJECTIONS.keys())
def test_a_rejection_has_no_container_statuses(status: PodStatus, expected: bool) -> None:
    assert is_rejection(status) is expected
