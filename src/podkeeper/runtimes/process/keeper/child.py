"""The steps of a container's process between fork and exec.

The order matters. Steps that need the host's files come before the change of root, steps that need privileges before
the change of user.
"""

import binascii
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

from podkeeper.linux import capabilities, libc
from podkeeper.linux.errors import LaunchError
from podkeeper.linux.tree import opened
from podkeeper.runtimes.process.keeper.launch import DEFAULT_PATH, Launch
from podkeeper.runtimes.process.keeper.terminal import take_terminal


@dataclass(frozen=True, slots=True)
class Identity:
    """The user of the process. None: unchanged."""

    user: int | None
    group: int | None
    groups: tuple[int, ...] | None
    bounding: frozenset[int] | None
    most_processes: int = 0  # per user in the pod's user namespace, 0: no limit


def prepare(
    spec: Launch, identity: Identity, stdio: tuple[int, int, int], set_up: Callable[[], object], pipe: int
) -> None:
    """Do all steps that need the host's files or privileges. Raises LaunchError or OSError.

    Afterwards this process has no more privileges, files and mounts than the container. Only then may it, or its child,
    become visible in a PID namespace that other processes share: with SYS_PTRACE, they could take over everything that
    it has (CVE-2016-9962 in runc). The keeper holds the other end of `pipe`.
    """
    reset_signals()
    # Before `set_up`, which expects the console socket at descriptor 0 (`TerminalSetup.open`).
    _set_stdio(stdio, identity)
    # Before the change of root, because the cgroup files are the host's, and before exec, so that no process of the
    # container runs without its limits.
    for path in spec.cgroups:
        _join_cgroup(path)
    # As runc: the modes of new files must not depend on the agent's umask.
    os.umask(0o022)
    set_up()
    # Before the change of directory: a descriptor of the keeper may lead to the host's root, and a working directory
    # such as /proc/self/fd/7 leads to the descriptor (CVE-2024-21626 in runc).
    libc.close_from(3, keep=pipe)
    if spec.keyring:
        # As runc: otherwise the container could read the keys of the session that started the agent.
        libc.new_session_keyring(spec.keyring)
    # Without no_new_privs, a filter needs SYS_ADMIN, which the change of user drops. So it must allow the steps below.
    if not spec.no_new_privileges:
        _install_seccomp(spec)
    cwd = spec.cwd or "/"
    # First as root: a directory that only root may enter stays the working directory, as with runc.
    error_as_root = _change_directory(cwd)
    _set_identity(identity)
    error = _change_directory(cwd)
    if error and error_as_root:
        raise LaunchError(f'chdir to cwd ("{cwd}") set in config.json failed: {error_text(error)}')
    # Only exec evaluates this flag, so no step above depends on it.
    if spec.no_new_privileges:
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    # After the change of user, which sets the flag to a default of the machine. Exec sets it again.
    libc.prctl(libc.PR_SET_DUMPABLE, 0)


def execute(spec: Launch, identity: Identity, pipe: int) -> NoReturn:
    """Execute the program of a prepared process. Never returns. Raises LaunchError or OSError."""
    # A session of its own: `kill_session` finds all processes of the container by it, and only a session leader can get
    # a controlling terminal.
    os.setsid()
    if spec.tty:
        take_terminal()
    # After the change of user. A process that changes its user while it is above the limit cannot exec (EAGAIN, see
    # execve(2)). Also after the fork of this process. Set here, the limit only refuses forks of the container.
    if identity.most_processes:
        resource.setrlimit(resource.RLIMIT_NPROC, (identity.most_processes, identity.most_processes))
    # After the change of user, which resets the parent death signal (prctl(2)).
    die_with_keeper(pipe)
    # Last, so that a strict filter need not allow more than exec.
    if spec.no_new_privileges:
        _install_seccomp(spec)
    # Mark, do not close: the keeper reads the end of file on `pipe` as "the program runs", so exec itself must close
    # it.
    os.set_inheritable(pipe, False)
    _execute(spec)


def _install_seccomp(spec: Launch) -> None:
    if not spec.seccomp:
        return
    try:
        libc.install_seccomp(binascii.a2b_base64(spec.seccomp), spec.seccomp_flags)
    except OSError as error:
        # An ordinary user without namespaces has no SYS_ADMIN. Only a filter that the spec names is worth a failure.
        if spec.seccomp_required:
            raise LaunchError(f"cannot apply the seccomp profile: {error_text(error)}") from error


def die_with_keeper(pipe: int) -> None:
    """Let the kernel kill this process when the keeper dies. Exit if the keeper is already dead: the pipe is closed."""
    # First the signal, then the check: if the keeper dies in between, one of the two notices it.
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    poll = select.poll()
    # No events are requested. poll(2) always reports POLLERR, which the write end of a pipe gets when no reader is
    # left.
    poll.register(pipe, 0)
    if poll.poll(0):
        os._exit(1)


def _execute(spec: Launch) -> NoReturn:
    """Find the program as runc does, and execute it."""
    path = find_executable(spec.argv[0], spec.env.get("PATH", DEFAULT_PATH))
    # The signal mask survives exec, so unblock here. Signals that came since the fork are delivered now.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execve(path, spec.argv, spec.env)
    except OSError as error:
        raise LaunchError(f"exec {path}: {error_text(error)}") from error


def find_executable(name: str, search: str) -> str:
    """Return the path of a program. The errors have the wording of Go."""
    if "/" in name:
        try:
            mode = os.stat(name).st_mode
        except OSError as error:
            raise LaunchError(f'exec: "{name}": stat {name}: {error_text(error)}') from error
        if stat.S_ISDIR(mode):
            raise LaunchError(f'exec: "{name}": is a directory')
        if not os.access(name, os.X_OK):
            raise LaunchError(f'exec: "{name}": permission denied')
        return name
    for directory in search.split(":") if name else ():
        # An empty entry of PATH is the current directory (POSIX).
        path = f"{directory or '.'}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    raise LaunchError(f'exec: "{name}": executable file not found in $PATH')


def error_text(error: OSError) -> str:
    """Return the text of an error in Go's spelling."""
    text = os.strerror(error.errno) if error.errno else str(error)
    return text[:1].lower() + text[1:]


def reset_signals() -> None:
    """Reset all signal handlers. All signals are still blocked."""
    signal.set_wakeup_fd(-1)
    libc.default_signals()


def _set_stdio(stdio: tuple[int, int, int], identity: Identity) -> None:
    # Copy all three above descriptor 2 first. Otherwise dup2 could overwrite a source that is itself 0, 1 or 2.
    for target, file in enumerate([fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3) for file in stdio]):
        os.dup2(file, target)
        mode = os.fstat(target).st_mode
        # Give pipes to the container's user. Otherwise that user could not open /dev/stdout. Never change a file or
        # device of the host.
        if identity.user and stat.S_ISFIFO(mode):
            with suppress(OSError):
                os.fchown(target, identity.user, -1)


def _change_directory(directory: str) -> OSError | None:
    """Change the working directory. Return the error, or raise LaunchError if the result is outside the container."""
    try:
        with opened(_open_directory(directory)) as descriptor:
            os.fchdir(descriptor)
    except OSError as error:
        return error
    try:
        path = os.getcwd()
    except OSError:  # the directory has been deleted, or is not below the root
        path = ""
    # The kernel's text for a directory that is not below the root of this process (getcwd(2)).
    if not path.startswith("/"):
        raise LaunchError(f'chdir to cwd ("{directory}") set in config.json failed: it is outside the container')
    return None


def _open_directory(directory: str) -> int:
    """Open a directory without following magic links, which lead out of the container (/proc/1/root)."""
    flags = os.O_PATH | os.O_DIRECTORY
    try:
        return libc.open_without_magic_links(directory, flags)
    except OSError as error:
        # Before Linux 5.6, or under an outer seccomp filter. The check of the result finds a way out.
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return os.open(directory, flags | os.O_CLOEXEC)
        raise


def _join_cgroup(path: str) -> None:
    try:
        # Unbuffered, because the result of the write itself is the kernel's answer. 0 is the writing process.
        with open(path, "wb", 0) as file:
            file.write(b"0")
    except OSError as error:
        raise LaunchError(f"cannot join the cgroup {os.path.dirname(path)}: {error_text(error)}") from error


def _set_identity(identity: Identity) -> None:
    """Drop privileges. The user comes last, because only root can do the rest."""
    try:
        if identity.bounding is not None:
            capabilities.limit_bounding_set(identity.bounding)
        if identity.groups is not None:
            os.setgroups(identity.groups)
        if identity.group is not None:
            os.setresgid(identity.group, identity.group, identity.group)
        if identity.user is not None:
            os.setresuid(identity.user, identity.user, identity.user)
        # After the change of user, which needs SETUID. At exec, a root process would get its inheritable capabilities
        # back, and every process its ambient ones, whatever the bounding set is.
        kept = capabilities.EVERYTHING if identity.bounding is None else identity.bounding
        libc.set_capabilities(sum(1 << number for number in kept))
    except OSError as error:
        hint = ": no such ID in this user namespace" if error.errno == errno.EINVAL else ""
        raise LaunchError(
            f"cannot run as user {identity.user}, group {identity.group}: {error_text(error)}{hint}"
        ) from error
