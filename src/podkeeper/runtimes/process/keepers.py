"""One keeper as the agent deals with it: found, connected to, asked, and, when it does not answer at all, ended.

    hatched or found --connect--> link --its line breaks--> is its lock free? --yes--> dead
                                    ^-----------------------------no, connect again

`root/sandboxes/<id>/keeper.lock` decides whether there is a keeper; see `keeper.main`. Files are small and local, so
they are read where they are needed; what scans or deletes goes to a thread.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from podkeeper.model.errors import CallTimedOut, RuntimeUnavailable, TryLater
from podkeeper.runtimes.process.hatchery import lock_file
from podkeeper.runtimes.process.keeper import killing
from podkeeper.runtimes.process.keeper.files import (
    CONFIG_FILE,
    KEEPER_FILE,
    LOCK_FILE,
    SOCKET_FILE,
    STATE_FILE,
    Json,
    boot_id,
    read_json,
    start_ticks,
    write_json,
)
from podkeeper.runtimes.process.links import Answer, Link, LinkLost
from podkeeper.runtimes.process.records import ToldContainer, told

CALL_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a keeper may take to say how it is."""

    silent_seconds: float = 2.0  # then it counts as silent, and is named: on a busy machine that is nothing much
    hung_seconds: float = 60.0  # silent for so long, its pod is reported as not ready, and the engine makes it anew
    force_seconds: float = 45.0  # and then it is ended, if it stands in the way of an end; a start may take 30 s


_KILLED: Final = 137
_LOST: Final = 255
_CONNECT_PAUSES: Final = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_DEATH_PAUSES: Final = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Keeper:
    """The keeper of one sandbox. `link` is None while it cannot be spoken with."""

    def __init__(
        self,
        directory: str,
        name: str,
        *,
        hear: Callable[[Json], None],
        lost: Callable[[], None],
        patience: Patience,
    ) -> None:
        """`name` is the pod's; `hear` is told events and `lost` that the line broke."""
        self.directory = directory
        self._patience = patience
        self._name = name
        self._hear = hear
        self._lost = lost
        self.link: Link | None = None
        self._first_word: asyncio.Future[Json] | None = None
        self._greeting = False  # whoever tries to get in touch sees for himself that the line broke

    # Getting in touch.

    async def greet(self, connection: socket.socket, timeout_seconds: float = CALL_SECONDS) -> None:
        """Wait for the first word of one just hatched. Raises RuntimeUnavailable."""
        first_word = self._first_word = asyncio.get_running_loop().create_future()
        self.link = Link(connection, self._name, self._heard, self._broke)
        try:
            async with asyncio.timeout(timeout_seconds):
                word = await first_word
        except TimeoutError as error:
            self.hang_up()
            raise CallTimedOut(f"cannot start a keeper for pod {self._name} in {timeout_seconds:g} s") from error
        if "error" in word:
            self.hang_up()
            raise RuntimeUnavailable(f"cannot start a keeper for pod {self._name}: {word['error']}")

    async def connect(self) -> bool:
        """Get in touch with a keeper that is there, and have it tell how things are; False: there is none any more.

        Raises RuntimeUnavailable when it lives and does not answer.
        """
        error: Exception | None = None
        for pause in _CONNECT_PAUSES:
            await asyncio.sleep(pause)
            if not self.lives():
                return False
            link: Link | None = None
            try:
                self._greeting = True
                link = Link(self._dial(), self._name, self._heard, self._broke)
                await link.ask("state", {}, self._patience.silent_seconds)
                self.link = link  # only now: who stops a container must not take a busy keeper for one that died
                return True
            except (OSError, LinkLost) as refused:  # it is not quite there yet, or going
                error = refused
            except CallTimedOut as silent:
                raise RuntimeUnavailable(f"cannot reach the keeper of pod {self._name}: it is silent") from silent
            finally:
                self._greeting = False
                if link is not None and self.link is not link:
                    link.close()
        raise RuntimeUnavailable(f"cannot reach the keeper of pod {self._name}: {error}")

    async def ping(self) -> None:
        """Have it tell how things are. Raises TryLater."""
        await self.ask("state", {}, self._patience.silent_seconds)

    def hang_up(self) -> None:
        """Speak with it no more."""
        if self.link is not None:
            self.link.close()
            self.link = None

    # Asking.

    async def ask(self, do: str, what: Json, timeout_seconds: float = CALL_SECONDS) -> Answer:
        """Ask something. Raises LinkLost, CallTimedOut or what it refuses with."""
        return await self._connected().ask(do, what, timeout_seconds)

    async def insist(self, do: str, what: Json, usual_seconds: float) -> None:
        """Have something done that must come about.

        May take longer than usual as long as the keeper answers at all. One that does not is killed: raises LinkLost.
        """
        _, answer = self._connected().begin(do, what)
        patience = usual_seconds + self._patience.force_seconds
        while True:
            done, _ = await asyncio.wait([answer], timeout=patience)
            if done:
                answer.result()
                return
            try:
                await self.ping()
            except TryLater:
                await self.kill()
            patience = self._patience.force_seconds

    def _connected(self) -> Link:
        if self.link is None:
            raise LinkLost(f"cannot ask the keeper of pod {self._name}: it does not answer")
        return self.link

    # Life and death.

    def lives(self) -> bool:
        """Whether there is a keeper, or will be one in a moment."""
        try:
            lock = lock_file(os.path.join(self.directory, LOCK_FILE), make=False)
        except FileNotFoundError:
            return False
        if lock is not None:
            os.close(lock)
        return lock is None

    async def is_dead_soon(self) -> bool:
        """Whether a keeper whose line broke is gone; it lets go of its lock a moment after the line."""
        for pause in _DEATH_PAUSES:
            await asyncio.sleep(pause)
            if not self.lives():
                return True
        return False

    async def kill(self) -> None:
        """End a keeper by force, and its containers with it. Raises RuntimeUnavailable when that does not help."""
        about = read_json(os.path.join(self.directory, KEEPER_FILE)) or {}
        pid = int(about.get("pid", 0))
        if pid and self.lives() and start_ticks(pid) == about.get("ticks"):
            killing.send(pid, signal.SIGKILL)
        if not await self.is_dead_soon():
            raise RuntimeUnavailable(f"cannot end the keeper of pod {self._name}, process {pid}: it does not die")

    def was_before_the_boot(self) -> bool:
        """Whether the machine was started anew since this keeper was."""
        about = read_json(os.path.join(self.directory, KEEPER_FILE)) or {}
        return bool(about) and about.get("boot_id") != boot_id()

    async def bury(self) -> tuple[ToldContainer, ...]:
        """After its death: see that nothing of it runs, and tell how its containers ended, as far as that is known."""
        return await asyncio.to_thread(self._bury)

    def _bury(self) -> tuple[ToldContainer, ...]:
        rebooted = self.was_before_the_boot()
        return tuple(self._end_of(each, rebooted=rebooted) for each in self.remembered(rebooted=rebooted))

    def remembered(self, *, rebooted: bool = False) -> tuple[ToldContainer, ...]:
        """What the files tell of the containers, while the keeper itself says nothing.

        A state that is not there was never written; but after a reboot it may have been lost, and must not be taken for
        that of a container that never ran.
        """
        home = os.path.join(self.directory, "containers")
        found = []
        try:
            names = sorted(os.listdir(home))
        except OSError:  # there were none yet, or it is being removed
            return ()
        for name in names:
            config = read_json(os.path.join(home, name, CONFIG_FILE))
            if config is not None:  # else its making was never finished
                lost = {"state": "running" if rebooted else "created"}
                state = read_json(os.path.join(home, name, STATE_FILE)) or lost
                with suppress(msgspec.ValidationError):
                    found.append(told({"id": name, "facts": config.get("facts"), **state}))
        return tuple(found)

    def _end_of(self, container: ToldContainer, *, rebooted: bool) -> ToldContainer:
        if container.state != "running":
            return container
        if not rebooted:
            _put_down(container.pid, container.ticks)
        end: Json = {
            "state": "exited",
            "code": _LOST if rebooted else _KILLED,
            "signal": 0 if rebooted else int(signal.SIGKILL),
            "reason": "Unknown" if rebooted else "Error",
            "message": "the machine was started anew" if rebooted else "the keeper of the pod died, and its containers",
            "started_at": container.started_at,
            "finished_at": max(time.time_ns(), container.started_at),
        }
        with suppress(OSError):
            write_json(os.path.join(self.directory, "containers", container.id, STATE_FILE), end)
        return told({"id": container.id, "facts": msgspec.to_builtins(container.facts), **end})

    # The line.

    def _dial(self) -> socket.socket:
        """Connect by a path that is short wherever the directory is."""
        home = os.open(self.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.connect(f"/proc/self/fd/{home}/{SOCKET_FILE}")
        except BaseException:
            connection.close()
            raise
        finally:
            os.close(home)
        return connection

    def _heard(self, message: Json) -> None:
        if message["event"] in ("ready", "failed"):
            if self._first_word is not None and not self._first_word.done():
                self._first_word.set_result(message)
        else:
            self._hear(message)

    def _broke(self) -> None:
        self.link = None
        if self._first_word is not None and not self._first_word.done():
            self._first_word.set_result({"error": "it died before it was ready"})
        elif not self._greeting:
            self._lost()


def _put_down(pid: int, ticks: int) -> None:
    """Kill what is left of a container whose keeper is dead, and wait until its first process is no more."""
    if start_ticks(pid) not in (0, ticks):
        return  # the number belongs to somebody else by now, so nothing of that session is left
    killing.kill_session(pid)
    deadline = time.monotonic() + 2
    while _runs(pid, ticks) and time.monotonic() < deadline:
        time.sleep(0.002)


def _runs(pid: int, ticks: int) -> bool:
    if start_ticks(pid) != ticks:
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False
