"""Mounts that the containers of one pod share: /dev/shm, and the /proc of a shared PID namespace.

They are in a mount namespace of their own, because a mount in the host's would be visible there. A new process in the
right namespaces creates it. If the pod shares a PID namespace, that process is its first one and stays as the pause
process. Otherwise it exits, and the keeper's descriptors keep the namespace.

    keeper --fork--> first process: mounts a small tree        /shm   (tmpfs)
           <--"!"--                                            /proc  (of the PID namespace)
           opens both, and the namespace
           --"!"---> first process: covers both with empty directories, drops its privileges, becomes the pause process

A container's first process copies the mounts into its own namespace (`PodMounts.copy`). It cannot mount a new /proc of
a PID namespace that it does not belong to, and it must not enter the namespace before it is set up (`child.prepare`).
"""

import os
import signal
from contextlib import suppress
from typing import Final, NoReturn

from podkeeper.linux import capabilities, libc
from podkeeper.linux.errors import LaunchError
from podkeeper.linux.libc import CLONE_NEWNS, CLONE_NEWPID, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY
from podkeeper.linux.tree import opened
from podkeeper.runtimes.process.keeper.child import die_with_keeper, reset_signals

# As in containerd's default specification.
SHM_OPTIONS: Final = "mode=1777,size=65536k"
_NO_PROGRAMS: Final = MS_NOSUID | MS_NODEV | MS_NOEXEC
_PROC_MAGIC: Final = 0x9FA0


class PodMounts:
    """The shared mounts of a pod, and its pause process if it has one."""

    def __init__(self) -> None:
        """A pod without shared mounts."""
        self.pause_pid = 0  # a child of this process
        self._files: dict[str, int] = {}
        self._namespace = -1
        self.pid_namespace = -1  # the shared one

    def has(self, name: str) -> bool:
        """Return whether `shm` or `proc` is one of the shared mounts."""
        return name in self._files

    def copy(self, name: str) -> int:
        """Return a detached copy of a mount. Changes the root and the working directory to `/` of this namespace."""
        return copy_mount(self._namespace, self._files[name])

    def close(self) -> None:
        """End the pause process and release the mounts."""
        if self.pause_pid:
            # Do not wait: it ends only after the keeper has reaped all other processes of the namespace.
            with suppress(ProcessLookupError):
                os.kill(self.pause_pid, signal.SIGKILL)
            self.pause_pid = 0
        for file in self._files.values():
            os.close(file)
        self._files = {}
        for namespace in (self._namespace, self.pid_namespace):
            if namespace >= 0:
                os.close(namespace)
        self._namespace = self.pid_namespace = -1

    def create(self, *, shm: bool, share_pid: bool) -> None:
        """Create the mounts. Raises LaunchError or OSError."""
        names = (("shm",) if shm else ()) + (("proc",) if share_pid else ())
        if not names:
            return
        reader, their_writer = os.pipe()
        their_reader, writer = os.pipe()
        # As in `NamespaceJail._start`.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = libc.clone(CLONE_NEWNS | (CLONE_NEWPID if share_pid else 0))
            if pid == 0:
                # Otherwise this process itself would be a reader and a writer of its pipes, and it would never see the
                # keeper's death.
                os.close(reader)
                os.close(writer)
                _hold_mounts(names, their_reader, their_writer, share_pid)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(their_writer)
            os.close(their_reader)
        with opened(reader), opened(writer):
            error = os.read(reader, 4096)
            if error == b"!":
                self._namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
                if share_pid:
                    # Now, because later the process is not dumpable, and an ordinary user could not open it.
                    self.pid_namespace = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
                for name in names:
                    self._files[name] = os.open(f"/proc/{pid}/root/{name}", os.O_PATH | os.O_CLOEXEC)
                os.write(writer, b"!")
                error = os.read(reader, 4096)
        if share_pid and error == b"!":
            self.pause_pid = pid
            return
        os.waitpid(pid, 0)
        if error not in (b"", b"!") or not self._files:
            self.close()
            text = error.decode("utf-8", "replace") if error != b"!" else ""
            raise LaunchError(f"cannot create the pod's namespaces: {text or 'their first process died'}")


def copy_mount(namespace: int, file: int) -> int:
    """Return a detached copy of a mount in another mount namespace.

    `file` is a directory in it. Changes the root and the working directory to `/` of the current namespace.
    """
    with opened(os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)) as own:
        # The kernel copies only mounts of the current namespace.
        libc.setns(namespace, CLONE_NEWNS)
        try:
            return libc.open_tree(file, recursive=False)
        finally:
            libc.setns(own, CLONE_NEWNS)


def copy_proc_of(pid: int) -> int:
    """Return a detached copy of the /proc that the container of a process sees. As `copy_mount`."""
    with (
        opened(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)) as namespace,
        opened(os.open(f"/proc/{pid}/root/proc", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)) as file,
    ):
        if libc.file_system_magic(file) != _PROC_MAGIC:
            raise LaunchError("cannot share the processes of a container that has no /proc")
        return copy_mount(namespace, file)


def _hold_mounts(names: tuple[str, ...], reader: int, writer: int, share_pid: bool) -> NoReturn:
    """In the first process: create the mounts, wait until the keeper has opened them, then pause or exit."""
    try:
        reset_signals()
        os.setsid()
        libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
        # Any existing directory will do, because only this namespace sees the mount.
        libc.mount("none", "/dev", "tmpfs", _NO_PROGRAMS, "mode=755,size=16k")
        os.chdir("/dev")
        for name in names:
            os.mkdir(name)
            kind, options = ("proc", None) if name == "proc" else ("tmpfs", SHM_OPTIONS)
            libc.mount(name, name, kind, _NO_PROGRAMS, options)
        libc.pivot_root(".", ".")
        libc.unmount(".")  # the old root, which lies on top of the new one (pivot_root(2))
        os.chdir("/")
        os.write(writer, b"!")
        if os.read(reader, 1) and share_pid:
            _pause(names, writer)
    except BaseException as error:
        with suppress(OSError):
            os.write(writer, str(error).encode("utf-8", "replace")[:4096])
    finally:
        os._exit(0)


def _pause(names: tuple[str, ...], writer: int) -> NoReturn:
    """Run as the first process of the shared PID namespace and only reap orphans, like the pause container.

    The containers see this process as /proc/1. So /proc/1/root and /proc/1/fd must lead to nothing of the host, and a
    container with SYS_PTRACE must gain nothing by controlling it.
    """
    for name in names:
        # The keeper's descriptors still lead to the mounts below. Without a cover, /proc/1/root/proc would be a /proc
        # without masked paths.
        libc.mount("none", name, "tmpfs", _NO_PROGRAMS | MS_RDONLY, "size=4k")
    libc.set_attributes("/", libc.MOUNT_ATTR_RDONLY, recursive=False)
    libc.close_from(0, keep=writer)
    capabilities.limit_bounding_set(frozenset())
    libc.set_capabilities(0)
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    die_with_keeper(writer)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps orphans
    os.write(writer, b"!")
    os.close(writer)
    while True:
        signal.pause()
