"""Run `podkeeper` in processes that a fork server starts.

A new interpreter imports `podkeeper run` in 0.4 CPU seconds. The fork server imports it once for all tests of a module.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from signal import Signals

from podkeeper.app.cli import main

_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = [
    *("podkeeper.app.cli.run", "podkeeper.app.cli.run_lifecycle", "podkeeper.app.standalone"),
    *("podkeeper.app.local.server", "podkeeper.runtimes.fake.runtime", "podkeeper.testing.fakes", "aiohttp.web"),
    *(__name__, "pytest"),  # each process imports the main module of this process, which is pytest
]


@contextmanager
def fork_server() -> Iterator[None]:
    """Use a new fork server. `podkeeper.testing.sim.campaign` needs another one, with fixed string hashing."""
    _stop()
    _CONTEXT.set_forkserver_preload(_PRELOADED)
    try:
        yield
    finally:
        _stop()


def _stop() -> None:
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # as Python's own tests do


class ForkedCommand:
    """A running `podkeeper`, with the methods of `subprocess.Popen` that tests need."""

    def __init__(self, arguments: list[str], out: Path, err: Path) -> None:
        self._process = _CONTEXT.Process(target=_run, args=(arguments, str(out), str(err)))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def send_signal(self, number: Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"{self.pid} has not ended after {timeout} s"
        return self._process.exitcode


def _run(arguments: list[str], out: str, err: str) -> None:
    writing = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, (path, flags) in enumerate([(os.devnull, os.O_RDONLY), (out, writing), (err, writing)]):
        file = os.open(path, flags, 0o644)
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["podkeeper", *arguments]
    main(arguments, prog_name="podkeeper")
