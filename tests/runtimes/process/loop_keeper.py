"""Keepers in the test's own event loop.

They use the real protocol, lock and files, but no processes.

A keeper answers each request in a callback of the loop. So a test in virtual time decides when containers exit, a
connection breaks or a keeper dies.
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
from podkeeper.runtimes.process.fork_client import ForkServerClient
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
from podkeeper.runtimes.process.keeper.protocol import MessageBuffer, encode
from podkeeper.testing.port_calls import PortCalls

NO_PROCESS = 2**22 + 1  # larger than any pid


class LoopKeeper:
    def __init__(self, directory: str, lock: int, agent: socket.socket) -> None:
        self._directory = directory
        self._lock = os.dup(lock)
        self._loop = asyncio.get_running_loop()
        self.containers: dict[str, Json] = {}
        self._buffers: dict[socket.socket, MessageBuffer] = {}
        self.alive = True
        self._has_received = False
        self.requests: list[Json] = []
        self.hangs = False  # it runs, but neither reads nor answers
        self.leaving = False  # it has received a shutdown
        self.stays = False  # it answers a shutdown and does not exit
        directory_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"/proc/self/fd/{directory_fd}/{SOCKET_FILE}")
        os.close(directory_fd)
        self._listener.listen()
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._accept)
        write_json(os.path.join(directory, KEEPER_FILE), {"pid": NO_PROCESS, "ticks": 1, "boot_id": boot_id()})
        self._add_connection(agent)
        self._send(agent, {"event": "ready"})

    # Actions of tests.

    def exit(self, code: int) -> None:
        """Let every running container exit."""
        for container_id, container in self.containers.items():
            if container["state"] == "running":
                self._set_state(container_id, state="exited", code=code, finished_at=time.time_ns())

    def lose_containers(self) -> None:
        """Remove all containers that are not running, without an event."""
        for container_id in [key for key, each in self.containers.items() if each["state"] != "running"]:
            del self.containers[container_id]
            shutil.rmtree(os.path.join(self._directory, "containers", container_id))

    def disconnect(self) -> None:
        for connection in list(self._buffers):
            self._close(connection)

    def die(self) -> None:
        """End without an event."""
        if self.alive:
            self.alive = False
            self.disconnect()
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            os.close(self._lock)

    # Protocol.

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            self._add_connection(self._listener.accept()[0])

    def _add_connection(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._buffers[connection] = MessageBuffer()
        self._loop.add_reader(connection.fileno(), self._read, connection)

    def _close(self, connection: socket.socket) -> None:
        self._buffers.pop(connection).close()
        self._loop.remove_reader(connection.fileno())
        connection.close()
        if not self._has_received:  # the agent discards it and kills its process, which does not exist here
            self.die()

    def _read(self, connection: socket.socket) -> None:
        if self.hangs:
            self._loop.remove_reader(connection.fileno())
            return
        messages = self._buffers[connection].receive(connection)
        if messages is None:
            self._close(connection)
            return
        for message, _ in messages:
            self._loop.call_soon(self._handle, connection, message)

    def _handle(self, connection: socket.socket, request: Json) -> None:
        if not self.alive:
            return
        self._has_received = True
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
                directory_fd = os.path.join(self._directory, "containers", container_id)
                os.makedirs(directory_fd, exist_ok=True)
                write_json(os.path.join(directory_fd, CONFIG_FILE), {"facts": request["facts"]})
                self.containers.setdefault(container_id, {"id": container_id, "facts": request["facts"]})
                self._set_state(container_id, state="created")
            case "start":
                if self.containers[container_id]["state"] == "created":
                    about = {"pid": NO_PROCESS, "ticks": 1, "started_at": time.time_ns()}
                    self._set_state(container_id, state="running", **about)
            case "stop":
                if self.containers[container_id]["state"] == "running":
                    self._set_state(container_id, state="exited", code=143, finished_at=time.time_ns())
            case "remove":
                if (container := self.containers.pop(container_id, None)) is not None:
                    shutil.rmtree(os.path.join(self._directory, "containers", container_id))
                    self._broadcast({"event": "removed", "container": container})
            case "shutdown":
                self.leaving = True
                self._broadcast({"event": "leaving"})
                self.exit(137)
                write_json(os.path.join(self._directory, STOPPED_FILE), {})

    def _set_state(self, container_id: str, **state: Any) -> None:
        container = self.containers[container_id]
        container.update(state)
        about = {key: value for key, value in container.items() if key not in ("id", "facts")}
        write_json(os.path.join(self._directory, "containers", container_id, STATE_FILE), about)
        self._broadcast({"event": state["state"], "container": container})

    def _broadcast(self, event: Json) -> None:
        for connection in list(self._buffers):
            self._send(connection, event)

    def _send(self, connection: socket.socket, message: Json) -> None:
        if connection in self._buffers:
            with suppress(OSError):
                connection.send(encode(message))


class LoopThreads(ThreadPoolExecutor):
    """Runs thread functions in the event loop. Calls of functions in `held` wait for `release()`."""

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


class LoopForkServer(ForkServerClient):
    """Creates keepers in the event loop. Injected faults happen before the effect, because a socket would leak."""

    def __init__(self, keepers: list[LoopKeeper], calls: PortCalls) -> None:
        super().__init__("", "plain")
        self._keepers = keepers
        self._calls = calls
        self.cleared: list[str] = []
        self.starts = 0
        self.closed = False
        calls.errors.update(
            {("fork_server", "fork_keeper"): (RuntimeUnavailable,), ("fork_server", "clear"): (RuntimeUnavailable,)}
        )

    def start(self) -> None:
        self.starts += 1
        self.ready.set()

    async def replace_if_stopped(self) -> None:
        """Do nothing: it is no process."""

    async def fork_keeper(self, directory: str, lock: int) -> socket.socket:
        await self._begin("fork_keeper")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._keepers.append(LoopKeeper(directory, lock, theirs))
        return ours

    async def clear(self, directory: str) -> None:
        await self._begin("clear")
        self.cleared.append(os.path.basename(directory))
        shutil.rmtree(directory)

    async def _begin(self, method: str) -> None:
        fault = self._calls.begin("fork_server", method)
        await asyncio.sleep(0)
        if fault is not None:
            raise fault.error(f"cannot {method}: a fault was injected")

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed = True
