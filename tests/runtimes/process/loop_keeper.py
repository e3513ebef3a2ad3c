"""Keepers that live in the test's own event loop: the same protocol, lock and files, and no processes.

A keeper here answers each request in a callback of the loop, so a test in virtual time decides at which moment its
containers exit, its connection breaks or it dies.
"""

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.runtimes.process.hatchery import Hatchery
from podkeeper.runtimes.process.keeper.files import (
    CONFIG_FILE,
    KEEPER_FILE,
    SOCKET_FILE,
    STATE_FILE,
    STOPPED_FILE,
    Json,
    boot_id,
    write_json,
)
from podkeeper.runtimes.process.keeper.protocol import Inbox, encode
from podkeeper.testing.port_calls import PortCalls

NO_PROCESS = 2**22 + 1  # larger than any pid


class LoopKeeper:
    """The keeper of one sandbox."""

    def __init__(self, directory: str, lock: int, agent: socket.socket) -> None:
        self._directory = directory
        self._lock = os.dup(lock)
        self._loop = asyncio.get_running_loop()
        self.containers: dict[str, Json] = {}
        self._inboxes: dict[socket.socket, Inbox] = {}
        self.alive = True
        self._was_asked = False
        self.requests: list[Json] = []
        self.mute = False  # it lives, and neither reads nor answers
        self.leaving = False  # it was told to shut down
        self.stays = False  # it answers a shutdown and does not exit
        home = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"/proc/self/fd/{home}/{SOCKET_FILE}")
        os.close(home)
        self._listener.listen()
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._accept)
        write_json(os.path.join(directory, KEEPER_FILE), {"pid": NO_PROCESS, "ticks": 1, "boot_id": boot_id()})
        self._welcome(agent)
        self._send(agent, {"event": "ready"})

    # What a test makes happen.

    def exit(self, code: int) -> None:
        """Let every container that runs exit."""
        for container_id, container in self.containers.items():
            if container["state"] == "running":
                self._become(container_id, state="exited", code=code, finished_at=time.time_ns())

    def vanish(self) -> None:
        """Lose every container that does not run, without a word."""
        for container_id in [key for key, each in self.containers.items() if each["state"] != "running"]:
            del self.containers[container_id]
            shutil.rmtree(os.path.join(self._directory, "containers", container_id))

    def hang_up(self) -> None:
        """Break every connection."""
        for connection in list(self._inboxes):
            self._close(connection)

    def die(self) -> None:
        """End without a word."""
        if self.alive:
            self.alive = False
            self.hang_up()
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            os.close(self._lock)

    # The protocol.

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            self._welcome(self._listener.accept()[0])

    def _welcome(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._inboxes[connection] = Inbox()
        self._loop.add_reader(connection.fileno(), self._read, connection)

    def _close(self, connection: socket.socket) -> None:
        self._inboxes.pop(connection).close()
        self._loop.remove_reader(connection.fileno())
        connection.close()
        if not self._was_asked:  # the agent gave it up and kills its process, which it does not have here
            self.die()

    def _read(self, connection: socket.socket) -> None:
        if self.mute:
            self._loop.remove_reader(connection.fileno())
            return
        messages = self._inboxes[connection].receive(connection)
        if messages is None:
            self._close(connection)
            return
        for message, _ in messages:
            self._loop.call_soon(self._handle, connection, message)

    def _handle(self, connection: socket.socket, request: Json) -> None:
        if not self.alive:
            return
        self._was_asked = True
        self.requests.append(request)
        answer: Json = {"id": request["id"], "ok": {}}
        try:
            self._do(connection, request)
        except KeyError as error:
            answer = {"id": request["id"], "error": f"{error} is unknown", "kind": "unknown"}
        self._send(connection, answer)
        if request["do"] == "shutdown" and not self.stays:
            self.die()

    def _do(self, connection: socket.socket, request: Json) -> None:
        container_id = request.get("container", "")
        match request["do"]:
            case "state":
                containers = list(self.containers.values())
                self._send(connection, {"event": "state", "containers": containers, "leaving": self.leaving})
            case "create":
                home = os.path.join(self._directory, "containers", container_id)
                os.makedirs(home, exist_ok=True)
                write_json(os.path.join(home, CONFIG_FILE), {"facts": request["facts"]})
                self.containers.setdefault(container_id, {"id": container_id, "facts": request["facts"]})
                self._become(container_id, state="created")
            case "start":
                if self.containers[container_id]["state"] == "created":
                    about = {"pid": NO_PROCESS, "ticks": 1, "started_at": time.time_ns()}
                    self._become(container_id, state="running", **about)
            case "stop":
                if self.containers[container_id]["state"] == "running":
                    self._become(container_id, state="exited", code=143, finished_at=time.time_ns())
            case "remove":
                if (container := self.containers.pop(container_id, None)) is not None:
                    shutil.rmtree(os.path.join(self._directory, "containers", container_id))
                    self._tell({"event": "removed", "container": container})
            case "shutdown":
                self.leaving = True
                self._tell({"event": "leaving"})
                self.exit(137)
                write_json(os.path.join(self._directory, STOPPED_FILE), {})

    def _become(self, container_id: str, **state: Any) -> None:
        container = self.containers[container_id]
        container.update(state)
        about = {key: value for key, value in container.items() if key not in ("id", "facts")}
        write_json(os.path.join(self._directory, "containers", container_id, STATE_FILE), about)
        self._tell({"event": state["state"], "container": container})

    def _tell(self, event: Json) -> None:
        for connection in list(self._inboxes):
            self._send(connection, event)

    def _send(self, connection: socket.socket, message: Json) -> None:
        if connection in self._inboxes:
            with suppress(OSError):
                connection.send(encode(message))


class LoopThreads(ThreadPoolExecutor):
    """Runs what is meant for threads in the event loop. Calls of functions in `held` wait for `release()`."""

    def __init__(self) -> None:
        super().__init__(1)
        self.held: set[object] = set()
        self._waiting: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)

        if isinstance(fn, partial) and fn.args[0] in self.held:  # as `asyncio.to_thread` wraps a function
            self._waiting.append(work)
        else:
            work()
        return future

    def release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work()


class LoopHatchery(Hatchery):
    """Makes keepers in the event loop. Its calls fail as ordered, but never after their effect: a socket would leak."""

    def __init__(self, keepers: list[LoopKeeper], calls: PortCalls) -> None:
        super().__init__("", "plain")
        self._keepers = keepers
        self._calls = calls
        self.cleared: list[str] = []
        self.starts = 0
        self.closed = False
        calls.errors.update(
            {("hatchery", "hatch"): (RuntimeUnavailable,), ("hatchery", "clear"): (RuntimeUnavailable,)}
        )

    def start(self) -> None:
        self.starts += 1
        self.told.set()

    async def hatch(self, directory: str, lock: int) -> socket.socket:
        await self._turn("hatch")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._keepers.append(LoopKeeper(directory, lock, theirs))
        return ours

    async def clear(self, directory: str) -> None:
        await self._turn("clear")
        self.cleared.append(os.path.basename(directory))
        shutil.rmtree(directory)

    async def _turn(self, method: str) -> None:
        fault = self._calls.begin("hatchery", method)
        await asyncio.sleep(0)
        if fault is not None:
            raise fault.error(f"cannot {method}: a fault was injected")

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed = True
