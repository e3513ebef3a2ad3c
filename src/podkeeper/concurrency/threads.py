"""Blocking work in threads that do not delay the exit of the process.

Volumes, log files and name lookups use it, because they can hang on a network file system or a name server. The event
loop's executor is unsuitable for them, because its few threads are shared, and a hung call would block others. No
executor is suitable, because the interpreter waits for executor threads when it exits.

Calls that are normally short use `asyncio.to_thread`, for example for cgroups, manifests and configuration files.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

Start = Callable[[Callable[[], None], str], None]
"""Runs a function in a thread of the given name. Raises RuntimeError if no thread can be started."""


def start_daemon(body: Callable[[], None], name: str) -> None:
    """Start a thread that does not keep the process alive. Raises RuntimeError if there are too many threads."""
    threading.Thread(target=body, name=name, daemon=True).start()


def in_thread(work: Callable[[], T], name: str, start: Start = start_daemon) -> "asyncio.Future[T | BaseException]":
    """Run blocking work in a new thread. Raises RuntimeError if no thread can be started.

    The future's result is the result of the work, or the exception that it raised. The exception is a result, because
    asyncio logs a future's exception if no caller is left to retrieve it.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T | BaseException] = loop.create_future()

    def finish(result: T | BaseException) -> None:
        if not future.done():
            future.set_result(result)

    def body() -> None:
        result: T | BaseException
        try:
            result = work()
        except BaseException as error:
            # Also SystemExit and KeyboardInterrupt: otherwise the caller would wait forever.
            result = error
        with suppress(RuntimeError):  # the loop is closed, so no caller is left
            loop.call_soon_threadsafe(finish, result)

    start(body, name)
    return future
