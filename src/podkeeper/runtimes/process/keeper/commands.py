"""Commands that run in a container beside its first process: for probes, hooks, and people (`exec`).

Their files are the agent's own ends of pipes or a pseudo-terminal, handed in over the socket: no byte of theirs passes
through here. The keeper starts them, ends them when their time is up, and tells how they ended.
"""

import os
from collections.abc import Callable

from podkeeper.runtimes.process.keeper import killing
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper.loop import Loop, Timer


class Command:
    """One command that runs."""

    def __init__(self, loop: Loop, pid: int, timeout_seconds: float, done: Callable[[Json], None]) -> None:
        """A timeout of 0 is none."""
        self.pid = pid
        self._done = done
        self._timed_out = False
        self._deadline: Timer | None = loop.after(timeout_seconds, self._time_is_up) if timeout_seconds > 0 else None

    def kill(self) -> None:
        """End it, and what it has started."""
        killing.kill_session(self.pid)

    def ended(self, status: int) -> None:
        """It has been reaped."""
        if self._deadline is not None:
            self._deadline.cancel()
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
        self._done({"code": code, "timed_out": self._timed_out})

    def _time_is_up(self) -> None:
        self._timed_out = True
        self.kill()
