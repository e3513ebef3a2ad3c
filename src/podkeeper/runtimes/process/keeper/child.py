"""From fork to exec: what a container's process does to itself before it becomes the program.

The order matters: what needs the host's files comes before the root changes, what needs privilege
before the user changes, and the signal that ties a process to its keeper after that, for a change
of user takes it back.
"""

import errno
import fcntl
import os
import resource
import select
import signal
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from podkeeper.runtimes.process.keeper import capabilities, libc
from podkeeper.runtimes.process.keeper.launch import Launch, LaunchError

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the process is to be; None: who we are."""

    user: int | None
    group: int | None
    groups: tuple[int, ...] | None
    bounding: frozenset[int] | None
    most_processes: int = 0  # of such a user in the pod's user namespace; 0: no limit


def become(
    spec: Launch, identity: Identity, stdio: tuple[int, int, int], move_in: Callable[[], object], pipe: int
) -> NoReturn:
    """Turn this process into the program. Raises LaunchError or OSError; never returns. The keeper reads the pipe."""
    _cut_loose()
    os.setsid()
    _take_stdio(stdio, identity)
    for path in spec.cgroups:
        _join(path)
    os.umask(0o022)
    move_in()
    cwd = spec.cwd or "/"
    entered = _enter(cwd)  # as root: what only root may enter stays the working directory, as under runc
    _take_identity(identity)
    trouble = _enter(cwd)
    if trouble and entered:
        raise LaunchError(f'chdir to cwd ("{cwd}") set in config.json failed: {words(trouble)}')
    if identity.most_processes:
        resource.setrlimit(resource.RLIMIT_NPROC, (identity.most_processes, identity.most_processes))
    if spec.no_new_privileges:
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    _die_with_keeper(pipe)
    libc.close_at_exec(3)
    _execute(spec)


def anchor(pipe: int) -> NoReturn:
    """Be the first process of a pid namespace, and do nothing."""
    try:
        _cut_loose()
        os.setsid()
        _die_with_keeper(pipe)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
        os.write(pipe, b"!")
        os.chdir("/")
        libc.close_from(0)
        while True:
            signal.pause()
    finally:
        os._exit(1)


def _die_with_keeper(pipe: int) -> None:
    """Ask the kernel to kill us when the keeper dies; it may have died just before, and then nobody reads the pipe."""
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    poll = select.poll()
    poll.register(pipe, 0)
    if poll.poll(0):
        os._exit(1)


def _execute(spec: Launch) -> NoReturn:
    """Look the program up as the reference's runtime does, and become it."""
    path = look_up(spec.argv[0], spec.env.get("PATH", DEFAULT_PATH))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execve(path, spec.argv, spec.env)
    except OSError as error:
        raise LaunchError(f"exec {path}: {words(error)}") from error


def look_up(name: str, search: str) -> str:
    """Where a program is, by its name and a PATH; the errors are worded as Go words them."""
    if "/" in name:
        try:
            mode = os.stat(name).st_mode
        except OSError as error:
            raise LaunchError(f'exec: "{name}": stat {name}: {words(error)}') from error
        if stat.S_ISDIR(mode):
            raise LaunchError(f'exec: "{name}": is a directory')
        if not os.access(name, os.X_OK):
            raise LaunchError(f'exec: "{name}": permission denied')
        return name
    for place in search.split(":") if name else ():
        path = f"{place or '.'}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    raise LaunchError(f'exec: "{name}": executable file not found in $PATH')


def words(error: OSError) -> str:
    """The kernel's word for an error, as Go spells it."""
    text = os.strerror(error.errno) if error.errno else str(error)
    return text[:1].lower() + text[1:]


def _cut_loose() -> None:
    """Be deaf to nothing any more; all signals are still blocked."""
    signal.set_wakeup_fd(-1)
    libc.default_signals()


def _take_stdio(stdio: tuple[int, int, int], identity: Identity) -> None:
    for target, file in enumerate([fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3) for file in stdio]):
        os.dup2(file, target)
        mode = os.fstat(target).st_mode
        # Or else a program of another user could not open /dev/stdout. Never a file or a device of the host's.
        if identity.user and stat.S_ISFIFO(mode):
            with suppress(OSError):
                os.fchown(target, identity.user, -1)


def _enter(directory: str) -> OSError | None:
    try:
        os.chdir(directory)
    except OSError as error:
        return error
    return None


def _join(path: str) -> None:
    try:
        with open(path, "wb", 0) as file:
            file.write(b"0")
    except OSError as error:
        raise LaunchError(f"cannot join the cgroup {os.path.dirname(path)}: {words(error)}") from error


def _take_identity(identity: Identity) -> None:
    """Give up what the container is not to have; the user last, for only root can do the rest."""
    try:
        if identity.bounding is not None:
            capabilities.bound(identity.bounding)
        if identity.groups is not None:
            os.setgroups(identity.groups)
        if identity.group is not None:
            os.setresgid(identity.group, identity.group, identity.group)
        if identity.user is not None:
            os.setresuid(identity.user, identity.user, identity.user)
    except OSError as error:
        hint = ": no such id in this user namespace" if error.errno == errno.EINVAL else ""
        raise LaunchError(
            f"cannot become user {identity.user}, group {identity.group}: {words(error)}{hint}"
        ) from error
