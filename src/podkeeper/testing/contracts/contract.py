"""The small machinery of contracts: a collection of scenarios, and one implementation to be held to them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from podkeeper.testing.virtual_time import simulate

T = TypeVar("T")
Scenario = Callable[[T], Coroutine[Any, Any, None]]

PATIENCE_SECONDS = 60.0


class Contract(Generic[T]):
    """The scenarios of one port."""

    def __init__(self) -> None:
        self.scenarios: list[Scenario[T]] = []

    def promises(self, scenario: Scenario[T]) -> Scenario[T]:
        """Add a scenario; used as a decorator."""
        assert scenario.__doc__, f"{name_of(scenario)} says no promise"
        self.scenarios.append(scenario)
        return scenario


@dataclass(frozen=True)
class Implementation(Generic[T]):
    """One implementation of a port: how it is opened for a scenario, and the loop it runs in."""

    open: Callable[[], AbstractAsyncContextManager[T]]
    run: Callable[[Coroutine[Any, Any, None]], object] = field(default=simulate)

    def check(self, scenario: Scenario[T]) -> None:
        """Hold the implementation to one promise."""
        self.run(self._scene(scenario))

    async def _scene(self, scenario: Scenario[T]) -> None:
        async with self.open() as subject, asyncio.timeout(10 * PATIENCE_SECONDS):
            await scenario(subject)


def opened(make: Callable[[], T]) -> Callable[[], AbstractAsyncContextManager[T]]:
    """A way to open what needs no closing; `make` is called inside the loop."""

    @asynccontextmanager
    async def whole() -> AsyncIterator[T]:
        yield make()

    return whole


def name_of(scenario: object) -> str:
    """A scenario's name, for the test's."""
    return str(getattr(scenario, "__name__", scenario))


@contextmanager
def raises(error: type[Exception]) -> Iterator[None]:
    """Fail unless the block raises that error. (Here, so that a contract needs no test runner.)"""
    try:
        yield
    except error:
        return
    raise AssertionError(f"{error.__name__} was not raised")


async def eventually(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until something holds; fail when it does not come about."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await holds():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"it never came about that {what}") from None
