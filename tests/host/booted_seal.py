"""The first process inside: seals the machine's files off, mounts what is needed, checks, and becomes systemd.

Run by `tests/host/booted.py` in fresh mount, PID, cgroup, UTS and IPC namespaces; standard library only.

A systemd that boots on a machine's own root takes it for its own: it empties /tmp, writes /etc, /var and kernel
settings, and starts what is installed. So, before it starts, and whatever units it may be asked for later:

    everything that is mounted        read-only, and nothing here spreads to the machine nor the other way
    /run, /tmp, /var, /dev/shm        empty ones, in memory
    unit files, generators, tmpfiles  hidden; there are four targets that do nothing
    /proc/sys                         read-only, but for the network, which is another one here
    what may be written               one directory of the test's, and the cgroups of our own subtree

If that is not so in the end, nothing is started.
"""

import ctypes
import json
import os
import sys
from typing import Any

READ_ONLY = 0x1  # MOUNT_ATTR_RDONLY
RECURSIVE = 0x8000
PRIVATE = 1 << 18
BIND, DETACH = 4096, 2
MOUNT_SETATTR = 442  # on every architecture
HERE = -100

IN_MEMORY = ("/run", "/tmp", "/var", "/dev/shm")
HIDDEN = tuple(
    f"{top}/{name}"
    for top in ("/usr/lib", "/lib", "/usr/local/lib", "/etc", "/usr/share")
    for name in (
        "systemd/system",
        "systemd/system-generators",
        "systemd/system-environment-generators",
        "systemd/system-preset",
        "systemd/user",
        "tmpfiles.d",
        "sysctl.d",
        "sysusers.d",
        "modules-load.d",
        "udev",
        "dbus-1",
    )
)
TARGETS = ("default", "sysinit", "basic", "shutdown")
NOTHING = "[Unit]\nDescription=nothing\nDefaultDependencies=no\n"
MUST_FAIL = (
    "/",
    "/etc",
    "/usr",
    "/usr/lib/systemd",
    "/root",
    "/home",
    "/opt",
    "/srv",
    "/dev",
    "/sys",
    "/proc/sys/kernel",
)

_libc = ctypes.CDLL(None, use_errno=True)


class Attributes(ctypes.Structure):
    """What mount_setattr is told."""

    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns", ctypes.c_uint64),
    )


def main(wanted: dict[str, Any]) -> None:
    """Seal, mount, check, and become systemd."""
    needed = {path: os.open(path, os.O_PATH) for path in (*wanted["shown"], wanted["writable"])}
    attributes("/", RECURSIVE, set_=READ_ONLY, propagation=PRIVATE)
    mount("proc", "/proc", "proc")
    for path in filter(os.path.exists, ("/proc/sys", "/proc/sysrq-trigger")):
        bind(path, path)
        attributes(path, 0, set_=READ_ONLY)
    mount_cgroups(wanted["hierarchies"])
    for path in IN_MEMORY:
        mount("tmpfs", path, "tmpfs", "mode=1777" if path == "/tmp" else "mode=755")
    for path in ("/run/lock", "/var/lib", "/var/log", "/var/tmp"):
        os.mkdir(path)
    for path in sorted({os.path.realpath(path) for path in HIDDEN if os.path.isdir(path)}):
        mount("tmpfs", path, "tmpfs", "mode=755")
    for name in TARGETS:
        with open(f"/etc/systemd/system/{name}.target", "w") as unit:
            unit.write(NOTHING)
    for path, handle in needed.items():  # what /tmp or /var would hide
        os.makedirs(path, exist_ok=True)
        bind(f"/proc/self/fd/{handle}", path)
        os.close(handle)
    attributes(wanted["writable"], 0, clear=READ_ONLY)
    bind("/proc/sys/net", "/proc/sys/net")
    attributes("/proc/sys/net", 0, clear=READ_ONLY)
    check(wanted)
    os.execve(wanted["argv"][0], wanted["argv"], wanted["environment"])


def mount_cgroups(hierarchies: list[list[str]]) -> None:
    """Each has a directory ("": the top itself), a kind and options; their tops are those of our cgroup namespace."""
    if _libc.umount2(b"/sys/fs/cgroup", DETACH) != 0:
        fail("umount /sys/fs/cgroup")
    if any(directory for directory, _, _ in hierarchies):
        mount("tmpfs", "/sys/fs/cgroup", "tmpfs", "mode=755")
    for directory, kind, options in hierarchies:
        path = os.path.join("/sys/fs/cgroup", directory).rstrip("/")
        os.makedirs(path, exist_ok=True)
        mount("cgroup", path, kind, options)


def check(wanted: dict[str, Any]) -> None:
    """Raises unless nothing of the machine can be written."""
    open_ones = set()
    with open("/proc/self/mountinfo") as lines:
        for line in lines:
            fields = line.split()
            point, options, kind = fields[4], fields[5].split(","), fields[fields.index("-") + 1]
            if any(word.startswith(("shared:", "master:")) for word in fields[6 : fields.index("-")]):
                raise RuntimeError(f"{point} is shared with the machine")
            if "rw" in options and kind not in ("cgroup", "cgroup2"):
                open_ones.add(point)
    mine = {*IN_MEMORY, *HIDDEN, "/proc", "/proc/sys/net", "/sys/fs/cgroup", wanted["writable"]}
    if strange := open_ones - mine:
        raise RuntimeError(f"these could be written: {sorted(strange)}")
    for directory in (*MUST_FAIL, *wanted["shown"]):
        trial = f"{directory.rstrip('/')}/podkeeper-must-not-write-this-{os.getpid()}"
        try:
            os.close(os.open(trial, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except OSError:
            continue
        os.unlink(trial)
        raise RuntimeError(f"{directory} could be written")


def mount(source: str, target: str, kind: str, options: str = "") -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode(), 0, options.encode()) != 0:
        fail(f"mount {kind} {options} at {target}")


def bind(source: str, target: str) -> None:
    if _libc.mount(source.encode(), target.encode(), None, BIND, None) != 0:
        fail(f"bind {source} to {target}")


def attributes(path: str, how: int, *, set_: int = 0, clear: int = 0, propagation: int = 0) -> None:
    told = Attributes(set_, clear, propagation, 0)
    if _libc.syscall(MOUNT_SETATTR, HERE, path.encode(), how, ctypes.byref(told), ctypes.sizeof(told)) != 0:
        fail(f"change the mounts at {path}")


def fail(deed: str) -> None:
    code = ctypes.get_errno()
    raise OSError(code, f"cannot {deed}: {os.strerror(code)}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
