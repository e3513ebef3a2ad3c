"""The agent's end of the line to a keeper, and the commands and sessions that go over it."""

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
from podkeeper.model.probing import Exited, NotRun, TimedOut
from podkeeper.runtimes.process.commands import run_command
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper.protocol import Inbox, encode, send_with
from podkeeper.runtimes.process.links import LaunchRefused, Link, LinkLost, UnknownToKeeper
from podkeeper.runtimes.process.sessions import Channel, Session, open_attached, open_command
from podkeeper.testing.virtual_time import simulate


class Line:
    """A link, and the keeper's end of it, which the test speaks for."""

    def __init__(self) -> None:
        ours, self.keeper = socket.socketpair()
        self.keeper.setblocking(False)
        self.inbox = Inbox()
        self.events: list[Json] = []
        self.lost = 0
        self.link = Link(ours, "default/web", self.events.append, self._lose)

    def _lose(self) -> None:
        self.lost += 1

    def asked(self) -> list[Json]:
        """The requests that have come; their files are closed."""
        found = []
        for message, files in self.inbox.receive(self.keeper) or ():
            found.append(message)
            for file in files:
                os.close(file)
        return found

    def asked_with_files(self) -> tuple[Json, list[int]]:
        """The one request that has come."""
        messages = self.inbox.receive(self.keeper)
        assert messages is not None
        assert len(messages) == 1
        return messages[0]

    async def say(self, *messages: Json, files: tuple[int, ...] = ()) -> None:
        """Say something as the keeper, and let the link hear it."""
        send_with(self.keeper, b"".join(map(encode, messages)), files)
        await turn()


async def turn() -> None:
    """Let everything happen that is ready."""
    for _ in range(6):
        await asyncio.sleep(0)


def files_open() -> list[str]:
    return os.listdir("/proc/self/fd")


@asynccontextmanager
async def connected() -> AsyncIterator[Line]:
    before = files_open()
    line = Line()
    yield line
    line.link.close()
    line.keeper.close()
    assert files_open() == before


def with_line(act: Callable[[Line], Awaitable[None]]) -> None:
    """Do something with a line, in virtual time. No file may stay open."""

    async def whole() -> None:
        async with connected() as line:
            await act(line)

    simulate(whole())


def nowhere() -> int:
    return os.open(os.devnull, os.O_RDWR)


# ---- links -----------------------------------------------------------------------------------


def test_questions_are_numbered_and_answers_may_come_in_any_order() -> None:
    async def act(line: Line) -> None:
        first = asyncio.ensure_future(line.link.ask("start", {"container": "x"}, 5))
        second = asyncio.ensure_future(line.link.ask("state", {}, 5))
        await turn()
        assert line.asked() == [{"id": 1, "do": "start", "container": "x"}, {"id": 2, "do": "state"}]
        await line.say({"id": 2, "ok": {"a": 1}}, {"event": "leaving"}, {"id": 1})
        assert (await first, await second) == (({}, []), ({"a": 1}, []))
        assert (line.events, line.lost) == ([{"event": "leaving"}], 0)

    with_line(act)


@pytest.mark.parametrize(
    ("kind", "error"),
    [("launch", LaunchRefused), ("unknown", UnknownToKeeper), ("refused", RuntimeRefused), ("new", RuntimeRefused)],
)
def test_a_refusal_has_its_kind(kind: str, error: type[Exception]) -> None:
    async def act(line: Line) -> None:
        _, answer = line.link.begin("start", {})
        await line.say({"id": 1, "error": "why not", "kind": kind})
        with pytest.raises(error, match=r"^why not$") as caught:
            await answer
        assert type(caught.value) is error

    with_line(act)


def test_a_refusal_without_a_kind_is_a_plain_one() -> None:
    async def act(line: Line) -> None:
        _, answer = line.link.begin("start", {})
        await line.say({"id": 1, "error": "why not"})
        with pytest.raises(RuntimeRefused):
            await answer

    with_line(act)


def test_an_answer_that_does_not_come_in_time_is_not_waited_for() -> None:
    async def act(line: Line) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        text = "cannot stop in pod default/web: its keeper gave no answer within 7 s"
        with pytest.raises(CallTimedOut, match=rf"^{text}$"):
            await line.link.ask("stop", {}, 7)
        assert loop.time() - began == 7
        file = nowhere()
        await line.say({"id": 1, "ok": {}, "fds": 1}, files=(file,))  # too late: its file is closed
        os.close(file)
        await line.say({"id": 99, "ok": {}}, {"ok": {}})  # nobody asked
        assert line.lost == 0

    with_line(act)


def test_files_go_along_and_are_closed_here_and_those_that_come_are_the_callers() -> None:
    async def act(line: Line) -> None:
        _, answer = line.link.begin("exec", {"argv": []}, (nowhere(), nowhere()))
        message, files = line.asked_with_files()
        assert (message, len(files)) == ({"id": 1, "do": "exec", "argv": [], "fds": 2}, 2)
        await line.say({"id": 1, "ok": {}, "fds": 2}, files=tuple(files))
        _, come = await answer
        assert len(come) == 2
        for file in (*files, *come):
            os.close(file)

    with_line(act)


def test_a_line_that_breaks_fails_what_is_open_and_says_so_once() -> None:
    async def act(line: Line) -> None:
        waiting = asyncio.ensure_future(line.link.ask("start", {}, 5))
        await turn()
        line.keeper.close()
        text = "cannot reach the keeper of pod default/web: the connection is closed"
        with pytest.raises(LinkLost, match=rf"^{text}$"):
            await waiting
        await turn()
        assert line.lost == 1
        number, answer = line.link.begin("start", {}, (nowhere(),))
        with pytest.raises(LinkLost):
            await answer
        assert number == 2
        line.link.close()
        assert line.lost == 1

    with_line(act)


def test_who_hangs_up_is_not_told_that_the_line_broke() -> None:
    async def act(line: Line) -> None:
        waiting = asyncio.ensure_future(line.link.ask("start", {}, 5))
        await turn()
        line.link.close()
        with pytest.raises(LinkLost):
            await waiting
        await turn()
        assert line.lost == 0
        assert line.inbox.receive(line.keeper) is not None
        assert line.inbox.receive(line.keeper) is None

    with_line(act)


def test_sending_to_a_keeper_that_is_gone_breaks_the_line_soon() -> None:
    async def act(line: Line) -> None:
        line.keeper.close()
        _, answer = line.link.begin("start", {}, (nowhere(),))
        await turn()
        assert line.lost == 1
        with pytest.raises(LinkLost):
            await answer

    with_line(act)


def test_what_a_keeper_does_not_read_yet_is_sent_when_it_does() -> None:
    async def act(line: Line) -> None:
        count = 12
        answers = [line.link.begin("x", {"text": "a" * 50_000})[1] for _ in range(count)]
        line.link.begin("last", {}, (nowhere(),))
        received: list[Json] = []
        for _ in range(200):
            received += line.asked()
            await asyncio.sleep(0)
        assert [message["id"] for message in received] == list(range(1, count + 2))
        assert {message.get("text", "") for message in received} == {"a" * 50_000, ""}
        assert (received[-1]["do"], received[-1]["fds"]) == ("last", 1)
        assert not any(answer.done() for answer in answers)

    with_line(act)


def test_files_are_closed_here_when_their_question_is_sent_in_parts() -> None:
    async def act(line: Line) -> None:
        line.link.begin("x", {"text": "a" * 1_000_000}, (nowhere(),))
        received: list[Json] = []
        while not received:
            received = line.asked()
            await asyncio.sleep(0)
        assert received[0]["fds"] == 1

    with_line(act)


@pytest.mark.parametrize("turns", range(5))
def test_files_of_an_answer_that_comes_as_its_question_is_given_up_are_closed(turns: int) -> None:
    async def act(line: Line) -> None:
        question = asyncio.ensure_future(line.link.ask("attach", {}, 5))
        await turn()
        (request,) = line.asked()
        file = nowhere()
        send_with(line.keeper, encode({"id": request["id"], "ok": {}, "fds": 1}), (file,))
        os.close(file)
        for _ in range(turns):
            await asyncio.sleep(0)
        if not question.done():
            question.cancel()
            with pytest.raises(asyncio.CancelledError):
                await question
        else:
            os.close(question.result()[1][0])
        await turn()

    with_line(act)


def test_files_that_came_and_were_not_asked_for_are_closed_with_the_line() -> None:
    async def act(line: Line) -> None:
        file = nowhere()
        await line.say({"event": "strange"}, files=(file,))
        os.close(file)
        assert line.events == [{"event": "strange"}]

    with_line(act)


def test_files_that_were_not_sent_yet_are_closed_with_the_line() -> None:
    async def act(line: Line) -> None:
        for _ in range(12):
            line.link.begin("x", {"text": "a" * 50_000})
        line.link.begin("last", {}, (nowhere(), nowhere()))

    with_line(act)


# ---- commands --------------------------------------------------------------------------------


def test_a_command_is_run_with_its_output_and_its_end() -> None:
    async def act(line: Line) -> None:
        end = asyncio.ensure_future(run_command(line.link, "x", ["sh", "-c", "true"], 3))
        await turn()
        message, (stdin, stdout, stderr) = line.asked_with_files()
        request = {"container": "x", "argv": ["sh", "-c", "true"], "timeout": 3}
        assert message == {"id": 1, "do": "exec", **request, "fds": 3}
        assert os.read(stdin, 1) == b""
        os.write(stdout, b"out ")
        os.write(stderr, b"err ")
        await turn()
        os.write(stdout, b"end")
        for file in (stdin, stdout, stderr):
            os.close(file)
        await line.say({"id": 1, "ok": {"code": 3, "timed_out": False}})
        assert await end == Exited(3, b"out err end")

    with_line(act)


def test_of_a_long_output_the_first_16_kibibytes_are_kept() -> None:
    async def act(line: Line) -> None:
        end = asyncio.ensure_future(run_command(line.link, "x", ["yes"], 0))
        await turn()
        message, (stdin, stdout, stderr) = line.asked_with_files()
        assert message["timeout"] == 0
        for letter in (b"a", b"b", b"c"):
            os.write(stdout, letter * 10_000)
            await turn()
        await line.say({"id": 1, "ok": {"code": 0, "timed_out": False}})  # its pipes are still open
        assert await end == Exited(0, b"a" * 10_000 + b"b" * 6_384)
        for file in (stdin, stdout, stderr):
            os.close(file)

    with_line(act)


def test_a_command_that_the_keeper_ended_for_its_time_has_timed_out() -> None:
    async def act(line: Line) -> None:
        end = asyncio.ensure_future(run_command(line.link, "x", ["sleep", 'a "b"'], 2.5))
        await turn()
        line.asked()
        await line.say({"id": 1, "ok": {"code": 137, "timed_out": True}})
        assert await end == TimedOut('command timed out: "sleep a \\"b\\"" timed out after 2.5s')

    with_line(act)


@pytest.mark.parametrize(("timeout", "waits"), [(2.0, 7.0), (-1.0, None), (0.0, None)])
def test_a_keeper_that_does_not_tell_the_end_is_waited_for_a_little_longer(timeout: float, waits: float | None) -> None:
    async def act(line: Line) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        end = asyncio.ensure_future(run_command(line.link, "x", ["sleep", "9"], timeout))
        await turn()
        assert line.asked()[0]["timeout"] == max(0, timeout)
        if waits is None:
            await asyncio.sleep(10_000)
            assert not end.done()
            end.cancel()
            with pytest.raises(asyncio.CancelledError):
                await end
        else:
            assert await end == TimedOut('command timed out: "sleep 9" timed out after 2s')
            assert loop.time() - began == waits
        assert line.asked() == [{"id": 2, "do": "kill_exec", "request": 1}]

    with_line(act)


def test_a_command_that_cannot_be_run_says_why() -> None:
    async def act(line: Line) -> None:
        end = asyncio.ensure_future(run_command(line.link, "x", ["nothing"], 3))
        await turn()
        line.asked()
        await line.say({"id": 1, "error": "no such program", "kind": "launch"})
        assert await end == NotRun("no such program")
        line.keeper.close()
        await turn()
        found = await run_command(line.link, "x", ["nothing"], 3)
        assert found == NotRun("cannot reach the keeper of pod default/web: the connection is closed")

    with_line(act)


# ---- sessions --------------------------------------------------------------------------------


async def collected(session: Session) -> list[tuple[Channel, bytes]]:
    return [item async for item in session]


def test_a_command_can_be_spoken_with() -> None:
    async def act(line: Line) -> None:
        session = await open_command(line.link, "x", ["cat"], tty=False, stdin=True)
        message, (stdin, stdout, stderr) = line.asked_with_files()
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
        await line.say({"id": 1, "ok": {"code": 3, "timed_out": False}})
        assert await collected(session) == [(Channel.STDOUT, b"last")]
        assert await session.wait() == 3
        await session.aclose()
        assert line.asked() == []

    with_line(act)


def test_a_command_without_stdin_reads_an_end() -> None:
    async def act(line: Line) -> None:
        async with await open_command(line.link, "x", ["cat"], tty=False, stdin=False) as session:
            _, files = line.asked_with_files()
            assert os.read(files[0], 1) == b""
            with pytest.raises(RuntimeRefused):
                await session.write(b"x")
            for file in files:
                os.close(file)

    with_line(act)


def test_when_a_command_has_ended_those_who_hold_its_files_are_not_waited_for() -> None:
    async def act(line: Line) -> None:
        session = await open_command(line.link, "x", ["sh"], tty=False, stdin=False)
        _, files = line.asked_with_files()
        os.write(files[2], b"err")
        await line.say({"id": 1, "ok": {"code": 0, "timed_out": False}})
        assert await collected(session) == [(Channel.STDERR, b"err")]
        for file in files:
            os.close(file)
        await session.aclose()

    with_line(act)


def test_when_a_command_has_ended_all_that_it_wrote_is_fetched() -> None:
    async def act(line: Line) -> None:
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)  # one read is one packet: short, as at a terminal
        with theirs:
            session = Session({Channel.STDOUT: ours.detach()})
            end = asyncio.get_running_loop().create_future()
            session.follow(line.link, 1, end)
            for number in range(20):
                theirs.send(b"%d" % number)
            end.set_result(({"code": 0}, []))
            assert [data async for _, data in session] == [b"%d" % number for number in range(20)]
            await session.aclose()

    with_line(act)


def test_a_command_that_could_not_be_started_says_so_when_waited_for() -> None:
    async def act(line: Line) -> None:
        session = await open_command(line.link, "x", ["nothing"], tty=False, stdin=False)
        line.asked()
        await line.say({"id": 1, "error": "no such program", "kind": "launch"})
        assert await collected(session) == []
        with pytest.raises(LaunchRefused, match=r"^no such program$"):
            await session.wait()
        await session.aclose()

    with_line(act)


def test_a_session_that_is_closed_hangs_up_on_its_command() -> None:
    async def act(line: Line) -> None:
        async with await open_command(line.link, "x", ["sleep"], tty=False, stdin=True):
            line.asked()
        assert line.asked() == [{"id": 2, "do": "hang_up", "request": 1}]

    with_line(act)


def test_writing_to_a_command_that_reads_no_more_is_refused() -> None:
    async def act(line: Line) -> None:
        async with await open_command(line.link, "x", ["true"], tty=False, stdin=True) as session:
            line.asked()
            with pytest.raises(RuntimeRefused, match=r"^cannot write to stdin: Broken pipe$"):
                await session.write(b"x")
            with pytest.raises(RuntimeRefused, match=r"^cannot write to stdin: it is closed$"):
                await session.write(b"x")

    with_line(act)


def test_writing_waits_until_the_command_reads() -> None:
    async def act(line: Line) -> None:
        async with await open_command(line.link, "x", ["cat"], tty=False, stdin=True) as session:
            _, (stdin, stdout, stderr) = line.asked_with_files()
            writing = asyncio.ensure_future(session.write(b"x" * 200_000))
            await turn()
            assert not writing.done()
            count = 0
            while count < 200_000:
                count += len(os.read(stdin, 1 << 20))
                await turn()
            await writing
            writing = asyncio.ensure_future(session.write(b"x" * 200_000))
            await turn()
            writing.cancel()
            await turn()
            # A callback that stayed would be called again and again as soon as the command reads.
            assert not asyncio.get_running_loop().remove_writer(session._stdin)
            for file in (stdin, stdout, stderr):
                os.close(file)

    with_line(act)


def test_who_does_not_fetch_holds_up_the_writer_after_sixteen_chunks() -> None:
    async def act(line: Line) -> None:
        async with await open_command(line.link, "x", ["yes"], tty=False, stdin=False) as session:
            _, (stdin, stdout, stderr) = line.asked_with_files()
            os.set_blocking(stdout, False)
            for number in range(20):
                os.write(stdout, b"%02d" % number)
                await turn()
            found = [await anext(session) for _ in range(17)]
            # The seventeenth came only when there was room again: all that had come meanwhile, at once.
            assert found == [(Channel.STDOUT, b"%02d" % number) for number in range(16)] + [
                (Channel.STDOUT, b"16171819")
            ]
            for file in (stdin, stdout, stderr):
                os.close(file)

    with_line(act)


async def at_terminal(line: Line, *, stdin: bool) -> tuple[Session, int, int]:
    """Open a command at a terminal, as its keeper would have it: the session, the terminal, its master here."""
    opening = asyncio.ensure_future(open_command(line.link, "x", ["sh"], tty=True, stdin=stdin))
    await turn()
    message, (console,) = line.asked_with_files()
    assert message == {"id": 1, "do": "exec", "container": "x", "argv": ["sh"], "tty": True, "fds": 1}
    assert not opening.done()
    master, terminal = os.openpty()
    with socket.socket(fileno=console) as theirs:
        send_with(theirs, b"!", (master,))
    return await opening, terminal, master


def test_a_command_at_a_terminal_hears_of_its_size_and_of_the_end_of_input() -> None:
    async def act(line: Line) -> None:
        session, terminal, master = await at_terminal(line, stdin=True)
        session.resize(rows=40, columns=120)
        size = struct.unpack("HHHH", fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8)))
        assert size == (40, 120, 0, 0)
        session.resize(rows=-1, columns=120)  # nonsense changes nothing
        settings = termios.tcgetattr(terminal)
        settings[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(terminal, termios.TCSANOW, settings)
        await session.write(b"ls\n")
        session.close_stdin()
        typed = b""
        while len(typed) < 4:  # a terminal may hand on what was written in pieces
            typed += os.read(terminal, 99)
        assert typed == b"ls\n\x04"
        os.write(terminal, b"spoken")
        assert await anext(session) == (Channel.STDOUT, b"spoken")
        os.close(terminal)
        os.close(master)
        assert await collected(session) == []  # a terminal that nobody has open any more ends the output
        await session.aclose()
        await turn()
        assert [message["do"] for message in line.asked()] == ["hang_up"]
        session.resize(rows=1, columns=1)

    with_line(act)


def test_a_terminal_that_is_only_watched_takes_no_input() -> None:
    async def act(line: Line) -> None:
        session, terminal, master = await at_terminal(line, stdin=False)
        with pytest.raises(RuntimeRefused):
            await session.write(b"x")
        session.resize(rows=10, columns=20)
        assert fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8))[:4] == struct.pack("HH", 10, 20)
        os.close(terminal)
        os.close(master)
        await session.aclose()

    with_line(act)


def test_a_command_that_gets_no_terminal_has_no_output() -> None:
    async def act(line: Line) -> None:
        opening = asyncio.ensure_future(open_command(line.link, "x", ["sh"], tty=True, stdin=True))
        await turn()
        line.asked()  # closes the console: no terminal will come
        session = await opening
        await line.say({"id": 1, "error": "no such program", "kind": "launch"})
        assert await collected(session) == []
        session.resize(rows=1, columns=1)
        with pytest.raises(LaunchRefused):
            await session.wait()
        await session.aclose()

    with_line(act)


def test_who_stops_waiting_for_a_terminal_hangs_up() -> None:
    async def act(line: Line) -> None:
        opening = asyncio.ensure_future(open_command(line.link, "x", ["sh"], tty=True, stdin=True))
        await turn()
        _, (console,) = line.asked_with_files()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert line.asked() == [{"id": 2, "do": "hang_up", "request": 1}]
        os.close(console)

    with_line(act)


async def attached(line: Line, answer: Json, files: tuple[int, ...] = (), **wish: Any) -> tuple[Session, list[int]]:
    """Attach to a container whose keeper gives this answer. Returns the ends that its output goes to."""
    opening = asyncio.ensure_future(open_attached(line.link, "x", timeout_seconds=9, **wish))
    await turn()
    message, outputs = line.asked_with_files()
    assert message == {"id": 1, "do": "attach", "container": "x", **wish, "fds": 2}
    more = {"fds": len(files)} if files else {}
    await line.say({"id": 1, "ok": answer, **more}, files=files)
    return await opening, outputs


@pytest.mark.parametrize("once", [False, True])
def test_an_attachment_ends_with_its_input_unless_that_is_the_containers_own(once: bool) -> None:
    async def act(line: Line) -> None:
        reading, writing = os.pipe()
        answer = {"tty": False, "stdin": True, "once": once}
        session, (out, err) = await attached(line, answer, (writing,), stdin=True)
        os.close(writing)
        os.write(out, b"o")
        os.write(err, b"e")
        await session.write(b"hello")
        assert os.read(reading, 99) == b"hello"
        assert sorted([await anext(session), await anext(session)]) == [(Channel.STDERR, b"e"), (Channel.STDOUT, b"o")]
        session.close_stdin()
        assert os.read(reading, 99) == b""
        following = asyncio.ensure_future(collected(session))
        await turn()
        assert following.done() is not once
        with pytest.raises(RuntimeRefused, match=r"^cannot tell how it ends: this is no command$"):
            await session.wait()
        for file in (out, err, reading):
            os.close(file)
        assert await following == []
        await session.aclose()
        assert line.asked() == []

    with_line(act)


@pytest.mark.parametrize("stdin", [False, True])
def test_a_terminal_that_is_attached_to_is_resized_and_gets_no_key_for_the_end(stdin: bool) -> None:
    async def act(line: Line) -> None:
        master, terminal = os.openpty()
        answer = {"tty": True, "stdin": stdin, "once": False}
        session, outputs = await attached(line, answer, (master,), stdin=stdin)
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

    with_line(act)


@pytest.mark.parametrize("error", [RuntimeRefused, CallTimedOut])
def test_an_attachment_that_fails_leaves_no_file_open(error: type[Exception]) -> None:
    async def act(line: Line) -> None:
        opening = asyncio.ensure_future(open_attached(line.link, "x", stdin=True, timeout_seconds=9))
        await turn()
        line.asked()
        if error is RuntimeRefused:
            await line.say({"id": 1, "error": "it does not run"})
        with pytest.raises(error):
            await opening

    with_line(act)
