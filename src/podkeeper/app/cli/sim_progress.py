"""How far `podkeeper sim` is: a bar on a terminal, a line now and then elsewhere. On stderr, stdout is for results."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from podkeeper.testing.sim.campaign import Totals
from podkeeper.testing.sim.shrink import Shrunk

SAID_EVERY_SECONDS = 20.0
NAMED_SEEDS = 8  # of those that failed


@contextmanager
def playing_shown(seeds: int, totals: Totals) -> Iterator[Callable[[], None]]:
    """While seeds are played; what is given is to be called after each."""
    began = time.monotonic()

    def words() -> str:
        speed = totals.seconds / 3600.0 / max(0.001, time.monotonic() - began)
        failed = [each.plan.seed for each in totals.failures]
        which = f" ({', '.join(map(str, failed[:NAMED_SEEDS]))}{', ...' if len(failed) > NAMED_SEEDS else ''})"
        number = f"{len(failed)} failure{'' if len(failed) == 1 else 's'}{which}" if failed else "no failures"
        return f"{number}, {speed:.2f} virtual hours a second"

    with _shown("seeds", seeds) as say:
        yield lambda: say(totals.seeds, words())


@contextmanager
def shrinking_shown(seed: int, seconds: float) -> Iterator[Callable[[Shrunk], None]]:
    """While a failure is shrunk; what is given is to be told each trial."""
    began = time.monotonic()
    with _shown(f"shrinking seed {seed}, seconds", round(seconds)) as say:
        yield lambda shrunk: say(
            min(round(seconds), int(time.monotonic() - began)),
            f"{len(shrunk.history.acts)} acts left after {shrunk.plays} plays",
        )


@contextmanager
def _shown(what: str, total: int) -> Iterator[Callable[[int, str], None]]:
    if not sys.stderr.isatty():
        yield _in_lines(what, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total, words="")
        yield lambda done, words: progress.update(task, completed=done, words=words)


def _in_lines(what: str, total: int) -> Callable[[int, str], None]:
    said = time.monotonic()

    def say(done: int, words: str) -> None:
        nonlocal said
        if time.monotonic() - said >= SAID_EVERY_SECONDS:
            said = time.monotonic()
            click.echo(f"{what}: {done} of {total}, {words}", err=True)

    return say
