"""What a container sees: the host's files, privately writable, with its own /proc, /dev and volumes.

Everything here runs in the container's first process, after the fork, in a mount namespace of its
own, and ends with that namespace: nothing is ever mounted where the host could see it.

    upper-<n>, work-<n>    in the container's directory: what it wrote, by layer (`mounts.py`)
    root                   in a small tmpfs that lies over that directory meanwhile: where the new root is put together

Sources of volumes are opened before the root changes and mounted after it, so that every target is
looked up, symbolic links and all, inside the container's own tree.
"""

import contextlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

from podkeeper.runtimes.process.keeper import libc, mounts
from podkeeper.runtimes.process.keeper.isolation import Isolation
from podkeeper.runtimes.process.keeper.launch import Bind, Launch, LaunchError
from podkeeper.runtimes.process.keeper.libc import (
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
from podkeeper.runtimes.process.keeper.mounts import COPY, EMPTY, Layer, Mount
from podkeeper.runtimes.process.keeper.subpath import open_subpath

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
SHM_OPTIONS = "mode=1777,size=65536k"
# The flags of a mount that an ordinary user may not take off again, by their names in statvfs.
_STICKY = {os.ST_RDONLY: MS_RDONLY, os.ST_NOSUID: MS_NOSUID, os.ST_NODEV: MS_NODEV, os.ST_NOEXEC: MS_NOEXEC,
           os.ST_NOATIME: 1024, os.ST_NODIRATIME: 2048, os.ST_RELATIME: 1 << 21}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """The mounts that there are, and the layers made of them."""

    table: dict[str, Mount]
    layers: list[Layer]


def check(spec: Launch, isolation: Isolation) -> None:
    """Refuse what no view can show, before the fork. Raises LaunchError."""
    wishes = [bind for bind in spec.binds if bind.propagation == "Bidirectional"]
    table = mounts.visible(mounts.read()) if wishes else {}
    for bind in wishes:
        if isolation.namespaces != "full":
            raise LaunchError(f"cannot mount {bind.target} with Bidirectional propagation: only root may")
        point = mounts.holder(os.path.realpath(bind.source), table)
        if not table[point].shared:
            raise LaunchError(f'path "{bind.source}" is mounted on "{point}" but it is not a shared mount')


def _plan(spec: Launch, isolation: Isolation) -> Plan:
    """Decide how the host's tree is shown, from its mounts as they are now."""
    table = mounts.visible(mounts.read())
    if isolation.overlay == "whole":
        return Plan(table, mounts.whole(table, spec.hidden))
    if isolation.overlay == "split":
        return Plan(table, mounts.split(table, spec.hidden))
    cuts = {"/var"}.union(*(_ancestors(bind.target) for bind in spec.binds))
    return Plan(table, mounts.split(table, spec.hidden, overlay=False, cuts=cuts))


def move_in(spec: Launch, isolation: Isolation, shm: str, *, new_proc: bool) -> None:
    """Build the container's tree and make it this process's root."""
    directory = os.path.abspath(spec.directory)
    os.chdir(directory)
    volumes = [(bind, _open(bind)) for bind in sorted(spec.binds, key=lambda bind: bind.target.count("/"))]
    # From here on nothing that is mounted on the host comes or goes here: a survey of before could be wrong by now,
    # and an ordinary user is granted no overlay over a directory in which something has been mounted meanwhile.
    libc.mount(None, "/", None, MS_REC | MS_PRIVATE)
    plan = _plan(spec, isolation)
    libc.mount("tmpfs", directory, "tmpfs", MS_NODEV | MS_NOSUID, "mode=755")
    if isolation.upper == "memory":
        os.chdir(directory)
    os.mkdir(f"{directory}/root")
    os.mkdir(f"{directory}/empty")
    laid = _lay(f"{directory}/root", spec, isolation, plan, volumes)
    empty = os.open(f"{directory}/empty", os.O_PATH)
    old = os.open("/", os.O_PATH | os.O_DIRECTORY)
    os.chdir(f"{directory}/root")
    if new_proc:
        libc.mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    else:
        _bind("/proc", "proc")
    _bind("/sys", "sys")
    if not spec.privileged:
        _make_read_only("sys", plan.table)
    _make_dev(spec, shm)
    libc.pivot_root(".", ".")  # the old root now lies over the new one, out of the way of absolute paths
    os.chdir("/")
    for path in spec.hidden:
        if os.path.isdir(path):
            _bind(f"/proc/self/fd/{empty}", path)
            _make_read_only(path)
    for bind, source in volumes:
        _attach(bind, source)
    if spec.cwd and not os.path.isdir(spec.cwd):
        _attempt(os.makedirs, spec.cwd)
    if not spec.privileged:
        _mask(spec, empty)
    os.fchdir(old)
    libc.unmount(".")
    os.chdir("/")
    if spec.read_only_root:
        covered = {os.path.realpath(bind.target) for bind in spec.binds}
        for layer in laid:
            hidden = any(mounts.is_below(layer.path, path) for path in covered)
            if (layer.how == COPY or layer.path == "/") and not hidden:
                _make_read_only(layer.path)


def show_console(terminal: str) -> None:
    """Let the terminal of a container's first process be its console too."""
    _make_mount_point("/dev/console", False)
    libc.mount(terminal, "/dev/console", None, MS_BIND)


def made_in(directory: str) -> list[str]:
    """What containers left in their directory."""
    try:
        return [name for name in os.listdir(directory) if name.startswith(("upper-", "work-"))]
    except FileNotFoundError:
        return []


def _lay(root: str, spec: Launch, isolation: Isolation, plan: Plan, volumes: list[tuple[Bind, int]]) -> list[Layer]:
    """Mount the layers below the new root. Returns those that are there."""
    layers, laid = plan.layers, []
    parts = layers[0].how == EMPTY
    if parts:
        libc.mount("tmpfs", root, "tmpfs", MS_NODEV | MS_NOSUID, "mode=755")
    wanted = [] if isolation.overlay == "whole" else _mount_points(volumes, layers)
    for number, layer in enumerate(layers):
        target = f"{root}{layer.path}"
        match layer.how:
            case "copy":
                try:
                    _prepare(number, layer.path, isolation, [want for want in wanted if want[0] == layer.path])
                    if parts:
                        os.makedirs(target, exist_ok=True)
                    options = f"upperdir=upper-{number},workdir=work-{number}{isolation.overlay_options}"
                    flags = 0 if spec.privileged else MS_NODEV  # or root could make a node of the host's disk
                    libc.mount("overlay", target, "overlay", flags, f"lowerdir={_escaped(layer.path)},{options}")
                except FileNotFoundError:
                    continue  # its directory was deleted just now, and perhaps made anew
                except OSError:
                    if os.path.isdir(layer.path) and (layer.path not in plan.table or os.path.ismount(layer.path)):
                        raise
                    continue  # what was mounted there went with its directory
            case "read":
                _attempt(_show, layer.path, target, parts)
            case "link":
                os.symlink(layer.link, target)
            case "empty" if layer.path != "/":
                os.mkdir(target)
                os.chmod(target, layer.mode)
        laid.append(layer)
    return laid


def _prepare(number: int, lower: str, isolation: Isolation, wanted: list[tuple[str, str, bool]]) -> None:
    """Make what a private, writable layer over a directory of the host is written to."""
    upper = f"upper-{number}"
    about = os.stat(lower)
    os.mkdir(f"work-{number}")
    os.mkdir(upper)
    os.chmod(upper, stat.S_IMODE(about.st_mode))
    if isolation.namespaces == "full":  # an ordinary user gains by keeping it: files can be made in, say, /etc
        os.chown(upper, about.st_uid, about.st_gid)
    for _, path, is_directory in wanted:
        _make_mount_point(f"{upper}/{os.path.relpath(path, lower)}", is_directory)


def _escaped(path: str) -> str:
    """A path as an option of an overlay."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _show(path: str, target: str, make: bool) -> None:
    """Show a file or directory of the host, read-only."""
    if make:
        _make_mount_point(target, os.path.isdir(path))
    _bind(path, target)
    _make_read_only(target)


def _mount_points(volumes: list[tuple[Bind, int]], layers: list[Layer]) -> list[tuple[str, str, bool]]:
    """What volumes need in a layer whose directories are not ours to write in: (layer, path, is a directory).

    An ordinary user may not create /etc/config in an overlay over /etc, which is root's, but may create
    `config` in its upper directory beforehand.
    """
    found, paths = [], [layer.path for layer in layers if layer.how == COPY]
    for bind, source in volumes:
        path = os.path.realpath(bind.target)
        inside = mounts.holder(path, paths)
        if not os.path.lexists(path) and mounts.is_below(path, inside) and inside in paths:
            found.append((inside, path, _is_directory(source)))
    return found


def _make_dev(spec: Launch, shm: str) -> None:
    """A small /dev of the container's own; a privileged container has every device of the host there."""
    libc.mount("tmpfs", "dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=65536k")
    for name in _host_devices() if spec.privileged else DEVICES:
        _make_device(name)
    for name, link in DEVICE_LINKS.items():
        os.symlink(link, f"dev/{name}")
    for name in ("pts", "shm", "mqueue"):
        os.mkdir(f"dev/{name}")
    _mount_terminals()
    if shm and os.path.isdir(shm):
        _bind(shm, "dev/shm")
    else:
        libc.mount("shm", "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, SHM_OPTIONS)
    try:
        libc.mount("mqueue", "dev/mqueue", "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:  # the host's message queues are not an ordinary user's to mount anew
        if os.path.isdir("/dev/mqueue"):
            _bind("/dev/mqueue", "dev/mqueue")


def _mount_terminals() -> None:
    """Terminals of the container's own; where the kernel has none to give, those of the host are used (`terminal`)."""
    options = "newinstance,ptmxmode=0666,mode=0620"
    for these in (f"{options},gid=5", options):  # an ordinary user has no group 5 to give
        with contextlib.suppress(OSError):
            libc.mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, these)
            return


def _make_device(name: str) -> None:
    """A device as on the host: a node if we may make one, else the host's own."""
    source, target = f"/dev/{name}", f"dev/{name}"
    try:
        about = os.stat(source)
        if name not in DEVICES:
            os.makedirs(os.path.dirname(target), exist_ok=True)
        os.mknod(target, stat.S_IFMT(about.st_mode) | 0o600, about.st_rdev)
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
            directories[:] = [name for name in directories if name not in ("pts", "shm", "mqueue", "fd")]
        for name in files:
            path = os.path.relpath(f"{top}/{name}", "/dev")
            mode = os.lstat(f"/dev/{path}").st_mode
            if path not in DEVICES and path not in ("console", "ptmx") and (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
                found.append(path)
    return found


def _open(bind: Bind) -> int:
    """The source of a volume, while the host's root is still ours."""
    try:
        source = open_subpath(bind.source, bind.sub_path)
        if not bind.propagation:
            return source
        try:
            return libc.open_tree(f"/proc/self/fd/{source}")
        finally:
            os.close(source)
    except OSError as error:
        raise LaunchError(f"cannot mount {_whole(bind)} at {bind.target}: {_words(error)}") from error


def _whole(bind: Bind) -> str:
    return os.path.join(bind.source, bind.sub_path) if bind.sub_path else bind.source


def _attach(bind: Bind, source: int) -> None:
    """Put a volume in its place."""
    try:
        if not os.path.exists(bind.target):
            _make_mount_point(os.path.realpath(bind.target), _is_directory(source))
        if bind.propagation:
            libc.attach_tree(source, bind.target)
        else:
            _bind(f"/proc/self/fd/{source}", bind.target)
        if bind.propagation == "HostToContainer":
            libc.mount(None, bind.target, None, MS_REC | MS_SLAVE)
        if bind.read_only:
            _make_read_only(bind.target, recursive=bind.recursive_read_only)
    except OSError as error:
        raise LaunchError(f"cannot mount {_whole(bind)} at {bind.target}: {_words(error)}") from error
    finally:
        os.close(source)


def _mask(spec: Launch, empty: int) -> None:
    """Hide what a container has no business with, and protect the switches of the kernel."""
    for path in spec.read_only_paths:
        if os.path.exists(path):
            _bind(path, path)
            _make_read_only(path)
    for path in spec.masked:
        if os.path.isdir(path):
            _bind(f"/proc/self/fd/{empty}", path)
            _make_read_only(path)
        elif os.path.exists(path):
            _bind("/dev/null", path)


def _is_directory(source: int) -> bool:
    return stat.S_ISDIR(os.fstat(source).st_mode)


def _bind(source: str, target: str) -> None:
    libc.mount(source, target, None, MS_BIND | MS_REC)


def _make_read_only(path: str, table: dict[str, Mount] | None = None, *, recursive: bool = False) -> None:
    """Forbid writing through a mount; with a table of the host's mounts, also through those below it."""
    try:
        libc.set_attributes(path, libc.MOUNT_ATTR_RDONLY, recursive=recursive or table is not None)
    except OSError:  # before Linux 5.12
        below = [point.lstrip("/") for point in table or () if point.startswith(f"/{path}/")]
        for place in (path, *below):
            have = os.statvfs(place).f_flag
            keep = sum(flag for name, flag in _STICKY.items() if have & name)
            libc.mount(None, place, None, MS_REMOUNT | MS_BIND | MS_RDONLY | keep)


def _make_mount_point(path: str, is_directory: bool) -> None:
    if is_directory:
        os.makedirs(path, 0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _ancestors(target: str) -> set[str]:
    """The directories of the host that must be made anew for a mount point that is not there to be created."""
    path = os.path.realpath(target)
    found: set[str] = set()
    while not os.path.exists(path) or found:
        path = os.path.dirname(path)
        if os.path.isdir(path):
            found.add(path)
        if path == "/":
            break
    return found


def _attempt(action: Callable[..., object], *arguments: object) -> None:
    """Do what may fail without harm: what is not ours to see is not there for the container either."""
    with contextlib.suppress(OSError):
        action(*arguments)


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
