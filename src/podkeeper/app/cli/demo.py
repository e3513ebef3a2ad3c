"""`podkeeper demo`: simulate an hour of a node in a few seconds.

On a terminal, the demo redraws a table of the pods. Otherwise, and with --plain, it prints lines. The same seed prints
the same lines.
"""

import logging
import sys
import time
from datetime import timedelta
from itertools import count

import click
from rich.console import Console
from rich.live import Live

from podkeeper.app.demo.drawing import event_line, node_table, overview
from podkeeper.app.demo.play import play
from podkeeper.app.demo.recorder import Recorder, Snapshot
from podkeeper.app.demo.story import NAMES, STATIC_NAME, Story, create_story
from podkeeper.app.timeline import span, timeline

_FRAME_SECONDS = 0.06  # real time per simulated minute: an hour takes about four seconds
_TABLE_MINUTES = (9, 24, 41)  # the tables to print between plain lines, besides the last one
_PLAIN_WIDTH = 120
_SHORT = {"static": STATIC_NAME}


@click.command()
@click.option(
    "--minutes", default=60, show_default=True, type=click.IntRange(10, 600), metavar="MINUTES", help="Simulated time."
)
@click.option("--seed", metavar="N", default=1, show_default=True, help="Seed of the random events.")
@click.option(
    "--pod", "pod_name", metavar="NAME", default="static", show_default=True, help="Pod whose timeline to show."
)
@click.option("--plain", is_flag=True, help="Print lines instead of a table [default if stdout is not a terminal].")
@click.option("-v", "--verbose", is_flag=True, help="Write the agent's log to stderr. Implies --plain.")
def demo(minutes: int, seed: int, pod_name: str, plain: bool, verbose: bool) -> None:
    """Simulate an hour of a node in a few seconds.

    Runs the real engine on a fake runtime in virtual time. No pod runs on this machine.
    """
    story = create_story(minutes, seed)
    pod_name = _checked_name(pod_name, story)
    _set_up_logging(verbose)
    if plain or verbose or not sys.stdout.isatty():
        _print_lines(story, seed, pod_name)
    else:
        _show_on_terminal(story, seed, pod_name)


def _checked_name(name: str, story: Story) -> str:
    name = _SHORT.get(name, name)
    if name not in story.names:
        visitors = f"{story.visitors[0]} to {story.visitors[-1]}"
        raise click.BadParameter(
            f"pod {name!r} not found; available pods: {', '.join(NAMES)}, {visitors}", param_hint="--pod"
        )
    return name


def _set_up_logging(verbose: bool) -> None:
    """Hide the log by default. The demo simulates faults, and their warnings would disturb the table."""
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(levelname)-7s %(name)s: %(message)s")
    else:
        logging.getLogger("podkeeper").addHandler(logging.NullHandler())


def _print_lines(story: Story, seed: int, pod_name: str) -> None:
    recorder = play(story, seed=seed, pod_name=pod_name, show=lambda snapshot: None)
    console = Console(force_terminal=False, color_system=None, highlight=False, markup=False, width=_PLAIN_WIDTH)
    with console.capture() as captured:
        _print_intro(console, story, seed)
        for number, snapshot in enumerate(recorder.snapshots):
            for event in snapshot.events:
                console.print(event_line(event))
            if number in _TABLE_MINUTES:
                console.print("", node_table(snapshot, plain=True, fold=True), "", sep="\n")
        _print_summary(console, story, recorder, pod_name, plain=True)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())  # rich pads tables with spaces on the right


def _show_on_terminal(story: Story, seed: int, pod_name: str) -> None:
    console = Console(highlight=False, markup=False)
    plain = not console.encoding.startswith("utf")
    _print_intro(console, story, seed)
    began, frames = time.monotonic(), count(1)
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show(snapshot: Snapshot) -> None:
            for event in snapshot.events:
                console.print(event_line(event))
            live.update(node_table(snapshot, plain=plain, fold=plain), refresh=True)  # a cut cell ends in "…"
            time.sleep(max(0.0, began + next(frames) * _FRAME_SECONDS - time.monotonic()))

        recorder = play(story, seed=seed, pod_name=pod_name, show=show)
    _print_summary(console, story, recorder, pod_name, plain=plain, real_seconds=time.monotonic() - began)


def _print_intro(console: Console, story: Story, seed: int) -> None:
    lifetime = span(timedelta(seconds=story.seconds))
    console.print(
        f"Simulating {lifetime} of a node with seed {seed}: the real engine on a fake runtime, in virtual time."
    )
    console.print()


def _print_summary(
    console: Console, story: Story, recorder: Recorder, pod_name: str, *, plain: bool, real_seconds: float | None = None
) -> None:
    assert recorder.explanation is not None  # every pod of a story is created at some time
    console.print()
    console.print(node_table(recorder.snapshots[-1], plain=plain, fold=True))
    console.print()
    console.print(overview(recorder.snapshots, plain=plain))
    console.print()
    console.print(timeline(pod_name, recorder.timeline(), recorder.explanation, plain=plain))
    console.print()
    totals = recorder.totals()
    console.print(
        f"{span(timedelta(seconds=story.seconds))} simulated: {totals.pods} pods, {totals.containers} containers "
        f"started, {totals.statuses} status updates sent, {totals.missed} lost events recovered by relisting."
    )
    if real_seconds is not None:
        console.print(f"The simulation took {real_seconds:.1f} s.", style="dim")
    console.print(
        "Next: 'podkeeper demo --pod crash' (or another pod), 'podkeeper demo --seed 7',\n"
        "      'podkeeper plan examples', 'make test'."
    )
