"""Exec and attach with a server that does as the test says: streams, ends, and conversations that break."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.probing import CommandEnd, Exited, NotRun
from podkeeper.runtimes.cri.streaming.frames import Data, Frame, GoAway, Reset, SynStream
from podkeeper.runtimes.cri.streaming.remote_command import PROTOCOL, RemoteCommand, end_of
from podkeeper.runtimes.cri.streaming.upgrade import open_connection
from tests.runtimes.cri.streaming.scripted import PATIENCE_SECONDS, Peer, Script, serving

SUCCESS = b'{"metadata":{},"status":"Success"}'


def play(
    script: Script, work: Callable[[RemoteCommand], Awaitable[None]], *, tty: bool = False, stdin: bool = True
) -> None:
    """Have a server do one thing and a client another."""

    async def switched(peer: Peer) -> None:
        await peer.switch()
        await script(peer)

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), serving(switched) as url:
            command = await RemoteCommand.open(await open_connection(url, PROTOCOL), tty=tty, stdin=stdin)
            try:
                await work(command)
            finally:
                await command.close()

    asyncio.run(scenario())


async def heard(command: RemoteCommand) -> tuple[list[tuple[str, bytes]], CommandEnd]:
    return [piece async for piece in command.output()], await command.wait()


STREAMS: dict[str, tuple[bool, bool, set[str]]] = {
    "only output": (False, False, {"error", "stdout", "stderr"}),
    "with input": (False, True, {"error", "stdin", "stdout", "stderr"}),
    "a terminal has no errors of its own, but a size": (True, True, {"error", "stdin", "stdout", "resize"}),
}


@pytest.mark.parametrize("tty, stdin, names", STREAMS.values(), ids=STREAMS.keys())
def test_which_streams_a_conversation_has(tty: bool, stdin: bool, names: set[str]) -> None:
    seen: list[set[str]] = []

    async def script(peer: Peer) -> None:
        numbers = await peer.accept(len(names))
        seen.append(set(numbers))
        await peer.send(*(Data(number, b"", fin=True) for number in numbers.values()))
        await peer.until_gone()

    async def work(command: RemoteCommand) -> None:
        said, end = await heard(command)
        assert said == []
        assert isinstance(end, NotRun)

    play(script, work, tty=tty, stdin=stdin)
    assert seen == [names]


def test_words_go_both_ways_and_the_end_of_the_input_is_told() -> None:
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
        assert await heard(command) == ([("stdout", b"out"), ("stderr", b"err")], Exited(7))
        await command.send(b"too late")
        await command.resize(80, 24)  # there is no terminal
        assert await command.wait() == Exited(7)

    play(script, work)
    stdin = came[0].stream if isinstance(came[0], Data) else 0
    assert came == [Data(stdin, b"hello"), Data(stdin, b"", fin=True)]


def test_sizes_are_told_as_kubectl_tells_them() -> None:
    came: list[Frame] = []

    async def script(peer: Peer) -> None:
        numbers = await peer.accept(3)
        came.append(await peer.frame())
        await peer.send(Data(numbers["error"], SUCCESS, fin=True), Reset(numbers["stdout"], 5))
        await peer.until_gone()

    async def work(command: RemoteCommand) -> None:
        await command.resize(132, 43)
        assert await heard(command) == ([], Exited(0))

    play(script, work, tty=True, stdin=False)
    assert isinstance(came[0], Data)
    assert json.loads(came[0].data) == {"Width": 132, "Height": 43}


def test_a_connection_that_is_cut_after_the_end_was_told_is_no_trouble() -> None:
    async def script(peer: Peer) -> None:
        numbers = await peer.accept(3)
        await peer.send(Data(numbers["stdout"], b"all"), Data(numbers["error"], SUCCESS))
        peer.writer.close()

    async def work(command: RemoteCommand) -> None:
        assert await heard(command) == ([("stdout", b"all")], Exited(0))

    play(script, work, stdin=False)


def test_a_connection_that_is_cut_before_that_is_an_end_that_is_not_known() -> None:
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
        assert "cannot say how the command ended" in str(await command.wait())
        await command.send(bytes(10_000_000))  # nobody is there: it is dropped

    play(script, work)


def test_streams_that_are_refused_are_a_refusal_and_nothing_stays_open() -> None:
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


def test_whoever_hangs_up_resets_what_is_open_and_goes_away() -> None:
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
    "it succeeded": (SUCCESS, Exited(0)),
    "its exit code is told": (failure(details=causes(("ExitCode", "42"))), Exited(42)),
    "among other things": (failure(details=causes(("Other", "x"), ("ExitCode", "1"))), Exited(1)),
    "it could not be run": (failure("InternalError", message="no such file"), NotRun("no such file")),
    "a code with another reason is none": (
        failure("InternalError", message="why", details=causes(("ExitCode", "1"))),
        NotRun("why"),
    ),
    "a code that is no number": (failure(message="why", details=causes(("ExitCode", "-"))), NotRun("why")),
    "no reason at all": (
        failure("", details=None),
        NotRun("cannot say how the command ended: the runtime gave no reason"),
    ),
    "no Status": (b"oops", NotRun("cannot say how the command ended: the runtime said b'oops'")),
    "nothing": (b"", NotRun("cannot say how the command ended: the runtime said b''")),
}


@pytest.mark.parametrize("told, expected", ENDS.values(), ids=ENDS.keys())
def test_what_a_status_says_of_the_end(told: bytes, expected: CommandEnd) -> None:
    assert end_of(told) == expected
