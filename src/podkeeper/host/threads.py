"""Things that block and cannot be given up, each in a thread of its own.

Not the loop's executor: its few threads are shared, and somebody's hung look-up would hold up everybody. Not any
executor: the interpreter waits for their threads at its end. These threads are left behind instead.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def in_thread(work: Callable[[], T], name: str) -> "asyncio.Future[T | Exception]":
    """Begin some work; its result, or what it raised, comes as the future's result. RuntimeError: no thread to be had.

    An error is not the future's exception, so that nobody has to be there to hear of it.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T | Exception] = loop.create_future()

    def tell(result: T | Exception) -> None:
        if not future.done():
            future.set_result(result)

    def run() -> None:
        result: T | Exception
        try:
            result = work()
        except Exception as error:
            result = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
