"""Checks of `podkeeper doctor`: one finding per feature of this machine.

The checks inspect the machine or try a feature in a temporary directory. They change nothing.
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
    """Run all checks. The container runtime is the one at this endpoint, or at the default sockets."""
    return (
        _system(),
        _python(),
        *_containers(),
        _root(),
        _agent(),
        *container_findings(runtime_endpoint),
        _tool("kubectl", "not required; 'podkeeper ps', 'logs', 'exec' and 'describe' work without it"),
    )


def _system() -> Finding:
    found = f"{platform.system()} {platform.release()}, {os.cpu_count()} cores, user {os.geteuid()}"
    if sys.platform != "linux":
        return Finding("system", Mark.FATAL, found, ("pods require Linux; use a virtual machine or a container",))
    return Finding("system", Mark.GOOD, found)


def _python() -> Finding:
    found = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", Mark.FATAL, found, ("podkeeper requires Python 3.11 or newer",))
    return Finding("python", Mark.GOOD, found)


def _containers() -> Iterator[Finding]:
    """Check namespaces, overlay, users and limits with the process runtime's own probe."""
    try:
        from podkeeper.runtimes.process.keeper.isolation import probe
    except ImportError:
        yield Finding("namespaces", Mark.MISSING, "the process runtime is not installed")
        return
    # Probe on the file system of the root, because not every file system can be the upper layer of an overlay.
    place = _nearest(default_root())
    with tempfile.TemporaryDirectory(
        prefix="podkeeper-doctor-", dir=place if os.access(place, os.W_OK) else None
    ) as own:
        found = probe(own)
    words = {
        "full": "each container has its own (mount, PID, IPC, UTS)",
        "user": "each container has its own, inside a user namespace",
        "none": "not permitted by the kernel: containers are plain process groups and see each other",
    }
    mark = Mark.WEAK if found.namespaces == "none" or not found.pid else Mark.GOOD
    pid = "" if found.pid or found.namespaces == "none" else "; no PID namespaces"
    yield Finding("namespaces", mark, words.get(found.namespaces, found.namespaces) + pid, tuple(found.warnings))
    overlays = {
        "whole": "containers see a copy-on-write view of all files",
        "split": "containers see a copy-on-write view of files, directory by directory",
        "": "no copy-on-write view: files of the host are read-only or shared",
    }
    where = "" if found.upper == "disk" or not found.overlay else "; their changes are stored in memory"
    yield Finding("overlay", Mark.GOOD if found.overlay else Mark.WEAK, overlays[found.overlay] + where)
    yield _users(found)
    yield _cgroups(found)


def _users(isolation: "Isolation") -> Finding:
    """Check which users containers can run as (runAsUser)."""
    from podkeeper.runtimes.process.keeper.idmap import HELP

    if isolation.namespaces == "full" or (isolation.namespaces == "none" and os.geteuid() == 0):
        return Finding("users", Mark.GOOD, "containers can run as any user")
    if isolation.uids[1]:
        found = f"containers can run as users 0 to {isolation.uids[1]}: this user and its subordinate ids"
        return Finding("users", Mark.GOOD, found)
    return Finding("users", Mark.WEAK, "containers can only run as this user, which they see as root", (HELP,))


def _cgroups(isolation: "Isolation") -> Finding:
    try:
        from podkeeper.host.cgroup_survey import survey
        from podkeeper.runtimes.process.keeper.cgroup import hierarchies
    except ImportError:
        return Finding("cgroups", Mark.MISSING, "cgroup support is not installed")
    offer = survey(hierarchies())
    if offer.version:
        found = f"version {offer.version}: {', '.join(offer.controllers)}"
        return Finding("cgroups", Mark.GOOD, found)
    hints = (offer.advice,) if offer.advice else ()
    but = ", except the number of processes of a pod" if isolation.counts else ""
    return Finding("cgroups", Mark.WEAK, f"limits are not enforced{but}: {offer.reason}", hints)


def _root() -> Finding:
    root = default_root()
    place = _nearest(root)
    if not os.access(place, os.W_OK):
        hint = "use another directory: podkeeper run --root DIR"
        return Finding("root", Mark.WEAK, f"{root} is not writable", (hint,))
    free = shutil.disk_usage(place).free // 2**20
    if free < 100:
        hint = "free some disk space, or use another directory: podkeeper run --root DIR"
        return Finding("root", Mark.WEAK, f"{root}, {free} MiB free", (hint,))
    return Finding("root", Mark.GOOD, f"{root}, {free} MiB free")


def _nearest(path: Path) -> Path:
    """Return the path, or its nearest existing parent."""
    return next((each for each in (path, *path.parents) if os.path.exists(each)), Path("/"))


def _agent() -> Finding:
    try:
        told = LocalClient(default_socket()).get("info")
    except AskingFailed as error:
        return Finding("agent", Mark.MISSING, str(error), ("start an agent with 'podkeeper run PATH...'",))
    found = f"version {told['version']}, node {told['node']}, runtime {told['runtime']}, process {told['pid']}"
    return Finding("agent", Mark.GOOD, found)


def _tool(name: str, why: str) -> Finding:
    path = shutil.which(name)
    return Finding(name, Mark.MISSING, "not found", (why,)) if path is None else Finding(name, Mark.GOOD, path)
