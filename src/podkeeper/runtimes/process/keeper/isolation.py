"""Probe what isolation this machine allows.

The probe runs once, in forked children that leave nothing behind. Results:

    full   as root: mount, PID, IPC and UTS namespaces
    user   as an ordinary user: the same, inside a user namespace in which the user is root
    none   if the kernel refuses both: plain process groups

`warnings` lists every missing feature, its cause, and the next step for the user.
"""

import json
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from podkeeper.linux import libc
from podkeeper.linux.idmap import NO_IDS, Ids, enter_user_namespace, subordinate_ids
from podkeeper.runtimes.process.keeper.cleanup import remove_trees

_Json = dict[str, Any]
Mount = Callable[..., None]  # as `libc.mount`


@dataclass(frozen=True, slots=True)
class Isolation:
    """The isolation that keepers can use on this machine."""

    namespaces: str = "none"  # full | user | none
    pid: bool = False  # PID namespaces, each with its own /proc
    overlay: str = ""  # whole: over everything at once; split: over directories without mounts below; "": read-only
    overlay_options: str = ""
    upper: str = "disk"  # where the changes of containers are stored: disk | memory
    uids: Ids = NO_IDS  # subordinate IDs: user 1 in a container is the first of them
    gids: Ids = NO_IDS
    counts: bool = False  # the kernel counts processes per user namespace, so RLIMIT_NPROC can limit a pod
    warnings: tuple[str, ...] = ()

    def to_json(self) -> _Json:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, data: _Json) -> "Isolation":
        values: _Json = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
        return cls(**values)


def probe(directory: str, mount: Mount = libc.mount) -> Isolation:
    """Probe this machine.

    `directory` will hold the containers' files. It is probed because not every file system supports overlays.

    `mount` mounts overlays and the other file systems of the probe.
    """
    os.makedirs(directory, exist_ok=True)
    refusals: list[str] = []
    for start in _candidates():
        found = _in_child(start, directory, mount)
        if "refused" not in found:
            isolation = replace(start, **found)
            return replace(isolation, warnings=tuple(_warnings(isolation, refusals)))
        refusals.append(str(found["refused"]))
    return Isolation(warnings=tuple(_warnings(Isolation(), refusals)))


def _candidates() -> list[Isolation]:
    """Return the combinations to probe, best first."""
    if os.geteuid() == 0:  # root without capabilities is like an ordinary user
        return [Isolation("full"), Isolation("user")]
    uids, gids = subordinate_ids()
    with_subordinate_ids = [Isolation("user", uids=uids, gids=gids)] if uids != NO_IDS else []
    return [*with_subordinate_ids, Isolation("user")]


def _in_child(start: Isolation, directory: str, mount: Mount) -> _Json:
    """Probe one combination in a forked child."""
    path = f"{directory}/.probe-{os.getpid()}-{start.namespaces}"
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        found: _Json = {"refused": "the probe was interrupted"}
        try:
            found = _probe_namespaces(start, path, mount)
        except Exception as error:
            found = {"refused": f"{start.namespaces} namespaces: {error}"}
        finally:
            os.write(writer, json.dumps(found).encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        output = pipe.read()
    os.waitpid(pid, 0)
    with suppress(OSError):
        remove_trees(path)
    return dict(json.loads(output)) if output else {"refused": f"{start.namespaces} namespaces: the probe was killed"}


def _probe_namespaces(start: Isolation, directory: str, mount: Mount) -> _Json:
    """In the child: create the namespaces, then probe what can be mounted in them."""
    if start.namespaces == "user":
        enter_user_namespace(start.uids, start.gids)
    libc.unshare(libc.CLONE_NEWNS | libc.CLONE_NEWIPC | libc.CLONE_NEWUTS)
    # A slave is enough to keep these mounts from the host. `rootfs.py` needs private mounts, because its plan must stay
    # correct while the host mounts and unmounts.
    mount(None, "/", None, libc.MS_REC | libc.MS_SLAVE)
    os.makedirs(f"{directory}/root")
    os.chdir(directory)
    found: _Json = {"pid": _probe_proc(mount), "counts": start.namespaces == "user" and _probe_process_count()}
    # In a user namespace, an overlay cannot write trusted.* attributes. userxattr (Linux 5.11) uses user.* instead.
    user = ",userxattr" if start.namespaces == "user" else ""
    for upper in ("disk", "memory"):
        if upper == "memory":
            os.mkdir("memory")
            mount("tmpfs", "memory", "tmpfs", 0)
        for overlay, lower in (("whole", "/"), ("split", _plain_directory())):
            # volatile (Linux 5.10) omits all syncs to the upper directory. After a crash of the machine its content is
            # undefined, but by then the container has ended, and no overlay is mounted over its upper directory again.
            for options in (f",volatile{user}", user):
                if _succeeds(partial(_probe_overlay, mount, upper, lower, options)):
                    os.chdir("/")
                    remove_trees(directory)
                    return found | {"overlay": overlay, "overlay_options": options, "upper": upper}
    return found


def _probe_proc(mount: Mount) -> bool:
    """Return whether a new PID namespace can mount its own /proc.

    The kernel refuses this in a container whose own /proc is partly masked.
    """
    try:
        pid = libc.clone(libc.CLONE_NEWPID)
    except OSError:
        return False
    if pid == 0:
        os._exit(0 if _succeeds(lambda: mount("proc", "root", "proc", 0)) else 1)
    worked = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    # The child shared our mount namespace, so its mount is still here.
    if worked:
        libc.unmount("root")
    return worked


def _probe_process_count() -> bool:
    """Return whether the kernel counts and limits the processes of this user namespace alone (since Linux 5.14).

    A limit of two leaves room for exactly one child. If the kernel counts all processes of the user, there is no room,
    because our parent counts too. If it does not enforce the limit, there is room for more.
    """
    usual = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (2, usual[1]))
    made = []
    try:
        for _ in range(2):
            made.append(pid := os.fork())
            if pid == 0:
                signal.pause()
                os._exit(0)
    except BlockingIOError:
        return len(made) == 1
    finally:
        for pid in made:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        resource.setrlimit(resource.RLIMIT_NPROC, usual)
    return False


def _probe_overlay(mount: Mount, upper: str, lower: str, options: str) -> None:
    base = f"{upper}/{len(os.listdir(upper)) if os.path.isdir(upper) else 0}"
    for name in ("upper", "work"):
        os.makedirs(f"{base}/{name}")
    mount("overlay", "root", "overlay", 0, f"lowerdir={lower},upperdir={base}/upper,workdir={base}/work{options}")
    try:
        # Write to it, because the kernel silently mounts an overlay read-only if it cannot use the work directory.
        os.mkdir("root/podkeeper-was-here")
    finally:
        libc.unmount("root")


def _plain_directory() -> str:
    """Return a directory of the host without mounts below it."""
    return next((path for path in ("/usr", "/etc", "/bin", "/opt") if os.path.isdir(path)), "/")


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _warnings(found: Isolation, refusals: list[str]) -> list[str]:
    """Return one sentence for the user about each missing feature."""
    because = f" ({'; '.join(refusals)})" if refusals else ""
    if found.namespaces == "none":
        return [
            f"the kernel refuses namespaces{because}: containers are plain process groups that share the host's files, "
            "processes and hostname, and cannot have volumes. Run as root, or allow unprivileged user namespaces "
            "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
            "kernel.apparmor_restrict_unprivileged_userns)"
        ]
    warnings = []
    if found.namespaces == "user" and os.geteuid() == 0:
        warnings.append(f"root cannot create namespaces on this machine{because}: containers run in a user namespace")
    if not found.pid:
        warnings.append(
            "the kernel refuses a new /proc, as in a container that masks parts of its own: "
            "containers see all processes of the host"
        )
    if not found.overlay:
        warnings.append(
            "the kernel refuses overlay file systems (for ordinary users, they need Linux 5.11): containers see the "
            "host's files read-only, and can only write to /tmp, /var/tmp and their volumes"
        )
    elif found.upper == "memory":
        warnings.append(
            "the state directory is on a file system that cannot store the files of an overlay, such as another "
            "overlay: changes of containers outside their volumes stay in memory. Choose a --root-dir on a local disk"
        )
    return warnings
