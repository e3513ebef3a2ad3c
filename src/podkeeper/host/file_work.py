"""Run file operations that may hang in threads of their own."""

from collections.abc import Callable
from typing import TypeVar

from podkeeper.concurrency.threads import in_thread
from podkeeper.model.errors import TryLater

T = TypeVar("T")


async def run_file_work(thread: str, what: str, work: Callable[[], T]) -> T:
    """Return the result of blocking work. Raises TryLater, in which `what` names the work, if the disk fails."""
    try:
        result = await in_thread(work, thread)
    except RuntimeError as error:  # no thread available
        raise TryLater(f"cannot {what}: {error}") from error
    if isinstance(result, OSError | EOFError):  # EOFError: a compressed log is cut off
        raise TryLater(f"cannot {what}: {result}") from result
    if isinstance(result, BaseException):
        raise result
    return result
