"""Signals as a person's shell would hand them on, whatever the tests themselves were started from."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def usual_signals() -> Iterator[None]:
    """Start programs in here: those begun under `nohup`, or by a script's `&`, ignore Ctrl-C and hanging up."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
