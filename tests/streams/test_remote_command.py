"""Exec and attach with a scripted server: streams, exit status, lost connections."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.probing import CommandEnd, CommandExited, NotRun
from podkeeper.streams.frames import Data, Frame, GoAway, Reset, SynStream
from podkeeper.streams.remote_command import PROTOCOL, RemoteCommand, end_of
from podkeeper.streams.upgrade import open_connection
from tests.streams.scripted import TIMEOUT_SECONDS, Peer, Script, serving

SUCCESS = b'{"metadata":{},"status":"Success"}'


def play(
    script: Script, work: Callable[[RemoteCommand], Awaitable[None]], *, tty: bool = False, stdin: bool = True
) -> None:
    """Run a server script and a client against each other."""

    async def switched(peer: Peer) -> None:
        await peer.switch()
        await script(peer)

    async def scenario() -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS), serving(switched) as url:
            command = await RemoteCommand.open(await open_connection(url, PROTOCOL), tty=tty, stdin=stdin)
            try:
                await work(command)
            finally:
                await command.close()

    asyncio.run(scenario())


async def read_all(command: RemoteCommand) -> tuple[list[tuple[str, bytes]], CommandEnd]:
    return [piece async for piece in command.output()], await command.wait()


STREAMS: dict[str, tuple[bool, bool, set[str]]] = {
    "only output": (False, False, {"error", "stdout", "stderr"}),
    "with input": (False, True, {"error", "stdin", "stdout", "stderr"}),
    "a terminal has no errors of its own, but a size": (True, True, {"error", "stdin", "stdout", "resize"}),
}


@pytest.mark.parametrize("tty, stdin, names", STREAMS.values(), ids=STREAMS.keys())
def test_the_streams_of_a_session(tty: bool, stdin: bool, names: set[str]) -> None:
    seen: list[set[str]] = []

    async def script(peer: Peer) -> None:
        numbers = await peer.accept(len(names))
        seen.append(set(numbers))
        await peer.send(*(Data(number, b"", fin=True) for number in numbers.values()))
        await peer.until_gone()

    async def work(command: RemoteCommand) -> None:
        output, end = await read_all(command)
        assert output == []
        assert isinstance(end, NotRun)

    play(script, work, tty=tty, stdin=stdin)
    assert seen == [names]


def test_input_output_and_the_end_of_stdin_are_transmitted() -> None:
    came: list[Frame] = []

    async def script(peer: Peer) -> None:
        numbers = await peer.accept(4)
        came.extend([await peer.frame(), await peer.frame()])
        await peer.send(Data(numbers["stdout"], b"out"), Data(numbers["stderr"], b"err"))
        await peer.send(*(Data(numbers[name], b"", fin=True) for name in ("stdout", "stderr")))
        status = {
            "status": "Failure",
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
        }
        await peer.send(Data(numbers["error"], json.dumps(status).encode(), fin=True), GoAway(9))

    async def work(command: RemoteCommand) -> None:
        await command.send(b"hello")
        await command.close_input()
        await command.close_input()
        assert await read_all(command) == ([("stdout", b"out"), ("stderr", b"err")], CommandExited(7))
        await command.send(b"too late")
        await command.resize(80, 24)  # there is no terminal
        assert await command.wait() == CommandExited(7)

    play(script, work)
    stdin = came[0].stream if isinstance(came[0], Data) else 0
    assert came == [Data(stdin, b"hello"), Data(stdin, b"", fin=True)]


def test_terminal_sizes_have_the_format_of_kubectl() -> None:
    came: list[Frame] = []

    async def script(peer: Peer) -> None:
        numbers = await peer.accept(3)
        came.append(await peer.frame())
        await peer.send(Data(numbers["error"], SUCCESS, fin=True), Reset(numbers["stdout"], 5))
        await peer.until_gone()

    async def work(command: RemoteCommand) -> None:
        await command.resize(132, 43)
        assert await read_all(command) == ([], CommandExited(0))

    play(script, work, tty=True, stdin=False)
    assert isinstance(came[0], Data)
    assert json.loads(came[0].data) == {"Width": 132, "Height": 43}


def test_a_connection_lost_after_the_exit_status_does_not_matter() -> None:
    async def script(peer: Peer) -> None:
        numbers = await peer.accept(3)
        await peer.send(Data(numbers["stdout"], b"all"), Data(numbers["error"], SUCCESS))
        peer.writer.close()

    async def work(command: RemoteCommand) -> None:
        assert await read_all(command) == ([("stdout", b"all")], CommandExited(0))

    play(script, work, stdin=False)


def test_a_connection_lost_before_the_exit_status_is_reported() -> None:
    async def script(peer: Peer) -> None:
        numbers = await peer.accept(4)
        await peer.send(Data(numbers["stdout"], b"some"))
        await peer.frame()
        peer.writer.transport.abort()

    async def work(command: RemoteCommand) -> None:
        output = command.output()
        assert await anext(output) == ("stdout", b"some")
        await command.send(b"x")
        assert [piece async for piece in output] == []
        assert "cannot read the exit status" in str(await command.wait())
        await command.send(bytes(10_000_000))  # no reader: it is dropped

    play(script, work)


def test_refused_streams_raise_and_close_the_connection() -> None:
    left: list[list[Frame]] = []

    async def script(peer: Peer) -> None:
        await peer.switch()
        first = await peer.frame()
        assert isinstance(first, SynStream)
        await peer.send(Reset(first.stream, 3))
        left.append(await peer.until_gone())

    async def scenario() -> None:
        async with serving(script) as url:
            with pytest.raises(RuntimeRefused, match="refused"):
                await RemoteCommand.open(await open_connection(url, PROTOCOL), tty=False, stdin=False)

    asyncio.run(scenario())
    assert GoAway(0) in left[0]


def test_close_resets_open_streams_and_sends_goaway() -> None:
    left: list[list[Frame]] = []

    async def script(peer: Peer) -> None:
        await peer.accept(4)
        left.append(await peer.until_gone())

    async def work(command: RemoteCommand) -> None:
        waiting = asyncio.create_task(command.wait())
        await asyncio.sleep(0)
        await command.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [piece async for piece in command.output()] == []

    play(script, work)
    assert left == [[*(Reset(number, 5) for number in (1, 3, 5, 7)), GoAway(0)]]


def failure(reason: str = "NonZeroExitCode", **more: object) -> bytes:
    return json.dumps({"metadata": {}, "status": "Failure", "reason": reason, **more}).encode()


def causes(*pairs: tuple[str, str]) -> dict[str, object]:
    return {"causes": [{"reason": reason, "message": message} for reason, message in pairs]}


ENDS: dict[str, tuple[bytes, CommandEnd]] = {
    "it succeeded": (SUCCESS, CommandExited(0)),
    "exit code in the causes": (failure(details=causes(("ExitCode", "42"))), CommandExited(42)),
    "among other things": (failure(details=causes(("Other", "x"), ("ExitCode", "1"))), CommandExited(1)),
    "it could not be run": (failure("InternalError", message="no such file"), NotRun("no such file")),
    "a code with another reason is none": (
        failure("InternalError", message="why", details=causes(("ExitCode", "1"))),
        NotRun("why"),
    ),
    "a code that is no number": (failure(message="why", details=causes(("ExitCode", "-"))), NotRun("why")),
    "no reason at all": (
        failure("", details=None),
        NotRun("cannot read the exit status: the runtime gave no reason"),
    ),
    "no Status": (b"oops", NotRun("cannot read the exit status: the runtime sent b'oops'")),
    "nothing": (b"", NotRun("cannot read the exit status: the runtime sent b''")),
}


@pytest.mark.parametrize("reported, expected", ENDS.values(), ids=ENDS.keys())
def test_exit_status_of_a_status_object(reported: bytes, expected: CommandEnd) -> None:
    assert end_of(reported) == expected
