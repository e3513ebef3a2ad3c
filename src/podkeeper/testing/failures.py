"""Fail each port call of an operation once and check that the operation recovers.

    fail_each_call(operation)

The first run has no failures and lists the operation's calls to watched ports. The operation then runs from scratch
for each combination of

* a call,
* an error that the port's contract documents for this call,
* the moment of the failure: before the call takes effect, or after it (the response is lost).

If the operation raises an `AgentError` or the injected error, it runs again, like a sync that a worker retries. Each
run must pass `operation.check` and end in the same state as the run without failures.

`UnexpectedError`, an error that no contract allows, is injected as well: a bug in one adapter must not stop the agent.

`check_backoff_resets` shows that a success resets the backoff of a module that retries by itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from itertools import pairwise
from math import isclose
from typing import TypeVar

from podkeeper.testing.operations import COUNTS, Failures, OperationTest, Run, RunSummary
from podkeeper.testing.port_calls import InjectedFault, PortCall, PortCalls, UnexpectedError
from podkeeper.testing.virtual_time import simulate

S = TypeVar("S")

FAILURES_IN_A_ROW = 4


def fail_each_call(
    operation: OperationTest[S],
    *,
    unexpected: bool = True,
    lost_answers: bool = True,
    leave_out: Collection[tuple[str, str, type[Exception]]] = (),
) -> RunSummary:
    """Fail each call once with each of its errors. Raise AssertionError that lists the runs that failed.

    `leave_out` lists combinations of port, method and error that have another valid end state. Test them separately.
    """
    calls = PortCalls()
    undisturbed = Run(operation, calls).in_between(())
    if undisturbed.problem:
        raise AssertionError(f"the operation failed without injected failures: {undisturbed.problem}")
    made = undisturbed.calls
    # A test without a single call would pass and show nothing.
    if not made:
        raise AssertionError("the operation made no call to a watched port")
    for port, method, error in leave_out:
        if (port, method) not in calls.errors:
            raise AssertionError(f"leave_out names {port}.{method}, which is not watched")
        if error not in (*calls.errors[port, method], UnexpectedError):
            raise AssertionError(f"leave_out names {error.__name__}, which {port}.{method} never raises")
    failures, runs = Failures("a failing call"), 0
    for fault in _faults(calls, made, unexpected=unexpected, lost_answers=lost_answers):
        if (fault.call.port, fault.call.method, fault.error) in leave_out:
            continue
        runs += 1
        armed = PortCalls()
        armed.arm(fault)
        ended = Run(operation, armed, (fault.error,)).in_between(())
        failures.judge(str(fault), ended, [undisturbed.state])
    COUNTS["injected failures"] += runs
    failures.report(runs)
    return RunSummary(len(made), runs)


def _faults(
    calls: PortCalls, made: Sequence[PortCall], *, unexpected: bool, lost_answers: bool
) -> Iterator[InjectedFault]:
    for call in made:
        errors = calls.errors[call.port, call.method]
        for error in (*errors, *((UnexpectedError,) if unexpected else ())):
            yield InjectedFault(call, error)
            if lost_answers:
                yield InjectedFault(call, error, after_effect=True)


def check_backoff_resets(
    operation: OperationTest[S],
    port: str,
    method: str,
    error: type[Exception],
    again: Callable[[S], Awaitable[object]],
) -> list[float]:
    """Check that the first retry delay after a recovery equals the initial delay.

    The first FAILURES_IN_A_ROW calls of the method fail, then one succeeds. `again` makes the module call the method
    again, and that call fails. Return the pauses after the first failures, so that a test can also check their growth.
    `operation.setup` must use a clock without jitter.
    """

    async def scenario() -> tuple[list[float], float]:
        calls = PortCalls()
        async with operation.setup(calls) as subject:
            calls.arm(InjectedFault(calls.next_call(port, method), error, times=FAILURES_IN_A_ROW))
            await operation.run(subject)
            await asyncio.sleep(operation.settle_seconds)
            row = _pauses(calls, port, method)
            calls.log.clear()
            calls.arm(InjectedFault(calls.next_call(port, method), error))
            await again(subject)
            await asyncio.sleep(operation.settle_seconds)
            after = _pauses(calls, port, method)
            assert after, f"{port}.{method} was not called again after its failure within the settle time"
            return row, after[0]

    (row, afterwards), _ = simulate(scenario())
    COUNTS["injected failures"] += 1
    assert len(row) >= FAILURES_IN_A_ROW, (
        f"{port}.{method} was retried {len(row)} times, expected at least {FAILURES_IN_A_ROW}"
    )
    # Sums of virtual seconds are rounded.
    assert isclose(afterwards, row[0], rel_tol=1e-6), (
        f"the delay after a success is {afterwards:g} s, expected the initial delay of {row[0]:g} s"
    )
    return row[:FAILURES_IN_A_ROW]


def _pauses(calls: PortCalls, port: str, method: str) -> list[float]:
    """Return how long after each failed call the next one of the same method began."""
    log = [each for each in calls.log if (each.call.port, each.call.method) == (port, method)]
    return [after.at - before.at for before, after in pairwise(log) if before.failed]
