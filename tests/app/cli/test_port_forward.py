"""`podkeeper port-forward` with real listeners, a real agent, and Ctrl-C at the end."""

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

from podkeeper.app.cli.forward_listener import PortPair, listeners_for, parse_port_pairs
from podkeeper.app.local.forwards import HostForwards
from tests.app.local.harness import Harness, harness, manifest
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
    "the same port": ("80", PortPair(80, 80)),
    "another port": ("8080:80", PortPair(8080, 80)),
    "a free port": (":80", PortPair(0, 80)),
    "a free port, as in kubectl": ("0:80", PortPair(0, 80)),
    "a named port": ("8080:metrics", PortPair(8080, 9090)),
    "only a name": ("http", PortPair(80, 80)),
}


@pytest.mark.parametrize("text, expected", PAIRS.values(), ids=PAIRS.keys())
def test_parse_port_pairs(text: str, expected: PortPair) -> None:
    assert parse_port_pairs(POD, [text]) == [expected]


WRONG = {
    "too many": ("1:2:3", "e.g. 8080:80"),
    "no remote port": ("80:", "does not have a named port ''"),
    "an unknown name": ("8080:htp", "does not have a named port 'htp'; its named ports: http, metrics"),
    "a remote port of 0": ("80:0", "expected a number from 1 to 65535"),
    "a remote port that is too large": ("65536", "expected a number from 1 to 65535"),
    "a local port that is too large": ("65536:80", "cannot listen on port '65536'"),
    "an invalid local port": ("x:80", "cannot listen on port 'x'"),
}


@pytest.mark.parametrize("text, words", WRONG.values(), ids=WRONG.keys())
def test_an_invalid_port_is_an_error(text: str, words: str) -> None:
    with pytest.raises(click.ClickException, match=words):
        parse_port_pairs(POD, [text])


def test_an_invalid_address_is_an_error() -> None:
    with pytest.raises(click.ClickException, match="'somewhere' is not a valid IP"), listeners_for([], "somewhere"):
        raise AssertionError("there is nothing to listen on")


def test_ports_in_use_are_reported_and_the_others_are_forwarded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with listeners_for([PortPair(taken, 80), PortPair(0, 81)], "127.0.0.1") as listeners:
            assert [each.pair.remote for each in listeners] == [81]
        refused = pytest.raises(click.ClickException, match="any of the requested ports")
        with refused, listeners_for([PortPair(taken, 80)], "127.0.0.1"):
            raise AssertionError("it is taken")
    assert capsys.readouterr().err.count(f"Unable to listen on port {taken}: Address already in use") == 2


def test_a_port_is_opened_on_all_addresses_or_on_none(capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = "192.0.2.1"  # not an address of this machine
    with pytest.raises(click.ClickException), listeners_for([PortPair(0, 80)], f"127.0.0.1,{elsewhere}"):
        raise AssertionError("it cannot listen there")
    assert "Forwarding" not in capsys.readouterr().out


class Running:
    """A running `port-forward`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def ports(self, count: int) -> list[int]:
        """Return the local IPv4 ports from the printed lines."""
        found: list[int] = []
        while len(found) < count:
            if match := re.fullmatch(r"Forwarding from 127\.0\.0\.1:(\d+) -> \d+", line := self.line()):
                found.append(int(match[1]))
            else:
                assert line.startswith("Forwarding from [::1]:")
        return found


@contextmanager
def forwarding(it: Harness, *arguments: str) -> Iterator[Running]:
    """Run the command. Press Ctrl-C at the end, and check that it exits without an error."""
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
def it(tmp_path: Path) -> Iterator[Harness]:
    with harness(tmp_path, forwards=HostForwards()) as made:
        made.write("web.yaml", manifest("web"))
        made.until(lambda: made.status("web") == "Running")
        yield made


def exchange(port: int, request: bytes, host: str = "127.0.0.1") -> bytes:
    """Return the answer until the peer closes or resets the connection."""
    answer = b""
    with socket.create_connection((host, port), timeout=10) as connected:
        try:
            connected.sendall(request)
            connected.shutdown(socket.SHUT_WR)
            while data := connected.recv(65536):
                answer += data
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE):
                raise
    return answer


def test_several_ports_are_forwarded_and_connections_are_printed(it: Harness) -> None:
    local = free_port()
    with (
        listening(echo) as port,
        listening(lambda connected: connected.sendall(b"bye")) as other,
        forwarding(it, "web", f":{port}", f"{local}:{other}") as running,
    ):
        first, second = running.ports(2)
        assert second == local
        assert exchange(first, b"hello ") == b"hello that was all"
        while (line := running.line()).startswith("Forwarding from [::1]"):
            pass
        assert line == f"Handling connection for {first}"
        assert exchange(second, b"") == b"bye"
        assert running.line() == f"Handling connection for {second}"
        large = os.urandom(2_000_000)
        assert exchange(first, large) == large + b"that was all"


def test_a_failed_connection_is_reported_and_the_next_one_works(it: Harness) -> None:
    closed = free_port()
    with listening(echo) as port, forwarding(it, "web", f":{closed}", f":{port}", "--address", "127.0.0.1") as running:
        broken, good = running.ports(2)
        assert exchange(broken, b"hello") == b""
        assert running.process.stderr is not None
        line = running.process.stderr.readline()
        assert line.startswith(f"an error occurred forwarding {broken} -> {closed}: cannot connect to port {closed}")
        assert exchange(good, b"hello ") == b"hello that was all"


def test_a_client_may_disconnect_early(it: Harness) -> None:
    with listening(echo) as port, forwarding(it, "web", f":{port}") as running:
        (local,) = running.ports(1)
        with socket.create_connection(("127.0.0.1", local), timeout=10) as leaving:
            leaving.sendall(b"hello")
            assert leaving.recv(10) == b"hello"
        assert exchange(local, b"and ") == b"and that was all"


def test_a_pod_that_is_not_running_is_an_error_before_ports_are_opened(it: Harness) -> None:
    it.write("job.yaml", manifest("job", lives={"app": {"after_seconds": 0.0}}, policy="Never"))
    it.until(lambda: it.status("job") == "Completed")
    result = it.call("port-forward", "job", "80")
    assert result.exit_code == 1
    assert "unable to forward port because pod is not running. Current status=Succeeded" in result.output
