"""Ports of pods over the local socket: connections of their own, both ways, and why there is none."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podkeeper.app.local.client import AskingFailed, Talk
from podkeeper.app.local.forwards import HostForwards, sandbox_to_reach
from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import SandboxRecord
from tests.app.local.house import House, house, pod, speaking

STDIN, STDOUT, ERROR, CLOSE = 0, 1, 3, 255


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server on the loopback, for as many connections as come; its port."""
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
    """Say everything again, and then that it was all."""
    while data := connected.recv(65536):
        connected.sendall(data)
    connected.sendall(b"that was all")


@pytest.fixture
def it(tmp_path: Path) -> Iterator[House]:
    with house(tmp_path, forwards=HostForwards()) as made:
        made.write("pods.yaml", pod("web"), pod("job", lives={"app": {"after_seconds": 0.0}}, policy="Never"))
        made.until(lambda: made.status("web") == "Running" and made.status("job") == "Completed")
        yield made


def heard(conversation: Talk) -> tuple[bytes, dict[str, object]]:
    said = {STDOUT: b"", ERROR: b""}
    for channel, data in conversation.messages():
        said[channel] += data
    return said[STDOUT], json.loads(said[ERROR])


def test_bytes_go_both_ways_and_the_end_of_the_input_is_passed_on(it: House) -> None:
    sent = os.urandom(3_000_000)

    with (
        listening(echo) as port,
        it.client.talk("portForward", "default", "web", port=port) as conversation,
        speaking(conversation, sent),
    ):
        said, end = heard(conversation)
    assert said == sent + b"that was all"
    assert end["status"] == "Success"


def test_connections_do_not_mix(it: House) -> None:
    with listening(echo) as port:
        talks = [it.client.talk("portForward", "default", "web", port=port) for _ in range(10)]
        for number, conversation in enumerate(talks):
            conversation.send(STDIN, f"{number}:".encode())
            conversation.send(CLOSE, bytes([STDIN]))
        assert [heard(each)[0] for each in talks] == [f"{number}:that was all".encode() for number in range(10)]
        for conversation in talks:
            conversation.close()


def test_one_that_breaks_off_says_so(it: House) -> None:
    def break_off(connected: socket.socket) -> None:
        connected.recv(10)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a close is a reset

    with listening(break_off) as port, it.client.talk("portForward", "default", "web", port=port) as conversation:
        conversation.send(STDIN, b"hello")
        said, end = heard(conversation)
    assert (said, end["status"]) == (b"", "Failure")
    assert "the connection broke" in str(end["message"])


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


REFUSALS: dict[str, tuple[str, dict[str, object], str]] = {
    "nobody listens": ("web", {"port": free_port()}, "127.0.0.1: Connection refused; ::1: "),
    "no port": ("web", {}, "port: Required value"),
    "a port that is none": ("web", {"port": 70_000}, "must be between 1 and 65535"),
    "a port that is no number": ("web", {"port": "http"}, 'Invalid value: "http"'),
    "a pod that does not run": ("job", {"port": 80}, "cannot forward to pod 'job-n1': it is not running"),
    "a pod that is not there": ("zz", {"port": 80}, "pod 'default/zz' not found"),
}


@pytest.mark.parametrize("name, query, words", REFUSALS.values(), ids=REFUSALS.keys())
def test_why_there_is_no_connection(it: House, name: str, query: dict[str, object], words: str) -> None:
    with pytest.raises(AskingFailed, match=words):
        it.client.talk("portForward", "default", name, **query)


def test_a_runtime_without_networks_says_so(tmp_path: Path) -> None:
    with house(tmp_path) as it:
        it.write("web.yaml", pod("web"))
        it.until(lambda: it.status("web") == "Running")
        with pytest.raises(AskingFailed, match="have no network"):
            it.client.talk("portForward", "default", "web", port=80)


def test_the_sandbox_that_is_ready_is_the_one_to_reach() -> None:
    old, new = SandboxRecord(id="old", ready=False), SandboxRecord(id="new", ready=True)
    assert sandbox_to_reach(Pod(), (old, new)) == "new"
    with pytest.raises(RuntimeRefused, match="is not running"):
        sandbox_to_reach(Pod(), (old,))
