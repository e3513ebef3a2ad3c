"""Format the results of a campaign: failures, a summary, or JSON.

Input: results. Output: lines of text. A failure starts with the invariant, its violation and the command that repeats
it. Then follow the necessary actions and the trace of the pod.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from textwrap import wrap

from podkeeper.testing.sim.campaign import RUN_FAILED, CampaignTotals, SeedResult
from podkeeper.testing.sim.faults import FAULTS
from podkeeper.testing.sim.invariants import INVARIANTS
from podkeeper.testing.sim.plan_args import choice_shown, command_for
from podkeeper.testing.sim.run import SimPlan
from podkeeper.testing.sim.schedule import TimedAction
from podkeeper.testing.sim.shrink import Shrunk
from podkeeper.testing.sim.timeline import shortened
from podkeeper.testing.sim.workload import WORKLOADS
from podkeeper.testing.sim.world import Violation

MAX_ACTIONS = 40  # printed in full
WIDTH = 118
INVARIANT_TEXTS: Mapping[str, str] = {
    **INVARIANTS,
    "alive": "the agent never ends with an unexpected error",
    RUN_FAILED: "the simulation itself never ends with an error",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A violated invariant, and the result of shrinking."""

    found: SeedResult
    shrunk: Shrunk | None = None
    again: SeedResult | None = None  # the result of the shrunk schedule

    @property
    def violation(self) -> Violation:
        assert self.found.violation is not None
        return self.found.violation

    @property
    def plan(self) -> SimPlan:
        """The plan with the fewest actions that violates the invariant."""
        if self.shrunk is None:
            return self.found.plan
        return replace(self.found.plan, only=frozenset(timed.number for timed in self.shrunk.schedule.actions))


@dataclass(frozen=True, slots=True)
class EarlierRuns:
    """The seeds that earlier runs of the same campaign completed."""

    seeds: int = 0
    seconds: float = 0.0  # virtual


NO_EARLIER_RUNS = EarlierRuns()


def introduction(plan: SimPlan, seeds: range, jobs: int, before: EarlierRuns = NO_EARLIER_RUNS) -> Iterator[str]:
    """Describe what will run."""
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
        yield f"  actions   {len(plan.only)} only"
    if before.seeds:
        yield f"  continued {before.seeds} of {len(seeds)} seeds ran before"


def failure_lines(failure: Failure, *, also: str = "") -> Iterator[str]:
    """Describe a failure in detail."""
    violation, found, again = failure.violation, failure.found, failure.again
    yield f"FAILED seed {found.plan.seed}: {violation}"
    yield f"  {violation.invariant}: {INVARIANT_TEXTS.get(violation.invariant, 'an invariant of your own')}"
    yield f"  again:   {command_for(found.plan, also=also)}"
    if failure.shrunk is not None:
        yield from _shrunk_lines(failure, failure.shrunk, also)
    shown = found
    if again is not None and again.violation is not None:
        shown = again
        yield f"  The shorter run: {again.violation}"
    if shown.lines:
        uid = shown.violation.uid if shown.violation is not None else ""
        yield f"  Trace of {f'pod {uid} and all pods with its name' if uid else 'the node'} (virtual seconds):"
        yield from shortened(shown.lines)
        if shown.violation is not None:
            yield f"{shown.violation.at:12.3f}  {shown.violation.invariant} is VIOLATED"


def _shrunk_lines(failure: Failure, shrunk: Shrunk, also: str) -> Iterator[str]:
    actions = shrunk.schedule.actions
    how = (
        "all of them necessary"
        if shrunk.minimal
        else "fewer may be enough; the time limit was reached (--shrink-seconds)"
    )
    yield f"  shorter: {command_for(failure.plan, also=also)}"
    yield f"  {len(actions)} of {failure.found.actions} actions are enough, {how} ({shrunk.runs} runs):"
    yield from (_action_line(timed) for timed in actions[:MAX_ACTIONS])
    if len(actions) > MAX_ACTIONS:
        yield f"    ... and {len(actions) - MAX_ACTIONS} more"


def _action_line(timed: TimedAction) -> str:
    kind = timed.action.kind
    return f"    {timed.number:5}  at {timed.at:10.3f} s  [{kind}] {str(timed.action).removeprefix(f'{kind}: ')}"


def summary(
    totals: CampaignTotals, real_seconds: float, *, of: int, before: EarlierRuns = NO_EARLIER_RUNS
) -> Iterator[str]:
    """Summarize all seeds."""
    ran = f"{totals.seeds} of {of} seeds" if totals.seeds < of else _plural(of, "seed")
    hours = (totals.seconds - before.seconds) / 3600.0
    speed = hours / real_seconds if real_seconds else 0.0
    how_fast = f"{hours:.1f} virtual hours in {real_seconds:.0f} s ({speed:.2f} virtual hours a second)."
    if before.seeds:
        yield f"{ran}, {totals.seconds / 3600.0:.1f} virtual hours. {before.seeds} of them ran before."
        ran = "Since then"
    yield f"{ran}, {how_fast}"
    if not totals.seeds:
        return
    costs = sorted(result.cpu_seconds_per_hour for result in totals.results.values())
    yield f"CPU seconds per virtual hour: {median(costs):.2f} ({costs[0]:.2f} to {costs[-1]:.2f})."
    yield (
        f"{totals.pods_alive:.1f} pods alive on average, {totals.actions} actions, "
        f"{_plural(totals.agents, 'agent process', 'agent processes')}, {totals.length} trace entries."
    )
    yield "Checks per invariant:"
    yield from _counts(totals.checks, INVARIANT_TEXTS, INVARIANTS)
    yield "Injected faults:"
    yield from _counts(totals.fault_counts, FAULTS, next(iter(totals.results.values())).plan.faults)
    yield f"hash {totals.hash}"
    yield _conclusion(totals.failures)


def _counts(
    counts: Counter[str], meanings: Mapping[str, str], always: Sequence[str] | Mapping[str, str] = ()
) -> Iterator[str]:
    names = [*always, *(name for name in meanings if name in counts and name not in always)]
    names += sorted(counts.keys() - set(names))
    widest = max(map(len, names), default=0)
    for name in names:
        yield f"  {name:{widest}} {counts[name]:9}  {meanings.get(name, '')}".rstrip()


def _conclusion(failures: Sequence[SeedResult]) -> str:
    if not failures:
        return "All invariants held."
    violated = ", ".join(f"{each.plan.seed} ({each.violation.invariant})" for each in failures if each.violation)
    return f"{_plural(len(failures), 'seed')} violated an invariant: {violated}"


def _plural(count: int, noun: str, plural: str = "") -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


def as_data(
    totals: CampaignTotals,
    failures: Sequence[Failure],
    real_seconds: float,
    *,
    also: str = "",
    before: EarlierRuns = NO_EARLIER_RUNS,
) -> dict[str, object]:
    """Return everything as data for JSON."""
    return {
        "seeds": totals.seeds,
        "seeds_played_before": before.seeds,
        "virtual_hours": totals.seconds / 3600.0,
        "seconds": real_seconds,
        "cpu_seconds": totals.cpu_seconds,
        "pods_alive": totals.pods_alive,
        "lives": totals.agents,
        "acts": totals.actions,
        "hash": totals.hash,
        "checks": dict(sorted(totals.checks.items())),
        "troubles": dict(sorted(totals.fault_counts.items())),
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
            {"number": timed.number, "at": timed.at, "kind": timed.action.kind, "text": str(timed.action)}
            for timed in failure.shrunk.schedule.actions
        ]
    return data


def _violation_data(violation: Violation) -> dict[str, object]:
    return {
        "invariant": violation.invariant,
        "promise": INVARIANT_TEXTS.get(violation.invariant, ""),
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
        "lives": result.agents,
        "acts": result.actions,
        "broken": None if result.violation is None else result.violation.invariant,
    }
