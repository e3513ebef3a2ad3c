"""`podkeeper sim` as a command: short runs in real processes."""

import json
import os
import shlex
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.app.cli import main
from podkeeper.app.cli.sim_progress import format_duration
from podkeeper.testing.sim.faults import FAULTS
from podkeeper.testing.sim.invariants import INVARIANTS
from podkeeper.testing.sim.plan_args import (
    choice_read,
    choice_shown,
    command_for,
    numbers_read,
    numbers_shown,
    profile_read,
    profile_shown,
    seeds_read,
)
from podkeeper.testing.sim.profile import Profile
from podkeeper.testing.sim.run import SimPlan
from podkeeper.testing.sim.timeline import BETWEEN, FIRST, LAST, pod_lines, shortened
from podkeeper.testing.sim.trace import TraceLine
from podkeeper.testing.sim.workload import WORKLOADS
from tests.sim.fork_server import stop_fork_server

QUIET = ("--hours", "0.1", "--faults", "none", "--workload", "servers,jobs")
PLANTED = (
    *("--hours", "0.3", "--faults", "repeated-events", "--profile", "repeated-events=20", "--workload", "deletes"),
    *("--also", "tests.sim.planted:no_deletion_after_a_fault"),
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


# Output of a campaign.


def test_a_campaign_prints_its_profile_and_its_results() -> None:
    assert "seeds 0 to 2" in line_with("Simulating", quiet())
    for line in Profile().described():
        assert line.split(":")[0].split(",")[0] in quiet()
    assert line_with("workload  ", quiet()).endswith(f"servers,jobs (2 of {len(WORKLOADS)} kinds)")
    assert line_with("faults  ", quiet()).endswith(f"none (0 of {len(FAULTS)} kinds)")
    assert line_with("3 seeds,", quiet()).startswith("3 seeds, 0.3 virtual hours in ")
    assert "All invariants held." in quiet()
    for name, meaning in INVARIANTS.items():
        assert line_with(f"{name} ", quiet()).endswith(meaning)


def test_the_same_seeds_give_the_same_hash_in_any_process() -> None:
    expected = line_with("hash", quiet())
    stop_fork_server()
    again = call("--seeds", "0:3", "--jobs", "1", *QUIET, "--json", PYTHONHASHSEED="7")
    data = json.loads(again.stdout)
    assert f"hash {data['hash']}" == expected
    assert [result["seed"] for result in data["results"]] == [0, 1, 2]
    assert len({result["hash"] for result in data["results"]}) == 3
    assert all(result["cpu_seconds_per_hour"] > 0 and result["broken"] is None for result in data["results"])
    assert data["violations"] == []


def test_the_whole_trace_can_be_printed() -> None:
    everything = call("--seed", "0", *QUIET, "--timeline", "all").output
    assert "==== agent 1 starts" in everything
    assert len({line.split()[3] for line in everything.splitlines() if "API: pod" in line}) > 1


def test_a_timeline_of_an_unknown_pod_is_reported_and_the_campaign_passes() -> None:
    result = call("--seed", "0", "--jobs", "1", *QUIET, "--timeline", "nosuch")
    assert result.exit_code == 0
    assert result.stderr == "pod nosuch not found in the trace\n"
    assert "All invariants held." in result.stdout


# Output of a failure.


def test_a_timeline_does_not_change_the_report_of_a_failure() -> None:
    def report(*arguments: str) -> list[str]:
        result = call("--seed", "1", *PLANTED, "--no-shrink", *arguments)
        assert result.exit_code == 1
        lines = result.stdout.splitlines()
        first, end = (lines.index(line_with(start, result.stdout)) for start in ("FAILED seed 1", "1 seed,"))
        return lines[first:end]

    assert report("--timeline", "nosuch") == report("--timeline", "all") == report()


def test_a_failure_prints_the_invariant_and_a_command_that_repeats_it() -> None:
    assert "planted violated after" in line_with("FAILED seed 1", planted())
    command = line_with("again:", planted()).removeprefix("again:").strip()
    assert command.startswith("podkeeper sim --seed 1 --hours 0.3 --faults repeated-events --workload deletes")
    again = call(*shlex.split(command)[2:], "--no-shrink")
    assert again.exit_code == 1
    assert line_with("FAILED", again.output) == line_with("FAILED", planted())


def test_a_failure_is_shrunk_to_its_necessary_actions_which_repeat_it() -> None:
    words = planted().splitlines()
    first = next(index for index, line in enumerate(words) if "actions are enough, all of them necessary" in line)
    create, other, delete = words[first + 1 : first + 4]
    assert "[deletes] create" in create + other
    assert "[repeated-events]" in create + other
    assert "[deletes] delete" in delete
    assert words[first + 4].strip().startswith("The shorter run: planted violated")
    command = line_with("shorter:", planted()).removeprefix("shorter:").strip()
    again = call(*shlex.split(command)[2:], "--no-shrink")
    assert again.exit_code == 1
    violation = line_with("The shorter run", planted()).removeprefix("The shorter run: ")
    assert line_with("FAILED", again.output) == f"FAILED seed 1: {violation}"


def test_a_failure_prints_the_trace_of_the_pod_up_to_the_violation() -> None:
    words = planted().splitlines()
    first = next(index for index, line in enumerate(words) if "Trace of pod" in line)
    timeline = words[first + 1 : words.index("", first)]
    assert timeline[-1].endswith("planted is VIOLATED")
    for part in (
        "**** action",
        "!!!! fault begins: repeated-events",
        "is new: Pending",
        "runtime.start_container",
        "running r0",
    ):
        assert any(part in line for line in timeline)
    assert len({line.split()[3] for line in timeline if "API: pod" in line}) == 1


def test_one_failure_per_invariant_is_printed_in_full_and_all_failed_seeds_are_listed() -> None:
    result = call("--seeds", "0:4", "--jobs", "1", *QUIET, "--also", "tests.sim.planted:no_odd_seeds")
    assert result.exit_code == 1
    assert "even violated" in line_with("FAILED seed 1", result.output)
    assert "FAILED seed 3" not in result.output
    assert "2 seeds violated an invariant: 1 (even), 3 (even)" in result.output
    assert line_with("shorter:", result.output).endswith("--only none")


def test_fail_fast_stops_at_the_first_failure() -> None:
    result = call("--seeds", "0:50", "--jobs", "1", *QUIET, "--fail-fast", "--also", "tests.sim.planted:no_odd_seeds")
    assert result.exit_code == 1
    assert line_with("2 of 50 seeds", result.output)


def test_an_error_in_the_simulation_itself_is_a_failure() -> None:
    result = call("--seed", "5", *QUIET, "--no-shrink", "--also", "tests.sim.planted:raises_an_error", "--json")
    assert result.exit_code == 1
    (failure,) = json.loads(result.stdout)["violations"]
    assert (failure["invariant"], failure["seed"]) == ("simulation", 5)
    assert "nothing to divide by in seed 5" in failure["message"]


def test_ctrl_c_prints_a_summary_of_the_seeds_that_ran() -> None:
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
    assert "Traceback" not in done.stderr, done.stderr


def test_a_killed_campaign_continues_and_covers_all_seeds(tmp_path: Path) -> None:
    state, marker = tmp_path / "campaign", tmp_path / "killed"
    also = ("--also", "tests.sim.planted:killed_once")
    arguments = ("--seeds", "0:3", *QUIET, "--jobs", "1", *also, "--state", str(state))
    with TemporaryDirectory() as temporary:  # for files that the killed command cannot remove
        killed = subprocess.run(
            [sys.executable, "-c", "from podkeeper.app.cli import main; main()", "sim", *arguments],
            capture_output=True,
            cwd=HERE,
            check=False,
            env={
                **os.environ,
                "PYTHONPATH": f"{HERE / 'src'}:{HERE}",
                "KILLED_ONCE": str(marker),
                "TMPDIR": temporary,
            },
        )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    known = len(state.read_bytes().splitlines()) - 1
    assert known in (1, 2)
    stop_fork_server()  # the next one receives KILLED_ONCE
    continued = call(*arguments, KILLED_ONCE=str(marker))
    assert continued.exit_code == 0, continued.output
    assert line_with("3 seeds, ", continued.output).endswith(f"{known} of them ran before.")
    assert line_with("hash", continued.output) == line_with("hash", quiet())
    for name in INVARIANTS:
        assert line_with(f"{name} ", continued.output) == line_with(f"{name} ", quiet())
    # All seeds have a result, so this only prints the summary.
    again = call(*arguments, "--json", KILLED_ONCE=str(marker))
    data = json.loads(again.stdout)
    assert (data["seeds"], data["seeds_played_before"]) == (3, 3)
    assert f"hash {data['hash']}" == line_with("hash", quiet())


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (7500, "2 h 5 min")]
)
def test_the_time_left_has_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


# Usage errors.

BAD = {
    "a state file for a single seed": (("--state", "campaign"), ["--state requires --seeds"]),
    "a file that is not a state file": (
        ("--seeds", "0:3", "--state", __file__),
        ["--state: ", "not the state file of a campaign"],
    ),
    "an unknown fault": (("--faults", "crash,carsh"), ["unknown name 'carsh'", FAULTS["crash"]]),
    "an unknown workload": (("--workload", "all,-srv"), ["unknown name 'srv'", WORKLOADS["servers"]]),
    "seeds without an end": (("--seeds", "3"), ["FIRST:LAST"]),
    "seeds backwards": (("--seeds", "5:3"), ["FIRST:LAST"]),
    "a seed and seeds": (("--seeds", "0:3", "--seed", "1"), ["mutually exclusive"]),
    "actions of many seeds": (("--seeds", "0:3", "--only", "1"), ["single --seed"]),
    "actions that the seed does not have": (
        ("--only", "1,9998-9999", "--hours", "0.05"),
        ["--only: seed 0 has no action 9998-9999 (its actions: 1 to "],
    ),
    "actions that are not numbers": (("--only", "1,x"), ["cannot parse 'x'"]),
    "an unknown profile key": (("--profile", "pots=3"), ["'pots=3'", "pods", "polite", "crash"]),
    "a profile value that is not a number": (("--profile", "pods=many"), ["'pods=many'"]),
    "invariants that do not exist": (("--also", "tests.sim.planted:nothing"), ["MODULE:NAME"]),
    "an unknown log level": (("--log", "loud"), ["loud"]),
}


@pytest.mark.parametrize("arguments, words", BAD.values(), ids=BAD.keys())
def test_a_usage_error_names_the_problem(arguments: tuple[str, ...], words: list[str]) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    for word in words:
        assert word in result.output


def test_list_prints_every_name_with_its_description() -> None:
    output = call("--list").output
    for name, meaning in {**FAULTS, **WORKLOADS}.items():
        assert line_with(f"{name} ", output).endswith(meaning)


# Plans as command-line options.

KNOWN = ("a", "b", "c", "d")
CHOICES = {
    "everything": ("all", KNOWN),
    "nothing": ("none", ()),
    "some, in the known order": ("c,a", ("a", "c")),
    "all but one": ("all,-b", ("a", "c", "d")),
    "all but one, shorter": ("-b", ("a", "c", "d")),
    "spaces are ignored": (" a , b ", ("a", "b")),
}


@pytest.mark.parametrize("text, names", CHOICES.values(), ids=CHOICES.keys())
def test_a_choice_is_parsed(text: str, names: tuple[str, ...]) -> None:
    assert choice_read(text, KNOWN) == names


@given(st.sets(st.sampled_from(KNOWN)))
def test_a_choice_survives_a_round_trip(names: set[str]) -> None:
    chosen = tuple(name for name in KNOWN if name in names)
    assert choice_read(choice_shown(chosen, KNOWN), KNOWN) == chosen


def test_the_former_name_of_a_fault_is_accepted() -> None:
    assert choice_read("dawdle", FAULTS) == ("late-wakeups",)
    assert "late-wakeups" not in choice_read("all,-dawdle", FAULTS)
    assert profile_read(["dawdle=2.5"], Profile()).fault_rates["late-wakeups"] == 2.5


@given(st.frozensets(st.integers(1, 50)))
def test_numbers_survive_a_round_trip(numbers: frozenset[int]) -> None:
    assert numbers_read(numbers_shown(numbers)) == numbers


def test_neighbouring_numbers_become_ranges() -> None:
    assert numbers_shown([20, 3, 21, 17, 22]) == "3,17,20-22"


def test_the_last_seed_is_not_included() -> None:
    assert list(seeds_read("3:6")) == [3, 4, 5]


def test_a_profile_survives_a_round_trip() -> None:
    changes = ["pods=30.5", "life_minutes=2.0:5.0", "graces_seconds=0:7", "jobs=9.0", "crash=0.5"]
    profile = profile_read(changes, Profile())
    assert (profile.pods, profile.life_minutes, profile.graces_seconds) == (30.5, (2.0, 5.0), (0, 7))
    assert (profile.shares["jobs"], profile.fault_rates["crash"]) == (9.0, 0.5)
    assert sorted(profile_shown(profile)) == sorted(changes)


def test_the_command_for_a_plan_has_only_options_that_differ_from_the_defaults() -> None:
    assert command_for(SimPlan(seed=3)) == "podkeeper sim --seed 3 --hours 6"
    plan = SimPlan(seed=3, hours=0.25, faults=(), only=frozenset({4, 9}), profile=profile_read(["pods=3"], Profile()))
    assert command_for(plan) == "podkeeper sim --seed 3 --hours 0.25 --faults none --profile pods=3.0 --only 4,9"


# Timelines.

LINES = (
    TraceLine(100.0, "", "==== agent 1 starts"),
    TraceLine(900.0, "", "**** action 1: create web"),
    TraceLine(900.0, "u1", "API: pod web_default is new: Pending, ready - (by another client)"),
    TraceLine(901.0, "u9", "API: pod other_default is new: Pending, ready - (by another client)"),
    TraceLine(902.0, "u1", "agent 1 -> runtime.run_sandbox "),
    TraceLine(903.0, "", "agent 1 -> api.create web"),
    TraceLine(903.0, "", "agent 1 -> api.create web.18867251edfa0000"),
    TraceLine(904.0, "u9", "!!!! fault begins: hung-calls"),
    TraceLine(905.0, "u2", "agent 1 receives ADD web_default (file)"),
    TraceLine(906.0, "u3", "agent 1 receives ADD web_elsewhere (file)"),
)
TIMELINES = {
    "UID: all pods with its full name, and the node from shortly before": ("u1", [1, 2, 4, 5, 8]),
    "UID of a pod with the same name: the same": ("u2", [1, 2, 4, 5, 8]),
    "name: in all namespaces": ("web", [1, 2, 4, 5, 8, 9]),
    "name with namespace": ("elsewhere/web", [1, 5, 9]),
    "empty: only the node": ("", [0, 1]),
}


@pytest.mark.parametrize("pod, expected", TIMELINES.values(), ids=TIMELINES.keys())
def test_the_lines_of_a_pod(pod: str, expected: list[int]) -> None:
    assert [LINES.index(line) for line in pod_lines(LINES, pod)] == expected


def test_a_long_timeline_keeps_only_landmarks_in_the_middle() -> None:
    lines = [TraceLine(float(at), "u", "**** action" if at == 500 else f"something {at}") for at in range(1000)]
    shown = list(shortened(lines))
    assert shown[:FIRST] == list(map(str, lines[:FIRST]))
    assert shown[-LAST:] == list(map(str, lines[-LAST:]))
    before, timed, after = shown[FIRST:-LAST]
    assert timed == str(lines[500])
    assert (before.split()[1], after.split()[1]) == (str(500 - FIRST), str(499 - LAST))


def test_a_short_timeline_is_complete() -> None:
    lines = [TraceLine(float(at), "u", "something") for at in range(FIRST + LAST + BETWEEN)]
    assert list(shortened(lines)) == list(map(str, lines))
