"""The first process inside: make the files of the machine read-only, mount, check, and exec systemd.

Started by `tests/host/booted.py` in new mount, PID, cgroup, UTS and IPC namespaces. Uses only the standard library.

A systemd that boots on the root of a machine would empty /tmp, write to /etc, /var and kernel settings, and start the
installed services. So this process prepares the mounts first:

    all mounts                        read-only and private
    /run, /tmp, /var, /dev/shm        new and empty, in memory
    unit files, generators, tmpfiles  hidden, except for four empty targets
    /proc/sys                         read-only, except for the network, which is a separate one
    writable                          one directory of the test, and the cgroups below ours

If a check fails, systemd is not started.
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
MOUNT_SETATTR = 442  # on all architectures
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
    """struct mount_attr of mount_setattr(2)."""

    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns", ctypes.c_uint64),
    )


def main(wanted: dict[str, Any]) -> None:
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
    for path, handle in needed.items():  # the new /tmp and /var hide them
        os.makedirs(path, exist_ok=True)
        bind(f"/proc/self/fd/{handle}", path)
        os.close(handle)
    attributes(wanted["writable"], 0, clear=READ_ONLY)
    bind("/proc/sys/net", "/proc/sys/net")
    attributes("/proc/sys/net", 0, clear=READ_ONLY)
    check(wanted)
    os.execve(wanted["argv"][0], wanted["argv"], wanted["environment"])


def mount_cgroups(hierarchies: list[list[str]]) -> None:
    """Mount the hierarchies of our cgroup namespace. Each has a directory ("" for the top), a type and options."""
    if _libc.umount2(b"/sys/fs/cgroup", DETACH) != 0:
        fail("umount /sys/fs/cgroup")
    if any(directory for directory, _, _ in hierarchies):
        mount("tmpfs", "/sys/fs/cgroup", "tmpfs", "mode=755")
    for directory, kind, options in hierarchies:
        path = os.path.join("/sys/fs/cgroup", directory).rstrip("/")
        os.makedirs(path, exist_ok=True)
        mount("cgroup", path, kind, options)


def check(wanted: dict[str, Any]) -> None:
    """Raise an error if a file of the machine is writable."""
    writable = set()
    with open("/proc/self/mountinfo") as lines:
        for line in lines:
            fields = line.split()
            point, options, kind = fields[4], fields[5].split(","), fields[fields.index("-") + 1]
            if any(word.startswith(("shared:", "master:")) for word in fields[6 : fields.index("-")]):
                raise RuntimeError(f"{point} is shared with the machine")
            if "rw" in options and kind not in ("cgroup", "cgroup2"):
                writable.add(point)
    allowed = {*IN_MEMORY, *HIDDEN, "/proc", "/proc/sys/net", "/sys/fs/cgroup", wanted["writable"]}
    if others := writable - allowed:
        raise RuntimeError(f"writable mounts of the machine: {sorted(others)}")
    for directory in (*MUST_FAIL, *wanted["shown"]):
        trial = f"{directory.rstrip('/')}/podkeeper-must-not-write-this-{os.getpid()}"
        try:
            os.close(os.open(trial, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except OSError:
            continue
        os.unlink(trial)
        raise RuntimeError(f"{directory} is writable")


def mount(source: str, target: str, kind: str, options: str = "") -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode(), 0, options.encode()) != 0:
        fail(f"mount {kind} {options} at {target}")


def bind(source: str, target: str) -> None:
    if _libc.mount(source.encode(), target.encode(), None, BIND, None) != 0:
        fail(f"bind {source} to {target}")


def attributes(path: str, how: int, *, set_: int = 0, clear: int = 0, propagation: int = 0) -> None:
    change = Attributes(set_, clear, propagation, 0)
    if _libc.syscall(MOUNT_SETATTR, HERE, path.encode(), how, ctypes.byref(change), ctypes.sizeof(change)) != 0:
        fail(f"change the mounts at {path}")


def fail(action: str) -> None:
    code = ctypes.get_errno()
    raise OSError(code, f"cannot {action}: {os.strerror(code)}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
