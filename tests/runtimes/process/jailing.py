"""A keeper to test the jail with: a forked process, as root or as an ordinary user, that ends with its test."""

import os
import pickle
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest

from podkeeper.runtimes.process.keeper import libc
from podkeeper.runtimes.process.keeper.demolition import demolish
from podkeeper.runtimes.process.keeper.isolation import Isolation, probe
from podkeeper.runtimes.process.keeper.jail import Jail
from podkeeper.runtimes.process.keeper.launch import Launch

T = TypeVar("T")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOBODY = 65534


class Broken(AssertionError):
    """What went wrong inside the keeper."""


@dataclass(frozen=True)
class World:
    """Where a test's containers live, and as whom their keeper runs."""

    who: str  # root | user
    state: str
    isolation: Isolation

    def keep(self, action: Callable[[], T]) -> T:
        """Run a piece of test in a keeper process of its own."""
        return in_keeper(action, self.who)

    def run(self, script: str, jail: dict[str, Any] | None = None, **spec: Any) -> tuple[int, str]:
        """Run a shell script in a container: its exit code and its output."""

        def action() -> tuple[int, str]:
            pod = Jail(isolation=self.isolation, **(jail or {}))
            try:
                return run(pod, self.spec(script, **spec))
            finally:
                pod.close()

        return self.keep(action)

    def spec(self, script: str, name: str = "c", **changes: Any) -> Launch:
        """A launch of a shell script in a container directory of its own."""
        start = Launch(argv=("sh", "-c", script), env={"PATH": PATH}, directory=f"{self.state}/{name}")
        return replace(start, **changes)

    def make(self, path: str, content: str | None = None) -> str:
        """Make a directory, or a file, beside the containers; anybody may write to it."""
        whole = f"{self.state}/{path}"
        os.makedirs(whole if content is None else os.path.dirname(whole), exist_ok=True)
        if content is not None:
            with open(whole, "w", encoding="utf-8") as file:
                file.write(content)
        os.chmod(whole, 0o777)
        return whole


def run(jail: Jail, spec: Launch, enter: int = 0) -> tuple[int, str]:
    """Start a process, or one more in the container of another, and wait for its end."""
    reader, writer = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        files = (nothing, writer, writer)
        pid = jail.enter(enter, spec, *files) if enter else jail.launch(spec, *files)
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
        os.close(nothing)
    with os.fdopen(reader, "rb") as pipe:
        output = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output.decode()


def start(jail: Jail, spec: Launch) -> int:
    """Start a process whose output nobody wants."""
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        return jail.launch(spec, nothing, nothing, nothing)
    finally:
        os.close(nothing)


def end(*pids: int) -> None:
    """Kill and reap."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def in_keeper(action: Callable[[], T], who: str = "root") -> T:
    """Run a function in a forked process with a session of its own; what it returns or raises comes back."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer: tuple[bool, Any] = (False, ("the keeper ended", ""))
        try:
            os.setsid()
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and programs inherit that
            signal.alarm(20)
            if who == "user" and os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                libc.prctl(libc.PR_SET_DUMPABLE, 1)  # as it is for a user who did not get there from root
            libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
            answer = (True, action())
        except BaseException as error:
            answer = (False, (f"{type(error).__name__}: {error}", traceback.format_exc()))
        finally:
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(answer, pipe)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(pid, 0)
    good, value = _unpack(told, status)
    if not good:
        message, trace = value
        raise Broken(message) from (RuntimeError(trace) if trace else None)
    result: T = value
    return result


def _unpack(told: bytes, status: int) -> tuple[bool, Any]:
    return pickle.loads(told) if told else (False, (f"the keeper was killed: wait status {status}", ""))


@contextmanager
def state_directory(who: str, place: str = "") -> Iterator[str]:
    """A directory for the containers of one test, that an ordinary user can reach."""
    state = tempfile.mkdtemp(prefix="podkeeper-jail-", dir=place or _quick_place())
    try:
        if who == "user" and os.geteuid() == 0:
            os.chown(state, NOBODY, NOBODY)
        yield state
    finally:
        demolish(state)  # not rmtree: the kernel makes directories in there that even their owner may not read


def _quick_place() -> str:
    """Memory, if programs may be run from it: to delete directories takes long on some disks."""
    shm = "/dev/shm"
    quick = os.path.ismount(shm) and os.access(shm, os.W_OK) and not os.statvfs(shm).f_flag & os.ST_NOEXEC
    return shm if quick else "/tmp"


_found: dict[str, Isolation] = {}


def world(who: str, state: str, namespaces: str = "") -> World:
    """The machine as it is, or as if it refused namespaces; skips the test where it cannot be had."""
    if who == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    if namespaces == "none":
        return World(who, state, Isolation())
    if who not in _found:
        _found[who] = in_keeper(lambda: probe(state), who)
    isolation = _found[who]
    if isolation.namespaces == "none":
        pytest.skip("; ".join(isolation.warnings))
    return World(who, state, isolation)


def worlds(*whose: str, place: str = "") -> Any:
    """A fixture with the world of each: root, user, or either of them "without namespaces".

    `place`: where the state directory is made. Containers would see it in /tmp, if it were not hidden.
    """

    @pytest.fixture(params=whose)
    def made(request: pytest.FixtureRequest) -> Iterator[World]:
        who, _, without = request.param.partition(" ")
        with state_directory(who, place) as state:
            yield world(who, state, "none" if without else "")

    return made
