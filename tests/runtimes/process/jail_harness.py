"""Tests of the jail in a forked keeper process, as root or as an ordinary user."""

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

from podkeeper.linux import libc
from podkeeper.runtimes.process.keeper.cleanup import remove_trees
from podkeeper.runtimes.process.keeper.isolation import Isolation, probe
from podkeeper.runtimes.process.keeper.jail import NamespaceJail
from podkeeper.runtimes.process.keeper.launch import Launch

T = TypeVar("T")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOBODY = 65534


class KeeperFailed(AssertionError):
    """The error of a function that ran in the keeper process."""


@dataclass(frozen=True)
class Machine:
    """The state directory of a test's containers, the user of their keeper, and what the machine allows."""

    run_as: str  # root | user
    state: str
    isolation: Isolation

    def in_keeper(self, action: Callable[[], T]) -> T:
        """Run a function in a new keeper process."""
        return in_keeper(action, self.run_as)

    def run(self, script: str, jail: dict[str, Any] | None = None, **spec: Any) -> tuple[int, str]:
        """Run a shell script in a container. Return its exit code and output."""

        def action() -> tuple[int, str]:
            pod = NamespaceJail(isolation=self.isolation, **(jail or {}))
            try:
                return run(pod, self.spec(script, **spec))
            finally:
                pod.close()

        return self.in_keeper(action)

    def spec(self, script: str, name: str = "c", **changes: Any) -> Launch:
        """Return the launch of a shell script in a new container directory."""
        start = Launch(argv=("sh", "-c", script), env={"PATH": PATH}, directory=f"{self.state}/{name}")
        return replace(start, **changes)

    def make(self, path: str, content: str | None = None) -> str:
        """Create a directory or file that every user may write to, beside the containers."""
        full_path = f"{self.state}/{path}"
        os.makedirs(full_path if content is None else os.path.dirname(full_path), exist_ok=True)
        if content is not None:
            with open(full_path, "w", encoding="utf-8") as file:
                file.write(content)
        os.chmod(full_path, 0o777)
        return full_path


def run(jail: NamespaceJail, spec: Launch, enter: int = 0) -> tuple[int, str]:
    """Start a process, or another one in the container of `enter`, and wait for its end."""
    reader, writer = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        files = (null, writer, writer)
        pid = jail.enter(enter, spec, *files) if enter else jail.launch(spec, *files)
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
        os.close(null)
    with os.fdopen(reader, "rb") as pipe:
        output = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output.decode()


def start(jail: NamespaceJail, spec: Launch) -> int:
    """Start a process and drop its output."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        return jail.launch(spec, null, null, null)
    finally:
        os.close(null)


def end(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def in_keeper(action: Callable[[], T], run_as: str = "root") -> T:
    """Run a function in a forked process with a new session. Return its result or raise KeeperFailed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer: tuple[bool, Any] = (False, ("the keeper ended", ""))
        try:
            os.setsid()
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and programs inherit this
            signal.alarm(20)
            if run_as == "user" and os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                libc.prctl(libc.PR_SET_DUMPABLE, 1)  # the kernel clears it at the change of user
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
        output = pipe.read()
    _, status = os.waitpid(pid, 0)
    good, value = _unpack(output, status)
    if not good:
        message, trace = value
        raise KeeperFailed(message) from (RuntimeError(trace) if trace else None)
    result: T = value
    return result


def _unpack(output: bytes, status: int) -> tuple[bool, Any]:
    return pickle.loads(output) if output else (False, (f"the keeper was killed: wait status {status}", ""))


@contextmanager
def state_directory(run_as: str, parent: str = "") -> Iterator[str]:
    """A directory for the containers of one test, accessible to ordinary users."""
    state = tempfile.mkdtemp(prefix="podkeeper-jail-", dir=parent or _fast_directory())
    try:
        if run_as == "user" and os.geteuid() == 0:
            os.chown(state, NOBODY, NOBODY)
        yield state
    finally:
        remove_trees(state)  # not rmtree, because the overlay's work directories are not readable by their owner


def _fast_directory() -> str:
    """Return a tmpfs if programs may run from it, because deleting directories is slow on some disks."""
    shm = "/dev/shm"
    quick = os.path.ismount(shm) and os.access(shm, os.W_OK) and not os.statvfs(shm).f_flag & os.ST_NOEXEC
    return shm if quick else "/tmp"


_found: dict[str, Isolation] = {}


def machine_for(run_as: str, state: str, namespaces: str = "") -> Machine:
    """Return this machine, optionally as if it refused namespaces. Skip the test if that is not possible."""
    if run_as == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    if namespaces == "none":
        return Machine(run_as, state, Isolation())
    if run_as not in _found:
        _found[run_as] = in_keeper(lambda: probe(state), run_as)
    isolation = _found[run_as]
    if isolation.namespaces == "none":
        pytest.skip("; ".join(isolation.warnings))
    return Machine(run_as, state, isolation)


def machines(*kinds: str, parent: str = "") -> Any:
    """Return a fixture with one machine per kind: root, user, or one of them "without namespaces".

    `parent` is where the state directory is created. Containers would see it in /tmp if it were not hidden.
    """

    @pytest.fixture(params=kinds)
    def made(request: pytest.FixtureRequest) -> Iterator[Machine]:
        run_as, _, without = request.param.partition(" ")
        with state_directory(run_as, parent) as state:
            yield machine_for(run_as, state, "none" if without else "")

    return made
