"""Let every call that an operation makes to a port fail once, and check that the operation recovers.

    fail_each_call(operation)

The operation first runs undisturbed, and its calls to watched ports are listed. Then it runs from scratch once per
call, documented error of that call, and side: the call fails without effect, or it takes effect and its answer is lost.
An operation that raises an `AgentError` or the injected error is run again, as a worker would do. Each run must pass
`operation.check` and leave the state of the undisturbed run.

`Unexpected`, an error that no contract allows, is injected as well: a bug in one adapter must not stop the agent.

`check_backoff_resets` shows that a success resets the backoff of a module that retries by itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from itertools import pairwise
from math import isclose
from typing import TypeVar

from podkeeper.testing.operations import COUNTS, Explored, Failures, Operation, Run
from podkeeper.testing.port_calls import Fault, PortCall, PortCalls, Unexpected
from podkeeper.testing.virtual_time import simulate

S = TypeVar("S")

FAILURES_IN_A_ROW = 4


def fail_each_call(
    operation: Operation[S],
    *,
    unexpected: bool = True,
    lost_answers: bool = True,
    leave_out: Collection[tuple[str, str, type[Exception]]] = (),
) -> Explored:
    """Let each call fail once with each of its errors. Raise AssertionError with the runs that failed.

    `leave_out` names a port, a method and an error for which another end state is right. Test those by themselves.
    """
    calls = PortCalls()
    undisturbed = Run(operation, calls).in_between(())
    if undisturbed.problem:
        raise AssertionError(f"the undisturbed operation failed: {undisturbed.problem}")
    made = undisturbed.calls
    if not made:
        raise AssertionError("the operation made no call to a watched port")
    for port, method, error in leave_out:
        if (port, method) not in calls.errors:
            raise AssertionError(f"leave_out names {port}.{method}, which is not watched")
        if error not in (*calls.errors[port, method], Unexpected):
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
    return Explored(len(made), runs)


def _faults(calls: PortCalls, made: Sequence[PortCall], *, unexpected: bool, lost_answers: bool) -> Iterator[Fault]:
    for call in made:
        errors = calls.errors[call.port, call.method]
        for error in (*errors, *((Unexpected,) if unexpected else ())):
            yield Fault(call, error)
            if lost_answers:
                yield Fault(call, error, after_effect=True)


def check_backoff_resets(
    operation: Operation[S],
    port: str,
    method: str,
    error: type[Exception],
    again: Callable[[S], Awaitable[object]],
) -> list[float]:
    """Check that the pause after a failure is as short after a recovery as it was at first.

    The first calls of the method fail in a row, then it succeeds. `again` makes the module call the method once more,
    and that call fails. Return the pauses of the first row, so that a test can also check how they grow. The stage must
    use a clock without jitter.
    """

    async def scenario() -> tuple[list[float], float]:
        calls = PortCalls()
        async with operation.stage(calls) as stage:
            calls.arm(Fault(calls.next_call(port, method), error, times=FAILURES_IN_A_ROW))
            await operation.run(stage)
            await asyncio.sleep(operation.settle_seconds)
            row = _pauses(calls, port, method)
            calls.log.clear()
            calls.arm(Fault(calls.next_call(port, method), error))
            await again(stage)
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
        f"after a success the pause is {afterwards:g} s, expected {row[0]:g} s as at first"
    )
    return row[:FAILURES_IN_A_ROW]


def _pauses(calls: PortCalls, port: str, method: str) -> list[float]:
    """Return how long after each failed call the next one of the same method began."""
    log = [each for each in calls.log if (each.call.port, each.call.method) == (port, method)]
    return [after.at - before.at for before, after in pairwise(log) if before.failed]
