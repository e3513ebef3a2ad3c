"""`podkeeper sim`, called as a person would call it: short plays, real processes."""

import json
import os
import shlex
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.app.cli import main
from podkeeper.app.cli.sim_progress import time_shown
from podkeeper.testing.sim.invariants import INVARIANTS
from podkeeper.testing.sim.mischief import FAULTS
from podkeeper.testing.sim.play import Plan
from podkeeper.testing.sim.profile import Profile
from podkeeper.testing.sim.spelling import (
    choice_read,
    choice_shown,
    command_for,
    numbers_read,
    numbers_shown,
    profile_read,
    profile_shown,
    seeds_read,
)
from podkeeper.testing.sim.timeline import BETWEEN, FIRST, LAST, concerned, elided
from podkeeper.testing.sim.trace import Line
from podkeeper.testing.sim.workload import WORKLOADS

QUIET = ("--hours", "0.1", "--faults", "none", "--workload", "servers,jobs")
PLANTED = (
    *("--hours", "0.3", "--faults", "repeated-events", "--profile", "repeated-events=20", "--workload", "deletes"),
    *("--also", "tests.sim.planted:no_deletion_after_trouble"),
)
HERE = Path(__file__).parent.parent.parent


def call(*arguments: str, **env: str) -> Result:
    return CliRunner(env=env).invoke(main, ["sim", *arguments])


@cache
def quiet() -> str:
    result = call("--seeds", "0:3", *QUIET)
    assert result.exit_code == 0, result.output
    return result.output


@cache
def planted() -> str:
    result = call("--seed", "1", *PLANTED)
    assert result.exit_code == 1, result.output
    return result.output


def line_with(start: str, text: str) -> str:
    (found,) = (line for line in text.splitlines() if line.strip().startswith(start))
    return found.strip()


# What a campaign tells.


def test_a_campaign_says_what_it_plays_and_what_came_of_it() -> None:
    assert "seeds 0 to 2" in line_with("Simulating", quiet())
    for line in Profile().described():
        assert line.split(":")[0].split(",")[0] in quiet()
    assert line_with("workload  ", quiet()).endswith(f"servers,jobs (2 of {len(WORKLOADS)} kinds)")
    assert line_with("faults  ", quiet()).endswith(f"none (0 of {len(FAULTS)} kinds)")
    assert line_with("3 seeds,", quiet()).startswith("3 seeds, 0.3 virtual hours in ")
    assert "No promise was broken." in quiet()
    for name, meaning in INVARIANTS.items():
        assert line_with(f"{name} ", quiet()).endswith(meaning)


def test_the_same_seeds_give_the_same_hash_whoever_plays_them_and_however_strings_are_hashed() -> None:
    again = call("--seeds", "0:3", "--jobs", "1", *QUIET, "--json", PYTHONHASHSEED="7")
    data = json.loads(again.stdout)
    assert f"hash {data['hash']}" == line_with("hash", quiet())
    assert [result["seed"] for result in data["results"]] == [0, 1, 2]
    assert len({result["hash"] for result in data["results"]}) == 3
    assert all(result["cpu_seconds_per_hour"] > 0 and result["broken"] is None for result in data["results"])
    assert data["violations"] == []


def test_the_whole_trace_can_be_printed() -> None:
    everything = call("--seed", "0", *QUIET, "--timeline", "all").output
    assert "==== agent 1 starts" in everything
    assert len({line.split()[3] for line in everything.splitlines() if "API: pod" in line}) > 1


def test_the_timeline_of_an_unknown_pod_is_named_and_the_campaign_ends_as_usual() -> None:
    result = call("--seed", "0", "--jobs", "1", *QUIET, "--timeline", "nosuch")
    assert result.exit_code == 0
    assert result.stderr == "pod nosuch not found in the trace\n"
    assert "No promise was broken." in result.stdout


# What a failure tells.


def test_a_failure_is_told_in_the_same_way_if_a_timeline_is_asked_for() -> None:
    def told(*arguments: str) -> list[str]:
        result = call("--seed", "1", *PLANTED, "--no-shrink", *arguments)
        assert result.exit_code == 1
        lines = result.stdout.splitlines()
        first, end = (lines.index(line_with(start, result.stdout)) for start in ("BROKEN by seed 1", "1 seed,"))
        return lines[first:end]

    assert told("--timeline", "nosuch") == told("--timeline", "all") == told()


def test_a_failure_names_the_promise_and_the_command_that_plays_it_again() -> None:
    assert "planted broken after" in line_with("BROKEN by seed 1", planted())
    command = line_with("again:", planted()).removeprefix("again:").strip()
    assert command.startswith("podkeeper sim --seed 1 --hours 0.3 --faults repeated-events --workload deletes")
    again = call(*shlex.split(command)[2:], "--no-shrink")
    assert again.exit_code == 1
    assert line_with("BROKEN", again.output) == line_with("BROKEN", planted())


def test_a_failure_is_shrunk_to_the_acts_it_takes_and_these_alone_break_it_too() -> None:
    words = planted().splitlines()
    first = next(index for index, line in enumerate(words) if "acts are enough, none can be spared" in line)
    create, other, delete = words[first + 1 : first + 4]
    assert "[deletes] create" in create + other
    assert "[repeated-events]" in create + other
    assert "[deletes] delete" in delete
    assert words[first + 4].strip().startswith("Then planted broken")
    command = line_with("shorter:", planted()).removeprefix("shorter:").strip()
    again = call(*shlex.split(command)[2:], "--no-shrink")
    assert again.exit_code == 1
    then = line_with("Then", planted()).removeprefix("Then ")
    assert line_with("BROKEN", again.output) == f"BROKEN by seed 1: {then}"


def test_a_failure_shows_what_happened_to_the_pod_up_to_the_break() -> None:
    words = planted().splitlines()
    first = next(index for index, line in enumerate(words) if "What happened to pod" in line)
    timeline = words[first + 1 : words.index("", first)]
    assert timeline[-1].endswith("planted is BROKEN")
    for part in (
        "**** act",
        "!!!! trouble: repeated-events",
        "is new: Pending",
        "runtime.start_container",
        "running r0",
    ):
        assert any(part in line for line in timeline)
    assert len({line.split()[3] for line in timeline if "API: pod" in line}) == 1


def test_one_failure_of_each_kind_is_told_at_length_and_all_seeds_are_named() -> None:
    result = call("--seeds", "0:4", "--jobs", "1", *QUIET, "--also", "tests.sim.planted:no_odd_seeds")
    assert result.exit_code == 1
    assert "even broken" in line_with("BROKEN by seed 1", result.output)
    assert "BROKEN by seed 3" not in result.output
    assert "2 seeds broke a promise: 1 (even), 3 (even)" in result.output
    assert line_with("shorter:", result.output).endswith("--only none")


def test_fail_fast_stops_at_the_first_failure() -> None:
    result = call("--seeds", "0:50", "--jobs", "1", *QUIET, "--fail-fast", "--also", "tests.sim.planted:no_odd_seeds")
    assert result.exit_code == 1
    assert line_with("2 of 50 seeds", result.output)


def test_a_play_that_falls_over_is_a_failure_like_any_other() -> None:
    result = call("--seed", "5", *QUIET, "--no-shrink", "--also", "tests.sim.planted:no_play_at_all", "--json")
    assert result.exit_code == 1
    (failure,) = json.loads(result.stdout)["violations"]
    assert (failure["invariant"], failure["seed"]) == ("play", 5)
    assert "nothing to divide by in seed 5" in failure["message"]


def test_ctrl_c_ends_with_a_summary_of_what_was_done() -> None:
    command = (sys.executable, "-c", "from podkeeper.app.cli import main; main()")
    done = subprocess.run(
        [
            *command,
            "sim",
            "--seeds",
            "0:50",
            *QUIET,
            "--jobs",
            "1",
            "--also",
            "tests.sim.planted:interrupted_at_the_fourth",
        ],
        capture_output=True,
        text=True,
        cwd=HERE,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{HERE / 'src'}:{HERE}"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # in the background it would be ignored
    )
    assert done.returncode == 130, done.stderr
    assert " of 50 seeds, " in done.stdout
    assert "Traceback" not in done.stderr


def test_a_campaign_that_was_killed_is_continued_and_covers_all_seeds(tmp_path: Path) -> None:
    state, marker = tmp_path / "campaign", tmp_path / "killed"
    also = ("--also", "tests.sim.planted:killed_once")
    arguments = ("--seeds", "0:3", *QUIET, "--jobs", "1", *also, "--state", str(state))
    killed = subprocess.run(
        [sys.executable, "-c", "from podkeeper.app.cli import main; main()", "sim", *arguments],
        capture_output=True,
        cwd=HERE,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{HERE / 'src'}:{HERE}", "KILLED_ONCE": str(marker)},
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    known = len(state.read_bytes().splitlines()) - 1
    assert known in (1, 2)
    continued = call(*arguments, KILLED_ONCE=str(marker))
    assert continued.exit_code == 0, continued.output
    assert line_with("3 seeds, ", continued.output).endswith(f"{known} of them were played before.")
    assert line_with("hash", continued.output) == line_with("hash", quiet())
    for name in INVARIANTS:
        assert line_with(f"{name} ", continued.output) == line_with(f"{name} ", quiet())
    # All is played: nothing is left to do but to tell.
    again = call(*arguments, "--json", KILLED_ONCE=str(marker))
    data = json.loads(again.stdout)
    assert (data["seeds"], data["seeds_played_before"]) == (3, 3)
    assert f"hash {data['hash']}" == line_with("hash", quiet())


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (7500, "2 h 5 min")]
)
def test_the_time_left_is_shown_in_two_units(seconds: float, text: str) -> None:
    assert time_shown(seconds) == text


# What is refused.

BAD = {
    "the state of a single seed": (("--state", "campaign"), ["--state requires --seeds"]),
    "a state file that is something else": (
        ("--seeds", "0:3", "--state", __file__),
        ["--state: ", "not the state file of a campaign"],
    ),
    "a fault nobody knows": (("--faults", "crash,carsh"), ["there is no 'carsh'", FAULTS["crash"]]),
    "a workload nobody knows": (("--workload", "all,-srv"), ["there is no 'srv'", WORKLOADS["servers"]]),
    "seeds without an end": (("--seeds", "3"), ["FIRST:LAST"]),
    "seeds backwards": (("--seeds", "5:3"), ["FIRST:LAST"]),
    "a seed and seeds": (("--seeds", "0:3", "--seed", "1"), ["mutually exclusive"]),
    "acts of many seeds": (("--seeds", "0:3", "--only", "1"), ["single --seed"]),
    "acts that the seed does not have": (
        ("--only", "1,9998-9999", "--hours", "0.05"),
        ["--only: seed 0 has no act 9998-9999 (its acts: 1 to "],
    ),
    "acts that are no numbers": (("--only", "1,x"), ["cannot read 'x'"]),
    "a profile key nobody knows": (("--profile", "pots=3"), ["'pots=3'", "pods", "polite", "crash"]),
    "a profile value that is no number": (("--profile", "pods=many"), ["'pods=many'"]),
    "invariants that are not there": (("--also", "tests.sim.planted:nothing"), ["MODULE:FUNCTION"]),
    "a log level nobody knows": (("--log", "loud"), ["loud"]),
}


@pytest.mark.parametrize("arguments, words", BAD.values(), ids=BAD.keys())
def test_bad_usage_is_refused_and_says_what_would_be_right(arguments: tuple[str, ...], words: list[str]) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    for word in words:
        assert word in result.output


def test_the_list_shows_every_name_with_its_meaning() -> None:
    output = call("--list").output
    for name, meaning in {**FAULTS, **WORKLOADS}.items():
        assert line_with(f"{name} ", output).endswith(meaning)


# How plans are spelled.

KNOWN = ("a", "b", "c", "d")
CHOICES = {
    "everything": ("all", KNOWN),
    "nothing": ("none", ()),
    "some, in the order they are known": ("c,a", ("a", "c")),
    "all but one": ("all,-b", ("a", "c", "d")),
    "all but one, shorter": ("-b", ("a", "c", "d")),
    "spaces do no harm": (" a , b ", ("a", "b")),
}


@pytest.mark.parametrize("text, names", CHOICES.values(), ids=CHOICES.keys())
def test_choices(text: str, names: tuple[str, ...]) -> None:
    assert choice_read(text, KNOWN) == names


@given(st.sets(st.sampled_from(KNOWN)))
def test_a_choice_is_read_as_it_is_shown(names: set[str]) -> None:
    chosen = tuple(name for name in KNOWN if name in names)
    assert choice_read(choice_shown(chosen, KNOWN), KNOWN) == chosen


@given(st.frozensets(st.integers(1, 50)))
def test_numbers_are_read_as_they_are_shown(numbers: frozenset[int]) -> None:
    assert numbers_read(numbers_shown(numbers)) == numbers


def test_neighbouring_numbers_are_shown_together() -> None:
    assert numbers_shown([20, 3, 21, 17, 22]) == "3,17,20-22"


def test_the_last_seed_is_not_included() -> None:
    assert list(seeds_read("3:6")) == [3, 4, 5]


def test_a_profile_is_read_as_it_is_shown() -> None:
    changes = ["pods=30.5", "life_minutes=2.0:5.0", "graces_seconds=0:7", "jobs=9.0", "crash=0.5"]
    profile = profile_read(changes, Profile())
    assert (profile.pods, profile.life_minutes, profile.graces_seconds) == (30.5, (2.0, 5.0), (0, 7))
    assert (profile.shares["jobs"], profile.fault_rates["crash"]) == (9.0, 0.5)
    assert sorted(profile_shown(profile)) == sorted(changes)


def test_the_command_for_a_plan_names_what_is_unusual_about_it() -> None:
    assert command_for(Plan(seed=3)) == "podkeeper sim --seed 3 --hours 6"
    plan = Plan(seed=3, hours=0.25, faults=(), only=frozenset({4, 9}), profile=profile_read(["pods=3"], Profile()))
    assert command_for(plan) == "podkeeper sim --seed 3 --hours 0.25 --faults none --profile pods=3.0 --only 4,9"


# Timelines.

LINES = (
    Line(100.0, "", "==== agent 1 starts"),
    Line(900.0, "", "**** act 1: create web"),
    Line(900.0, "u1", "API: pod web_default is new: Pending, ready - (by somebody)"),
    Line(901.0, "u9", "API: pod other_default is new: Pending, ready - (by somebody)"),
    Line(902.0, "u1", "agent 1 -> runtime.run_sandbox "),
    Line(903.0, "", "agent 1 -> api.create web"),
    Line(903.0, "", "agent 1 -> api.create web.18867251edfa0000"),
    Line(904.0, "u9", "!!!! trouble: hung-calls"),
    Line(905.0, "u2", "agent 1 is told ADD web_default (file)"),
    Line(906.0, "u3", "agent 1 is told ADD web_elsewhere (file)"),
)
CONCERNED = {
    "of a UID: all of its full name, and the node shortly before and meanwhile": ("u1", [1, 2, 4, 5, 8]),
    "of its namesake: the same": ("u2", [1, 2, 4, 5, 8]),
    "of a name: in all namespaces": ("web", [1, 2, 4, 5, 8, 9]),
    "of a name with its namespace": ("elsewhere/web", [1, 5, 9]),
    "of nobody: the node": ("", [0, 1]),
}


@pytest.mark.parametrize("whom, expected", CONCERNED.values(), ids=CONCERNED.keys())
def test_what_concerns_a_pod(whom: str, expected: list[int]) -> None:
    assert [LINES.index(line) for line in concerned(LINES, whom)] == expected


def test_of_a_long_timeline_the_middle_is_left_out_save_landmarks() -> None:
    lines = [Line(float(at), "u", "**** act" if at == 500 else f"something {at}") for at in range(1000)]
    shown = list(elided(lines))
    assert shown[:FIRST] == list(map(str, lines[:FIRST]))
    assert shown[-LAST:] == list(map(str, lines[-LAST:]))
    before, act, after = shown[FIRST:-LAST]
    assert act == str(lines[500])
    assert (before.split()[1], after.split()[1]) == (str(500 - FIRST), str(499 - LAST))


def test_a_timeline_that_is_not_long_is_shown_whole() -> None:
    lines = [Line(float(at), "u", "something") for at in range(FIRST + LAST + BETWEEN)]
    assert list(elided(lines)) == list(map(str, lines))
