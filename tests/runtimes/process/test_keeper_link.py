"""The agent's end of the connection to a keeper, with commands and sessions."""

import asyncio
import fcntl
import os
import socket
import struct
import termios
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from podkeeper.model.errors import CallTimedOut, RuntimeRefused
from podkeeper.model.probing import CommandExited, NotRun, TimedOut
from podkeeper.runtimes.process.commands import run_command
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper.protocol import MessageBuffer, encode, send_with_files
from podkeeper.runtimes.process.keeper_link import ContainerNotFound, KeeperLink, KeeperUnreachable, LaunchFailed
from podkeeper.runtimes.process.sessions import Channel, Session, open_attached, open_command
from podkeeper.testing.virtual_time import simulate


class Harness:
    """A link and the keeper's end of it, which the test controls."""

    def __init__(self) -> None:
        ours, self.keeper = socket.socketpair()
        self.keeper.setblocking(False)
        self.buffer = MessageBuffer()
        self.events: list[Json] = []
        self.lost = 0
        self.link = KeeperLink(ours, "default/web", self.events.append, self._on_lost)

    def _on_lost(self) -> None:
        self.lost += 1

    def requests(self) -> list[Json]:
        """Return the requests that arrived. Close their files."""
        found = []
        for message, files in self.buffer.receive(self.keeper) or ():
            found.append(message)
            for file in files:
                os.close(file)
        return found

    def requests_with_files(self) -> tuple[Json, list[int]]:
        """Return the only request that arrived, with its files."""
        messages = self.buffer.receive(self.keeper)
        assert messages is not None
        assert len(messages) == 1
        return messages[0]

    async def send_message(self, *messages: Json, files: tuple[int, ...] = ()) -> None:
        """Send messages as the keeper, and let the link read them."""
        send_with_files(self.keeper, b"".join(map(encode, messages)), files)
        await run_ready()


async def run_ready() -> None:
    """Run all callbacks that are ready."""
    for _ in range(6):
        await asyncio.sleep(0)


def files_open() -> list[str]:
    return os.listdir("/proc/self/fd")


@asynccontextmanager
async def connected() -> AsyncIterator[Harness]:
    before = files_open()
    harness = Harness()
    yield harness
    harness.link.close()
    harness.keeper.close()
    assert files_open() == before


def with_harness(act: Callable[[Harness], Awaitable[None]]) -> None:
    """Run a scenario in virtual time. No file may stay open."""

    async def main() -> None:
        async with connected() as harness:
            await act(harness)

    simulate(main())


def null_files() -> int:
    return os.open(os.devnull, os.O_RDWR)


# ---- links -----------------------------------------------------------------------------------


def test_answers_are_matched_by_request_id_in_any_order() -> None:
    async def act(harness: Harness) -> None:
        first = asyncio.ensure_future(harness.link.call("start", {"container": "x"}, 5))
        second = asyncio.ensure_future(harness.link.call("state", {}, 5))
        await run_ready()
        assert harness.requests() == [{"id": 1, "do": "start", "container": "x"}, {"id": 2, "do": "state"}]
        await harness.send_message({"id": 2, "ok": {"a": 1}}, {"event": "leaving"}, {"id": 1})
        assert (await first, await second) == (({}, []), ({"a": 1}, []))
        assert (harness.events, harness.lost) == ([{"event": "leaving"}], 0)

    with_harness(act)


@pytest.mark.parametrize(
    ("kind", "error"),
    [("launch", LaunchFailed), ("unknown", ContainerNotFound), ("refused", RuntimeRefused), ("new", RuntimeRefused)],
)
def test_an_error_kind_selects_the_exception(kind: str, error: type[Exception]) -> None:
    async def act(harness: Harness) -> None:
        _, answer = harness.link.send_request("start", {})
        await harness.send_message({"id": 1, "error": "why not", "kind": kind})
        with pytest.raises(error, match=r"^why not$") as caught:
            await answer
        assert type(caught.value) is error

    with_harness(act)


def test_an_error_without_a_kind_is_a_runtime_refused() -> None:
    async def act(harness: Harness) -> None:
        _, answer = harness.link.send_request("start", {})
        await harness.send_message({"id": 1, "error": "why not"})
        with pytest.raises(RuntimeRefused):
            await answer

    with_harness(act)


def test_a_call_times_out_and_a_late_answer_is_dropped() -> None:
    async def act(harness: Harness) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        text = "cannot stop in pod default/web: its keeper did not answer within 7 s"
        with pytest.raises(CallTimedOut, match=rf"^{text}$"):
            await harness.link.call("stop", {}, 7)
        assert loop.time() - began == 7
        file = null_files()
        await harness.send_message({"id": 1, "ok": {}, "fds": 1}, files=(file,))  # late, so its file is closed
        os.close(file)
        await harness.send_message({"id": 99, "ok": {}}, {"ok": {}})  # answers without a request
        assert harness.lost == 0

    with_harness(act)


def test_sent_files_are_closed_and_received_files_belong_to_the_caller() -> None:
    async def act(harness: Harness) -> None:
        _, answer = harness.link.send_request("exec", {"argv": []}, (null_files(), null_files()))
        message, files = harness.requests_with_files()
        assert (message, len(files)) == ({"id": 1, "do": "exec", "argv": [], "fds": 2}, 2)
        await harness.send_message({"id": 1, "ok": {}, "fds": 2}, files=tuple(files))
        _, come = await answer
        assert len(come) == 2
        for file in (*files, *come):
            os.close(file)

    with_harness(act)


def test_a_broken_connection_fails_pending_calls_and_is_reported_once() -> None:
    async def act(harness: Harness) -> None:
        waiting = asyncio.ensure_future(harness.link.call("start", {}, 5))
        await run_ready()
        harness.keeper.close()
        text = "cannot reach the keeper of pod default/web: the connection is closed"
        with pytest.raises(KeeperUnreachable, match=rf"^{text}$"):
            await waiting
        await run_ready()
        assert harness.lost == 1
        number, answer = harness.link.send_request("start", {}, (null_files(),))
        with pytest.raises(KeeperUnreachable):
            await answer
        assert number == 2
        harness.link.close()
        assert harness.lost == 1

    with_harness(act)


def test_closing_a_link_does_not_call_on_lost() -> None:
    async def act(harness: Harness) -> None:
        waiting = asyncio.ensure_future(harness.link.call("start", {}, 5))
        await run_ready()
        harness.link.close()
        with pytest.raises(KeeperUnreachable):
            await waiting
        await run_ready()
        assert harness.lost == 0
        assert harness.buffer.receive(harness.keeper) is not None
        assert harness.buffer.receive(harness.keeper) is None

    with_harness(act)


def test_sending_to_a_dead_keeper_breaks_the_connection() -> None:
    async def act(harness: Harness) -> None:
        harness.keeper.close()
        _, answer = harness.link.send_request("start", {}, (null_files(),))
        await run_ready()
        assert harness.lost == 1
        with pytest.raises(KeeperUnreachable):
            await answer

    with_harness(act)


def test_data_is_queued_until_the_keeper_reads() -> None:
    async def act(harness: Harness) -> None:
        count = 12
        answers = [harness.link.send_request("x", {"text": "a" * 50_000})[1] for _ in range(count)]
        harness.link.send_request("last", {}, (null_files(),))
        received: list[Json] = []
        for _ in range(200):
            received += harness.requests()
            await asyncio.sleep(0)
        assert [message["id"] for message in received] == list(range(1, count + 2))
        assert {message.get("text", "") for message in received} == {"a" * 50_000, ""}
        assert (received[-1]["do"], received[-1]["fds"]) == ("last", 1)
        assert not any(answer.done() for answer in answers)

    with_harness(act)


def test_files_of_a_request_sent_in_parts_are_closed() -> None:
    async def act(harness: Harness) -> None:
        harness.link.send_request("x", {"text": "a" * 1_000_000}, (null_files(),))
        received: list[Json] = []
        while not received:
            received = harness.requests()
            await asyncio.sleep(0)
        assert received[0]["fds"] == 1

    with_harness(act)


@pytest.mark.parametrize("turns", range(5))
def test_files_of_an_answer_to_a_cancelled_call_are_closed(turns: int) -> None:
    async def act(harness: Harness) -> None:
        question = asyncio.ensure_future(harness.link.call("attach", {}, 5))
        await run_ready()
        (request,) = harness.requests()
        file = null_files()
        send_with_files(harness.keeper, encode({"id": request["id"], "ok": {}, "fds": 1}), (file,))
        os.close(file)
        for _ in range(turns):
            await asyncio.sleep(0)
        if not question.done():
            question.cancel()
            with pytest.raises(asyncio.CancelledError):
                await question
        else:
            os.close(question.result()[1][0])
        await run_ready()

    with_harness(act)


def test_received_files_without_a_message_are_closed_with_the_link() -> None:
    async def act(harness: Harness) -> None:
        file = null_files()
        await harness.send_message({"event": "strange"}, files=(file,))
        os.close(file)
        assert harness.events == [{"event": "strange"}]

    with_harness(act)


def test_unsent_files_are_closed_with_the_link() -> None:
    async def act(harness: Harness) -> None:
        for _ in range(12):
            harness.link.send_request("x", {"text": "a" * 50_000})
        harness.link.send_request("last", {}, (null_files(), null_files()))

    with_harness(act)


# ---- commands --------------------------------------------------------------------------------


def test_run_command_returns_output_and_exit_code() -> None:
    async def act(harness: Harness) -> None:
        end = asyncio.ensure_future(run_command(harness.link, "x", ["sh", "-c", "true"], 3))
        await run_ready()
        message, (stdin, stdout, stderr) = harness.requests_with_files()
        request = {"container": "x", "argv": ["sh", "-c", "true"], "timeout": 3}
        assert message == {"id": 1, "do": "exec", **request, "fds": 3}
        assert os.read(stdin, 1) == b""
        os.write(stdout, b"out ")
        os.write(stderr, b"err ")
        await run_ready()
        os.write(stdout, b"end")
        for file in (stdin, stdout, stderr):
            os.close(file)
        await harness.send_message({"id": 1, "ok": {"code": 3, "timed_out": False}})
        assert await end == CommandExited(3, b"out err end")

    with_harness(act)


def test_run_command_keeps_the_first_16_kibibytes_of_output() -> None:
    async def act(harness: Harness) -> None:
        end = asyncio.ensure_future(run_command(harness.link, "x", ["yes"], 0))
        await run_ready()
        message, (stdin, stdout, stderr) = harness.requests_with_files()
        assert message["timeout"] == 0
        for letter in (b"a", b"b", b"c"):
            os.write(stdout, letter * 10_000)
            await run_ready()
        await harness.send_message({"id": 1, "ok": {"code": 0, "timed_out": False}})  # its pipes are still open
        assert await end == CommandExited(0, b"a" * 10_000 + b"b" * 6_384)
        for file in (stdin, stdout, stderr):
            os.close(file)

    with_harness(act)


def test_a_command_that_the_keeper_killed_at_its_timeout_has_timed_out() -> None:
    async def act(harness: Harness) -> None:
        end = asyncio.ensure_future(run_command(harness.link, "x", ["sleep", 'a "b"'], 2.5))
        await run_ready()
        harness.requests()
        await harness.send_message({"id": 1, "ok": {"code": 137, "timed_out": True}})
        assert await end == TimedOut('command timed out: "sleep a \\"b\\"" timed out after 2.5s')

    with_harness(act)


@pytest.mark.parametrize(("timeout", "waits"), [(2.0, 7.0), (-1.0, None), (0.0, None)])
def test_run_command_waits_a_little_longer_than_the_timeout(timeout: float, waits: float | None) -> None:
    async def act(harness: Harness) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        end = asyncio.ensure_future(run_command(harness.link, "x", ["sleep", "9"], timeout))
        await run_ready()
        assert harness.requests()[0]["timeout"] == max(0, timeout)
        if waits is None:
            await asyncio.sleep(10_000)
            assert not end.done()
            end.cancel()
            with pytest.raises(asyncio.CancelledError):
                await end
        else:
            assert await end == TimedOut('command timed out: "sleep 9" timed out after 2s')
            assert loop.time() - began == waits
        assert harness.requests() == [{"id": 2, "do": "kill_exec", "request": 1}]

    with_harness(act)


def test_a_command_that_cannot_start_gives_the_reason() -> None:
    async def act(harness: Harness) -> None:
        end = asyncio.ensure_future(run_command(harness.link, "x", ["nothing"], 3))
        await run_ready()
        harness.requests()
        await harness.send_message({"id": 1, "error": "no such program", "kind": "launch"})
        assert await end == NotRun("no such program")
        harness.keeper.close()
        await run_ready()
        found = await run_command(harness.link, "x", ["nothing"], 3)
        assert found == NotRun("cannot reach the keeper of pod default/web: the connection is closed")

    with_harness(act)


# ---- sessions --------------------------------------------------------------------------------


async def collected(session: Session) -> list[tuple[Channel, bytes]]:
    return [item async for item in session]


def test_a_command_has_stdin_and_output() -> None:
    async def act(harness: Harness) -> None:
        session = await open_command(harness.link, "x", ["cat"], tty=False, stdin=True)
        message, (stdin, stdout, stderr) = harness.requests_with_files()
        request = {"container": "x", "argv": ["cat"], "tty": False}
        assert message == {"id": 1, "do": "exec", **request, "fds": 3}
        await session.write(b"hello")
        assert os.read(stdin, 99) == b"hello"
        session.close_stdin()
        assert os.read(stdin, 99) == b""
        session.close_stdin()
        with pytest.raises(RuntimeRefused, match=r"^cannot write to stdin: it is closed$"):
            await session.write(b"more")
        await session.write(b"")
        os.write(stdout, b"out")
        os.write(stderr, b"err")
        assert {await anext(session), await anext(session)} == {(Channel.STDOUT, b"out"), (Channel.STDERR, b"err")}
        os.write(stdout, b"last")
        for file in (stdin, stdout, stderr):
            os.close(file)
        await harness.send_message({"id": 1, "ok": {"code": 3, "timed_out": False}})
        assert await collected(session) == [(Channel.STDOUT, b"last")]
        assert await session.wait() == 3
        await session.aclose()
        assert harness.requests() == []

    with_harness(act)


def test_a_command_without_stdin_reads_end_of_file() -> None:
    async def act(harness: Harness) -> None:
        async with await open_command(harness.link, "x", ["cat"], tty=False, stdin=False) as session:
            _, files = harness.requests_with_files()
            assert os.read(files[0], 1) == b""
            with pytest.raises(RuntimeRefused):
                await session.write(b"x")
            for file in files:
                os.close(file)

    with_harness(act)


def test_a_session_does_not_wait_for_other_holders_of_its_files() -> None:
    async def act(harness: Harness) -> None:
        session = await open_command(harness.link, "x", ["sh"], tty=False, stdin=False)
        _, files = harness.requests_with_files()
        os.write(files[2], b"err")
        await harness.send_message({"id": 1, "ok": {"code": 0, "timed_out": False}})
        assert await collected(session) == [(Channel.STDERR, b"err")]
        for file in files:
            os.close(file)
        await session.aclose()

    with_harness(act)


def test_all_output_of_an_ended_command_is_read() -> None:
    async def act(harness: Harness) -> None:
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)  # one read is one packet: short, as at a terminal
        with theirs:
            session = Session({Channel.STDOUT: ours.detach()})
            end = asyncio.get_running_loop().create_future()
            session.track_command(harness.link, 1, end)
            for number in range(20):
                theirs.send(b"%d" % number)
            end.set_result(({"code": 0}, []))
            assert [data async for _, data in session] == [b"%d" % number for number in range(20)]
            await session.aclose()

    with_harness(act)


def test_wait_raises_the_error_of_a_command_that_could_not_start() -> None:
    async def act(harness: Harness) -> None:
        session = await open_command(harness.link, "x", ["nothing"], tty=False, stdin=False)
        harness.requests()
        await harness.send_message({"id": 1, "error": "no such program", "kind": "launch"})
        assert await collected(session) == []
        with pytest.raises(LaunchFailed, match=r"^no such program$"):
            await session.wait()
        await session.aclose()

    with_harness(act)


def test_closing_a_session_sends_hang_up() -> None:
    async def act(harness: Harness) -> None:
        async with await open_command(harness.link, "x", ["sleep"], tty=False, stdin=True):
            harness.requests()
        assert harness.requests() == [{"id": 2, "do": "hang_up", "request": 1}]

    with_harness(act)


def test_writing_to_a_closed_stdin_is_refused() -> None:
    async def act(harness: Harness) -> None:
        async with await open_command(harness.link, "x", ["true"], tty=False, stdin=True) as session:
            harness.requests()
            with pytest.raises(RuntimeRefused, match=r"^cannot write to stdin: Broken pipe$"):
                await session.write(b"x")
            with pytest.raises(RuntimeRefused, match=r"^cannot write to stdin: it is closed$"):
                await session.write(b"x")

    with_harness(act)


def test_writing_waits_until_the_command_reads() -> None:
    async def act(harness: Harness) -> None:
        async with await open_command(harness.link, "x", ["cat"], tty=False, stdin=True) as session:
            _, (stdin, stdout, stderr) = harness.requests_with_files()
            writing = asyncio.ensure_future(session.write(b"x" * 200_000))
            await run_ready()
            assert not writing.done()
            count = 0
            while count < 200_000:
                count += len(os.read(stdin, 1 << 20))
                await run_ready()
            await writing
            writing = asyncio.ensure_future(session.write(b"x" * 200_000))
            await run_ready()
            writing.cancel()
            await run_ready()
            # A callback that stayed registered would run again and again as soon as the command reads.
            assert not asyncio.get_running_loop().remove_writer(session._stdin)
            for file in (stdin, stdout, stderr):
                os.close(file)

    with_harness(act)


def test_a_client_that_does_not_read_blocks_the_writer_after_sixteen_chunks() -> None:
    async def act(harness: Harness) -> None:
        async with await open_command(harness.link, "x", ["yes"], tty=False, stdin=False) as session:
            _, (stdin, stdout, stderr) = harness.requests_with_files()
            os.set_blocking(stdout, False)
            for number in range(20):
                os.write(stdout, b"%02d" % number)
                await run_ready()
            found = [await anext(session) for _ in range(17)]
            # The seventeenth chunk was read only when there was room. It has everything that arrived meanwhile.
            assert found == [(Channel.STDOUT, b"%02d" % number) for number in range(16)] + [
                (Channel.STDOUT, b"16171819")
            ]
            for file in (stdin, stdout, stderr):
                os.close(file)

    with_harness(act)


async def open_terminal_command(harness: Harness, *, stdin: bool) -> tuple[Session, int, int]:
    """Open a command with a terminal, as its keeper does. Return the session, the terminal and its master."""
    opening = asyncio.ensure_future(open_command(harness.link, "x", ["sh"], tty=True, stdin=stdin))
    await run_ready()
    message, (console,) = harness.requests_with_files()
    assert message == {"id": 1, "do": "exec", "container": "x", "argv": ["sh"], "tty": True, "fds": 1}
    assert not opening.done()
    master, terminal = os.openpty()
    with socket.socket(fileno=console) as theirs:
        send_with_files(theirs, b"!", (master,))
    return await opening, terminal, master


def test_a_terminal_gets_its_size_and_the_end_of_file_key() -> None:
    async def act(harness: Harness) -> None:
        session, terminal, master = await open_terminal_command(harness, stdin=True)
        session.resize(rows=40, columns=120)
        size = struct.unpack("HHHH", fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8)))
        assert size == (40, 120, 0, 0)
        session.resize(rows=-1, columns=120)  # invalid sizes are ignored
        settings = termios.tcgetattr(terminal)
        settings[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(terminal, termios.TCSANOW, settings)
        await session.write(b"ls\n")
        session.close_stdin()
        typed = b""
        while len(typed) < 4:  # a terminal may pass data on in pieces
            typed += os.read(terminal, 99)
        assert typed == b"ls\n\x04"
        os.write(terminal, b"written")
        assert await anext(session) == (Channel.STDOUT, b"written")
        os.close(terminal)
        os.close(master)
        assert await collected(session) == []  # the output ends when the last user closes the terminal
        await session.aclose()
        await run_ready()
        assert [message["do"] for message in harness.requests()] == ["hang_up"]
        session.resize(rows=1, columns=1)

    with_harness(act)


def test_a_terminal_without_stdin_takes_no_input() -> None:
    async def act(harness: Harness) -> None:
        session, terminal, master = await open_terminal_command(harness, stdin=False)
        with pytest.raises(RuntimeRefused):
            await session.write(b"x")
        session.resize(rows=10, columns=20)
        assert fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8))[:4] == struct.pack("HH", 10, 20)
        os.close(terminal)
        os.close(master)
        await session.aclose()

    with_harness(act)


def test_a_command_without_its_terminal_has_no_output() -> None:
    async def act(harness: Harness) -> None:
        opening = asyncio.ensure_future(open_command(harness.link, "x", ["sh"], tty=True, stdin=True))
        await run_ready()
        harness.requests()  # closes the console without a terminal
        session = await opening
        await harness.send_message({"id": 1, "error": "no such program", "kind": "launch"})
        assert await collected(session) == []
        session.resize(rows=1, columns=1)
        with pytest.raises(LaunchFailed):
            await session.wait()
        await session.aclose()

    with_harness(act)


def test_cancelling_the_wait_for_a_terminal_sends_hang_up() -> None:
    async def act(harness: Harness) -> None:
        opening = asyncio.ensure_future(open_command(harness.link, "x", ["sh"], tty=True, stdin=True))
        await run_ready()
        _, (console,) = harness.requests_with_files()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert harness.requests() == [{"id": 2, "do": "hang_up", "request": 1}]
        os.close(console)

    with_harness(act)


async def attached(
    harness: Harness, answer: Json, files: tuple[int, ...] = (), **options: Any
) -> tuple[Session, list[int]]:
    """Attach to a container whose keeper sends this answer. Return the session and the write ends of its output."""
    opening = asyncio.ensure_future(open_attached(harness.link, "x", timeout_seconds=9, **options))
    await run_ready()
    message, outputs = harness.requests_with_files()
    assert message == {"id": 1, "do": "attach", "container": "x", **options, "fds": 2}
    more = {"fds": len(files)} if files else {}
    await harness.send_message({"id": 1, "ok": answer, **more}, files=files)
    return await opening, outputs


@pytest.mark.parametrize("once", [False, True])
def test_an_attach_session_ends_with_its_input_unless_that_is_the_containers(once: bool) -> None:
    async def act(harness: Harness) -> None:
        reading, writing = os.pipe()
        answer = {"tty": False, "stdin": True, "once": once}
        session, (out, err) = await attached(harness, answer, (writing,), stdin=True)
        os.close(writing)
        os.write(out, b"o")
        os.write(err, b"e")
        await session.write(b"hello")
        assert os.read(reading, 99) == b"hello"
        assert sorted([await anext(session), await anext(session)]) == [(Channel.STDERR, b"e"), (Channel.STDOUT, b"o")]
        session.close_stdin()
        assert os.read(reading, 99) == b""
        following = asyncio.ensure_future(collected(session))
        await run_ready()
        assert following.done() is not once
        with pytest.raises(
            RuntimeRefused, match=r"^cannot wait for an exit code: an attached container is not a command$"
        ):
            await session.wait()
        for file in (out, err, reading):
            os.close(file)
        assert await following == []
        await session.aclose()
        assert harness.requests() == []

    with_harness(act)


@pytest.mark.parametrize("stdin", [False, True])
def test_an_attached_terminal_is_resized_and_gets_no_end_of_file_key(stdin: bool) -> None:
    async def act(harness: Harness) -> None:
        master, terminal = os.openpty()
        answer = {"tty": True, "stdin": stdin, "once": False}
        session, outputs = await attached(harness, answer, (master,), stdin=stdin)
        session.resize(rows=3, columns=4)
        assert fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8))[:4] == struct.pack("HH", 3, 4)
        os.set_blocking(terminal, False)
        session.close_stdin()
        with pytest.raises(BlockingIOError):
            os.read(terminal, 1)
        if not stdin:
            with pytest.raises(RuntimeRefused):
                await session.write(b"x")
        for file in (master, terminal, *outputs):
            os.close(file)
        await session.aclose()

    with_harness(act)


@pytest.mark.parametrize("error", [RuntimeRefused, CallTimedOut])
def test_a_failed_attach_leaves_no_file_open(error: type[Exception]) -> None:
    async def act(harness: Harness) -> None:
        opening = asyncio.ensure_future(open_attached(harness.link, "x", stdin=True, timeout_seconds=9))
        await run_ready()
        harness.requests()
        if error is RuntimeRefused:
            await harness.send_message({"id": 1, "error": "the container is not running"})
        with pytest.raises(error):
            await opening

    with_harness(act)
