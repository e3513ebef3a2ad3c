"""A pseudo-terminal for a process in a container, out of the container's own /dev/pts, as OCI runtimes give it.

    the process, once it is in its place:  open /dev/ptmx --the master, over the console socket--> whoever asked for it
                                           the other end is its stdin, stdout, stderr and controlling terminal

One that was opened outside works too, but has no name inside: `tty` says "not a tty" then, and so do programs that go
by the name. It is taken where the place has none of its own to give.
"""

import fcntl
import os
import socket
import stat
import termios
from contextlib import suppress
from typing import Final

from podkeeper.runtimes.process.keeper import libc
from podkeeper.runtimes.process.keeper.protocol import send_with

MULTIPLEXER: Final = "/dev/ptmx"
_DEVICE: Final = os.makedev(5, 2)


class Seat:
    """Where a process will sit: taken before it moves into its place, sat down on after that."""

    def __init__(self, *, tty: bool, owner: int | None) -> None:
        """Without `tty` there is nothing to sit at; `owner` is who the process will be."""
        self._tty = tty
        self._owner = owner
        self._spare: tuple[int, int] | None = None
        if tty:
            with suppress(OSError):
                self._spare = _open()

    def take(self) -> str:
        """Be at a terminal instead of at the console socket, which is stdin until now. Returns its name, if it has one.

        Raises OSError where there is no terminal at all.
        """
        if not self._tty:
            return ""
        name = ""
        try:
            master, terminal = _open()
            name = libc.terminal_name(master)
        except OSError:
            if self._spare is None:
                raise
            master, terminal = self._spare
        with socket.socket(fileno=os.dup(0)) as console:
            send_with(console, b"!", (master,))
        if self._owner:
            os.fchown(terminal, self._owner, -1)  # or else a program of another user could not open /dev/stdout
        for target in (0, 1, 2):
            os.dup2(terminal, target)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        return name


def _open() -> tuple[int, int]:
    """A new terminal: its master, and itself. Both are closed at exec."""
    about = os.stat(MULTIPLEXER)
    if not stat.S_ISCHR(about.st_mode) or about.st_rdev != _DEVICE:  # a container may have put something else there
        raise FileNotFoundError(2, "it makes no terminals", MULTIPLEXER)
    master = os.open(MULTIPLEXER, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    libc.unlock_terminal(master)
    return master, os.open(libc.terminal_name(master), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def receive_terminal(console: socket.socket) -> int:
    """The master that came over a console socket; -1: none did. Raises BlockingIOError while none has come."""
    try:
        _, files, _, _ = socket.recv_fds(console, 1, 1)
    except BlockingIOError:
        raise
    except OSError:  # whoever had the other end is gone
        return -1
    for file in files:
        os.set_inheritable(file, False)
    return files[0] if files else -1
