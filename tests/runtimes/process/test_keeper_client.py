"""The agent's client of one keeper: startup, reconnection, kill, exits."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable
from podkeeper.runtimes.process.fork_client import lock_file
from podkeeper.runtimes.process.keeper.files import Json, boot_id, read_json, start_ticks, write_json
from podkeeper.runtimes.process.keeper.protocol import MessageBuffer, encode
from podkeeper.runtimes.process.keeper_client import KeeperClient, KeeperTimeouts
from podkeeper.runtimes.process.keeper_link import KeeperUnreachable
from podkeeper.runtimes.process.records import decode_container
from podkeeper.testing.virtual_time import simulate
from tests.runtimes.process.fake_jail import SLEEP

POD = "default/web"
FACTS = {"name": "app", "attempt": 0, "image": "host", "image_id": "host", "spec_hash": "", "created_at": 5}
PATIENCE = KeeperTimeouts(answer_seconds=2, not_ready_seconds=60, kill_seconds=45)


class Harness:
    """A sandbox directory and the keeper's side of the socket, which the test controls."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.received: list[Json] = []
        self.lost = 0
        self.keeper = KeeperClient(directory, POD, on_event=self.received.append, on_lost=self._lose, timeouts=PATIENCE)
        self.lock = -1
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []

    def _lose(self) -> None:
        self.lost += 1

    def take_lock(self) -> None:
        """Take the lock, as a running keeper does."""
        lock = lock_file(f"{self.directory}/keeper.lock", make=True)
        assert lock is not None
        self.lock = lock

    def free_lock(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def listen(self, serve: Callable[["Harness", socket.socket], None]) -> None:
        """Accept connections and serve them."""
        listener = self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"{self.directory}/keeper.sock")
        listener.listen()
        listener.setblocking(False)

        def accept() -> None:
            connection, _ = listener.accept()
            connection.setblocking(False)
            self._open.append(connection)
            serve(self, connection)

        asyncio.get_running_loop().add_reader(listener.fileno(), accept)

    def close(self) -> None:
        self.free_lock()
        self.keeper.disconnect()
        loop = asyncio.get_running_loop()
        for each in (*self._open, *([self._listener] if self._listener else [])):
            if each.fileno() >= 0:
                loop.remove_reader(each.fileno())
                each.close()


def answers(*, leave_out: str = "") -> Callable[[Harness, socket.socket], None]:
    """A keeper that answers all requests at once, except one kind."""

    def serve(harness: Harness, connection: socket.socket) -> None:
        inbox = MessageBuffer()

        def read() -> None:
            messages = inbox.receive(connection)
            if messages is None:
                asyncio.get_running_loop().remove_reader(connection.fileno())
                return
            for message, _ in messages:
                if message["do"] == leave_out:
                    harness.received.append({"request": message})
                    continue
                if message["do"] == "state":
                    connection.send(encode({"event": "state", "containers": []}))
                connection.send(encode({"id": message["id"], "ok": {}}))

        asyncio.get_running_loop().add_reader(connection.fileno(), read)

    return serve


def silent(harness: Harness, connection: socket.socket) -> None:
    """A keeper that accepts connections and never answers."""


def closes(harness: Harness, connection: socket.socket) -> None:
    """A keeper that closes every connection."""
    connection.close()


@asynccontextmanager
async def harness_in(directory: Path) -> AsyncIterator[Harness]:
    harness = Harness(str(directory))
    try:
        yield harness
    finally:
        harness.close()


def with_harness(directory: Path, act: Callable[[Harness], Awaitable[None]], *, real_time: bool = False) -> None:
    async def main() -> None:
        async with harness_in(directory) as harness:
            await act(harness)

    if real_time:
        asyncio.run(main())
    else:
        simulate(main())


def now() -> float:
    return asyncio.get_running_loop().time()


def test_the_default_timeouts() -> None:
    assert KeeperTimeouts() == KeeperTimeouts(answer_seconds=2, not_ready_seconds=60, kill_seconds=45)


# ---- connection ------------------------------------------------------------------------------


def test_a_new_keeper_is_connected_after_its_ready_message(tmp_path: Path) -> None:
    async def act(harness: Harness) -> None:
        ours, theirs = socket.socketpair()
        theirs.send(encode({"event": "ready"}) + encode({"event": "leaving"}))
        await harness.keeper.wait_ready(ours)
        assert await harness.keeper.wait_dead()  # no lock yet: only the connection shows that it runs
        assert (harness.received, harness.lost) == ([{"event": "leaving"}], 0)
        theirs.send(encode({"event": "ready"}))  # a second message has no effect
        theirs.close()
        await asyncio.sleep(1)
        assert (harness.keeper.link, harness.lost) == (None, 1)

    with_harness(tmp_path, act)


FAILURES = {
    "the keeper reports an error": (
        b'{"event":"failed","error":"no room"}\n',
        "cannot start a keeper for pod default/web: no room",
    ),
    "the keeper is killed": (b"", "cannot start a keeper for pod default/web: the keeper died before it was ready"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_new_keeper_that_fails_is_reported(tmp_path: Path, name: str) -> None:
    word, text = FAILURES[name]

    async def act(harness: Harness) -> None:
        ours, theirs = socket.socketpair()
        if word:
            theirs.send(word)
        theirs.close()
        with pytest.raises(RuntimeUnavailable, match=rf"^{text}$"):
            await harness.keeper.wait_ready(ours)
        assert (harness.keeper.link, harness.lost, harness.received) == (None, 0, [])

    with_harness(tmp_path, act)


@pytest.mark.parametrize(("given", "seconds"), [({}, 60), ({"timeout_seconds": 3.5}, 3.5)])
def test_waiting_for_a_new_keeper_times_out(tmp_path: Path, given: dict[str, float], seconds: float) -> None:
    async def act(harness: Harness) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            with pytest.raises(
                CallTimedOut, match=rf"^cannot start a keeper for pod default/web within {seconds:g} s$"
            ):
                await harness.keeper.wait_ready(ours, **given)
            assert now() == seconds
            assert harness.keeper.link is None

    with_harness(tmp_path, act)


def test_connect_returns_false_without_a_keeper(tmp_path: Path) -> None:
    async def act(harness: Harness) -> None:
        assert not harness.keeper.is_alive()
        assert not await harness.keeper.connect()
        assert os.listdir(tmp_path) == []
        harness.take_lock()
        assert harness.keeper.is_alive()
        harness.free_lock()
        assert not harness.keeper.is_alive()
        assert not await harness.keeper.connect()
        assert now() == 0

    with_harness(tmp_path, act)


def test_connect_requests_the_state(tmp_path: Path) -> None:
    async def act(harness: Harness) -> None:
        harness.take_lock()
        harness.listen(answers())
        assert await harness.keeper.connect()
        assert harness.received == [{"event": "state", "containers": []}]
        assert now() == 0
        assert await harness.keeper.call("start", {}, 5) == ({}, [])
        harness.close()
        await asyncio.sleep(1)
        assert harness.lost == 0

    with_harness(tmp_path, act)


def test_a_connection_that_breaks_later_is_reported(tmp_path: Path) -> None:
    async def act(harness: Harness) -> None:
        harness.take_lock()
        harness.listen(answers())
        assert await harness.keeper.connect()
        for connection in harness._open:
            asyncio.get_running_loop().remove_reader(connection.fileno())
            connection.close()
        await asyncio.sleep(1)
        assert (harness.lost, harness.keeper.link) == (1, None)

    with_harness(tmp_path, act)


@pytest.mark.parametrize("how", ["no socket", "refuses", "closes"])
def test_connect_retries_for_two_seconds(tmp_path: Path, how: str) -> None:
    async def act(harness: Harness) -> None:
        harness.take_lock()
        if how == "closes":
            harness.listen(closes)
        elif how == "refuses":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
                dead.bind(f"{tmp_path}/keeper.sock")
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(RuntimeUnavailable, match=r"^cannot reach the keeper of pod default/web: ") as caught:
            await harness.keeper.connect()
        why = {"no socket": "No such file", "refuses": "Connection refused", "closes": "the connection is closed"}
        assert why[how] in str(caught.value)
        assert now() == pytest.approx(1.88)
        assert (harness.lost, harness.keeper.link, len(os.listdir("/proc/self/fd"))) == (0, None, before)

    with_harness(tmp_path, act)


def test_connect_returns_false_if_the_keeper_dies_meanwhile(tmp_path: Path) -> None:
    async def act(harness: Harness) -> None:
        harness.take_lock()
        asyncio.get_running_loop().call_later(0.3, harness.free_lock)
        assert not await harness.keeper.connect()
        assert now() == pytest.approx(0.38)

    with_harness(tmp_path, act)


def test_connect_distinguishes_an_unresponsive_keeper_from_a_dead_one(tmp_path: Path) -> None:
    async def act(harness: Harness) -> None:
        harness.take_lock()
        harness.listen(silent)
        text = "cannot reach the keeper of pod default/web: it does not answer"
        with pytest.raises(RuntimeUnavailable, match=rf"^{text}$"):
            await harness.keeper.connect()
        assert now() == PATIENCE.answer_seconds
        assert (harness.keeper.link, harness.lost) == (None, 0)
        with pytest.raises(
            KeeperUnreachable, match=r"^cannot reach the keeper of pod default/web: it does not answer$"
        ):
            await harness.keeper.call("start", {})

    with_harness(tmp_path, act)


def test_the_link_is_set_only_after_the_first_answer(tmp_path: Path) -> None:
    """A stop waits for a link. A failed connection attempt must not look like the death of the keeper."""

    async def act(harness: Harness) -> None:
        harness.take_lock()
        harness.listen(silent)
        connecting = asyncio.ensure_future(harness.keeper.connect())
        await asyncio.sleep(PATIENCE.answer_seconds / 2)
        assert harness.keeper.link is None
        with pytest.raises(RuntimeUnavailable):
            await connecting

    with_harness(tmp_path, act)


# ---- forced calls ----------------------------------------------------------------------------


def test_call_or_kill_waits_while_the_keeper_answers_pings(tmp_path: Path) -> None:
    async def act(harness: Harness) -> None:
        harness.take_lock()
        harness.listen(answers(leave_out="stop"))
        await harness.keeper.connect()
        insisting = asyncio.ensure_future(harness.keeper.call_or_kill("stop", {"grace": 10}, 10))
        await asyncio.sleep(10 + 45 + 45 + 45 + 1)
        pings = harness.received.count({"event": "state", "containers": []})
        requests = [each["request"] for each in harness.received if "request" in each]
        assert (pings, insisting.done()) == (1 + 3, False)
        assert [(each["do"], each["grace"]) for each in requests] == [("stop", 10)]
        harness._open[0].send(encode({"id": requests[0]["id"], "ok": {}}))
        await insisting
        assert now() == 146

    with_harness(tmp_path, act)


def test_call_or_kill_raises_the_keepers_error(tmp_path: Path) -> None:
    async def act(harness: Harness) -> None:
        harness.take_lock()
        harness.listen(answers(leave_out="stop"))
        await harness.keeper.connect()
        insisting = asyncio.ensure_future(harness.keeper.call_or_kill("stop", {}, 10))
        await asyncio.sleep(1)
        harness._open[0].send(encode({"id": 2, "error": "no"}))
        with pytest.raises(RuntimeRefused):
            await insisting

    with_harness(tmp_path, act)


def test_call_or_kill_kills_an_unresponsive_keeper(tmp_path: Path) -> None:
    async def act(harness: Harness) -> None:
        harness.take_lock()
        ours, theirs = socket.socketpair()
        theirs.send(encode({"event": "ready"}))
        await harness.keeper.wait_ready(ours)

        async def die_late() -> None:
            await asyncio.sleep(10 + 45 + 2.5)
            harness.free_lock()
            theirs.close()

        dying = asyncio.ensure_future(die_late())
        with pytest.raises(KeeperUnreachable):
            await harness.keeper.call_or_kill("stop", {}, 10)
        await dying
        assert now() == pytest.approx(57.887)

    with_harness(tmp_path, act)


# ---- kill ------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["rightly", "by a process that is another by now", "not at all"])
def test_kill_checks_the_start_time_of_the_process(tmp_path: Path, named: str) -> None:
    async def act(harness: Harness) -> None:
        harness.take_lock()
        actions = [(os.POSIX_SPAWN_DUP2, harness.lock, 9)]
        pid = os.posix_spawnp(SLEEP[0], SLEEP, {"PATH": "/usr/bin:/bin"}, file_actions=actions)
        harness.free_lock()  # now the process holds it
        assert harness.keeper.is_alive()
        if named != "not at all":
            ticks = start_ticks(pid) + (named != "rightly")
            write_json(f"{tmp_path}/keeper.json", {"pid": pid, "ticks": ticks, "boot_id": boot_id()})
        try:
            if named == "rightly":
                await harness.keeper.kill()
                assert not harness.keeper.is_alive()
            else:
                stored_pid = 0 if named == "not at all" else pid
                text = f"cannot kill the keeper of pod default/web: process {stored_pid} is still alive"
                with pytest.raises(RuntimeUnavailable, match=rf"^{text}$"):
                    await harness.keeper.kill()
                assert now() == pytest.approx(1.887)
                os.kill(pid, 9)
        finally:
            os.waitpid(pid, 0)

    with_harness(tmp_path, act, real_time=named == "rightly")


def test_killing_a_dead_keeper_is_a_no_op(tmp_path: Path) -> None:
    async def act(harness: Harness) -> None:
        write_json(f"{tmp_path}/keeper.json", {"pid": os.getpid(), "ticks": start_ticks(os.getpid())})
        await harness.keeper.kill()
        assert now() == 0

    with_harness(tmp_path, act)


# ---- exits of dead keepers -------------------------------------------------------------------


def container_files(directory: Path, name: str, state: Json | None, config: Json | None = None) -> None:
    folder = directory / "containers" / name
    folder.mkdir(parents=True)
    write_json(str(folder / "config.json"), {"facts": FACTS} if config is None else config)
    if state is not None:
        write_json(str(folder / "state.json"), state)


def test_stored_containers_come_from_the_files(tmp_path: Path) -> None:
    async def act(harness: Harness) -> None:
        assert harness.keeper.stored_containers() == ()
        container_files(tmp_path, "b", {"state": "running", "pid": 7, "ticks": 9, "started_at": 8})
        container_files(tmp_path, "a", None)
        container_files(tmp_path, "aa-broken", None, {"facts": {"name": 5}})
        (tmp_path / "containers" / "unfinished").mkdir()
        running = {"state": "running", "pid": 7, "ticks": 9, "started_at": 8}
        assert harness.keeper.stored_containers() == (
            decode_container({"id": "a", "facts": FACTS, "state": "created"}),
            decode_container({"id": "b", "facts": FACTS, **running}),
        )
        assert harness.keeper.stored_containers(rebooted=True)[0].state == "running"

    with_harness(tmp_path, act)


BOOTS = {
    "no keeper file": (None, False),
    "this boot": ({"boot_id": boot_id()}, False),
    "another boot": ({"boot_id": "another"}, True),
    "a file without a boot": ({"pid": 1}, True),
}


@pytest.mark.parametrize("name", BOOTS)
def test_a_keeper_from_an_earlier_boot_is_detected(tmp_path: Path, name: str) -> None:
    about, expected = BOOTS[name]

    async def act(harness: Harness) -> None:
        if about is not None:
            write_json(f"{tmp_path}/keeper.json", about)
        assert harness.keeper.is_from_earlier_boot() is expected

    with_harness(tmp_path, act)


@pytest.mark.parametrize("rebooted", [False, True])
@pytest.mark.parametrize("is_reused", [False, True])
def test_end_containers_kills_processes_and_returns_exits(tmp_path: Path, rebooted: bool, is_reused: bool) -> None:
    pid = os.posix_spawnp(SLEEP[0], SLEEP, {"PATH": "/usr/bin:/bin"}, setsid=True)
    started: Json = {"pid": pid, "ticks": start_ticks(pid) + is_reused, "started_at": 8}

    async def act(harness: Harness) -> None:
        write_json(f"{tmp_path}/keeper.json", {"boot_id": "another" if rebooted else boot_id()})
        exited: Json = {"state": "exited", "code": 3, "started_at": 6, "finished_at": 7}
        container_files(tmp_path, "a", exited)
        container_files(tmp_path, "b", {"state": "running", **started})
        container_files(tmp_path, "c", None)
        buried = {each.id: each for each in await harness.keeper.end_containers()}
        assert buried["a"] == decode_container({"id": "a", "facts": FACTS, **exited})
        end: dict[str, Any] = {
            "state": "exited",
            "code": 255 if rebooted else 137,
            "reason": "Unknown" if rebooted else "Error",
            "message": "the machine was rebooted"
            if rebooted
            else "the keeper of the pod died, so the container was killed",
            "started_at": 8,
            "finished_at": buried["b"].finished_at,
        }
        assert buried["b"] == decode_container({"id": "b", "facts": FACTS, **end})
        signal = 0 if rebooted else 9
        assert read_json(f"{tmp_path}/containers/b/state.json") == {**end, "signal": signal}
        # After a reboot, a state may be lost. It must not look like a container that never ran.
        assert buried["c"].state == ("exited" if rebooted else "created")
        assert buried["b"].finished_at > 10**18
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        assert (ended is None) is (rebooted or is_reused)

    try:
        with_harness(tmp_path, act, real_time=True)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_finished_at_is_never_before_started_at(tmp_path: Path) -> None:
    late = 4 * 10**18

    async def act(harness: Harness) -> None:
        container_files(tmp_path, "a", {"state": "running", "pid": 2**22 + 1, "ticks": 1, "started_at": late})
        (found,) = await harness.keeper.end_containers()
        assert (found.started_at, found.finished_at) == (late, late)

    with_harness(tmp_path, act, real_time=True)
