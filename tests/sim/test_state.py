"""State files of campaigns: results are restored, and files that do not match are refused."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from podkeeper.model.messages import PodUID
from podkeeper.testing.sim.campaign import SeedResult
from podkeeper.testing.sim.profile import Profile
from podkeeper.testing.sim.run import SimPlan
from podkeeper.testing.sim.state import StateFile, StateRefused
from podkeeper.testing.sim.trace import TraceLine
from podkeeper.testing.sim.world import Violation

PLAN = SimPlan(seed=0, hours=2.0)
SEEDS = range(10)


def result(seed: int, violation: Violation | None = None) -> SeedResult:
    return SeedResult(
        plan=replace(PLAN, seed=seed),
        violation=violation,
        hash=f"{seed:04x}",
        seconds=7200.0,
        cpu_seconds=1.25,
        actions=30,
        length=400,
        agents=3,
        pods_alive=9.5,
        checks=Counter(I1=7),
        fault_counts=Counter(crash=2),
        lines=(TraceLine(1.5, "u1", "agent 1 starts"),) if violation else (),
    )


BROKEN = result(3, Violation("I7", 12.5, PodUID("u1"), "something changed"))


def saved(path: Path, plan: SimPlan = PLAN, seeds: range = SEEDS, also: str = "") -> list[SeedResult]:
    with StateFile.opened(path, plan, seeds, also) as state:
        return list(state.results())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with two results."""
    path = tmp_path / "campaign"
    with StateFile.opened(path, PLAN, SEEDS) as state:
        state.append(result(1))
        state.append(BROKEN)
    return path


def test_results_are_read_in_their_order_of_arrival(path: Path) -> None:
    assert saved(path) == [result(1), BROKEN]


def test_a_campaign_continues_with_the_missing_seeds(path: Path) -> None:
    with StateFile.opened(path, PLAN, SEEDS) as state:
        state.append(result(0))
    assert saved(path) == [result(1), BROKEN, result(0)]


def test_a_result_is_in_the_file_as_soon_as_it_is_appended(path: Path) -> None:
    with StateFile.opened(path, PLAN, SEEDS) as state:
        before = path.read_bytes()
        state.append(result(5))
        assert path.read_bytes().startswith(before)
        assert path.read_bytes().count(b"\n") == 4


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_an_incomplete_result_is_dropped_and_can_be_written_again(path: Path, cut: int) -> None:
    path.write_bytes(path.read_bytes()[:-cut])
    assert saved(path) == [result(1)]
    with StateFile.opened(path, PLAN, SEEDS) as state:
        state.append(BROKEN)
    assert saved(path) == [result(1), BROKEN]


@pytest.mark.parametrize("length", [0, 5, 60])
def test_a_file_with_an_incomplete_header_starts_again(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])
    assert saved(path) == []
    assert saved(path) == []


OTHERS = {
    "hours": (replace(PLAN, hours=3.0), SEEDS),
    "faults": (replace(PLAN, faults=("crash",)), SEEDS),
    "workload": (replace(PLAN, workload=("jobs",)), SEEDS),
    "profile": (replace(PLAN, profile=Profile(pods=3.0)), SEEDS),
    "seeds": (PLAN, range(20)),
}


@pytest.mark.parametrize("option", OTHERS)
def test_a_file_with_other_options_is_refused(path: Path, option: str) -> None:
    plan, seeds = OTHERS[option]
    before = path.read_bytes()
    with pytest.raises(StateRefused, match=f"{option}: .* in the file, .* now.*To start again, remove the file"):
        saved(path, plan, seeds)
    assert path.read_bytes() == before


def test_a_file_with_other_invariants_is_refused(path: Path) -> None:
    with pytest.raises(StateRefused, match="also: none in the file"):
        saved(path, also="tests.sim.planted:no_odd_seeds")


def test_a_file_of_another_version_of_the_code_is_refused(path: Path) -> None:
    with StateFile.opened(path, PLAN, SEEDS):
        header, _, rest = path.read_text().partition("\n")
    code = header.partition('"code":"')[2].partition('"')[0]
    path.write_text(f"{header.replace(code, 'another')}\n{rest}")
    with pytest.raises(StateRefused, match=r"another version of the code.*To start again, remove the file"):
        saved(path)


@pytest.mark.parametrize(
    "content",
    [b"a letter to a friend\n", b"a letter", b'{"some": "json"}\n', b'{"podkeeper_sim": 1, "code": "\xff"}\n'],
)
def test_another_file_is_refused_and_not_changed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "letter"
    path.write_bytes(content)
    with pytest.raises(StateRefused, match="not the state file of a campaign"):
        saved(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b'{"seed": 1, "viol', id="cut off"),
        pytest.param(b'{"seed": 1, "hash": "\xff"}', id="not UTF-8"),
        pytest.param(b'{"x": ' + b"[" * 2000, id="too deep"),
    ],
)
def test_a_damaged_line_is_reported(path: Path, line: bytes) -> None:
    header, _, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join((header, line, second, b"")))
    with pytest.raises(StateRefused, match="line 2 is damaged"):
        saved(path)


@pytest.mark.parametrize(
    "seed, problem",
    [
        pytest.param(1, "line 4 repeats seed 1: remove one of the two lines", id="known already"),
        pytest.param(999, "line 4 has seed 999, which is not in 0:10: remove that line", id="of another campaign"),
    ],
)
def test_a_result_that_does_not_belong_in_the_file_is_reported(path: Path, seed: int, problem: str) -> None:
    with StateFile.opened(path, PLAN, SEEDS) as state:
        state.append(result(seed))
    with pytest.raises(StateRefused) as refused:
        saved(path)
    assert str(refused.value) == f"cannot continue {path}: {problem}"


def test_a_file_in_use_is_refused(path: Path) -> None:
    with StateFile.opened(path, PLAN, SEEDS), pytest.raises(StateRefused, match="another campaign is using it"):
        saved(path)


def test_a_fifo_or_directory_is_refused(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    for path in (pipe, Path("/dev/null"), Path("/dev/full")):
        with pytest.raises(StateRefused, match=f"cannot use {path}: it is not a regular file"):
            saved(path)


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateRefused, match="No such file or directory"):
        saved(tmp_path / "missing" / "campaign")
