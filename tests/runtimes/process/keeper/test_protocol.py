"""The protocol between agent and keeper: lines, files, a full connection."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from podkeeper.runtimes.process.keeper.protocol import (
    CHUNK_BYTES,
    MAX_FILES,
    AgentConnection,
    MessageBuffer,
    encode,
    send_with_files,
)
from tests.runtimes.process.manual_loop import ManualLoop

MOST_BYTES = 4 * 2**20  # the backlog
Message = dict[str, Any]


@contextmanager
def no_file_stays_open() -> Iterator[None]:
    before = os.listdir("/proc/self/fd")
    yield
    assert os.listdir("/proc/self/fd") == before


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def null_files(count: int) -> list[int]:
    return [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]


def close(*files: int) -> None:
    for file in files:
        os.close(file)


def test_a_message_is_one_line_without_spaces() -> None:
    assert encode({"id": 7, "do": "stop", "text": "a\nb ü"}) == b'{"id":7,"do":"stop","text":"a\\nb \\u00fc"}\n'


def test_messages_are_joined_from_any_chunks(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    inbox, data = MessageBuffer(), encode({"a": 1}) + encode({"b": 2})
    found = []
    for cut in (data[:3], data[3:10], data[10:]):
        theirs.send(cut)
        found.append(inbox.receive(ours))
    assert found == [[], [({"a": 1}, [])], [({"b": 2}, [])]]
    theirs.send(data)
    assert inbox.receive(ours) == [({"a": 1}, []), ({"b": 2}, [])]
    assert inbox.receive(ours) == []


def test_a_message_longer_than_one_read_is_joined(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    inbox, message = MessageBuffer(), {"x": "a" * (CHUNK_BYTES + 10)}
    data = encode(message)
    theirs.send(data)
    assert inbox.receive(ours) == []
    assert len(ours.recv(CHUNK_BYTES, socket.MSG_PEEK)) == len(data) - CHUNK_BYTES
    assert inbox.receive(ours) == [(message, [])]


def test_files_are_assigned_to_messages_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    inbox = MessageBuffer()
    with no_file_stays_open():
        files = null_files(MAX_FILES)
        both = encode({"a": 1, "fds": MAX_FILES - 1}) + encode({"b": 2}) + encode({"c": 3, "fds": 1})
        assert send_with_files(theirs, both, files) == len(both)
        messages = inbox.receive(ours)
        assert messages is not None
        assert [(message, len(come)) for message, come in messages] == [
            ({"a": 1, "fds": MAX_FILES - 1}, MAX_FILES - 1),
            ({"b": 2}, 0),
            ({"c": 3, "fds": 1}, 1),
        ]
        come = [file for _, each in messages for file in each]
        assert len({*come, *files}) == 2 * MAX_FILES
        close(*files, *come)
        inbox.close()


def test_files_without_a_message_are_closed_with_the_buffer(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    inbox = MessageBuffer()
    with no_file_stays_open():
        files = null_files(2)
        send_with_files(theirs, encode({"a": 1}), files)
        close(*files)
        assert inbox.receive(ours) == [({"a": 1}, [])]
        inbox.close()
        inbox.close()


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b'"x"\n', b'{"fds":1}\n', b'{"fds":"1"}\n', b"\n", b"\xff\n"])
def test_an_invalid_message_ends_the_connection(pair: tuple[socket.socket, socket.socket], line: bytes) -> None:
    ours, theirs = pair
    theirs.send(line)
    assert MessageBuffer().receive(ours) is None


def test_receive_returns_none_at_the_end_or_after_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    assert MessageBuffer().receive(ours) is None
    ours.close()
    assert MessageBuffer().receive(ours) is None


class ConnectionHarness:
    """A keeper's connection and the agent's end of it."""

    def __init__(self, pair: tuple[socket.socket, socket.socket]) -> None:
        ours, self.agent = pair
        self.loop = ManualLoop()
        self.handled: list[tuple[Message, int]] = []
        self.gone: list[AgentConnection] = []
        ours.setblocking(True)
        self.connection = AgentConnection(self.loop, ours, self._handle, self.gone.append)
        self.file = ours.fileno()

    def _handle(self, connection: AgentConnection, message: Message, files: list[int]) -> None:
        assert connection is self.connection
        self.handled.append((message, len(files)))
        close(*files)

    def write_ready(self) -> None:
        """Let the connection write as much as possible."""
        for callback in tuple(self.loop.writable.values()):
            callback()

    def fill(self) -> int:
        """Send messages until the agent's side is full. Return their number."""
        count = 0
        while not self.connection.backlog:
            self.connection.send({"text": "a" * 30_000, "number": count})
            count += 1
        return count

    def received(self) -> list[Message]:
        """Return everything that the agent receives while the connection writes."""
        data = b""
        while True:
            self.write_ready()
            try:
                piece = self.agent.recv(1 << 20)
            except BlockingIOError:
                break
            if not piece:
                break
            data += piece
        return [json.loads(line) for line in data.splitlines()]


def test_messages_are_handled_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    line = ConnectionHarness(pair)
    (file,) = null_files(1)
    send_with_files(line.agent, encode({"id": 1, "fds": 1}) + encode({"id": 2}), (file,))
    os.close(file)
    line.loop.readable[line.file]()
    line.loop.readable[line.file]()  # a read without data does not block
    assert line.handled == [({"id": 1, "fds": 1}, 1), ({"id": 2}, 0)]
    assert not line.connection.closed


def test_answers_and_errors_have_the_request_id(pair: tuple[socket.socket, socket.socket]) -> None:
    line = ConnectionHarness(pair)
    line.connection.answer({"id": 1, "do": "x"})
    line.connection.answer({"id": 2}, {"code": 3})
    line.connection.answer({})
    line.connection.refuse({"id": 4}, "why not")
    line.connection.refuse({"id": 5}, "why not", "launch")
    assert line.received() == [
        {"id": 1, "ok": {}},
        {"id": 2, "ok": {"code": 3}},
        {"id": None, "ok": {}},
        {"id": 4, "error": "why not", "kind": "refused"},
        {"id": 5, "error": "why not", "kind": "launch"},
    ]
    assert (line.loop.writable, line.connection.backlog) == ({}, 0)


def test_an_answer_can_have_files(pair: tuple[socket.socket, socket.socket]) -> None:
    line = ConnectionHarness(pair)
    with no_file_stays_open():
        files = null_files(2)
        line.connection.answer({"id": 1}, {"tty": True}, files)
        found = MessageBuffer().receive(line.agent)
        assert found is not None
        ((message, come),) = found
        assert (message, len(come)) == ({"id": 1, "ok": {"tty": True}, "fds": 2}, 2)
        close(*files, *come)


def test_queued_messages_arrive_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    line = ConnectionHarness(pair)
    with no_file_stays_open():
        count = line.fill()
        for number in range(count, count + 3):
            line.connection.send({"number": number, "text": "a" * 300_000})
        assert len(line.loop.writable) == 1
        assert line.file not in line.loop.writable
        line.write_ready()  # still no room, but nothing is lost
        backlog = line.connection.backlog
        assert backlog > 0
        assert [message["number"] for message in line.received()] == list(range(count + 3))
        assert (line.connection.backlog, line.loop.writable) == (0, {})
        line.connection.send({"number": 0})
        assert line.received() == [{"number": 0}]
    assert line.file in line.loop.readable


def test_an_agent_that_does_not_read_is_disconnected_beyond_the_limit(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    line = ConnectionHarness(pair)
    line.fill()
    frame = len(encode({"x": ""}))
    line.connection.send({"x": "a" * (MOST_BYTES - line.connection.backlog - frame)})
    assert (line.connection.backlog, line.connection.closed) == (MOST_BYTES, False)
    line.connection.send({})
    assert (line.connection.closed, line.gone) == (True, [line.connection])
    assert (line.loop.readable, line.loop.writable) == ({}, {})
    line.connection.send({"x": 1})  # the agent has disconnected
    assert line.gone == [line.connection]


def test_a_full_connection_is_closed_if_files_must_be_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    line = ConnectionHarness(pair)
    line.fill()
    (file,) = null_files(1)
    line.connection.answer({"id": 1}, {}, (file,))
    os.close(file)
    assert (line.connection.closed, line.gone) == (True, [line.connection])


@pytest.mark.parametrize("found_by", ["reading", "sending", "writing on"])
def test_a_closed_connection_is_reported_once(found_by: str) -> None:
    with no_file_stays_open():
        line = ConnectionHarness(socket.socketpair())
        line.agent.setblocking(False)
        if found_by == "writing on":
            line.fill()
        (file,) = null_files(1)
        send_with_files(line.agent, b"{", (file,))  # a file without a message
        os.close(file)
        line.loop.readable[line.file]()
        line.agent.close()
        match found_by:
            case "reading":
                line.loop.readable[line.file]()
            case "sending":
                line.connection.send({"x": 1})
            case _:
                line.write_ready()
        assert (line.connection.closed, line.gone) == (True, [line.connection])
        assert (line.loop.readable, line.loop.writable) == ({}, {})
        line.connection.answer({"id": 1})
        assert line.gone == [line.connection]
