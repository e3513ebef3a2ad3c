"""Rotation plans: what is removed, renamed and compressed. Only the oldest parts are lost."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.rules.logs.rotation import (
    NOTHING_TO_DO,
    RotationPlan,
    RotationPolicy,
    attempt_of,
    parts_of,
    rotation_plan,
    seconds_until_next_check,
    stale_files,
)

NOW = datetime(2026, 11, 15, 10, 0, 30, tzinfo=UTC)
POLICY = RotationPolicy(max_bytes=100, max_files=4)
A, B, C, D = (f"0.log.20261115-1000{second:02}" for second in (1, 2, 3, 4))
NEXT = "0.log.20261115-100030"
FULL = 100

CASES: dict[str, tuple[int, set[str], RotationPolicy, RotationPlan]] = {
    "a small log is not rotated": (99, {"0.log"}, POLICY, NOTHING_TO_DO),
    "a full one is rotated": (FULL, {"0.log"}, POLICY, RotationPlan(rotate_to=NEXT)),
    "so is one that is much too large": (10**12, {"0.log"}, POLICY, RotationPlan(rotate_to=NEXT)),
    "a missing log is not rotated": (0, set(), RotationPolicy(max_bytes=0), NOTHING_TO_DO),
    "rotation may be switched off": (10**12, {"0.log"}, RotationPolicy(max_bytes=None), NOTHING_TO_DO),
    "the newest part is not compressed": (5, {"0.log", A + ".gz", B}, POLICY, NOTHING_TO_DO),
    "until there is a newer one": (FULL, {"0.log", A}, POLICY, RotationPlan(rotate_to=NEXT, compress=(A,))),
    "the oldest part is removed": (
        FULL, {"0.log", A + ".gz", B + ".gz", C}, POLICY, RotationPlan((A + ".gz",), NEXT, (C,)),
    ),
    "two files are the current one and one more": (
        FULL, {"0.log", A}, RotationPolicy(max_bytes=100, max_files=2), RotationPlan((A,), NEXT),
    ),
    "with a lower limit the oldest parts are removed": (
        5, {"0.log", A + ".gz", B + ".gz", C}, RotationPolicy(max_files=2), RotationPlan((A + ".gz", B + ".gz")),
    ),
    "an uncompressed part is compressed after a crash": (
        5, {"0.log", A, B}, POLICY, RotationPlan(compress=(A,)),
    ),
    "an interrupted compression starts again": (
        5, {"0.log", A, A + ".tmp", B}, POLICY, RotationPlan((A + ".tmp",), compress=(A,)),
    ),
    "the original of a compressed part is removed": (
        5, {"0.log", A, A + ".gz", B}, POLICY, RotationPlan((A,)),
    ),
    "a part without a successor may still be written to": (0, {A + ".gz", B}, POLICY, NOTHING_TO_DO),
    "other logs and other files are ignored": (
        5, {"0.log", "1.log", "1.log.20261115-100001", "1.log.20261115-100002", "0.log.bak", "0.log.1.tmp", "10.log"},
        POLICY, NOTHING_TO_DO,
    ),
    "within the same second the next stamp is taken": (
        FULL, {"0.log", NEXT}, POLICY, RotationPlan(rotate_to="0.log.20261115-100031", compress=(NEXT,)),
    ),
    "a clock set back does not make a new part older": (
        FULL, {"0.log", "0.log.20271231-235959.gz"}, POLICY, RotationPlan(rotate_to="0.log.20271231-235960"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("size, names, policy, expected", CASES.values(), ids=CASES.keys())
def test_plan(size: int, names: set[str], policy: RotationPolicy, expected: RotationPlan) -> None:
    plan = rotation_plan("0.log", size, names, policy, NOW)
    assert (sorted(plan.remove), plan.rotate_to, plan.compress) == (
        sorted(expected.remove),
        expected.rotate_to,
        expected.compress,
    )


def test_stamps_are_in_utc() -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5)))
    assert rotation_plan("0.log", FULL, {"0.log"}, POLICY, elsewhere).rotate_to == NEXT


def test_parts_of_a_log_are_unique_and_oldest_first() -> None:
    names = ["0.log", C, A, A + ".gz", B + ".gz", D + ".tmp", "1.log.20261115-100009", "0.log.bak"]
    assert list(parts_of("0.log", names).values()) == [A + ".gz", B + ".gz", C]


OLD: dict[str, tuple[set[int], set[str]]] = {
    "logs of removed containers are stale, with all their parts": ({3}, {"1.log", "2.log", "2.log.20261115-100001.gz"}),
    "those of containers that are there stay": ({2, 3}, {"1.log"}),
    "all logs of a container that the runtime has lost are kept": (set(), set()),
    "logs newer than any container are kept": ({0}, set()),
}  # fmt: skip


@pytest.mark.parametrize("attempts, expected", OLD.values(), ids=OLD.keys())
def test_stale_files(attempts: set[int], expected: set[str]) -> None:
    names = ["1.log", "2.log", "2.log.20261115-100001.gz", "3.log", "note.txt"]
    assert set(stale_files(names, attempts)) == expected


PAUSES: dict[str, tuple[list[tuple[int, float]], float]] = {
    "no log grows": ([], 10),
    "slow logs use the full interval": ([(1000, 1.0), (1000, 0.0)], 10),
    "the fastest log decides": ([(1000, 1.0), (1000, 250.0)], 4),
    "a fast log uses the minimum interval": ([(1000, 1e9)], 1),
    "a full log is checked soon": ([(-5, 10.0)], 1),
    "one that shrinks is not growing": ([(5, -10.0)], 10),
}


@pytest.mark.parametrize("growing, seconds", PAUSES.values(), ids=PAUSES.keys())
def test_seconds_until_next_check(growing: list[tuple[int, float]], seconds: float) -> None:
    assert seconds_until_next_check(growing, RotationPolicy(interval_seconds=10)) == seconds


def test_a_short_interval_is_never_made_longer() -> None:
    assert seconds_until_next_check([(1000, 1e9)], RotationPolicy(interval_seconds=0.2)) == 0.2


# ---- laws ----


class Disk:
    """The files of one log, each with the numbers of its lines. A crash may happen at any step."""

    def __init__(self) -> None:
        self.files: dict[str, list[int]] = {"0.log": []}
        self.written = 0

    def write(self, lines: int) -> None:
        self.files["0.log"] += range(self.written, self.written + lines)
        self.written += lines

    def execute(self, plan: RotationPlan, steps: int) -> None:
        """Execute a plan, up to this number of steps."""
        actions: list[Callable[[], object]] = [partial(self.files.pop, name) for name in plan.remove]
        if plan.rotate_to:
            actions.append(partial(self._rotate, plan.rotate_to))
        for name in plan.compress:
            actions += [partial(self._begin, name), partial(self._finish, name), partial(self.files.pop, name)]
        for action in actions[:steps]:
            action()

    def _begin(self, name: str) -> None:
        self.files[f"{name}.tmp"] = self.files[name][:1]

    def _finish(self, name: str) -> None:
        self.files.pop(f"{name}.tmp")
        self.files[f"{name}.gz"] = list(self.files[name])

    def _rotate(self, to: str) -> None:
        assert to not in self.files
        self.files[to] = self.files.pop("0.log")
        self.files["0.log"] = []

    def lines(self) -> list[int]:
        parts = parts_of("0.log", self.files).values()
        return [line for name in (*parts, "0.log") for line in self.files[name]]


ROUNDS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 12), st.integers(-3, 3)), max_size=12
)  # lines written, steps until a crash, seconds passed


@given(ROUNDS, st.integers(2, 5), st.integers(1, 6))
def test_only_the_oldest_parts_are_lost_after_any_number_of_crashes(
    rounds: list[tuple[int, int, int]], max_files: int, max_lines: int
) -> None:
    disk, now, policy = Disk(), NOW, RotationPolicy(max_bytes=max_lines, max_files=max_files)
    for lines, steps, seconds in rounds:
        disk.write(lines)
        now += timedelta(seconds=seconds)
        plan = rotation_plan("0.log", len(disk.files["0.log"]), disk.files.keys(), policy, now)
        assert "0.log" not in (*plan.remove, *plan.compress)
        assert set(plan.remove) | set(plan.compress) <= disk.files.keys()
        before = disk.lines()
        disk.execute(plan, steps)
        after = disk.lines()
        assert after == before[len(before) - len(after) :]
        if len(after) < len(before):
            parts = parts_of("0.log", disk.files)
            assert len(parts) + 1 >= max_files - 1  # parts are lost only above the limit
        if steps == 12 and len(plan.remove) + len(plan.compress) * 3 < 12:
            assert len(disk.files) <= max_files
            assert rotation_plan("0.log", 0, disk.files.keys(), policy, now) == NOTHING_TO_DO


@given(st.from_regex(r"[0-9]{1,3}\.log(\.[0-9]{8}-[0-9]{6}(\.gz|\.tmp)?)?", fullmatch=True))
def test_the_name_of_a_log_file_contains_the_attempt(name: str) -> None:
    stamp = name.partition(".log.")[2]
    assert attempt_of(name) == (None if stamp.startswith("9") else int(name.partition(".")[0]))
