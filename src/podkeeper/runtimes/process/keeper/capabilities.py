"""Which capabilities a container has: the default set of containerd, changed by what its spec adds and drops.

The bounding set decides: a container's root gets at exec what the bounding set leaves, and other
users get nothing, as under containerd.
"""

from collections.abc import Iterable

from podkeeper.runtimes.process.keeper import libc
from podkeeper.runtimes.process.keeper.launch import LaunchError

NAMES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip
DEFAULT = frozenset(
    (
        "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP",
        "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
    )
)  # fmt: skip
EVERYTHING = frozenset(range(64))  # also those that this list does not know yet


def allowed(add: Iterable[str], drop: Iterable[str], privileged: bool) -> frozenset[int]:
    """The capability numbers a container may have: ALL is seen to first, then what is added by name, then dropped."""
    if privileged:
        return EVERYTHING
    added, dropped = {_plain(name) for name in add}, {_plain(name) for name in drop}
    if unknown := sorted(added.difference(NAMES, ("ALL",))):
        raise LaunchError(f'cannot add the capability "{unknown[0]}": there is none of that name')
    held = EVERYTHING if "ALL" in added else frozenset(map(NAMES.index, DEFAULT))
    if "ALL" in dropped:
        held = frozenset()
    return held.union(map(NAMES.index, added - {"ALL"})).difference(map(NAMES.index, dropped.intersection(NAMES)))


def bound(numbers: frozenset[int]) -> None:
    """Give up, for this process and for good, the capabilities that are not among these."""
    for number in range(64):
        try:
            if number not in numbers:
                libc.prctl(libc.PR_CAPBSET_DROP, number)
        except OSError as error:
            if error.errno == 22:  # past the kernel's last one
                return
            raise


def _plain(name: str) -> str:
    return name.upper().removeprefix("CAP_")
