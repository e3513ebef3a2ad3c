"""What each piece of news means for the workers, one sentence per row."""

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
    Admission,
    LifecycleAnswer,
    ProbeAnswer,
    Reconciliation,
    in_order_of_creation,
    is_rejection,
    on_addition,
    on_lifecycle_event,
    on_probe_result,
    on_reconciliation,
    on_removal,
    on_removal_at_once,
    on_sync,
    on_update,
    pods_to_sync,
    rejection,
)
from podkeeper.rules.mirror import Couple
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType

AT = 12.5


def pod(name: str = "web", *, phase: str = "Running", reason: str | None = None, created: str | None = None) -> Pod:
    metadata = ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}", creation_timestamp=created)
    return Pod(metadata=metadata, status=PodStatus(phase=phase, reason=reason))


WEB, DONE, MIRROR = pod(), pod(phase="Succeeded"), pod("mirror")
STATIC = Pod(metadata=ObjectMeta(name="web", uid="uid-static", annotations={CONFIG_SOURCE_ANNOTATION: "file"}))
ALONE = Couple(WEB, None, asked_by_mirror=False)
STATIC_ALONE = Couple(STATIC, None, asked_by_mirror=False)
BY_FORCE = KillOptions(grace_override_seconds=FORCED_GRACE_SECONDS)
WITH_MIRROR = Couple(WEB, MIRROR, asked_by_mirror=False)
BY_MIRROR = Couple(WEB, MIRROR, asked_by_mirror=True)
ORPHANED_MIRROR = Couple(None, MIRROR, asked_by_mirror=True)


def update(kind: UpdateType, pod: Pod = WEB, mirror: Pod | None = None) -> Update:
    return Update(type=kind, pod=pod, mirror_pod=mirror, start_time=AT)


CREATE, UPDATE, SYNC, KILL = UpdateType

ADDITIONS = {
    "a new pod must be admitted": (ALONE, False, Admission(update(CREATE))),
    "its mirror goes with it": (WITH_MIRROR, False, Admission(update(CREATE, mirror=MIRROR))),
    "a pod that is ending needs no admission": (ALONE, True, update(CREATE)),
    "a pod that is over needs no admission": (Couple(DONE, None, False), False, update(CREATE, DONE)),
    "a mirror is an update of its static pod": (BY_MIRROR, False, update(UPDATE, mirror=MIRROR)),
    "a mirror without its static pod is nothing": (ORPHANED_MIRROR, False, None),
}


@pytest.mark.parametrize("couple, ending, expected", ADDITIONS.values(), ids=ADDITIONS.keys())
def test_addition(couple: Couple, ending: bool, expected: Update | Admission | None) -> None:
    assert on_addition(couple, AT, termination_requested=ending) == expected


UPDATES = {
    "a changed pod is an update": (WITH_MIRROR, update(UPDATE, mirror=MIRROR)),
    "a changed mirror is an update of its static pod": (BY_MIRROR, update(UPDATE, mirror=MIRROR)),
    "a mirror without its static pod is nothing": (ORPHANED_MIRROR, None),
}


@pytest.mark.parametrize("couple, expected", UPDATES.values(), ids=UPDATES.keys())
def test_update(couple: Couple, expected: Update | None) -> None:
    assert on_update(couple, AT) == expected


REMOVALS = {
    "a removed pod is killed": (ALONE, True, Update(type=KILL, pod=WEB)),
    "but not before every source has spoken": (ALONE, False, None),
    "a removed mirror is an update of its static pod": (BY_MIRROR, True, update(UPDATE, mirror=MIRROR)),
    "and that at any time": (BY_MIRROR, False, update(UPDATE, mirror=MIRROR)),
    "a mirror without its static pod is nothing": (ORPHANED_MIRROR, True, None),
}


@pytest.mark.parametrize("couple, ready, expected", REMOVALS.values(), ids=REMOVALS.keys())
def test_removal(couple: Couple, ready: bool, expected: Update | None) -> None:
    assert on_removal(couple, AT, all_sources_ready=ready) == expected


REMOVALS_AT_ONCE = {
    "a pod the API has no more was deleted by force": (ALONE, True, Update(type=KILL, pod=WEB, kill=BY_FORCE)),
    "and is killed before every source has spoken": (ALONE, False, Update(type=KILL, pod=WEB, kill=BY_FORCE)),
    "a removed static pod is killed with its own grace": (STATIC_ALONE, True, Update(type=KILL, pod=STATIC)),
    "and that though the API has never answered": (STATIC_ALONE, False, Update(type=KILL, pod=STATIC)),
    "the static pod of a removed mirror has none": (BY_MIRROR, True, update(UPDATE)),
    "a mirror without its static pod is nothing": (ORPHANED_MIRROR, True, None),
}


@pytest.mark.parametrize("couple, ready, expected", REMOVALS_AT_ONCE.values(), ids=REMOVALS_AT_ONCE.keys())
def test_removal_at_once(couple: Couple, ready: bool, expected: Update | None) -> None:
    assert on_removal_at_once(couple, AT, all_sources_ready=ready) == expected


STALE = Pod(
    metadata=ObjectMeta(name="web", namespace="ns", uid="uid-web"),
    spec=PodSpec(readiness_gates=(PodReadinessGate(condition_type="gate"),)),
    status=PodStatus(phase="Running", conditions=(PodCondition(type="Ready", status="True"),)),
)

RECONCILIATIONS = {
    "a status that fits needs nothing": (WITH_MIRROR, Reconciliation()),
    "a readiness that does not fit its gates is synced":
        (Couple(STALE, MIRROR, False), Reconciliation(update(SYNC, STALE, MIRROR))),
    "so it is when the mirror brought the news":
        (Couple(STALE, MIRROR, True), Reconciliation(update(SYNC, STALE, MIRROR))),
    "the dead containers of an evicted pod may go":
        (Couple(pod(phase="Failed", reason="Evicted"), None, False), Reconciliation(clean_dead_containers=True)),
    "those of a pod that failed by itself stay":
        (Couple(pod(phase="Failed", reason="DeadlineExceeded"), None, False), Reconciliation()),
    "a mirror without its static pod is nothing": (ORPHANED_MIRROR, Reconciliation()),
}  # fmt: skip


@pytest.mark.parametrize("couple, expected", RECONCILIATIONS.values(), ids=RECONCILIATIONS.keys())
def test_reconciliation(couple: Couple, expected: Reconciliation) -> None:
    assert on_reconciliation(couple, AT) == expected


def test_the_oldest_pods_are_taken_up_first_and_equals_in_the_order_told() -> None:
    late, early = pod("late", created="2024-01-02T00:00:00Z"), pod("early", created="2024-01-01T23:00:00-02:00")
    never, twin = pod("never"), pod("twin", created="2024-01-02T00:00:00Z")
    ordered = in_order_of_creation([early, late, never, twin])
    assert [pod.metadata.name for pod in ordered] == ["never", "late", "twin", "early"]


def test_every_lifecycle_event_but_a_removal_leads_to_a_sync_and_a_death_to_a_collection() -> None:
    answers = {kind: on_lifecycle_event(LifecycleEvent(PodUID("uid"), kind)) for kind in LifecycleEventType}
    assert answers == {
        kind: LifecycleAnswer(
            sync=kind is not LifecycleEventType.CONTAINER_REMOVED,
            collect_dead_containers=kind is LifecycleEventType.CONTAINER_DIED,
        )
        for kind in LifecycleEventType
    }


PROBES = {
    (ProbeKind.LIVENESS, ProbeResult.SUCCESS): ProbeAnswer(sync=False),
    (ProbeKind.LIVENESS, ProbeResult.UNKNOWN): ProbeAnswer(sync=False),
    (ProbeKind.LIVENESS, ProbeResult.FAILURE): ProbeAnswer(sync=True),
    (ProbeKind.READINESS, ProbeResult.SUCCESS): ProbeAnswer(sync=True, ready=True),
    (ProbeKind.READINESS, ProbeResult.UNKNOWN): ProbeAnswer(sync=True, ready=False),
    (ProbeKind.READINESS, ProbeResult.FAILURE): ProbeAnswer(sync=True, ready=False),
    (ProbeKind.STARTUP, ProbeResult.SUCCESS): ProbeAnswer(sync=True, started=True),
    (ProbeKind.STARTUP, ProbeResult.UNKNOWN): ProbeAnswer(sync=True, started=False),
    (ProbeKind.STARTUP, ProbeResult.FAILURE): ProbeAnswer(sync=True, started=False),
}


def test_probe_results() -> None:
    assert {key: on_probe_result(*key) for key in product(ProbeKind, ProbeResult)} == PROBES


def test_a_tick_syncs_the_pods_whose_work_is_due_and_those_somebody_asks_for() -> None:
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
    "turned away":                       (rejection(WEB, "OutOfcpu", "no cpu").status, True),
    "not over":                          (PodStatus(phase="Pending"), False),
    "over, and it had containers":       (PodStatus(phase="Failed", container_statuses=(ENDED,)), False),
    "failed before its containers came": (PodStatus(phase="Failed", init_container_statuses=(ENDED,)), False),
}  # fmt: skip


@pytest.mark.parametrize("status, expected", REJECTIONS.values(), ids=REJECTIONS.keys())
def test_a_rejection_is_known_by_its_saying_nothing_of_containers(status: PodStatus, expected: bool) -> None:
    assert is_rejection(status) is expected
