"""One container of a keeper: create, start, stop, kill and attach.

    created --start--> running --its first process exits--> exited
        `------------- it cannot be started ------------------^

Each state is written to `containers/<id>/state.json` before an event reports it, so that the exit code survives the
keeper. Nothing here blocks: callers pass a callback that runs when the container has exited.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from podkeeper.linux.container_log import ContainerLog
from podkeeper.linux.errors import LaunchError
from podkeeper.linux.termination import termination_message
from podkeeper.runtimes.process.keeper import kill
from podkeeper.runtimes.process.keeper.container_cgroup import ContainerCgroup
from podkeeper.runtimes.process.keeper.files import CONFIG_FILE, STATE_FILE, Json, start_ticks, write_json
from podkeeper.runtimes.process.keeper.launch import Launch
from podkeeper.runtimes.process.keeper.loop import Loop, Timer
from podkeeper.runtimes.process.keeper.oom_score import oom_score
from podkeeper.runtimes.process.keeper.streams import LogRateLimit, OutputStream
from podkeeper.runtimes.process.keeper.terminal import receive_terminal

# As containerd reports a container that could not start.
START_FAILED: Final = 128
FALLBACK_TO_LOGS: Final = "FallbackToLogsOnError"


@dataclass(frozen=True, slots=True)
class CreatedState:
    state: str = "created"


@dataclass(frozen=True, slots=True)
class RunningState:
    """The first process runs. PID and start ticks identify it."""

    pid: int
    ticks: int
    started_at: int  # nanoseconds since 1970, as all times here
    state: str = "running"


@dataclass(frozen=True, slots=True)
class ExitedState:
    """The first process has exited, or could not be started (`started_at` 0)."""

    code: int
    signal: int
    reason: str
    message: str
    started_at: int
    finished_at: int
    state: str = "exited"


State = CreatedState | RunningState | ExitedState


class Jail(Protocol):
    """Starts the processes of a pod's containers, see `jail.NamespaceJail` and `plain_jail.PlainJail`."""

    @property
    def pause_pid(self) -> int:
        """The PID of the pause process of a shared PID namespace, 0 if there is none."""

    def launch(self, spec: Launch, stdin: int, stdout: int, stderr: int) -> int:
        """Start a container's first process. With a terminal, the three files are one console socket."""

    def enter(self, pid: int, spec: Launch, stdin: int, stdout: int, stderr: int) -> int:
        """Start another process in the container whose first process is `pid`."""

    def remove_files(self, spec: Launch) -> None:
        """Delete the files that `launch` created on disk."""

    def close(self) -> None:
        """Release the resources of the pod."""


class RequestRefused(Exception):
    """The request is not possible in the current state. The message is the answer to the agent."""


class KeeperContainer:
    """A container, from its creation until its removal."""

    def __init__(self, loop: Loop, jail: Jail, log_directory: str, config: Json, emit: Callable[[str, Json], None]):
        """`config` is the agent's `create` request (see `keeper`). It becomes config.json. Raises OSError."""
        self._loop = loop
        self._jail = jail
        self._emit = emit
        self._config = config
        self.id: Final = str(config["container"])
        self.launch: Final = Launch.from_json(config["launch"])
        self.state: State = CreatedState()
        self.log: Final = ContainerLog(os.path.join(log_directory, config["log"]) if config.get("log") else "")
        self._cgroup = ContainerCgroup(config.get("cgroup"))
        self._outputs: list[OutputStream] = []
        self._stdin = -1  # the write end of its stdin, or its terminal
        self._has_pid_namespace = False  # if so, the kernel kills all its processes with the first one
        self._stop_signal_sent = False
        self._deadline: Timer | None = None
        self._deadline_at = float("inf")
        self._exit_callbacks: list[Callable[[], None]] = []
        self._make_files()

    @property
    def pid(self) -> int:
        """The PID of its first process, 0 if it does not run."""
        return self.state.pid if isinstance(self.state, RunningState) else 0

    def describe(self) -> Json:
        """Return the container as events report it."""
        return {"id": self.id, "facts": self._config.get("facts", {}), **asdict(self.state)}

    # Lifecycle.

    @property
    def target(self) -> str:
        """The ID of the container whose processes it shares, or ""."""
        return str(self._config.get("target") or "")

    def start(self, beside: int = 0) -> None:
        """Start the container, unless it was started before. If this raises LaunchError, the container has exited.

        `beside` is the PID of the target's first process.
        """
        if not isinstance(self.state, CreatedState):
            return
        try:
            # Also removes the logs of an earlier pod with the same UID: a static pod keeps its UID.
            self.log.begin()
            cgroups = self._cgroup.create()
            if self.target and not beside:
                raise LaunchError(f"cannot share the processes of container {self.target}: it is not running")
            filters = self._cgroup.limits_devices
            changes = {"cgroups": cgroups, "device_filter": filters, "beside": beside}
            pid = self._launch(Launch.from_json({**self._config["launch"], **changes}))
        except (LaunchError, OSError) as error:
            self._clean_up()
            self._set_state(ExitedState(START_FAILED, 0, "StartError", str(error), 0, time.time_ns()), "exited")
            raise LaunchError(str(error)) from error
        # Compare with our own namespace, because the kernel may refuse PID namespaces (`Isolation.pid`).
        own = self.launch.pid == "own" and not beside
        self._has_pid_namespace = own and _pid_namespace(pid) != _pid_namespace("self")
        self._set_state(RunningState(pid, start_ticks(pid), time.time_ns()), "started")

    def stop(self, grace_seconds: float, done: Callable[[], None]) -> None:
        """Send the stop signal, and kill after the grace period. Call `done` when the container has exited.

        If there are several calls, the earliest deadline applies.
        """
        if not isinstance(self.state, RunningState):
            done()
            return
        self._exit_callbacks.append(done)
        if grace_seconds > 0 and not self._stop_signal_sent:
            self._stop_signal_sent = True
            kill.send(self.state.pid, _signal_number(self._config.get("stop_signal", "")))
        deadline = time.monotonic() + grace_seconds
        if deadline < self._deadline_at:
            self._deadline_at = deadline
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = self._loop.after(max(0.0, grace_seconds), self.kill)

    def cancel_stop(self) -> None:
        """Cancel the kill after the grace period. A container that survived the stop signal keeps running."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline, self._deadline_at, self._stop_signal_sent = None, float("inf"), False

    def kill(self) -> None:
        """Kill all processes of the container."""
        if isinstance(self.state, RunningState):
            kill.send(self.state.pid, signal.SIGKILL)
            if not self._has_pid_namespace:
                kill.kill_session(self.state.pid)
                self._cgroup.kill()

    def kill_leftovers(self) -> None:
        """Kill the remaining processes of the container.

        Call this before the first process is reaped, because until then its PID cannot be reused.
        """
        if not self._has_pid_namespace and isinstance(self.state, RunningState):
            kill.kill_session(self.state.pid)
            self._cgroup.kill()

    def reaped(self, status: int) -> None:
        """Record the exit after the first process was reaped."""
        assert isinstance(self.state, RunningState)
        # The clock may have been set back since the start.
        finished_at = max(time.time_ns(), self.state.started_at)
        for output in self._outputs:
            output.finish()
        killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        # As shells and other runtimes report a signal.
        code = 128 + killed_by if killed_by else os.waitstatus_to_exitcode(status)
        # Before `_clean_up`, which removes the cgroup and its counter of OOM kills.
        reason = "OOMKilled" if self._cgroup.was_oom_killed() else "Error" if code else "Completed"
        self._clean_up()
        use_log = code != 0 and self._config.get("message_policy") == FALLBACK_TO_LOGS
        # After the outputs are finished, because the message may be the end of the log.
        message = termination_message(self.path("termination"), self.log.path, fallback_to_logs=use_log)
        self._set_state(ExitedState(code, killed_by, reason, message, self.state.started_at, finished_at), "exited")
        callbacks, self._exit_callbacks = self._exit_callbacks, []
        for done in callbacks:
            done()

    # Exec, attach, logs.

    def enter(self, argv: tuple[str, ...], files: tuple[int, int, int], *, tty: bool) -> int:
        """Start another process in the container. `tty`: with a console socket. Raises RequestRefused, LaunchError."""
        if not isinstance(self.state, RunningState):
            raise RequestRefused("the container is not running")
        cgroups, filters = self._cgroup.procs_files(), self._cgroup.limits_devices
        changes = {"argv": argv, "tty": tty, "cgroups": cgroups, "device_filter": filters}
        if tty:
            changes["env"] = {"TERM": "xterm", **self.launch.env}
        with oom_score(self._config.get("oom_score_adj")):
            return self._jail.enter(self.state.pid, Launch.from_json({**self._config["launch"], **changes}), *files)

    def attach(self, readers: list[int], *, stdin: bool) -> tuple[Json, list[int]]:
        """Copy the output to the given files, stdout first. Return a description and possibly a file.

        The file is the terminal (`tty`) or the write end of stdin. `stdin`: the container reads what is written there.
        `once`: this client owns stdin, so no other client can write to it any more.
        """
        if not isinstance(self.state, RunningState):
            raise RequestRefused("the container is not running")
        for output, reader in zip(self._outputs, readers, strict=False):
            # A copy, because `Keeper._handle` closes the files of a request.
            output.attach(os.dup(reader))
        tty = self.launch.tty
        gives_stdin = stdin and self._stdin >= 0 and bool(self._config.get("stdin"))
        once = gives_stdin and not tty and bool(self._config.get("stdin_once"))
        given = [os.dup(self._stdin)] if self._stdin >= 0 and (tty or gives_stdin) else []
        if once:
            self._close_stdin()  # the client has the only write end now, so stdin ends with the client
        return {"tty": tty, "stdin": gives_stdin, "once": once}, given

    def reopen_log(self) -> None:
        """Continue the log in a new file of the same name. Raises RequestRefused."""
        if not isinstance(self.state, RunningState):
            raise RequestRefused("the container is not running")
        try:
            self.log.open()
        except OSError as error:
            raise RequestRefused(str(error)) from error

    def path(self, name: str) -> str:
        return os.path.join("containers", self.id, name)

    # Private.

    def _make_files(self) -> None:
        os.makedirs(os.path.join("containers", self.id), mode=0o700)
        termination = os.open(self.path("termination"), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        os.fchmod(termination, 0o666)  # the container may run as any user
        os.close(termination)
        # Without the values of the command: they may come from Secrets, which must not be written to the disk. Nothing
        # reads them, because a container never outlives this process, which has them in memory.
        stored = {**self._config["launch"], "argv": (), "env": {}}
        write_json(self.path(CONFIG_FILE), {**self._config, "launch": stored})
        self._set_state(self.state, "created")

    def _set_state(self, state: State, event: str) -> None:
        self.state = state
        with suppress(OSError):  # a full disk must not suppress the event
            write_json(self.path(STATE_FILE), asdict(state))
        self._emit(event, self.describe())

    def _launch(self, spec: Launch) -> int:
        """Start the first process with pipes."""
        if spec.tty:
            return self._launch_with_terminal(spec)
        # One limit for both outputs, because they share one log.
        stdin, rate_limit = -1, LogRateLimit()
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        if self._config.get("stdin"):
            stdin_end, stdin = os.pipe()
        else:
            stdin_end = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with oom_score(self._config.get("oom_score_adj")):
                pid = self._jail.launch(spec, stdin_end, out_end, err_end)
        except BaseException:
            for file in (out, err, *([stdin] if stdin >= 0 else [])):
                os.close(file)
            raise
        finally:
            for file in (stdin_end, out_end, err_end):
                os.close(file)
        self._stdin = stdin
        self._outputs = [
            OutputStream(self._loop, file, stream, self.log, rate_limit)
            for file, stream in ((out, "stdout"), (err, "stderr"))
        ]
        return pid

    def _launch_with_terminal(self, spec: Launch) -> int:
        """Start the first process with a terminal, which it opens inside the container and sends here."""
        ours, console = socket.socketpair()
        with ours, console, oom_score(self._config.get("oom_score_adj")):
            pid = self._jail.launch(spec, *(console.fileno(),) * 3)
            master = receive_terminal(ours)
        # A copy, because the output stream closes its own at the end of the output, and stdin may still be in use.
        self._stdin = os.dup(master)
        self._outputs = [OutputStream(self._loop, master, "stdout", self.log, LogRateLimit())]
        return pid

    def _clean_up(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._close_stdin()
        self._outputs = []
        self.log.close()
        self._cgroup.remove()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1


def _pid_namespace(pid: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:  # the process has ended
        return ""


def _signal_number(name: str) -> int:
    """Return the number of a signal such as `SIGUSR1` or `SIGRTMIN+3`. No name or an unknown one: SIGTERM."""
    base, _, more = (name or "SIGTERM").partition("+")
    try:
        return signal.Signals[base].value + (int(more) if more else 0)
    except (KeyError, ValueError):
        return signal.SIGTERM
