"""Detect which cgroups of this machine podkeeper can use.

    /proc/self/{mountinfo,cgroup} and the mounted hierarchies -> CgroupSupport

For root, the base is the top of the hierarchy. Otherwise it is the cgroup of this process, if it is delegated: an
ordinary user under `systemd-run --user --scope -p Delegate=yes`, or a container with its own hierarchy. If versions 1
and 2 are both mounted, the one with more usable controllers is used. With version 1, a version 2 hierarchy without
controllers is used as well, because it can kill a whole cgroup at once.

`detect` only reads. `vacate_base` is the only function that changes something.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from podkeeper.linux.cgroup import UNIFIED, Cgroup, Hierarchy, cgroup_at, hierarchies, other_hierarchies

LIMITING: Final = ("cpu", "memory", "pids")  # a cgroup without any of them is useless
AGENT_LEAF: Final = "podkeeper-agent"

AS_ROOT_OR_DELEGATED: Final = (
    "run podkeeper as root, or in a delegated cgroup: systemd-run --user --scope -p Delegate=yes podkeeper ..."
)
MOUNT: Final = "mount them: mount -t cgroup2 none /sys/fs/cgroup"
WRITABLE: Final = "in a container, use a writable cgroup hierarchy (--privileged, or --cgroupns=private)"


@dataclass(frozen=True, slots=True)
class CgroupSupport:
    """The usable cgroups. `version` is 0 if there are none, and then `reason` and `advice` are set."""

    version: int = 0
    base: str = ""  # path below the mount points
    directories: tuple[tuple[str, str], ...] = ()  # of the base, by controller or `unified`
    controllers: tuple[str, ...] = ()
    reason: str = ""
    advice: str = ""

    @property
    def base_cgroup(self) -> Cgroup | None:
        return cgroup_at(dict(self.directories))

    def without_cgroups(self, reason: str) -> "CgroupSupport":
        """Return a copy for the case that the detected cgroups do not work."""
        return CgroupSupport(reason=reason, advice=AS_ROOT_OR_DELEGATED if os.geteuid() else WRITABLE)

    def describe(self) -> str:
        """Return one line for logs and `podkeeper doctor`."""
        if not self.version:
            return f"no cgroups: {self.reason}; {self.advice}"
        hybrid = self.version == 1 and UNIFIED in dict(self.directories)
        kind = f"cgroup v{self.version}{' and a v2 hierarchy for killing' if hybrid else ''}"
        missing = [name for name in LIMITING if name not in self.controllers]
        lack = f"; limits of {', '.join(missing)} are not enforced: {self.advice}" if missing else ""
        return f"{kind} ({', '.join(self.controllers)}){lack}"


def detect(proc: str = "/proc/self") -> CgroupSupport:
    """Detect what the machine supports. Changes nothing. Blocks."""
    mounted = hierarchies(f"{proc}/mountinfo")
    if not mounted:
        return CgroupSupport(reason="no cgroup file system is mounted", advice=MOUNT)
    own = _own_paths(f"{proc}/cgroup")
    candidates = [*_version_1(mounted, own), *_version_2(mounted, own)]
    best = max(candidates, key=lambda found: len(set(found.controllers) & set(LIMITING)), default=CgroupSupport())
    if not set(best.controllers) & set(LIMITING):
        where = ", ".join(sorted({hierarchy.mount_point for hierarchy in mounted}))
        return best.without_cgroups(f"none of the controllers cpu, memory and pids is writable below {where}")
    return replace(best, advice=WRITABLE if os.geteuid() == 0 else AS_ROOT_OR_DELEGATED)


def base_elsewhere(support: CgroupSupport, proc: str = "/proc/self") -> Cgroup | None:
    """Return the base in the version 1 hierarchies that podkeeper does not use.

    Only container runtimes create cgroups there.
    """
    if support.version != 1:
        return None
    others = other_hierarchies(f"{proc}/mountinfo")
    directories = {hierarchy.name: _join(hierarchy.mount_point, support.base) for hierarchy in others}
    return cgroup_at({name: directory for name, directory in directories.items() if _is_writable(directory)})


def vacate_base(support: CgroupSupport, proc: str = "/proc/self") -> None:
    """Move this process and its ancestors from the base to a child cgroup. Raises OSError.

    Version 2 does not allow processes in a cgroup that enables controllers for its children.
    """
    if support.version != 2 or not (pids := _processes_to_move(dict(support.directories)[UNIFIED], proc)):
        return
    leaf = os.path.join(dict(support.directories)[UNIFIED], AGENT_LEAF)
    os.makedirs(leaf, exist_ok=True)
    for pid in pids:
        with open(f"{leaf}/cgroup.procs", "w") as procs:
            procs.write(str(pid))


def _version_1(mounted: Sequence[Hierarchy], own: dict[str, str]) -> Iterator[CgroupSupport]:
    """Yield one candidate for each base. A base has the same path in all hierarchies."""
    limiting = [hierarchy for hierarchy in mounted if hierarchy.name in LIMITING]
    for base in dict.fromkeys(["/", *(_relative(own.get(each.name, "/"), each.root) for each in limiting)]):
        found: dict[str, str] = {}
        for hierarchy in mounted:
            directory = _join(hierarchy.mount_point, base)
            if hierarchy.name not in found and _is_writable(directory):
                found[hierarchy.name] = directory
        controllers = tuple(name for name in found if name != UNIFIED)
        # Use the v2 hierarchy only if it has no controllers, because otherwise its base must be vacated first.
        if UNIFIED in found and set(_words(f"{found[UNIFIED]}/cgroup.controllers")) & set(LIMITING):
            del found[UNIFIED]
        if controllers:
            yield CgroupSupport(1, base, tuple(sorted(found.items())), tuple(sorted(controllers)))


def _version_2(mounted: Sequence[Hierarchy], own: dict[str, str]) -> Iterator[CgroupSupport]:
    for hierarchy in mounted:
        if hierarchy.name != UNIFIED:
            continue
        for base in dict.fromkeys(["/", _relative(own.get(UNIFIED, "/"), hierarchy.root)]):
            directory = _join(hierarchy.mount_point, base)
            if _is_writable(directory) and os.access(f"{directory}/cgroup.subtree_control", os.W_OK):
                controllers = [name for name in _words(f"{directory}/cgroup.controllers") if name in LIMITING]
                yield CgroupSupport(2, base, ((UNIFIED, directory),), tuple(sorted(controllers)))


def _processes_to_move(directory: str, proc: str) -> list[int]:
    """Return the processes that must leave a v2 cgroup.

    Raises OSError if one is neither this process nor one of its ancestors.
    """
    is_top = not os.path.exists(f"{directory}/cgroup.events")  # the root cgroup is exempt
    wanted = set(_words(f"{directory}/cgroup.controllers")) & set(LIMITING)
    if is_top or wanted <= set(_words(f"{directory}/cgroup.subtree_control")):
        return []
    inside = {int(word) for word in _words(f"{directory}/cgroup.procs")}
    if others := inside - set(_lineage(proc)):
        raise OSError(f"cannot use {directory}: it contains {len(others)} processes of other programs")
    return sorted(inside)


def _lineage(proc: str) -> Iterator[int]:
    """Yield this process and its ancestors."""
    pid, status = os.getpid(), f"{proc}/status"
    while pid:
        yield pid
        pid = next((int(line.split()[1]) for line in _lines(status) if line.startswith("PPid:")), 0)
        status = f"{os.path.dirname(proc)}/{pid}/status"


def _own_paths(path: str) -> dict[str, str]:
    """Return the cgroup of this process, by controller or `unified`."""
    paths: dict[str, str] = {}
    for line in _lines(path):
        _, controllers, own = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), own) if controllers else {UNIFIED: own}
    return paths


def _relative(path: str, root: str) -> str:
    """Return a path relative to a mount point that shows only a part of the hierarchy."""
    return path.removeprefix(root.rstrip("/")) or "/"


def _join(mount_point: str, path: str) -> str:
    return os.path.join(mount_point, path.lstrip("/")).rstrip("/")


def _is_writable(directory: str) -> bool:
    """Return whether we may create cgroups in it and move processes to them."""
    return os.access(directory, os.W_OK | os.X_OK) and os.access(f"{directory}/cgroup.procs", os.W_OK)


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def _words(path: str) -> list[str]:
    return [word for line in _lines(path) for word in line.split()]
