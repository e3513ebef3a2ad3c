"""Calls to a fake: recorded with their time, delayed, and faulty on demand.

Every call to a fake uses this module.

    async with self._calls.call(Operation.START_CONTAINER, uid, "web"):
        ...  # the effect

The call log is for tests and for the invariants of the simulation. It keeps only the newest calls.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from podkeeper.model.errors import AgentError
from podkeeper.ports.clock import Clock
from podkeeper.runtimes.fake.faults import FakeFaults, Fault


@dataclass(slots=True, eq=False)
class Call:
    """One recorded call."""

    operation: str
    about: str  # a pod's UID or an object's name
    subject: str  # a container's name or an image
    begun: float  # on the monotonic clock
    given: Any = None  # the configuration passed in, if any
    ended: float | None = None  # None: still running
    error: str = ""  # class name of the error; empty: no error, or still running


class Calls:
    """The calls to one fake."""

    def __init__(
        self,
        clock: Clock,
        unavailable: type[AgentError],
        faults: FakeFaults,
        *,
        delays: Mapping[str, float] | None = None,
        call_log_size: int | None = 4096,
    ) -> None:
        self._clock = clock
        self.unavailable = unavailable
        self.faults = faults
        self.delays: dict[str, float] = dict(delays or {})
        self.down = ""  # why all calls fail; empty: they do not
        self.boots = 0  # number of reboots; a call from before a reboot has no effect after it
        self.call_log: deque[Call] = deque(maxlen=call_log_size)

    def call(self, operation: str, about: str, subject: str = "", given: object = None) -> "_CallContext":
        """Record a call. Use it with `async with` around the effect."""
        call = Call(operation, about, subject, self._clock.monotonic(), given)
        self.call_log.append(call)
        return _CallContext(self, call)

    def reboot(self) -> None:
        """Prevent the effects of all running calls."""
        self.boots += 1

    def end(self, call: Call, error: BaseException | None) -> None:
        call.ended = self._clock.monotonic()
        # Only the name: an error references its frames, and the call log must not keep the caller's objects alive.
        call.error = "" if error is None else type(error).__name__


class FaultInjection:
    """Base class of fakes: what tests set and read."""

    _calls: Calls

    @property
    def faults(self) -> FakeFaults:
        """The faults to inject, by operation and the call's `about`."""
        return self._calls.faults

    @property
    def delays(self) -> dict[str, float]:
        """The duration of each operation in seconds."""
        return self._calls.delays

    @property
    def call_log(self) -> Sequence[Call]:
        """The newest calls, oldest first."""
        return self._calls.call_log


class _CallContext:
    """A running call."""

    __slots__ = ("_boots", "_call", "_calls", "_fault")

    def __init__(self, calls: Calls, call: Call) -> None:
        self._calls = calls
        self._call = call
        self._boots = calls.boots
        self._fault = calls.faults.take(call.operation, call.about)

    async def __aenter__(self) -> Call:
        try:
            await self._before()
        except BaseException as error:
            self._calls.end(self._call, error)
            raise
        return self._call

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._fault is not None and self._fault.takes_effect:
            try:
                await self._suffer(self._fault)
            except BaseException as late:
                self._calls.end(self._call, late)
                raise
        self._calls.end(self._call, error)

    async def _before(self) -> None:
        self._check_up()
        if delay := self._calls.delays.get(self._call.operation):
            await asyncio.sleep(delay)
        if self._fault is not None and not self._fault.takes_effect:
            await self._suffer(self._fault)
        # Again, because the runtime may have gone down, or the machine may have rebooted, during the delay.
        self._check_up()

    async def _suffer(self, fault: Fault) -> None:
        await self._calls.faults.suffer(fault)
        if fault.error is not None:
            raise fault.error(f"{self._cannot()}: injected fault")

    def _check_up(self) -> None:
        if self._calls.down:
            raise self._calls.unavailable(f"{self._cannot()}: {self._calls.down}")
        if self._boots != self._calls.boots:
            raise self._calls.unavailable(f"{self._cannot()}: the machine has rebooted")

    def _cannot(self) -> str:
        return " ".join(filter(None, ("cannot", self._call.operation, self._call.subject or self._call.about)))
