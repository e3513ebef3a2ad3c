"""A container runtime of the tests in a thread of its own, for commands that have a loop of theirs."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.runtimes.cri.fake_server import FakeCri, served


@contextmanager
def serving_aside(fake: FakeCri) -> Iterator[str]:
    """A runtime that answers until the context ends. Yields its socket's path."""
    ready, done = threading.Event(), threading.Event()
    found: list[str] = []

    async def serve() -> None:
        async with served(fake) as path:
            os.chmod(os.path.dirname(path), 0o755)
            found.append(path)
            ready.set()
            while not done.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(10)
        yield found[0]
    finally:
        done.set()
        thread.join(10)
