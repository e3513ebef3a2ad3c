"""Port forwarding over the local socket: data in both directions, separate connections, errors."""

import asyncio
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from podkeeper.app.local.client import ChannelSocket, RequestFailed
from podkeeper.app.local.cri_streams import CriStreams
from podkeeper.app.local.forwards import HostForwards, ready_sandbox
from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import SandboxRecord
from podkeeper.runtimes.cri.stream_calls import StreamCalls
from podkeeper.runtimes.cri.transport import Transport
from podkeeper.streams.port_forward import ForwardedConnection, PortForward
from tests.app.local.harness import Harness, harness, manifest, sending
from tests.doubles import stand_in

STDIN, STDOUT, ERROR, CLOSE = 0, 1, 3, 255


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Run a server on the loopback address. Yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connected, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=_served, args=(connected, serve), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def _served(connected: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    with connected:
        serve(connected)


def echo(connected: socket.socket) -> None:
    """Send all data back, then close."""
    while data := connected.recv(65536):
        connected.sendall(data)
    connected.sendall(b"that was all")


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Harness]:
    with harness(tmp_path, forwards=HostForwards()) as made:
        made.write("pods.yaml", manifest("web"), manifest("job", lives={"app": {"after_seconds": 0.0}}, policy="Never"))
        made.until(lambda: made.status("web") == "Running" and made.status("job") == "Completed")
        yield made


def received(session: ChannelSocket) -> tuple[bytes, dict[str, object]]:
    answer = {STDOUT: b"", ERROR: b""}
    for channel, data in session.messages():
        answer[channel] += data
    return answer[STDOUT], json.loads(answer[ERROR])


def test_data_flows_in_both_directions_and_the_end_of_the_input_is_forwarded(it: Harness) -> None:
    sent = os.urandom(3_000_000)

    with (
        listening(echo) as port,
        it.client.open_channels("portForward", "default", "web", port=port) as session,
        sending(session, sent),
    ):
        answer, end = received(session)
    assert answer == sent + b"that was all"
    assert end["status"] == "Success"


def test_connections_do_not_mix(it: Harness) -> None:
    with listening(echo) as port:
        talks = [it.client.open_channels("portForward", "default", "web", port=port) for _ in range(10)]
        for number, session in enumerate(talks):
            session.send(STDIN, f"{number}:".encode())
            session.send(CLOSE, bytes([STDIN]))
        assert [received(each)[0] for each in talks] == [f"{number}:that was all".encode() for number in range(10)]
        for session in talks:
            session.close()


def test_a_broken_connection_is_reported(it: Harness) -> None:
    def break_off(connected: socket.socket) -> None:
        connected.recv(10)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a close is a reset

    with listening(break_off) as port, it.client.open_channels("portForward", "default", "web", port=port) as session:
        session.send(STDIN, b"hello")
        answer, end = received(session)
    assert (answer, end["status"]) == (b"", "Failure")
    assert "the connection broke" in str(end["message"])


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


REFUSALS: dict[str, tuple[str, dict[str, object], str]] = {
    "nothing listens": ("web", {"port": free_port()}, "127.0.0.1: Connection refused; ::1: "),
    "no port": ("web", {}, "port: Required value"),
    "an invalid port": ("web", {"port": 70_000}, "must be between 1 and 65535"),
    "a port that is not a number": ("web", {"port": "http"}, 'Invalid value: "http"'),
    "a pod that does not run": ("job", {"port": 80}, "cannot forward to pod 'job-n1': it is not running"),
    "an unknown pod": ("zz", {"port": 80}, "pod 'default/zz' not found"),
}


@pytest.mark.parametrize("name, query, words", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refused_request_has_the_reason(it: Harness, name: str, query: dict[str, object], words: str) -> None:
    with pytest.raises(RequestFailed, match=words):
        it.client.open_channels("portForward", "default", name, **query)


def test_a_runtime_without_networks_refuses(tmp_path: Path) -> None:
    with harness(tmp_path) as it:
        it.write("web.yaml", manifest("web"))
        it.until(lambda: it.status("web") == "Running")
        with pytest.raises(RequestFailed, match="have no network"):
            it.client.open_channels("portForward", "default", "web", port=80)


def test_the_ready_sandbox_is_used() -> None:
    old, new = SandboxRecord(id="old", ready=False), SandboxRecord(id="new", ready=True)
    assert ready_sandbox(Pod(), (old, new)) == "new"
    with pytest.raises(RuntimeRefused, match="is not running"):
        ready_sandbox(Pod(), (old,))


def test_the_connection_to_a_cri_runtime_is_closed_if_it_refuses_the_port() -> None:
    class Connection:
        is_closed = False

        async def open(self, port: int, *, alone: bool = False) -> ForwardedConnection:
            assert alone
            raise RuntimeRefused("no")

        async def close(self) -> None:
            self.is_closed = True

    made = Connection()

    class Calls:
        async def port_forward(self, sandbox_id: str) -> PortForward:
            return stand_in(PortForward, made)

    streams = CriStreams(cast(Transport, SimpleNamespace()))
    streams._calls = stand_in(StreamCalls, Calls())
    with pytest.raises(RuntimeRefused):
        asyncio.run(streams.forward("s1", 80))
    assert made.is_closed
