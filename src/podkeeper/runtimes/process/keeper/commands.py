"""Commands beside a container's first process: probes, hooks and `exec`.

Their files are the agent's pipes or a console socket (`terminal.py`), which the agent sends over the socket. So their
bytes do not pass through the keeper. The keeper starts commands, kills them at their timeout or after their client
disconnects, and reports their exit.
"""

import os
import signal
from collections.abc import Callable
from typing import Final

from podkeeper.runtimes.process.keeper import kill
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper.loop import Loop, Timer

HANG_UP_SECONDS: Final = 10.0  # between SIGHUP and SIGKILL, after the client has disconnected


class Command:
    def __init__(
        self,
        loop: Loop,
        pid: int,
        timeout_seconds: float,
        done: Callable[[Json], None],
        hang_up_seconds: float = HANG_UP_SECONDS,
    ) -> None:
        """A timeout of 0 means no timeout. `hang_up_seconds` is the time between SIGHUP and SIGKILL."""
        self.pid = pid
        self._hang_up_seconds = hang_up_seconds
        self._loop = loop
        self._done = done
        self._timed_out = False
        self._deadline: Timer | None = loop.after(timeout_seconds, self._on_timeout) if timeout_seconds > 0 else None

    def kill(self) -> None:
        """Kill the command and the processes that it started."""
        kill.kill_session(self.pid)

    def hang_up(self) -> None:
        """Send SIGHUP, because the client disconnected. Kill the remaining processes after `hang_up_seconds`."""
        kill.send_group(self.pid, signal.SIGHUP)
        # A deadline that runs already kills the command anyway.
        if self._deadline is None:
            self._deadline = self._loop.after(self._hang_up_seconds, self.kill)

    def reaped(self, status: int) -> None:
        """Report the end of the command after it was reaped."""
        if self._deadline is not None:
            self._deadline.cancel()
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
        self._done({"code": code, "timed_out": self._timed_out})

    def _on_timeout(self) -> None:
        self._timed_out = True
        self.kill()
