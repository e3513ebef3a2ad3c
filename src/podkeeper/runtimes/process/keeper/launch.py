"""What the jail is asked to start: one process, and all that it is to see and to be.

These values travel as JSON from the agent through the keeper (`containers/<id>/config.json`) to
`Jail.launch`; nothing in them refers to an open file or, until the start, to a living process. What cannot be done
comes back as a `LaunchError` whose text is fit for the container's status.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

# What the CRI plugins of containerd and CRI-O hide from a container that is not privileged.
MASKED_PATHS = (
    "/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
    "/sys/devices/virtual/powercap",
)  # fmt: skip
READ_ONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


class LaunchError(Exception):
    """A process that cannot be started; the message says what could not be done, and why."""


@dataclass(frozen=True, slots=True)
class Bind:
    """A host path (file or directory) that appears in a container."""

    source: str
    target: str
    read_only: bool = False
    propagation: str = ""  # "", HostToContainer, Bidirectional
    recursive_read_only: bool = False  # also what is mounted below the source (Linux 5.12)
    sub_path: str = ""  # a part of the source; no link in it may lead out of the source
    optional: bool = False  # left out, not refused, where this machine allows no mounts (namespaces: none)


@dataclass(frozen=True, slots=True)
class Launch:
    """One process to start in a container of its own (`Jail.launch`) or beside another one (`Jail.enter`)."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str = ""  # "": /
    hostname: str = ""  # with uts: own; otherwise it is the pod's, given to the Jail
    directory: str = ""  # containers/<id>: holds upper, work and root; made if missing
    binds: tuple[Bind, ...] = ()
    hidden: tuple[str, ...] = ()  # directories of the host that look empty from inside: the agent's own state
    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] = ()
    capabilities_add: tuple[str, ...] = ()  # NET_ADMIN, ALL, ...
    capabilities_drop: tuple[str, ...] = ()
    privileged: bool = False
    no_new_privileges: bool = False
    read_only_root: bool = False
    pid: str = "own"  # own | pod | host
    ipc: str = "pod"
    uts: str = "pod"
    tty: bool = False  # its three files are one console socket, over which it sends the master of its terminal
    masked: tuple[str, ...] = MASKED_PATHS  # not if privileged
    read_only_paths: tuple[str, ...] = READ_ONLY_PATHS  # not if privileged
    cgroups: tuple[str, ...] = ()  # cgroup.procs files to join before exec
    most_processes: int = 0  # of the pod, where the kernel counts them without a cgroup; 0: as many as it likes
    beside: int = 0  # with pid: own, a living process to share a pid namespace with; the keeper knows it at the start

    def to_json(self) -> dict[str, Any]:
        """The launch as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Launch":
        """The launch that `to_json` wrote; what a newer podkeeper may have added is passed over."""
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {key: value for key, value in data.items() if key in known}
        values |= {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        if "binds" in values:
            values["binds"] = tuple(Bind(**bind) for bind in values["binds"])
        return cls(**values)
