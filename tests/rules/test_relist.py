"""Relisting the runtime: events, inspections and the state between relists."""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.messages import LifecycleEvent, LifecycleEventType, PodUID
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState, SandboxRecord
from podkeeper.rules.relist import (
    ListedPod,
    PodToInspect,
    RelistState,
    complete_inspection,
    current_containers_first,
    events_between,
    ips_to_cache,
    is_unchanged,
    listing_of,
    relevant_events,
    relist,
    relist_pod,
    request_reinspection,
    transition,
)

CREATED, RUNNING, EXITED, UNKNOWN = RecordState
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
STARTED, DIED, REMOVED, CHANGED, SYNC = LifecycleEventType
WEB = PodUID("web")


States = dict[str, RecordState]


def listing(uid: str = "web", /, sandboxes: States | None = None, **containers: RecordState) -> ListedPod:
    return ListedPod(PodUID(uid), containers, sandboxes or {})


def listings(pods: dict[str, States]) -> list[ListedPod]:
    return [ListedPod(PodUID(uid), states, {}) for uid, states in pods.items()]


def types_of(events: tuple[LifecycleEvent, ...]) -> list[tuple[str, LifecycleEventType]]:
    return [(event.data, event.type) for event in events]


def relist_and_inspect(
    state: RelistState, *pods: ListedPod, failing: frozenset[str] = frozenset()
) -> tuple[RelistState, tuple[LifecycleEvent, ...]]:
    """Relist and inspect. The inspection of the pods in `failing` fails."""
    state, to_inspect = relist(state, pods)
    events: tuple[LifecycleEvent, ...] = ()
    for pod in to_inspect:
        state, more = complete_inspection(state, pod, inspected=pod.uid not in failing)
        events += more
    return state, events


Row = tuple[list[RecordState | None], RecordState | None, tuple[LifecycleEventType, ...]]

TRANSITIONS: dict[str, Row] = {
    "from any state to running: started": ([None, EXITED, UNKNOWN, CREATED], RUNNING, (STARTED,)),
    "from any state to exited: died": ([None, RUNNING, UNKNOWN, CREATED], EXITED, (DIED,)),
    "removed after its exit was reported: removed": ([EXITED], None, (REMOVED,)),
    "removed before its exit was reported: died and removed": ([RUNNING, UNKNOWN, CREATED], None, (DIED, REMOVED)),
    "from any state to unknown: changed": ([None, RUNNING, EXITED], UNKNOWN, (CHANGED,)),
    "created counts as unknown": ([None, RUNNING, EXITED], CREATED, (CHANGED,)),
    "from created to unknown is no change": ([CREATED, UNKNOWN], UNKNOWN, ()),
    "from unknown to created is no change": ([CREATED, UNKNOWN], CREATED, ()),
    "idle running": ([RUNNING], RUNNING, ()),
    "idle exited": ([EXITED], EXITED, ()),
    "idle missing": ([None], None, ()),
}


@pytest.mark.parametrize("olds, new, expected", TRANSITIONS.values(), ids=TRANSITIONS.keys())
def test_transition(
    olds: list[RecordState | None], new: RecordState | None, expected: tuple[LifecycleEventType, ...]
) -> None:
    assert {transition(old, new) for old in olds} == {expected}


NEVER_LIVED: dict[str, tuple[RecordState, RecordState | None, list[LifecycleEventType]]] = {
    "created, never started, removed: no death": (CREATED, None, [REMOVED]),
    "created, started, exited: a death": (CREATED, EXITED, [DIED]),
    "removed while it ran: a death": (RUNNING, None, [DIED, REMOVED]),
    "removed in an unknown state: a death": (UNKNOWN, None, [DIED, REMOVED]),
}


@pytest.mark.parametrize("old, new, expected", NEVER_LIVED.values(), ids=NEVER_LIVED.keys())
def test_containers_that_never_started_are_not_reported_as_died(
    old: RecordState, new: RecordState | None, expected: list[LifecycleEventType]
) -> None:
    before, after = listing(app=old), listing() if new is None else listing(app=new)
    events = events_between(WEB, before, after)
    assert [event.type for event in relevant_events(events, before)] == expected
    assert relevant_events(events, None) == events


def test_the_table_has_all_transitions() -> None:
    rows = [(old, new) for olds, new, _ in TRANSITIONS.values() for old in olds]
    assert sorted(map(str, rows)) == sorted(map(str, product([None, *RecordState], repeat=2)))


def test_events_are_in_the_order_of_the_old_listing_then_of_the_new() -> None:
    old = listing(sandboxes={"box": RUNNING}, one=RUNNING, two=EXITED)
    new = listing(sandboxes={"box2": RUNNING}, three=RUNNING, two=RUNNING)
    assert types_of(events_between(WEB, old, new)) == [
        ("one", DIED), ("one", REMOVED), ("two", STARTED), ("box", DIED), ("box", REMOVED),
        ("three", STARTED), ("box2", STARTED),
    ]  # fmt: skip


def test_a_sandbox_counts_as_a_container_that_runs_while_it_is_ready() -> None:
    containers = (ContainerRecord(id="c1", name="app", state=CREATED),)
    sandboxes = (SandboxRecord(id="s2", ready=True), SandboxRecord(id="s1", ready=False))
    record = PodRecord(uid="web", containers=containers, sandboxes=sandboxes)
    assert listing_of(record) == listing(sandboxes={"s2": RUNNING, "s1": EXITED}, c1=CREATED)


def test_an_unchanged_pod_is_not_inspected() -> None:
    state, _ = relist_and_inspect(RelistState(), listing(app=RUNNING))
    assert relist(state, [listing(app=RUNNING)]) == (state, ())


def test_a_pod_is_unchanged_if_it_equals_its_record_and_no_inspection_is_requested() -> None:
    state, _ = relist_and_inspect(RelistState(), listing(app=RUNNING))
    assert is_unchanged(state, listing(app=RUNNING))
    assert not is_unchanged(state, listing(app=EXITED))
    assert not is_unchanged(request_reinspection(state, WEB), listing(app=RUNNING))
    assert not is_unchanged(RelistState(), listing(app=RUNNING))


def test_events_are_sent_only_after_an_inspection_succeeds() -> None:
    state, _ = relist_and_inspect(RelistState(), listing(app=RUNNING))
    state, events = relist_and_inspect(state, listing(app=EXITED), failing=frozenset({"web"}))
    assert events == ()
    state, events = relist_and_inspect(state, listing(app=EXITED))
    assert types_of(events) == [("app", DIED)]
    assert relist_and_inspect(state, listing(app=EXITED)) == (state, ())


def test_a_failed_inspection_is_repeated_even_if_the_change_is_reverted() -> None:
    state, _ = relist_and_inspect(RelistState(), listing(app=RUNNING))
    state, _ = relist_and_inspect(state, listing(app=UNKNOWN), failing=frozenset({"web"}))
    _, events = relist_and_inspect(state, listing(app=RUNNING))
    assert types_of(events) == [("", SYNC)]


def test_a_pod_that_disappears_before_its_inspection_is_removed_once() -> None:
    state, _ = relist_and_inspect(RelistState(), listing(app=RUNNING), failing=frozenset({"web"}))
    after, to_inspect = relist(state, [])
    assert to_inspect == (PodToInspect(WEB, None, ()),)
    assert complete_inspection(after, to_inspect[0], inspected=False) == (RelistState(), (LifecycleEvent(WEB, SYNC),))


def test_container_changed_causes_an_inspection_but_no_event() -> None:
    state, to_inspect = relist(RelistState(), [listing(app=CREATED)])
    assert [pod.uid for pod in to_inspect] == [WEB]
    assert complete_inspection(state, to_inspect[0], inspected=True)[1] == ()


def test_a_requested_inspection_of_an_unchanged_pod_causes_one_sync() -> None:
    state, _ = relist_and_inspect(RelistState(), listing(app=RUNNING))
    state, events = relist_and_inspect(request_reinspection(state, WEB), listing(app=RUNNING))
    assert types_of(events) == [("", SYNC)]
    assert relist_and_inspect(state, listing(app=RUNNING)) == (state, ())


def test_a_request_for_an_unknown_pod_waits_until_it_is_listed() -> None:
    state, events = relist_and_inspect(request_reinspection(RelistState(), WEB))
    assert events == ()
    assert [pod.uid for pod in relist(state, [listing()])[1]] == [WEB]


def test_a_request_during_an_inspection_is_not_lost() -> None:
    state, (pod,) = relist(RelistState(), [listing(app=RUNNING)])
    state, _ = complete_inspection(request_reinspection(state, WEB), pod, inspected=True)
    assert [found.uid for found in relist(state, [listing(app=RUNNING)])[1]] == [WEB]


def test_relisting_one_pod_does_not_affect_the_others() -> None:
    state, _ = relist_and_inspect(RelistState(), listing(app=RUNNING), listing("db", app2=RUNNING))
    _, to_inspect = relist_pod(state, WEB, listing(app=EXITED))
    assert [(pod.uid, types_of(pod.events)) for pod in to_inspect] == [("web", [("app", DIED)])]
    _, (gone,) = relist_pod(state, WEB, None)
    assert (gone.listed, types_of(gone.events)) == (None, [("app", DIED), ("app", REMOVED)])


READY, NOT_READY = SandboxRecord(id="s", ready=True), SandboxRecord(id="s", ready=False)
CACHED = PodRecord(uid="web", ips=("10.0.0.1",))

ADDRESSES = {
    "current addresses of the runtime count": (PodRecord(uid="web", ips=("10.0.0.2",)), CACHED, ("10.0.0.2",)),
    "a terminated pod keeps its address": (PodRecord(uid="web", sandboxes=(NOT_READY,)), CACHED, ("10.0.0.1",)),
    "a pod without any sandbox keeps its address": (PodRecord(uid="web"), CACHED, ("10.0.0.1",)),
    "a new sandbox without an address yet has none": (PodRecord(uid="web", sandboxes=(READY,)), CACHED, ()),
    "nothing known before": (PodRecord(uid="web"), None, ()),
}


@pytest.mark.parametrize("fresh, cached, expected", ADDRESSES.values(), ids=ADDRESSES.keys())
def test_ips_to_cache(fresh: PodRecord, cached: PodRecord | None, expected: tuple[str, ...]) -> None:
    assert ips_to_cache(fresh, cached) == expected


# Laws.

states = st.dictionaries(st.sampled_from(["c1", "c2", "c3"]), st.sampled_from(list(RecordState)), min_size=1)
listings_ = st.dictionaries(st.sampled_from(["web", "db"]), states, max_size=2)
histories = st.lists(st.tuples(listings_, st.frozensets(st.sampled_from(["web", "db"]))), max_size=8)


@given(histories, listings_)
def test_after_two_successful_relists_of_an_idle_runtime_there_are_no_events(
    history: list[tuple[dict[str, States], frozenset[str]]],
    idle: dict[str, States],
) -> None:
    state = RelistState()
    for pods, failing in history:
        state, _ = relist_and_inspect(state, *listings(pods), failing=failing)
    listed = listings(idle)
    state, _ = relist_and_inspect(state, *listed)
    assert relist(state, listed) == (state, ())
    assert set(state.records) == set(idle)


@given(histories)
def test_the_events_show_which_containers_run(
    history: list[tuple[dict[str, States], frozenset[str]]],
) -> None:
    state = RelistState()
    running: set[tuple[str, str]] = set()
    for pods, failing in history:
        state, events = relist_and_inspect(state, *listings(pods), failing=failing)
        for event in events:
            if event.type is STARTED:
                running.add((event.uid, event.data))
            else:
                running.discard((event.uid, event.data))
        # ContainerChanged is not sent, so a container in unknown state may count as running. An exited one may not.
        for uid, container in running:
            record = state.records[PodUID(uid)]
            assert record is not None
            assert record.containers[container] in (RUNNING, UNKNOWN, CREATED)


# Attempts out of order.


def attempt(
    name: str, number: int, state: RecordState = EXITED, *, created: int | None = None, finished: int | None = None
) -> ContainerRecord:
    created_at, finished_at = (
        None if each is None else BEGINNING + timedelta(seconds=each) for each in (created, finished)
    )
    return ContainerRecord(
        id=f"{name}{number}",
        name=name,
        state=state,
        restart_count=number,
        created_at=created_at,
        finished_at=finished_at,
    )


ATTEMPTS: dict[str, tuple[tuple[ContainerRecord, ...], list[str]]] = {
    "newest first": ((attempt("a", 2), attempt("b", 0), attempt("a", 1)), ["a2", "b0", "a1"]),
    "names with counts of their own": ((attempt("a", 0), attempt("b", 7)), ["a0", "b7"]),
    "an earlier attempt created late": ((attempt("a", 1, CREATED), attempt("a", 2, RUNNING)), ["a2", "a1"]),
    "beside another container": (
        (attempt("a", 1, CREATED), attempt("b", 0), attempt("a", 2, RUNNING)),
        ["a2", "a1", "b0"],
    ),
    "before another container that is in order": (
        (attempt("a", 1, CREATED), attempt("a", 2, RUNNING), attempt("b", 0)),
        ["a2", "a1", "b0"],
    ),
    "a later attempt created before one whose exit is unknown": (
        (attempt("a", 0, UNKNOWN), attempt("a", 1, CREATED)),
        ["a0", "a1"],
    ),
    "a later attempt created late": ((attempt("a", 1, CREATED), attempt("a", 0, RUNNING)), ["a0", "a1"]),
    "a later attempt created before one that has run": (
        (attempt("a", 0, EXITED), attempt("a", 1, CREATED)),
        ["a0", "a1"],
    ),
    "the next attempt, not started yet": ((attempt("a", 1, CREATED), attempt("a", 0, EXITED)), ["a1", "a0"]),
    "the next attempt, created when the last one ended": (
        (attempt("a", 1, CREATED, created=5), attempt("a", 0, finished=5)),
        ["a1", "a0"],
    ),
    "a later attempt created while the last one ran": (
        (attempt("a", 1, CREATED, created=4), attempt("a", 0, finished=5)),
        ["a0", "a1"],
    ),
    "a later attempt created while another container ran": (
        (attempt("a", 1, CREATED, created=4), attempt("b", 0, finished=5), attempt("a", 0, finished=3)),
        ["a1", "b0", "a0"],
    ),
    "a later attempt of unknown age": ((attempt("a", 1, CREATED), attempt("a", 0, finished=5)), ["a1", "a0"]),
    "the next attempt, not started yet, of another": (
        (attempt("b", 0, EXITED), attempt("a", 1, CREATED), attempt("a", 0, EXITED)),
        ["b0", "a1", "a0"],
    ),
    "a later attempt that has exited": ((attempt("a", 1, EXITED), attempt("a", 0, RUNNING)), ["a0", "a1"]),
    "two running attempts": ((attempt("a", 0, RUNNING), attempt("a", 1, RUNNING)), ["a1", "a0"]),
    "no containers": ((), []),
}


@pytest.mark.parametrize(("containers", "expected"), ATTEMPTS.values(), ids=ATTEMPTS.keys())
def test_the_current_container_of_a_name_comes_first(
    containers: tuple[ContainerRecord, ...], expected: list[str]
) -> None:
    record = PodRecord(uid="web", containers=containers)
    ordered = current_containers_first(record)
    assert [container.id for container in ordered.containers] == expected
    assert (ordered is record) == (ordered.containers == record.containers)
