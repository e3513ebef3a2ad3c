"""The nursery and the first moments of a keeper, forked from the test's own process."""

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

from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.runtimes.process.hatchery import Hatchery, lock_file, refusal
from podkeeper.runtimes.process.keeper import nursery
from podkeeper.runtimes.process.keeper.files import Json, boot_id, read_json, start_ticks, write_json
from podkeeper.runtimes.process.keeper.idmap import HELP
from podkeeper.runtimes.process.keeper.protocol import encode, send_with

DEADLINE_SECONDS = 10.0


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Nursery:
    """A nursery, and the agent's end of its socket."""

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
                nursery.main(["nursery", str(theirs.fileno()), jail, root])
            os._exit(0)
        theirs.close()
        self.isolation = json.loads(self.socket.recv(65536))["isolation"]

    def ask(self, request: Json, *files: int) -> socket.socket:
        """Have something done. Returns where the answer comes."""
        ours, theirs = socket.socketpair()
        ours.settimeout(DEADLINE_SECONDS)
        with theirs:
            send_with(self.socket, json.dumps(request).encode(), (theirs.fileno(), *files))
        return ours

    def answer(self, request: Json) -> Any:
        with self.ask(request) as connection:
            return json.loads(connection.recv(65536))

    def keep(self, directory: str) -> socket.socket:
        lock = lock_file(f"{directory}/keeper.lock", make=True)
        assert lock is not None
        try:
            return self.ask({"do": "keep", "directory": directory}, lock)
        finally:
            os.close(lock)

    def close(self) -> None:
        self.socket.close()
        until(lambda: os.waitpid(self.pid, os.WNOHANG)[0] == self.pid)


@contextmanager
def open_nursery(jail: str = "plain") -> Iterator[tuple[Nursery, str]]:
    with tempfile.TemporaryDirectory(prefix="podkeeper-nursery-") as root:
        made = Nursery(jail, root)
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
    """Wait until a keeper has let go of its lock."""
    until(lambda: not is_locked(directory))


def test_a_nursery_is_known_by_its_name_and_deaf_to_signals() -> None:
    with open_nursery() as (found, root):
        assert found.isolation is None
        assert name_of(found.pid) == "podkeeper-nurse"
        assert "Umask:\t0022" in Path(f"/proc/{found.pid}/status").read_text().splitlines()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            os.kill(found.pid, number)
        assert found.answer({"do": "clear", "directory": f"{root}/none"}) == {"ok": {}}
        files = sorted(os.readlink(f"/proc/{found.pid}/fd/{number}") for number in range(3))
        assert files == ["/dev/null"] * 3


def test_errands_are_done_and_answered() -> None:
    with open_nursery() as (found, root):
        os.makedirs(f"{root}/box/containers/x/upper-0")
        Path(root, "box/file").write_text("")
        write_json(f"{root}/box/containers/x/config.json", {"launch": {"argv": [], "env": {}}})
        assert found.answer({"do": "clear", "directory": f"{root}/box"}) == {"ok": {}}
        assert os.listdir(root) == []
        refused = f"cannot give files to group 7: it is not among podkeeper's group ids; {HELP}"
        assert found.answer({"do": "give", "directory": root, "group": 7}) == {"error": refused}
        until(lambda: not Path(f"/proc/{found.pid}/task/{found.pid}/children").read_text())  # the kernel reaped them


def test_a_keeper_says_that_it_is_ready_and_ends_when_it_is_told_to() -> None:
    with open_nursery() as (found, root):
        directory = sandbox(root)
        began = time.time_ns()
        with found.keep(directory) as line:
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


def test_a_keeper_that_cannot_begin_says_why() -> None:
    with open_nursery() as (found, root):
        directory = sandbox(root)
        os.unlink(f"{directory}/config.json")
        with found.keep(directory) as line:
            word = json.loads(line.recv(65536))
        assert word == {"event": "failed", "error": "[Errno 2] No such file or directory: 'config.json'"}
        assert "FileNotFoundError" in Path(directory, "keeper.log").read_text()
        until_free(directory)


def test_keepers_live_on_when_the_nursery_ends() -> None:
    with tempfile.TemporaryDirectory(prefix="podkeeper-nursery-") as root:
        found = Nursery("plain", root)
        directory = sandbox(root)
        with found.keep(directory) as line:
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
def test_a_keeper_makes_the_namespaces_that_its_pod_wants() -> None:
    with open_nursery("auto") as (found, root):
        if found.isolation["namespaces"] != "full":
            pytest.skip("namespaces are refused here")
        for name, (config, apart, children) in SHARED.items():
            directory = sandbox(root, name, **config)
            with found.keep(directory) as line:
                pid = json.loads(line.recv(65536))["keeper"]["pid"]
                kinds = ("ipc", "uts", "net", "pid", "mnt", "user")
                links = {kind: [os.readlink(f"/proc/{each}/ns/{kind}") for each in ("self", pid)] for kind in kinds}
                assert {kind for kind, (ours, its) in links.items() if ours != its} == apart
                assert len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()) == children
                assert os.path.isdir(f"{directory}/shm") is ("host_ipc" not in config)
                line.send(encode({"id": 1, "do": "shutdown"}))
                until_free(directory)
                assert not os.path.exists(f"{directory}/shm")


# ---- the agent's side ------------------------------------------------------------------------


def test_a_lock_is_one_holders_and_is_only_made_where_it_may_be(tmp_path: Path) -> None:
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


def test_a_hatchery_without_a_nursery_has_none(tmp_path: Path) -> None:
    hatchery = Hatchery(str(tmp_path), "plain")
    assert (hatchery.alive, hatchery.pid, hatchery.isolation, hatchery.told.is_set()) == (False, 0, None, False)


def test_the_agents_side_of_a_nursery(tmp_path: Path) -> None:
    async def act() -> None:
        hatchery = Hatchery(str(tmp_path), "plain")
        hatchery.start()
        pid = hatchery.pid
        assert hatchery.alive
        async with asyncio.timeout(DEADLINE_SECONDS):
            await hatchery.told.wait()
        hatchery.start()
        assert (hatchery.pid, hatchery.isolation, os.getsid(pid)) == (pid, None, pid)
        assert (Path(f"/proc/{pid}/environ").read_bytes(), os.readlink(f"/proc/{pid}/cwd")) == (b"", "/")
        await errands(hatchery)
        directory = sandbox(str(tmp_path))
        lock = lock_file(f"{directory}/keeper.lock", make=True)
        assert lock is not None
        with await hatchery.hatch(directory, lock) as line:
            os.close(lock)
            loop = asyncio.get_running_loop()
            assert json.loads(await loop.sock_recv(line, 65536))["event"] == "ready"
            await loop.sock_sendall(line, encode({"id": 1, "do": "shutdown"}))
            while is_locked(directory):
                await asyncio.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        while hatchery.alive:
            await asyncio.sleep(0.001)
        assert not os.path.exists(f"/proc/{pid}")  # it was waited for
        await hatchery.clear(directory)
        assert hatchery.alive
        assert hatchery.pid not in (0, pid)
        second = hatchery.pid
        await hatchery.close()
        assert (hatchery.alive, hatchery.pid, os.path.exists(f"/proc/{second}")) == (False, 0, False)
        await hatchery.close()

    async def errands(hatchery: Hatchery) -> None:
        (tmp_path / "volume").mkdir()
        await hatchery.clear(str(tmp_path / "volume"))
        assert not (tmp_path / "volume").exists()
        refused = f"cannot give files to group 7: it is not among podkeeper's group ids; {HELP}"
        with pytest.raises(RuntimeUnavailable) as caught:
            await hatchery.give(str(tmp_path), 7)
        assert str(caught.value) == f"cannot give away {tmp_path}: {refused}"

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(act())
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_errand_with_no_answer_or_half_of_one_has_failed() -> None:
    done, refused = encode({"ok": {}}), encode({"error": "No space left: 'é'"})
    assert (refusal(done), refusal(refused)) == ("", "No space left: 'é'")
    for answer in (done, refused):
        lost = {refusal(answer[:length]) for length in range(len(answer.rstrip()))}
        assert lost == {"its process died before it answered"}


def test_requests_wait_while_the_nursery_is_busy_and_go_to_the_next_one_if_it_dies(tmp_path: Path) -> None:
    name = 50_000 * "x"  # the socket takes fewer than eight such requests

    async def act() -> list[str]:
        hatchery = Hatchery(str(tmp_path), "plain")
        hatchery.start()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await hatchery.told.wait()
            os.kill(hatchery.pid, signal.SIGSTOP)
            errands = [asyncio.ensure_future(hatchery.clear(name)) for _ in range(8)]
            await asyncio.sleep(0)
            os.kill(hatchery.pid, signal.SIGKILL)
            while hatchery.alive:
                await asyncio.sleep(0.001)
            hatchery.start()
            errors = await asyncio.gather(*errands, return_exceptions=True)
        await hatchery.close()
        assert {type(error) for error in errors} == {RuntimeUnavailable}
        return [str(error).replace(name, "it") for error in errors]

    lost = "cannot delete it: its process died before it answered"
    refused = "cannot delete it: [Errno 36] File name too long: 'it'"
    texts = asyncio.run(act())
    assert texts == [lost] * texts.count(lost) + [refused] * texts.count(refused)
    assert set(texts) == {lost, refused}
