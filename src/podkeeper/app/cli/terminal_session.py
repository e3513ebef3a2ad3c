"""Connect the terminal to a process in a container, for `exec` and `attach`.

    stdin -----thread--> channel 0        channels 1, 2 --> stdout, stderr        channel 3 --> the exit status
    SIGWINCH --thread--> channel 4

If the process has a TTY, the local terminal is in raw mode and passes all bytes on, including Ctrl-C. The terminal is
restored in any case. Without a TTY, Ctrl-C ends this command. A process that `exec` started then ends, too.
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

from podkeeper.app.local.client import ChannelSocket

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
_BLOCK_BYTES = 65536
_INTERRUPTED = 130


def run_session(channels: ChannelSocket, *, with_input: bool, terminal: bool, redraw: bool = False) -> int:
    """Pass data in both directions. Returns the exit status. Raises ClickException if there is none.

    `redraw` makes a full-screen program draw its screen again, which `attach` needs.
    """
    try:
        with channels, _raw_terminal() if terminal else contextlib.nullcontext():
            if terminal:
                _follow_size(channels, redraw)
            if with_input:
                threading.Thread(target=_pass_input, args=(channels,), daemon=True).start()
            return _pass_output(channels)
    except KeyboardInterrupt:
        return _INTERRUPTED


def has_terminal() -> bool:
    """Return whether stdin is a terminal. If not, print kubectl's message."""
    if sys.stdin.isatty():
        return True
    click.echo("Unable to use a TTY - input is not a terminal or the right kind of file", err=True)
    return False


def _pass_input(channels: ChannelSocket) -> None:
    with contextlib.suppress(OSError, ValueError):  # the connection or stdin is closed
        while data := os.read(sys.stdin.fileno(), _BLOCK_BYTES):
            channels.send(STDIN, data)
        channels.send(CLOSE, bytes([STDIN]))


def _pass_output(channels: ChannelSocket) -> int:
    streams = {STDOUT: sys.stdout.buffer, STDERR: sys.stderr.buffer}
    for channel, data in channels.messages():
        if (stream := streams.get(channel)) is not None:
            stream.write(data)
            stream.flush()
        elif channel == ERROR:
            return _status(json.loads(data))
    raise click.ClickException(
        "lost the connection to the agent; a command that exec started receives SIGHUP, then SIGKILL"
    )


def _status(status: dict[str, object]) -> int:
    """Return the exit status from the Status object on the error channel."""
    if status.get("status") == "Success":
        return 0
    details = status.get("details")
    for cause in (details.get("causes") or ()) if isinstance(details, dict) else ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise click.ClickException(str(status.get("message") or "cannot run the command"))


def _follow_size(channels: ChannelSocket, redraw: bool) -> None:
    """Send the size of the local terminal, now and after each change."""
    changes: queue.SimpleQueue[int] = queue.SimpleQueue()
    # To force a redraw, send a size that is one larger and then the real one, as kubectl does.
    steps = (1, 0) if redraw else (0,)

    def send_changes() -> None:
        with contextlib.suppress(OSError):  # the connection is closed
            for step in steps:
                _send_size(channels, step)
            while True:
                changes.get()
                _send_size(channels, 0)

    # Do not send from the signal handler, because it may interrupt the sending of another message.
    signal.signal(signal.SIGWINCH, lambda number, frame: changes.put(number))
    threading.Thread(target=send_changes, daemon=True).start()


def _send_size(channels: ChannelSocket, more: int) -> None:
    size = os.get_terminal_size(sys.stdin.fileno())
    payload = {"Width": size.columns + more, "Height": size.lines + more}
    channels.send(RESIZE, json.dumps(payload).encode())


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Put the terminal into raw mode. Restore it at the end, even after SIGTERM and SIGHUP."""
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    try:
        tty.setraw(file, termios.TCSANOW)  # the default, TCSAFLUSH, would discard keys that the user has already typed
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal is closed
            termios.tcsetattr(file, termios.TCSADRAIN, before)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
