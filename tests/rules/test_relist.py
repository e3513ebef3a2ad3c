"""What two looks at the runtime tell: events, inspections, and a book that forgets nothing it has not settled."""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.model.messages import LifecycleEvent, LifecycleEventType, PodUID
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord, SandboxRecord
from podkeeper.rules.relist import (
    Book,
    Finding,
    PodListing,
    current_containers_first,
    events_between,
    ips_to_cache,
    is_unchanged,
    listing_of,
    relist,
    relist_pod,
    request_reinspection,
    settle,
    transition,
    worth_telling,
)

CREATED, RUNNING, EXITED, UNKNOWN = ContainerState
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
STARTED, DIED, REMOVED, CHANGED, SYNC = LifecycleEventType
WEB = PodUID("web")


States = dict[str, ContainerState]


def listing(uid: str = "web", /, sandboxes: States | None = None, **containers: ContainerState) -> PodListing:
    return PodListing(PodUID(uid), containers, sandboxes or {})


def listings(pods: dict[str, States]) -> list[PodListing]:
    return [PodListing(PodUID(uid), states, {}) for uid, states in pods.items()]


def told(events: tuple[LifecycleEvent, ...]) -> list[tuple[str, LifecycleEventType]]:
    return [(event.data, event.type) for event in events]


def look(
    book: Book, *pods: PodListing, failing: frozenset[str] = frozenset()
) -> tuple[Book, tuple[LifecycleEvent, ...]]:
    """A whole relist; the inspection of those in `failing` fails."""
    book, findings = relist(book, pods)
    events: tuple[LifecycleEvent, ...] = ()
    for finding in findings:
        book, more = settle(book, finding, inspected=finding.uid not in failing)
        events += more
    return book, events


Row = tuple[list[ContainerState | None], ContainerState | None, tuple[LifecycleEventType, ...]]

TRANSITIONS: dict[str, Row] = {
    "running, whatever it was: it started": ([None, EXITED, UNKNOWN, CREATED], RUNNING, (STARTED,)),
    "exited, whatever it was: it died": ([None, RUNNING, UNKNOWN, CREATED], EXITED, (DIED,)),
    "gone after its exit was told: removed": ([EXITED], None, (REMOVED,)),
    "gone before its exit was told: died and removed": ([RUNNING, UNKNOWN, CREATED], None, (DIED, REMOVED)),
    "unclear now: changed": ([None, RUNNING, EXITED], UNKNOWN, (CHANGED,)),
    "created counts as unclear": ([None, RUNNING, EXITED], CREATED, (CHANGED,)),
    "from created to unknown is no step": ([CREATED, UNKNOWN], UNKNOWN, ()),
    "from unknown to created is no step": ([CREATED, UNKNOWN], CREATED, ()),
    "still running": ([RUNNING], RUNNING, ()),
    "still exited": ([EXITED], EXITED, ()),
    "still not there": ([None], None, ()),
}


@pytest.mark.parametrize("olds, new, expected", TRANSITIONS.values(), ids=TRANSITIONS.keys())
def test_transition(
    olds: list[ContainerState | None], new: ContainerState | None, expected: tuple[LifecycleEventType, ...]
) -> None:
    assert {transition(old, new) for old in olds} == {expected}


NEVER_LIVED: dict[str, tuple[ContainerState, ContainerState | None, list[LifecycleEventType]]] = {
    "made, not started, gone: nobody died": (CREATED, None, [REMOVED]),
    "made, started, ended: that is a death": (CREATED, EXITED, [DIED]),
    "gone while it ran: that is a death": (RUNNING, None, [DIED, REMOVED]),
    "gone, and nobody knows what it did": (UNKNOWN, None, [DIED, REMOVED]),
}


@pytest.mark.parametrize("old, new, expected", NEVER_LIVED.values(), ids=NEVER_LIVED.keys())
def test_what_never_lived_is_not_told_to_have_died(
    old: ContainerState, new: ContainerState | None, expected: list[LifecycleEventType]
) -> None:
    before, after = listing(app=old), listing() if new is None else listing(app=new)
    events = events_between(WEB, before, after)
    assert [event.type for event in worth_telling(events, before)] == expected
    assert worth_telling(events, None) == events


def test_the_transitions_above_are_all_there_are() -> None:
    rows = [(old, new) for olds, new, _ in TRANSITIONS.values() for old in olds]
    assert sorted(map(str, rows)) == sorted(map(str, product([None, *ContainerState], repeat=2)))


def test_events_come_in_the_order_of_the_old_listing_then_of_the_new() -> None:
    old = listing(sandboxes={"box": RUNNING}, one=RUNNING, two=EXITED)
    new = listing(sandboxes={"box2": RUNNING}, three=RUNNING, two=RUNNING)
    assert told(events_between(WEB, old, new)) == [
        ("one", DIED), ("one", REMOVED), ("two", STARTED), ("box", DIED), ("box", REMOVED),
        ("three", STARTED), ("box2", STARTED),
    ]  # fmt: skip


def test_a_sandbox_counts_as_a_container_that_runs_while_it_is_ready() -> None:
    containers = (ContainerRecord(id="c1", name="app", state=CREATED),)
    sandboxes = (SandboxRecord(id="s2", ready=True), SandboxRecord(id="s1", ready=False))
    record = PodRecord(uid="web", containers=containers, sandboxes=sandboxes)
    assert listing_of(record) == listing(sandboxes={"s2": RUNNING, "s1": EXITED}, c1=CREATED)


def test_an_unchanged_pod_is_not_inspected() -> None:
    book, _ = look(Book(), listing(app=RUNNING))
    assert relist(book, [listing(app=RUNNING)]) == (book, ())


def test_unchanged_is_what_is_in_the_book_and_not_wished_for() -> None:
    book, _ = look(Book(), listing(app=RUNNING))
    assert is_unchanged(book, listing(app=RUNNING))
    assert not is_unchanged(book, listing(app=EXITED))
    assert not is_unchanged(request_reinspection(book, WEB), listing(app=RUNNING))
    assert not is_unchanged(Book(), listing(app=RUNNING))


def test_a_failed_inspection_keeps_the_events_back_until_one_succeeds() -> None:
    book, _ = look(Book(), listing(app=RUNNING))
    book, events = look(book, listing(app=EXITED), failing=frozenset({"web"}))
    assert events == ()
    book, events = look(book, listing(app=EXITED))
    assert told(events) == [("app", DIED)]
    assert look(book, listing(app=EXITED)) == (book, ())


def test_a_failed_inspection_is_repeated_even_if_the_change_is_undone() -> None:
    book, _ = look(Book(), listing(app=RUNNING))
    book, _ = look(book, listing(app=UNKNOWN), failing=frozenset({"web"}))
    _, events = look(book, listing(app=RUNNING))
    assert told(events) == [("", SYNC)]


def test_a_pod_that_vanished_before_it_could_be_inspected_is_dropped_once() -> None:
    book, _ = look(Book(), listing(app=RUNNING), failing=frozenset({"web"}))
    after, findings = relist(book, [])
    assert findings == (Finding(WEB, None, ()),)
    assert settle(after, findings[0], inspected=False) == (Book(), (LifecycleEvent(WEB, SYNC),))


def test_a_change_nobody_acts_on_leads_to_an_inspection_but_to_no_event() -> None:
    book, findings = relist(Book(), [listing(app=CREATED)])
    assert [finding.uid for finding in findings] == [WEB]
    assert settle(book, findings[0], inspected=True)[1] == ()


def test_a_wished_inspection_of_an_unchanged_pod_ends_in_a_sync_and_is_done_once() -> None:
    book, _ = look(Book(), listing(app=RUNNING))
    book, events = look(request_reinspection(book, WEB), listing(app=RUNNING))
    assert told(events) == [("", SYNC)]
    assert look(book, listing(app=RUNNING)) == (book, ())


def test_a_wish_for_a_pod_nobody_has_seen_waits_until_it_shows() -> None:
    book, events = look(request_reinspection(Book(), WEB))
    assert events == ()
    assert [finding.uid for finding in relist(book, [listing()])[1]] == [WEB]


def test_a_wish_made_while_the_inspection_runs_is_not_lost() -> None:
    book, (finding,) = relist(Book(), [listing(app=RUNNING)])
    book, _ = settle(request_reinspection(book, WEB), finding, inspected=True)
    assert [found.uid for found in relist(book, [listing(app=RUNNING)])[1]] == [WEB]


def test_looking_at_one_pod_leaves_the_others_alone() -> None:
    book, _ = look(Book(), listing(app=RUNNING), listing("db", app2=RUNNING))
    _, findings = relist_pod(book, WEB, listing(app=EXITED))
    assert [(finding.uid, told(finding.events)) for finding in findings] == [("web", [("app", DIED)])]
    _, (gone,) = relist_pod(book, WEB, None)
    assert (gone.listed, told(gone.events)) == (None, [("app", DIED), ("app", REMOVED)])


READY, NOT_READY = SandboxRecord(id="s", ready=True), SandboxRecord(id="s", ready=False)
CACHED = PodRecord(uid="web", ips=("10.0.0.1",))

ADDRESSES = {
    "what the runtime says now counts": (PodRecord(uid="web", ips=("10.0.0.2",)), CACHED, ("10.0.0.2",)),
    "an ended pod keeps its address": (PodRecord(uid="web", sandboxes=(NOT_READY,)), CACHED, ("10.0.0.1",)),
    "a pod without any sandbox keeps its address": (PodRecord(uid="web"), CACHED, ("10.0.0.1",)),
    "a new sandbox without an address yet has none": (PodRecord(uid="web", sandboxes=(READY,)), CACHED, ()),
    "nothing known before": (PodRecord(uid="web"), None, ()),
}


@pytest.mark.parametrize("fresh, cached, expected", ADDRESSES.values(), ids=ADDRESSES.keys())
def test_ips_to_cache(fresh: PodRecord, cached: PodRecord | None, expected: tuple[str, ...]) -> None:
    assert ips_to_cache(fresh, cached) == expected


# Laws.

states = st.dictionaries(st.sampled_from(["c1", "c2", "c3"]), st.sampled_from(list(ContainerState)), min_size=1)
looks = st.dictionaries(st.sampled_from(["web", "db"]), states, max_size=2)
histories = st.lists(st.tuples(looks, st.frozensets(st.sampled_from(["web", "db"]))), max_size=8)


@settings(deadline=None, derandomize=True)
@given(histories, looks)
def test_two_good_looks_at_a_still_runtime_end_in_silence(
    history: list[tuple[dict[str, States], frozenset[str]]],
    still: dict[str, States],
) -> None:
    book = Book()
    for pods, failing in history:
        book, _ = look(book, *listings(pods), failing=failing)
    seen = listings(still)
    book, _ = look(book, *seen)
    assert relist(book, seen) == (book, ())
    assert set(book.records) == set(still)


@settings(deadline=None, derandomize=True)
@given(histories)
def test_whoever_counts_the_events_knows_which_containers_run(
    history: list[tuple[dict[str, States], frozenset[str]]],
) -> None:
    book = Book()
    running: set[tuple[str, str]] = set()
    for pods, failing in history:
        book, events = look(book, *listings(pods), failing=failing)
        for event in events:
            if event.type is STARTED:
                running.add((event.uid, event.data))
            else:
                running.discard((event.uid, event.data))
        # Changed is told to nobody, so one that became unclear may still count; never one that ended or is gone.
        for uid, container in running:
            record = book.records[PodUID(uid)]
            assert record is not None
            assert record.containers[container] in (RUNNING, UNKNOWN, CREATED)


# Attempts out of order.


def attempt(
    name: str, number: int, state: ContainerState = EXITED, *, created: int | None = None, finished: int | None = None
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
    "newest first as ever": ((attempt("a", 2), attempt("b", 0), attempt("a", 1)), ["a2", "b0", "a1"]),
    "names with counts of their own": ((attempt("a", 0), attempt("b", 7)), ["a0", "b7"]),
    "an earlier attempt made late": ((attempt("a", 1, CREATED), attempt("a", 2, RUNNING)), ["a2", "a1"]),
    "beside another container": (
        (attempt("a", 1, CREATED), attempt("b", 0), attempt("a", 2, RUNNING)),
        ["a2", "a1", "b0"],
    ),
    "before another container that is in order": (
        (attempt("a", 1, CREATED), attempt("a", 2, RUNNING), attempt("b", 0)),
        ["a2", "a1", "b0"],
    ),
    "a later attempt made before one whose exit is unknown": (
        (attempt("a", 0, UNKNOWN), attempt("a", 1, CREATED)),
        ["a0", "a1"],
    ),
    "a later attempt made late": ((attempt("a", 1, CREATED), attempt("a", 0, RUNNING)), ["a0", "a1"]),
    "a later attempt made before one that has run": ((attempt("a", 0, EXITED), attempt("a", 1, CREATED)), ["a0", "a1"]),
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
    "a later attempt that has ended": ((attempt("a", 1, EXITED), attempt("a", 0, RUNNING)), ["a0", "a1"]),
    "two that run": ((attempt("a", 0, RUNNING), attempt("a", 1, RUNNING)), ["a1", "a0"]),
    "nothing at all": ((), []),
}


@pytest.mark.parametrize(("containers", "expected"), ATTEMPTS.values(), ids=ATTEMPTS.keys())
def test_the_current_container_of_a_name_stands_before_the_others(
    containers: tuple[ContainerRecord, ...], expected: list[str]
) -> None:
    record = PodRecord(uid="web", containers=containers)
    ordered = current_containers_first(record)
    assert [container.id for container in ordered.containers] == expected
    assert (ordered is record) == (ordered.containers == record.containers)
