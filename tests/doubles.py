"""Test doubles for classes of the engine."""

import inspect
from collections.abc import Mapping
from typing import TypeVar, cast

T = TypeVar("T")

_CHECKED: set[tuple[type, type]] = set()


def stand_in(kind: type[T], double: object) -> T:
    """Return a double typed as the class that it replaces.

    The double needs only the methods that the test reaches. A method that it shares with the class must have the same
    parameters, except optional ones, so that a changed signature fails here and not only in production.
    """
    if (kind, type(double)) not in _CHECKED:  # because some tests create thousands of doubles
        _check_signatures(kind, type(double))
        _CHECKED.add((kind, type(double)))
    return cast(T, double)


def _check_signatures(kind: type, double: type) -> None:
    for name, method in vars(kind).items():
        found = getattr(double, name, None)
        if not name.startswith("_") and inspect.isfunction(method) and inspect.isfunction(found):
            expected, actual = inspect.signature(method).parameters, inspect.signature(found).parameters
            wrong = actual.keys() - expected.keys() or _required(expected) - actual.keys()
            assert not wrong, f"{double.__name__}.{name}: unexpected or missing parameters: {wrong}"


def _required(parameters: Mapping[str, inspect.Parameter]) -> set[str]:
    return {name for name, each in parameters.items() if each.default is inspect.Parameter.empty}
