"""File operations in threads: which errors are retried."""

import asyncio

import pytest

from podkeeper.host.file_work import run_file_work
from podkeeper.model.errors import TryLater


def failing(error: BaseException) -> int:
    raise error


def test_the_result_is_returned() -> None:
    assert asyncio.run(run_file_work("logs", "read a log", lambda: 7)) == 7


@pytest.mark.parametrize("error", [OSError("no space left"), EOFError("no space left")])
def test_an_error_of_the_disk_is_retried_and_names_the_work(error: Exception) -> None:
    with pytest.raises(TryLater, match="cannot read a log: no space left"):
        asyncio.run(run_file_work("logs", "read a log", lambda: failing(error)))


def test_a_bug_is_not_retried() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_file_work("logs", "read a log", lambda: failing(ZeroDivisionError())))
