"""Start the processes of a pod's containers in namespaces.

A process is forked directly into its namespaces (`libc.clone`) and sets itself up (`rootfs.py`, `child.py`). It reports
through a pipe that exec closes: an empty report means that the program runs, otherwise it gives the error. To join an
existing PID namespace (`enter`, or one that the pod shares), an intermediate process is needed, because setns only
affects the *children* of a process. The intermediate process also does everything that needs the host's files or
privileges, because the other processes of the namespace see its child at once:

    keeper --clone--> intermediate --setns, prepare, clone(CLONE_PARENT)--> the process, also a child of the keeper
"""

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from podkeeper.linux import capabilities, idmap, libc
from podkeeper.linux.errors import LaunchError
from podkeeper.linux.idmap import NO_IDS
from podkeeper.linux.libc import CLONE_NEWIPC, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUTS
from podkeeper.runtimes.process.keeper import child, rootfs
from podkeeper.runtimes.process.keeper.child import Identity, error_text
from podkeeper.runtimes.process.keeper.cleanup import remove_trees
from podkeeper.runtimes.process.keeper.isolation import Isolation
from podkeeper.runtimes.process.keeper.launch import Launch
from podkeeper.runtimes.process.keeper.pod_mounts import PodMounts, copy_proc_of
from podkeeper.runtimes.process.keeper.rootfs import SystemMounts
from podkeeper.runtimes.process.keeper.terminal import TerminalSetup

ALL_SIGNALS = signal.valid_signals()
START_SECONDS = 30.0  # a process without exec after this time hangs, probably on a dead file server


class NamespaceJail:
    """The namespaces that the containers of one pod share. One per keeper process.

    The process that creates it enters the pod's IPC and UTS namespaces, and for an ordinary user also a user namespace.
    It must be single-threaded. It stays in the host's mount, network and PID namespaces.
    """

    def __init__(
        self,
        *,
        isolation: Isolation,
        hostname: str = "",
        share_pid: bool = False,
        host_pid: bool = False,
        host_ipc: bool = False,
        shm: bool = False,
        start_seconds: float = START_SECONDS,
    ) -> None:
        """Create the pod's namespaces. Without `hostname`, use the host's. `shm`: the containers share a /dev/shm.

        A process must execute its program within `start_seconds`. Raises LaunchError.
        """
        self._isolation = isolation
        self._start_seconds = start_seconds
        self._host_pid = host_pid
        self._host_ipc = host_ipc
        self._mounts = PodMounts()
        try:
            if isolation.namespaces == "user":
                # The user namespace comes first: it gives the privilege to create the others, and it owns them.
                idmap.enter_user_namespace(isolation.uids, isolation.gids)
            if isolation.namespaces != "none":
                libc.unshare((0 if host_ipc else CLONE_NEWIPC) | (CLONE_NEWUTS if hostname else 0))
                if hostname:
                    libc.set_hostname(hostname)
                shares_pid = share_pid and not host_pid and isolation.pid
                self._mounts.create(shm=shm and not host_ipc, share_pid=shares_pid)
        except OSError as error:
            raise LaunchError(f"cannot create the pod's namespaces: {error_text(error)}") from error

    def launch(self, spec: Launch, stdin: int, stdout: int, stderr: int) -> int:
        """Start the first process of a container. Return its PID after exec. It is our child. Raises LaunchError.

        With `tty`, the three files are one console socket (`terminal.py`).
        """
        identity = self._identity(spec)
        if self._isolation.namespaces == "none":
            _check_no_binds(spec)
            return self._start_plain(spec, identity, (stdin, stdout, stderr))
        try:
            os.makedirs(spec.directory, 0o755, exist_ok=True)
            rootfs.check_binds(spec, self._isolation)
        except OSError as error:
            raise LaunchError(f"cannot prepare the container's files: {error}") from error
        flags = CLONE_NEWNS | (CLONE_NEWIPC if spec.ipc == "own" else 0) | (CLONE_NEWUTS if spec.uts == "own" else 0)
        namespace = self._pid_namespace(spec)
        join: str | int = ""
        if namespace == "pod":
            join = self._mounts.pid_namespace
        elif namespace == "own" and spec.beside:
            join = f"/proc/{spec.beside}/ns/pid"
        elif namespace == "own":
            flags |= CLONE_NEWPID

        def set_up() -> None:
            # Before the change of root, because the fallback is a terminal of the host.
            terminal_setup = _terminal_setup(spec, identity)
            if spec.uts == "own" and spec.hostname:
                libc.set_hostname(spec.hostname)
            # A copy changes the working directory, to which the container's directory may be relative.
            absolute = replace(spec, directory=os.path.abspath(spec.directory))
            shm = self._mounts.copy("shm") if self._mounts.has("shm") else None
            system = SystemMounts(self._proc(namespace, spec.beside), shm, host_shm=self._host_ipc)
            rootfs.enter(absolute, self._isolation, system)
            if terminal := terminal_setup.open():
                rootfs.mount_console(terminal)

        return self._start(spec, identity, (stdin, stdout, stderr), set_up, flags, join)

    def enter(self, pid: int, spec: Launch, stdin: int, stdout: int, stderr: int) -> int:
        """Start another process in the container whose first process is `pid`. Otherwise as `launch`."""
        identity = self._identity(spec)
        if self._isolation.namespaces == "none":
            return self._start_plain(spec, identity, (stdin, stdout, stderr))
        kinds = {"mnt": CLONE_NEWNS}
        kinds |= {"ipc": CLONE_NEWIPC} if spec.ipc == "own" else {}
        kinds |= {"uts": CLONE_NEWUTS} if spec.uts == "own" else {}
        fds: dict[int, int] = {}
        try:
            # Open all of them before the fork. After the first setns, /proc may be that of another PID namespace.
            for name, kind in kinds.items():
                fds[kind] = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
            join = "" if self._pid_namespace(spec) == "host" else f"/proc/{pid}/ns/pid"

            def set_up() -> None:
                terminal_setup = _terminal_setup(spec, identity)
                for kind, fd in fds.items():
                    libc.setns(fd, kind)
                terminal_setup.open()

            return self._start(spec, identity, (stdin, stdout, stderr), set_up, 0, join)
        except OSError as error:
            raise LaunchError(f"cannot enter the container: {error_text(error)} (process {pid})") from error
        finally:
            for fd in fds.values():
                os.close(fd)

    def remove_files(self, spec: Launch) -> None:
        """Delete the files that `launch` created for a container that has exited. Never deletes through a mount."""
        if spec.directory:
            remove_trees(*(f"{spec.directory}/{name}" for name in rootfs.overlay_directories(spec.directory)))

    @property
    def pause_pid(self) -> int:
        """The first process of a PID namespace that the pod shares, a child of this process. 0: there is none."""
        return self._mounts.pause_pid

    def close(self) -> None:
        """End the shared PID namespace and release the shared memory."""
        self._mounts.close()

    def _proc(self, namespace: str, beside: int) -> int | str:
        """Return which /proc a container gets: `new`, `host`, or a detached copy of an existing one."""
        if namespace == "pod":
            return self._mounts.copy("proc")
        if namespace == "own" and beside:
            return copy_proc_of(beside)
        return "host" if namespace == "host" else "new"

    def _pid_namespace(self, spec: Launch) -> str:
        """Return own, pod or host: the request of the container, limited by the pod and the machine."""
        if spec.pid == "host" or self._host_pid or not self._isolation.pid:
            return "host"
        return "pod" if spec.pid == "pod" and self.pause_pid else "own"

    def _identity(self, spec: Launch) -> Identity:
        """Return the user of the process. Raises LaunchError if this machine does not allow it."""
        # Without a filter, only the mount options keep a new device node from working.
        unsafe = () if spec.device_filter else ("MKNOD",)
        added, dropped = spec.capabilities_add, spec.capabilities_drop
        allowed = capabilities.bounding_set(added, dropped, spec.privileged, unsafe=unsafe)
        namespaces = self._isolation.namespaces
        if namespaces == "full" or (namespaces == "none" and os.geteuid() == 0):
            user, group = spec.user or 0, spec.group if spec.group is not None else idmap.primary_group(spec.user or 0)
            return Identity(user, group, spec.groups, allowed)
        if namespaces == "user":
            users, groups = self._isolation.uids[1], self._isolation.gids[1]
            advice = idmap.MORE_HELP if users else idmap.HELP
            _check_ids(spec, lambda user: user <= users, lambda group: group <= groups, advice)
            # Without mapped groups, setgroups is denied in the user namespace (user_namespaces(7)).
            has_groups = self._isolation.gids != NO_IDS
            most = spec.most_processes if self._isolation.counts else 0
            return Identity(spec.user or 0, spec.group or 0, spec.groups if has_groups else None, allowed, most)
        _check_ids(spec, lambda user: user == os.geteuid(), lambda group: group == os.getegid())
        if spec.privileged or spec.capabilities_add:
            raise LaunchError(
                "cannot grant capabilities: podkeeper does not run as root, and the kernel refuses user namespaces"
            )
        return Identity(None, None, None, None)

    def _start_plain(self, spec: Launch, identity: Identity, stdio: tuple[int, int, int]) -> int:
        return self._start(spec, identity, stdio, lambda: _terminal_setup(spec, identity).open(), 0)

    def _start(
        self,
        spec: Launch,
        identity: Identity,
        stdio: tuple[int, int, int],
        set_up: Callable[[], object],
        flags: int,
        join: str | int = "",
    ) -> int:
        """Fork the process, and wait for its exec.

        `join`: the path or descriptor of a PID namespace, which an intermediate process joins.
        """
        if not spec.argv:
            raise LaunchError("no command specified")

        def prepare() -> None:
            child.prepare(spec, identity, stdio, set_up, writer)

        def execute() -> None:
            child.execute(spec, identity, writer)

        def run() -> None:
            if join:
                _fork_sibling(join, flags, writer, prepare, execute)
            prepare()
            execute()

        reader, writer = os.pipe()
        # Until the child has reset them, it has the keeper's signal handlers and its wakeup socket. A signal to the
        # child would then be reported to the keeper's loop.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ALL_SIGNALS)
        try:
            first = libc.clone(0 if join else flags)
            if first == 0:
                # Otherwise this process itself would be a reader of its pipe, and `_die_with_keeper` would never see
                # the keeper's death.
                os.close(reader)
                _run_child(writer, run)
        except OSError as error:
            os.close(reader)
            raise LaunchError(f"cannot fork: {error_text(error)}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(writer)
        # This blocks the keeper's loop, at most for `start_seconds`. Therefore the agent waits longer before it kills a
        # silent keeper (`KeeperTimeouts.kill_seconds`).
        report = _read_report(reader, first, self._start_seconds)
        if "timeout" in report:  # SIGKILL does not end a process in uninterruptible sleep; the keeper reaps it later
            raise LaunchError(f"the process did not execute its program within {self._start_seconds:g} s")
        pid = first
        if join:
            # Does not block for long: the report has ended, so the intermediate process has closed the pipe, which it
            # does only by exiting.
            os.waitpid(first, 0)
            pid = int(report.get("pid", "0"))
        if "error" in report or not pid:
            if pid:
                # The same holds here: after its error report, the child only exits.
                os.waitpid(pid, 0)
            raise LaunchError(report.get("error", "the process was killed before it executed its program"))
        return pid


def _run_child(writer: int, run: Callable[[], None]) -> NoReturn:
    """In the child: run the steps up to exec, and report an error."""
    text = "the process ended before it executed its program"
    try:
        run()
    except LaunchError as error:
        text = str(error)
    except OSError as error:
        text = f"cannot set up the container: {f'{error.filename}: ' if error.filename else ''}{error_text(error)}"
    except BaseException as error:
        text = f"cannot set up the container: {error!r}"
    finally:
        with suppress(OSError):
            # One line, because a report has one line per key. At most PIPE_BUF bytes, because a longer write is not
            # atomic and could mix with the line of the intermediate process (pipe(7)).
            os.write(writer, f"error {' '.join(text.splitlines())}\n".encode("utf-8", "replace")[:4096])
        os._exit(127)


def _fork_sibling(
    join: str | int, flags: int, writer: int, prepare: Callable[[], None], execute: Callable[[], None]
) -> NoReturn:
    """In the intermediate process: prepare, then fork a sibling into an existing PID namespace."""
    try:
        namespace = os.open(join, os.O_RDONLY | os.O_CLOEXEC) if isinstance(join, str) else join
        # setns moves only future children into a PID namespace, not this process.
        libc.setns(namespace, CLONE_NEWPID)
        if flags:
            libc.unshare(flags)
    except OSError as error:
        raise LaunchError(f"cannot join the container's PID namespace: {error_text(error)}") from error
    prepare()
    try:
        # The new process must be the keeper's child, because only a parent can wait for the exit status.
        pid = libc.clone(libc.CLONE_PARENT)
    except OSError as error:
        raise LaunchError(f"cannot fork: {error_text(error)}") from error
    if pid == 0:
        _run_child(writer, execute)
    os.write(writer, f"pid {pid}\n".encode())
    os._exit(0)


def _read_report(reader: int, pid: int, seconds: float) -> dict[str, str]:
    """Return the report of a child, after its exec or its failure."""
    report, deadline = b"", time.monotonic() + seconds
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    with os.fdopen(reader, "rb", 0):
        while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            if not (piece := os.read(reader, 8192)):
                return _parse(report)
            report += piece
    parsed = _parse(report)
    # Neither is reaped yet, so these PIDs cannot belong to other processes.
    for victim in (pid, int(parsed.get("pid", "0"))):
        if victim:
            os.kill(victim, signal.SIGKILL)
    return {**parsed, "timeout": ""}


def _parse(report: bytes) -> dict[str, str]:
    lines = report.decode("utf-8", "replace").splitlines()
    return {key: value for key, _, value in (line.partition(" ") for line in lines)}


def _terminal_setup(spec: Launch, identity: Identity) -> TerminalSetup:
    return TerminalSetup(tty=spec.tty, owner=identity.user)


def _check_no_binds(spec: Launch) -> None:
    targets = [bind.target for bind in spec.binds if not bind.optional]
    if targets:
        raise LaunchError(
            f"cannot mount {', '.join(targets)}: the kernel refuses namespaces. Run podkeeper as root, or allow "
            "unprivileged user namespaces (see `podkeeper doctor`)"
        )


def _check_ids(
    spec: Launch, user_fits: Callable[[int], bool], group_fits: Callable[[int], bool], advice: str = idmap.HELP
) -> None:
    """Refuse IDs that an ordinary user cannot use."""
    if spec.user is not None and not user_fits(spec.user):
        raise LaunchError(f"cannot run as user {spec.user}: podkeeper may not use this user ID; {advice}")
    for group in (*spec.groups, *(() if spec.group is None else (spec.group,))):
        if not group_fits(group):
            raise LaunchError(f"cannot run with group {group}: podkeeper may not use this group ID; {advice}")
