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

from podkeeper.app.cli.doctor_cri import runtime_findings
from podkeeper.app.cli.doctor_findings import DoctorFinding, Mark
from podkeeper.app.local.client import LocalClient, RequestFailed
from podkeeper.app.local.paths import default_root, default_socket

if TYPE_CHECKING:
    from podkeeper.runtimes.process.keeper.isolation import Isolation

OLDEST_PYTHON = (3, 11)


def run_checks(runtime_endpoint: str = "") -> tuple[DoctorFinding, ...]:
    """Run all checks. The container runtime is the one at this endpoint, or at the default sockets."""
    return (
        _system(),
        _python(),
        *_containers(),
        _root(),
        _agent(),
        *runtime_findings(runtime_endpoint),
        _tool("kubectl", "not required; 'podkeeper ps', 'logs', 'exec' and 'describe' work without it"),
    )


def _system() -> DoctorFinding:
    found = f"{platform.system()} {platform.release()}, {os.cpu_count()} cores, user {os.geteuid()}"
    if sys.platform != "linux":
        return DoctorFinding("system", Mark.FATAL, found, ("pods require Linux; use a virtual machine or a container",))
    return DoctorFinding("system", Mark.GOOD, found)


def _python() -> DoctorFinding:
    found = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        return DoctorFinding("python", Mark.FATAL, found, ("podkeeper requires Python 3.11 or newer",))
    return DoctorFinding("python", Mark.GOOD, found)


def _containers() -> Iterator[DoctorFinding]:
    """Check namespaces, overlay, users and limits with the process runtime's own probe."""
    try:
        from podkeeper.runtimes.process.keeper.isolation import probe
    except ImportError:
        yield DoctorFinding("namespaces", Mark.MISSING, "the process runtime is not installed")
        return
    # Probe on the file system of the root, because not every file system can be the upper layer of an overlay.
    directory = _nearest(default_root())
    with tempfile.TemporaryDirectory(
        prefix="podkeeper-doctor-", dir=directory if os.access(directory, os.W_OK) else None
    ) as temporary:
        found = probe(temporary)
    texts = {
        "full": "each container has its own (mount, PID, IPC, UTS)",
        "user": "each container has its own, inside a user namespace",
        "none": "not permitted by the kernel: containers are plain process groups and see each other",
    }
    mark = Mark.WEAK if found.namespaces == "none" or not found.pid else Mark.GOOD
    pid = "" if found.pid or found.namespaces == "none" else "; no PID namespaces"
    yield DoctorFinding("namespaces", mark, texts.get(found.namespaces, found.namespaces) + pid, tuple(found.warnings))
    overlays = {
        "whole": "containers see a copy-on-write view of all files",
        "split": "containers see a copy-on-write view of files, directory by directory",
        "": "no copy-on-write view: files of the host are read-only or shared",
    }
    where = "" if found.upper == "disk" or not found.overlay else "; their changes are stored in memory"
    yield DoctorFinding("overlay", Mark.GOOD if found.overlay else Mark.WEAK, overlays[found.overlay] + where)
    yield _users(found)
    yield _cgroups(found)


def _users(isolation: "Isolation") -> DoctorFinding:
    """Check which users containers can run as (runAsUser)."""
    from podkeeper.linux.idmap import HELP

    if isolation.namespaces == "full" or (isolation.namespaces == "none" and os.geteuid() == 0):
        return DoctorFinding("users", Mark.GOOD, "containers can run as any user")
    if isolation.uids[1]:
        found = f"containers can run as users 0 to {isolation.uids[1]}: this user and its subordinate ids"
        return DoctorFinding("users", Mark.GOOD, found)
    return DoctorFinding("users", Mark.WEAK, "containers can only run as this user, which they see as root", (HELP,))


def _cgroups(isolation: "Isolation") -> DoctorFinding:
    try:
        from podkeeper.linux.cgroup_support import detect
    except ImportError:
        return DoctorFinding("cgroups", Mark.MISSING, "cgroup support is not installed")
    support = detect()
    if support.version:
        found = f"version {support.version}: {', '.join(support.controllers)}"
        return DoctorFinding("cgroups", Mark.GOOD, found)
    hints = (support.advice,) if support.advice else ()
    exception = ", except the number of processes of a pod" if isolation.counts else ""
    return DoctorFinding("cgroups", Mark.WEAK, f"limits are not enforced{exception}: {support.reason}", hints)


def _root() -> DoctorFinding:
    root = default_root()
    existing = _nearest(root)
    if not os.access(existing, os.W_OK):
        hint = "use another directory: podkeeper run --root DIR"
        return DoctorFinding("root", Mark.WEAK, f"{root} is not writable", (hint,))
    free = shutil.disk_usage(existing).free // 2**20
    if free < 100:
        hint = "free some disk space, or use another directory: podkeeper run --root DIR"
        return DoctorFinding("root", Mark.WEAK, f"{root}, {free} MiB free", (hint,))
    return DoctorFinding("root", Mark.GOOD, f"{root}, {free} MiB free")


def _nearest(path: Path) -> Path:
    """Return the path, or its nearest existing parent."""
    return next((each for each in (path, *path.parents) if os.path.exists(each)), Path("/"))


def _agent() -> DoctorFinding:
    try:
        info = LocalClient(default_socket()).get("info")
    except RequestFailed as error:
        return DoctorFinding("agent", Mark.MISSING, str(error), ("start an agent with 'podkeeper run PATH...'",))
    found = f"version {info['version']}, node {info['node']}, runtime {info['runtime']}, process {info['pid']}"
    return DoctorFinding("agent", Mark.GOOD, found)


def _tool(name: str, why: str) -> DoctorFinding:
    path = shutil.which(name)
    return (
        DoctorFinding(name, Mark.MISSING, "not found", (why,)) if path is None else DoctorFinding(name, Mark.GOOD, path)
    )
