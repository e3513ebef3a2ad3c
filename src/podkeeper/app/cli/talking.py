"""Talking with a process in a container from a terminal: for `exec` and `attach`.

    stdin -----thread--> channel 0        channels 1, 2 --> stdout, stderr        channel 3 --> the exit status
    SIGWINCH --thread--> channel 4

With a terminal of its own on the other side, ours only passes bytes on (raw mode, Ctrl-C too); when it is over, and
however that comes about, it is put back. Without one Ctrl-C ends this command, and with it a command that it started.
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
    """Carry words both ways. Returns the exit status; raises ClickException when there is none.

    `redraw` has the screen of a program drawn anew that has been at its terminal for a while.
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
    """Whether there is a terminal here to pass on; says so when there is none, as kubectl does."""
    if sys.stdin.isatty():
        return True
    click.echo("Unable to use a TTY - input is not a terminal or the right kind of file", err=True)
    return False


def _pass_input(conversation: Talk) -> None:
    with contextlib.suppress(OSError, ValueError):  # whoever listened is gone
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
    raise click.ClickException("the agent went away; what was started with it has been ended")


def _status(told: dict[str, object]) -> int:
    """The exit status that the kubelet's word for the end means."""
    if told.get("status") == "Success":
        return 0
    details = told.get("details")
    for cause in (details.get("causes") or ()) if isinstance(details, dict) else ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise click.ClickException(str(told.get("message") or "the command could not be run"))


def _follow_size(conversation: Talk, redraw: bool) -> None:
    """Tell how large our terminal is, now and whenever that changes."""
    changes: queue.SimpleQueue[int] = queue.SimpleQueue()
    steps = (1, 0) if redraw else (0,)  # a change that is none makes a program draw its screen again, as kubectl has it

    def tell() -> None:
        with contextlib.suppress(OSError):  # whoever listened is gone
            for step in steps:
                _tell_size(conversation, step)
            while True:
                changes.get()
                _tell_size(conversation, 0)

    # Not from within the handler: it may come in the middle of another message.
    signal.signal(signal.SIGWINCH, lambda number, frame: changes.put(number))
    threading.Thread(target=tell, daemon=True).start()


def _tell_size(conversation: Talk, more: int) -> None:
    size = os.get_terminal_size(sys.stdin.fileno())
    told = {"Width": size.columns + more, "Height": size.lines + more}
    conversation.send(RESIZE, json.dumps(told).encode())


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Pass every key on; whoever ends us leaves the terminal as it was."""
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        tty.setraw(file, termios.TCSANOW)  # what was typed ahead is not thrown away
        yield
    finally:
        with contextlib.suppress(termios.error):  # it is gone
            termios.tcsetattr(file, termios.TCSADRAIN, before)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
