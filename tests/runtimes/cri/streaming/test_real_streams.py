"""Exec, attach and port-forward with real container runtimes."""

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from podkeeper.app.local.cri_streams import CriStreams
from podkeeper.app.local.logs import LogFile
from podkeeper.app.local.streams import Conversation
from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandEnd, Exited, NotRun
from podkeeper.runtimes.cri.streaming.calls import StreamCalls
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.runtimes.cri.cri_node import BUSYBOX_IMAGE, CriNode
from tests.runtimes.cri.scenes import Scene

PATIENCE_SECONDS = 30.0
MEGABYTE = 1_000_000
IDLE = ("sleep", "1000")
ECHO_PORT, FILE_PORT, CLOSED_PORT = 8001, 8000, 9


class Stage:
    """One container that runs, and ways to talk with it."""

    def __init__(self, streams: CriStreams, calls: StreamCalls, sandbox_id: str, container_id: str) -> None:
        self.streams = streams
        self.calls = calls
        self.sandbox_id = sandbox_id
        self.container_id = container_id

    async def exec(self, *command: str, tty: bool = False, stdin: bool = False) -> Conversation:
        return await self.streams.exec(self.container_id, command, tty=tty, stdin=stdin)

    async def attach(self, *, tty: bool = False, stdin: bool = False) -> Conversation:
        log = LogFile(path=Path("unused"), uid=PodUID("unused"), container_id=self.container_id)
        return await self.streams.attach(log, tty=tty, stdin=stdin)

    async def run(self, *command: str, given: bytes | None = None) -> tuple[dict[str, bytes], CommandEnd]:
        """Run a command to its end; what it said, and how it ended."""
        conversation = await self.exec(*command, stdin=given is not None)
        try:
            async with asyncio.TaskGroup() as group:
                if given is not None:
                    group.create_task(_speak(conversation, given))
                said = await _said(conversation)
            return said, await conversation.wait()
        finally:
            await conversation.close()


async def _speak(conversation: Conversation, given: bytes) -> None:
    for start in range(0, len(given), 65536):
        await conversation.send(given[start : start + 65536])
    await conversation.close_input()


async def _said(conversation: Conversation) -> dict[str, bytes]:
    parts: dict[str, list[bytes]] = {}
    async for stream, data in conversation.output():
        parts.setdefault(stream, []).append(data)
    return {stream: b"".join(each) for stream, each in parts.items()}


async def _until(conversation: Conversation, word: bytes) -> bytes:
    """What is said until a word has been."""
    said = b""
    async for _, data in conversation.output():
        said += data
        if word in said:
            break
    return said


def play(
    node: CriNode, work: Callable[[Stage], Awaitable[None]], *command: str, tty: bool = False, stdin: bool = False
) -> None:
    """Start a container, and have something done with it."""

    @asynccontextmanager
    async def stage() -> AsyncIterator[Stage]:
        transport = GrpcTransport(node.socket)
        try:
            async with node.opened() as runtime:
                scene = Scene(runtime, BUSYBOX_IMAGE)
                container_id = await scene.start(*(command or IDLE), tty=tty, stdin=stdin)
                sandbox_id = (await scene.record()).sandboxes[0].id
                yield Stage(CriStreams(transport), StreamCalls(transport), sandbox_id, container_id)
        finally:
            await transport.close()

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), stage() as made:
            await work(made)

    node.run(scenario())


# ---- exec ----


def test_output_errors_and_exit_codes_come_apart(cri_node: CriNode) -> None:
    async def work(stage: Stage) -> None:
        said = {"stdout": b"out\n", "stderr": b"err\n"}
        assert await stage.run("sh", "-c", "echo out; echo err >&2; exit 7") == (said, Exited(7))
        assert await stage.run("true") == ({}, Exited(0))
        assert await stage.run("sh", "-c", "kill -9 $$") == ({}, Exited(137))
        said, end = await stage.run("no-such-command")
        if cri_node.name == "cri-o":  # crun says so where the command would, and ends as one that failed
            assert end == Exited(255)
            assert b"executable file" in b"".join(said.values())
        else:
            assert isinstance(end, NotRun)
            assert "executable file not found" in end.message

    play(cri_node, work)


def test_the_end_of_the_input_is_heard_and_an_input_that_is_not_read_is_no_trouble(cri_node: CriNode) -> None:
    async def work(stage: Stage) -> None:
        assert await stage.run("cat", given=b"hello") == ({"stdout": b"hello"}, Exited(0))
        assert await stage.run("wc", "-c", given=b"") == ({"stdout": b"0\n"}, Exited(0))
        script = "head -c 5 >/dev/null; echo enough; exit 3"
        said, end = await stage.run("sh", "-c", script, given=bytes(90_000))
        # CRI-O tells what became of the input, and not of the command.
        assert end == Exited(3) or (cri_node.name == "cri-o" and "broken pipe" in getattr(end, "message", ""))
        assert said == {"stdout": b"enough\n"}

    play(cri_node, work)


def test_a_terminal_echoes_knows_its_size_and_hears_of_another(cri_node: CriNode) -> None:
    async def work(stage: Stage) -> None:
        shell = await stage.exec("sh", tty=True, stdin=True)
        await _until(shell, b"# ")
        await shell.resize(132, 43)
        await shell.send(b"until [ \"$(stty size)\" = '43 132' ]; do :; done; stty size; tty; exit 4\n")
        said = await _said(shell)
        assert said.keys() == {"stdout"}
        assert b"\r\n43 132\r\n/dev/pts/0\r\n" in said["stdout"]
        assert await shell.wait() == Exited(4)
        await shell.close()

    play(cri_node, work)


@pytest.mark.slow
def test_20_mb_go_both_ways_unharmed_and_memory_stays_small(cri_node: CriNode) -> None:
    sent = os.urandom(20 * MEGABYTE)

    async def work(stage: Stage) -> None:
        assert await stage.run("cat", given=sent) == ({"stdout": sent}, Exited(0))
        conversation = await stage.exec("sh", "-c", "dd if=/dev/zero bs=100k count=2000 2>/dev/null")
        before, count = _peak_bytes(), 0
        async for _, data in conversation.output():
            count += len(data)
            if count < 3 * MEGABYTE:
                await asyncio.sleep(0.01)  # the command is faster at first
        assert (count, await conversation.wait()) == (204_800_000, Exited(0))
        assert _peak_bytes() - before < 20 * MEGABYTE
        await conversation.close()

    play(cri_node, work)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_whoever_hangs_up_takes_the_input_away_and_holds_nothing_open(cri_node: CriNode) -> None:
    async def work(stage: Stage) -> None:
        conversation = await stage.exec("sh", "-c", "cat; echo ended >/tmp/told", stdin=True)
        await conversation.send(b"word")
        await _until(conversation, b"word")
        before = len(os.listdir("/proc/self/fd"))
        await conversation.close()
        assert len(os.listdir("/proc/self/fd")) == before - 1
        script = "until [ -e /tmp/told ]; do sleep 0.05; done; cat /tmp/told"
        assert await stage.run("sh", "-c", script) == ({"stdout": b"ended\n"}, Exited(0))

    play(cri_node, work)


def test_a_container_that_is_not_there_is_refused_in_words(cri_node: CriNode) -> None:
    async def work(stage: Stage) -> None:
        if cri_node.name == "cri-o":  # it looks for the container once somebody connects
            for asked in (
                stage.streams.exec("cafe", ("true",), tty=False, stdin=False),
                stage.streams.forward("cafe", 80),
            ):
                conversation = await asked
                assert isinstance(await conversation.wait(), NotRun)
                await conversation.close()
            return
        with pytest.raises(RuntimeRefused, match="not found"):
            await stage.streams.exec("cafe", ("true",), tty=False, stdin=False)
        with pytest.raises(RuntimeRefused, match="not found"):
            await stage.streams.forward("cafe", 80)

    play(cri_node, work)


# ---- attach ----

ECHOES = "while read word; do echo got $word; echo err $word >&2; done; echo bye; exit 3"


def test_a_shell_that_runs_can_be_talked_with_and_left_and_joined_again(cri_node: CriNode) -> None:
    async def work(stage: Stage) -> None:
        first = await stage.attach(stdin=True)
        await first.send(b"one\n")
        assert await _until(first, b"got one\n")
        await first.close()
        second = await stage.attach(stdin=True)
        await second.send(b"two\n")
        said: dict[str, bytes] = {}
        async for stream, data in second.output():
            said[stream] = said.get(stream, b"") + data
            if b"two\n" in said.get("stdout", b"") and b"two\n" in said.get("stderr", b""):
                break
        assert (said["stdout"][-8:], said["stderr"][-8:]) == (b"got two\n", b"err two\n")
        await second.close()

    play(cri_node, work, "sh", "-c", ECHOES, stdin=True)


def test_who_only_listens_hears_what_is_said_until_the_container_ends(cri_node: CriNode) -> None:
    script = "until [ -e /tmp/go ]; do sleep 0.02; done; echo out; echo err >&2; exit 3"

    async def work(stage: Stage) -> None:
        listener = await stage.attach()
        await asyncio.sleep(0.2)  # what is said before it listens is not heard
        assert await stage.run("touch", "/tmp/go") == ({}, Exited(0))
        assert await _said(listener) == {"stdout": b"out\n", "stderr": b"err\n"}
        assert await listener.wait() == Exited(0)  # how the container ended is in its status
        await listener.close()

    play(cri_node, work, "sh", "-c", script)


def test_a_terminal_can_be_joined(cri_node: CriNode) -> None:
    async def work(stage: Stage) -> None:
        shell = await stage.attach(tty=True, stdin=True)
        await shell.resize(100, 30)
        await shell.send(b"until [ \"$(stty size)\" = '30 100' ]; do :; done; echo size is $(stty size)\n")
        assert b"size is 30 100\r\n" in await _until(shell, b"is 30 100\r\n")
        await shell.close()

    play(cri_node, work, "sh", tty=True, stdin=True)


# ---- port-forward ----

SERVERS = (
    *("sh", "-c"),
    f"head -c 3000000 /dev/urandom >/tmp/file; nc -ll -p {ECHO_PORT} -e cat & "
    f"nc -ll -p {FILE_PORT} -e cat /tmp/file & sleep 1000",
)


async def _listening(stage: Stage) -> None:
    """Wait until both servers are there."""
    script = "".join(
        f"until cat /proc/net/tcp /proc/net/tcp6 | grep -q ':{port:04X} .* 0A '; do sleep 0.02; done; "
        for port in (ECHO_PORT, FILE_PORT)
    )
    assert await stage.run("sh", "-c", script) == ({}, Exited(0))


async def _echo(forwarded: Conversation, size: int) -> bool:
    """Whether so many bytes come back as they went."""
    sent = os.urandom(size)
    got = b""
    speaking = asyncio.create_task(forwarded.send(sent))
    async for _, data in forwarded.output():
        got += data
        if len(got) >= size:
            break
    await speaking
    return got == sent


def test_3_mb_come_through_a_forwarded_port_unharmed(cri_node: CriNode) -> None:
    async def work(stage: Stage) -> None:
        await _listening(stage)
        forwarded = await stage.streams.forward(stage.sandbox_id, FILE_PORT)
        said = await _said(forwarded)
        assert await forwarded.wait() == Exited(0)
        await forwarded.close()
        assert (await stage.run("cat", "/tmp/file"))[0] == said
        assert len(said["stdout"]) == 3 * MEGABYTE

    play(cri_node, work, *SERVERS)


def test_many_connections_go_over_one_way_or_each_over_its_own(cri_node: CriNode) -> None:
    async def work(stage: Stage) -> None:
        await _listening(stage)
        few = asyncio.Semaphore(4)  # nc lets no more wait
        way = await stage.calls.port_forward(stage.sandbox_id)

        async def shared(size: int) -> bool:
            async with few:
                forwarded = await way.open(ECHO_PORT)
                try:
                    return await _echo(forwarded, size)
                finally:
                    await forwarded.close()

        async def own(size: int) -> bool:
            async with few:
                forwarded = await stage.streams.forward(stage.sandbox_id, ECHO_PORT)
                try:
                    return await _echo(forwarded, size)
                finally:
                    await forwarded.close()

        assert all(await asyncio.gather(*(shared(size) for size in range(1, 100_000, 5_000))))
        await way.close()
        assert all(await asyncio.gather(*(own(size) for size in range(1, 100_000, 5_000))))

    play(cri_node, work, *SERVERS)


def test_a_port_on_which_nobody_listens_is_told_and_spoils_nothing(cri_node: CriNode) -> None:
    async def work(stage: Stage) -> None:
        await _listening(stage)
        way = await stage.calls.port_forward(stage.sandbox_id)
        for _ in range(3):
            refused = await way.open(CLOSED_PORT)
            assert await _said(refused) == {}
            end = await refused.wait()
            assert isinstance(end, NotRun)
            assert "connection refused" in end.message
            await refused.close()
        assert await _echo(await way.open(ECHO_PORT), 1000)
        await way.close()

    play(cri_node, work, *SERVERS)


def test_one_that_nobody_reads_does_not_hold_up_another(cri_node: CriNode) -> None:
    async def work(stage: Stage) -> None:
        await _listening(stage)
        unread = await stage.streams.forward(stage.sandbox_id, FILE_PORT)
        await asyncio.sleep(0.1)
        other = await stage.streams.forward(stage.sandbox_id, ECHO_PORT)
        assert await _echo(other, 100_000)
        await other.close()
        await unread.close()

    play(cri_node, work, *SERVERS)
