"""What this machine offers to pods: one finding per part, found out by looking and, where that is not enough, trying.

Nothing is changed: trials are made in a directory of their own that goes with them.
"""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from podkeeper.app.cli.checkup_containers import container_findings
from podkeeper.app.cli.findings import Finding, Mark
from podkeeper.app.local.client import AskingFailed, LocalClient
from podkeeper.app.local.places import default_root, default_socket

if TYPE_CHECKING:
    from podkeeper.runtimes.process.keeper.isolation import Isolation

OLDEST_PYTHON = (3, 11)


def checkup(runtime_endpoint: str = "") -> tuple[Finding, ...]:
    """Look at everything; a container runtime is looked for at the usual places, or at this one."""
    return (
        _system(),
        _python(),
        *_containers(),
        _root(),
        _agent(),
        *container_findings(runtime_endpoint),
        _tool("kubectl", "needed by nothing here; 'podkeeper ps, logs, exec, describe' do without"),
    )


def _system() -> Finding:
    found = f"{platform.system()} {platform.release()}, {os.cpu_count()} cores, user {os.geteuid()}"
    if sys.platform != "linux":
        return Finding("system", Mark.FATAL, found, ("pods need Linux: use a virtual machine or a container",))
    return Finding("system", Mark.GOOD, found)


def _python() -> Finding:
    found = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", Mark.FATAL, found, ("podkeeper needs Python 3.11 or newer",))
    return Finding("python", Mark.GOOD, found)


def _containers() -> Iterator[Finding]:
    """Namespaces, overlay, users and limits, by really trying, as the process runtime does."""
    try:
        from podkeeper.runtimes.process.keeper.isolation import probe
    except ImportError:
        yield Finding("namespaces", Mark.MISSING, "the process runtime is not part of this installation")
        return
    place = _nearest(default_root())  # not every file system can hold what containers write
    with tempfile.TemporaryDirectory(
        prefix="podkeeper-doctor-", dir=place if os.access(place, os.W_OK) else None
    ) as own:
        found = probe(own)
    words = {
        "full": "each container has its own (mount, PID, IPC, UTS)",
        "user": "each container has its own, inside a user namespace",
        "none": "the kernel refuses them: containers are plain process groups and see each other",
    }
    mark = Mark.WEAK if found.namespaces == "none" or not found.pid else Mark.GOOD
    pid = "" if found.pid or found.namespaces == "none" else "; no PID namespaces"
    yield Finding("namespaces", mark, words.get(found.namespaces, found.namespaces) + pid, tuple(found.warnings))
    overlays = {
        "whole": "containers see a copy-on-write view of all files",
        "split": "containers see a copy-on-write view of files, directory by directory",
        "": "no copy-on-write view: files of the host are read-only or shared",
    }
    where = "" if found.upper == "disk" or not found.overlay else "; what they write lies in memory"
    yield Finding("overlay", Mark.GOOD if found.overlay else Mark.WEAK, overlays[found.overlay] + where)
    yield _users(found)
    yield _cgroups(found)


def _users(isolation: "Isolation") -> Finding:
    """Who containers may be (runAsUser)."""
    from podkeeper.runtimes.process.keeper.idmap import HELP

    if isolation.namespaces == "full" or (isolation.namespaces == "none" and os.geteuid() == 0):
        return Finding("users", Mark.GOOD, "containers may run as any user")
    if isolation.uids[1]:
        found = f"containers may run as users 0 to {isolation.uids[1]}: this one, and its subordinate ids"
        return Finding("users", Mark.GOOD, found)
    return Finding("users", Mark.WEAK, "containers run as this user alone, and see it as root", (HELP,))


def _cgroups(isolation: "Isolation") -> Finding:
    try:
        from podkeeper.host.cgroup_survey import survey
        from podkeeper.runtimes.process.keeper.cgroup import hierarchies
    except ImportError:
        return Finding("cgroups", Mark.MISSING, "cgroups are not part of this installation")
    offer = survey(hierarchies())
    if offer.version:
        found = f"version {offer.version}: {', '.join(offer.controllers)}"
        return Finding("cgroups", Mark.GOOD, found)
    hints = (offer.advice,) if offer.advice else ()
    but = ", but for the number of processes of a pod" if isolation.counts else ""
    return Finding("cgroups", Mark.WEAK, f"limits are not enforced{but}: {offer.reason}", hints)


def _root() -> Finding:
    root = default_root()
    place = _nearest(root)
    if not os.access(place, os.W_OK):
        hint = "name another one: podkeeper run --root DIR"
        return Finding("root", Mark.WEAK, f"{root} cannot be written", (hint,))
    free = shutil.disk_usage(place).free // 2**20
    if free < 100:
        return Finding("root", Mark.WEAK, f"{root}, {free} MiB free", ("make room, or name another place with --root",))
    return Finding("root", Mark.GOOD, f"{root}, {free} MiB free")


def _nearest(path: Path) -> Path:
    """The path if it is there, else what it would be made in."""
    return next((each for each in (path, *path.parents) if os.path.exists(each)), Path("/"))


def _agent() -> Finding:
    try:
        told = LocalClient(default_socket()).get("info")
    except AskingFailed as error:
        return Finding("agent", Mark.MISSING, str(error), ("'podkeeper run PATH...' starts one",))
    found = f"version {told['version']}, node {told['node']}, runtime {told['runtime']}, process {told['pid']}"
    return Finding("agent", Mark.GOOD, found)


def _tool(name: str, why: str) -> Finding:
    path = shutil.which(name)
    return Finding(name, Mark.MISSING, "not found", (why,)) if path is None else Finding(name, Mark.GOOD, path)
