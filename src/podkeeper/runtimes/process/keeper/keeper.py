"""A pod's keeper: does what agents ask, reaps what ends, and tells everybody who is connected.

| do | with | answers |
|---|---|---|
| `state` | | after an event `state` with all `containers`, each as other events tell it |
| `create` | `container` (its id), `launch`, and what `Container` reads besides; `facts` are the agent's own | |
| `start`, `remove`, `reopen_log` | `container` | once it is so |
| `stop` | `container`, `grace` in seconds | once it has exited |
| `spare` | | at once; no container that was asked to end is forced to |
| `exec` | `container`, `argv`, `timeout`; three files, or with `tty` a console socket | `code`, `timed_out`: its end |
| `kill_exec`, `hang_up` | `request`: the id of an `exec` of the same connection | |
| `attach` | `container`, `stdin`: whether it is wanted; files for stdout and stderr | what `Container.attach` does |
| `shutdown` | | once all has ended; then the keeper goes |

Errors are of a kind: `unknown` container, `launch` (it could not be started), `refused` (anything else).
"""

import os
import shutil
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from podkeeper.runtimes.process.keeper import killing
from podkeeper.runtimes.process.keeper.commands import Command
from podkeeper.runtimes.process.keeper.containers import Container, Jail, NotPossible
from podkeeper.runtimes.process.keeper.files import STOPPED_FILE, Json, write_json
from podkeeper.runtimes.process.keeper.launch import LaunchError
from podkeeper.runtimes.process.keeper.loop import Loop
from podkeeper.runtimes.process.keeper.protocol import Connection

_ROUNDS: Final = 200  # of killing what is left at the end
_ROUND_SECONDS: Final = 0.01
_FAREWELL_SECONDS: Final = 1.0  # for the last answer to be read


class Keeper:
    """One pod's containers, and who asks for them. Works in its sandbox's directory."""

    def __init__(self, loop: Loop, jail: Jail, listener: socket.socket, log_directory: str) -> None:
        self._loop = loop
        self._jail = jail
        self._listener = listener
        self._log_directory = log_directory
        self._containers: dict[str, Container] = {}
        self._commands: dict[int, Command] = {}
        self._requests: dict[tuple[Connection, int], Command] = {}
        self._errands: dict[int, Callable[[int], None]] = {}
        self._connections: list[Connection] = []
        self._leaving: list[Callable[[], None]] | None = None  # who is to be told at the end
        listener.setblocking(False)
        loop.on_readable(listener.fileno(), self._accept)
        loop.on_signal(signal.SIGCHLD, self._reap)

    def welcome(self, connection: socket.socket) -> Connection:
        """Serve one more agent."""
        served = Connection(self._loop, connection, self._handle, self._said_goodbye)
        self._connections.append(served)
        return served

    # Agents.

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        self.welcome(connection)

    def _said_goodbye(self, connection: Connection) -> None:
        self._connections.remove(connection)
        for (asked_by, _), command in self._requests.items():
            if asked_by is connection:  # nobody will ask for its end any more
                command.hang_up()

    def _tell(self, event: str, container: Json) -> None:
        for connection in tuple(self._connections):
            connection.send({"event": event, "container": container})

    def _handle(self, connection: Connection, request: Json, files: list[int]) -> None:
        try:
            match request.get("do"):
                case "state":
                    # As an event: the agent takes those in strictly in their order.
                    containers = [each.describe() for each in self._containers.values()]
                    connection.send({"event": "state", "containers": containers, "leaving": self._leaving is not None})
                    connection.answer(request)
                case "create":
                    self._create(request)
                    connection.answer(request)
                case "start":
                    self._start(request)
                    connection.answer(request)
                case "stop":
                    self._find(request).stop(float(request["grace"]), partial(connection.answer, request))
                case "spare":
                    for each in self._containers.values():
                        each.spare()
                    connection.answer(request)
                case "remove":
                    self._remove(connection, request)
                case "exec":
                    self._exec(connection, request, files)
                case "kill_exec" | "hang_up" as way:
                    if (command := self._requests.get((connection, request["request"]))) is not None:
                        (command.kill if way == "kill_exec" else command.hang_up)()
                    connection.answer(request)
                case "attach":
                    self._attach(connection, request, files)
                case "reopen_log":
                    self._find(request).reopen_log()
                    connection.answer(request)
                case "shutdown":
                    self._shut_down(partial(connection.answer, request))
                case other:
                    connection.refuse(request, f"nobody here knows how to {other}")
        except LaunchError as error:
            connection.refuse(request, str(error), "launch")
        except KeyError as error:
            connection.refuse(request, f"{error} is missing, or unknown", "unknown")
        except (NotPossible, OSError, ValueError, TypeError) as error:
            connection.refuse(request, str(error))
        finally:
            for file in files:
                os.close(file)

    def _find(self, request: Json) -> Container:
        return self._containers[request["container"]]

    # What agents ask for.

    def _create(self, request: Json) -> None:
        if self._leaving is not None:
            raise NotPossible("the sandbox is being stopped")
        if request["container"] in self._containers:
            return
        config = {key: value for key, value in request.items() if key not in ("id", "do")}
        container = Container(self._loop, self._jail, self._log_directory, config, self._tell)
        self._containers[container.id] = container

    def _start(self, request: Json) -> None:
        if self._leaving is not None:
            raise NotPossible("the sandbox is being stopped")
        container = self._find(request)
        target = self._containers.get(container.target)
        container.start(beside=0 if target is None else target.pid)

    def _remove(self, connection: Connection, request: Json) -> None:
        container = self._containers.get(request["container"])
        if container is None:
            connection.answer(request)
            return
        container.stop(0, partial(self._delete, container, connection, request))

    def _delete(self, container: Container, connection: Connection, request: Json) -> None:
        def deleted(status: int) -> None:
            if status != 0:
                connection.refuse(request, f"cannot delete the files of container {container.id}")
                return
            if self._containers.pop(container.id, None) is not None:
                self._tell("removed", container.describe())
            connection.answer(request)

        self._on_errand(partial(self._delete_files, container), deleted)

    def _delete_files(self, container: Container) -> None:
        self._jail.dismantle(container.launch)
        place = os.path.join("containers", container.id)
        while os.path.exists(place):
            with suppress(FileNotFoundError):  # asked twice at once, two are at it, and the other was quicker
                shutil.rmtree(place)

    def _exec(self, connection: Connection, request: Json, files: list[int]) -> None:
        number, tty = int(request["id"]), bool(request.get("tty"))
        stdin, stdout, stderr = files * 3 if tty else files
        pid = self._find(request).enter(tuple(request["argv"]), (stdin, stdout, stderr), tty=tty)

        def done(end: Json) -> None:
            del self._requests[connection, number]
            connection.answer(request, end)

        command = Command(self._loop, pid, float(request.get("timeout", 0)), done)
        self._commands[pid] = self._requests[connection, number] = command

    def _attach(self, connection: Connection, request: Json, files: list[int]) -> None:
        container = self._find(request)
        about, files_back = container.attach(files, stdin=bool(request.get("stdin")))
        connection.answer(request, about, files_back)
        for file in files_back:
            os.close(file)

    # Ends.

    def _reap(self) -> None:
        """See who has ended. A container's first process keeps its number until what it left behind is killed."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or ended.si_pid == 0:
                return
            pid = ended.si_pid
            container = next((each for each in self._containers.values() if each.pid == pid), None)
            if container is not None:
                container.leave_nobody()
            _, status = os.waitpid(pid, 0)
            if container is not None:
                container.ended(status)
            elif (command := self._commands.pop(pid, None)) is not None:
                command.ended(status)
            elif (errand := self._errands.pop(pid, None)) is not None:
                errand(status)
            elif pid == self._jail.anchor:  # the pod's pid namespace is gone, and nothing can start in it any more
                self._shut_down(lambda: None)

    def _on_errand(self, do: Callable[[], None], done: Callable[[int], None]) -> None:
        """Let a child do what may take long."""
        try:
            pid = os.fork()
        except OSError:  # no room for one more process: then it takes as long as it takes
            done(_try(do))
            return
        if pid:
            self._errands[pid] = done
        else:
            os._exit(_try(do))

    def _shut_down(self, done: Callable[[], None]) -> None:
        """End all containers by force, then whatever else there is, then this keeper."""
        if self._leaving is not None:
            self._leaving.append(done)
            return
        self._leaving = [done]
        for connection in tuple(self._connections):
            connection.send({"event": "leaving"})
        left = {each.id for each in self._containers.values() if each.pid}

        def gone(container_id: str) -> None:
            left.discard(container_id)
            if not left:
                self._kill_the_rest(_ROUNDS)

        for container_id in tuple(left):
            self._containers[container_id].stop(0, partial(gone, container_id))
        if not left:
            self._kill_the_rest(_ROUNDS)

    def _kill_the_rest(self, rounds: int) -> None:
        """Kill what containers left behind; orphans become our children."""
        rest = set(killing.children(os.getpid())) - {self._jail.anchor, *self._errands}
        for pid in rest:
            killing.send(pid, signal.SIGKILL)
        if rest and rounds > 0:
            self._loop.after(_ROUND_SECONDS, partial(self._kill_the_rest, rounds - 1))
        else:
            self._on_errand(self._dismantle_all, self._leave)

    def _dismantle_all(self) -> None:
        for container in self._containers.values():
            self._jail.dismantle(container.launch)

    def _leave(self, _: int) -> None:
        write_json(STOPPED_FILE, {})
        self._jail.close()
        for done in self._leaving or ():
            done()
        self._listener.close()
        self._loop.after(_FAREWELL_SECONDS if any(each.backlog for each in self._connections) else 0, self._loop.stop)


def _try(do: Callable[[], None]) -> int:
    """Do something; 0: it went well."""
    try:
        do()
    except Exception:
        return 1
    return 0
