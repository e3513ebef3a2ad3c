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
from podkeeper.app.local.streams import StreamSession
from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandEnd, CommandExited, NotRun
from podkeeper.runtimes.cri.stream_calls import StreamCalls
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.runtimes.cri.cri_node import BUSYBOX_IMAGE, CriNode
from tests.runtimes.cri.cri_pod import CriPod

TIMEOUT_SECONDS = 30.0
MEGABYTE = 1_000_000
IDLE = ("sleep", "1000")
ECHO_PORT, FILE_PORT, CLOSED_PORT = 8001, 8000, 9


class Harness:
    """A running container and calls to its streams."""

    def __init__(self, streams: CriStreams, calls: StreamCalls, sandbox_id: str, container_id: str) -> None:
        self.streams = streams
        self.calls = calls
        self.sandbox_id = sandbox_id
        self.container_id = container_id

    async def exec(self, *command: str, tty: bool = False, stdin: bool = False) -> StreamSession:
        return await self.streams.exec(self.container_id, command, tty=tty, stdin=stdin)

    async def attach(self, *, tty: bool = False, stdin: bool = False) -> StreamSession:
        log = LogFile(path=Path("unused"), uid=PodUID("unused"), container_id=self.container_id)
        return await self.streams.attach(log, tty=tty, stdin=stdin)

    async def run(self, *command: str, given: bytes | None = None) -> tuple[dict[str, bytes], CommandEnd]:
        """Run a command and return its output and its exit."""
        session = await self.exec(*command, stdin=given is not None)
        try:
            async with asyncio.TaskGroup() as group:
                if given is not None:
                    group.create_task(_speak(session, given))
                output = await _read_all(session)
            return output, await session.wait()
        finally:
            await session.close()


async def _speak(session: StreamSession, given: bytes) -> None:
    for start in range(0, len(given), 65536):
        await session.send(given[start : start + 65536])
    await session.close_input()


async def _read_all(session: StreamSession) -> dict[str, bytes]:
    parts: dict[str, list[bytes]] = {}
    async for stream, data in session.output():
        parts.setdefault(stream, []).append(data)
    return {stream: b"".join(each) for stream, each in parts.items()}


async def _until(session: StreamSession, word: bytes) -> bytes:
    """Read the output up to a word."""
    output = b""
    async for _, data in session.output():
        output += data
        if word in output:
            break
    return output


def play(
    node: CriNode, work: Callable[[Harness], Awaitable[None]], *command: str, tty: bool = False, stdin: bool = False
) -> None:
    """Run a scenario with a running container."""

    @asynccontextmanager
    async def harness() -> AsyncIterator[Harness]:
        transport = GrpcTransport(node.socket)
        try:
            async with node.opened() as runtime:
                cri_pod = CriPod(runtime, BUSYBOX_IMAGE)
                container_id = await cri_pod.start(*(command or IDLE), tty=tty, stdin=stdin)
                sandbox_id = (await cri_pod.record()).sandboxes[0].id
                yield Harness(CriStreams(transport), StreamCalls(transport), sandbox_id, container_id)
        finally:
            await transport.close()

    async def scenario() -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS), harness() as made:
            await work(made)

    node.run(scenario())


# ---- exec ----


def test_stdout_stderr_and_exit_codes_are_separate(cri_node: CriNode) -> None:
    async def work(harness: Harness) -> None:
        output = {"stdout": b"out\n", "stderr": b"err\n"}
        assert await harness.run("sh", "-c", "echo out; echo err >&2; exit 7") == (output, CommandExited(7))
        assert await harness.run("true") == ({}, CommandExited(0))
        assert await harness.run("sh", "-c", "kill -9 $$") == ({}, CommandExited(137))
        output, end = await harness.run("no-such-command")
        if cri_node.name == "cri-o":  # crun writes the error to the output and exits with a failure
            assert end == CommandExited(255)
            assert b"executable file" in b"".join(output.values())
        else:
            assert isinstance(end, NotRun)
            assert "executable file not found" in end.message

    play(cri_node, work)


def test_the_end_of_stdin_arrives_and_unread_stdin_does_not_matter(cri_node: CriNode) -> None:
    async def work(harness: Harness) -> None:
        assert await harness.run("cat", given=b"hello") == ({"stdout": b"hello"}, CommandExited(0))
        assert await harness.run("wc", "-c", given=b"") == ({"stdout": b"0\n"}, CommandExited(0))
        script = "head -c 5 >/dev/null; echo enough; exit 3"
        output, end = await harness.run("sh", "-c", script, given=bytes(90_000))
        # CRI-O reports the result of the input, not of the command.
        assert end == CommandExited(3) or (cri_node.name == "cri-o" and "broken pipe" in getattr(end, "message", ""))
        assert output == {"stdout": b"enough\n"}

    play(cri_node, work)


def test_a_terminal_echoes_and_can_be_resized(cri_node: CriNode) -> None:
    async def work(harness: Harness) -> None:
        shell = await harness.exec("sh", tty=True, stdin=True)
        await _until(shell, b"# ")
        await shell.resize(132, 43)
        await shell.send(b"until [ \"$(stty size)\" = '43 132' ]; do :; done; stty size; tty; exit 4\n")
        output = await _read_all(shell)
        assert output.keys() == {"stdout"}
        assert b"\r\n43 132\r\n/dev/pts/0\r\n" in output["stdout"]
        assert await shell.wait() == CommandExited(4)
        await shell.close()

    play(cri_node, work)


@pytest.mark.slow
def test_20_mb_in_both_directions_with_little_memory(cri_node: CriNode) -> None:
    sent = os.urandom(20 * MEGABYTE)

    async def work(harness: Harness) -> None:
        assert await harness.run("cat", given=sent) == ({"stdout": sent}, CommandExited(0))
        session = await harness.exec("sh", "-c", "dd if=/dev/zero bs=100k count=2000 2>/dev/null")
        before, count = _peak_bytes(), 0
        async for _, data in session.output():
            count += len(data)
            if count < 3 * MEGABYTE:
                await asyncio.sleep(0.01)  # the command is faster at first
        assert (count, await session.wait()) == (204_800_000, CommandExited(0))
        assert _peak_bytes() - before < 20 * MEGABYTE
        await session.close()

    play(cri_node, work)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_closing_a_session_ends_stdin_and_leaks_nothing(cri_node: CriNode) -> None:
    async def work(harness: Harness) -> None:
        session = await harness.exec("sh", "-c", "cat; echo ended >/tmp/ended", stdin=True)
        await session.send(b"word")
        await _until(session, b"word")
        before = len(os.listdir("/proc/self/fd"))
        await session.close()
        assert len(os.listdir("/proc/self/fd")) == before - 1
        script = "until [ -e /tmp/ended ]; do sleep 0.05; done; cat /tmp/ended"
        assert await harness.run("sh", "-c", script) == ({"stdout": b"ended\n"}, CommandExited(0))

    play(cri_node, work)


def test_exec_in_an_absent_container_is_refused_with_a_message(cri_node: CriNode) -> None:
    async def work(harness: Harness) -> None:
        if cri_node.name == "cri-o":  # it finds the container on connection
            for request in (
                harness.streams.exec("cafe", ("true",), tty=False, stdin=False),
                harness.streams.forward("cafe", 80),
            ):
                session = await request
                assert isinstance(await session.wait(), NotRun)
                await session.close()
            return
        with pytest.raises(RuntimeRefused, match="not found"):
            await harness.streams.exec("cafe", ("true",), tty=False, stdin=False)
        with pytest.raises(RuntimeRefused, match="not found"):
            await harness.streams.forward("cafe", 80)

    play(cri_node, work)


# ---- attach ----

ECHOES = "while read word; do echo got $word; echo err $word >&2; done; echo bye; exit 3"


def test_attach_to_a_shell_detach_and_attach_again(cri_node: CriNode) -> None:
    async def work(harness: Harness) -> None:
        first = await harness.attach(stdin=True)
        await first.send(b"one\n")
        assert await _until(first, b"got one\n")
        await first.close()
        second = await harness.attach(stdin=True)
        await second.send(b"two\n")
        output: dict[str, bytes] = {}
        async for stream, data in second.output():
            output[stream] = output.get(stream, b"") + data
            if b"two\n" in output.get("stdout", b"") and b"two\n" in output.get("stderr", b""):
                break
        assert (output["stdout"][-8:], output["stderr"][-8:]) == (b"got two\n", b"err two\n")
        await second.close()

    play(cri_node, work, "sh", "-c", ECHOES, stdin=True)


def test_attach_without_stdin_reads_output_until_the_container_exits(cri_node: CriNode) -> None:
    script = "until [ -e /tmp/go ]; do sleep 0.02; done; echo out; echo err >&2; exit 3"

    async def work(harness: Harness) -> None:
        listener = await harness.attach()
        await asyncio.sleep(0.2)  # output before the subscription is lost
        assert await harness.run("touch", "/tmp/go") == ({}, CommandExited(0))
        assert await _read_all(listener) == {"stdout": b"out\n", "stderr": b"err\n"}
        assert await listener.wait() == CommandExited(0)  # how the container ended is in its status
        await listener.close()

    play(cri_node, work, "sh", "-c", script)


def test_attach_to_a_terminal(cri_node: CriNode) -> None:
    async def work(harness: Harness) -> None:
        shell = await harness.attach(tty=True, stdin=True)
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


async def _listening(harness: Harness) -> None:
    """Wait until both servers listen."""
    script = "".join(
        f"until cat /proc/net/tcp /proc/net/tcp6 | grep -q ':{port:04X} .* 0A '; do sleep 0.02; done; "
        for port in (ECHO_PORT, FILE_PORT)
    )
    assert await harness.run("sh", "-c", script) == ({}, CommandExited(0))


async def _echo(forwarded: StreamSession, size: int) -> bool:
    """Send `size` random bytes. Return whether the same bytes come back."""
    sent = os.urandom(size)
    got = b""
    sending = asyncio.create_task(forwarded.send(sent))
    async for _, data in forwarded.output():
        got += data
        if len(got) >= size:
            break
    await sending
    return got == sent


def test_3_mb_through_a_forwarded_port(cri_node: CriNode) -> None:
    async def work(harness: Harness) -> None:
        await _listening(harness)
        forwarded = await harness.streams.forward(harness.sandbox_id, FILE_PORT)
        output = await _read_all(forwarded)
        assert await forwarded.wait() == CommandExited(0)
        await forwarded.close()
        assert (await harness.run("cat", "/tmp/file"))[0] == output
        assert len(output["stdout"]) == 3 * MEGABYTE

    play(cri_node, work, *SERVERS)


def test_many_forwarded_connections_over_one_or_several_spdy_connections(cri_node: CriNode) -> None:
    async def work(harness: Harness) -> None:
        await _listening(harness)
        few = asyncio.Semaphore(4)  # nc lets no more wait
        way = await harness.calls.port_forward(harness.sandbox_id)

        async def shared(size: int) -> bool:
            async with few:
                forwarded = await way.open(ECHO_PORT)
                try:
                    return await _echo(forwarded, size)
                finally:
                    await forwarded.close()

        async def own(size: int) -> bool:
            async with few:
                forwarded = await harness.streams.forward(harness.sandbox_id, ECHO_PORT)
                try:
                    return await _echo(forwarded, size)
                finally:
                    await forwarded.close()

        assert all(await asyncio.gather(*(shared(size) for size in range(1, 100_000, 5_000))))
        await way.close()
        assert all(await asyncio.gather(*(own(size) for size in range(1, 100_000, 5_000))))

    play(cri_node, work, *SERVERS)


def test_a_closed_port_is_reported_and_disturbs_no_other(cri_node: CriNode) -> None:
    async def work(harness: Harness) -> None:
        await _listening(harness)
        way = await harness.calls.port_forward(harness.sandbox_id)
        for _ in range(3):
            refused = await way.open(CLOSED_PORT)
            assert await _read_all(refused) == {}
            end = await refused.wait()
            assert isinstance(end, NotRun)
            assert "connection refused" in end.message
            await refused.close()
        assert await _echo(await way.open(ECHO_PORT), 1000)
        await way.close()

    play(cri_node, work, *SERVERS)


def test_an_unread_forwarded_connection_does_not_block_others(cri_node: CriNode) -> None:
    async def work(harness: Harness) -> None:
        await _listening(harness)
        unread = await harness.streams.forward(harness.sandbox_id, FILE_PORT)
        await asyncio.sleep(0.1)
        other = await harness.streams.forward(harness.sandbox_id, ECHO_PORT)
        assert await _echo(other, 100_000)
        await other.close()
        await unread.close()

    play(cri_node, work, *SERVERS)
