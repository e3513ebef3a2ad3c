"""Commands with every kind of end, interactive sessions, and attached containers."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.probing import CommandExited, NotRun, TimedOut
from podkeeper.model.runtime import RecordState
from podkeeper.runtimes.process.keeper.commands import Command
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper.loop import Loop
from podkeeper.runtimes.process.runtime import ProcessRuntime
from podkeeper.runtimes.process.sessions import Channel, Session
from tests.runtimes.process.harness import (
    RuntimeHarness,
    contents,
    eventually,
    in_runtime,
    opened,
    remove_all,
    running,
    temporary_root,
    wait_until,
)


async def all_of(session: Session) -> dict[Channel, bytes]:
    received = dict.fromkeys(Channel, b"")
    async for channel, data in session:
        received[channel] += data
    return received


def test_exec_sync_reports_every_kind_of_end() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime)
        container = await harness.start("sleep", "3600", env={"COLOUR": "green"})
        run = runtime.exec_sync
        assert await run(container, ["sh", "-c", "echo $COLOUR; echo no >&2; exit 2"], 5) == CommandExited(
            2, b"green\nno\n"
        )
        assert await run(container, ["sh", "-c", "kill -9 $$"], 5) == CommandExited(137)
        assert await run(container, ["sh", "-c", "sleep 3600 & echo left"], 5) == CommandExited(0, b"left\n")
        assert isinstance(await run(container, ["/no/such/binary"], 5), NotRun)
        assert await run(container, ["sleep", "30"], 0.1) == TimedOut(
            'command timed out: "sleep 30" timed out after 0.1s'
        )
        end = await run(container, ["sh", "-c", "head -c 1000000 /dev/zero"], 5)
        assert end == CommandExited(0, b"\0" * 16384)

    in_runtime(act)


def test_a_command_is_killed_when_its_caller_is_cancelled() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime)
        container = await harness.start("sleep", "3600")
        waiting = asyncio.create_task(runtime.exec_sync(container, ["sleep", "86397.5"], 60))
        await eventually(lambda: bool(running("86397.5")), "the command runs")
        waiting.cancel()
        await eventually(lambda: not running("86397.5"), "the command has ended")

    in_runtime(act)


def test_a_command_has_stdin_and_output() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime)
        container = await harness.start("sleep", "3600")
        async with await runtime.exec_stream(
            container, ["sh", "-c", "cat; echo end >&2; exit 5"], tty=False, stdin=True
        ) as session:
            big = b"0123456789abcdef" * 65536
            writing = asyncio.create_task(session.write(big))
            received = bytearray()
            async for channel, data in session:
                assert channel is Channel.STDOUT
                received += data
                if len(received) == len(big):
                    break
            await writing
            session.close_stdin()
            assert received == big
            assert await all_of(session) == {Channel.STDOUT: b"", Channel.STDERR: b"end\n"}
            assert await session.wait() == 5
        session = await runtime.exec_stream(container, ["/no/such/binary"], tty=False, stdin=False)
        assert await all_of(session) == {Channel.STDOUT: b"", Channel.STDERR: b""}
        with pytest.raises(RuntimeRefused):
            await session.wait()

    in_runtime(act, jail="auto")


def test_a_command_ends_although_a_background_process_keeps_writing() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        container = await RuntimeHarness(runtime).start("sleep", "3600")
        command = ["sh", "-c", "yes 86397.0625 & exit 4"]
        assert isinstance(end := await runtime.exec_sync(container, command, 10), CommandExited)
        assert end.code == 4
        async with await runtime.exec_stream(container, command, tty=False, stdin=False) as session:
            received = await all_of(session)
            assert await session.wait() == 4
        assert len(received[Channel.STDOUT]) < 2**24
        await eventually(lambda: not running("86397.0625"), "the writer ends because the pipe is closed")

    in_runtime(act)


def test_closing_a_session_ends_its_command() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime)
        container = await harness.start("sleep", "3600")
        session = await runtime.exec_stream(container, ["sleep", "86397.75"], tty=False, stdin=False)
        await eventually(lambda: bool(running("86397.75")), "the command runs")
        await session.aclose()
        await eventually(lambda: not running("86397.75"), "the command has ended")

    in_runtime(act)


def test_stdin_once_ends_with_the_first_attached_client(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime, str(tmp_path))
        container = await harness.start("sh", "-c", "cat; echo over >&2", stdin=True, stdin_once=True)
        async with await runtime.attach(container) as writer, await runtime.attach(container) as reader:
            with pytest.raises(RuntimeRefused):
                await reader.write(b"not read")
            await writer.write(b"hello\n")
            assert await anext(writer) == (Channel.STDOUT, b"hello\n")
            writer.close_stdin()
            assert await all_of(writer) == {Channel.STDOUT: b"", Channel.STDERR: b"over\n"}
            assert await all_of(reader) == {Channel.STDOUT: b"hello\n", Channel.STDERR: b"over\n"}
        assert (await harness.exited(container)).exit_code == 0
        assert sorted(contents(harness.log())) == [(b"stderr", b"F", b"over"), (b"stdout", b"F", b"hello")]

    in_runtime(act)


def test_stdin_stays_open_for_the_next_attached_client() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime)
        container = await harness.start("sh", "-c", "read a; read b; exit $((a + b))", stdin=True)
        for number in (b"3\n", b"4\n"):
            async with await runtime.attach(container) as session:
                await session.write(number)
        assert (await harness.exited(container)).exit_code == 7

    in_runtime(act)


def test_a_stalled_attached_reader_blocks_only_its_container(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime, str(tmp_path))
        container = await harness.start("sh", "-c", "read go; yes | head -n 1000000; echo done >&2", stdin=True)
        async with await runtime.attach(container) as session:
            await session.write(b"go\n")  # output from before the attach is not sent
            await asyncio.sleep(0.1)
            assert (await harness.container(container)).state is RecordState.RUNNING
            assert await runtime.exec_sync(container, ["true"], 5) == CommandExited(0)
            received = await all_of(session)
        assert received == {Channel.STDOUT: b"y\n" * 1000000, Channel.STDERR: b"done\n"}

    in_runtime(act)


def test_attaching_without_stdin_leaves_stdin_to_other_clients() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime)
        container = await harness.start("sh", "-c", "read code; exit $code", stdin=True, stdin_once=True)
        async with await runtime.attach(container, stdin=False) as session:
            with pytest.raises(RuntimeRefused):
                await session.write(b"1\n")
        async with await runtime.attach(container) as session:
            await session.write(b"7\n")
        assert (await harness.exited(container)).exit_code == 7

    in_runtime(act)


def test_an_attach_session_ends_with_its_input_unless_that_closes_the_containers_stdin() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        script = "while read line; do echo $line; done; echo over"
        for once, received in ((False, b""), (True, b"over\n")):
            harness = RuntimeHarness(runtime)
            container = await harness.start("sh", "-c", script, stdin=True, stdin_once=once)
            async with await runtime.attach(container) as session:
                await session.write(b"word\n")
                assert await anext(session) == (Channel.STDOUT, b"word\n")
                session.close_stdin()
                assert (await all_of(session))[Channel.STDOUT] == received

    in_runtime(act)


# ---- disconnects ----


def test_a_command_gets_sighup_when_its_session_closes() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        container = await RuntimeHarness(runtime).start("sleep", "3600")
        script = "trap 'exit 5' HUP; echo ready; exec > /dev/null 2>&1; while :; do sleep 0.05; done"
        session = await runtime.exec_stream(container, ["sh", "-c", script], tty=False, stdin=False)
        assert await anext(session) == (Channel.STDOUT, b"ready\n")
        await session.aclose()
        assert await session.wait() == 5

    in_runtime(act)


def test_a_command_that_ignores_sighup_is_killed_later() -> None:
    loop, ends = Loop(), list[Json]()
    with subprocess.Popen(["nohup", "sleep", "3600"], start_new_session=True, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes()[:6], "it ignores HUP")
        command = Command(loop, process.pid, 0, ends.append, hang_up_seconds=0.1)
        command.hang_up()
        loop.after(0.3, loop.stop)
        loop.run()
        command.reaped(os.waitpid(process.pid, 0)[1])
    loop.close()
    assert ends == [{"code": 137, "timed_out": False}]


def test_commands_end_with_their_agent_and_containers_do_not() -> None:
    async def act() -> None:
        with temporary_root() as root:
            async with opened(root) as runtime:
                harness = RuntimeHarness(runtime)
                container = await harness.start("sleep", "3600")
                for tty in (False, True):
                    await runtime.exec_stream(container, ["sleep", "86397.125"], tty=tty, stdin=False)
                await eventually(lambda: len(running("86397.125")) == 2, "the commands run")
            await eventually(lambda: not running("86397.125"), "the commands have ended")
            async with opened(root) as runtime:
                assert [pod.containers[0].state for pod in await runtime.list_pods()] == [RecordState.RUNNING]
                await remove_all(runtime, root)

    asyncio.run(act())
