"""Progress of `podkeeper sim` on stderr.

A bar on a terminal, otherwise a line every 20 seconds.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from podkeeper.testing.sim.campaign import CampaignTotals
from podkeeper.testing.sim.shrink import Shrunk

LINE_SECONDS = 20.0
NAMED_SEEDS = 8  # how many failed seeds to list


@contextmanager
def seeds_progress(seeds: int, totals: CampaignTotals) -> Iterator[Callable[[], None]]:
    """Show progress while seeds run. The caller calls the yielded function after each seed."""
    began, seconds_before = time.monotonic(), totals.seconds  # `totals.seconds` is not 0 if a saved campaign continues

    def text() -> str:
        speed = (totals.seconds - seconds_before) / 3600.0 / max(0.001, time.monotonic() - began)
        failed = [each.plan.seed for each in totals.failures]
        which = f" ({', '.join(map(str, failed[:NAMED_SEEDS]))}{', ...' if len(failed) > NAMED_SEEDS else ''})"
        number = f"{len(failed)} failure{'' if len(failed) == 1 else 's'}{which}" if failed else "no failures"
        return f"{number}, {speed:.2f} virtual hours per second"

    with _progress("seeds", seeds, totals.seeds) as show:
        yield lambda: show(totals.seeds, text())


@contextmanager
def shrink_progress(seed: int, seconds: float) -> Iterator[Callable[[Shrunk], None]]:
    """Show progress while a failure is shrunk. The caller calls the yielded function after each trial."""
    began = time.monotonic()
    with _progress(f"shrinking seed {seed}, seconds", round(seconds)) as show:
        yield lambda shrunk: show(
            min(round(seconds), int(time.monotonic() - began)),
            f"{len(shrunk.schedule.actions)} actions left after {shrunk.runs} trials",
        )


@contextmanager
def _progress(what: str, total: int, done: int = 0) -> Iterator[Callable[[int, str], None]]:
    if not sys.stderr.isatty():
        yield _as_lines(what, total, done)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total, completed=done, text="")
        yield lambda done, text: progress.update(task, completed=done, text=text)


def _as_lines(what: str, total: int, done_before: int) -> Callable[[int, str], None]:
    began = shown_at = time.monotonic()

    def show(done: int, text: str) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if now - shown_at >= LINE_SECONDS:
            shown_at = now
            left = (now - began) * (total - done) / max(1, done - done_before)
            click.echo(f"{what}: {done} of {total}, {text}, {format_duration(left)} left", err=True)

    return show


def format_duration(seconds: float) -> str:
    """Format a duration with its two largest units: 40 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
