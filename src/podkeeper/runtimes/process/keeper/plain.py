"""A jail without walls: a new session, an environment, a user, and that is all.

Keepers take it where they are told to (`jail: plain`), and tests do that want no namespaces.
"""

import os
import shutil
import signal
from typing import Final, NoReturn

from podkeeper.runtimes.process.keeper import libc
from podkeeper.runtimes.process.keeper.launch import Launch, LaunchError
from podkeeper.runtimes.process.keeper.terminal import Seat

_DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class PlainJail:
    """Starts processes; keeps nobody in."""

    anchor = 0

    def launch(self, spec: Launch, stdin: int, stdout: int, stderr: int) -> int:
        """Start a process in a session of its own. Returns its pid once it is executed. Raises LaunchError."""
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become(spec, (stdin, stdout, stderr), tell)
        os.close(tell)
        with os.fdopen(told, "rb") as pipe:
            trouble = pipe.read()
        if trouble:
            os.waitpid(pid, 0)
            raise LaunchError(trouble.decode())
        return pid

    def enter(self, pid: int, spec: Launch, stdin: int, stdout: int, stderr: int) -> int:
        """Start one more process beside another."""
        return self.launch(spec, stdin, stdout, stderr)

    def dismantle(self, spec: Launch) -> None:
        """Delete what a container may have had on disk."""
        for name in ("upper", "work", "root"):
            shutil.rmtree(os.path.join(spec.directory, name), ignore_errors=True)

    def close(self) -> None:
        """Nothing is held."""


def _become(spec: Launch, files: tuple[int, int, int], tell: int) -> NoReturn:
    """In the child: turn into the program, or tell why not."""
    what = f'exec: "{spec.argv[0] if spec.argv else ""}"'
    try:
        os.setsid()
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        for target, file in enumerate([os.dup(file) for file in files]):
            os.dup2(file, target)
        Seat(tty=spec.tty, owner=spec.user).take()
        for procs in spec.cgroups:
            with open(procs, "w", encoding="ascii") as group:
                group.write("0")
        if spec.user is not None or spec.group is not None:
            os.setgroups(spec.groups)
            os.setgid(spec.group or 0)
            os.setuid(spec.user or 0)
            libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user takes it back
        os.chdir(spec.cwd or "/")
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(spec.argv[0], spec.argv, {"PATH": _DEFAULT_PATH, **spec.env})
    except Exception as error:
        os.write(tell, f"{what}: {error}".encode())
    os._exit(127)
