"""A jail without isolation: a new session, an environment and a user.

Keepers use it for `jail: plain`, and tests use it where namespaces do not matter.
"""

import os
import signal
from contextlib import suppress
from typing import NoReturn

from podkeeper.linux import libc
from podkeeper.linux.errors import LaunchError
from podkeeper.linux.tree import remove_tree
from podkeeper.runtimes.process.keeper.launch import DEFAULT_PATH, Launch
from podkeeper.runtimes.process.keeper.terminal import TerminalSetup, take_terminal


class PlainJail:
    """Starts processes without isolation."""

    pause_pid = 0

    def launch(self, spec: Launch, stdin: int, stdout: int, stderr: int) -> int:
        """Start a process in a new session. Return its PID after exec. Raises LaunchError."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _exec_program(spec, (stdin, stdout, stderr), writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            error = pipe.read()
        if error:
            os.waitpid(pid, 0)
            raise LaunchError(error.decode())
        return pid

    def enter(self, pid: int, spec: Launch, stdin: int, stdout: int, stderr: int) -> int:
        """Start another process. There is nothing to enter."""
        return self.launch(spec, stdin, stdout, stderr)

    def remove_files(self, spec: Launch) -> None:
        """Delete the files of the container's root."""
        for name in ("upper", "work", "root"):
            with suppress(OSError):
                remove_tree(spec.directory, name)

    def close(self) -> None:
        """Do nothing: there are no resources."""


def _exec_program(spec: Launch, files: tuple[int, int, int], writer: int) -> NoReturn:
    """In the child: execute the program, or write the error to the pipe."""
    program = f'exec: "{spec.argv[0] if spec.argv else ""}"'
    try:
        os.setsid()
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        for target, file in enumerate([os.dup(file) for file in files]):
            os.dup2(file, target)
        if TerminalSetup(tty=spec.tty, owner=spec.user).open():
            take_terminal()
        for procs in spec.cgroups:
            with open(procs, "w", encoding="ascii") as group:
                group.write("0")
        if spec.user is not None or spec.group is not None:
            os.setgroups(spec.groups)
            os.setgid(spec.group or 0)
            os.setuid(spec.user or 0)
            libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)  # again, because a change of user resets it
        os.chdir(spec.cwd or "/")
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(spec.argv[0], spec.argv, {"PATH": DEFAULT_PATH, **spec.env})
    except Exception as error:
        os.write(writer, f"{program}: {error}".encode())
    os._exit(127)
