"""The capabilities of a container.

The default set is that of containerd without NET_RAW: process pods share the host's network, where raw sockets would
reach the host's interfaces (CVE-2020-14386 needs them, too). The `add` and `drop` lists of the spec change the set.

At exec, a root process of the container gets the capabilities of the bounding set, and other users get none, as under
containerd.
"""

import errno
from collections.abc import Collection, Iterable
from typing import Final

from podkeeper.linux import libc
from podkeeper.linux.errors import LaunchError

# In the order of the kernel's numbers.
NAMES: Final = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip
DEFAULT: Final = frozenset(
    (
        "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "SETGID", "SETUID", "SETFCAP", "SETPCAP",
        "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
    )
)  # fmt: skip
EVERYTHING: Final = frozenset(range(64))  # includes capabilities that are newer than NAMES


def bounding_set(
    add: Iterable[str], drop: Iterable[str], privileged: bool, *, unsafe: Collection[str] = ()
) -> frozenset[int]:
    """Return the capability numbers of a container.

    ALL is applied first, then the added names, then the dropped names. `unsafe` names are not in the default set.
    Raises LaunchError for an unknown name to add.
    """
    if privileged:
        return EVERYTHING
    added, dropped = {_plain(name) for name in add}, {_plain(name) for name in drop}
    if unknown := sorted(added.difference(NAMES, ("ALL",))):
        raise LaunchError(f'cannot add the capability "{unknown[0]}": unknown capability')
    held = EVERYTHING if "ALL" in added else frozenset(map(NAMES.index, DEFAULT.difference(unsafe)))
    if "ALL" in dropped:
        held = frozenset()
    return held.union(map(NAMES.index, added - {"ALL"})).difference(map(NAMES.index, dropped.intersection(NAMES)))


def limit_bounding_set(numbers: frozenset[int]) -> None:
    """Drop all other capabilities from the bounding set of this process, irreversibly."""
    for number in range(64):
        try:
            if number not in numbers:
                libc.prctl(libc.PR_CAPBSET_DROP, number)
        except OSError as error:
            if error.errno == errno.EINVAL:  # beyond the kernel's last capability
                return
            raise


def _plain(name: str) -> str:
    return name.upper().removeprefix("CAP_")
