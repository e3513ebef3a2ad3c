"""`podkeeper sim`: run the agent with random faults in virtual time.

The command checks the invariants of the agent at every step.

A seed determines a whole schedule, so each run of a seed is the same. Worker processes with a fixed string hash run the
seeds (`testing.sim.campaign`). This module parses the options and prints progress and results. docs/simulation.md
describes how to read failures and how to write scenarios and invariants.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from podkeeper.app.cli.sim_progress import seeds_progress, shrink_progress
from podkeeper.testing.sim.campaign import (
    EVERYTHING,
    CampaignTotals,
    SeedResult,
    WorkerPool,
    excerpt_of,
    named_function,
)
from podkeeper.testing.sim.faults import FAULTS
from podkeeper.testing.sim.plan_args import choice_read, numbers_read, numbers_shown, profile_read, seeds_read
from podkeeper.testing.sim.profile import Profile
from podkeeper.testing.sim.report import EarlierRuns, Failure, as_data, failure_lines, introduction, summary
from podkeeper.testing.sim.run import SimPlan, schedule_of
from podkeeper.testing.sim.schedule import Schedule
from podkeeper.testing.sim.shrink import shrink
from podkeeper.testing.sim.state import StateFile, StateRefused
from podkeeper.testing.sim.workload import WORKLOADS
from podkeeper.testing.sim.world import Violation

INTERRUPTED = 130  # 128 + SIGINT, as in shells
LATER_SECONDS = 300.0  # a shortened schedule may fail up to this much later than the original schedule
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignOptions:
    """Options other than the plan."""

    jobs: int
    fail_fast: bool
    shrink_seconds: float  # 0: do not shrink
    timeline: str
    also: str
    log: str
    as_json: bool
    state: Path | None


FC = TypeVar("FC", bound=Callable[..., Any])
Callback = Callable[[click.Context, click.Parameter, str | None], object]


def _parsed_by(read: Callable[[str], object]) -> Callback:
    """Return a click callback that reports a ValueError of the parser as a usage error."""

    def callback(context: click.Context, option: click.Parameter, text: str | None) -> object:
        try:
            return None if text is None else read(text)
        except ValueError as error:
            raise click.BadParameter(str(error), context, option) from None

    return callback


def _choice(known: Mapping[str, str]) -> Callback:
    def read(text: str) -> object:
        try:
            return choice_read(text, known)
        except ValueError as error:
            raise ValueError(
                f"{error}; expected all, none, NAME,NAME or all,-NAME with these names:\n{_table(known)}"
            ) from None

    return _parsed_by(read)


def _choice_option(name: str, known: Mapping[str, str], meaning: str) -> Callable[[FC], FC]:
    return click.option(
        name,
        default="all",
        show_default=True,
        metavar="NAMES",
        callback=_choice(known),
        help=f"{meaning}: all, none, X,Y or all,-X.",
    )


def _function(text: str) -> str:
    if not text:
        return text
    sys.path[:0] = [] if os.getcwd() in sys.path else [os.getcwd()]  # import from the working directory, as python -m
    try:
        named_function(text)
    except (ImportError, AttributeError, AssertionError, ValueError) as error:
        raise ValueError(
            f"cannot import {text!r} ({error}); expected MODULE:NAME of a class or function with one argument, a World"
        ) from None
    return text


def _table(known: Mapping[str, str]) -> str:
    widest = max(map(len, known))
    return "\n".join(f"  {name:{widest}}  {meaning}" for name, meaning in known.items())


def _list_and_exit(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"workload:\n{_table(WORKLOADS)}\n\nfaults:\n{_table(FAULTS)}")
        context.exit()


@click.command()
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Run one seed [default: 0].")
@click.option("--seeds", metavar="FIRST:LAST", callback=_parsed_by(seeds_read), help="Run the seeds FIRST to LAST-1.")
@click.option(
    "--hours",
    default=6.0,
    show_default=True,
    type=click.FloatRange(0.05, 1000),
    metavar="HOURS",
    help="Virtual hours per seed.",
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="JOBS", help="Number of processes [default: one per core].")
@_choice_option("--faults", FAULTS, "Faults to inject")
@_choice_option("--workload", WORKLOADS, "Kinds of workload to run")
@click.option("--profile", "changes", multiple=True, metavar="KEY=VALUE", help="Change the profile, e.g. pods=30.")
@click.option(
    "--only",
    metavar="NUMBERS",
    callback=_parsed_by(numbers_read),
    help="Run only these actions, as printed by a failure.",
)
@click.option(
    "--also",
    default="",
    metavar="MODULE:NAME",
    callback=_parsed_by(_function),
    help="Add your own invariant, a class or function that is called with the world.",
)
@click.option(
    "--state",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Save the result of each seed in FILE. Run the same command again to continue after an interruption.",
)
@click.option("--fail-fast/--keep-going", help="Stop at the first failed seed [default: --keep-going].")
@click.option(
    "--shrink/--no-shrink",
    "shrinks",
    default=True,
    help="Search for a shorter schedule that fails [default: --shrink].",
)
@click.option(
    "--shrink-seconds",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Time limit of the search.",
)
@click.option("--timeline", default="", metavar="POD", help="Print the trace of a pod (name, UID or 'all').")
@click.option(
    "--log",
    default="",
    type=click.Choice(["", *LOG_LEVELS]),
    metavar="LEVEL",
    help=f"Write the agent's log to stderr at LEVEL: {', '.join(LOG_LEVELS)}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON document.")
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_and_exit,
    help="List all faults and workloads, then exit.",
)
def sim(
    seed: int | None,
    seeds: range | None,
    hours: float,
    jobs: int | None,
    faults: tuple[str, ...],
    workload: tuple[str, ...],
    changes: Sequence[str],
    only: frozenset[int] | None,
    also: str,
    state: Path | None,
    fail_fast: bool,
    shrinks: bool,
    shrink_seconds: float,
    timeline: str,
    log: str,
    as_json: bool,
) -> None:
    """Test the agent against random workloads and faults.

    Runs the agent in virtual time and checks its invariants at every step. See docs/simulation.md.

    \b
    Examples:
      podkeeper sim --seed 7
      podkeeper sim --seeds 0:100 --hours 2 --fail-fast
    """
    if seed is not None and seeds is not None:
        raise click.UsageError("--seed and --seeds are mutually exclusive")
    if seeds is not None and (only is not None or timeline):
        raise click.UsageError("--only and --timeline require a single --seed")
    if seeds is None and state is not None:
        raise click.UsageError("--state requires --seeds")
    try:
        profile = profile_read(changes, Profile())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--profile") from None
    which = seeds if seeds is not None else range(seed or 0, (seed or 0) + 1)
    first = SimPlan(seed=which[0], hours=hours, faults=faults, workload=workload, profile=profile, only=only)
    _check_actions(first)
    options = CampaignOptions(
        jobs=min(jobs or os.cpu_count() or 1, len(which)),
        fail_fast=fail_fast,
        shrink_seconds=shrink_seconds if shrinks else 0.0,
        timeline=timeline,
        also=also,
        log=log,
        as_json=as_json,
        state=state,
    )
    try:
        status = _simulate(first, which, options)
    except StateRefused as error:
        raise click.BadParameter(str(error), param_hint="--state") from None
    except BrokenProcessPool:
        raise click.ClickException("a worker process died unexpectedly; it may have run out of memory") from None
    raise SystemExit(status)


def _check_actions(plan: SimPlan) -> None:
    """Reject action numbers that this seed does not have. Otherwise the run would skip them and pass."""
    actions = [timed.number for timed in schedule_of(replace(plan, only=None)).actions] if plan.only else []
    if plan.only and (unknown := plan.only.difference(actions)):
        known = f"{min(actions)} to {max(actions)}" if actions else "none"
        problem = f"seed {plan.seed} has no action {numbers_shown(frozenset(unknown))} (its actions: {known})"
        raise click.BadParameter(problem, param_hint="--only")


def _simulate(first: SimPlan, seeds: range, options: CampaignOptions) -> int:
    """Run all seeds and print the results. Returns the exit status."""
    if options.state is None:
        return _campaign(first, seeds, options, None)
    with StateFile.opened(options.state, first, seeds, options.also) as state:
        return _campaign(first, seeds, options, state)


def _campaign(first: SimPlan, seeds: range, options: CampaignOptions, state: StateFile | None) -> int:
    began = time.monotonic()
    totals = CampaignTotals()
    for result in state.results() if state is not None else ():
        totals.add(result)
    before = EarlierRuns(totals.seeds, totals.seconds)
    if not options.as_json:
        _print(introduction(first, seeds, options.jobs, before))
    with WorkerPool(options.jobs, also=options.also, log=options.log) as pool:
        interrupted = _run_seeds(pool, first, seeds, options, totals, state)
        seconds = time.monotonic() - began
        shrinks = options.shrink_seconds > 0 and not interrupted
        failures = [
            _shrunk(pool, each, options.shrink_seconds) if shrinks else Failure(each)
            for each in _first_failures(totals)
        ]
    if options.as_json:
        click.echo(json.dumps(as_data(totals, failures, seconds, also=options.also, before=before), indent=1))
    else:
        for failure in failures:
            _print(("", *failure_lines(failure, also=options.also)))
        _print(("", *summary(totals, seconds, of=len(seeds), before=before)))
        if state is not None and totals.seeds < len(seeds):
            _print((f"Run the same command again to run the other {len(seeds) - totals.seeds}.",))
    return 1 if failures else INTERRUPTED if interrupted else 0


def _run_seeds(
    pool: WorkerPool,
    first: SimPlan,
    seeds: range,
    options: CampaignOptions,
    totals: CampaignTotals,
    state: StateFile | None = None,
) -> bool:
    """Run all seeds that have no result yet. Returns true if Ctrl-C interrupted them."""
    if options.fail_fast and totals.failures:
        return False
    plans = (replace(first, seed=seed) for seed in seeds if seed not in totals.results)
    try:
        with seeds_progress(len(seeds), totals) as show:
            for result in pool.results(plans, keep=options.timeline):
                if state is not None:
                    state.append(result)
                totals.add(result)
                show()
                if options.fail_fast and result.violation is not None:
                    break
    except KeyboardInterrupt:
        return True
    if options.timeline:
        lines = totals.results[first.seed].timeline
        if options.timeline == EVERYTHING or any(line.uid for line in lines):
            _print(("", *map(str, lines)))
        else:  # a wrong name, or the run failed before it created the pod
            click.echo(f"pod {options.timeline} not found in the trace", err=True)
    return False


def _first_failures(totals: CampaignTotals) -> list[SeedResult]:
    """Return the first failure of each invariant. Only these are printed in full."""
    kinds: dict[str, SeedResult] = {}
    for failure in totals.failures:
        assert failure.violation is not None
        kinds.setdefault(failure.violation.invariant, failure)
    return list(kinds.values())


def _shrunk(pool: WorkerPool, failure: SeedResult, seconds: float) -> Failure:
    """Search for the shortest schedule that fails, within the time limit."""
    plan, violation = failure.plan, failure.violation
    assert violation is not None
    until = time.monotonic() + seconds
    give_up_at = violation.at + LATER_SECONDS

    def run_trial(schedule: Schedule) -> Violation | None:
        return pool.run(excerpt_of(schedule, plan, give_up_at)).violation

    with shrink_progress(plan.seed, seconds) as show:
        shrunk = shrink(
            schedule_of(plan),
            violation,
            run_trial,
            is_fault=lambda timed: timed.action.kind in FAULTS,
            time_is_up=lambda: time.monotonic() > until,
            report=show,
        )
    try:
        return Failure(failure, shrunk, pool.run(excerpt_of(shrunk.schedule, plan)))
    except (KeyboardInterrupt, BrokenProcessPool):  # Ctrl-C kills the worker processes, too
        return Failure(failure, shrunk)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
