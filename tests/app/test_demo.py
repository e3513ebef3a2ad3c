"""The demo, as a reader sees it: what the story must show, the same for the same seed."""

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
from podkeeper.app.demo.drawing import lives, node_table
from podkeeper.app.demo.node import DemoNode
from podkeeper.app.demo.play import play
from podkeeper.app.demo.recorder import Recorder
from podkeeper.app.demo.story import NAMES, STATIC_NAME, Act, tell
from podkeeper.app.timeline import span, timeline
from podkeeper.engine.history import LONGEST_TIMELINE

LASTING = ("web", "pair", STATIC_NAME, "late", "stuck")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["demo", "--plain", "--minutes", "10", *arguments])


@cache
def told() -> str:
    result = call()
    assert result.exit_code == 0, result.output
    return result.output


@cache
def told_of_a_visitor() -> str:
    return call("--seed", "2", "--pod", "visitor-01").output


@cache
def recorded() -> Recorder:
    return play(tell(10, seed=3), seed=3, pod_name="crash", show=lambda picture: None)


def paragraph(heading: str, text: str) -> list[str]:
    """The lines from the last that begins so up to the next empty one."""
    lines = text.splitlines()
    first = max(index for index, line in enumerate(lines) if line.startswith(heading))
    return lines[first : lines.index("", first)]


def row(name: str) -> str:
    (found,) = (line for line in paragraph("node at 00:10:00", told()) if line.startswith(f"{name} "))
    return " ".join(found.split())


ENDS = {
    "a server whose liveness probe failed was restarted once and is ready": ("web", "web Running 1/1 1 10m00s"),
    "the app runs beside its sidecar after its init container": ("pair", "pair Running 2/2 0 10m00s"),
    "the edited static pod has a successor, and it runs": ("static-n1", "static-n1 Running 1/1 0 3m"),
    "a job has succeeded": ("job", "job Succeeded 0/1 0 "),
    "a crash loop runs, in back-off": ("crash", "crash Running 0/1 "),
    "a pod whose image came late runs": ("late", "late Running 1/1 0 "),
    "a pod that asks for too much was rejected": ("giant", "giant Failed 0/1 0 "),
    "a pod past its deadline has failed": ("overtime", "overtime Failed 0/1 0 "),
    "a deleted pod is removed": ("leaver", "leaver removed at 00:05:"),
    "a pod whose runtime call hung runs after all": ("stuck", "stuck Running 1/1 0 "),
}


@pytest.mark.parametrize("name, begin", ENDS.values(), ids=ENDS.keys())
def test_how_each_pod_ends(name: str, begin: str) -> None:
    assert row(name).startswith(begin)


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
def test_the_table_says_why(name: str, why: str) -> None:
    assert why in row(name)


def test_every_trouble_is_told() -> None:
    for trouble in ("event stream breaks", "runtime hangs", "API cannot be reached", "agent crashes"):
        assert trouble in told()


def test_the_timeline_shows_the_successor_start_when_the_predecessor_is_gone() -> None:
    steps = paragraph("timeline of static-n1", told())
    gone = next(index for index, step in enumerate(steps) if "#1" in step and "-> finished" in step)
    started = next(index for index, step in enumerate(steps) if "#2" in step and "waiting -> syncing" in step)
    assert started > gone
    assert steps[started].split()[0] == steps[gone].split()[0]  # in the same second
    assert any("the agent crashes" in step for step in steps)


def test_plain_lines_have_no_control_codes_and_no_padding() -> None:
    assert "\x1b" not in told()
    assert all(line == line.rstrip() for line in told().splitlines())


def test_the_same_seed_tells_the_same_and_another_seed_another() -> None:
    assert call("--seed", "1").output == told()
    assert told_of_a_visitor().splitlines()[2:] != told().splitlines()[2:]


def test_another_pods_timeline_can_be_asked_for_by_its_name() -> None:
    assert "timeline of visitor-01" in told_of_a_visitor()


def test_an_unknown_pod_is_refused_with_the_names_there_are() -> None:
    result = call("--pod", "nobody")
    assert result.exit_code == 2
    assert "pod 'nobody' not found" in result.output
    for name in (*NAMES, "visitor-01"):
        assert name in result.output


def test_a_crashed_agent_costs_no_container_and_no_promise_is_broken() -> None:
    seen: list[set[str]] = []
    broken: list[str] = []

    def look(node: DemoNode) -> None:
        lasting = {uid for name in LASTING for uid in node.uids(name)[-1:]}
        seen.append({record.id for uid, record in node.runtime.live_containers() if uid in lasting})
        broken.extend(node.runtime.violations)

    story = tell(10, seed=5)
    (crash,) = (act for act in story.acts if "the agent crashes" in act.news)
    looks = (Act(crash.at_seconds - 0.1, look), Act(story.seconds - 1, look))
    acts = sorted((*story.acts, *looks), key=lambda act: act.at_seconds)
    play(replace(story, acts=tuple(acts)), seed=5, pod_name="web", show=lambda picture: None)
    before, after = seen
    assert len(before) == 6  # pair has two
    assert before == after
    assert broken == []


def test_a_timeline_is_whole_though_an_agents_history_is_bounded() -> None:
    recorder = recorded()
    (crash,) = (row for row in recorder.pictures[-1].rows if row.name == "crash")
    entries = [noted.entry for noted in recorder.timeline() if noted.pod_number]
    assert len(entries) > LONGEST_TIMELINE
    assert sum(entry.times for entry in entries if entry.what == "Started") == crash.restarts + 1
    assert all(one.at <= other.at for one, other in pairwise(entries))


@pytest.mark.parametrize("seed", range(20))
def test_nobody_comes_or_goes_while_the_api_is_down(seed: int) -> None:
    story = tell(60, seed)
    down, up = (act.at_seconds for act in story.acts if "the API can" in act.news)
    assert [act.about for act in story.acts if down < act.at_seconds < up] == [STATIC_NAME]
    assert len(set(story.names)) == len(story.names)


@cache
def drawn(plain: bool) -> str:
    recorder = recorded()
    assert recorder.explanation is not None
    console = Console(width=80, force_terminal=not plain, color_system=None if plain else "truecolor", markup=False)
    with console.capture() as captured:
        console.print(node_table(recorder.pictures[30], plain=plain, fold=plain))
        console.print(node_table(recorder.pictures[-1], plain=plain, fold=True))
        console.print(lives(recorder.pictures, plain=plain))
        console.print(timeline("crash", recorder.timeline(), recorder.explanation, plain=plain))
    return captured.get()


def test_what_is_drawn_fits_on_a_small_terminal() -> None:
    assert "\x1b[" in drawn(plain=False)
    assert max(len(line) for line in drawn(plain=True).splitlines()) <= 80
    assert drawn(plain=True).isascii()


@pytest.mark.parametrize("seconds, shown", [(0, "0s"), (59.6, "1m00s"), (160, "2m40s"), (3900, "1h05m")])
def test_spans(seconds: float, shown: str) -> None:
    assert span(timedelta(seconds=seconds)) == shown


@pytest.mark.slow
def test_on_a_terminal_the_table_is_drawn_live() -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", "from podkeeper.app.cli import main; main()", "demo", "--minutes", "10"]
    with subprocess.Popen(command, stdout=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"}) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the other end is closed: all was read
            while read := os.read(ours, 65536):
                shown += read
    os.close(ours)
    assert process.returncode == 0
    assert shown.count(b"node at") > 30
    assert b"The simulation took " in shown
