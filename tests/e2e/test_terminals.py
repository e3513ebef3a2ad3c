"""`podkeeper exec` and `podkeeper attach` at a real terminal.

All tests share one agent per runtime, as root and as an ordinary user. The client is a process at a pseudo-terminal.
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

from tests.e2e.agent_process import TIMEOUT_SECONDS, AgentClient, agent_with_pods, until
from tests.e2e.cli_runtimes import cli_runtime
from tests.e2e.runtime_kinds import AND_CRIO, CONTAINERD, PROCESS
from tests.e2e.unprivileged_user import unprivileged_user
from tests.manifests import manifest
from tests.runtimes.process.harness import running
from tests.signals import usual_signals

pytestmark = pytest.mark.slow

NAP = f"4243.{os.getpid():07}"  # unique, to find the processes of this test

PODS: dict[str, dict[str, Any]] = {
    "box": {"command": ["sleep", "36000"]},
    "shell": {"command": ["sh"], "stdin": True, "tty": True, "env": [{"name": "PS1", "value": "here> "}]},
    "reader": {"command": ["sh", "-c", "while read line; do echo got $line; done"], "stdin": True},
    "once": {"command": ["sh", "-c", "cat; echo over"], "stdin": True, "stdinOnce": True},
    "silent": {"command": ["sh", "-c", "while :; do echo tick; sleep 0.1; done"]},
}


def until_asleep(nap: str) -> None:
    until(lambda: running(f"sleep\0{nap}\0"), f"a process sleeps for {nap}")


def until_awake(nap: str) -> None:
    until(lambda: not running(f"sleep\0{nap}\0"), f"no process sleeps for {nap}")


@pytest.fixture(scope="module", params=["root", "user", CONTAINERD, *AND_CRIO])
def agent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentClient]:
    """Run an agent and wait for all pods."""
    if request.param != "user":
        if os.geteuid() != 0:
            pytest.skip("needs root")
        runtime = cli_runtime(request, PROCESS if request.param == "root" else request.param)
        with agent_with_pods(tmp_path_factory.mktemp("agent"), runtime, PODS) as agent:
            until(lambda: all(agent.container(name).get("ready") for name in PODS), "all pods run")
            yield agent
        return
    with unprivileged_user() as user:
        user.write("pods", *(manifest(*each) for each in PODS.items()))
        user.start()
        user.until(lambda: all(user.is_ready(name) for name in PODS), "all pods run")
        yield AgentClient(user.root)
        user.end(signal.SIGINT)


class Terminal:
    """A pseudo-terminal with a command in the foreground."""

    def __init__(self, argv: list[str], rows: int = 24, columns: int = 80) -> None:
        self.master, theirs = pty.openpty()
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs  # held open, so that the terminal outlives the command
        self.resize(rows, columns)
        with usual_signals():
            self.process = subprocess.Popen(
                argv,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # safe, because this process has one thread
            )
        self.screen = b""

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def see(self, pattern: bytes, *, press: Callable[[], None] | None = None) -> re.Match[bytes]:
        """Wait for new output that matches, call `press` while waiting, and discard the output up to the match."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while (found := re.search(pattern, self.screen)) is None:
            assert time.monotonic() < end, f"{pattern!r} never came: {self.screen[-500:]!r}"
            if press is not None:
                press()
            self._read()
        self.screen = self.screen[found.end() :]
        return found

    def wait(self) -> int:
        """Return the exit status after reading all output."""
        status = self.process.wait(TIMEOUT_SECONDS)
        while self._read(0.0):
            pass
        return status

    def is_restored(self) -> bool:
        """Return whether the terminal has the attributes that it had before the command."""
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
def at(agent: AgentClient, command: str, *arguments: str, rows: int = 24, columns: int = 80) -> Iterator[Terminal]:
    terminal = Terminal(agent.argv(command, *arguments), rows, columns)
    try:
        yield terminal
    finally:
        terminal.close()


process_runtime_only = pytest.mark.parametrize("agent", ["root", "user"], indirect=True, scope="module")
"""For features that the CRI lacks: it cannot end a process that was started in a container."""


# ---- exec ----


def test_exec_provides_a_terminal_with_job_control(agent: AgentClient) -> None:
    with at(agent, "exec", "-it", "box", "--", "sh") as terminal:
        terminal.see(rb"[#$] ")
        terminal.type(b"tty; test -t 0 && test -t 1 && test -t 2 && echo re''al; echo TERM=$TERM\n")
        terminal.see(rb"\n/dev/pts/[0-9]+\r\nreal\r\nTERM=xterm\r\n")
        terminal.type(b"set -m; sleep 5 & jobs\n")
        assert b"can't access tty" not in terminal.see(rb"Running[^\n]*sleep 5").string
        terminal.type(b"kill %1; exit 42\n")
        assert terminal.wait() == 42
        assert terminal.is_restored()


def test_exec_forwards_the_terminal_size_and_its_changes(agent: AgentClient) -> None:
    script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done"
    with at(agent, "exec", "-it", "box", "--", "sh", "-c", script, rows=41, columns=101) as terminal:
        terminal.see(rb"41 101\r\n")
        terminal.resize(50, 132)
        terminal.see(rb"50 132\r\n")
        terminal.type(b"\x03")
        assert terminal.wait() == 130


def test_ctrl_c_reaches_the_foreground_process(agent: AgentClient) -> None:
    with at(agent, "exec", "-it", "box", "--", "sh") as terminal:
        terminal.see(rb"[#$] ")
        terminal.type(f"sleep {NAP}1\n".encode())
        until_asleep(f"{NAP}1")
        terminal.type(b"\x03")
        terminal.type(b"echo status-$?\n")
        terminal.see(rb"status-130\r\n[^\n]*[#$] ")  # the shell sets its terminal before it prompts
        until_awake(f"{NAP}1")
        terminal.type(b"\x04")  # Ctrl-D ends the shell
        assert terminal.wait() == 0


@process_runtime_only
def test_the_command_ends_when_the_exec_client_ends(agent: AgentClient) -> None:
    for number, end in enumerate((signal.SIGKILL, signal.SIGHUP, signal.SIGTERM)):
        nap = f"{NAP}2{number}"
        with at(agent, "exec", "-it", "box", "--", "sh") as terminal:
            terminal.see(rb"[#$] ")
            terminal.type(f"sleep {nap}\n".encode())
            until_asleep(nap)
            terminal.process.send_signal(end)
            terminal.process.wait(TIMEOUT_SECONDS)
            assert terminal.is_restored() == (end != signal.SIGKILL)
        until_awake(nap)


@process_runtime_only
@pytest.mark.parametrize("arguments", [(), ("-i",)], ids=["without input", "with more input than is read"])
def test_without_a_terminal_the_command_ends_when_the_exec_client_ends(
    agent: AgentClient, arguments: tuple[str, ...]
) -> None:
    nap = f"{NAP}3"
    reading, writing = os.pipe()
    client = subprocess.Popen(agent.argv("exec", *arguments, "box", "--", "sleep", nap), stdin=reading)
    try:
        until_asleep(nap)
        os.set_blocking(writing, False)
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:  # more than any buffer holds
            with suppress(BlockingIOError):
                os.write(writing, bytes(65536))
    finally:
        client.kill()
        client.wait()
        os.close(reading)
        os.close(writing)
    until_awake(nap)


def test_exec_transfers_all_input_and_separate_output_streams(agent: AgentClient) -> None:
    stdin = os.urandom(3_000_000)
    echoed = agent.call("exec", "-i", "box", "--", "sh", "-c", "cat; echo done >&2; exit 7", stdin=stdin)
    assert (echoed.returncode, echoed.stdout == stdin, echoed.stderr) == (7, True, b"done\n")
    counted = agent.call("exec", "box", "--", "seq", "300000")
    assert counted.stdout.split() == [b"%d" % number for number in range(1, 300001)]
    closed = agent.call("exec", "box", "--", "cat", stdin=b"not read")
    assert (closed.returncode, closed.stdout) == (0, b"")


def test_exec_with_a_pipe_has_no_terminal(agent: AgentClient) -> None:
    result = agent.call("exec", "-it", "box", "--", "sh", "-c", "test -t 0 || cat", stdin=b"words")
    assert (result.returncode, result.stdout) == (0, b"words")
    assert result.stderr.startswith(b"Unable to use a TTY - input is not a terminal")


# ---- attach ----

SECOND_ATTACH = "with CRI-O 1.33 and conmon 2.1.6, a second client receives no output"


def is_crio(agent: AgentClient) -> bool:
    return str(agent.container("shell").get("containerID", "")).startswith("cri-o://")


def test_an_attached_shell_continues_after_the_client_ends(agent: AgentClient) -> None:
    if is_crio(agent):
        pytest.skip(SECOND_ATTACH)
    before = agent.container("shell")["containerID"]
    with at(agent, "attach", "-it", "shell", rows=33, columns=99) as terminal:
        terminal.see(rb"If you don't see a command prompt, try pressing enter.")
        # A client first sends the size 0x0 and then its own.
        terminal.type(b"until [ \"$(stty size)\" = '33 99' ]; do :; done; tty; stty size; x=kept\n")
        terminal.see(rb"/dev/pts/0\r\n33 99\r\n")
        with at(agent, "attach", "shell") as viewer:
            viewer.see(rb"here> ", press=lambda: terminal.type(b"\n"))
            terminal.type(f"sleep {NAP}4\n".encode())
            viewer.see(rb"sleep 4243")
            until_asleep(f"{NAP}4")
            terminal.type(b"\x03")  # goes to the container and ends no client
            terminal.see(rb"\^C[^>]*here> ")
            terminal.type(b"echo bo''th\n")
            for each in (terminal, viewer):
                each.see(rb"both\r+\n")
            viewer.type(b"\x03")  # this client has its own terminal
            assert viewer.wait() == 130
        terminal.process.kill()
    with at(agent, "attach", "-it", "shell") as again:
        again.type(b"echo $x-$((40 + 2))\n")
        again.see(rb"kept-42\r\n")
    assert (agent.container("shell")["containerID"], agent.restarts("shell")) == (before, 0)


def test_attach_ends_with_the_shell(agent: AgentClient) -> None:
    restarts = agent.restarts("shell")
    with at(agent, "attach", "-it", "shell") as terminal:
        terminal.type(b"exit\n")
        assert terminal.wait() == 0
        assert terminal.is_restored()
    until(lambda: agent.restarts("shell") == restarts + 1 and agent.container("shell").get("ready"), "a new shell runs")


def test_stdin_stays_open_between_attach_clients(agent: AgentClient) -> None:
    if is_crio(agent):
        pytest.skip(SECOND_ATTACH)
    with at(agent, "attach", "reader") as viewer:
        viewer.see(rb"got zero", press=lambda: agent.call("attach", "-i", "reader", stdin=b"zero\n").check_returncode())
        for word in (b"one", b"two"):
            assert agent.call("attach", "-i", "reader", stdin=word + b"\n").returncode == 0
            viewer.see(rb"got " + word)
    assert agent.restarts("reader") == 0


def test_stdin_once_closes_after_the_first_client(agent: AgentClient) -> None:
    restarts = agent.restarts("once")
    assert agent.call("attach", "-i", "once", stdin=b"words\n").stdout == b"words\nover\n"
    until(
        lambda: agent.restarts("once") == restarts + 1 and agent.container("once").get("ready"), "it has been restarted"
    )


def test_attach_to_a_container_without_stdin_shows_its_output(agent: AgentClient) -> None:
    with at(agent, "attach", "-it", "silent") as terminal:
        terminal.see(rb"Unable to use stdin - container app has no stdin")
        terminal.see(rb"Unable to use a TTY - container app did not allocate one")
        terminal.see(rb"tick\r\ntick\r\n")
        terminal.type(b"\x03")
        assert terminal.wait() == 130
    assert agent.restarts("silent") == 0
