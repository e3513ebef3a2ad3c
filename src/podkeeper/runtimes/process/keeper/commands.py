"""Commands that run in a container beside its first process: for probes, hooks, and people (`exec`).

Their files are the agent's own ends of pipes, or a console socket (`terminal.py`), handed in over the socket: no byte
of theirs passes through here. The keeper starts them, ends them when their time is up or nobody is there any more, and
tells how they ended.
"""

import os
import signal
from collections.abc import Callable
from typing import Final

from podkeeper.runtimes.process.keeper import killing
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper.loop import Loop, Timer

HANG_UP_SECONDS: Final = 10.0
"""How long a command may take to end when whoever spoke with it is gone."""


class Command:
    """One command that runs."""

    def __init__(self, loop: Loop, pid: int, timeout_seconds: float, done: Callable[[Json], None]) -> None:
        """A timeout of 0 is none."""
        self.pid = pid
        self._loop = loop
        self._done = done
        self._timed_out = False
        self._deadline: Timer | None = loop.after(timeout_seconds, self._time_is_up) if timeout_seconds > 0 else None

    def kill(self) -> None:
        """End it, and what it has started."""
        killing.kill_session(self.pid)

    def hang_up(self) -> None:
        """Tell it that nobody is there any more; what has not ended soon after is ended."""
        killing.send_group(self.pid, signal.SIGHUP)
        if self._deadline is None:
            self._deadline = self._loop.after(HANG_UP_SECONDS, self.kill)

    def ended(self, status: int) -> None:
        """It has been reaped."""
        if self._deadline is not None:
            self._deadline.cancel()
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
        self._done({"code": code, "timed_out": self._timed_out})

    def _time_is_up(self) -> None:
        self._timed_out = True
        self.kill()
