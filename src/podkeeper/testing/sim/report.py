"""Telling what came of a campaign: a broken promise at length, the totals in short, or everything for machines.

Values in, lines out. What a reader needs of a failure comes first: the promise, how it was broken, the command that
plays it again; then the acts that it takes, and what happened to the pod.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from textwrap import wrap

from podkeeper.testing.sim.campaign import FELL_OVER, SeedResult, Totals
from podkeeper.testing.sim.history import Act
from podkeeper.testing.sim.invariants import INVARIANTS
from podkeeper.testing.sim.mischief import FAULTS
from podkeeper.testing.sim.play import Plan
from podkeeper.testing.sim.shrink import Shrunk
from podkeeper.testing.sim.spelling import choice_shown, command_for
from podkeeper.testing.sim.timeline import elided
from podkeeper.testing.sim.workload import WORKLOADS
from podkeeper.testing.sim.world import Violation

MOST_ACTS = 40  # shown one by one
WIDTH = 118
PROMISES: Mapping[str, str] = {
    **INVARIANTS,
    "alive": "the agent never falls over",
    FELL_OVER: "the simulation itself never falls over",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A broken promise, and what was found out about it."""

    found: SeedResult
    shrunk: Shrunk | None = None
    again: SeedResult | None = None  # the shrunk history, played once more

    @property
    def violation(self) -> Violation:
        """What was broken."""
        assert self.found.violation is not None
        return self.found.violation

    @property
    def plan(self) -> Plan:
        """The plan with the fewest acts that breaks the promise."""
        if self.shrunk is None:
            return self.found.plan
        return replace(self.found.plan, only=frozenset(act.number for act in self.shrunk.history.acts))


@dataclass(frozen=True, slots=True)
class Before:
    """What former runs of the same campaign played."""

    seeds: int = 0
    seconds: float = 0.0  # virtual ones


NOTHING_BEFORE = Before()


def introduction(plan: Plan, seeds: range, jobs: int, before: Before = NOTHING_BEFORE) -> Iterator[str]:
    """What is about to be played."""
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}, {jobs} at a time"
    yield f"Simulating {plan.hours:g} h of {which}."
    for number, line in enumerate(plan.profile.described()):
        yield from wrap(
            line,
            WIDTH,
            initial_indent=f"  {'' if number else 'profile':9} ",
            subsequent_indent=" " * 14,
            break_on_hyphens=False,
        )
    yield f"  workload  {choice_shown(plan.workload, WORKLOADS)} ({len(plan.workload)} of {len(WORKLOADS)} kinds)"
    yield f"  faults    {choice_shown(plan.faults, FAULTS)} ({len(plan.faults)} of {len(FAULTS)} kinds)"
    if plan.only is not None:
        yield f"  acts      {len(plan.only)} only"
    if before.seeds:
        yield f"  continued {before.seeds} of {len(seeds)} seeds were played before"


def failure_told(failure: Failure, *, also: str = "") -> Iterator[str]:
    """A failure at length."""
    violation, found, again = failure.violation, failure.found, failure.again
    yield f"BROKEN by seed {found.plan.seed}: {violation}"
    yield f"  {violation.invariant} promises: {PROMISES.get(violation.invariant, 'something of your own')}"
    yield f"  again:   {command_for(found.plan, also=also)}"
    if failure.shrunk is not None:
        yield from _shrunk_told(failure, failure.shrunk, also)
    shown = found
    if again is not None and again.violation is not None:
        shown = again
        yield f"  Then {again.violation}"
    if shown.lines:
        uid = shown.violation.uid if shown.violation is not None else ""
        yield f"  What happened to {f'pod {uid} and its namesakes' if uid else 'the node'} (virtual seconds):"
        yield from elided(shown.lines)
        if shown.violation is not None:
            yield f"{shown.violation.at:12.3f}  {shown.violation.invariant} is BROKEN"


def _shrunk_told(failure: Failure, shrunk: Shrunk, also: str) -> Iterator[str]:
    acts = shrunk.history.acts
    how = "none can be spared" if shrunk.minimal else "time was up, there may be fewer (--shrink-seconds)"
    yield f"  shorter: {command_for(failure.plan, also=also)}"
    yield f"  {len(acts)} of {failure.found.acts} acts are enough, {how} ({shrunk.plays} plays):"
    yield from (_act_told(act) for act in acts[:MOST_ACTS])
    if len(acts) > MOST_ACTS:
        yield f"    ... and {len(acts) - MOST_ACTS} more"


def _act_told(act: Act) -> str:
    return (
        f"    {act.number:5}  at {act.at:10.3f} s  [{act.deed.kind}] {str(act.deed).removeprefix(f'{act.deed.kind}: ')}"
    )


def summary(totals: Totals, real_seconds: float, *, of: int, before: Before = NOTHING_BEFORE) -> Iterator[str]:
    """All in short."""
    played = f"{totals.seeds} of {of} seeds" if totals.seeds < of else _plural(of, "seed")
    hours = (totals.seconds - before.seconds) / 3600.0
    speed = hours / real_seconds if real_seconds else 0.0
    how_fast = f"{hours:.1f} virtual hours in {real_seconds:.0f} s ({speed:.2f} virtual hours a second)."
    if before.seeds:
        yield f"{played}, {totals.seconds / 3600.0:.1f} virtual hours. {before.seeds} of them were played before."
        played = "Since then"
    yield f"{played}, {how_fast}"
    if not totals.seeds:
        return
    costs = sorted(result.cpu_seconds_per_hour for result in totals.results.values())
    yield f"CPU seconds per virtual hour: {median(costs):.2f} ({costs[0]:.2f} to {costs[-1]:.2f})."
    yield (
        f"{totals.pods_alive:.1f} pods alive on average, {totals.acts} acts, "
        f"{_plural(totals.lives, 'agent')} lived, {totals.length} things noted."
    )
    yield "Promises, and how often each was put to the test:"
    yield from _counts(totals.checks, PROMISES, INVARIANTS)
    yield "Troubles, and how often each was made:"
    yield from _counts(totals.troubles, FAULTS, next(iter(totals.results.values())).plan.faults)
    yield f"hash {totals.hash}"
    yield _verdict(totals.failures)


def _counts(
    counts: Counter[str], meanings: Mapping[str, str], always: Sequence[str] | Mapping[str, str] = ()
) -> Iterator[str]:
    names = [*always, *(name for name in meanings if name in counts and name not in always)]
    names += sorted(counts.keys() - set(names))
    widest = max(map(len, names), default=0)
    for name in names:
        yield f"  {name:{widest}} {counts[name]:9}  {meanings.get(name, '')}".rstrip()


def _verdict(failures: Sequence[SeedResult]) -> str:
    if not failures:
        return "No promise was broken."
    broken = ", ".join(f"{each.plan.seed} ({each.violation.invariant})" for each in failures if each.violation)
    return f"{_plural(len(failures), 'seed')} broke a promise: {broken}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def as_data(
    totals: Totals,
    failures: Sequence[Failure],
    real_seconds: float,
    *,
    also: str = "",
    before: Before = NOTHING_BEFORE,
) -> dict[str, object]:
    """Everything, as what JSON can hold."""
    return {
        "seeds": totals.seeds,
        "seeds_played_before": before.seeds,
        "virtual_hours": totals.seconds / 3600.0,
        "seconds": real_seconds,
        "cpu_seconds": totals.cpu_seconds,
        "pods_alive": totals.pods_alive,
        "lives": totals.lives,
        "acts": totals.acts,
        "hash": totals.hash,
        "checks": dict(sorted(totals.checks.items())),
        "troubles": dict(sorted(totals.troubles.items())),
        "violations": [_failure_data(failure, also) for failure in failures],
        "results": [_result_data(result) for _, result in sorted(totals.results.items())],
    }


def _failure_data(failure: Failure, also: str) -> dict[str, object]:
    shown = failure.again if failure.again is not None and failure.again.violation is not None else failure.found
    data: dict[str, object] = {
        "seed": failure.found.plan.seed,
        **_violation_data(failure.violation),
        "command": command_for(failure.found.plan, also=also),
        "timeline": [str(line).strip() for line in shown.lines],
    }
    if failure.shrunk is not None:
        data["shorter_command"] = command_for(failure.plan, also=also)
        data["minimal"] = failure.shrunk.minimal
        data["acts"] = [
            {"number": act.number, "at": act.at, "kind": act.deed.kind, "text": str(act.deed)}
            for act in failure.shrunk.history.acts
        ]
    return data


def _violation_data(violation: Violation) -> dict[str, object]:
    return {
        "invariant": violation.invariant,
        "promise": PROMISES.get(violation.invariant, ""),
        "at": violation.at,
        "uid": violation.uid,
        "message": violation.message,
    }


def _result_data(result: SeedResult) -> dict[str, object]:
    return {
        "seed": result.plan.seed,
        "hash": result.hash,
        "virtual_seconds": result.seconds,
        "cpu_seconds": result.cpu_seconds,
        "cpu_seconds_per_hour": result.cpu_seconds_per_hour,
        "pods_alive": result.pods_alive,
        "lives": result.lives,
        "acts": result.acts,
        "broken": None if result.violation is None else result.violation.invariant,
    }
