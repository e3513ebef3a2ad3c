"""The agent's client of one keeper: connect, send requests, kill.

    forked or adopted --connect--> link --connection breaks--> is keeper.lock free? --yes--> dead
                                     ^-------------------------------no, reconnect

`root/sandboxes/<id>/keeper.lock` shows whether a keeper runs (see `keeper.main`). Small local files are read in the
event loop. Scans and deletions run in a thread.
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

from podkeeper.linux import cgroup
from podkeeper.model.errors import CallTimedOut, RuntimeUnavailable, TryLater
from podkeeper.runtimes.process.fork_client import lock_file, process_state
from podkeeper.runtimes.process.keeper import kill
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
from podkeeper.runtimes.process.keeper_link import Answer, KeeperLink, KeeperUnreachable
from podkeeper.runtimes.process.records import ReportedContainer, decode_container

# More than the 30 s for which one container start may block a keeper (`jail.START_SECONDS`).
CALL_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class KeeperTimeouts:
    """How long the agent waits for a keeper."""

    answer_seconds: float = 2.0  # after this time, health() reports the keeper; a busy machine alone can cause this
    # After this time, its sandbox is reported as not ready, and the engine creates another one.
    # It was 2 s once, and a busy machine then restarted pods.
    not_ready_seconds: float = 60.0
    # After this time, it is killed if it blocks a stop or removal; more than the 30 s that a container start may take.
    kill_seconds: float = 45.0
    # How often a quiet keeper is pinged, 0: never. A keeper that was stopped (SIGSTOP) keeps its connection open, so
    # without a ping its pod would be reported as running for ever.
    ping_period_seconds: float = 60.0


# 128 + SIGKILL: the kernel kills the containers of a dead keeper (PR_SET_PDEATHSIG).
_KILLED: Final = 137
# As containerd reports an exit status that it could not determine.
_LOST: Final = 255
# A keeper holds its lock before its socket listens, and still holds it after the socket is closed. Both usually last
# milliseconds, longer on a busy machine.
_CONNECT_PAUSES: Final = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
# The kernel releases the lock milliseconds after SIGKILL. A process in uninterruptible sleep keeps it, so do not wait
# forever: all callers retry later.
_DEATH_PAUSES: Final = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class KeeperClient:
    """The client of one sandbox's keeper. `link` is None while there is no connection."""

    def __init__(
        self,
        directory: str,
        name: str,
        *,
        on_event: Callable[[Json], None],
        on_lost: Callable[[], None],
        timeouts: KeeperTimeouts,
    ) -> None:
        """`name` is the pod's name. `on_event` receives events, `on_lost` is called when the connection breaks."""
        self.directory = directory
        self._timeouts = timeouts
        self._name = name
        self._on_event = on_event
        self._on_lost = on_lost
        self.link: KeeperLink | None = None
        self._startup: asyncio.Future[Json] | None = None
        self._connecting = False  # connect() handles a broken connection itself, so do not call on_lost

    # Connection.

    async def wait_ready(self, connection: socket.socket, timeout_seconds: float = CALL_SECONDS) -> None:
        """Wait until a keeper that was just forked is ready. Raises RuntimeUnavailable."""
        startup = self._startup = asyncio.get_running_loop().create_future()
        self.link = KeeperLink(connection, self._name, self._on_message, self._on_link_lost)
        try:
            async with asyncio.timeout(timeout_seconds):
                message = await startup
        except TimeoutError as error:
            self.disconnect()
            raise CallTimedOut(f"cannot start a keeper for pod {self._name} within {timeout_seconds:g} s") from error
        if "error" in message:
            self.disconnect()
            raise RuntimeUnavailable(f"cannot start a keeper for pod {self._name}: {message['error']}")

    async def connect(self) -> bool:
        """Connect to a running keeper and request its state. Return False if the keeper is dead.

        Raises RuntimeUnavailable if it runs but does not answer.
        """
        error: Exception | None = None
        for pause in _CONNECT_PAUSES:
            await asyncio.sleep(pause)
            if not self.is_alive():
                return False
            link: KeeperLink | None = None
            try:
                self._connecting = True
                link = KeeperLink(self._open_socket(), self._name, self._on_message, self._on_link_lost)
                await link.call("state", {}, self._timeouts.answer_seconds)
                # Set the link only after the answer. Otherwise a caller that stops a container would treat a busy
                # keeper as dead.
                self.link = link
                return True
            except (OSError, KeeperUnreachable) as cause:  # the keeper is still starting, or is shutting down
                error = cause
            # Do not retry here: its socket listens, so it is stopped or busy. `KeeperPool._reconnect` retries for as
            # long as it takes.
            except CallTimedOut as cause:
                raise RuntimeUnavailable(f"cannot reach the keeper of pod {self._name}: it does not answer") from cause
            finally:
                self._connecting = False
                if link is not None and self.link is not link:
                    link.close()
        raise RuntimeUnavailable(f"cannot reach the keeper of pod {self._name}: {error}")

    async def ping(self) -> None:
        """Request its state as a liveness check. Raises TryLater."""
        await self.call("state", {}, self._timeouts.answer_seconds)

    async def check(self) -> None:
        """Drop the connection if the keeper does not answer for longer than any of its calls blocks it."""
        if (link := self.link) is None:
            return
        try:
            await link.call("state", {}, self._timeouts.kill_seconds)
        except CallTimedOut:
            if self.link is link:
                self.disconnect()
                self._on_lost()
        except TryLater:  # the connection broke meanwhile, which is handled where that is noticed
            pass

    def disconnect(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None

    # Requests.

    async def call(self, do: str, what: Json, timeout_seconds: float = CALL_SECONDS) -> Answer:
        """Send a request and return the answer. Raises KeeperUnreachable, CallTimedOut or the keeper's error."""
        return await self._connected().call(do, what, timeout_seconds)

    async def call_or_kill(self, do: str, what: Json, expected_seconds: float) -> None:
        """Send a request that must succeed.

        While the keeper answers pings, wait longer than expected. If it does not answer, kill it and raise
        KeeperUnreachable.
        """
        _, answer = self._connected().send_request(do, what)
        timeout = expected_seconds + self._timeouts.kill_seconds
        while True:
            done, _ = await asyncio.wait([answer], timeout=timeout)
            if done:
                answer.result()
                return
            try:
                await self.ping()
            except TryLater:
                await self.kill()
            timeout = self._timeouts.kill_seconds

    def _connected(self) -> KeeperLink:
        if self.link is None:
            raise KeeperUnreachable(f"cannot reach the keeper of pod {self._name}: it does not answer")
        return self.link

    # Liveness.

    def is_alive(self) -> bool:
        """Return whether the keeper runs or is about to start."""
        try:
            lock = lock_file(os.path.join(self.directory, LOCK_FILE), make=False)
        except FileNotFoundError:
            return False
        if lock is not None:
            os.close(lock)
        return lock is None

    async def wait_dead(self) -> bool:
        """Return whether the keeper is dead.

        Wait briefly, because a keeper closes its connection before it releases its lock.
        """
        for pause in _DEATH_PAUSES:
            await asyncio.sleep(pause)
            if not self.is_alive():
                return True
        return False

    async def kill(self) -> None:
        """Kill the keeper and with it its containers. Raises RuntimeUnavailable if it survives."""
        about = read_json(os.path.join(self.directory, KEEPER_FILE)) or {}
        pid = int(about.get("pid", 0))
        # Two checks, because the PID may belong to another process by now.
        if pid and self.is_alive() and start_ticks(pid) == about.get("ticks"):
            kill.send(pid, signal.SIGKILL)
        if not await self.wait_dead():
            raise RuntimeUnavailable(f"cannot kill the keeper of pod {self._name}: process {pid} is still alive")

    def is_from_earlier_boot(self) -> bool:
        """Return whether the machine has rebooted since this keeper started."""
        about = read_json(os.path.join(self.directory, KEEPER_FILE)) or {}
        return bool(about) and about.get("boot_id") != boot_id()

    async def end_containers(self) -> tuple[ReportedContainer, ...]:
        """Kill the leftovers of a dead keeper and return its containers, with their exit codes if known."""
        return await asyncio.to_thread(self._end_containers)

    def _end_containers(self) -> tuple[ReportedContainer, ...]:
        rebooted = self.is_from_earlier_boot()
        return tuple(self._ended(each, rebooted=rebooted) for each in self.stored_containers(rebooted=rebooted))

    def stored_containers(self, *, rebooted: bool = False) -> tuple[ReportedContainer, ...]:
        """Return the containers from their files, for a keeper that is dead or does not answer.

        Without a state file, a container never started. But after a reboot, the file may be lost. Then assume that the
        container has run, so that it does not run again.
        """
        home = os.path.join(self.directory, "containers")
        found = []
        try:
            names = sorted(os.listdir(home))
        except OSError:  # no container was created yet, or the sandbox is being removed
            return ()
        for name in names:
            config = read_json(os.path.join(home, name, CONFIG_FILE))
            if config is not None:  # without it, the creation was never finished
                lost = {"state": "running" if rebooted else "created"}
                state = read_json(os.path.join(home, name, STATE_FILE)) or lost
                with suppress(msgspec.ValidationError):
                    found.append(decode_container({"id": name, "facts": config.get("facts"), **state}))
        return tuple(found)

    def _ended(self, container: ReportedContainer, *, rebooted: bool) -> ReportedContainer:
        if container.state != "running":
            return container
        # After a reboot, the stored PIDs belong to other processes.
        if not rebooted:
            _kill_leftovers(container.pid, container.ticks)
            self._kill_cgroup(container)
        end: Json = {
            "state": "exited",
            "code": _LOST if rebooted else _KILLED,
            "signal": 0 if rebooted else int(signal.SIGKILL),
            "reason": "Unknown" if rebooted else "Error",
            "message": "the machine was rebooted"
            if rebooted
            else "the keeper of the pod died, so the container was killed",
            "started_at": container.started_at,
            "finished_at": max(time.time_ns(), container.started_at),
        }
        with suppress(OSError):
            write_json(os.path.join(self.directory, "containers", container.id, STATE_FILE), end)
        return decode_container({"id": container.id, "facts": msgspec.to_builtins(container.facts), **end})

    def _kill_cgroup(self, container: ReportedContainer) -> None:
        """Kill the processes that have left the session of the container.

        With the host's PID namespace, a daemon of the container would otherwise run beside the next container.
        """
        config = read_json(os.path.join(self.directory, "containers", container.id, CONFIG_FILE)) or {}
        if (settings := config.get("cgroup")) is not None:
            with suppress(OSError):
                cgroup.kill_all(cgroup.Cgroup.from_json(settings["place"]))

    # Socket.

    def _open_socket(self) -> socket.socket:
        """Connect through /proc, because the path of a Unix socket may have at most 107 bytes."""
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

    def _on_message(self, message: Json) -> None:
        if message["event"] in ("ready", "failed"):
            if self._startup is not None and not self._startup.done():
                self._startup.set_result(message)
        else:
            self._on_event(message)

    def _on_link_lost(self) -> None:
        self.link = None
        if self._startup is not None and not self._startup.done():
            self._startup.set_result({"error": "the keeper died before it was ready"})
        elif not self._connecting:
            self._on_lost()


def _kill_leftovers(pid: int, ticks: int) -> None:
    """Kill the session of a container whose keeper is dead. Wait until its first process has ended."""
    if start_ticks(pid) not in (0, ticks):
        return  # the PID was reused, so no process of that session is left
    kill.kill_session(pid)
    # Bounded, because a process in uninterruptible sleep does not end. It blocks a thread, not the event loop.
    deadline = time.monotonic() + 2
    while _runs(pid, ticks) and time.monotonic() < deadline:
        time.sleep(0.002)


def _runs(pid: int, ticks: int) -> bool:
    return start_ticks(pid) == ticks and process_state(pid) not in ("", "Z", "X")
