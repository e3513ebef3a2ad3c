"""One keeper as the agent deals with it: greeted, found again, insisted on, killed, buried."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable
from podkeeper.runtimes.process.hatchery import lock_file
from podkeeper.runtimes.process.keeper.files import Json, boot_id, read_json, start_ticks, write_json
from podkeeper.runtimes.process.keeper.protocol import Inbox, encode
from podkeeper.runtimes.process.keepers import Keeper, Patience
from podkeeper.runtimes.process.links import LinkLost
from podkeeper.runtimes.process.records import told
from podkeeper.testing.virtual_time import simulate
from tests.runtimes.process.fake_jail import SLEEP

POD = "default/web"
FACTS = {"name": "app", "attempt": 0, "image": "host", "image_id": "host", "spec_hash": "", "created_at": 5}
PATIENCE = Patience(silent_seconds=2, hung_seconds=60, force_seconds=45)


class Scene:
    """A directory with a keeper's files, and the keeper's side, which the test speaks for."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.heard: list[Json] = []
        self.lost = 0
        self.keeper = Keeper(directory, POD, hear=self.heard.append, lost=self._lose, patience=PATIENCE)
        self.lock = -1
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []

    def _lose(self) -> None:
        self.lost += 1

    def take_lock(self) -> None:
        """Let there be a keeper."""
        lock = lock_file(f"{self.directory}/keeper.lock", make=True)
        assert lock is not None
        self.lock = lock

    def free_lock(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def listen(self, serve: Callable[["Scene", socket.socket], None]) -> None:
        """Let the keeper accept connections."""
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
        self.keeper.hang_up()
        loop = asyncio.get_running_loop()
        for each in (*self._open, *([self._listener] if self._listener else [])):
            if each.fileno() >= 0:
                loop.remove_reader(each.fileno())
                each.close()


def answers(*, leave_out: str = "") -> Callable[[Scene, socket.socket], None]:
    """A keeper that answers everything at once, but one kind of request."""

    def serve(scene: Scene, connection: socket.socket) -> None:
        inbox = Inbox()

        def read() -> None:
            messages = inbox.receive(connection)
            if messages is None:
                asyncio.get_running_loop().remove_reader(connection.fileno())
                return
            for message, _ in messages:
                if message["do"] == leave_out:
                    scene.heard.append({"asked": message})
                    continue
                if message["do"] == "state":
                    connection.send(encode({"event": "state", "containers": []}))
                connection.send(encode({"id": message["id"], "ok": {}}))

        asyncio.get_running_loop().add_reader(connection.fileno(), read)

    return serve


def silent(scene: Scene, connection: socket.socket) -> None:
    """A keeper that accepts and says nothing."""


def hangs_up(scene: Scene, connection: socket.socket) -> None:
    """A keeper that closes every connection."""
    connection.close()


@asynccontextmanager
async def scene_in(directory: Path) -> AsyncIterator[Scene]:
    scene = Scene(str(directory))
    try:
        yield scene
    finally:
        scene.close()


def in_scene(directory: Path, act: Callable[[Scene], Awaitable[None]], *, real_time: bool = False) -> None:
    async def whole() -> None:
        async with scene_in(directory) as scene:
            await act(scene)

    if real_time:
        asyncio.run(whole())
    else:
        simulate(whole())


def now() -> float:
    return asyncio.get_running_loop().time()


def test_the_usual_patience() -> None:
    assert Patience() == Patience(silent_seconds=2, hung_seconds=60, force_seconds=45)


# ---- getting in touch ------------------------------------------------------------------------


def test_a_new_keeper_is_there_with_its_first_word(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        ours, theirs = socket.socketpair()
        theirs.send(encode({"event": "ready"}) + encode({"event": "leaving"}))
        await scene.keeper.greet(ours)
        assert await scene.keeper.is_dead_soon()  # no lock yet: only its line says that it is there
        assert (scene.heard, scene.lost) == ([{"event": "leaving"}], 0)
        theirs.send(encode({"event": "ready"}))  # said twice: no harm
        theirs.close()
        await asyncio.sleep(1)
        assert (scene.keeper.link, scene.lost) == (None, 1)

    in_scene(tmp_path, act)


FAILURES = {
    "it says why": (b'{"event":"failed","error":"no room"}\n', "cannot start a keeper for pod default/web: no room"),
    "it dies": (b"", "cannot start a keeper for pod default/web: it died before it was ready"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_new_keeper_that_fails_is_reported(tmp_path: Path, name: str) -> None:
    word, text = FAILURES[name]

    async def act(scene: Scene) -> None:
        ours, theirs = socket.socketpair()
        if word:
            theirs.send(word)
        theirs.close()
        with pytest.raises(RuntimeUnavailable, match=rf"^{text}$"):
            await scene.keeper.greet(ours)
        assert (scene.keeper.link, scene.lost, scene.heard) == (None, 0, [])

    in_scene(tmp_path, act)


@pytest.mark.parametrize(("given", "seconds"), [({}, 60), ({"timeout_seconds": 3.5}, 3.5)])
def test_a_new_keeper_that_says_nothing_is_given_up(tmp_path: Path, given: dict[str, float], seconds: float) -> None:
    async def act(scene: Scene) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            with pytest.raises(CallTimedOut, match=rf"^cannot start a keeper for pod default/web in {seconds:g} s$"):
                await scene.keeper.greet(ours, **given)
            assert now() == seconds
            assert scene.keeper.link is None

    in_scene(tmp_path, act)


def test_where_there_is_no_keeper_nobody_is_connected_to(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        assert not scene.keeper.lives()
        assert not await scene.keeper.connect()
        assert os.listdir(tmp_path) == []
        scene.take_lock()
        assert scene.keeper.lives()
        scene.free_lock()
        assert not scene.keeper.lives()
        assert not await scene.keeper.connect()
        assert now() == 0

    in_scene(tmp_path, act)


def test_a_keeper_that_is_there_tells_how_things_are(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.take_lock()
        scene.listen(answers())
        assert await scene.keeper.connect()
        assert scene.heard == [{"event": "state", "containers": []}]
        assert now() == 0
        assert await scene.keeper.ask("start", {}, 5) == ({}, [])
        scene.close()
        await asyncio.sleep(1)
        assert scene.lost == 0

    in_scene(tmp_path, act)


def test_a_line_that_breaks_after_it_stood_is_reported(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.take_lock()
        scene.listen(answers())
        assert await scene.keeper.connect()
        for connection in scene._open:
            asyncio.get_running_loop().remove_reader(connection.fileno())
            connection.close()
        await asyncio.sleep(1)
        assert (scene.lost, scene.keeper.link) == (1, None)

    in_scene(tmp_path, act)


@pytest.mark.parametrize("how", ["no socket", "refuses", "hangs up"])
def test_a_keeper_that_cannot_be_reached_is_tried_for_two_seconds(tmp_path: Path, how: str) -> None:
    async def act(scene: Scene) -> None:
        scene.take_lock()
        if how == "hangs up":
            scene.listen(hangs_up)
        elif how == "refuses":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
                dead.bind(f"{tmp_path}/keeper.sock")
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(RuntimeUnavailable, match=r"^cannot reach the keeper of pod default/web: ") as caught:
            await scene.keeper.connect()
        why = {"no socket": "No such file", "refuses": "Connection refused", "hangs up": "the connection is closed"}
        assert why[how] in str(caught.value)
        assert now() == pytest.approx(1.88)
        assert (scene.lost, scene.keeper.link, len(os.listdir("/proc/self/fd"))) == (0, None, before)

    in_scene(tmp_path, act)


def test_a_keeper_that_dies_while_it_is_tried_is_gone(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.take_lock()
        asyncio.get_running_loop().call_later(0.3, scene.free_lock)
        assert not await scene.keeper.connect()
        assert now() == pytest.approx(0.38)

    in_scene(tmp_path, act)


def test_a_keeper_that_is_silent_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.take_lock()
        scene.listen(silent)
        text = "cannot reach the keeper of pod default/web: it is silent"
        with pytest.raises(RuntimeUnavailable, match=rf"^{text}$"):
            await scene.keeper.connect()
        assert now() == PATIENCE.silent_seconds
        assert (scene.keeper.link, scene.lost) == (None, 0)
        with pytest.raises(LinkLost, match=r"^cannot ask the keeper of pod default/web: it does not answer$"):
            await scene.keeper.ask("start", {})

    in_scene(tmp_path, act)


def test_a_keeper_counts_as_reached_only_when_it_has_answered(tmp_path: Path) -> None:
    """Who stops a container waits for a link. The end of an attempt must not look like the death of the keeper."""

    async def act(scene: Scene) -> None:
        scene.take_lock()
        scene.listen(silent)
        connecting = asyncio.ensure_future(scene.keeper.connect())
        await asyncio.sleep(PATIENCE.silent_seconds / 2)
        assert scene.keeper.link is None
        with pytest.raises(RuntimeUnavailable):
            await connecting

    in_scene(tmp_path, act)


# ---- insisting -------------------------------------------------------------------------------


def test_who_insists_waits_as_long_as_the_keeper_answers_at_all(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.take_lock()
        scene.listen(answers(leave_out="stop"))
        await scene.keeper.connect()
        insisting = asyncio.ensure_future(scene.keeper.insist("stop", {"grace": 10}, 10))
        await asyncio.sleep(10 + 45 + 45 + 45 + 1)
        pings = scene.heard.count({"event": "state", "containers": []})
        asked = [each["asked"] for each in scene.heard if "asked" in each]
        assert (pings, insisting.done()) == (1 + 3, False)
        assert [(each["do"], each["grace"]) for each in asked] == [("stop", 10)]
        scene._open[0].send(encode({"id": asked[0]["id"], "ok": {}}))
        await insisting
        assert now() == 146

    in_scene(tmp_path, act)


def test_who_insists_hears_of_a_refusal(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.take_lock()
        scene.listen(answers(leave_out="stop"))
        await scene.keeper.connect()
        insisting = asyncio.ensure_future(scene.keeper.insist("stop", {}, 10))
        await asyncio.sleep(1)
        scene._open[0].send(encode({"id": 2, "error": "no"}))
        with pytest.raises(RuntimeRefused):
            await insisting

    in_scene(tmp_path, act)


def test_a_keeper_that_does_not_answer_at_all_is_killed(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.take_lock()
        ours, theirs = socket.socketpair()
        theirs.send(encode({"event": "ready"}))
        await scene.keeper.greet(ours)

        async def die_late() -> None:
            await asyncio.sleep(10 + 45 + 2.5)
            scene.free_lock()
            theirs.close()

        dying = asyncio.ensure_future(die_late())
        with pytest.raises(LinkLost):
            await scene.keeper.insist("stop", {}, 10)
        await dying
        assert now() == pytest.approx(57.887)

    in_scene(tmp_path, act)


# ---- killing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["rightly", "by a process that is another by now", "not at all"])
def test_only_the_process_that_is_named_rightly_is_killed(tmp_path: Path, named: str) -> None:
    async def act(scene: Scene) -> None:
        scene.take_lock()
        actions = [(os.POSIX_SPAWN_DUP2, scene.lock, 9)]
        pid = os.posix_spawnp(SLEEP[0], SLEEP, {"PATH": "/usr/bin:/bin"}, file_actions=actions)
        scene.free_lock()  # the process holds it now
        assert scene.keeper.lives()
        if named != "not at all":
            ticks = start_ticks(pid) + (named != "rightly")
            write_json(f"{tmp_path}/keeper.json", {"pid": pid, "ticks": ticks, "boot_id": boot_id()})
        try:
            if named == "rightly":
                await scene.keeper.kill()
                assert not scene.keeper.lives()
            else:
                told_pid = 0 if named == "not at all" else pid
                text = f"cannot end the keeper of pod default/web, process {told_pid}: it does not die"
                with pytest.raises(RuntimeUnavailable, match=rf"^{text}$"):
                    await scene.keeper.kill()
                assert now() == pytest.approx(1.887)
                os.kill(pid, 9)
        finally:
            os.waitpid(pid, 0)

    in_scene(tmp_path, act, real_time=named == "rightly")


def test_a_keeper_that_is_dead_need_not_be_killed(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        write_json(f"{tmp_path}/keeper.json", {"pid": os.getpid(), "ticks": start_ticks(os.getpid())})
        await scene.keeper.kill()
        assert now() == 0

    in_scene(tmp_path, act)


# ---- burying ---------------------------------------------------------------------------------


def container_files(directory: Path, name: str, state: Json | None, config: Json | None = None) -> None:
    home = directory / "containers" / name
    home.mkdir(parents=True)
    write_json(str(home / "config.json"), {"facts": FACTS} if config is None else config)
    if state is not None:
        write_json(str(home / "state.json"), state)


def test_what_the_files_tell_while_a_keeper_says_nothing(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        assert scene.keeper.remembered() == ()
        container_files(tmp_path, "b", {"state": "running", "pid": 7, "ticks": 9, "started_at": 8})
        container_files(tmp_path, "a", None)
        container_files(tmp_path, "aa-broken", None, {"facts": {"name": 5}})
        (tmp_path / "containers" / "unfinished").mkdir()
        running = {"state": "running", "pid": 7, "ticks": 9, "started_at": 8}
        assert scene.keeper.remembered() == (
            told({"id": "a", "facts": FACTS, "state": "created"}),
            told({"id": "b", "facts": FACTS, **running}),
        )
        assert scene.keeper.remembered(rebooted=True)[0].state == "running"

    in_scene(tmp_path, act)


BOOTS = {
    "no keeper file": (None, False),
    "this boot": ({"boot_id": boot_id()}, False),
    "another boot": ({"boot_id": "another"}, True),
    "a file without a boot": ({"pid": 1}, True),
}


@pytest.mark.parametrize("name", BOOTS)
def test_a_keeper_of_another_boot_is_known_by_its_file(tmp_path: Path, name: str) -> None:
    about, expected = BOOTS[name]

    async def act(scene: Scene) -> None:
        if about is not None:
            write_json(f"{tmp_path}/keeper.json", about)
        assert scene.keeper.was_before_the_boot() is expected

    in_scene(tmp_path, act)


@pytest.mark.parametrize("rebooted", [False, True])
@pytest.mark.parametrize("stranger", [False, True])
def test_containers_of_a_dead_keeper_have_ended_and_their_processes_too(
    tmp_path: Path, rebooted: bool, stranger: bool
) -> None:
    pid = os.posix_spawnp(SLEEP[0], SLEEP, {"PATH": "/usr/bin:/bin"}, setsid=True)
    started: Json = {"pid": pid, "ticks": start_ticks(pid) + stranger, "started_at": 8}

    async def act(scene: Scene) -> None:
        write_json(f"{tmp_path}/keeper.json", {"boot_id": "another" if rebooted else boot_id()})
        exited: Json = {"state": "exited", "code": 3, "started_at": 6, "finished_at": 7}
        container_files(tmp_path, "a", exited)
        container_files(tmp_path, "b", {"state": "running", **started})
        container_files(tmp_path, "c", None)
        buried = {each.id: each for each in await scene.keeper.bury()}
        assert buried["a"] == told({"id": "a", "facts": FACTS, **exited})
        end: dict[str, Any] = {
            "state": "exited",
            "code": 255 if rebooted else 137,
            "reason": "Unknown" if rebooted else "Error",
            "message": "the machine was started anew" if rebooted else "the keeper of the pod died, and its containers",
            "started_at": 8,
            "finished_at": buried["b"].finished_at,
        }
        assert buried["b"] == told({"id": "b", "facts": FACTS, **end})
        signal = 0 if rebooted else 9
        assert read_json(f"{tmp_path}/containers/b/state.json") == {**end, "signal": signal}
        # After a reboot a state may be lost: it must not be taken for that of a container that never ran.
        assert buried["c"].state == ("exited" if rebooted else "created")
        assert buried["b"].finished_at > 10**18
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        assert (ended is None) is (rebooted or stranger)

    try:
        in_scene(tmp_path, act, real_time=True)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_an_end_is_never_before_its_start(tmp_path: Path) -> None:
    late = 4 * 10**18

    async def act(scene: Scene) -> None:
        container_files(tmp_path, "a", {"state": "running", "pid": 2**22 + 1, "ticks": 1, "started_at": late})
        (found,) = await scene.keeper.bury()
        assert (found.started_at, found.finished_at) == (late, late)

    in_scene(tmp_path, act, real_time=True)
