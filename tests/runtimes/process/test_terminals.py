"""Terminals of containers and commands: name, size, job control and end."""

import asyncio
import errno
import os
import re
import signal
import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from podkeeper.linux import libc
from podkeeper.model.probing import CommandExited
from podkeeper.model.runtime import RecordState
from podkeeper.runtimes.process.keeper.jail import NamespaceJail
from podkeeper.runtimes.process.keeper.launch import Launch
from podkeeper.runtimes.process.keeper.terminal import receive_terminal
from podkeeper.runtimes.process.runtime import ProcessRuntime
from podkeeper.runtimes.process.sessions import Session
from tests.runtimes.process.harness import RuntimeHarness, eventually, in_runtime, running
from tests.runtimes.process.jail_harness import Machine, end, machine_for, machines, run, start, state_directory

anywhere = machines("root", "user", "root without namespaces", "user without namespaces")
machine = machines("root", "user")


def at_terminal(jail: NamespaceJail, spec: Launch, enter: int = 0) -> tuple[int, str]:
    """Run a process with a terminal. Return its exit code and its output."""
    ours, console = socket.socketpair()
    with ours, console:
        files, spec = (console.fileno(),) * 3, replace(spec, tty=True)
        pid = jail.enter(enter, spec, *files) if enter else jail.launch(spec, *files)
        master = receive_terminal(ours)
    os.set_blocking(master, True)
    seen = b""
    with suppress(OSError):  # EIO: the last user has closed the terminal
        while piece := os.read(master, 4096):
            seen += piece
    os.close(master)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen.decode()


# What a shell reports about its terminal: the name, its three files, and no error for job control.
LOOK = "tty; test -t 0 && test -t 1 && test -t 2 && echo real; echo yes > /dev/tty; set -m; sleep 0.01 & wait; exit 3"


def test_a_container_has_its_own_terminal(anywhere: Machine) -> None:
    def action() -> tuple[int, str]:
        return at_terminal(NamespaceJail(isolation=anywhere.isolation), anywhere.spec(LOOK))

    code, seen = anywhere.in_keeper(action)
    own = anywhere.isolation.namespaces != "none"
    assert code == 3
    assert re.fullmatch(rf"/dev/pts/{0 if own else r'[0-9]+'}\r\nreal\r\nyes\r\n", seen)


def test_a_command_has_a_terminal_of_its_container(anywhere: Machine) -> None:
    def action() -> list[tuple[int, str]]:
        jail = NamespaceJail(isolation=anywhere.isolation)
        spec = anywhere.spec("", argv=("sleep", "60"))
        pid = start(jail, spec)
        shell = replace(spec, argv=("sh", "-c", LOOK))
        seen = [at_terminal(jail, shell, pid), at_terminal(jail, shell, pid)]
        end(pid)
        return seen

    for code, seen in anywhere.in_keeper(action):
        assert code == 3
        assert re.fullmatch(r"/dev/pts/[0-9]+\r\nreal\r\nyes\r\n", seen)


def test_the_terminal_of_a_container_is_its_console_and_the_only_one_it_sees(machine: Machine) -> None:
    def action() -> tuple[int, str]:
        script = "test -c /dev/console && echo written > /dev/console; ls /dev/pts | xargs; stat -c %t:%T /dev/ptmx -L"
        return at_terminal(NamespaceJail(isolation=machine.isolation), machine.spec(script))

    assert machine.in_keeper(action) == (0, "written\r\n0 ptmx\r\n5:2\r\n")


def test_a_non_root_user_may_open_its_terminal() -> None:
    with state_directory("root") as state:
        as_root = machine_for("root", state)

        def action() -> tuple[int, str]:
            script = "echo there > /dev/stdout; echo here > $(tty); stat -c %u $(tty)"
            return at_terminal(NamespaceJail(isolation=as_root.isolation), as_root.spec(script, user=1234))

        assert as_root.in_keeper(action) == (0, "there\r\nhere\r\n1234\r\n")


def test_the_hosts_terminals_are_the_fallback(machine: Machine) -> None:
    def action() -> tuple[int, str]:
        def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
            if kind == "devpts":
                raise OSError(errno.EPERM, "refused", target)
            usual(source, target, kind, flags, data)

        usual, libc.mount = libc.mount, mount  # only in this keeper, which ends with the test
        return at_terminal(NamespaceJail(isolation=machine.isolation), machine.spec(LOOK))

    assert machine.in_keeper(action) == (3, "not a tty\r\nreal\r\nyes\r\n")


@pytest.mark.parametrize(("make", "kind"), [("mkfifo /dev/ptmx", "-p"), ("ln -s ptmx /dev/ptmx", "-L")])
def test_a_replaced_multiplexer_is_not_opened(machine: Machine, make: str, kind: str) -> None:
    def action() -> tuple[int, str]:
        jail = NamespaceJail(isolation=machine.isolation)
        spec = machine.spec(f"rm /dev/ptmx; {make}; touch /tmp/podkeeper-made; exec sleep 60")
        pid = start(jail, spec)
        while run(jail, replace(spec, argv=("sh", "-c", f"test -e /tmp/podkeeper-made && test {kind} /dev/ptmx")), pid)[
            0
        ]:
            pass
        seen = at_terminal(jail, replace(spec, argv=("sh", "-c", LOOK)), pid)
        end(pid)
        return seen

    assert machine.in_keeper(action) == (3, "not a tty\r\nreal\r\nyes\r\n")


# ---- through the runtime ----


async def read_until(session: Session, word: bytes) -> bytes:
    """Read the output up to a word."""
    received = b""
    while word not in received:
        received += (await anext(session))[1]
    return received


async def rest_of(session: Session) -> bytes:
    return b"".join([data async for _, data in session])


@pytest.mark.parametrize("jail", ["plain", "auto"])
def test_a_command_gets_the_window_size_and_its_changes(jail: str) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        container = await RuntimeHarness(runtime).start("sleep", "3600")
        script = "read x; stty size; trap 'stty size; exit 6' WINCH; echo $TERM; while :; do sleep 0.05; done"
        async with await runtime.exec_stream(container, ["sh", "-c", script], tty=True, stdin=True) as session:
            session.resize(rows=40, columns=120)
            await session.write(b"go\n")
            assert (await read_until(session, b"xterm")).splitlines()[-2:] == [b"40 120", b"xterm"]
            session.resize(rows=41, columns=121)
            assert (await rest_of(session)).split() == [b"41", b"121"]
            assert await session.wait() == 6

    in_runtime(act, jail)


def test_the_interrupt_key_reaches_only_the_foreground_process() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        container = await RuntimeHarness(runtime).start("sleep", "3600")
        async with await runtime.exec_stream(container, ["sh", "-i"], tty=True, stdin=True) as session:
            await session.write(b"sleep 86397.375\n")
            await eventually(lambda: bool(running("sleep\x0086397.375")), "the command runs")
            await session.write(b"\x03")
            await session.write(b"echo after-$((6 * 7)); exit 9\n")
            assert b"after-42" in await rest_of(session)
            assert await session.wait() == 9
        assert not running("sleep\x0086397.375")

    in_runtime(act, jail="auto")


def test_a_command_gets_sighup_when_its_terminal_closes() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        container = await RuntimeHarness(runtime).start("sleep", "3600")
        async with await runtime.exec_stream(container, ["sh", "-i"], tty=True, stdin=True) as session:
            await session.write(b"sleep 86397.625\n")
            await eventually(lambda: bool(running("sleep\x0086397.625")), "the command runs")
        await eventually(lambda: not running("sleep\x0086397.625"), "it has ended, and its shell has")
        assert await session.wait() == 128 + signal.SIGHUP

    in_runtime(act, jail="auto")


def test_a_missing_command_is_reported_with_a_terminal() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        container = await RuntimeHarness(runtime).start("sleep", "3600")
        session = await runtime.exec_stream(container, ["/no/such/binary"], tty=True, stdin=True)
        assert await rest_of(session) == b""
        with pytest.raises(Exception, match="/no/such/binary"):
            await session.wait()

    in_runtime(act, jail="auto")


def test_several_clients_attach_to_a_terminal(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime, str(tmp_path))
        script = "tty; read x; stty size; read y; echo $x $y"
        container = await harness.start("sh", "-c", script, stdin=True, stdin_once=True, tty=True)
        await eventually(lambda: b"/dev/pts/0" in harness.log(), "the terminal name is in the log")
        async with (
            await runtime.attach(container) as first,
            await runtime.attach(container) as second,
            await runtime.attach(container, stdin=False) as looking,
        ):
            looking.resize(rows=33, columns=99)
            await first.write(b"one\n")
            assert (await read_until(looking, b"33 99\r\n")).splitlines()[-1] == b"33 99"
            first.close_stdin()  # a client that disconnects does not close the terminal
            await second.write(b"two\n")
            for each in (second, looking):
                assert (await rest_of(each)).splitlines()[-1] == b"one two"
        await harness.exited(container)
        assert harness.log().endswith(b" stdout F one two\r\n")

    in_runtime(act, jail="auto")


def test_a_terminal_without_stdin_shows_output_and_takes_no_input(tmp_path: Path) -> None:
    async def act(runtime: ProcessRuntime) -> None:
        harness = RuntimeHarness(runtime, str(tmp_path))
        container = await harness.start("sh", "-c", "while :; do echo tick; sleep 0.05; done", tty=True)
        async with await runtime.attach(container) as session:
            with pytest.raises(Exception, match="it is closed"):
                await session.write(b"\x03")
            assert await read_until(session, b"tick")
        assert (await harness.container(container)).state is RecordState.RUNNING
        await runtime.stop_container(container, 0)

    in_runtime(act, jail="auto")


def test_cancelling_the_wait_for_a_terminal_leaves_no_command() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        container = await RuntimeHarness(runtime).start("sleep", "3600")
        asking = asyncio.create_task(runtime.exec_stream(container, ["sleep", "86397.875"], tty=True, stdin=False))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await runtime.exec_sync(container, ["true"], 10) == CommandExited(
            0
        )  # the keeper has handled all requests
        await eventually(lambda: not running("86397.875"), "the command has ended")

    in_runtime(act, jail="auto")


def test_a_long_output_at_a_terminal_is_complete() -> None:
    async def act(runtime: ProcessRuntime) -> None:
        container = await RuntimeHarness(runtime).start("sleep", "3600")
        async with await runtime.exec_stream(container, ["seq", "100000"], tty=True, stdin=False) as session:
            received = await rest_of(session)
        assert received.split() == [b"%d" % number for number in range(1, 100001)]

    in_runtime(act, jail="auto")
