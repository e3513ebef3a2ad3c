"""Build the root file system of a container.

The container sees the host's files, copy-on-write, and its own /proc, /dev and volumes.

Everything here runs in the container's first process, after the fork, in a new mount namespace, and ends with that
namespace. No mount is ever visible on the host.

    upper-<n>, work-<n>    in the container's directory: the container's changes, by layer (`layers.py`)
    root                   in a small tmpfs that covers that directory meanwhile: the new root
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

from podkeeper.linux import libc, mounts
from podkeeper.linux.errors import LaunchError, SubPathError
from podkeeper.linux.libc import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    MS_SLAVE,
)
from podkeeper.linux.mounts import MountPoint
from podkeeper.linux.subpath import open_subpath
from podkeeper.linux.tree import opened
from podkeeper.runtimes.process.keeper.isolation import Isolation
from podkeeper.runtimes.process.keeper.launch import Bind, Launch
from podkeeper.runtimes.process.keeper.layers import COPY, EMPTY, Layer, directories_with_sockets, split, whole
from podkeeper.runtimes.process.keeper.pod_mounts import SHM_OPTIONS

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
# Mount flags that an ordinary user may not remove, by their names in statvfs.
_STICKY = {os.ST_RDONLY: MS_RDONLY, os.ST_NOSUID: MS_NOSUID, os.ST_NODEV: MS_NODEV, os.ST_NOEXEC: MS_NOEXEC,
           os.ST_NOATIME: 1024, os.ST_NODIRATIME: 2048, os.ST_RELATIME: 1 << 21}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RootfsPlan:
    """The host's mounts and the layers that show them."""

    table: dict[str, MountPoint]
    layers: list[Layer]


@dataclass(frozen=True, slots=True)
class SystemMounts:
    """What a container gets as /proc and /dev/shm."""

    proc: int | str  # new | host | a detached copy of the /proc of an existing PID namespace
    shm: int | None  # a detached copy of the pod's shared memory
    host_shm: bool = False


def check_binds(spec: Launch, isolation: Isolation) -> None:
    """Refuse binds that are not possible, before the fork. Raises LaunchError."""
    bidirectional = [bind for bind in spec.binds if bind.propagation == "Bidirectional"]
    table = mounts.visible(mounts.read()) if bidirectional else {}
    for bind in bidirectional:
        if isolation.namespaces != "full":
            raise LaunchError(
                f"cannot mount {bind.target} with Bidirectional propagation: this requires root "
                "outside a user namespace"
            )
        point = mounts.innermost(os.path.realpath(bind.source), table)
        if not table[point].shared:
            raise LaunchError(f'path "{bind.source}" is mounted on "{point}" but it is not a shared mount')


def _plan(spec: Launch, isolation: Isolation) -> RootfsPlan:
    """Decide how the host's tree is shown, from its current mounts."""
    table = mounts.visible(mounts.read())
    if isolation.overlay == "whole":
        return RootfsPlan(table, whole(table, spec.hidden))
    if isolation.overlay == "split":
        return RootfsPlan(table, split(table, spec.hidden))
    # Create /var again, too: without overlays, /var/tmp is one of the few writable directories (`layers.SCRATCH`).
    # So are the directories of sockets below /run, because a socket in a bind of the host's directory would work.
    cuts = {"/", "/var"}.union(directories_with_sockets(), *(_ancestors(bind.target) for bind in spec.binds))
    return RootfsPlan(table, split(table, spec.hidden, overlay=False, cuts=cuts))


def enter(spec: Launch, isolation: Isolation, system: SystemMounts) -> None:
    """Build the container's tree and make it the root of this process."""
    directory = spec.directory
    # Stay in the directory itself: the relative paths of the upper and work directories lead there, although a tmpfs
    # covers it below.
    os.chdir(directory)
    # Outer targets first, so that no volume covers one that is mounted below it.
    volumes = [(bind, _open_source(bind)) for bind in sorted(spec.binds, key=lambda bind: bind.target.count("/"))]
    # From here on, mounts on the host do not propagate into this namespace. So the plan below stays correct. Otherwise
    # a new mount in a directory would make the kernel reject an ordinary user's overlay over that directory.
    libc.mount(None, "/", None, MS_REC | MS_PRIVATE)
    plan = _plan(spec, isolation)
    # Mount points in a tmpfs leave nothing on disk. They end with this mount namespace, even if the container is
    # killed.
    libc.mount("tmpfs", directory, "tmpfs", MS_NODEV | MS_NOSUID, "mode=755")
    # The file system of the directory cannot hold an upper directory, so use the tmpfs that covers it.
    if isolation.upper == "memory":
        os.chdir(directory)
    os.mkdir(f"{directory}/root")
    os.mkdir(f"{directory}/empty")
    mounted = _mount_layers(f"{directory}/root", spec, isolation, plan, volumes)
    # Open now what is needed after pivot_root: no path of the new root leads to it.
    empty = os.open(f"{directory}/empty", os.O_PATH)
    old = os.open("/", os.O_PATH | os.O_DIRECTORY)
    os.chdir(f"{directory}/root")
    if isinstance(system.proc, int):
        libc.attach_tree(system.proc, "proc")
    elif system.proc == "new":
        libc.mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    else:
        _bind("/proc", "proc")
    # Bind, because only the owner of a network namespace may mount a new sysfs, and the network is the host's.
    _bind("/sys", "sys")
    if not spec.privileged:
        _make_read_only("sys", plan.table)
    _make_dev(spec, system)
    libc.pivot_root(".", ".")  # both roots are at "/" now, the old one on top; absolute paths resolve in the new one
    os.chdir("/")
    for path in spec.hidden:
        if os.path.isdir(path):
            libc.bind(empty, path)
            _make_read_only(path)
    for bind, source in volumes:
        _mount_volume(bind, source, privileged=spec.privileged)
    # Create a missing working directory, as runc does.
    if spec.cwd:
        _try(_make_directory, spec.cwd)
    if not spec.privileged:
        # After the volumes, so that no volume uncovers a masked path.
        _mask(spec, empty)
    # The old root lies on top of the new one at "/" (pivot_root(2)), so only its descriptor leads to it. It is
    # unmounted this late because the kernel binds only from mounts of this namespace, and the sources of the volumes
    # are below it.
    os.fchdir(old)
    libc.unmount(".")
    os.chdir("/")
    # Last, because the mount points above were created in these layers. Only overlays and the root are made read-only:
    # layers of other kinds are read-only already, or are directories and links in the root.
    if spec.read_only_root:
        covered = {os.path.realpath(bind.target) for bind in spec.binds}
        for layer in mounted:
            # The path now shows a volume, which stays writable.
            hidden = any(mounts.is_below(layer.path, path) for path in covered)
            if (layer.how == COPY or layer.path == "/") and not hidden:
                _make_read_only(layer.path)


def mount_console(terminal: str) -> None:
    """Mount the terminal of a container's first process as /dev/console."""
    # As runc: with a terminal, /dev/console is the terminal of the first process.
    _make_mount_point("/dev/console", False)
    libc.mount(terminal, "/dev/console", None, MS_BIND)


def overlay_directories(directory: str) -> list[str]:
    """Return the names of the layers' directories in a container's directory."""
    try:
        return [name for name in os.listdir(directory) if name.startswith(("upper-", "work-"))]
    except FileNotFoundError:
        return []


def _mount_layers(
    root: str, spec: Launch, isolation: Isolation, plan: RootfsPlan, volumes: list[tuple[Bind, int]]
) -> list[Layer]:
    """Mount the layers below the new root. Return those that still exist."""
    layers, mounted = plan.layers, []
    is_split = layers[0].how == EMPTY
    if is_split:
        # This tmpfs holds the directories that `layers.split` creates again.
        libc.mount("tmpfs", root, "tmpfs", MS_NODEV | MS_NOSUID, "mode=755")
    mount_points = [] if isolation.overlay == "whole" else _mount_points(volumes, layers)
    for number, layer in enumerate(layers):
        target = f"{root}{layer.path}"
        match layer.how:
            case "copy":
                try:
                    _prepare_overlay(number, layer.path, isolation, mount_points)
                    if is_split:
                        os.makedirs(target, exist_ok=True)
                    options = f"upperdir=upper-{number},workdir=work-{number}{isolation.overlay_options}"
                    # Otherwise root in the container could create a device node for the host's disk.
                    flags = 0 if spec.privileged else MS_NODEV
                    libc.mount("overlay", target, "overlay", flags, f"lowerdir={_escaped(layer.path)},{options}")
                except FileNotFoundError:
                    continue  # its directory was just deleted, and perhaps created again
                except OSError:
                    if os.path.isdir(layer.path) and (layer.path not in plan.table or os.path.ismount(layer.path)):
                        raise
                    continue  # the mount was removed with its directory
            case "read":
                _try(_mount_read_only, layer.path, target, is_split)
            case "link":
                os.symlink(layer.link, target)
            case "empty" if layer.path != "/":
                os.mkdir(target)
                os.chmod(target, layer.mode)
        mounted.append(layer)
    return mounted


def _prepare_overlay(number: int, lower: str, isolation: Isolation, mount_points: list[tuple[str, str, bool]]) -> None:
    """Create the upper and work directories of an overlay over a directory of the host."""
    upper = f"upper-{number}"
    about = os.stat(lower)
    os.mkdir(f"work-{number}")
    os.mkdir(upper)
    # The container sees the mode and owner of the upper directory. /tmp, for example, must stay 1777.
    os.chmod(upper, stat.S_IMODE(about.st_mode))
    # Without root, the directory keeps the user as owner, so that containers can create files, for example in /etc.
    if isolation.namespaces == "full":
        os.chown(upper, about.st_uid, about.st_gid)
    for layer, path, is_directory in mount_points:
        if layer == lower:
            _make_mount_point(f"{upper}/{os.path.relpath(path, lower)}", is_directory)


def _escaped(path: str) -> str:
    """Escape a path for the mount options of an overlay."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _mount_read_only(path: str, target: str, make: bool) -> None:
    """Mount a file or directory of the host read-only, without its device nodes."""
    if make:
        _make_mount_point(target, os.path.isdir(path))
    _bind(path, target)
    _restrict(target, libc.MOUNT_ATTR_RDONLY | libc.MOUNT_ATTR_NODEV)


def _mount_points(volumes: list[tuple[Bind, int]], layers: list[Layer]) -> list[tuple[str, str, bool]]:
    """Return the missing mount points of volumes in overlay layers, as (layer, path, is a directory).

    An ordinary user may not create /etc/config in an overlay over /etc, which belongs to root. But the user may create
    `config` in the upper directory beforehand.
    """
    found, paths = [], [layer.path for layer in layers if layer.how == COPY]
    for bind, source in volumes:
        path = os.path.realpath(bind.target)
        inside = mounts.innermost(path, paths)
        if not os.path.lexists(path) and mounts.is_below(path, inside) and inside in paths:
            found.append((inside, path, _is_directory(source)))
    return found


def _make_dev(spec: Launch, system: SystemMounts) -> None:
    """Create the container's own small /dev. A privileged container gets every device of the host."""
    nodes = {} if spec.privileged else _make_nodes()
    # Size and mode are those of containerd. Only the device nodes themselves work as devices: with MKNOD, a container
    # could otherwise create a node for the host's disk here.
    flags = MS_NOSUID | MS_NOEXEC | (0 if spec.privileged else MS_NODEV)
    libc.mount("tmpfs", "dev", "tmpfs", flags, "mode=755,size=65536k")
    for name, node in nodes.items():
        _make_mount_point(f"dev/{name}", False)
        with opened(node):
            libc.bind(node, f"dev/{name}")
    for name in _host_devices() if spec.privileged else ():
        _make_device(name)
    for name, link in DEVICE_LINKS.items():
        os.symlink(link, f"dev/{name}")
    for name in ("pts", "shm", "mqueue"):
        os.mkdir(f"dev/{name}")
    _mount_terminals()
    if system.shm is not None:
        libc.attach_tree(system.shm, "dev/shm")
    elif system.host_shm and os.path.isdir("/dev/shm"):
        _bind("/dev/shm", "dev/shm")
        _restrict("dev/shm", libc.MOUNT_ATTR_NODEV)
    else:
        libc.mount("shm", "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, SHM_OPTIONS)
    try:
        libc.mount("mqueue", "dev/mqueue", "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:  # an ordinary user may not mount the host's message queues again
        if os.path.isdir("/dev/mqueue"):
            _bind("/dev/mqueue", "dev/mqueue")


def _mount_terminals() -> None:
    """Mount the container's own /dev/pts. If the kernel refuses it, the host's terminals are used (`terminal`)."""
    # The options of containerd. Group 5 is tty.
    base = "newinstance,ptmxmode=0666,mode=0620"
    for options in (f"{base},gid=5", base):  # an ordinary user may not have group 5
        with contextlib.suppress(OSError):
            libc.mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, options)
            return


def _make_nodes() -> dict[str, int]:
    """Create the usual device nodes in a tmpfs that /dev will cover. Return a descriptor of each node.

    Nodes of its own, because root in the container may change the mode of a node of the host.
    """
    libc.mount("tmpfs", "dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k")
    nodes = {}
    for name in DEVICES:
        _make_device(name)
        with contextlib.suppress(FileNotFoundError):  # the host has no such device
            nodes[name] = os.open(f"dev/{name}", os.O_PATH | os.O_CLOEXEC)
    return nodes


def _make_device(name: str) -> None:
    """Create a device node, or bind the host's node if that is not permitted."""
    source, target = f"/dev/{name}", f"dev/{name}"
    try:
        about = os.stat(source)
        if name not in DEVICES:
            os.makedirs(os.path.dirname(target), exist_ok=True)
        # Not permitted in a user namespace, even for its root.
        os.mknod(target, stat.S_IFMT(about.st_mode) | 0o600, about.st_rdev)
        # chmod, because the umask applies to mknod.
        os.chmod(target, 0o666 if name in DEVICES else stat.S_IMODE(about.st_mode))
        return
    except PermissionError:
        pass
    except FileNotFoundError:
        return
    _make_mount_point(target, False)
    libc.mount(source, target, None, MS_BIND)


def _host_devices() -> list[str]:
    found = list(DEVICES)
    for top, directories, files in os.walk("/dev"):
        if top == "/dev":
            # The container has its own (`_make_dev`).
            directories[:] = [name for name in directories if name not in ("pts", "shm", "mqueue", "fd")]
        for name in files:
            path = os.path.relpath(f"{top}/{name}", "/dev")
            mode = os.lstat(f"/dev/{path}").st_mode
            if path not in DEVICES and path not in ("console", "ptmx") and (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
                found.append(path)
    return found


def _open_source(bind: Bind) -> int:
    """Open the source of a volume before the root changes."""
    try:
        source = open_subpath(bind.source, bind.sub_path)
        if not bind.propagation:
            return source
        try:
            # Copy the mount before `enter` makes all mounts private: only a copy made now stays in the host's peer
            # group. A bind from the open file, made later, would receive and send no mounts.
            return libc.open_tree(source)
        finally:
            os.close(source)
    except SubPathError as error:
        raise LaunchError(str(error)) from error
    except OSError as error:
        raise LaunchError(f"cannot mount {_source_path(bind)} at {bind.target}: {_error_text(error)}") from error


def _source_path(bind: Bind) -> str:
    return os.path.join(bind.source, bind.sub_path) if bind.sub_path else bind.source


def _mount_volume(bind: Bind, source: int, *, privileged: bool) -> None:
    """Mount a volume at its target."""
    try:
        # The source was opened before the change of root, the target is resolved after it. So every target, with its
        # symbolic links, is in the container's own tree (compare CVE-2021-30465 in runc).
        with opened(_open_target(bind.target, is_directory=_is_directory(source))) as target:
            if bind.propagation:
                libc.attach_tree(source, target)
            else:
                libc.bind(source, target)
        # A slave receives mounts of its peer group and sends none.
        if bind.propagation == "HostToContainer":
            libc.mount(None, bind.target, None, MS_REC | MS_SLAVE)
        if not privileged and not bind.device:
            _restrict(bind.target, libc.MOUNT_ATTR_NODEV, recursive=True)
        # A second step, because mount(2) ignores MS_RDONLY when it creates a bind mount.
        if bind.read_only:
            _make_read_only(bind.target, recursive=bind.recursive_read_only)
    except OSError as error:
        raise LaunchError(f"cannot mount {_source_path(bind)} at {bind.target}: {_error_text(error)}") from error
    finally:
        os.close(source)


def _open_target(path: str, *, is_directory: bool) -> int:
    """Open the mount point of a volume, and create it if it is missing.

    A volume that is already mounted may contain symbolic links from its container. None of them leads through a magic
    link, such as /proc/self/fd/7, to the host.
    """
    with contextlib.suppress(FileNotFoundError):
        return _open_inside(path, os.O_PATH)
    if is_directory:
        _make_directory(path)
    else:
        _make_directory(os.path.dirname(path))
        with opened(_open_inside(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)) as parent:
            flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(os.path.basename(path), flags, 0o644, dir_fd=parent))
    return _open_inside(path, os.O_PATH)


def _make_directory(path: str) -> None:
    """Create a directory of the container and its parents, without following magic links."""
    path = os.path.normpath(path)
    with contextlib.suppress(FileNotFoundError):
        os.close(_open_inside(path, os.O_PATH | os.O_DIRECTORY))
        return
    _make_directory(os.path.dirname(path))
    with opened(_open_inside(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)) as parent:
        os.mkdir(os.path.basename(path), 0o755, dir_fd=parent)


def _open_inside(path: str, flags: int) -> int:
    try:
        return libc.open_without_magic_links(path, flags, in_root=True)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        # Before Linux 5.6, or under an outer seccomp filter. `realpath` reads links itself, so it uses the text of a
        # magic link, which is a path in the container.
        return os.open(os.path.realpath(path), flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _mask(spec: Launch, empty: int) -> None:
    """Hide the masked paths, and make the kernel's settings read-only."""
    for path in spec.read_only_paths:
        if os.path.exists(path):
            # Only a mount can be made read-only, so make the path one.
            _bind(path, path)
            _make_read_only(path)
    for path in spec.masked:
        if os.path.isdir(path):
            libc.bind(empty, path)
            _make_read_only(path)
        elif os.path.exists(path):
            # As runc masks files.
            _bind("/dev/null", path)


def _is_directory(source: int) -> bool:
    return stat.S_ISDIR(os.fstat(source).st_mode)


def _bind(source: str, target: str) -> None:
    libc.mount(source, target, None, MS_BIND | MS_REC)


def _make_read_only(path: str, table: dict[str, MountPoint] | None = None, *, recursive: bool = False) -> None:
    """Make a mount read-only. With a table of the host's mounts, also the mounts below it."""
    _restrict(path, libc.MOUNT_ATTR_RDONLY, table, recursive=recursive)


def _restrict(
    path: str, attributes: int, table: dict[str, MountPoint] | None = None, *, recursive: bool = False
) -> None:
    """Add attributes to a mount. With a table of the host's mounts, also to the mounts below it."""
    try:
        libc.set_attributes(path, attributes, recursive=recursive or table is not None)
    except OSError:  # before Linux 5.12
        flags = MS_RDONLY if attributes & libc.MOUNT_ATTR_RDONLY else 0
        flags |= MS_NODEV if attributes & libc.MOUNT_ATTR_NODEV else 0
        below = [point.lstrip("/") for point in table or () if point.startswith(f"/{path}/")]
        for place in (path, *below):
            have = os.statvfs(place).f_flag
            keep = sum(flag for name, flag in _STICKY.items() if have & name)
            libc.mount(None, place, None, MS_REMOUNT | MS_BIND | flags | keep)


def _make_mount_point(path: str, is_directory: bool) -> None:
    if is_directory:
        os.makedirs(path, 0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _ancestors(target: str) -> set[str]:
    """Return the directories of the host that must be created again so that a missing mount point can be created."""
    path = os.path.realpath(target)
    found: set[str] = set()
    while not os.path.exists(path) or found:
        path = os.path.dirname(path)
        if os.path.isdir(path):
            found.add(path)
        if path == "/":
            break
    return found


def _try(action: Callable[..., object], *arguments: object) -> None:
    """Call a function and ignore OSError: a path that this process cannot see is also missing in the container."""
    with contextlib.suppress(OSError):
        action(*arguments)


def _error_text(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
