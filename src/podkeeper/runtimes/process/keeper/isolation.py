"""What this machine allows: found out once, by really trying, in forked children that leave nothing behind.

    full   as root: mount, pid, IPC and UTS namespaces
    user   as an ordinary user: the same, inside a user namespace of which the user is root
    none   where the kernel refuses both: plain process groups

A half is never silent: `warnings` says what containers will miss, why, and what would help.
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

from podkeeper.runtimes.process.keeper import libc
from podkeeper.runtimes.process.keeper.demolition import demolish
from podkeeper.runtimes.process.keeper.idmap import NO_IDS, Ids, enter_user_namespace, subordinate_ids

_Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Isolation:
    """What this machine allows a keeper to do."""

    namespaces: str = "none"  # full | user | none
    pid: bool = False  # pid namespaces, each with a /proc of its own
    overlay: str = ""  # whole: over everything at once; split: over directories without mounts below; "": read-only
    overlay_options: str = ""
    upper: str = "disk"  # where containers' writes go: disk | memory
    uids: Ids = NO_IDS  # subordinate ids: user 1 in a container is the first of them
    gids: Ids = NO_IDS
    counts: bool = False  # a user namespace has its own count of processes, so that a pod can have a limit
    warnings: tuple[str, ...] = ()

    def to_json(self) -> _Json:
        """The findings as plain JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, data: _Json) -> "Isolation":
        """The findings that `to_json` wrote."""
        values: _Json = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
        return cls(**values)


def probe(directory: str) -> Isolation:
    """Try what is allowed; `directory` is where the containers' files are to lie, for not every place can hold them."""
    os.makedirs(directory, exist_ok=True)
    refusals: list[str] = []
    for start in _candidates():
        found = _in_child(start, directory)
        if "refused" not in found:
            isolation = replace(start, **found)
            return replace(isolation, warnings=tuple(_warnings(isolation, refusals)))
        refusals.append(str(found["refused"]))
    return Isolation(warnings=tuple(_warnings(Isolation(), refusals)))


def _candidates() -> list[Isolation]:
    """What to try, best first."""
    if os.geteuid() == 0:  # root may have been shorn of its powers, and be an ordinary user in all but name
        return [Isolation("full"), Isolation("user")]
    uids, gids = subordinate_ids()
    rich = [Isolation("user", uids=uids, gids=gids)] if uids != NO_IDS else []
    return [*rich, Isolation("user")]


def _in_child(start: Isolation, directory: str) -> _Json:
    """Run one trial in a forked child, and bring home what it found."""
    place = f"{directory}/.probe-{os.getpid()}-{start.namespaces}"
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        found: _Json = {"refused": "the trial broke off"}
        try:
            found = _try(start, place)
        except Exception as error:
            found = {"refused": f"{start.namespaces} namespaces: {error}"}
        finally:
            os.write(writer, json.dumps(found).encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    with suppress(OSError):
        demolish(place)
    return dict(json.loads(told)) if told else {"refused": f"{start.namespaces} namespaces: the trial was killed"}


def _try(start: Isolation, place: str) -> _Json:
    """In the child: take the namespaces, then see what can be mounted in them."""
    if start.namespaces == "user":
        enter_user_namespace(start.uids, start.gids)
    libc.unshare(libc.CLONE_NEWNS | libc.CLONE_NEWIPC | libc.CLONE_NEWUTS)
    libc.mount(None, "/", None, libc.MS_REC | libc.MS_SLAVE)
    os.makedirs(f"{place}/root")
    os.chdir(place)
    found: _Json = {"pid": _try_proc(), "counts": start.namespaces == "user" and _try_count()}
    user = ",userxattr" if start.namespaces == "user" else ""
    for upper in ("disk", "memory"):
        if upper == "memory":
            os.mkdir("memory")
            libc.mount("tmpfs", "memory", "tmpfs", 0)
        for overlay, lower in (("whole", "/"), ("split", _plain_directory())):
            for options in (f",volatile{user}", user):
                if _worked(partial(_try_overlay, upper, lower, options)):
                    os.chdir("/")
                    demolish(place)
                    return found | {"overlay": overlay, "overlay_options": options, "upper": upper}
    return found


def _try_proc() -> bool:
    """Whether a new pid namespace gets its own /proc: refused inside containers that hide parts of theirs."""
    try:
        pid = libc.clone(libc.CLONE_NEWPID)
    except OSError:
        return False
    if pid == 0:
        os._exit(0 if _worked(lambda: libc.mount("proc", "root", "proc", 0)) else 1)
    worked = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    if worked:
        libc.unmount("root")
    return worked


def _try_count() -> bool:
    """Whether a limit of processes counts those of this user namespace alone (since Linux 5.14), and is kept.

    With a limit of two there is room for one child. Where all processes of the user count there is none: whoever
    started us is one as well; and where nobody counts there is room for more.
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


def _try_overlay(upper: str, lower: str, options: str) -> None:
    base = f"{upper}/{len(os.listdir(upper)) if os.path.isdir(upper) else 0}"
    for name in ("upper", "work"):
        os.makedirs(f"{base}/{name}")
    libc.mount("overlay", "root", "overlay", 0, f"lowerdir={lower},upperdir={base}/upper,workdir={base}/work{options}")
    try:
        os.mkdir("root/podkeeper-was-here")
    finally:
        libc.unmount("root")


def _plain_directory() -> str:
    """A directory of the host with nothing mounted below it."""
    return next((path for path in ("/usr", "/etc", "/bin", "/opt") if os.path.isdir(path)), "/")


def _worked(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _warnings(found: Isolation, refusals: list[str]) -> list[str]:
    """What containers will miss, for a person to read."""
    because = f" ({'; '.join(refusals)})" if refusals else ""
    if found.namespaces == "none":
        return [
            f"namespaces are refused{because}: containers are plain process groups that share the host's files, "
            "processes and hostname, and cannot have volumes. Run as root, or allow unprivileged user namespaces "
            "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
            "kernel.apparmor_restrict_unprivileged_userns)"
        ]
    warnings = []
    if found.namespaces == "user" and os.geteuid() == 0:
        warnings.append(f"root may not make namespaces here{because}: containers run in a user namespace")
    if not found.pid:
        warnings.append(
            "the kernel refuses a new /proc, as it does inside a container that hides parts of its own: "
            "containers see all processes of the host"
        )
    if not found.overlay:
        warnings.append(
            "overlay file systems are refused (as an ordinary user they need Linux 5.11): containers see the host's "
            "files read-only, and can write to /tmp, /var/tmp and their volumes only"
        )
    elif found.upper == "memory":
        warnings.append(
            "the state directory lies where an overlay cannot keep its files (such as on another overlay): what "
            "containers write outside their volumes is held in memory. Choose a --root-dir on a local disk"
        )
    return warnings
