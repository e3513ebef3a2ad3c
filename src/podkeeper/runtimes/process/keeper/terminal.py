"""Pseudo-terminals from a container's own /dev/pts, as with OCI runtimes.

    the process, inside its container:  open /dev/ptmx --the master, over the console socket--> keeper or agent
                                        the other end is its stdin, stdout, stderr and controlling terminal

A terminal that was opened outside the container works, but has no name inside it. `tty` and other programs that need
the name then fail. It is the fallback if the container has no /dev/pts.
"""

import fcntl
import os
import socket
import stat
import termios
from contextlib import suppress
from typing import Final

from podkeeper.linux import libc
from podkeeper.runtimes.process.keeper.protocol import send_with_files

MULTIPLEXER: Final = "/dev/ptmx"
# The kernel's number of /dev/ptmx.
_DEVICE: Final = os.makedev(5, 2)


class TerminalSetup:
    """Opens the terminal of a process: create it before the process enters its container, open after that."""

    def __init__(self, *, tty: bool, owner: int | None) -> None:
        """Without `tty`, `open` does nothing. `owner` is the user of the process."""
        self._tty = tty
        self._owner = owner
        self._host_terminal: tuple[int, int] | None = None
        if tty:
            with suppress(OSError):
                self._host_terminal = _open_terminal()

    def open(self) -> str:
        """Replace the console socket, which is stdin until now, by a terminal. Return the terminal's name or "".

        Raises OSError if no terminal is available.
        """
        if not self._tty:
            return ""
        name = ""
        try:
            master, terminal = _open_terminal()
            name = libc.terminal_name(master)
        except OSError:
            if self._host_terminal is None:
                raise
            master, terminal = self._host_terminal
        with socket.socket(fileno=os.dup(0)) as console:
            send_with_files(console, b"!", (master,))
        if self._owner:
            os.fchown(terminal, self._owner, -1)  # otherwise another user could not open /dev/stdout
        for target in (0, 1, 2):
            os.dup2(terminal, target)
        return name


def take_terminal() -> None:
    """Make stdin the controlling terminal of this process, which must be a new session leader."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _open_terminal() -> tuple[int, int]:
    """Open a new terminal. Return its master and its slave, both closed at exec."""
    about = os.stat(MULTIPLEXER)
    if not stat.S_ISCHR(about.st_mode) or about.st_rdev != _DEVICE:  # a container may have replaced it
        raise FileNotFoundError(2, "not a pseudo-terminal multiplexer", MULTIPLEXER)
    # O_NOCTTY: `take_terminal` sets the controlling terminal, no open does it by accident. O_NONBLOCK belongs to
    # the open file, so it also holds for the event loop that receives the master.
    master = os.open(MULTIPLEXER, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    libc.unlock_terminal(master)
    return master, os.open(libc.terminal_name(master), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def receive_terminal(console: socket.socket) -> int:
    """Return the master from a console socket, -1 if the other end closed. Raises BlockingIOError."""
    try:
        _, files, _, _ = socket.recv_fds(console, 1, 1)
    except BlockingIOError:
        raise
    except OSError:  # the other end is closed
        return -1
    for file in files:
        os.set_inheritable(file, False)
    return files[0] if files else -1
