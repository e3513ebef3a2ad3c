"""The jail without isolation, terminals, and the probe with a masked /proc."""

import os
import select
import signal
import socket
import termios
from pathlib import Path
from typing import Any

import pytest

from podkeeper.linux import libc
from podkeeper.linux.errors import LaunchError
from podkeeper.runtimes.process.keeper.isolation import Isolation, probe
from podkeeper.runtimes.process.keeper.launch import Launch
from podkeeper.runtimes.process.keeper.plain_jail import PlainJail
from podkeeper.runtimes.process.keeper.terminal import TerminalSetup, receive_terminal, take_terminal
from tests.runtimes.process.jail_harness import NOBODY, in_keeper, state_directory

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to enter namespaces and become another user")


def run(launch: Launch, *, enter: bool = False) -> tuple[int, str]:
    """Run a program. Return its exit code and output."""

    def action() -> tuple[int, str]:
        reader, writer = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        jail = PlainJail()
        assert jail.pause_pid == 0
        files = (null, writer, writer)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        pid = jail.enter(1, launch, *files) if enter else jail.launch(launch, *files)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            output = pipe.read().decode()
        jail.close()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output

    return in_keeper(action)


def shell(script: str, **changes: Any) -> Launch:
    return Launch(argv=("sh", "-c", script), **{"env": {}, **changes})


@pytest.mark.parametrize("enter", [False, True])
def test_a_plain_process_gets_its_files_environment_and_directory(enter: bool) -> None:
    script = "pwd; echo $PATH $A; cut -d' ' -f1,6 /proc/self/stat; grep SigBlk /proc/self/status; exit 3"
    code, output = run(shell(script, env={"A": "b"}, cwd="/usr"), enter=enter)
    place, path, numbers, blocked = output.splitlines()
    assert (code, place) == (3, "/usr")
    assert path == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin b"
    assert len(numbers.split()) == 2
    assert int(numbers.split()[1]) not in (os.getsid(0), 0)
    assert int(blocked.split()[1], 16) == 0
    assert run(shell("pwd; echo $PATH", env={"PATH": "/bin:/usr/bin"})) == (0, "/\n/bin:/usr/bin\n")


@needs_root
@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({"user": 7, "group": 8, "groups": (9,)}, "7 8 8 9"),
        ({"user": 7}, "7 0 0"),
        ({"group": 8, "groups": (8,)}, "0 8 8"),
    ],
)
def test_root_starts_processes_of_other_users(changes: dict[str, Any], ids: str) -> None:
    code, output = run(shell("echo $(id -u) $(id -g) $(id -G)", **changes))
    assert (code, output.strip()) == (0, ids)


def test_a_process_joins_its_cgroups(tmp_path: Path) -> None:
    procs = tmp_path / "cgroup.procs"
    procs.write_text("")
    assert run(shell("true", cgroups=(str(procs),))) == (0, "")
    assert procs.read_text() == "0"


REFUSED: dict[str, tuple[Launch, str]] = {
    "no program": (Launch(argv=("/no",), env={}), "exec: \"/no\": [Errno 2] No such file or directory: '/no'"),
    "no directory": (shell("true", cwd="/no"), "exec: \"sh\": [Errno 2] No such file or directory: '/no'"),
    "no command": (Launch(argv=(), env={}), 'exec: "": tuple index out of range'),
    "no cgroup": (shell("true", cgroups=("/no/x",)), "exec: \"sh\": [Errno 2] No such file or directory: '/no/x'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_process_that_cannot_start_reports_the_error(name: str) -> None:
    launch, text = REFUSED[name]

    def action() -> list[str]:
        with pytest.raises(LaunchError) as refused:
            PlainJail().launch(launch, 0, 1, 2)
        with pytest.raises(ChildProcessError):  # it was reaped
            os.waitpid(-1, os.WNOHANG)
        return [str(refused.value)]

    assert in_keeper(action) == [text]


def test_remove_files_deletes_the_containers_root(tmp_path: Path) -> None:
    for name in ("upper/x", "work/x", "root/x", "kept"):
        (tmp_path / name).mkdir(parents=True)
    jail = PlainJail()
    for _ in range(2):
        jail.remove_files(Launch(argv=(), env={}, directory=str(tmp_path)))
    assert os.listdir(tmp_path) == ["kept"]


# ---- terminals -------------------------------------------------------------------------------


def test_without_tty_no_terminal_is_opened() -> None:
    before = os.listdir("/proc/self/fd")
    assert TerminalSetup(tty=False, owner=0).open() == ""
    assert os.listdir("/proc/self/fd") == before


def test_a_terminal_becomes_stdio_and_the_controlling_terminal() -> None:
    owner = 7 if os.geteuid() == 0 else None

    def action() -> list[Any]:
        ours, console = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            for target in range(3):
                os.dup2(console.fileno(), target)
            name = TerminalSetup(tty=True, owner=owner).open()
            take_terminal()
            same = len({os.ttyname(file) for file in range(3)}) == 1
            about = os.fstat(0)
            fine = same and os.ttyname(0) == name and os.tcgetpgrp(0) == os.getpgrp()
            os.write(1, f"{fine} {about.st_uid} {about.st_gid}\n".encode())
            termios.tcdrain(1)
            os._exit(0)
        console.close()
        master = receive_terminal(ours)
        text = ""
        while "\n" not in text:
            select.select([master], [], [], 10)
            text += os.read(master, 999).decode()
        inherits = os.get_inheritable(master)
        os.waitpid(pid, 0)
        return [*text.split()[:2], inherits]

    assert in_keeper(action) == ["True", str(owner or os.geteuid()), False]


def test_receive_terminal() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        receive_terminal(ours)
    theirs.send(b"!")
    assert receive_terminal(ours) == -1
    theirs.close()
    assert receive_terminal(ours) == -1
    ours.close()
    assert receive_terminal(ours) == -1


# ---- a machine that masks parts of its /proc -------------------------------------------------


@needs_root
def test_a_probe_leaves_nothing_behind_where_overlays_are_refused() -> None:
    def refuse(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
        if kind == "overlay":
            raise PermissionError(1, "Operation not permitted")
        libc.mount(source, target, kind, flags, data)

    with state_directory("root") as state:
        found = in_keeper(lambda: probe(state, mount=refuse))
        assert (found.namespaces, found.overlay) == ("full", "")
        assert os.listdir(state) == []


@needs_root
def test_the_probe_finds_no_pid_namespaces_inside_a_container() -> None:
    def action(state: str) -> Isolation:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
        libc.mount("/dev/null", "/proc/version", None, libc.MS_BIND)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        libc.prctl(libc.PR_SET_DUMPABLE, 1)
        return probe(state)

    with state_directory("user") as state:
        found = in_keeper(lambda: action(state))
    if found.namespaces != "user":
        pytest.skip("user namespaces are refused here")
    assert not found.pid
    assert found.warnings[0] == (
        "the kernel refuses a new /proc, as in a container that masks parts of its own: "
        "containers see all processes of the host"
    )
    assert len(found.warnings) == (1 if found.overlay and found.upper == "disk" else 2)
