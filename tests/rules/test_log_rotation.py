"""Rotation as a decision: what is removed, renamed and compressed, and that nothing but the oldest is ever lost."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.rules.log_rotation import (
    NOTHING_TO_DO,
    Plan,
    Policy,
    attempt_of,
    outdated,
    parts_of,
    pause_seconds,
    plan_of,
)

NOW = datetime(2026, 11, 15, 10, 0, 30, tzinfo=UTC)
POLICY = Policy(max_bytes=100, max_files=4)
A, B, C, D = (f"0.log.20261115-1000{second:02}" for second in (1, 2, 3, 4))
NEXT = "0.log.20261115-100030"
FULL = 100

CASES: dict[str, tuple[int, set[str], Policy, Plan]] = {
    "a log with room in it is left alone": (99, {"0.log"}, POLICY, NOTHING_TO_DO),
    "a full one is rotated": (FULL, {"0.log"}, POLICY, Plan(rotate_to=NEXT)),
    "so is one that is much too large": (10**12, {"0.log"}, POLICY, Plan(rotate_to=NEXT)),
    "one that nobody has yet is not": (0, set(), Policy(max_bytes=0), NOTHING_TO_DO),
    "rotation may be switched off": (10**12, {"0.log"}, Policy(max_bytes=None), NOTHING_TO_DO),
    "the newest part stays as it was written": (5, {"0.log", A + ".gz", B}, POLICY, NOTHING_TO_DO),
    "until there is a newer one": (FULL, {"0.log", A}, POLICY, Plan(rotate_to=NEXT, compress=(A,))),
    "the oldest part makes room": (
        FULL, {"0.log", A + ".gz", B + ".gz", C}, POLICY, Plan((A + ".gz",), NEXT, (C,)),
    ),
    "two files are the one that is written and one more": (
        FULL, {"0.log", A}, Policy(max_bytes=100, max_files=2), Plan((A,), NEXT),
    ),
    "who may keep less than there is loses the oldest": (
        5, {"0.log", A + ".gz", B + ".gz", C}, Policy(max_files=2), Plan((A + ".gz", B + ".gz")),
    ),
    "what somebody who died did not compress is compressed": (
        5, {"0.log", A, B}, POLICY, Plan(compress=(A,)),
    ),
    "what he had begun is begun again": (
        5, {"0.log", A, A + ".tmp", B}, POLICY, Plan((A + ".tmp",), compress=(A,)),
    ),
    "what he had compressed and not removed is removed": (
        5, {"0.log", A, A + ".gz", B}, POLICY, Plan((A,)),
    ),
    "a part without a successor may still be written to": (0, {A + ".gz", B}, POLICY, NOTHING_TO_DO),
    "other logs and other files are not its business": (
        5, {"0.log", "1.log", "1.log.20261115-100001", "1.log.20261115-100002", "0.log.bak", "0.log.1.tmp", "10.log"},
        POLICY, NOTHING_TO_DO,
    ),
    "within the same second the next stamp is taken": (
        FULL, {"0.log", NEXT}, POLICY, Plan(rotate_to="0.log.20261115-100031", compress=(NEXT,)),
    ),
    "a clock that was put back does not make a new part an old one": (
        FULL, {"0.log", "0.log.20271231-235959.gz"}, POLICY, Plan(rotate_to="0.log.20271231-235960"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("size, names, policy, expected", CASES.values(), ids=CASES.keys())
def test_plan(size: int, names: set[str], policy: Policy, expected: Plan) -> None:
    plan = plan_of("0.log", size, names, policy, NOW)
    assert (sorted(plan.remove), plan.rotate_to, plan.compress) == (
        sorted(expected.remove),
        expected.rotate_to,
        expected.compress,
    )


def test_stamps_are_in_utc() -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5)))
    assert plan_of("0.log", FULL, {"0.log"}, POLICY, elsewhere).rotate_to == NEXT


def test_the_parts_of_a_log_are_told_oldest_first_and_once_each() -> None:
    names = ["0.log", C, A, A + ".gz", B + ".gz", D + ".tmp", "1.log.20261115-100009", "0.log.bak"]
    assert list(parts_of("0.log", names).values()) == [A + ".gz", B + ".gz", C]


OLD: dict[str, tuple[set[int], set[str]]] = {
    "the logs of removed containers go, with all their parts": ({3}, {"1.log", "2.log", "2.log.20261115-100001.gz"}),
    "those of containers that are there stay": ({2, 3}, {"1.log"}),
    "of a container that the runtime has lost all is kept": (set(), set()),
    "what is newer than any container may be about to be used": ({0}, set()),
}  # fmt: skip


@pytest.mark.parametrize("attempts, expected", OLD.values(), ids=OLD.keys())
def test_outdated(attempts: set[int], expected: set[str]) -> None:
    names = ["1.log", "2.log", "2.log.20261115-100001.gz", "3.log", "note.txt"]
    assert set(outdated(names, attempts)) == expected


PAUSES: dict[str, tuple[list[tuple[int, float]], float]] = {
    "nothing is written": ([], 10),
    "slow writers are no reason to hurry": ([(1000, 1.0), (1000, 0.0)], 10),
    "the fastest one decides": ([(1000, 1.0), (1000, 250.0)], 4),
    "even a flood leaves time to breathe": ([(1000, 1e9)], 1),
    "a log that is full already is seen soon": ([(-5, 10.0)], 1),
    "one that shrinks is not growing": ([(5, -10.0)], 10),
}


@pytest.mark.parametrize("growing, seconds", PAUSES.values(), ids=PAUSES.keys())
def test_pause(growing: list[tuple[int, float]], seconds: float) -> None:
    assert pause_seconds(growing, Policy(interval_seconds=10)) == seconds


def test_a_short_interval_is_never_made_longer() -> None:
    assert pause_seconds([(1000, 1e9)], Policy(interval_seconds=0.2)) == 0.2


# ---- laws ----


class Disk:
    """The files of one log, each with the numbers of the lines in it; and somebody who may die at any step."""

    def __init__(self) -> None:
        self.files: dict[str, list[int]] = {"0.log": []}
        self.written = 0

    def write(self, lines: int) -> None:
        self.files["0.log"] += range(self.written, self.written + lines)
        self.written += lines

    def obey(self, plan: Plan, steps: int) -> None:
        """Carry a plan out, up to so many steps."""
        deeds: list[Callable[[], object]] = [partial(self.files.pop, name) for name in plan.remove]
        if plan.rotate_to:
            deeds.append(partial(self._rotate, plan.rotate_to))
        for name in plan.compress:
            deeds += [partial(self._begin, name), partial(self._finish, name), partial(self.files.pop, name)]
        for deed in deeds[:steps]:
            deed()

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
)  # lines written, steps until death, seconds passed


@given(ROUNDS, st.integers(2, 5), st.integers(1, 6))
def test_nothing_is_lost_but_the_oldest_however_often_somebody_dies(
    rounds: list[tuple[int, int, int]], max_files: int, max_lines: int
) -> None:
    disk, now, policy = Disk(), NOW, Policy(max_bytes=max_lines, max_files=max_files)
    for lines, steps, seconds in rounds:
        disk.write(lines)
        now += timedelta(seconds=seconds)
        plan = plan_of("0.log", len(disk.files["0.log"]), disk.files.keys(), policy, now)
        assert "0.log" not in (*plan.remove, *plan.compress)
        assert set(plan.remove) | set(plan.compress) <= disk.files.keys()
        before = disk.lines()
        disk.obey(plan, steps)
        after = disk.lines()
        assert after == before[len(before) - len(after) :]
        if len(after) < len(before):
            parts = parts_of("0.log", disk.files)
            assert len(parts) + 1 >= max_files - 1  # only who has as many as allowed loses any
        if steps == 12 and len(plan.remove) + len(plan.compress) * 3 < 12:
            assert len(disk.files) <= max_files
            assert plan_of("0.log", 0, disk.files.keys(), policy, now) == NOTHING_TO_DO


@given(st.from_regex(r"[0-9]{1,3}\.log(\.[0-9]{8}-[0-9]{6}(\.gz|\.tmp)?)?", fullmatch=True))
def test_whose_log_a_file_is_part_of(name: str) -> None:
    stamp = name.partition(".log.")[2]
    assert attempt_of(name) == (None if stamp.startswith("9") else int(name.partition(".")[0]))
