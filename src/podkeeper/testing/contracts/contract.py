"""Contracts (collections of scenarios) and the implementations that are checked against them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from podkeeper.testing.virtual_time import simulate

T = TypeVar("T")
ContractCase = Callable[[T], Coroutine[Any, Any, None]]

# Real runtimes on a busy machine are slow. In virtual time, the value costs nothing.
TIMEOUT_SECONDS = 60.0


class Contract(Generic[T]):
    """The scenarios of one port."""

    def __init__(self) -> None:
        self.scenarios: list[ContractCase[T]] = []

    def scenario(self, scenario: ContractCase[T]) -> ContractCase[T]:
        """Add a scenario.

        Use it as a decorator. The docstring of the scenario is required, because it states the contract.
        """
        assert scenario.__doc__, f"{name_of(scenario)} has no docstring"
        self.scenarios.append(scenario)
        return scenario


@dataclass(frozen=True)
class Implementation(Generic[T]):
    """One implementation of a port.

    `open` opens a new subject for each scenario. `run` runs the coroutine of a scenario to its end.
    """

    open: Callable[[], AbstractAsyncContextManager[T]]
    run: Callable[[Coroutine[Any, Any, None]], object] = field(default=simulate)

    def check(self, scenario: ContractCase[T]) -> None:
        """Run one scenario. Raise AssertionError, or the error of the implementation, if it fails."""
        self.run(self._run_with_subject(scenario))

    async def _run_with_subject(self, scenario: ContractCase[T]) -> None:
        async with self.open() as subject, asyncio.timeout(10 * TIMEOUT_SECONDS):
            await scenario(subject)


def opened(make: Callable[[], T]) -> Callable[[], AbstractAsyncContextManager[T]]:
    """Return an `open` for a subject that needs no closing. It calls `make` inside the event loop."""

    @asynccontextmanager
    async def open_subject() -> AsyncIterator[T]:
        yield make()

    return open_subject


def name_of(scenario: object) -> str:
    """Return the name of a scenario, for the ID of a parametrized test."""
    return str(getattr(scenario, "__name__", scenario))


@contextmanager
def raises(error: type[Exception]) -> Iterator[None]:
    """Fail unless the block raises the error. Replaces `pytest.raises`, because contracts do not depend on pytest."""
    try:
        yield
    except error:
        return
    raise AssertionError(f"expected {error.__name__}, but no error was raised")


async def eventually(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until `holds` returns true. Fail after TIMEOUT_SECONDS, with `what` in the message."""
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not await holds():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"timed out after {TIMEOUT_SECONDS:g} s: expected that {what}") from None
