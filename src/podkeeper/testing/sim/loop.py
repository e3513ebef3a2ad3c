"""The simulation's event loop: virtual time, and an agent that does not always get its turn at once.

Every task of the agent carries in its context which life of the agent it belongs to (`LIFE`). While the loop is told
to dawdle, some of the wake-ups of a living agent's tasks come late: what one room tells another is delivered with a
delay, in another order than it was said, and all of it drawn from the seed. What a dead agent's tasks still have to do
happens at once; the world itself is never late.

Tasks are hashed by their number: asyncio keeps them in sets (a task group cancels its tasks in a set's order), and an
order by address would be another one in each process.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from itertools import count
from random import Random
from typing import Any, Protocol, TypeVarTuple

from podkeeper.testing.virtual_time import VirtualLoop

Ts = TypeVarTuple("Ts")


class Mortal(Protocol):
    """Whatever can be alive."""

    @property
    def alive(self) -> bool:
        """Whether it is."""


LIFE: ContextVar[Mortal | None] = ContextVar("life", default=None)


class NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set is the same whenever the same seed is played."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, number: int, **settings: Any) -> None:
        self._number = number  # before all else: the loop puts a task into sets as it is made
        super().__init__(coro, **settings)

    def __hash__(self) -> int:
        return self._number


class SimLoop(VirtualLoop):
    """An event loop in virtual time that may keep the agent's tasks waiting."""

    _ready: deque[asyncio.Handle]

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random
        self._share = 0.0
        self._longest_seconds = 0.0
        numbers = count()
        self.set_task_factory(
            lambda loop, coro, **settings: NumberedTask(coro, number=next(numbers), loop=loop, **settings)
        )

    def dawdle(self, share: float, longest_seconds: float) -> None:
        """From now on let this share of the agent's wake-ups come late, by up to so long; 0: none."""
        self._share = share
        self._longest_seconds = longest_seconds

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run something soon; or, if it is the agent's, perhaps later."""
        if self._share > 0.0 and context is not None:
            life = context.get(LIFE)
            if life is not None and life.alive and self._random.random() < self._share:
                delay = self._random.random() * self._longest_seconds
                return self.call_later(delay, callback, *args, context=context)
        # As the base class does it, without its checks: this is where a play spends its time.
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle
