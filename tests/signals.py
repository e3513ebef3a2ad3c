"""Start child processes with the signal handling of an interactive shell."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def usual_signals() -> Iterator[None]:
    """Programs started here do not ignore SIGINT and SIGHUP, even if the tests run under `nohup` or `&`."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
