"""Backoff checkpoints after a restart, a reboot, a wall clock jump or damage."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.k8s.core import Container
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.rules.backoff.checkpoint import decode_checkpoint, encode_checkpoint, time_away
from podkeeper.rules.backoff.table import (
    DEFAULT_CURVE,
    BackoffEntry,
    BackoffRecord,
    BackoffTable,
    Curve,
    SeenExit,
    steady,
)
from podkeeper.testing import build

UID = PodUID("u1")
POD = build.pod("web", namespace="prod", uid=UID)
APP = Container(name="app", image="app:v1")
WALL = datetime(2026, 1, 1, tzinfo=UTC)
UPTIME = 5000.0  # when the checkpoint is written

AWAY = st.floats(0, 900)
JUMP = st.sampled_from([0.0, 7200.0, -7200.0, 3.0, -3.0])
SECONDS = st.floats(0, 1000).map(lambda each: timedelta(seconds=each))
CURVES = st.sampled_from([DEFAULT_CURVE, DEFAULT_CURVE.tuned(initial=timedelta(seconds=2), maximum=timedelta(hours=1))])
ENTRIES = st.builds(
    lambda key, curve, share, age, cause, exit_age: BackoffRecord(
        ("u1", key),
        BackoffEntry(curve.maximum * share, steady(UPTIME) - age, curve, cause),
        None if exit_age is None else SeenExit("c1", WALL - exit_age, steady(UPTIME) - exit_age),
    ),
    st.text(), CURVES, st.floats(0, 1), SECONDS, st.text(), st.none() | SECONDS,
)  # fmt: skip


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def exited(finished_at: datetime, id_: str = "c1") -> PodRecord:
    container = ContainerRecord(id=id_, name="app", state=RecordState.EXITED, finished_at=finished_at)
    return PodRecord(uid=UID, containers=(container,))


def crash_loop(table: BackoffTable, times: int, until: float) -> None:
    """Restart a container several times, each time after its delay. The last start is at `until`."""
    delays = [0, 10, 20, 40, 80, 160][:times]
    for number, delay in enumerate(delays):
        now = until - sum(delays[number + 1 :])
        seen = exited(WALL + seconds(now - delay), f"c{number}")
        assert table.begin_restart(POD, APP, seen, steady(now), None, WALL - steady(0)) is None


def restarted(table: BackoffTable, monotonic: float, wall: datetime, then: float, wall_then: datetime) -> BackoffTable:
    """The table of the next agent process, from a checkpoint that was written earlier."""
    checkpoint = encode_checkpoint(table.records(UID), steady(monotonic), wall)
    new = BackoffTable()
    new.restore(UID, decode_checkpoint(checkpoint, steady(then), wall_then))
    return new


@given(st.lists(ENTRIES, max_size=4))
def test_a_checkpoint_decoded_at_once_has_all_entries(entries: list[BackoffRecord]) -> None:
    now = steady(UPTIME)
    found = decode_checkpoint(encode_checkpoint(entries, now, WALL), now, WALL)
    assert found == tuple(replace(each, wall_ahead=WALL - now) for each in entries)


@given(AWAY, JUMP, st.floats(0, 290))
def test_within_one_boot_a_restart_and_a_wall_clock_jump_change_no_delay(
    away: float, jump: float, waited: float
) -> None:
    table = BackoffTable()
    crash_loop(table, 6, until=UPTIME - 300)  # the next delay is 300 s
    exit_at = UPTIME - waited
    seen = exited(WALL + seconds(exit_at), "last")
    ahead = WALL - steady(0)
    assert table.begin_restart(POD, APP, seen, steady(UPTIME), wall_ahead=ahead)
    then = UPTIME + away
    wall_then = WALL + seconds(then + jump)
    new = restarted(table, UPTIME, WALL + seconds(UPTIME), then, wall_then)
    expected = table.begin_restart(POD, APP, seen, steady(then), wall_ahead=ahead)
    found = new.begin_restart(POD, APP, seen, steady(then), wall_ahead=wall_then - steady(then))
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found.message == expected.message
        assert abs(found.until - expected.until) < seconds(0.001)


@given(st.floats(0, 10_000), JUMP, st.floats(0, 300), st.floats(0, 100))
def test_with_any_clock_jump_no_delay_exceeds_the_maximum(
    uptime_then: float, jump: float, exit_age: float, run: float
) -> None:
    entry = BackoffEntry(seconds(300), steady(UPTIME - exit_age - run), DEFAULT_CURVE)
    exit_ = SeenExit("c1", WALL - seconds(exit_age), steady(UPTIME - exit_age))
    checkpoint = encode_checkpoint([BackoffRecord(("u1", "image"), entry, exit_)], steady(UPTIME), WALL)
    now = steady(uptime_then)  # less than before, because the machine has rebooted
    (found,) = decode_checkpoint(checkpoint, now, WALL + seconds(jump))
    assert found.entry.updated_at <= now
    assert found.exit is not None
    assert found.exit.at <= now
    table = BackoffTable()
    table.restore(UID, [found])
    held = table.hold_pull(POD, "image", now)
    assert held is None or held.until <= now + DEFAULT_CURVE.maximum


CLOCKS = {
    "the same boot": (UPTIME + 40, 40, 40),
    "the same boot, and the wall clock jumped ahead": (UPTIME + 40, 7240, 40),
    "the same boot, and the wall clock was set back": (UPTIME + 40, -3600, 40),
    "a reboot": (25, 100, 100),
    "a reboot, and the wall clock was set back": (25, -100, 0),
    "a reboot long ago: the uptime is longer than before": (UPTIME + 40, 90_000, 40),
}


@pytest.mark.parametrize("uptime_then, wall_passed, expected", CLOCKS.values(), ids=CLOCKS.keys())
def test_age_of_a_checkpoint(uptime_then: float, wall_passed: float, expected: float) -> None:
    away = time_away(steady(UPTIME), WALL, steady(uptime_then), WALL + seconds(wall_passed))
    assert away == seconds(expected)


def test_the_delay_of_an_exit_during_downtime_that_seems_older_than_its_start_begins_now() -> None:
    """The wall clock jumped ahead while the agent was down. By that clock, the delay would have passed."""
    table, ahead = BackoffTable(), WALL - steady(0)
    crash_loop(table, 3, until=60)
    new = restarted(table, 60, WALL + seconds(60), 70, WALL + seconds(7270))
    held = new.begin_restart(POD, APP, exited(WALL + seconds(65), "c3"), steady(70), None, ahead + seconds(7200))
    assert held is not None
    assert held.until == steady(70 + 40)


LATE_JUMPS = {  # seconds by which the wall clock jumps ahead after the restart, and the end of the delay
    "no jump": (0, 660),
    "less than the container ran": (180, 660),
    "more than the container ran": (
        7200,
        661,
    ),  # older than its start: the delay begins when it is seen
    "back": (-180, 661),  # the exit is in the future, so the delay begins when it is seen
}


@pytest.mark.parametrize("jump, until", LATE_JUMPS.values(), ids=LATE_JUMPS.keys())
def test_a_wall_clock_jump_after_a_restart_before_an_exit_is_seen_shortens_no_delay(jump: float, until: float) -> None:
    table, ahead = BackoffTable(), WALL - steady(0)
    crash_loop(table, 5, until=200)  # the next delay is 160 s
    new = restarted(table, 200, WALL + seconds(200), 210, WALL + seconds(210))
    seen = exited(WALL + seconds(500), "c5")  # it ran for 300 s
    held = new.begin_restart(POD, APP, seen, steady(501), None, ahead + seconds(jump))
    assert held is not None
    assert held.until == steady(until)
    assert new.begin_restart(POD, APP, seen, steady(until), None, ahead + seconds(jump)) is None


@pytest.mark.parametrize("jump", [0, 100, -200, -1090])  # the last one: the exit is 10 s later by the former clock
def test_after_a_reboot_the_former_clock_extends_no_delay(jump: float) -> None:
    table = BackoffTable()
    crash_loop(table, 5, until=1000)
    booted = WALL + seconds(1100 + jump)  # when the new steady time is 0
    new = restarted(table, 1000, WALL + seconds(1000), 30, booted + seconds(30))
    seen = exited(booted + seconds(40), "c5")
    held = new.begin_restart(POD, APP, seen, steady(50), None, booted - steady(0))
    assert held is not None
    assert held.until == steady(40 + 160)


def test_a_restored_entry_is_limited_to_the_current_maximum() -> None:
    short = DEFAULT_CURVE.tuned(maximum=seconds(30))
    table = BackoffTable()
    table.pull_failed(POD, "image", "", steady(0))
    for _ in range(5):
        table.pull_failed(POD, "image", "", steady(10))
    new = restarted(table, 10, WALL, 10, WALL)
    held = new.hold_pull(POD, "image", steady(10), short)
    assert held is not None
    assert held.until == steady(40)


def test_a_restored_delay_of_a_pods_own_curve_continues_to_grow() -> None:
    patient = DEFAULT_CURVE.tuned(maximum=timedelta(hours=1))
    table = BackoffTable()
    for _ in range(8):
        table.pull_failed(POD, "image", "", steady(10), patient)
    new = restarted(table, 10, WALL, 10, WALL)
    new.pull_failed(POD, "image", "", steady(20), patient)
    assert [each.entry.delay for each in new.records(UID)] == [seconds(10 * 2**8)]


def test_the_delay_of_a_container_started_after_the_restart_begins_with_its_exit() -> None:
    table, ahead = BackoffTable(), WALL - steady(0)
    crash_loop(table, 2, until=100)
    new = restarted(table, 100, WALL + seconds(100), 110, WALL + seconds(110))
    assert new.begin_restart(POD, APP, exited(WALL + seconds(115), "c2"), steady(140), None, ahead) is None
    # The wall clock jumps ahead by two hours between the next exit and its inspection.
    seen = exited(WALL + seconds(160), "c3")
    held = new.begin_restart(POD, APP, seen, steady(165), None, ahead + seconds(7200))
    assert held is not None
    assert held.until == steady(160 + 40)


def test_a_long_run_across_a_restart_resets_the_backoff() -> None:
    table, ahead = BackoffTable(), WALL - steady(0)
    crash_loop(table, 4, until=400)
    new = restarted(table, 400, WALL + seconds(400), 1100, WALL + seconds(1100))
    assert new.begin_restart(POD, APP, exited(WALL + seconds(1001), "c9"), steady(1100), None, ahead) is None
    assert [each.entry.delay for each in new.records(UID)] == [seconds(10)]


# A checkpoint outlives the agent that wrote it: the next version must still decode it, with the same origin of steady
# time.
RECORDED = (
    b'{"steady":"1970-01-01T01:23:20Z","wall":"2026-01-01T00:00:00Z","entries":[{"key":["u1","image"],'
    b'"delay":"PT40S","age":"PT30S",'
    b'"curve":{"initial":"PT10S","maximum":"PT300S","stable_after":"PT600S"},"cause":"ErrImagePull",'
    b'"exit":{"id":"c1","finished_at":"2025-12-31T23:59:50Z","age":"PT10S"}}]}'
)


def test_a_checkpoint_of_an_older_version_can_be_decoded() -> None:
    entry = BackoffEntry(seconds(40), steady(UPTIME - 30), DEFAULT_CURVE, "ErrImagePull")
    exit_ = SeenExit("c1", WALL - seconds(10), steady(UPTIME - 10))
    expected = BackoffRecord(("u1", "image"), entry, exit_, wall_ahead=WALL - steady(UPTIME))
    assert decode_checkpoint(RECORDED, steady(UPTIME + 5), WALL + seconds(5)) == (expected,)


@given(st.binary())
def test_random_bytes_give_no_entries(junk: bytes) -> None:
    assert decode_checkpoint(junk, steady(0), WALL) == ()


GOOD = encode_checkpoint(
    [BackoffRecord(("u1", "i"), BackoffEntry(seconds(20), steady(1), DEFAULT_CURVE), SeenExit("c", WALL, steady(1)))],
    steady(2),
    WALL,
)
DAMAGED = {
    "truncated": GOOD[:-7],
    "a time without a zone": GOOD.replace(b"00Z", b"00"),
    "an impossible curve": GOOD.replace(b'"maximum":"PT300S"', b'"maximum":"PT1S"'),
    "an age that overflows": GOOD.replace(b'"age":"PT1S"', b'"age":"P900000000D"'),
    "another JSON object": b'{"some": "thing"}',
}


@pytest.mark.parametrize("checkpoint", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_checkpoint_gives_no_entries(checkpoint: bytes) -> None:
    assert decode_checkpoint(GOOD, steady(2), WALL) != ()
    assert checkpoint != GOOD
    assert decode_checkpoint(checkpoint, steady(2), WALL) == ()


@pytest.mark.parametrize("delay", ["-PT5S", "PT99999S"])
def test_a_delay_out_of_range_is_clamped(delay: str) -> None:
    checkpoint = msgspec.json.decode(GOOD)
    checkpoint["entries"][0]["delay"] = delay
    (found,) = decode_checkpoint(msgspec.json.encode(checkpoint), steady(2), WALL)
    assert seconds(0) <= found.entry.delay <= DEFAULT_CURVE.maximum


# Which pods are to be noted.


def test_a_table_reports_changed_pods_and_drops_removed_pods() -> None:
    table = BackoffTable(Curve(seconds(1), seconds(2), seconds(10)))
    table.pull_failed(POD, "image", "", steady(0))
    table.begin_restart(POD, APP, exited(WALL), steady(0))
    assert table.take_changed() == (UID,)
    assert table.hold_pull(POD, "image", steady(0.5)) is not None
    assert table.begin_restart(POD, APP, exited(WALL), steady(0.5)) is not None
    table.collect(steady(5))
    assert table.take_changed() == ()  # a delay changes nothing
    table.collect(steady(5), is_gone=lambda uid: uid == UID)
    assert table.take_changed() == (UID,)
    assert (table.records(UID), len(table)) == ((), 0)
