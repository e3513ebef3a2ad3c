"""A jail for tests of keepers: it starts plain processes and records the calls."""

import os
import signal
import socket
from contextlib import suppress

from podkeeper.linux import libc
from podkeeper.linux.errors import LaunchError
from podkeeper.runtimes.process.keeper.launch import Launch
from podkeeper.runtimes.process.keeper.protocol import send_with_files

SLEEP = ("sleep", "600")


class FakeJail:
    """Starts processes without isolation. With `refuse`, every start fails with that text."""

    def __init__(self) -> None:
        self.pause_pid = 0
        self.refuse = ""
        self.gate = -1  # `remove_files` blocks until this file is readable
        self.pid_namespaces = False  # whether each process gets its own PID namespace
        self.launched: list[Launch] = []
        self.entered: list[tuple[int, Launch]] = []
        self.files_removed: list[Launch] = []
        self.closed = 0
        self.started: list[int] = []

    def launch(self, spec: Launch, stdin: int, stdout: int, stderr: int) -> int:
        self.launched.append(spec)
        if not spec.tty:
            return self._start(spec, (stdin, stdout, stderr))
        master, terminal = os.openpty()
        with socket.socket(fileno=os.dup(stdin)) as console:
            send_with_files(console, b"!", (master,))
        try:
            return self._start(spec, (terminal,) * 3)
        finally:
            os.close(master)
            os.close(terminal)

    def enter(self, pid: int, spec: Launch, stdin: int, stdout: int, stderr: int) -> int:
        self.entered.append((pid, spec))
        return self._start(spec, (stdin, stdout, stderr))

    def remove_files(self, spec: Launch) -> None:
        if self.gate >= 0:
            os.read(self.gate, 1)
        if self.refuse:
            raise OSError(self.refuse)
        self.files_removed.append(spec)

    def close(self) -> None:
        self.closed += 1

    def end_all(self) -> None:
        """Kill and reap all processes that were not reaped yet."""
        for pid in self.started:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _start(self, spec: Launch, files: tuple[int, int, int]) -> int:
        if self.refuse:
            raise LaunchError(self.refuse)
        if self.pid_namespaces:
            if not (pid := libc.clone(libc.CLONE_NEWPID)):
                os.setsid()
                os.execvpe(spec.argv[0], spec.argv, spec.env)
            self.started.append(pid)
            return pid
        actions = [(os.POSIX_SPAWN_DUP2, file, target) for target, file in enumerate(files)]
        pid = os.posix_spawnp(spec.argv[0], spec.argv, spec.env or os.environ, file_actions=actions, setsid=True)
        self.started.append(pid)
        return pid


def ended(pid: int) -> int:
    """Reap a child. Return its wait status."""
    return os.waitpid(pid, 0)[1]


def wait_for_end(pid: int) -> None:
    """Wait for the end of a child without reaping it."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
