"""Connect the terminal to a process in a container, for `exec` and `attach`.

    stdin -----thread--> channel 0        channels 1, 2 --> stdout, stderr        channel 3 --> the exit status
    SIGWINCH --thread--> channel 4

If the process has a TTY, the local terminal is in raw mode and passes all bytes on, including Ctrl-C. The terminal is
restored in any case. Without a TTY, Ctrl-C ends this command, and with it a process started by `exec`.
"""

import contextlib
import json
import os
import queue
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from types import FrameType

import click

from podkeeper.app.local.client import Talk

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
_BLOCK_BYTES = 65536
_INTERRUPTED = 130


def talk(conversation: Talk, *, with_input: bool, terminal: bool, redraw: bool = False) -> int:
    """Pass data in both directions. Returns the exit status. Raises ClickException if there is none.

    `redraw` makes a full-screen program draw its screen again, which `attach` needs.
    """
    try:
        with conversation, _raw_terminal() if terminal else contextlib.nullcontext():
            if terminal:
                _follow_size(conversation, redraw)
            if with_input:
                threading.Thread(target=_pass_input, args=(conversation,), daemon=True).start()
            return _pass_output(conversation)
    except KeyboardInterrupt:
        return _INTERRUPTED


def has_terminal() -> bool:
    """Return whether stdin is a terminal. If not, print kubectl's message."""
    if sys.stdin.isatty():
        return True
    click.echo("Unable to use a TTY - input is not a terminal or the right kind of file", err=True)
    return False


def _pass_input(conversation: Talk) -> None:
    with contextlib.suppress(OSError, ValueError):  # the connection or stdin is closed
        while data := os.read(sys.stdin.fileno(), _BLOCK_BYTES):
            conversation.send(STDIN, data)
        conversation.send(CLOSE, bytes([STDIN]))


def _pass_output(conversation: Talk) -> int:
    streams = {STDOUT: sys.stdout.buffer, STDERR: sys.stderr.buffer}
    for channel, data in conversation.messages():
        if (stream := streams.get(channel)) is not None:
            stream.write(data)
            stream.flush()
        elif channel == ERROR:
            return _status(json.loads(data))
    raise click.ClickException("lost the connection to the agent; a command started by exec has been killed")


def _status(told: dict[str, object]) -> int:
    """Return the exit status from the Status object on the error channel."""
    if told.get("status") == "Success":
        return 0
    details = told.get("details")
    for cause in (details.get("causes") or ()) if isinstance(details, dict) else ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise click.ClickException(str(told.get("message") or "cannot run the command"))


def _follow_size(conversation: Talk, redraw: bool) -> None:
    """Send the size of the local terminal, now and after each change."""
    changes: queue.SimpleQueue[int] = queue.SimpleQueue()
    # To force a redraw, send a size that is one larger and then the real one, as kubectl does.
    steps = (1, 0) if redraw else (0,)

    def tell() -> None:
        with contextlib.suppress(OSError):  # the connection is closed
            for step in steps:
                _tell_size(conversation, step)
            while True:
                changes.get()
                _tell_size(conversation, 0)

    # Do not send from the signal handler, because it may interrupt the sending of another message.
    signal.signal(signal.SIGWINCH, lambda number, frame: changes.put(number))
    threading.Thread(target=tell, daemon=True).start()


def _tell_size(conversation: Talk, more: int) -> None:
    size = os.get_terminal_size(sys.stdin.fileno())
    told = {"Width": size.columns + more, "Height": size.lines + more}
    conversation.send(RESIZE, json.dumps(told).encode())


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Put the terminal into raw mode. Restore it at the end, even after SIGTERM and SIGHUP."""
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        tty.setraw(file, termios.TCSANOW)  # the default, TCSAFLUSH, would discard keys typed before
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal is closed
            termios.tcsetattr(file, termios.TCSADRAIN, before)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
