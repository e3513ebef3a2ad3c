"""System calls that Python 3.11 does not have.

Paths are `str`. Failed calls raise OSError.
"""

import contextlib
import ctypes
import errno
import os
import platform
import struct
from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE, MS_SHARED = 32, 4096, 16384, 1 << 18, 1 << 19, 1 << 20
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NODEV = 1, 4

CLONE_PARENT, CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x8000, 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_READ, PR_CAPBSET_DROP = 1, 4, 23, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 36, 38, 47, 4

RESOLVE_NO_MAGICLINKS, RESOLVE_IN_ROOT = 2, 16

# Calls added since 2019 have the same number on all architectures. clone does not.
_CLOSE_RANGE, _CLONE3, _OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR, _OPENAT2 = 436, 435, 428, 429, 442, 437
_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220, "armv7l": 120, "ppc64le": 120, "i686": 120}
_SECCOMP = {"x86_64": 317, "aarch64": 277, "riscv64": 277, "armv7l": 383, "ppc64le": 358, "i686": 354}
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "armv7l": 311, "ppc64le": 271, "i686": 288}
_SECCOMP_SET_MODE_FILTER, _KEYCTL_JOIN_SESSION_KEYRING = 1, 1
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC, _MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 1, os.O_CLOEXEC, 4, 0x40

_LAST_DESCRIPTOR = 0xFFFFFFFF
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_holding_gil = ctypes.PyDLL(None, use_errno=True)  # the child must hold the GIL when it returns from clone
_ulong, _uint = ctypes.c_ulong, ctypes.c_uint


def _bytes(path: str | None) -> bytes | None:
    return None if path is None else os.fsencode(path)


def _checked(result: int, subject: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), subject)
    return result


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    _checked(_libc.mount(_bytes(source), _bytes(target), _bytes(kind), _ulong(flags), _bytes(data)), target)


# MNT_DETACH, because an ordinary unmount fails while any process uses a file below the mount.
def unmount(target: str, flags: int = MNT_DETACH) -> None:
    """umount2(2)."""
    _checked(_libc.umount2(_bytes(target), flags), target)


def pivot_root(new: str, old: str) -> None:
    """pivot_root(2)."""
    _checked(_libc.pivot_root(_bytes(new), _bytes(old)), new)


def unshare(flags: int) -> None:
    """unshare(2)."""
    _checked(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """setns(2)."""
    _checked(_libc.setns(fd, kind), "setns")


def prctl(option: int, value: int = 0) -> int:
    """prctl(2) with one argument."""
    return _checked(_libc.prctl(option, _ulong(value), _ulong(0), _ulong(0), _ulong(0)), "prctl")


def set_attributes(path: str, attributes: int, *, recursive: bool) -> None:
    """Add attributes to a mount (mount_setattr(2), Linux 5.12). The mount keeps its other attributes."""
    change = struct.pack("=QQQQ", attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    _checked(_syscall(_MOUNT_SETATTR, _AT_FDCWD, _bytes(path), _uint(flags), change, _ulong(len(change))), path)


def open_without_magic_links(path: str, flags: int, *, in_root: bool = False) -> int:
    """Open a path whose resolution follows no magic link of /proc, such as /proc/self/fd/N (openat2(2), Linux 5.6).

    `in_root`: `/` and `..` are relative to the root directory of this process, as in a chroot.
    """
    resolve = RESOLVE_NO_MAGICLINKS | (RESOLVE_IN_ROOT if in_root else 0)
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, resolve)
    return _checked(_syscall(_OPENAT2, _AT_FDCWD, _bytes(path), how, _ulong(len(how))), path)


def set_capabilities(permitted: int) -> None:
    """Limit the permitted and effective capabilities to a bit mask. Clear the inheritable and ambient ones."""
    # The ambient set is missing before Linux 4.3. Without inheritable capabilities, no ambient ones are possible.
    with contextlib.suppress(OSError):
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    held = ctypes.create_string_buffer(24)
    _checked(_libc.capget(header, held), "capget")
    words = struct.unpack("=6I", held.raw)
    kept = tuple(words[3 * half + 1] & (permitted >> (32 * half)) & 0xFFFFFFFF for half in (0, 1))
    _checked(_libc.capset(header, struct.pack("=6I", kept[0], kept[0], 0, kept[1], kept[1], 0)), "capset")


def open_tree(source: str | int, *, recursive: bool = True) -> int:
    """Return a detached copy of the mount at a path or open file, in the same peer group (open_tree(2), Linux 5.2).

    `recursive`: also copy the mounts below it.
    """
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    if isinstance(source, int):
        return _checked(_syscall(_OPEN_TREE, source, b"", _uint(flags | _AT_EMPTY_PATH)), "open_tree")
    return _checked(_syscall(_OPEN_TREE, _AT_FDCWD, _bytes(source), _uint(flags)), source)


def file_system_magic(file: int) -> int:
    """Return the type of the file system of an open file (fstatfs(2))."""
    result = ctypes.create_string_buffer(256)
    _checked(_libc.fstatfs(file, result), "fstatfs")
    return int(struct.unpack_from("@l", result)[0])


def attach_tree(tree: int, target: str | int) -> None:
    """Mount a copy from `open_tree` at a path or open file (move_mount(2))."""
    if isinstance(target, int):
        flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
        _checked(_syscall(_MOVE_MOUNT, tree, b"", target, b"", _uint(flags)), "move_mount")
        return
    _checked(_syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, _bytes(target), _uint(_MOVE_MOUNT_F_EMPTY_PATH)), target)


def bind(source: int, target: str | int) -> None:
    """Mount an open file, and the mounts below it, at another place. Needs no /proc, unlike mount(2)."""
    tree = open_tree(source)
    try:
        attach_tree(tree, target)
    finally:
        os.close(tree)


def close_from(first: int, *, keep: int | None = None) -> None:
    """Close all descriptors from `first` on, except `keep`."""
    if keep is None or keep < first:
        _close_range(first, _LAST_DESCRIPTOR)
        return
    if keep > first:
        _close_range(first, keep - 1)
    _close_range(keep + 1, _LAST_DESCRIPTOR)


def _close_range(first: int, last: int) -> None:
    if _syscall(_CLOSE_RANGE, _uint(first), _uint(last), _uint(0)) < 0:  # before Linux 5.9, or a seccomp filter
        os.closerange(first, min(last, os.sysconf("SC_OPEN_MAX")) + 1)


def clone(flags: int) -> int:
    """Fork, with the child in new namespaces (CLONE_NEW*) or as a sibling (CLONE_PARENT). Return 0 in the child.

    The caller must have only one thread: Python's at-fork handlers run, those of the C library do not.
    """
    # With unshare and fork, the child of an ordinary user cannot both start inside the new namespaces and be a direct
    # child of the caller. With CLONE_PARENT, clone3 refuses an exit signal, and the child inherits that of its caller.
    arguments = struct.pack("=8Q", flags, 0, 0, 0, 0 if flags & CLONE_PARENT else 17, 0, 0, 0)  # 17: SIGCHLD
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = _holding_gil.syscall(_CLONE3, arguments, _ulong(len(arguments)))
    if (
        pid < 0 and ctypes.get_errno() == 38 and platform.machine() in _CLONE
    ):  # ENOSYS: an old kernel or a seccomp filter
        pid = _holding_gil.syscall(_CLONE[platform.machine()], _ulong(flags | 17), None, None, None, None)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    # Save it, because the at-fork handlers may change it.
    number = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    ctypes.set_errno(number)
    return _checked(pid, "clone")


def _syscall(number: int, *arguments: Any) -> int:
    return int(_libc.syscall(ctypes.c_long(number), *arguments))


def default_signals() -> None:
    """Reset all signal handlers directly in the C library, for a process that is about to exec."""
    for number in range(1, 65):
        _libc.signal(number, None)
    # The C library reserves 32 and 33 and refuses to change them. The agent's parent may have left them ignored.
    call = {"x86_64": 13, "aarch64": 134}.get(os.uname().machine)  # rt_sigaction
    if call is not None:
        default = ctypes.create_string_buffer(32)
        for number in (32, 33):
            _libc.syscall(ctypes.c_long(call), ctypes.c_int(number), default, None, ctypes.c_size_t(8))


def unlock_terminal(master: int) -> None:
    """unlockpt(3)."""
    _checked(_libc.unlockpt(master), "unlockpt")


def terminal_name(master: int) -> str:
    """Return the path of a pseudo-terminal, given its master (ptsname(3))."""
    name = ctypes.create_string_buffer(64)
    if number := _libc.ptsname_r(master, name, ctypes.c_size_t(len(name))):
        raise OSError(number, os.strerror(number), "ptsname")
    return os.fsdecode(name.value)


def set_hostname(name: str) -> None:
    """sethostname(2)."""
    encoded = name.encode()
    _checked(_libc.sethostname(encoded, ctypes.c_size_t(len(encoded))), name)


def install_seccomp(program: bytes, flags: int = 0) -> None:
    """Filter the system calls of this thread and its future children, irreversibly (seccomp(2)).

    `program` is an array of struct sock_filter, `flags` are SECCOMP_FILTER_FLAG_*. Needs CAP_SYS_ADMIN or no_new_privs.
    The filter also applies to the calls between this one and exec.
    """
    count, rest = divmod(len(program), 8)
    if rest or count > 0xFFFF:  # the kernel receives only the count, in 16 bits
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), f"seccomp filter of {len(program)} bytes")
    instructions = ctypes.create_string_buffer(program, len(program))
    pointer = struct.pack("@HP", count, ctypes.addressof(instructions))  # struct sock_fprog
    result = _machine_call(_SECCOMP, _uint(_SECCOMP_SET_MODE_FILTER), _uint(flags), pointer)
    subject = f"seccomp filter of {count} instructions"
    if result < 0 and ctypes.get_errno() == errno.EACCES:
        subject = "seccomp filter without CAP_SYS_ADMIN and without no_new_privs"
    _checked(result, subject)


def new_session_keyring(name: str) -> bool:
    """Leave the inherited session keyring for the one of this name, and create that if needed (keyctl(2)).

    Processes that use the same name share the keyring, so the name must be that of one container.
    Return False if the kernel has no keyrings (ENOSYS), an outer seccomp filter forbids them (EPERM), or the user has
    too many (EDQUOT). A container can start nevertheless: permissions still protect the keys of other users. runc
    ignores only ENOSYS, and so does not start inside of some containers.
    """
    if _machine_call(_KEYCTL, ctypes.c_int(_KEYCTL_JOIN_SESSION_KEYRING), name.encode()) >= 0:
        return True
    if ctypes.get_errno() in (errno.ENOSYS, errno.EPERM, errno.EDQUOT):
        return False
    return bool(_checked(-1, f"session keyring {name}"))


def _machine_call(numbers: dict[str, int], *arguments: Any) -> int:
    """Make a system call whose number depends on the machine."""
    number = numbers.get(platform.machine())
    if number is None:
        ctypes.set_errno(errno.ENOSYS)
        return -1
    return _syscall(number, *arguments)
