"""A terminal for tests: a program on a pty, and the text that the screen shows.

It supports the output of rich: text, line feeds, colours, "up", "erase line", "hide the cursor". Other sequences fail.
"""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.signals import usual_signals

_COLOUR = re.compile(r"\b(3[0-8]|9[0-7])\b")
_COMMAND = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


class ScreenText:
    """The text on the screen, and the text that has scrolled off."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.gone: list[str] = []
        self.lines = [""] * rows
        self.is_styled = self.is_coloured = False
        self.x = self.y = 0
        self._pending = ""

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in (*self.gone, *self.lines)).rstrip("\n")

    def feed(self, text: str) -> None:
        """Process the output of a program."""
        self._pending += text
        while self._pending:
            if match := _COMMAND.match(self._pending):
                self._pending = self._pending[match.end() :]
                self._execute(match[1], match[2])
            elif self._pending[0] == "\x1b":
                assert len(self._pending) < 12, f"unsupported escape sequence {self._pending[:12]!r}"
                return
            else:
                letter, self._pending = self._pending[0], self._pending[1:]
                self._put(letter)

    def _put(self, letter: str) -> None:
        if letter == "\r":
            self.x = 0
        elif letter == "\n":
            self._feed_line()
        else:
            if self.x >= self.columns:
                self.x = 0
                self._feed_line()
            line = self.lines[self.y].ljust(self.x)
            self.lines[self.y] = line[: self.x] + letter + line[self.x + 1 :]
            self.x += 1

    def _feed_line(self) -> None:
        if self.y == self.rows - 1:
            self.gone.append(self.lines.pop(0))
            self.lines.append("")
        else:
            self.y += 1

    def _execute(self, arguments: str, command: str) -> None:
        match command:
            case "A":
                self.y = max(0, self.y - int(arguments or 1))
            case "K":
                self.lines[self.y] = ""
            case "m":
                self.is_styled = True
                self.is_coloured |= bool(_COLOUR.search(arguments))
            case "h" | "l":
                assert arguments == "?25"
            case _:
                raise AssertionError(f"unknown escape sequence: {arguments}{command}")


class Terminal:
    """A program on a terminal."""

    def __init__(self, command: Sequence[str], columns: int, rows: int, environment: Mapping[str, str]) -> None:
        self._master, other = pty.openpty()
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.picture = ScreenText(columns, rows)
        usual = {"TERM": "xterm", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
        inherited = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
        with usual_signals():
            self.process = subprocess.Popen(
                command, stdin=other, stdout=other, stderr=other, env=inherited | usual | dict(environment)
            )
        os.close(other)

    def press_ctrl_c(self) -> None:
        """Send the byte of Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def until(self, condition: Callable[[str], object], within: float = 15.0) -> str:
        """Wait until the text of the screen fulfils the condition."""
        end = time.monotonic() + within
        while not condition(self.picture.text()):
            assert time.monotonic() < end, f"not within {within} s:\n{self.picture.text()}"
            self._read(0.05)
        return self.picture.text()

    def wait(self) -> int:
        """Return the exit status after reading all output."""
        end = time.monotonic() + 15
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it does not end:\n{self.picture.text()}"
            self._read(0.05)
        while self._read(0.05):
            pass
        return self.process.wait()

    def hang_up(self) -> None:
        """Close the terminal like a window."""
        os.close(self._master)
        self._master = -1
        self.process.send_signal(signal.SIGHUP)

    def close(self) -> None:
        """Kill the program if it still runs."""
        self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        with contextlib.suppress(OSError):
            self.picture.feed(os.read(self._master, 65536).decode(errors="replace"))
            return True
        return False


@contextlib.contextmanager
def on_terminal(command: Sequence[str], columns: int = 100, rows: int = 24, **environment: str) -> Iterator[Terminal]:
    """Run a program on a terminal of this size."""
    terminal = Terminal(command, columns, rows, environment)
    try:
        yield terminal
    finally:
        terminal.close()
