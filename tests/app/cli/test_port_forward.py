"""`podkeeper port-forward`, called as a person calls it: real listeners, a real agent, Ctrl-C at the end."""

import errno
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from podkeeper.app.cli.forwarding import Pair, listeners_for, pairs_meant
from podkeeper.app.local.forwards import HostForwards
from tests.app.local.house import House, house, pod
from tests.app.local.test_forwards import echo, free_port, listening
from tests.signals import usual_signals

POD = {
    "metadata": {"name": "web"},
    "spec": {
        "containers": [
            {"ports": [{"name": "http", "containerPort": 80}, {"containerPort": 81}]},
            {"ports": [{"name": "metrics", "containerPort": 9090}]},
        ]
    },
}
PAIRS = {
    "the same port": ("80", Pair(80, 80)),
    "another port": ("8080:80", Pair(8080, 80)),
    "a port that is free": (":80", Pair(0, 80)),
    "likewise, as kubectl takes it": ("0:80", Pair(0, 80)),
    "a port by its name": ("8080:metrics", Pair(8080, 9090)),
    "only a name": ("http", Pair(80, 80)),
}


@pytest.mark.parametrize("text, expected", PAIRS.values(), ids=PAIRS.keys())
def test_which_ports_are_meant(text: str, expected: Pair) -> None:
    assert pairs_meant(POD, [text]) == [expected]


WRONG = {
    "too many": ("1:2:3", "e.g. 8080:80"),
    "no remote port": ("80:", "does not have a named port ''"),
    "a name that no container gave": ("8080:htp", "does not have a named port 'htp'; its named ports: http, metrics"),
    "a remote port of 0": ("80:0", "expected a number from 1 to 65535"),
    "a remote port that is too large": ("65536", "expected a number from 1 to 65535"),
    "a local port that is too large": ("65536:80", "cannot listen on port '65536'"),
    "a local port that is none": ("x:80", "cannot listen on port 'x'"),
}


@pytest.mark.parametrize("text, words", WRONG.values(), ids=WRONG.keys())
def test_what_is_said_of_ports_that_are_none(text: str, words: str) -> None:
    with pytest.raises(click.ClickException, match=words):
        pairs_meant(POD, [text])


def test_an_address_that_is_none_is_named() -> None:
    with pytest.raises(click.ClickException, match="'somewhere' is not a valid IP"), listeners_for([], "somewhere"):
        raise AssertionError("there is nothing to listen on")


def test_ports_that_are_taken_are_told_and_the_others_served(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with listeners_for([Pair(taken, 80), Pair(0, 81)], "127.0.0.1") as listeners:
            assert [each.pair.remote for each in listeners] == [81]
        refused = pytest.raises(click.ClickException, match="any of the requested ports")
        with refused, listeners_for([Pair(taken, 80)], "127.0.0.1"):
            raise AssertionError("it is taken")
    assert capsys.readouterr().err.count(f"Unable to listen on port {taken}: Address already in use") == 2


def test_one_address_for_all_or_none(capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = "192.0.2.1"  # not of this machine
    with pytest.raises(click.ClickException), listeners_for([Pair(0, 80)], f"127.0.0.1,{elsewhere}"):
        raise AssertionError("it cannot listen there")
    assert "Forwarding" not in capsys.readouterr().out


class Running:
    """A `port-forward` that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def ports(self, count: int) -> list[int]:
        """The ports here, from the lines in which they are told (for IPv4)."""
        found: list[int] = []
        while len(found) < count:
            if match := re.fullmatch(r"Forwarding from 127\.0\.0\.1:(\d+) -> \d+", line := self.line()):
                found.append(int(match[1]))
            else:
                assert line.startswith("Forwarding from [::1]:")
        return found


@contextmanager
def forwarding(it: House, *arguments: str) -> Iterator[Running]:
    """Call it; in the end Ctrl-C is pressed, and it must have ended without complaint."""
    script = "from podkeeper.app.cli import main; main(prog_name='podkeeper')"
    command = [sys.executable, "-u", "-c", script, "port-forward", "--socket", str(it.socket), *arguments]
    pipe = subprocess.PIPE
    with usual_signals():
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=os.environ)
    try:
        yield Running(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def it(tmp_path: Path) -> Iterator[House]:
    with house(tmp_path, forwards=HostForwards()) as made:
        made.write("web.yaml", pod("web"))
        made.until(lambda: made.status("web") == "Running")
        yield made


def ask(port: int, question: bytes, host: str = "127.0.0.1") -> bytes:
    """The bytes that come back until the peer closes or resets the connection."""
    answer = b""
    with socket.create_connection((host, port), timeout=10) as connected:
        try:
            connected.sendall(question)
            connected.shutdown(socket.SHUT_WR)
            while data := connected.recv(65536):
                answer += data
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE):
                raise
    return answer


def test_several_ports_are_forwarded_and_what_happens_is_told(it: House) -> None:
    local = free_port()
    with (
        listening(echo) as port,
        listening(lambda connected: connected.sendall(b"bye")) as other,
        forwarding(it, "web", f":{port}", f"{local}:{other}") as running,
    ):
        first, second = running.ports(2)
        assert second == local
        assert ask(first, b"hello ") == b"hello that was all"
        while (line := running.line()).startswith("Forwarding from [::1]"):
            pass
        assert line == f"Handling connection for {first}"
        assert ask(second, b"") == b"bye"
        assert running.line() == f"Handling connection for {second}"
        large = os.urandom(2_000_000)
        assert ask(first, large) == large + b"that was all"


def test_a_connection_that_fails_is_told_and_the_next_one_is_served(it: House) -> None:
    closed = free_port()
    with listening(echo) as port, forwarding(it, "web", f":{closed}", f":{port}", "--address", "127.0.0.1") as running:
        broken, good = running.ports(2)
        assert ask(broken, b"hello") == b""
        assert running.process.stderr is not None
        told = running.process.stderr.readline()
        assert told.startswith(f"an error occurred forwarding {broken} -> {closed}: cannot connect to port {closed}")
        assert ask(good, b"hello ") == b"hello that was all"


def test_whoever_leaves_early_is_let_go(it: House) -> None:
    with listening(echo) as port, forwarding(it, "web", f":{port}") as running:
        (local,) = running.ports(1)
        with socket.create_connection(("127.0.0.1", local), timeout=10) as leaving:
            leaving.sendall(b"hello")
            assert leaving.recv(10) == b"hello"
        assert ask(local, b"and ") == b"and that was all"


def test_a_pod_that_does_not_run_is_refused_before_anybody_listens(it: House) -> None:
    it.write("job.yaml", pod("job", lives={"app": {"after_seconds": 0.0}}, policy="Never"))
    it.until(lambda: it.status("job") == "Completed")
    result = it.call("port-forward", "job", "80")
    assert result.exit_code == 1
    assert "unable to forward port because pod is not running. Current status=Succeeded" in result.output
