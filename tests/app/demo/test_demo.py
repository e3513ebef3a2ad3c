"""The output of the demo: the end of each pod, the faults, and the same text for the same seed."""

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import pairwise

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from podkeeper.app.cli import main
from podkeeper.app.demo.drawing import node_table, overview
from podkeeper.app.demo.node import DemoNode
from podkeeper.app.demo.play import play
from podkeeper.app.demo.recorder import Recorder
from podkeeper.app.demo.story import NAMES, STATIC_NAME, StoryEvent, create_story
from podkeeper.app.timeline import span, timeline
from podkeeper.engine.history import LONGEST_TIMELINE

LASTING = ("web", "pair", STATIC_NAME, "late", "stuck")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["demo", "--plain", "--minutes", "10", *arguments])


@cache
def output() -> str:
    result = call()
    assert result.exit_code == 0, result.output
    return result.output


@cache
def output_about_a_visitor() -> str:
    return call("--seed", "2", "--pod", "visitor-01").output


@cache
def recorded() -> Recorder:
    return play(create_story(10, seed=3), seed=3, pod_name="crash", show=lambda snapshot: None)


def paragraph(heading: str, text: str) -> list[str]:
    """Return the lines from the last one with this beginning to the next empty one."""
    lines = text.splitlines()
    first = max(index for index, line in enumerate(lines) if line.startswith(heading))
    return lines[first : lines.index("", first)]


def row(name: str) -> str:
    (found,) = (line for line in paragraph("node at 00:10:00", output()) if line.startswith(f"{name} "))
    return " ".join(found.split())


ENDS = {
    "a server whose liveness probe failed was restarted once and is ready": ("web", "web Running 1/1 1 10m00s"),
    "the app runs beside its sidecar after its init container": ("pair", "pair Running 2/2 0 10m00s"),
    "the edited static pod has a successor, and it runs": ("static-n1", "static-n1 Running 1/1 0 3m"),
    "a job has succeeded": ("job", "job Succeeded 0/1 0 "),
    "a crash loop runs, in back-off": ("crash", "crash Running 0/1 "),
    "a pod whose image was pushed late runs": ("late", "late Running 1/1 0 "),
    "a pod that requests too many CPUs was rejected": ("giant", "giant Failed 0/1 0 "),
    "a pod past its deadline has failed": ("overtime", "overtime Failed 0/1 0 "),
    "a deleted pod is removed": ("leaver", "leaver removed at 00:05:"),
    "a pod whose runtime call hung runs": ("stuck", "stuck Running 1/1 0 "),
}


@pytest.mark.parametrize("name, beginning", ENDS.values(), ids=ENDS.keys())
def test_the_last_row_of_each_pod(name: str, beginning: str) -> None:
    assert row(name).startswith(beginning)


@pytest.mark.parametrize(
    "name, why",
    [
        ("crash", "CrashLoopBackOff, last exit code 3, next sync in "),
        ("giant", "OutOfcpu"),
        ("overtime", "DeadlineExceeded"),
        ("job", "Completed, exit code 0"),
        ("web", "exit code 143"),
    ],
)
def test_the_table_has_the_reason(name: str, why: str) -> None:
    assert why in row(name)


def test_every_fault_is_printed() -> None:
    for fault in ("event stream breaks", "runtime hangs", "API cannot be reached", "agent crashes"):
        assert fault in output()


def test_the_timeline_shows_that_the_successor_starts_after_the_predecessor() -> None:
    steps = paragraph("timeline of static-n1", output())
    finished = next(index for index, step in enumerate(steps) if "#1" in step and "-> finished" in step)
    started = next(index for index, step in enumerate(steps) if "#2" in step and "waiting -> syncing" in step)
    assert started > finished
    assert steps[started].split()[0] == steps[finished].split()[0]  # in the same second
    assert any("the agent crashes" in step for step in steps)


def test_plain_lines_have_no_control_codes_and_no_padding() -> None:
    assert "\x1b" not in output()
    assert all(line == line.rstrip() for line in output().splitlines())


def test_the_output_depends_only_on_the_seed() -> None:
    assert call("--seed", "1").output == output()
    assert output_about_a_visitor().splitlines()[2:] != output().splitlines()[2:]


def test_the_option_pod_selects_the_timeline() -> None:
    assert "timeline of visitor-01" in output_about_a_visitor()


def test_an_unknown_pod_is_an_error_with_the_available_names() -> None:
    result = call("--pod", "absent")
    assert result.exit_code == 2
    assert "pod 'absent' not found" in result.output
    for name in (*NAMES, "visitor-01"):
        assert name in result.output


def test_a_crash_of_the_agent_stops_no_container_and_violates_no_rule_of_the_runtime() -> None:
    seen: list[set[str]] = []
    violations: list[str] = []

    def record(node: DemoNode) -> None:
        lasting = {uid for name in LASTING for uid in node.uids(name)[-1:]}
        seen.append({record.id for uid, record in node.runtime.live_containers() if uid in lasting})
        violations.extend(node.runtime.violations)

    story = create_story(10, seed=5)
    (crash,) = (event for event in story.events if "the agent crashes" in event.text)
    records = (StoryEvent(crash.at_seconds - 0.1, record), StoryEvent(story.seconds - 1, record))
    events = sorted((*story.events, *records), key=lambda event: event.at_seconds)
    play(replace(story, events=tuple(events)), seed=5, pod_name="web", show=lambda snapshot: None)
    before, after = seen
    assert len(before) == 6  # pair has two
    assert before == after
    assert violations == []


def test_a_timeline_is_complete_although_the_history_of_an_agent_is_bounded() -> None:
    recorder = recorded()
    (crash,) = (row for row in recorder.snapshots[-1].rows if row.name == "crash")
    entries = [noted.entry for noted in recorder.timeline() if noted.pod_number]
    assert len(entries) > LONGEST_TIMELINE
    assert sum(entry.times for entry in entries if entry.what == "Started") == crash.restarts + 1
    assert all(one.at <= other.at for one, other in pairwise(entries))


@pytest.mark.parametrize("seed", range(20))
def test_no_pod_is_created_or_deleted_while_the_api_is_down(seed: int) -> None:
    story = create_story(60, seed)
    down, up = (event.at_seconds for event in story.events if "the API can" in event.text)
    assert [event.about for event in story.events if down < event.at_seconds < up] == [STATIC_NAME]
    assert len(set(story.names)) == len(story.names)


@cache
def drawn(plain: bool) -> str:
    recorder = recorded()
    assert recorder.explanation is not None
    console = Console(width=80, force_terminal=not plain, color_system=None if plain else "truecolor", markup=False)
    with console.capture() as captured:
        console.print(node_table(recorder.snapshots[30], plain=plain, fold=plain))
        console.print(node_table(recorder.snapshots[-1], plain=plain, fold=True))
        console.print(overview(recorder.snapshots, plain=plain))
        console.print(timeline("crash", recorder.timeline(), recorder.explanation, plain=plain))
    return captured.get()


def test_the_output_fits_on_a_small_terminal() -> None:
    assert "\x1b[" in drawn(plain=False)
    assert max(len(line) for line in drawn(plain=True).splitlines()) <= 80
    assert drawn(plain=True).isascii()


@pytest.mark.parametrize("seconds, shown", [(0, "0s"), (59.6, "1m00s"), (160, "2m40s"), (3900, "1h05m")])
def test_spans(seconds: float, shown: str) -> None:
    assert span(timedelta(seconds=seconds)) == shown


@pytest.mark.slow
def test_the_table_is_redrawn_on_a_terminal() -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", "from podkeeper.app.cli import main; main()", "demo", "--minutes", "10"]
    with subprocess.Popen(command, stdout=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"}) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the other end is closed and everything was read
            while read := os.read(ours, 65536):
                shown += read
    os.close(ours)
    assert process.returncode == 0
    assert shown.count(b"node at") > 30
    assert b"The simulation took " in shown
