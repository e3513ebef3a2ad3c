"""A fake CRI runtime in its own thread, for commands that run their own event loop."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.runtimes.cri.fake_server import FakeCri, served


@contextmanager
def cri_served_in_thread(fake: FakeCri) -> Iterator[str]:
    """Serve a runtime during the context. Yield the path of its socket."""
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
