"""Trouble on order: which call fails, hangs, or takes effect and is never heard of again.

Tests and the simulation fill the book; a fake asks it at every call. A fault names an operation and whom the
call is about (a pod's UID, an object's name), or leaves either open. The oldest fault that fits is used first; where
none does, the policies are asked.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from podkeeper.model.errors import AgentError, CallTimedOut, RuntimeRefused


@dataclass(slots=True, eq=False, kw_only=True)
class Fault:
    """What is to go wrong, and how often: a delay, then perhaps an error, instead of the effect or after it."""

    operation: str | None = None  # None: any
    about: str | None = None  # None: whomever
    times: int | None = 1  # how often it is still to happen; None: always
    delay_seconds: float = 0.0  # infinite: until the faults are cleared, or this one is released
    error: type[AgentError] | None = None
    takes_effect: bool = False  # delay and error come after the effect


Policy = Callable[[str, str], Fault | None]
"""Decides at each call (operation, about) what goes wrong: for seeded chance."""


class FakeFaults:
    """The faults of one fake."""

    def __init__(
        self, *, failure: type[AgentError] = RuntimeRefused, lost_answer: type[AgentError] = CallTimedOut
    ) -> None:
        self._failure = failure
        self._lost_answer = lost_answer
        self._faults: list[Fault] = []
        self._suffering: dict[asyncio.Future[None], Fault] = {}  # calls that wait, in the order they began to
        self._policies: list[Policy] = []

    def add(self, fault: Fault) -> Fault:
        """Order any fault."""
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
        """Let calls fail without an effect."""
        return self.add(Fault(operation=operation, about=about, times=times, error=error or self._failure))

    def hang(
        self,
        operation: str | None = None,
        about: str | None = None,
        *,
        times: int | None = 1,
        seconds: float = math.inf,
    ) -> Fault:
        """Let calls take longer; for ever means until `clear`."""
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
        """Let calls take effect and yet fail, so many seconds later."""
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
        """Cancel an order; calls it has already hit are not helped."""
        if fault in self._faults:
            self._faults.remove(fault)

    def clear(self) -> None:
        """Cancel all orders, and let the calls that hang go on."""
        self._faults.clear()
        for waiting, fault in tuple(self._suffering.items()):
            if math.isinf(fault.delay_seconds):
                _let_go(waiting)

    def add_policy(self, policy: Policy) -> None:
        """Let one more policy decide, where those before it say nothing."""
        self._policies.append(policy)

    def remove_policy(self, policy: Policy) -> None:
        """Ask a policy no more; calls it has already hit are not helped."""
        if policy in self._policies:
            self._policies.remove(policy)

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Those added, in the order they are asked."""
        return tuple(self._policies)

    def release(self, fault: Fault) -> None:
        """Let the calls go on that hang, or are slow, because of one fault; nobody else's."""
        for waiting, cause in tuple(self._suffering.items()):
            if cause is fault:
                _let_go(waiting)

    @property
    def hung_calls(self) -> int:
        """How many calls hang now, for ever."""
        return sum(math.isinf(fault.delay_seconds) for fault in self._suffering.values())

    def take(self, operation: str, about: str) -> Fault | None:
        """What goes wrong with this call; it counts as used."""
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
        """Wait as long as a fault says, or until it is released."""
        if fault.delay_seconds <= 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        timer = None if math.isinf(fault.delay_seconds) else loop.call_later(fault.delay_seconds, _let_go, waiting)
        self._suffering[waiting] = fault
        try:
            await waiting
        finally:
            del self._suffering[waiting]
            if timer is not None:
                timer.cancel()


def _let_go(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
