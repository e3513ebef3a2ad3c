"""Talking with a process in a container from a terminal: for `exec` and `attach`.

    stdin --thread--> channel 0        channels 1, 2 --> stdout, stderr        channel 3 --> the exit status
    SIGWINCH -------> channel 4

With a terminal of its own on the other side, ours only passes bytes on (raw mode), whatever happens is put back.
"""

import contextlib
import json
import os
import shutil
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


def talk(conversation: Talk, *, with_input: bool, terminal: bool) -> int:
    """Carry words both ways. Returns the exit status; raises ClickException when there is none."""
    with conversation, _raw_terminal() if terminal else contextlib.nullcontext():
        if terminal:
            _follow_size(conversation)
        if with_input:
            threading.Thread(target=_pass_input, args=(conversation,), daemon=True).start()
        return _pass_output(conversation)


def has_terminal() -> bool:
    """Whether there is a terminal here to pass on; says so when there is none, as kubectl does."""
    if sys.stdin.isatty():
        return True
    click.echo("Unable to use a TTY - input is not a terminal", err=True)
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


def _follow_size(conversation: Talk) -> None:
    def tell(number: int = 0, frame: FrameType | None = None) -> None:
        size = shutil.get_terminal_size()
        with contextlib.suppress(OSError):
            conversation.send(RESIZE, json.dumps({"Width": size.columns, "Height": size.lines}).encode())

    tell()
    signal.signal(signal.SIGWINCH, tell)


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setraw(file)
        yield
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
