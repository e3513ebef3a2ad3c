"""Backoff of restarts and image pulls: how delays grow, when they reset, and the messages."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.k8s.core import Container, Pod, ResourceRequirements
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.rules.backoff.table import (
    DEFAULT_CURVE,
    MIN_DELAY,
    BackoffEntry,
    BackoffKey,
    BackoffTable,
    BackoffWait,
    Curve,
    has_expired,
    held_until,
    latest_exit,
    next_entry,
    pull_key,
    restart_key,
    steady,
)
from podkeeper.testing import build

START = datetime(2000, 1, 1, tzinfo=UTC)
POD = build.pod("web", namespace="prod", uid="u1")
APP = Container(name="app", image="registry.example/app:v1")


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def exited(finished: float | None, name: str = "app") -> ContainerRecord:
    finished_at = None if finished is None else at(finished)
    return ContainerRecord(id="x", name=name, state=RecordState.EXITED, finished_at=finished_at)


def crash(
    table: BackoffTable, finished: float | None, now: float, spec: Container = APP, curve: Curve | None = None
) -> BackoffWait | None:
    """Request the start of a container that exited at `finished`."""
    return table.begin_restart(POD, spec, PodRecord(uid="u1", containers=(exited(finished),)), at(now), curve)


def delay_of(table: BackoffTable, key: BackoffKey) -> timedelta:
    """Return the delay after the next failure of a key of `POD`, zero if the key is unknown."""
    return next((each.entry.delay for each in table.records(PodUID("u1")) if each.key == key), timedelta())


# The curve.


def test_delays_double_up_to_the_maximum() -> None:
    entry: BackoffEntry | None = None
    delays = []
    for _ in range(7):
        entry = next_entry(entry, START, START, DEFAULT_CURVE)
        delays.append(entry.delay.total_seconds())
    assert delays == [10, 20, 40, 80, 160, 300, 300]


def test_the_backoff_resets_only_after_more_than_the_stable_time() -> None:
    entry = BackoffEntry(seconds(160), START, DEFAULT_CURVE)
    assert not has_expired(entry, at(600))
    assert has_expired(entry, at(600.001))
    assert next_entry(entry, at(600), at(600), DEFAULT_CURVE).delay == seconds(300)
    assert next_entry(entry, at(601), at(601), DEFAULT_CURVE).delay == seconds(10)


def test_an_event_at_an_unknown_time_does_not_reset_the_backoff_and_has_no_delay() -> None:
    entry = BackoffEntry(seconds(40), START, DEFAULT_CURVE)
    assert next_entry(entry, None, at(5000), DEFAULT_CURVE).delay == seconds(80)
    assert held_until(entry, None, at(1)) is None


def test_a_delay_ends_exactly_at_its_end() -> None:
    entry = BackoffEntry(seconds(40), START, DEFAULT_CURVE)
    assert held_until(entry, at(5), at(44.999)) == at(45)
    assert held_until(entry, at(5), at(45)) is None


TUNED = {
    "no change": ({}, DEFAULT_CURVE),
    "a lower maximum": ({"maximum": seconds(60)}, Curve(seconds(10), seconds(60), seconds(600))),
    "a maximum below the initial delay lowers it": (
        {"maximum": seconds(4)}, Curve(seconds(4), seconds(4), seconds(600))),
    "a shorter initial delay": ({"initial": seconds(2)}, Curve(seconds(2), seconds(300), seconds(600))),
    "delays are raised to the minimum": (
        {"initial": seconds(0), "maximum": seconds(-1)}, Curve(MIN_DELAY, MIN_DELAY, seconds(600))),
    "a longer maximum extends the stable time": (
        {"maximum": seconds(900)}, Curve(seconds(10), seconds(900), seconds(1800))),
}  # fmt: skip


@pytest.mark.parametrize("changes, expected", TUNED.values(), ids=TUNED.keys())
def test_tuning(changes: dict[str, timedelta], expected: Curve) -> None:
    assert DEFAULT_CURVE.tuned(**changes) == expected


@pytest.mark.parametrize(
    "initial, maximum, stable",
    [(0, 10, 600), (20, 10, 600), (10, 700, 600)],
    ids=["below the minimum", "initial above maximum", "stable time too short"],
)
def test_an_invalid_curve_is_rejected(initial: float, maximum: float, stable: float) -> None:
    with pytest.raises(ValueError, match="cannot use Curve"):
        Curve(seconds(initial), seconds(maximum), seconds(stable))


# Restarts.


def test_the_first_start_and_the_first_restart_have_no_delay() -> None:
    table = BackoffTable()
    assert table.begin_restart(POD, APP, PodRecord(uid="u1"), at(0)) is None
    assert len(table) == 0
    assert crash(table, finished=3, now=5) is None
    assert delay_of(table, restart_key(POD, APP)) == seconds(10)


def test_the_delay_of_the_next_restart_begins_with_the_exit_and_has_a_message() -> None:
    table = BackoffTable()
    crash(table, finished=3, now=5)
    text = "Back-off restarting failed container app in pod web_prod(u1)"
    assert crash(table, finished=7, now=8) == BackoffWait(
        reason="CrashLoopBackOff",
        message="back-off 10s restarting failed container=app pod=web_prod(u1)",
        until=at(17),
        event=PodEvent(EventType.WARNING, "BackOff", text, "u1"),
    )
    assert crash(table, finished=7, now=17) is None
    assert delay_of(table, restart_key(POD, APP)) == seconds(20)


def test_repeated_requests_during_a_delay_do_not_extend_it() -> None:
    table = BackoffTable()
    crash(table, finished=0, now=0)
    assert {crash(table, finished=1, now=now) for now in (1, 2, 10)} == {crash(table, finished=1, now=3)}
    assert delay_of(table, restart_key(POD, APP)) == seconds(10)


def test_a_long_run_resets_the_backoff() -> None:
    table = BackoffTable()
    for now in (0, 100, 200):
        crash(table, finished=now, now=now + 90)
    assert crash(table, finished=291 + 600, now=900) is None
    assert delay_of(table, restart_key(POD, APP)) == seconds(10)


def test_a_newer_container_that_has_not_exited_does_not_hide_the_exit() -> None:
    created = ContainerRecord(id="y", name="app", state=RecordState.CREATED)
    record = PodRecord(uid="u1", containers=(created, exited(9, "other"), exited(7), exited(3)))
    assert latest_exit(record, "app") == exited(7)
    assert latest_exit(record, "unknown") is None


CHANGES = {
    "another image": (POD, Container(name="app", image="registry.example/app:v2")),
    "other resources": (
        POD, Container(name="app", image=APP.image, resources=ResourceRequirements(limits={"cpu": "1"}))),
    "another container": (POD, Container(name="other", image=APP.image)),
    "another pod of the same name": (build.pod("web", namespace="prod", uid="u2"), APP),
    "another namespace": (build.pod("web", namespace="test", uid="u1"), APP),
    "another name": (build.pod("db", namespace="prod", uid="u1"), APP),
}  # fmt: skip


@pytest.mark.parametrize("of_pod, spec", CHANGES.values(), ids=CHANGES.keys())
def test_another_key_has_no_delay(of_pod: Pod, spec: Container) -> None:
    assert restart_key(of_pod, spec) != restart_key(POD, APP)


def test_the_order_in_which_resources_are_written_does_not_matter() -> None:
    one, other = (
        Container(name="app", resources=ResourceRequirements(limits=dict(pairs)))
        for pairs in ([("cpu", "1"), ("memory", "1Gi")], [("memory", "1Gi"), ("cpu", "1")])
    )
    assert restart_key(POD, one) == restart_key(POD, other)


def test_an_own_curve_applies_to_one_container() -> None:
    table = BackoffTable()
    quick = DEFAULT_CURVE.tuned(initial=seconds(1), maximum=seconds(2))
    delays = []
    for now in (0, 100, 200):
        crash(table, finished=now, now=now + 50, curve=quick)
        delays.append(delay_of(table, restart_key(POD, APP)))
    assert delays == [seconds(1), seconds(2), seconds(2)]
    crash(table, finished=300, now=350)  # without an own curve, that of the table applies again
    assert delay_of(table, restart_key(POD, APP)) == seconds(10)


# Image pulls.


def test_the_delay_of_a_pull_begins_with_its_failure_and_shows_the_cause() -> None:
    table = BackoffTable()
    image = "registry.example/app:v1"
    assert table.hold_pull(POD, image, at(0)) is None
    table.pull_failed(POD, image, "ErrImagePull: no such host", at(2))
    assert table.hold_pull(POD, image, at(11)) == BackoffWait(
        reason="ImagePullBackOff",
        message='Back-off pulling image "registry.example/app:v1": ErrImagePull: no such host',
        until=at(12),
        event=PodEvent(EventType.NORMAL, "BackOff", 'Back-off pulling image "registry.example/app:v1"', "u1"),
    )
    assert table.hold_pull(POD, image, at(12)) is None
    table.pull_failed(POD, image, "", at(13))
    held = table.hold_pull(POD, image, at(14))
    assert held is not None
    assert (held.until, held.message) == (at(33), 'Back-off pulling image "registry.example/app:v1"')


def test_pulls_of_other_pods_and_images_have_no_delay() -> None:
    table = BackoffTable()
    table.pull_failed(POD, "a", "", at(0))
    assert table.hold_pull(POD, "b", at(1)) is None
    assert table.hold_pull(Pod(metadata=ObjectMeta(uid="u2")), "a", at(1)) is None


# Housekeeping and text.


def test_collect_removes_only_expired_entries() -> None:
    table = BackoffTable()
    table.pull_failed(POD, "old", "", at(0))
    table.pull_failed(POD, "young", "", at(1))
    table.collect(at(600))
    assert len(table) == 2
    table.collect(at(601))
    assert len(table) == 1
    assert delay_of(table, pull_key(POD, "old")) == timedelta()
    assert delay_of(table, pull_key(POD, "young")) == seconds(10)


JUMPS = {"the clock was put on": 7200, "the clock was put back": -7200, "the clock was right": 0}


@pytest.mark.parametrize("jump", JUMPS.values(), ids=JUMPS.keys())
def test_a_wall_clock_jump_during_a_delay_has_no_effect(jump: float) -> None:
    table = BackoffTable()
    crash(table, finished=0, now=0)
    record = PodRecord(uid="u1", containers=(exited(3600 + 5),))
    held = table.begin_restart(POD, APP, record, at(6), wall_ahead=seconds(3600))
    again = table.begin_restart(POD, APP, record, at(7), wall_ahead=seconds(3600 + jump))
    assert held is not None
    assert held.until == at(15)
    assert again == held
    assert table.begin_restart(POD, APP, record, at(15), wall_ahead=seconds(3600 + jump)) is None


AFTER_A_JUMP = {  # how far the wall clock is ahead at the exit and when it is seen, and the end of the delay
    "no jump": (0, 0, 40),
    "far ahead before the exit is seen": (0, 7200, 40),
    "a little ahead before the exit is seen": (0, 6, 40),
    "ahead before the exit": (7200, 7200, 40),
    "a little ahead before the exit": (3, 3, 43),  # it may also be 3 s later, by the clock of the start
    "back before the exit": (-7200, -7200, 40),
    "back before the exit is seen": (0, -7200, 45),  # it is in the future, so the delay begins when it is seen
}


@pytest.mark.parametrize(("then", "seen", "until"), AFTER_A_JUMP.values(), ids=AFTER_A_JUMP.keys())
def test_a_wall_clock_jump_before_an_exit_is_seen_shortens_no_delay(then: int, seen: int, until: int) -> None:
    table = BackoffTable()
    crash(table, finished=0, now=20)  # the delay after the next exit, 10 s after this start, is 10 s
    record = PodRecord(uid="u1", containers=(exited(30 + then),))
    held = table.begin_restart(POD, APP, record, at(35), wall_ahead=seconds(seen))
    assert held is not None
    assert held.until == at(until)
    assert table.begin_restart(POD, APP, record, at(until), wall_ahead=seconds(seen)) is None


def test_a_wall_clock_jump_before_the_last_start_changes_no_later_delay() -> None:
    table = BackoffTable()
    crash(table, finished=0, now=20)
    second, third = (PodRecord(uid="u1", containers=(exited(finished + 3),)) for finished in (30, 60))
    assert table.begin_restart(POD, APP, second, at(50), wall_ahead=seconds(3)) is None
    held = table.begin_restart(POD, APP, third, at(70), wall_ahead=seconds(3))
    assert held is not None
    assert held.until == at(60 + 20)


def test_an_exit_in_the_future_counts_as_now() -> None:
    table = BackoffTable()
    crash(table, finished=0, now=0)
    held = crash(table, finished=7200, now=5)
    assert held is not None
    assert held.until == at(15)


def test_steady_times_keep_differences() -> None:
    assert steady(12.5) - steady(2) == seconds(10.5)


SHOWN_DELAYS = {"1s": 1, "10s": 10, "1.5s": 1.5, "1m20s": 80, "5m0s": 300}


@pytest.mark.parametrize("text, delay", SHOWN_DELAYS.items(), ids=SHOWN_DELAYS.keys())
def test_a_delay_is_formatted_as_in_go(text: str, delay: float) -> None:
    table = BackoffTable(Curve(initial=seconds(delay)))
    crash(table, finished=0, now=0)
    held = crash(table, finished=1, now=1)
    assert held is not None
    assert held.message == f"back-off {text} restarting failed container=app pod=web_prod(u1)"


# Laws.

CURVES = st.builds(
    lambda initial, maximum: DEFAULT_CURVE.tuned(initial=seconds(initial), maximum=seconds(maximum)),
    st.integers(-5, 500),
    st.integers(-5, 1000),
)
STEPS = st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), max_size=20)
"""(seconds from the last request to the exit, seconds from the exit to the next request)"""


@given(CURVES, STEPS)
def test_delays_stay_between_minimum_and_maximum_and_grow_until_reset(
    curve: Curve, steps: list[tuple[int, int]]
) -> None:
    table, key, now = BackoffTable(curve), restart_key(POD, APP), 0
    for until_exit, until_request in steps:
        before = delay_of(table, key)
        finished, now = now + until_exit, now + until_exit + until_request
        held = crash(table, finished, now)
        after = delay_of(table, key)
        assert MIN_DELAY <= curve.initial <= after <= curve.maximum
        if held is not None:
            assert after == before
            assert at(now) < held.until <= at(finished) + curve.maximum
        else:
            assert after in (curve.initial, min(before * 2, curve.maximum))
            assert after >= before or after == curve.initial


@given(CURVES, STEPS)
def test_the_same_events_have_the_same_result(curve: Curve, steps: list[tuple[int, int]]) -> None:
    def results() -> list[BackoffWait | None]:
        table, now, answers = BackoffTable(curve), 0, []
        for until_exit, until_request in steps:
            finished, now = now + until_exit, now + until_exit + until_request
            answers.append(crash(table, finished, now))
        return answers

    assert results() == results()


@given(CURVES, STEPS)
def test_a_container_may_start_at_the_end_of_its_delay_and_not_before(
    curve: Curve, steps: list[tuple[int, int]]
) -> None:
    table, now = BackoffTable(curve), 0
    for until_exit, until_request in steps:
        finished, now = now + until_exit, now + until_exit + until_request
        held = crash(table, finished, now)
        if held is not None:
            end = int((held.until - START).total_seconds())
            assert crash(table, finished, end - 1) == held
            assert crash(table, finished, end) is None
            now = end


@given(CURVES, STEPS, st.integers(0, 20))
def test_collect_at_the_time_of_an_exit_changes_nothing(curve: Curve, steps: list[tuple[int, int]], when: int) -> None:
    plain, collected, now = BackoffTable(curve), BackoffTable(curve), 0
    for index, (until_exit, until_request) in enumerate(steps):
        finished, now = now + until_exit, now + until_exit + until_request
        if index == when:
            collected.collect(at(finished))
        assert crash(plain, finished, now) == crash(collected, finished, now)
