"""Injected faults: which calls fail, hang, or take effect and return an error.

Tests and the simulation add faults, and a fake checks them at every call. A fault selects an operation and a subject (a
pod's UID or an object's name). None matches any. The oldest matching fault applies. If none matches, the policies
decide.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from podkeeper.model.errors import AgentError, CallTimedOut, RuntimeRefused


@dataclass(slots=True, eq=False, kw_only=True)
class Fault:
    """A delay and an optional error, before or after the effect of a call, for a number of calls."""

    operation: str | None = None  # None: any
    about: str | None = None  # None: any
    times: int | None = 1  # remaining number of calls; None: unlimited
    delay_seconds: float = 0.0  # infinite: until `clear` or `release`
    error: type[AgentError] | None = None
    takes_effect: bool = False  # delay and error follow the effect


Policy = Callable[[str, str], Fault | None]
"""Returns the fault of a call (operation, about), for seeded random faults."""


class FakeFaults:
    def __init__(
        self, *, failure: type[AgentError] = RuntimeRefused, lost_answer: type[AgentError] = CallTimedOut
    ) -> None:
        self._failure = failure
        self._lost_answer = lost_answer
        self._faults: list[Fault] = []
        self._delayed: dict[asyncio.Future[None], Fault] = {}  # waiting calls, oldest first
        self._policies: list[Policy] = []

    def add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def fail(
        self,
        operation: str | None = None,
        about: str | None = None,
        *,
        times: int | None = 1,
        error: type[AgentError] | None = None,
    ) -> Fault:
        """Make calls fail without effect."""
        return self.add(Fault(operation=operation, about=about, times=times, error=error or self._failure))

    def hang(
        self,
        operation: str | None = None,
        about: str | None = None,
        *,
        times: int | None = 1,
        seconds: float = math.inf,
    ) -> Fault:
        """Make calls take longer, by default until `clear`."""
        return self.add(Fault(operation=operation, about=about, times=times, delay_seconds=seconds))

    def lose_answer(
        self,
        operation: str | None = None,
        about: str | None = None,
        *,
        times: int | None = 1,
        seconds: float = 0.0,
        error: type[AgentError] | None = None,
    ) -> Fault:
        """Make calls take effect and then fail, after `seconds`."""
        return self.add(
            Fault(
                operation=operation,
                about=about,
                times=times,
                delay_seconds=seconds,
                error=error or self._lost_answer,
                takes_effect=True,
            )
        )

    def remove(self, fault: Fault) -> None:
        """Remove a fault. Calls that it already delays stay delayed."""
        if fault in self._faults:
            self._faults.remove(fault)

    def clear(self) -> None:
        """Remove all faults, and let hanging calls continue."""
        self._faults.clear()
        for waiting, fault in tuple(self._delayed.items()):
            if math.isinf(fault.delay_seconds):
                _resume(waiting)

    def add_policy(self, policy: Policy) -> None:
        """Add a policy, which decides if the earlier ones return None."""
        self._policies.append(policy)

    def remove_policy(self, policy: Policy) -> None:
        """Remove a policy. Calls that its faults already delay stay delayed."""
        if policy in self._policies:
            self._policies.remove(policy)

    @property
    def policies(self) -> tuple[Policy, ...]:
        return tuple(self._policies)

    def release(self, fault: Fault) -> None:
        """Let the calls continue that one fault delays."""
        for waiting, cause in tuple(self._delayed.items()):
            if cause is fault:
                _resume(waiting)

    @property
    def hung_calls(self) -> int:
        """Return the number of calls that hang without limit."""
        return sum(math.isinf(fault.delay_seconds) for fault in self._delayed.values())

    def take(self, operation: str, about: str) -> Fault | None:
        """Return the fault of this call, and count it as used."""
        for fault in self._faults:
            if fault.operation in (None, operation) and fault.about in (None, about):
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times <= 0:
                        self._faults.remove(fault)
                return fault
        for policy in self._policies:
            if (decided := policy(operation, about)) is not None:
                return decided
        return None

    async def suffer(self, fault: Fault) -> None:
        """Wait for the delay of a fault, or until it is released."""
        if fault.delay_seconds <= 0:
            # Suspend once, so that other tasks run between the call and its failure.
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        timer = None if math.isinf(fault.delay_seconds) else loop.call_later(fault.delay_seconds, _resume, waiting)
        self._delayed[waiting] = fault
        try:
            await waiting
        finally:
            del self._delayed[waiting]
            if timer is not None:
                timer.cancel()


def _resume(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
