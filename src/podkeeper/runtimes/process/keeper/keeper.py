"""The keeper of one sandbox: handle requests, reap processes, send events.

| do | fields | answer |
|---|---|---|
| `state` | | after an event `state` with all `containers`, as other events report them |
| `create` | `container` (its ID), `launch`, other fields of `KeeperContainer`; `facts` are stored for the agent | |
| `start`, `remove`, `reopen_log` | `container` | when it is done |
| `stop` | `container`, `grace` in seconds | when the container has exited |
| `spare` | | at once; the kills of all pending `stop` requests are cancelled |
| `exec` | `container`, `argv`, `timeout`; three files, or one console socket (`tty`) | its `code` and `timed_out` |
| `kill_exec`, `hang_up` | `request`: the ID of an `exec` of the same connection | |
| `attach` | `container`, `stdin`: whether to write; files for stdout and stderr | see `KeeperContainer.attach` |
| `shutdown` | | when all processes have ended; then the keeper exits |

Errors have a kind: `unknown` (container), `launch` (it could not be started), `refused` (anything else).
"""

import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from podkeeper.linux.errors import LaunchError
from podkeeper.linux.tree import remove_tree
from podkeeper.runtimes.process.keeper import kill
from podkeeper.runtimes.process.keeper.commands import Command
from podkeeper.runtimes.process.keeper.containers import Jail, KeeperContainer, RequestRefused
from podkeeper.runtimes.process.keeper.files import STOPPED_FILE, Json, write_json
from podkeeper.runtimes.process.keeper.loop import Loop
from podkeeper.runtimes.process.keeper.protocol import AgentConnection

# At the end, kill leftover processes at most this often; one in uninterruptible sleep must not block the exit.
_KILL_ATTEMPTS: Final = 200
_KILL_PAUSE_SECONDS: Final = 0.01
_LAST_ANSWER_SECONDS: Final = 1.0  # for the agent to read the last answer


class Keeper:
    """The containers of one pod and the connected agents. Its working directory is the sandbox's directory."""

    def __init__(self, loop: Loop, jail: Jail, listener: socket.socket, log_directory: str) -> None:
        self._loop = loop
        self._jail = jail
        self._listener = listener
        self._log_directory = log_directory
        self._containers: dict[str, KeeperContainer] = {}
        self._commands: dict[int, Command] = {}
        self._requests: dict[tuple[AgentConnection, int], Command] = {}
        self._child_tasks: dict[int, Callable[[int], None]] = {}
        self._connections: list[AgentConnection] = []
        self._shutdown_callbacks: list[Callable[[], None]] | None = None  # a list once the keeper is shutting down
        listener.setblocking(False)
        loop.on_readable(listener.fileno(), self._accept)
        loop.on_signal(signal.SIGCHLD, self._reap)

    def add_connection(self, connection: socket.socket) -> AgentConnection:
        added = AgentConnection(self._loop, connection, self._handle, self._connection_closed)
        self._connections.append(added)
        return added

    # Connections and requests.

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        self.add_connection(connection)

    def _connection_closed(self, connection: AgentConnection) -> None:
        self._connections.remove(connection)
        for (sender, _), command in self._requests.items():
            if sender is connection:  # the client of the command is gone
                command.hang_up()

    def _broadcast(self, event: str, container: Json) -> None:
        for connection in tuple(self._connections):
            connection.send({"event": event, "container": container})

    def _handle(self, connection: AgentConnection, request: Json, files: list[int]) -> None:
        try:
            match request.get("do"):
                case "state":
                    # An event, because the agent processes events strictly in order.
                    containers = [each.describe() for each in self._containers.values()]
                    leaving = self._shutdown_callbacks is not None
                    connection.send({"event": "state", "containers": containers, "leaving": leaving})
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
                        each.cancel_stop()
                    connection.answer(request)
                case "remove":
                    self._remove(connection, request)
                case "exec":
                    self._exec(connection, request, files)
                case "kill_exec" | "hang_up" as do:
                    if (command := self._requests.get((connection, request["request"]))) is not None:
                        (command.kill if do == "kill_exec" else command.hang_up)()
                    connection.answer(request)
                case "attach":
                    self._attach(connection, request, files)
                case "reopen_log":
                    self._find(request).reopen_log()
                    connection.answer(request)
                case "shutdown":
                    self._shut_down(partial(connection.answer, request))
                case other:
                    connection.refuse(request, f"unknown request: {other}")
        except LaunchError as error:
            connection.refuse(request, str(error), "launch")
        except KeyError as error:
            connection.refuse(request, f"field or container {error} not found", "unknown")
        except (RequestRefused, OSError, ValueError, TypeError) as error:
            connection.refuse(request, str(error))
        finally:
            for file in files:
                os.close(file)

    def _find(self, request: Json) -> KeeperContainer:
        return self._containers[request["container"]]

    # Request handlers.

    def _create(self, request: Json) -> None:
        if self._shutdown_callbacks is not None:
            raise RequestRefused("the sandbox is being stopped")
        # A repeated request: the agent may have lost the first answer.
        if request["container"] in self._containers:
            return
        config = {key: value for key, value in request.items() if key not in ("id", "do")}
        container = KeeperContainer(self._loop, self._jail, self._log_directory, config, self._broadcast)
        self._containers[container.id] = container

    def _start(self, request: Json) -> None:
        if self._shutdown_callbacks is not None:
            raise RequestRefused("the sandbox is being stopped")
        container = self._find(request)
        target = self._containers.get(container.target)
        container.start(beside=0 if target is None else target.pid)

    def _remove(self, connection: AgentConnection, request: Json) -> None:
        container = self._containers.get(request["container"])
        if container is None:
            connection.answer(request)
            return
        container.stop(0, partial(self._delete, container, connection, request))

    def _delete(self, container: KeeperContainer, connection: AgentConnection, request: Json) -> None:
        def deleted(status: int) -> None:
            if status != 0:
                connection.refuse(
                    request,
                    f"cannot delete the files of container {container.id}: the child process that deletes them failed",
                )
                return
            if self._containers.pop(container.id, None) is not None:
                self._broadcast("removed", container.describe())
            connection.answer(request)

        self._run_in_child(partial(self._delete_files, container), deleted)

    def _delete_files(self, container: KeeperContainer) -> None:
        self._jail.remove_files(container.launch)
        if os.path.islink(f"containers/{container.id}"):
            raise NotADirectoryError(f"containers/{container.id} is a symbolic link, expected a directory")
        remove_tree("containers", container.id)  # another request may delete it at the same time

    def _exec(self, connection: AgentConnection, request: Json, files: list[int]) -> None:
        number, tty = int(request["id"]), bool(request.get("tty"))
        stdin, stdout, stderr = files * 3 if tty else files
        pid = self._find(request).enter(tuple(request["argv"]), (stdin, stdout, stderr), tty=tty)

        def done(end: Json) -> None:
            del self._requests[connection, number]
            connection.answer(request, end)

        command = Command(self._loop, pid, float(request.get("timeout", 0)), done)
        self._commands[pid] = self._requests[connection, number] = command

    def _attach(self, connection: AgentConnection, request: Json, files: list[int]) -> None:
        container = self._find(request)
        about, files_back = container.attach(files, stdin=bool(request.get("stdin")))
        connection.answer(request, about, files_back)
        for file in files_back:
            os.close(file)

    # Exits.

    def _reap(self) -> None:
        """Reap children.

        Before reaping a container's first process, kill the container's remaining processes, because the PID can be
        reused afterwards.
        """
        while True:
            try:
                # WNOWAIT leaves the process a zombie, which keeps its PID, and so the ID of its session, from being
                # reused.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or ended.si_pid == 0:
                return
            pid = ended.si_pid
            container = next((each for each in self._containers.values() if each.pid == pid), None)
            if container is not None:
                container.kill_leftovers()
            _, status = os.waitpid(pid, 0)
            if container is not None:
                container.reaped(status)
            elif (command := self._commands.pop(pid, None)) is not None:
                command.reaped(status)
            elif (callback := self._child_tasks.pop(pid, None)) is not None:
                callback(status)
            elif pid == self._jail.pause_pid:  # without the pod's PID namespace, no container can start
                self._shut_down(lambda: None)

    def _run_in_child(self, do: Callable[[], None], done: Callable[[int], None]) -> None:
        """Run a slow task in a forked child. `done` receives its exit status."""
        try:
            pid = os.fork()
        except OSError:  # the process limit is reached, so block the loop instead
            done(_exit_status_of(do))
            return
        if pid:
            self._child_tasks[pid] = done
        else:
            os._exit(_exit_status_of(do))

    def _shut_down(self, done: Callable[[], None]) -> None:
        """Kill all containers, then all other processes, then exit."""
        if self._shutdown_callbacks is not None:
            self._shutdown_callbacks.append(done)
            return
        self._shutdown_callbacks = [done]
        for connection in tuple(self._connections):
            connection.send({"event": "leaving"})
        left = {each.id for each in self._containers.values() if each.pid}

        def exited(container_id: str) -> None:
            left.discard(container_id)
            if not left:
                self._kill_leftovers(_KILL_ATTEMPTS)

        for container_id in tuple(left):
            self._containers[container_id].stop(0, partial(exited, container_id))
        if not left:
            self._kill_leftovers(_KILL_ATTEMPTS)

    def _kill_leftovers(self, attempts: int) -> None:
        """Kill the remaining processes of all containers. The keeper is a subreaper, so orphans are its children."""
        # Without the pause process, which `NamespaceJail.close` ends, and without children that delete files.
        leftovers = set(kill.children(os.getpid())) - {self._jail.pause_pid, *self._child_tasks}
        for pid in leftovers:
            kill.send(pid, signal.SIGKILL)
        if leftovers and attempts > 0:
            self._loop.after(_KILL_PAUSE_SECONDS, partial(self._kill_leftovers, attempts - 1))
        else:
            self._run_in_child(self._remove_all_files, self._exit)

    def _remove_all_files(self) -> None:
        for container in self._containers.values():
            self._jail.remove_files(container.launch)

    def _exit(self, _: int) -> None:
        # Before the answer. With this file, an agent knows that the keeper has removed the files of the containers
        # (`KeeperPool._delete`) and that it did not crash.
        write_json(STOPPED_FILE, {})
        self._jail.close()
        for done in self._shutdown_callbacks or ():
            done()
        self._listener.close()
        is_read = not any(each.backlog for each in self._connections)
        self._loop.after(0 if is_read else _LAST_ANSWER_SECONDS, self._loop.stop)


def _exit_status_of(do: Callable[[], None]) -> int:
    """Run a task. Return 0 if it succeeded."""
    try:
        do()
    except Exception:
        return 1
    return 0
