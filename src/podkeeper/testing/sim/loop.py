"""Event loop of the simulation: virtual time, and late wake-ups of the agent.

Each task of the agent has its agent process in its context (`AGENT_PROCESS`). `delay_wakeups` delays a share of the
wake-ups of a live agent's tasks. Messages between its modules then arrive late and in another order. All delays are
drawn from the seed. Tasks of a dead agent and of the world itself are never delayed.

Tasks are hashed by number, because asyncio keeps them in sets, and a task group cancels its tasks in set order. With
the default hash, the order would depend on addresses and differ in each process.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from itertools import count
from random import Random
from typing import Any, Protocol, TypeVarTuple

from podkeeper.testing.virtual_time import VirtualLoop

Ts = TypeVarTuple("Ts")


class TaskOwner(Protocol):
    """The process to which a task belongs."""

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""


AGENT_PROCESS: ContextVar[TaskOwner | None] = ContextVar("life", default=None)


class NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set is the same in each run of a seed."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, number: int, **settings: Any) -> None:
        self._number = number  # first, because asyncio adds the task to a set in its constructor
        super().__init__(coro, **settings)

    def __hash__(self) -> int:
        return self._number


class SimLoop(VirtualLoop):
    """An event loop in virtual time that can delay the agent's tasks."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random
        self._share = 0.0
        self._longest_seconds = 0.0
        numbers = count()
        self.set_task_factory(
            lambda loop, coro, **settings: NumberedTask(coro, number=next(numbers), loop=loop, **settings)
        )

    def delay_wakeups(self, share: float, longest_seconds: float) -> None:
        """Delay this share of the agent's wake-ups from now on, by up to `longest_seconds`. Share 0: none."""
        self._share = share
        self._longest_seconds = longest_seconds

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback soon. A callback of the agent may be delayed."""
        if context is not None and self._share > 0.0:
            process = context.get(AGENT_PROCESS)
            if process is not None and process.alive and self._random.random() < self._share:
                delay = self._random.random() * self._longest_seconds
                return self.call_later(delay, callback, *args, context=context)
        return super().call_soon(callback, *args, context=context)
