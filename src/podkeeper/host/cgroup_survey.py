"""What this machine offers in cgroups, and to whom: found out by reading, before anything is made.

    /proc/self/{mountinfo,cgroup} and the mounted trees -> Offer

Tried in this order: the top of the tree (for root), then the cgroup that we are in, if it was handed to us (an ordinary
user under `systemd-run --user --scope -p Delegate=yes`, or a container with a tree of its own). Of versions 1 and 2 the
one that has more controllers for us wins; beside version 1, a version 2 tree without controllers is taken along, as it
can kill a whole cgroup at once. `settle` is the one deed here: version 2 allows no processes where limits are handed
down, so that we move ourselves, and those who started us, one level down.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

UNIFIED = "unified"
LIMITING = ("cpu", "memory", "pids")  # without one of them a cgroup is no use
OWN_LEAF = "podkeeper-agent"

AS_ROOT_OR_DELEGATED = (
    "run podkeeper as root, or in a cgroup of its own: systemd-run --user --scope -p Delegate=yes podkeeper ..."
)
MOUNT = "mount them: mount -t cgroup2 none /sys/fs/cgroup"
WRITABLE = "in a container, ask for a writable cgroup tree of its own (--privileged, or --cgroupns=private)"


class Hierarchy(Protocol):
    """A mounted hierarchy: a controller of version 1, or `unified`."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def mount_point(self) -> str:
        """Where it is mounted."""

    @property
    def root(self) -> str:
        """Which part of it is mounted there."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What we may use; nothing where `version` is 0, and then `reason` and `advice` say more."""

    version: int = 0
    base: str = ""  # path below the mount points
    directories: tuple[tuple[str, str], ...] = ()  # of the base, by controller or `unified`
    controllers: tuple[str, ...] = ()
    reason: str = ""
    advice: str = ""

    def refused(self, reason: str) -> "Offer":
        """The same machine, once it turned out that it does not work."""
        return Offer(reason=reason, advice=AS_ROOT_OR_DELEGATED if os.geteuid() else WRITABLE)

    def describe(self) -> str:
        """The offer in a line for a person."""
        if not self.version:
            return f"no cgroups: {self.reason}; {self.advice}"
        hybrid = self.version == 1 and UNIFIED in dict(self.directories)
        kind = f"cgroup v{self.version}{' and a v2 tree for killing' if hybrid else ''}"
        missing = [name for name in LIMITING if name not in self.controllers]
        lack = f"; limits of {', '.join(missing)} are not enforced: {self.advice}" if missing else ""
        return f"{kind} ({', '.join(self.controllers)}){lack}"


def survey(hierarchies: Sequence[Hierarchy], proc: str = "/proc/self") -> Offer:
    """Find out what the machine offers. Changes nothing."""
    if not hierarchies:
        return Offer(reason="no cgroup file system is mounted", advice=MOUNT)
    own = _own_paths(f"{proc}/cgroup")
    candidates = [*_version_1(hierarchies, own), *_version_2(hierarchies, own)]
    best = max(candidates, key=lambda offer: len(set(offer.controllers) & set(LIMITING)), default=Offer())
    if not set(best.controllers) & set(LIMITING):
        where = ", ".join(sorted({hierarchy.mount_point for hierarchy in hierarchies}))
        reason = f"nothing that limits cpu, memory or pids is writable for us below {where}"
        return best.refused(reason)
    return replace(best, advice=WRITABLE if os.geteuid() == 0 else AS_ROOT_OR_DELEGATED)


def elsewhere(offer: Offer, others: Sequence[Hierarchy]) -> dict[str, str]:
    """The directories of the base in hierarchies that are not part of the offer."""
    places = {hierarchy.name: _join(hierarchy.mount_point, offer.base) for hierarchy in others}
    return {name: directory for name, directory in places.items() if offer.version == 1 and _is_ours(directory)}


def settle(offer: Offer, proc: str = "/proc/self") -> None:
    """Make room for handing limits down: leave the base, with those who started us. Raises OSError."""
    if offer.version != 2 or not (todo := _in_the_way(dict(offer.directories)[UNIFIED], proc)):
        return
    leaf = os.path.join(dict(offer.directories)[UNIFIED], OWN_LEAF)
    os.makedirs(leaf, exist_ok=True)
    for pid in todo:
        with open(f"{leaf}/cgroup.procs", "w") as procs:
            procs.write(str(pid))


def _version_1(hierarchies: Sequence[Hierarchy], own: dict[str, str]) -> Iterator[Offer]:
    """One offer for each base: the path must be the same in all hierarchies, as it is told as one."""
    limiting = [hierarchy for hierarchy in hierarchies if hierarchy.name in LIMITING]
    for base in dict.fromkeys(["/", *(_relative(own.get(one.name, "/"), one.root) for one in limiting)]):
        found: dict[str, str] = {}
        for hierarchy in hierarchies:
            directory = _join(hierarchy.mount_point, base)
            if hierarchy.name not in found and _is_ours(directory):
                found[hierarchy.name] = directory
        controllers = tuple(name for name in found if name != UNIFIED)
        # The v2 tree is taken along where it has no controllers: where it has some, it would want settling.
        if UNIFIED in found and set(_words(f"{found[UNIFIED]}/cgroup.controllers")) & set(LIMITING):
            del found[UNIFIED]
        if controllers:
            yield Offer(1, base, tuple(sorted(found.items())), tuple(sorted(controllers)))


def _version_2(hierarchies: Sequence[Hierarchy], own: dict[str, str]) -> Iterator[Offer]:
    for hierarchy in hierarchies:
        if hierarchy.name != UNIFIED:
            continue
        for base in dict.fromkeys(["/", _relative(own.get(UNIFIED, "/"), hierarchy.root)]):
            directory = _join(hierarchy.mount_point, base)
            if _is_ours(directory) and os.access(f"{directory}/cgroup.subtree_control", os.W_OK):
                controllers = [name for name in _words(f"{directory}/cgroup.controllers") if name in LIMITING]
                yield Offer(2, base, ((UNIFIED, directory),), tuple(sorted(controllers)))


def _in_the_way(directory: str, proc: str) -> list[int]:
    """Processes that must leave a v2 cgroup first. Raises OSError if there are others than us and our ancestors."""
    top = not os.path.exists(f"{directory}/cgroup.events")  # the very top is exempt
    wanted = set(_words(f"{directory}/cgroup.controllers")) & set(LIMITING)
    if top or wanted <= set(_words(f"{directory}/cgroup.subtree_control")):
        return []
    inside = {int(word) for word in _words(f"{directory}/cgroup.procs")}
    if strangers := inside - set(_lineage(proc)):
        raise OSError(f"{len(strangers)} processes that are not ours are in {directory}")
    return sorted(inside)


def _lineage(proc: str) -> Iterator[int]:
    """Ourselves and our ancestors."""
    pid, status = os.getpid(), f"{proc}/status"
    while pid:
        yield pid
        pid = next((int(line.split()[1]) for line in _lines(status) if line.startswith("PPid:")), 0)
        status = f"{os.path.dirname(proc)}/{pid}/status"


def _own_paths(path: str) -> dict[str, str]:
    """The cgroup that we are in, by controller or `unified`."""
    paths: dict[str, str] = {}
    for line in _lines(path):
        _, controllers, own = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), own) if controllers else {UNIFIED: own}
    return paths


def _relative(path: str, root: str) -> str:
    """A path as seen from the mount point, where only a part of the hierarchy is mounted."""
    return path.removeprefix(root.rstrip("/")) or "/"


def _join(mount_point: str, path: str) -> str:
    return os.path.join(mount_point, path.lstrip("/")).rstrip("/")


def _is_ours(directory: str) -> bool:
    """Whether we may make cgroups in it and move processes to them."""
    return os.access(directory, os.W_OK | os.X_OK) and os.access(f"{directory}/cgroup.procs", os.W_OK)


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def _words(path: str) -> list[str]:
    return [word for line in _lines(path) for word in line.split()]
