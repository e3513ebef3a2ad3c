"""A failed check inside a fake fails the test, even if the code under test catches the exception."""

import contextlib

import pytest

from tests.conftest import pytest_runtest_call
from tests.violations import take_violations, violation


def test_a_violation_that_was_swallowed_fails_the_test() -> None:
    call = pytest_runtest_call()
    next(call)
    with contextlib.suppress(Exception):  # as the engine's tasks do
        raise violation("two executions at a time")
    with pytest.raises(AssertionError, match="two executions at a time"):
        call.send(None)
    assert take_violations() == []


def test_a_violation_of_an_earlier_test_does_not_count() -> None:
    violation("of an earlier test")
    call = pytest_runtest_call()
    next(call)
    with pytest.raises(StopIteration):
        call.send(None)
