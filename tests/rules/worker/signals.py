"""Signals for tests of the worker rules, which never set a signal."""

from dataclasses import dataclass


class FakeSignal:
    """The signal of a caller that waits for a kill."""

    def set(self) -> None:
        raise AssertionError("rules never set a signal")


@dataclass(frozen=True)
class NamedSignal(FakeSignal):
    """Signals with the same name are equal."""

    name: str
