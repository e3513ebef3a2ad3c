"""`podkeeper exec` and `podkeeper attach` at a real terminal: keys go in, a screen comes out, and ends are ends.

One agent for all, as root and as an ordinary user; whoever types is a real process at a pseudo-terminal.
"""

import errno
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.e2e.house import PATIENCE_SECONDS, House, manifest, roots_house, until
from tests.e2e.kinds import AND_CRIO, CONTAINERD, PROCESSES
from tests.e2e.somebody import somebody
from tests.e2e.ways import way_of
from tests.runtimes.process.home import running
from tests.signals import usual_signals

pytestmark = pytest.mark.slow

NAP = f"4243.{os.getpid():07}"  # as long as nobody else's

PODS: dict[str, dict[str, Any]] = {
    "box": {"command": ["sleep", "36000"]},
    "shell": {"command": ["sh"], "stdin": True, "tty": True, "env": [{"name": "PS1", "value": "here> "}]},
    "reader": {"command": ["sh", "-c", "while read line; do echo got $line; done"], "stdin": True},
    "once": {"command": ["sh", "-c", "cat; echo over"], "stdin": True, "stdinOnce": True},
    "mute": {"command": ["sh", "-c", "while :; do echo tick; sleep 0.1; done"]},
}


def until_asleep(nap: str) -> None:
    until(lambda: running(f"sleep\0{nap}\0"), f"somebody sleeps for {nap}")


def until_awake(nap: str) -> None:
    until(lambda: not running(f"sleep\0{nap}\0"), f"nobody sleeps for {nap}")


@pytest.fixture(scope="module", params=["root", "user", CONTAINERD, *AND_CRIO])
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """An agent with all pods running."""
    if request.param != "user":
        if os.geteuid() != 0:
            pytest.skip("needs root")
        way = way_of(request, PROCESSES if request.param == "root" else request.param)
        with roots_house(tmp_path_factory.mktemp("house"), way, PODS) as house:
            until(lambda: all(house.container(name).get("ready") for name in PODS), "all pods run")
            yield house
        return
    with somebody() as user:
        user.write("pods", *(manifest(*each) for each in PODS.items()))
        user.start()
        user.until(lambda: all(user.is_ready(name) for name in PODS), "all pods run")
        yield House(user.root)
        user.end(signal.SIGINT)


class Terminal:
    """A person at a terminal, who has just entered a command."""

    def __init__(self, argv: list[str], rows: int = 24, columns: int = 80) -> None:
        self.master, theirs = pty.openpty()
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs  # held open, so that the terminal is still there when the command has ended
        self.resize(rows, columns)
        with usual_signals():
            self.process = subprocess.Popen(
                argv,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # one thread only: nothing can be half done
            )
        self.screen = b""

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def see(self, pattern: bytes, *, press: Callable[[], None] | None = None) -> re.Match[bytes]:
        """Wait until something new is on the screen, perhaps pressing a key now and then; what came before is old."""
        end = time.monotonic() + PATIENCE_SECONDS
        while (found := re.search(pattern, self.screen)) is None:
            assert time.monotonic() < end, f"{pattern!r} never came: {self.screen[-500:]!r}"
            if press is not None:
                press()
            self._read()
        self.screen = self.screen[found.end() :]
        return found

    def wait(self) -> int:
        """The exit status; the screen shows all by then."""
        status = self.process.wait(PATIENCE_SECONDS)
        while self._read(0.0):
            pass
        return status

    def is_as_it_was(self) -> bool:
        """Whether the command has left the terminal in the state in which it found it."""
        return termios.tcgetattr(self.theirs) == self.before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.theirs)
        os.close(self.master)

    def _read(self, patience: float = 0.1) -> bool:
        if not select.select([self.master], [], [], patience)[0]:
            return False
        try:
            self.screen += os.read(self.master, 65536)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
        return True


@contextmanager
def at(house: House, command: str, *arguments: str, rows: int = 24, columns: int = 80) -> Iterator[Terminal]:
    terminal = Terminal(house.argv(command, *arguments), rows, columns)
    try:
        yield terminal
    finally:
        terminal.close()


of_processes = pytest.mark.parametrize("house", ["root", "user"], indirect=True, scope="module")
"""For what CRI cannot do: it has no way to end a process that was started in a container."""


# ---- exec ----


def test_a_shell_is_at_a_real_terminal_with_job_control(house: House) -> None:
    with at(house, "exec", "-it", "box", "--", "sh") as person:
        person.see(rb"[#$] ")
        person.type(b"tty; test -t 0 && test -t 1 && test -t 2 && echo re''al; echo TERM=$TERM\n")
        person.see(rb"\n/dev/pts/[0-9]+\r\nreal\r\nTERM=xterm\r\n")
        person.type(b"set -m; sleep 5 & jobs\n")
        assert b"can't access tty" not in person.see(rb"Running[^\n]*sleep 5").string
        person.type(b"kill %1; exit 42\n")
        assert person.wait() == 42
        assert person.is_as_it_was()


def test_the_window_is_as_large_as_ours_and_changes_with_it(house: House) -> None:
    script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done"
    with at(house, "exec", "-it", "box", "--", "sh", "-c", script, rows=41, columns=101) as person:
        person.see(rb"41 101\r\n")
        person.resize(50, 132)
        person.see(rb"50 132\r\n")
        person.type(b"\x03")
        assert person.wait() == 130


def test_ctrl_c_reaches_who_is_in_the_foreground(house: House) -> None:
    with at(house, "exec", "-it", "box", "--", "sh") as person:
        person.see(rb"[#$] ")
        person.type(f"sleep {NAP}1\n".encode())
        until_asleep(f"{NAP}1")
        person.type(b"\x03")
        person.type(b"echo status-$?\n")
        person.see(rb"status-130\r\n[^\n]*[#$] ")  # a shell that edits lines sets its terminal before it asks
        until_awake(f"{NAP}1")
        person.type(b"\x04")  # Ctrl-D: a shell ends
        assert person.wait() == 0


@of_processes
def test_who_is_gone_leaves_nothing_running(house: House) -> None:
    for number, end in enumerate((signal.SIGKILL, signal.SIGHUP, signal.SIGTERM)):
        nap = f"{NAP}2{number}"
        with at(house, "exec", "-it", "box", "--", "sh") as person:
            person.see(rb"[#$] ")
            person.type(f"sleep {nap}\n".encode())
            until_asleep(nap)
            person.process.send_signal(end)
            person.process.wait(PATIENCE_SECONDS)
            assert person.is_as_it_was() == (end != signal.SIGKILL)
        until_awake(nap)


@of_processes
@pytest.mark.parametrize("arguments", [(), ("-i",)], ids=["only listening", "with more to say than is read"])
def test_without_a_terminal_too_who_is_gone_leaves_nothing_running(house: House, arguments: tuple[str, ...]) -> None:
    nap = f"{NAP}3"
    reading, writing = os.pipe()
    asking = subprocess.Popen(house.argv("exec", *arguments, "box", "--", "sleep", nap), stdin=reading)
    try:
        until_asleep(nap)
        os.set_blocking(writing, False)
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:  # more than anybody takes off our hands
            with suppress(BlockingIOError):
                os.write(writing, bytes(65536))
    finally:
        asking.kill()
        asking.wait()
        os.close(reading)
        os.close(writing)
    until_awake(nap)


def test_input_arrives_to_its_end_and_output_is_complete_and_apart(house: House) -> None:
    said = os.urandom(3_000_000)
    echoed = house.call("exec", "-i", "box", "--", "sh", "-c", "cat; echo done >&2; exit 7", said=said)
    assert (echoed.returncode, echoed.stdout == said, echoed.stderr) == (7, True, b"done\n")
    counted = house.call("exec", "box", "--", "seq", "300000")
    assert counted.stdout.split() == [b"%d" % number for number in range(1, 300001)]
    closed = house.call("exec", "box", "--", "cat", said=b"nobody asked for this")
    assert (closed.returncode, closed.stdout) == (0, b"")


def test_a_terminal_is_not_made_of_a_pipe(house: House) -> None:
    told = house.call("exec", "-it", "box", "--", "sh", "-c", "test -t 0 || cat", said=b"words")
    assert (told.returncode, told.stdout) == (0, b"words")
    assert told.stderr.startswith(b"Unable to use a TTY - input is not a terminal")


# ---- attach ----

SECOND_ATTACH = "with CRI-O 1.33 and conmon 2.1.6, who joins after somebody else has not been seen to hear anything"


def is_crio(house: House) -> bool:
    """Whether pods run in CRI-O."""
    return str(house.container("shell").get("containerID", "")).startswith("cri-o://")


def test_a_shell_is_attached_to_and_goes_on_without_us(house: House) -> None:
    if is_crio(house):
        pytest.skip(SECOND_ATTACH)
    before = house.container("shell")["containerID"]
    with at(house, "attach", "-it", "shell", rows=33, columns=99) as person:
        person.see(rb"If you don't see a command prompt, try pressing enter.")
        # Who joins tells a size that is none first, and then its own.
        person.type(b"until [ \"$(stty size)\" = '33 99' ]; do :; done; tty; stty size; x=kept\n")
        person.see(rb"/dev/pts/0\r\n33 99\r\n")
        with at(house, "attach", "shell") as looking:
            looking.see(rb"here> ", press=lambda: person.type(b"\n"))
            person.type(f"sleep {NAP}4\n".encode())
            looking.see(rb"sleep 4243")
            until_asleep(f"{NAP}4")
            person.type(b"\x03")  # goes to the container, and ends nobody here
            person.see(rb"\^C[^>]*here> ")
            person.type(b"echo bo''th\n")
            for each in (person, looking):
                each.see(rb"both\r+\n")
            looking.type(b"\x03")  # this one is at its own terminal
            assert looking.wait() == 130
        person.process.kill()
    with at(house, "attach", "-it", "shell") as again:
        again.type(b"echo $x-$((40 + 2))\n")
        again.see(rb"kept-42\r\n")
    assert (house.container("shell")["containerID"], house.restarts("shell")) == (before, 0)


def test_who_ends_the_shell_ends_the_attachment(house: House) -> None:
    restarts = house.restarts("shell")
    with at(house, "attach", "-it", "shell") as person:
        person.type(b"exit\n")
        assert person.wait() == 0
        assert person.is_as_it_was()
    until(lambda: house.restarts("shell") == restarts + 1 and house.container("shell").get("ready"), "a new one runs")


def test_input_stays_open_from_one_to_the_next(house: House) -> None:
    if is_crio(house):
        pytest.skip(SECOND_ATTACH)
    with at(house, "attach", "reader") as looking:
        looking.see(rb"got zero", press=lambda: house.call("attach", "-i", "reader", said=b"zero\n").check_returncode())
        for word in (b"one", b"two"):
            assert house.call("attach", "-i", "reader", said=word + b"\n").returncode == 0
            looking.see(rb"got " + word)
    assert house.restarts("reader") == 0


def test_input_that_is_there_once_ends_with_the_first(house: House) -> None:
    restarts = house.restarts("once")
    assert house.call("attach", "-i", "once", said=b"words\n").stdout == b"words\nover\n"
    until(lambda: house.restarts("once") == restarts + 1 and house.container("once").get("ready"), "it has ended")


def test_who_has_no_input_is_only_listened_to(house: House) -> None:
    with at(house, "attach", "-it", "mute") as person:
        person.see(rb"Unable to use stdin - container app has no stdin")
        person.see(rb"Unable to use a TTY - container app did not allocate one")
        person.see(rb"tick\r\ntick\r\n")
        person.type(b"\x03")
        assert person.wait() == 130
    assert house.restarts("mute") == 0
