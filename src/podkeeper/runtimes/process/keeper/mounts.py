"""The host's mounts, and how each part of its file tree is shown to a container.

In: the text of /proc/self/mountinfo. Out: a list of `Layer`s, outermost first. Two ways lead there:

* `whole`: one overlay over `/`, and one over each real file system below it, for an overlay does not
  see what is mounted below its lower directory;
* `split`: for an ordinary user, whom the kernel grants no overlay over a directory that has mounts
  below it, and where there is no overlay at all. Such directories are made anew, empty, in memory,
  and each of their entries is a layer of its own.

`/proc`, `/sys` and `/dev` are never layers: a container gets its own (`view.py`).
"""

import os
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass

COPY = "copy"  # an overlay: writes stay private
READ = "read"  # a read-only view of the host's own
EMPTY = "empty"  # a new directory
LINK = "link"  # the same symbolic link

OWN = ("/proc", "/sys", "/dev")
SCRATCH = ("/tmp", "/var/tmp")  # new and writable even where everything else is read-only
# File systems whose files an overlay can copy. Those of the network and of user programs are shown read-only instead:
# an overlay asks its lower file system questions that a dead server would leave unanswered.
LOCAL = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "f2fs", "zfs", "bcachefs", "ramfs", "reiserfs", "jfs")
)
# Not files: triggers and handles of the kernel, and the roots of other people's containers.
NOT_SHOWN = frozenset(
    ("autofs", "nsfs", "overlay", "cgroup", "cgroup2", "proc", "sysfs", "devtmpfs", "devpts", "mqueue")
)
NOT_OURS = (
    "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet", "/var/lib/rancher",
    "/run/docker", "/run/containerd", "/run/containers", "/run/netns", "/run/k3s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo."""

    id: int
    parent: int
    point: str
    kind: str
    read_only: bool = False
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """One part of the host's tree, and how a container sees it."""

    path: str
    how: str
    mode: int = 0o755  # of a new directory
    link: str = ""


def parse(text: str) -> list[Mount]:
    """The mounts in a mountinfo file."""
    found = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        number, parent, _, _, point, options, *tags = left.split(" ")
        if "\\" in point:
            point = (
                point.encode("latin-1").decode("unicode_escape").encode("latin-1").decode("utf-8", "surrogateescape")
            )
        read_only = "ro" in options.split(",")
        shared = any(tag.startswith("shared:") for tag in tags)
        found.append(Mount(int(number), int(parent), point, right.split(" ")[0], read_only, shared))
    return found


def read() -> list[Mount]:
    """The mounts of this process's namespace."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return parse(file.read())


def visible(mounts: Iterable[Mount]) -> dict[str, Mount]:
    """What lies at each mount point, without what other mounts cover; `/` first, then by path."""
    children: dict[int, list[Mount]] = {}
    ids = {mount.id for mount in mounts}
    for mount in mounts:
        children.setdefault(mount.parent if mount.parent in ids and mount.parent != mount.id else -1, []).append(mount)
    found: dict[str, Mount] = {}
    waiting = [mount for mount in children.get(-1, []) if mount.point == "/"][-1:]
    while waiting:
        top = waiting.pop()
        below = children.get(top.id, [])
        if over := [mount for mount in below if mount.point == top.point]:
            waiting.append(over[-1])  # covered entirely
            continue
        found[top.point] = top
        points = {mount.point for mount in below}
        for point, mount in {mount.point: mount for mount in below}.items():
            if not any(other != point and is_below(point, other) for other in points):
                waiting.append(mount)
    return dict(sorted(found.items()))


def is_below(path: str, top: str) -> bool:
    """Whether a path is `top` or lies below it."""
    return top == "/" or path == top or path.startswith(top + "/")


def holder(path: str, points: Iterable[str]) -> str:
    """The innermost of these places that a path lies in."""
    return max((point for point in points if is_below(path, point)), key=len, default="/")


def whole(table: dict[str, Mount], hidden: Collection[str] = ()) -> list[Layer]:
    """The layers of a machine whose kernel lets us lay an overlay over everything."""
    layers = [Layer("/", COPY)]
    for point, mount in table.items():
        if point != "/" and not _apart(point, hidden) and (how := _way(mount)) != EMPTY:
            layers.append(Layer(point, READ if how == COPY and not os.path.isdir(point) else how))
    return layers


def split(
    table: dict[str, Mount], hidden: Collection[str] = (), *, overlay: bool = True, cuts: Collection[str] = ()
) -> list[Layer]:
    """The layers where a directory with mounts below it must be made anew; those in `cuts` must be, too."""
    layers: list[Layer] = []
    waiting = [("/", COPY)]
    while waiting:
        path, way = waiting.pop()
        way = _way(table[path]) if path in table else way
        if path != "/" and path not in cuts and not any(point != path and is_below(point, path) for point in table):
            if way == COPY and (not os.access(path, os.R_OK | os.X_OK) or not _entries(path)):
                way = EMPTY  # cheaper, and over what we may not read an overlay would refuse even new files
            way = READ if way == COPY and not overlay else way
            layers.append(Layer(path, way, _mode(path) if way == EMPTY else 0))
            continue
        layers.append(Layer(path, EMPTY, _mode(path)))
        for entry in _entries(path):
            if entry.path in OWN or entry.path in hidden:
                layers.append(Layer(entry.path, EMPTY))
            elif entry.path in SCRATCH and not overlay:
                layers.append(Layer(entry.path, EMPTY, 0o1777))
            elif entry.is_symlink():
                layers.append(Layer(entry.path, LINK, link=os.readlink(entry.path)))
            elif entry.is_dir():
                waiting.append((entry.path, way))
            else:
                layers.append(Layer(entry.path, READ))
    return layers


def _way(mount: Mount) -> str:
    if mount.point == "/":
        return COPY
    if mount.kind in NOT_SHOWN or _apart(mount.point, NOT_OURS):
        return EMPTY
    return COPY if mount.kind in LOCAL and not mount.read_only else READ


def _apart(point: str, others: Collection[str]) -> bool:
    return any(is_below(point, top) for tops in (OWN, others) for top in tops)


def _mode(path: str) -> int:
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return 0o755


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []  # not ours to read: it stays empty
