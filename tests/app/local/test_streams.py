"""Exec and attach over the socket, with the channels of kubectl, on the fake runtime and with a real process."""

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web

from podkeeper.app.agent import Agent
from podkeeper.app.local.channels import PROTOCOL, relay, status_of
from podkeeper.app.local.client import ChannelSocket, LocalClient, RequestFailed
from podkeeper.app.local.process_streams import ProcessStreams
from podkeeper.app.local.server import MAX_MESSAGE_BYTES, listen
from podkeeper.app.local.streams import PlainStreams
from podkeeper.model.k8s.meta import Status
from podkeeper.model.probing import CommandEnd, CommandExited, NotRun, TimedOut
from podkeeper.runtimes.process.runtime import ProcessRuntime
from podkeeper.runtimes.process.sessions import Session
from tests.app.local.harness import Harness, append, is_open, manifest, sending
from tests.app.local.test_logs import line
from tests.doubles import stand_in

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255


def all_of(session: ChannelSocket) -> tuple[dict[int, bytes], dict[str, object]]:
    """Return the data of each channel, and the status."""
    data_by_channel: dict[int, bytes] = {}
    for channel, data in session.messages():
        data_by_channel[channel] = data_by_channel.get(channel, b"") + data
    return data_by_channel, json.loads(data_by_channel.pop(ERROR, b"{}"))


def test_exec_returns_output_and_exit_code(it: Harness) -> None:
    steps = [{"output": "hello\n", "exit_code": 3}]
    it.write("web.yaml", manifest("web", lives={"app": {"exec": steps}}))
    it.until(lambda: it.status("web") == "Running")
    with it.client.open_channels("exec", "default", "web", "app", command=["greet", "me"], output=True) as session:
        data_by_channel, end = all_of(session)
    assert data_by_channel == {STDOUT: b"hello\n"}
    assert (end["status"], end["reason"]) == ("Failure", "NonZeroExitCode")
    assert end["details"] == {"causes": [{"message": "3", "reason": "ExitCode"}]}


REFUSALS: dict[str, tuple[tuple[str, ...], dict[str, object], str]] = {
    "no command": (("exec", "default", "web", "app"), {}, "command: Required value"),
    "stdin on a runtime without it": (
        ("exec", "default", "web", "app"),
        {"command": ["sh"], "input": True},
        "cannot use stdin or a TTY",
    ),
    "an unknown container": (("exec", "default", "web", "zz"), {"command": ["sh"]}, "it has: app"),
    "a container that is not running": (("exec", "default", "job", "app"), {"command": ["sh"]}, "is not running"),
    "attach with stdin": (("attach", "default", "web", "app"), {"input": True}, "cannot use stdin"),
}


@pytest.mark.parametrize("parts, query, message", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refused_stream_has_the_reason(
    it: Harness, parts: tuple[str, ...], query: dict[str, object], message: str
) -> None:
    it.write("pods.yaml", manifest("web"), manifest("job", lives={"app": {"after_seconds": 0.0}}, policy="Never"))
    it.until(lambda: it.status("web") == "Running" and it.status("job") == "Completed")
    with pytest.raises(RequestFailed, match=message) as refused:
        it.client.open_channels(*parts, **query)
    assert refused.value.code == 400


def test_a_message_above_the_limit_ends_the_session(it: Harness) -> None:
    it.write("web.yaml", manifest("web"))
    it.until(lambda: it.status("web") == "Running")
    with it.client.open_channels("attach", "default", "web", "app", output=True) as session:
        with contextlib.suppress(OSError):  # the agent may disconnect before it has read everything
            session.send(STDIN, b"x" * (MAX_MESSAGE_BYTES + 1))
        assert list(session.messages()) == []
    assert it.status("web") == "Running"


def test_attach_receives_new_output_until_the_container_exits(it: Harness) -> None:
    it.write("web.yaml", manifest("web", policy="Never"))
    it.until(lambda: it.status("web") == "Running")
    log = it.log("web")
    log.write_bytes(line("before"))
    with it.client.open_channels("attach", "default", "web", "app", output=True) as session:
        messages = session.messages()
        it.until(lambda: is_open(log))
        append(log, line("after"))
        assert next(messages) == (STDOUT, b"after\n")
        it.end("web")
        assert [channel for channel, _ in messages] == [ERROR]


ENDS: dict[str, tuple[CommandEnd, Status]] = {
    "success": (CommandExited(0), Status(status="Success")),
    "timeout": (
        TimedOut("took 5 s"),
        Status(status="Failure", reason="InternalError", message="took 5 s", code=500),
    ),
    "not run": (
        NotRun("no such file"),
        Status(status="Failure", reason="InternalError", message="no such file", code=500),
    ),
}


@pytest.mark.parametrize("end, expected", ENDS.values(), ids=ENDS.keys())
def test_the_status_of_an_end(end: CommandEnd, expected: Status) -> None:
    assert status_of(end) == expected


# ---- with a real process ----


def test_closing_a_session_with_the_output_of_a_command_cancels_the_command() -> None:
    async def scenario() -> None:
        cancelled = asyncio.Event()

        async def run_command(container_id: str, command: Sequence[str]) -> CommandEnd:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError

        agent = stand_in(Agent, SimpleNamespace(runtime_name="plain", run_command=run_command))
        session = await PlainStreams(agent).exec("c1", ["sleep"], tty=False, stdin=False)
        await asyncio.sleep(0)
        await session.close()
        async with asyncio.timeout(5):
            await cancelled.wait()

    asyncio.run(scenario())


def test_a_terminal_of_a_process_has_the_columns_and_rows_of_the_client() -> None:
    class Sessions(SimpleNamespace):
        sizes: list[tuple[int, int]]

        async def exec_stream(self, container_id: str, command: Sequence[str], *, tty: bool, stdin: bool) -> Session:
            return stand_in(Session, self)

        def resize(self, rows: int, columns: int) -> None:
            self.sizes.append((columns, rows))

    async def scenario() -> None:
        sessions = Sessions(sizes=[])
        session = await ProcessStreams(stand_in(ProcessRuntime, sessions)).exec("c1", ["sh"], tty=True, stdin=True)
        await session.resize(120, 40)
        assert sessions.sizes == [(120, 40)]

    asyncio.run(scenario())


@pytest.mark.parametrize("length", [1, 125, 126, 127, 65535, 65536, 65537])
def test_frames_of_each_length_are_sent_as_the_protocol_requires(length: int) -> None:
    ours, theirs = socket.socketpair()
    data = os.urandom(length - 1)
    with ours, theirs, ChannelSocket(ours, ours.makefile("rb")) as channels:
        theirs.settimeout(5)
        sending = threading.Thread(target=channels.send, args=(STDIN, data))
        sending.start()
        with theirs.makefile("rb") as received:
            first, second = received.read(2)
            size = second & 0x7F
            extended = {126: 2, 127: 8}.get(size, 0)
            size = int.from_bytes(received.read(extended)) if extended else size
            assert (first, second & 0x80, extended) == (0x82, 0x80, 0 if length < 126 else 2 if length < 65536 else 8)
            assert (size, received.read(4), received.read(size)) == (length, bytes(4), bytes([STDIN]) + data)
        sending.join()


class RealProcess:
    """A real process as a stream session."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.sizes: list[tuple[int, int]] = []
        self.closed = False

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(65536):
            yield "stdout", data

    async def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def resize(self, columns: int, rows: int) -> None:
        self.sizes.append((columns, rows))

    async def wait(self) -> CommandEnd:
        return CommandExited(await self._process.wait())

    async def close(self) -> None:
        self.closed = True
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def with_cat(path: Path, use: Callable[[LocalClient], object]) -> RealProcess:
    """Serve sessions with `cat` on a socket, and run a client."""
    made: list[RealProcess] = []

    async def serve() -> None:
        process = await asyncio.create_subprocess_exec(
            "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        made.append(RealProcess(process))

        async def handle(request: web.Request) -> web.StreamResponse:
            answer = web.WebSocketResponse(protocols=(PROTOCOL,), max_msg_size=0)
            await answer.prepare(request)
            await relay(made[0], answer)
            return answer

        app = web.Application()
        app.router.add_get("/exec", handle)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        await web.SockSite(runner, listen(path)).start()
        running_client: Awaitable[object] = asyncio.to_thread(use, LocalClient(path))
        try:
            await asyncio.wait_for(running_client, 10)
        finally:
            await made[0].close()
            await runner.cleanup()

    asyncio.run(serve())
    return made[0]


def test_large_data_is_not_changed_in_either_direction(tmp_path: Path) -> None:
    sent = os.urandom(3_000_000)

    def use(client: LocalClient) -> None:
        with client.open_channels("exec") as session:
            session.send(RESIZE, b'{"Width": 120, "Height": 40}')
            session.send(RESIZE, b"nonsense")
            with sending(session, sent):
                data_by_channel, end = all_of(session)
        assert data_by_channel[STDOUT] == sent
        assert end["status"] == "Success"

    assert with_cat(tmp_path / "s", use).sizes == [(120, 40)]


def test_a_disconnect_closes_the_session(tmp_path: Path) -> None:
    def use(client: LocalClient) -> None:
        with client.open_channels("exec") as session:
            session.send(STDIN, b"hello")
            assert next(session.messages()) == (STDOUT, b"hello")

    assert with_cat(tmp_path / "s", use).closed
