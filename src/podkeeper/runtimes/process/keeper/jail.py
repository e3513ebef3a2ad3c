"""The jail: what the containers of one pod share, and the way to start processes in them.

A process is forked straight into its namespaces (`libc.clone`) and builds its own world (`view.py`,
`child.py`). A pipe that exec closes tells how it went: nothing means that the program runs, a line is the
reason why not. To join a pid namespace that exists already (`enter`, or one shared by the pod) takes
a go-between, since that changes only where the *children* of a process live:

    keeper --clone--> go-between --setns, clone(CLONE_PARENT)--> the process, a child of the keeper's too
"""

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from podkeeper.runtimes.process.keeper import capabilities, child, idmap, libc, view
from podkeeper.runtimes.process.keeper.child import Identity, words
from podkeeper.runtimes.process.keeper.demolition import demolish
from podkeeper.runtimes.process.keeper.idmap import NO_IDS
from podkeeper.runtimes.process.keeper.isolation import Isolation
from podkeeper.runtimes.process.keeper.launch import Launch, LaunchError
from podkeeper.runtimes.process.keeper.libc import CLONE_NEWIPC, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUTS
from podkeeper.runtimes.process.keeper.terminal import Seat

ALL_SIGNALS = signal.valid_signals()
START_SECONDS = 30.0  # a process that has not come to its exec by then hangs, on a dead file server most likely


class Jail:
    """What the containers of one pod share; one per keeper process.

    The process that makes a Jail moves into the pod's IPC and UTS namespaces (and, for an ordinary user,
    into a user namespace); it must have one thread only. Its mount, network and pid namespaces stay the host's.
    """

    def __init__(
        self,
        *,
        isolation: Isolation,
        hostname: str = "",
        share_pid: bool = False,
        host_pid: bool = False,
        host_ipc: bool = False,
        shm: str = "",
    ) -> None:
        """Make the pod's namespaces. No hostname means the host's; no `shm`, a /dev/shm for each container.

        `shm` is a host directory, made here and deleted by `close`. Raises LaunchError.
        """
        self._isolation = isolation
        self._host_pid = host_pid
        self._shm = "/dev/shm" if host_ipc else shm
        self._own_shm = shm if not host_ipc and isolation.namespaces != "none" else ""
        self.anchor = 0  # the pid of PID 1 of a pid namespace that the pod shares, a child of this process
        try:
            if isolation.namespaces == "user":
                idmap.enter_user_namespace(isolation.uids, isolation.gids)
            if isolation.namespaces != "none":
                libc.unshare((0 if host_ipc else CLONE_NEWIPC) | (CLONE_NEWUTS if hostname else 0))
                if hostname:
                    libc.set_hostname(hostname)
                if share_pid and not host_pid and isolation.pid:
                    self.anchor = _start_anchor()
            if self._own_shm:
                os.makedirs(self._own_shm, exist_ok=True)
                os.chmod(self._own_shm, 0o1777)
        except OSError as error:
            raise LaunchError(f"cannot make the pod's namespaces: {words(error)}") from error

    def launch(self, spec: Launch, stdin: int, stdout: int, stderr: int) -> int:
        """Start the process; returns its pid, a child of this process, once exec has succeeded; raises LaunchError.

        With `tty` the three files are one console socket (`terminal.py`).
        """
        identity = self._identity(spec)
        if self._isolation.namespaces == "none":
            _refuse_binds(spec)
            return self._start(spec, identity, (stdin, stdout, stderr), lambda: _seat(spec, identity).take(), 0)
        try:
            os.makedirs(spec.directory, 0o755, exist_ok=True)
            view.check(spec, self._isolation)
        except OSError as error:
            raise LaunchError(f"cannot prepare the container's files: {error}") from error
        flags = CLONE_NEWNS | (CLONE_NEWIPC if spec.ipc == "own" else 0) | (CLONE_NEWUTS if spec.uts == "own" else 0)
        namespace = self._pid_namespace(spec)
        host = self.anchor if namespace == "pod" else spec.beside if namespace == "own" else 0
        if namespace == "own" and not host:
            flags |= CLONE_NEWPID

        def move_in() -> None:
            seat = _seat(spec, identity)
            if spec.uts == "own" and spec.hostname:
                libc.set_hostname(spec.hostname)
            view.move_in(spec, self._isolation, self._shm, new_proc=namespace != "host")
            if terminal := seat.take():
                view.show_console(terminal)

        join = f"/proc/{host}/ns/pid" if host else ""
        return self._start(spec, identity, (stdin, stdout, stderr), move_in, flags, join)

    def enter(self, pid: int, spec: Launch, stdin: int, stdout: int, stderr: int) -> int:
        """Start a second process inside the running container whose first process is `pid`; as `launch` otherwise."""
        identity = self._identity(spec)
        if self._isolation.namespaces == "none":
            return self._start(spec, identity, (stdin, stdout, stderr), lambda: _seat(spec, identity).take(), 0)
        kinds = {"mnt": CLONE_NEWNS}
        kinds |= {"ipc": CLONE_NEWIPC} if spec.ipc == "own" else {}
        kinds |= {"uts": CLONE_NEWUTS} if spec.uts == "own" else {}
        fds: dict[int, int] = {}
        try:
            for name, kind in kinds.items():
                fds[kind] = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
            join = "" if self._pid_namespace(spec) == "host" else f"/proc/{pid}/ns/pid"

            def move_in() -> None:
                seat = _seat(spec, identity)
                for kind, fd in fds.items():
                    libc.setns(fd, kind)
                seat.take()

            return self._start(spec, identity, (stdin, stdout, stderr), move_in, 0, join)
        except OSError as error:
            raise LaunchError(f"cannot enter the container: {words(error)} (process {pid})") from error
        finally:
            for fd in fds.values():
                os.close(fd)

    def dismantle(self, spec: Launch) -> None:
        """Delete what `launch` made on disk for a container that is no more; never deletes through a mount."""
        if spec.directory:
            demolish(*(f"{spec.directory}/{name}" for name in view.made_in(spec.directory)))

    def close(self) -> None:
        """End the shared pid namespace, and delete the shared memory."""
        if self.anchor:
            # Not waited for: it ends once this process has reaped all others in its namespace, its own children.
            with suppress(ProcessLookupError):
                os.kill(self.anchor, signal.SIGKILL)
            self.anchor = 0
        if self._own_shm:
            demolish(self._own_shm)

    def _pid_namespace(self, spec: Launch) -> str:
        """own, pod or host: what a container asks for, and what the pod and the machine make of it."""
        if spec.pid == "host" or self._host_pid or not self._isolation.pid:
            return "host"
        return "pod" if spec.pid == "pod" and self.anchor else "own"

    def _identity(self, spec: Launch) -> Identity:
        """Who the process will be; raises LaunchError if that is not ours to give."""
        allowed = capabilities.allowed(spec.capabilities_add, spec.capabilities_drop, spec.privileged)
        namespaces = self._isolation.namespaces
        if namespaces == "full" or (namespaces == "none" and os.geteuid() == 0):
            user, group = spec.user or 0, spec.group if spec.group is not None else idmap.primary_group(spec.user or 0)
            return Identity(user, group, spec.groups, allowed)
        if namespaces == "user":
            users, groups = self._isolation.uids[1], self._isolation.gids[1]
            advice = idmap.MORE_HELP if users else idmap.HELP
            _check_ids(spec, lambda user: user <= users, lambda group: group <= groups, advice)
            rich = self._isolation.gids != NO_IDS
            most = spec.most_processes if self._isolation.counts else 0
            return Identity(spec.user or 0, spec.group or 0, spec.groups if rich else None, allowed, most)
        _check_ids(spec, lambda user: user == os.geteuid(), lambda group: group == os.getegid())
        if spec.privileged or spec.capabilities_add:
            raise LaunchError(
                "cannot give capabilities: podkeeper does not run as root, and user namespaces are refused"
            )
        return Identity(None, None, None, None)

    def _start(
        self,
        spec: Launch,
        identity: Identity,
        stdio: tuple[int, int, int],
        move_in: Callable[[], object],
        flags: int,
        join: str = "",
    ) -> int:
        """Fork the process, through a go-between if there is a pid namespace to join, and wait for its exec."""
        if not spec.argv:
            raise LaunchError("no command specified")

        def life() -> None:
            child.become(spec, identity, stdio, move_in, writer)

        reader, writer = os.pipe()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ALL_SIGNALS)
        try:
            first = libc.clone(0 if join else flags)
            if first == 0:
                os.close(reader)
                _live(writer, life if not join else lambda: _go_between(join, flags, writer, life))
        except OSError as error:
            os.close(reader)
            raise LaunchError(f"cannot fork: {words(error)}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(writer)
        told = _hear(reader, first)
        if "hangs" in told:  # and may not even die: the keeper reaps it one day
            raise LaunchError(f"the process did not come to its program within {START_SECONDS:.0f} s")
        pid = first
        if join:
            os.waitpid(first, 0)
            pid = int(told.get("pid", "0"))
        if "error" in told or not pid:
            if pid:
                os.waitpid(pid, 0)
            raise LaunchError(told.get("error", "the process was killed before its program began"))
        return pid


def _live(writer: int, life: Callable[[], None]) -> NoReturn:
    """In the child: live, and if that fails, tell why."""
    text = "the process ended before its program began"
    try:
        life()
    except LaunchError as error:
        text = str(error)
    except OSError as error:
        text = f"cannot set up the container: {error.filename or 'it'}: {words(error)}"
    except BaseException as error:
        text = f"cannot set up the container: {error!r}"
    finally:
        with suppress(OSError):
            os.write(writer, f"error {' '.join(text.splitlines())}\n".encode("utf-8", "replace")[:4096])
        os._exit(127)


def _go_between(join: str, flags: int, writer: int, life: Callable[[], None]) -> NoReturn:
    """In a child: fork a sibling into a pid namespace that exists already."""
    try:
        namespace = os.open(join, os.O_RDONLY)
        libc.setns(namespace, CLONE_NEWPID)
        pid = libc.clone(flags | libc.CLONE_PARENT)
    except OSError as error:
        raise LaunchError(f"cannot join the container's processes: {words(error)}") from error
    if pid == 0:
        _live(writer, life)
    os.write(writer, f"pid {pid}\n".encode())
    os._exit(0)


def _hear(reader: int, pid: int) -> dict[str, str]:
    """What a child told, once its program runs or it has given up."""
    told, deadline = b"", time.monotonic() + START_SECONDS
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    with os.fdopen(reader, "rb", 0):
        while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            if not (piece := os.read(reader, 8192)):
                return _parse(told)
            told += piece
    heard = _parse(told)
    for victim in (pid, int(heard.get("pid", "0"))):
        if victim:
            os.kill(victim, signal.SIGKILL)
    return {**heard, "hangs": ""}


def _parse(told: bytes) -> dict[str, str]:
    lines = told.decode("utf-8", "replace").splitlines()
    return {key: value for key, _, value in (line.partition(" ") for line in lines)}


def _start_anchor() -> int:
    """PID 1 of a pid namespace that the pod shares: it adopts and forgets orphans, and ends with the keeper."""
    reader, writer = os.pipe()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ALL_SIGNALS)
    try:
        pid = libc.clone(CLONE_NEWPID)
        if pid == 0:
            os.close(reader)
            child.anchor(writer)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.close(writer)
    with os.fdopen(reader, "rb", 0) as pipe:
        if not pipe.read(1):
            os.waitpid(pid, 0)
            raise LaunchError("cannot make the pod's namespaces: the first process of its pid namespace died")
    return pid


def _seat(spec: Launch, identity: Identity) -> Seat:
    """In the child: what it will sit at."""
    return Seat(tty=spec.tty, owner=identity.user)


def _refuse_binds(spec: Launch) -> None:
    targets = [bind.target for bind in spec.binds if not bind.optional]
    if targets:
        raise LaunchError(
            f"cannot mount {', '.join(targets)}: namespaces are refused on this machine. Run podkeeper as root, "
            "or allow unprivileged user namespaces (`podkeeper doctor` tells how)"
        )


def _check_ids(
    spec: Launch, user_fits: Callable[[int], bool], group_fits: Callable[[int], bool], advice: str = idmap.HELP
) -> None:
    """Refuse ids that an ordinary user cannot give."""
    if spec.user is not None and not user_fits(spec.user):
        raise LaunchError(f"cannot run as user {spec.user}: it is not among podkeeper's user ids; {advice}")
    for group in (*spec.groups, *(() if spec.group is None else (spec.group,))):
        if not group_fits(group):
            raise LaunchError(f"cannot run with group {group}: it is not among podkeeper's group ids; {advice}")
