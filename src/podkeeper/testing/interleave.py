"""Deliver an event at every await of an operation and compare the end states.

    interleave(operation, {"the pod is deleted": lambda subject: subject.delete()})

An asyncio program can only switch tasks between two callbacks of its loop. So `interleave` counts the callbacks that
run while the operation is in progress. It then repeats the operation from scratch once per callback and event, in
virtual time, and delivers the event just before that callback. Each run must

* end within an hour of virtual time and raise only errors of `model.errors`, which are retried,
* pass `operation.check`, the invariants of the module,
* end in the same `operation.state` as one of the sequential orders of the operation and the events.

In addition, `interleave` cancels the operation itself at every await. The operation must then end as cancelled. Run
again, it must end in the state of a run without events.

An event may be a coroutine. It then runs as a separate task, in two runs. In the first run, its port calls suspend like
those of the operation. In the second run, they return at once, so that the event overtakes the operation.

`depth=2` delivers two events, at every pair of awaits. The idea comes from Sieve (OSDI 2022), which perturbs whole
controllers (`testing/sim/perturb`). This tool works on one module and is exhaustive for short operations.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement, permutations, product
from typing import TypeVar

from podkeeper.testing.operations import COUNTS, Ended, Event, Failures, OperationTest, Run, RunSummary
from podkeeper.testing.port_calls import PortCalls

S = TypeVar("S")


def interleave(
    operation: OperationTest[S],
    events: Mapping[str, Event[S]],
    *,
    depth: int = 1,
    cancel: bool = True,
    in_call_order: bool = False,
) -> RunSummary:
    """Deliver every event at every await of an operation. Raise AssertionError that lists the runs that failed.

    `in_call_order`: the module guarantees that calls take effect in the order in which they are made. Then only one
    sequential order is valid: the operation, then the events.
    """
    if depth < 1:
        raise ValueError(f"depth is {depth}, expected at least 1")
    undisturbed = Run(operation, PortCalls()).in_between(())
    if undisturbed.problem:
        raise AssertionError(f"the operation failed without events: {undisturbed.problem}")
    awaits = undisturbed.awaits
    first = 1 if in_call_order else 0  # at 0 the operation has not started
    failures, runs = Failures("an event at one await"), 0
    for number in range(1, awaits) if cancel else ():  # at 0 the operation has not started
        runs += 1
        ended = Run(operation, PortCalls()).in_between([(number, None)])
        failures.judge(f"cancelled at {_at(number, awaits, ended.where)}", ended, [undisturbed.state])
    for names in _groups(events, depth):
        expected = list(_sequential(operation, events, names, in_call_order))
        for numbers in combinations_with_replacement(range(first, awaits), len(names)):
            schedule = list(zip(numbers, (events[name] for name in names), strict=True))
            for at_once in (False, True):
                runs += 1
                run = Run(operation, PortCalls())
                ended = run.in_between(schedule, at_once=at_once)
                failures.judge(_places(names, numbers, awaits, ended, at_once), ended, expected)
                if not run.tasks:
                    break  # no event is a coroutine, so a second run would be the same
    # A test without a single run would pass and show nothing.
    if runs == 0:
        raise AssertionError(f"no run was made: {awaits} awaits, {len(events)} events, cancel={cancel}")
    COUNTS["interleavings"] += runs
    failures.report(runs)
    return RunSummary(awaits, runs)


def _groups(events: Mapping[str, Event[S]], depth: int) -> Iterator[tuple[str, ...]]:
    for length in range(1, depth + 1):
        yield from product(events, repeat=length)


def _sequential(
    operation: OperationTest[S], events: Mapping[str, Event[S]], names: Sequence[str], in_call_order: bool
) -> Iterator[object]:
    """Yield the end state of each sequential order that is allowed. None stands for the operation."""
    orders: Iterable[tuple[str | None, ...]] = permutations((*names, None))
    for order in [(None, *names)] if in_call_order else orders:
        ended = Run(operation, PortCalls()).in_order([None if name is None else events[name] for name in order])
        if ended.problem:
            shown = ", then ".join("the operation" if name is None else repr(name) for name in order)
            raise AssertionError(f"a sequential order failed ({shown}): {ended.problem}")
        yield ended.state


def _places(names: Sequence[str], numbers: Sequence[int], awaits: int, ended: Ended, at_once: bool) -> str:
    pace = ", with port calls that do not suspend" if at_once else ""
    return ", then ".join(
        f"{name!r} at {_at(number, awaits, ended.where[place:])}{pace}"
        for place, (name, number) in enumerate(zip(names, numbers, strict=True))
    )


def _at(number: int, awaits: int, where: Sequence[str]) -> str:
    return f"await {number} of {awaits} ({where[0] if where else 'not reached'})"
