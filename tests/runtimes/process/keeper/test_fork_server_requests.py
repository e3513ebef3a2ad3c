"""The fork server and the start of a keeper, forked from the test's own process."""

import asyncio
import fcntl
import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from podkeeper.linux.idmap import HELP
from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.runtimes.process.fork_client import ForkServerClient, lock_file, task_error
from podkeeper.runtimes.process.keeper import fork_server
from podkeeper.runtimes.process.keeper.files import Json, boot_id, read_json, start_ticks, write_json
from podkeeper.runtimes.process.keeper.protocol import encode, send_with_files

DEADLINE_SECONDS = 10.0


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class ForkServer:
    """A fork server and the agent's end of its socket."""

    def __init__(self, jail: str, root: str) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(DEADLINE_SECONDS)
        self.pid = os.fork()
        if self.pid == 0:
            with suppress(BaseException):
                os.setsid()
                self.socket.close()
                os.umask(0o077)
                for number in range(3):
                    os.dup2(os.open("/dev/zero", os.O_RDWR), number)
                fork_server.main(["fork-server", str(theirs.fileno()), jail, root])
            os._exit(0)
        theirs.close()
        self.isolation = json.loads(self.socket.recv(65536))["isolation"]

    def send_request(self, request: Json, *files: int) -> socket.socket:
        """Send a request. Return the socket for the answer."""
        ours, theirs = socket.socketpair()
        ours.settimeout(DEADLINE_SECONDS)
        with theirs:
            send_with_files(self.socket, json.dumps(request).encode(), (theirs.fileno(), *files))
        return ours

    def answer(self, request: Json) -> Any:
        with self.send_request(request) as connection:
            return json.loads(connection.recv(65536))

    def start_keeper(self, directory: str) -> socket.socket:
        lock = lock_file(f"{directory}/keeper.lock", make=True)
        assert lock is not None
        try:
            return self.send_request({"do": "keep", "directory": directory}, lock)
        finally:
            os.close(lock)

    def close(self) -> None:
        self.socket.close()
        until(lambda: os.waitpid(self.pid, os.WNOHANG)[0] == self.pid)


@contextmanager
def open_fork_server(jail: str = "plain") -> Iterator[tuple[ForkServer, str]]:
    with tempfile.TemporaryDirectory(prefix="podkeeper-forksry-") as root:
        made = ForkServer(jail, root)
        try:
            yield made, root
        finally:
            made.close()


def sandbox(root: str, name: str = "box", **config: Any) -> str:
    directory = f"{root}/{name}"
    os.mkdir(directory)
    write_json(f"{directory}/config.json", config)
    return directory


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def is_locked(directory: str) -> bool:
    with open(f"{directory}/keeper.lock", "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def until_free(directory: str) -> None:
    """Wait until a keeper has released its lock."""
    until(lambda: not is_locked(directory))


def test_a_fork_server_has_a_process_name_and_ignores_signals() -> None:
    with open_fork_server() as (found, root):
        assert found.isolation is None
        assert name_of(found.pid) == "podkeeper-forks"
        assert "Umask:\t0022" in Path(f"/proc/{found.pid}/status").read_text().splitlines()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            os.kill(found.pid, number)
        assert found.answer({"do": "clear", "directory": f"{root}/none"}) == {"ok": {}}
        files = sorted(os.readlink(f"/proc/{found.pid}/fd/{number}") for number in range(3))
        assert files == ["/dev/null"] * 3


def test_tasks_are_executed_and_answered() -> None:
    with open_fork_server() as (found, root):
        os.makedirs(f"{root}/box/containers/x/upper-0")
        Path(root, "box/file").write_text("")
        write_json(f"{root}/box/containers/x/config.json", {"launch": {"argv": [], "env": {}}})
        assert found.answer({"do": "clear", "directory": f"{root}/box"}) == {"ok": {}}
        assert os.listdir(root) == []
        refused = f"podkeeper may not use group ID 7; {HELP}"
        assert found.answer({"do": "give", "directory": root, "group": 7}) == {"error": refused}
        until(
            lambda: not Path(f"/proc/{found.pid}/task/{found.pid}/children").read_text()
        )  # the kernel has reaped them


def test_a_keeper_reports_ready_and_ends_after_a_shutdown() -> None:
    with open_fork_server() as (found, root):
        directory = sandbox(root)
        began = time.time_ns()
        with found.start_keeper(directory) as line:
            word = json.loads(line.recv(65536))
            about = word["keeper"]
            pid = about["pid"]
            assert began <= about["started_at"] <= time.time_ns()
            assert word == {"event": "ready", "keeper": about}
            assert about == {
                "pid": pid,
                "ticks": start_ticks(pid),
                "boot_id": boot_id(),
                "started_at": about["started_at"],
            }
            assert read_json(f"{directory}/keeper.json") == about
            assert (name_of(pid), os.getsid(pid), is_locked(directory)) == ("podkeeper", pid, True)
            assert os.readlink(f"/proc/{pid}/cwd") == directory
            os.kill(pid, signal.SIGTERM)
            again = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            again.connect(f"{directory}/keeper.sock")
            again.send(encode({"id": 1, "do": "shutdown"}))
            until(lambda: os.path.exists(f"{directory}/stopped.json") and not is_locked(directory))
            again.close()
            assert not os.path.exists(f"{directory}/keeper.log")


def test_a_keeper_that_cannot_start_reports_the_error() -> None:
    with open_fork_server() as (found, root):
        directory = sandbox(root)
        os.unlink(f"{directory}/config.json")
        with found.start_keeper(directory) as line:
            word = json.loads(line.recv(65536))
        assert word == {"event": "failed", "error": "[Errno 2] No such file or directory: 'config.json'"}
        assert "FileNotFoundError" in Path(directory, "keeper.log").read_text()
        until_free(directory)


def test_keepers_survive_the_fork_server() -> None:
    with tempfile.TemporaryDirectory(prefix="podkeeper-forksry-") as root:
        found = ForkServer("plain", root)
        directory = sandbox(root)
        with found.start_keeper(directory) as line:
            assert json.loads(line.recv(65536))["event"] == "ready"
            found.close()
            line.send(encode({"id": 1, "do": "state"}))
            assert json.loads(line.recv(65536).splitlines()[0])["event"] == "state"
            line.send(encode({"id": 2, "do": "shutdown"}))
            until_free(directory)


SHARED: dict[str, tuple[dict[str, Any], set[str], int]] = {
    "nothing": ({"hostname": "web"}, {"ipc", "uts"}, 0),
    "the host's name": ({}, {"ipc"}, 0),
    "the host's memory": ({"hostname": "web", "host_ipc": True}, {"uts"}, 0),
    "processes": ({"share_process_namespace": True}, {"ipc"}, 1),
    "the host's processes": ({"share_process_namespace": True, "host_pid": True}, {"ipc"}, 0),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to enter namespaces without a user namespace")
def test_a_keeper_creates_the_namespaces_of_its_pod() -> None:
    with open_fork_server("auto") as (found, root):
        if found.isolation["namespaces"] != "full":
            pytest.skip("namespaces are refused here")
        for name, (config, apart, children) in SHARED.items():
            directory = sandbox(root, name, **config)
            with found.start_keeper(directory) as line:
                pid = json.loads(line.recv(65536))["keeper"]["pid"]
                kinds = ("ipc", "uts", "net", "pid", "mnt", "user")
                links = {kind: [os.readlink(f"/proc/{each}/ns/{kind}") for each in ("self", pid)] for kind in kinds}
                assert {kind for kind, (ours, its) in links.items() if ours != its} == apart
                assert len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()) == children
                line.send(encode({"id": 1, "do": "shutdown"}))
                until_free(directory)


# ---- the agent's client ----------------------------------------------------------------------


def test_a_lock_has_one_holder_and_is_created_only_on_request(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with pytest.raises(FileNotFoundError):
        lock_file(path, make=False)
    first = lock_file(path, make=True)
    assert first is not None
    assert lock_file(path, make=True) is None
    assert lock_file(path, make=False) is None
    os.close(first)
    second = lock_file(path, make=False)
    assert second is not None
    assert os.get_inheritable(second) is False
    assert os.fstat(second).st_mode & 0o777 == 0o600
    os.close(second)


def test_a_client_before_start_has_no_fork_server(tmp_path: Path) -> None:
    fork_server = ForkServerClient(str(tmp_path), "plain")
    assert (fork_server.alive, fork_server.pid, fork_server.isolation, fork_server.ready.is_set()) == (
        False,
        0,
        None,
        False,
    )


def test_the_fork_server_client(tmp_path: Path) -> None:
    async def act() -> None:
        fork_server = ForkServerClient(str(tmp_path), "plain")
        fork_server.start()
        pid = fork_server.pid
        assert fork_server.alive
        async with asyncio.timeout(DEADLINE_SECONDS):
            await fork_server.ready.wait()
        fork_server.start()
        assert (fork_server.pid, fork_server.isolation, os.getsid(pid)) == (pid, None, pid)
        assert (Path(f"/proc/{pid}/environ").read_bytes(), os.readlink(f"/proc/{pid}/cwd")) == (b"", "/")
        await tasks(fork_server)
        directory = sandbox(str(tmp_path))
        lock = lock_file(f"{directory}/keeper.lock", make=True)
        assert lock is not None
        with await fork_server.fork_keeper(directory, lock) as line:
            os.close(lock)
            loop = asyncio.get_running_loop()
            assert json.loads(await loop.sock_recv(line, 65536))["event"] == "ready"
            await loop.sock_sendall(line, encode({"id": 1, "do": "shutdown"}))
            while is_locked(directory):
                await asyncio.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        while fork_server.alive:
            await asyncio.sleep(0.001)
        assert not os.path.exists(f"/proc/{pid}")  # it was reaped
        await fork_server.clear(directory)
        assert fork_server.alive
        assert fork_server.pid not in (0, pid)
        second = fork_server.pid
        await fork_server.close()
        assert (fork_server.alive, fork_server.pid, os.path.exists(f"/proc/{second}")) == (False, 0, False)
        await fork_server.close()

    async def tasks(fork_server: ForkServerClient) -> None:
        (tmp_path / "volume").mkdir()
        await fork_server.clear(str(tmp_path / "volume"))
        assert not (tmp_path / "volume").exists()
        refused = f"podkeeper may not use group ID 7; {HELP}"
        with pytest.raises(RuntimeUnavailable) as caught:
            await fork_server.give(str(tmp_path), 7)
        assert str(caught.value) == f"cannot set the group of {tmp_path}: {refused}"

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(act())
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_task_without_a_complete_answer_has_failed() -> None:
    done, refused = encode({"ok": {}}), encode({"error": "No space left: 'é'"})
    assert (task_error(done), task_error(refused)) == ("", "No space left: 'é'")
    for answer in (done, refused):
        lost = {task_error(answer[:length]) for length in range(len(answer.rstrip()))}
        assert lost == {"the fork server or its child process died before it answered"}


class BusyForkServer(ForkServerClient):
    """A fork server that SIGSTOP makes busy. The real client would replace a stopped one at once."""

    async def replace_if_stopped(self) -> None:
        """Do nothing."""


def test_requests_wait_for_a_busy_fork_server_and_restart_a_dead_one(tmp_path: Path) -> None:
    name = 50_000 * "x"  # the socket takes fewer than eight such requests

    async def act() -> list[str]:
        fork_server = BusyForkServer(str(tmp_path), "plain")
        fork_server.start()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await fork_server.ready.wait()
            os.kill(fork_server.pid, signal.SIGSTOP)
            tasks = [asyncio.ensure_future(fork_server.clear(name)) for _ in range(8)]
            await asyncio.sleep(0)
            os.kill(fork_server.pid, signal.SIGKILL)
            while fork_server.alive:
                await asyncio.sleep(0.001)
            fork_server.start()
            errors = await asyncio.gather(*tasks, return_exceptions=True)
        await fork_server.close()
        assert {type(error) for error in errors} == {RuntimeUnavailable}
        return [str(error).replace(name, "it") for error in errors]

    lost = "cannot delete it: the fork server or its child process died before it answered"
    refused = "cannot delete it: [Errno 36] File name too long: 'it'"
    texts = asyncio.run(act())
    assert texts == [lost] * texts.count(lost) + [refused] * texts.count(refused)
    assert set(texts) == {lost, refused}
