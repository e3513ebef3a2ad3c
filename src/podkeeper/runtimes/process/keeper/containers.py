"""One container in a keeper's care: created, started, asked to end, forced to end, remembered.

    created --start--> running --its first process ends--> exited
        `------------- it cannot be launched -----------------^

Each step is written to `containers/<id>/state.json` before anybody is told of it, so that the exit code outlives the
keeper too. Nothing here waits: who wants to know of an end leaves a callback.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from podkeeper.runtimes.process.keeper import killing
from podkeeper.runtimes.process.keeper.files import CONFIG_FILE, STATE_FILE, Json, start_ticks, write_json
from podkeeper.runtimes.process.keeper.groups import Group
from podkeeper.runtimes.process.keeper.launch import Launch, LaunchError
from podkeeper.runtimes.process.keeper.logs import ContainerLog
from podkeeper.runtimes.process.keeper.loop import Loop, Timer
from podkeeper.runtimes.process.keeper.oom_score import oom_score
from podkeeper.runtimes.process.keeper.streams import Output, Pace
from podkeeper.runtimes.process.keeper.terminal import receive_terminal
from podkeeper.runtimes.process.keeper.termination import last_words

START_FAILED: Final = 128
FALLBACK_TO_LOGS: Final = "FallbackToLogsOnError"


@dataclass(frozen=True, slots=True)
class Created:
    """It waits to be started."""

    state: str = "created"


@dataclass(frozen=True, slots=True)
class Running:
    """Its first process lives; pid and ticks name it."""

    pid: int
    ticks: int
    started_at: int  # nanoseconds since 1970, as all times here
    state: str = "running"


@dataclass(frozen=True, slots=True)
class Exited:
    """Its first process has ended, or never began (`started_at` 0)."""

    code: int
    signal: int
    reason: str
    message: str
    started_at: int
    finished_at: int
    state: str = "exited"


State = Created | Running | Exited


class Jail(Protocol):
    """What starts processes; see `jail.Jail`."""

    @property
    def anchor(self) -> int:
        """The first process of the pod's pid namespace, 0 if there is none."""

    def launch(self, spec: Launch, stdin: int, stdout: int, stderr: int) -> int:
        """Start a container's first process; with a terminal, the three files are one console socket."""

    def enter(self, pid: int, spec: Launch, stdin: int, stdout: int, stderr: int) -> int:
        """Start one more process in a container."""

    def dismantle(self, spec: Launch) -> None:
        """Delete what launching made on disk."""

    def close(self) -> None:
        """Let go of what is held."""


class NotPossible(Exception):
    """Not now, or never; the message is for whoever asked."""


class Container:
    """A container, from its creation until it is removed."""

    def __init__(self, loop: Loop, jail: Jail, log_directory: str, config: Json, tell: Callable[[str, Json], None]):
        """`config` is what the agent sent: see `requests`; it becomes config.json. Raises OSError."""
        self._loop = loop
        self._jail = jail
        self._tell = tell
        self._config = config
        self.id: Final = str(config["container"])
        self.launch: Final = Launch.from_json(config["launch"])
        self.state: State = Created()
        self.log: Final = ContainerLog(os.path.join(log_directory, config["log"]) if config.get("log") else "")
        self._group = Group(config.get("cgroup"))
        self._outputs: list[Output] = []
        self._stdin = -1  # where an agent may write to it; with a terminal, that
        self._walled = False  # whether all of it dies with its first process
        self._asked_to_end = False
        self._deadline: Timer | None = None
        self._deadline_at = float("inf")
        self._waiting: list[Callable[[], None]] = []
        self._make_files()

    @property
    def pid(self) -> int:
        """Its first process; 0: none lives."""
        return self.state.pid if isinstance(self.state, Running) else 0

    def describe(self) -> Json:
        """All that an agent needs to know."""
        return {"id": self.id, "facts": self._config.get("facts", {}), **asdict(self.state)}

    # Life.

    @property
    def target(self) -> str:
        """The id of the container whose processes it is to see; empty: its own only."""
        return str(self._config.get("target") or "")

    def start(self, beside: int = 0) -> None:
        """Start it; one that runs or has run is left alone. Raises LaunchError; it has exited then.

        `beside` is the first process of its target.
        """
        if not isinstance(self.state, Created):
            return
        try:
            self.log.begin()
            cgroups = self._group.make()
            if self.target and not beside:
                raise LaunchError(f"cannot see the processes of container {self.target}: it does not run")
            spec = Launch.from_json({**self._config["launch"], "cgroups": cgroups, "beside": beside})
            pid = self._launch(spec)
        except (LaunchError, OSError) as error:
            self._clean_up()
            self._become(Exited(START_FAILED, 0, "StartError", str(error), 0, time.time_ns()), "exited")
            raise LaunchError(str(error)) from error
        self._walled = self.launch.pid == "own" and not beside and _pid_namespace(pid) != _pid_namespace("self")
        self._become(Running(pid, start_ticks(pid), time.time_ns()), "started")

    def stop(self, grace_seconds: float, done: Callable[[], None]) -> None:
        """Ask it to end, and force it after the grace; the shortest of several graces counts. Tells once it is over."""
        if not isinstance(self.state, Running):
            done()
            return
        self._waiting.append(done)
        if grace_seconds > 0 and not self._asked_to_end:
            self._asked_to_end = True
            killing.send(self.state.pid, _signal_number(self._config.get("stop_signal", "")))
        until = time.monotonic() + grace_seconds
        if until < self._deadline_at:
            self._deadline_at = until
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = self._loop.after(max(0.0, grace_seconds), self.kill)

    def spare(self) -> None:
        """Call off the force that was to follow: if it did not end when it was asked to, it goes on."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline, self._deadline_at, self._asked_to_end = None, float("inf"), False

    def kill(self) -> None:
        """End it by force, with everything in it."""
        if isinstance(self.state, Running):
            killing.send(self.state.pid, signal.SIGKILL)
            if not self._walled:
                killing.kill_session(self.state.pid)
                self._group.kill()

    def leave_nobody(self) -> None:
        """Its first process is dead and not yet reaped: kill what it left behind."""
        if not self._walled and isinstance(self.state, Running):
            killing.kill_session(self.state.pid)
            self._group.kill()

    def ended(self, status: int) -> None:
        """Its first process has been reaped."""
        assert isinstance(self.state, Running)
        finished_at = max(time.time_ns(), self.state.started_at)
        for output in self._outputs:
            output.finish()
        killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = 128 + killed_by if killed_by else os.waitstatus_to_exitcode(status)
        reason = "OOMKilled" if self._group.ran_out_of_memory() else "Error" if code else "Completed"
        self._clean_up()
        ask_log = code != 0 and self._config.get("message_policy") == FALLBACK_TO_LOGS
        message = last_words(self.path("termination"), self.log.path, ask_log=ask_log)
        self._become(Exited(code, killed_by, reason, message, self.state.started_at, finished_at), "exited")
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()

    # Company.

    def enter(self, argv: tuple[str, ...], files: tuple[int, int, int], *, tty: bool) -> int:
        """Start one more process in it; for a terminal, with a console socket. Raises NotPossible, LaunchError."""
        if not isinstance(self.state, Running):
            raise NotPossible("it does not run")
        changes = {"argv": argv, "tty": tty, "cgroups": self._group.procs()}
        if tty:
            changes["env"] = {"TERM": "xterm", **self.launch.env}
        with oom_score(self._config.get("oom_score_adj")):
            return self._jail.enter(self.state.pid, Launch.from_json({**self._config["launch"], **changes}), *files)

    def attach(self, readers: list[int], *, stdin: bool) -> tuple[Json, list[int]]:
        """Let files follow its output, stdout first. Returns what it has to offer, and a file if it has one.

        That is the terminal (`tty`) or a pipe into its stdin; `stdin` says whether what is written there is read, and
        `once` that nobody else can write any more.
        """
        if not isinstance(self.state, Running):
            raise NotPossible("it does not run")
        for output, reader in zip(self._outputs, readers, strict=False):
            output.attach(os.dup(reader))
        tty = self.launch.tty
        open_to_us = stdin and self._stdin >= 0 and bool(self._config.get("stdin"))
        once = open_to_us and not tty and bool(self._config.get("stdin_once"))
        handed_out = [os.dup(self._stdin)] if self._stdin >= 0 and (tty or open_to_us) else []
        if once:
            self._close_stdin()  # the only one who can write has it now: when it is gone, so is stdin
        return {"tty": tty, "stdin": open_to_us, "once": once}, handed_out

    def reopen_log(self) -> None:
        """Write to a new file of the same name from now on. Raises NotPossible."""
        if not isinstance(self.state, Running):
            raise NotPossible("it does not run")
        try:
            self.log.open()
        except OSError as error:
            raise NotPossible(str(error)) from error

    def path(self, name: str) -> str:
        """A file of it."""
        return os.path.join("containers", self.id, name)

    # Small parts.

    def _make_files(self) -> None:
        os.makedirs(os.path.join("containers", self.id), mode=0o700)
        termination = os.open(self.path("termination"), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        os.fchmod(termination, 0o666)  # whoever the container runs as may write
        os.close(termination)
        write_json(self.path(CONFIG_FILE), self._config)
        self._become(self.state, "created")

    def _become(self, state: State, event: str) -> None:
        self.state = state
        with suppress(OSError):  # a full disk keeps nobody from being told
            write_json(self.path(STATE_FILE), asdict(state))
        self._tell(event, self.describe())

    def _launch(self, spec: Launch) -> int:
        """Start its first process with files of its own."""
        if spec.tty:
            return self._launch_at_terminal(spec)
        stdin, pace = -1, Pace()
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        if self._config.get("stdin"):
            reading, stdin = os.pipe()
        else:
            reading = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with oom_score(self._config.get("oom_score_adj")):
                pid = self._jail.launch(spec, reading, out_end, err_end)
        except BaseException:
            for file in (out, err, *([stdin] if stdin >= 0 else [])):
                os.close(file)
            raise
        finally:
            for file in (reading, out_end, err_end):
                os.close(file)
        self._stdin = stdin
        self._outputs = [
            Output(self._loop, file, stream, self.log, pace) for file, stream in ((out, "stdout"), (err, "stderr"))
        ]
        return pid

    def _launch_at_terminal(self, spec: Launch) -> int:
        """The same with a terminal, which the process opens where it is then."""
        ours, console = socket.socketpair()
        with ours, console, oom_score(self._config.get("oom_score_adj")):
            pid = self._jail.launch(spec, *(console.fileno(),) * 3)
            master = receive_terminal(ours)
        self._stdin = os.dup(master)
        self._outputs = [Output(self._loop, master, "stdout", self.log, Pace())]
        return pid

    def _clean_up(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._close_stdin()
        self._outputs = []
        self.log.close()
        self._group.remove()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1


def _pid_namespace(pid: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:  # it is gone already
        return ""


def _signal_number(name: str) -> int:
    """`SIGUSR1`, `SIGRTMIN+3`; without a name, or with one that this machine does not know, TERM."""
    base, _, more = (name or "SIGTERM").partition("+")
    try:
        return signal.Signals[base].value + (int(more) if more else 0)
    except (KeyError, ValueError):
        return signal.SIGTERM
