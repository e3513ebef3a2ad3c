"""The description of one process: program, files, user, namespaces, mounts.

The agent sends it as JSON to the keeper, which stores it in `containers/<id>/config.json` and passes it to
`Jail.launch`. It refers to no open file and, until the start, to no running process. If the process cannot start, the
text of the `LaunchError` becomes the message of the container's status.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any, Final

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The paths that containerd and CRI-O hide from containers that are not privileged.
MASKED_PATHS = (
    "/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
    "/sys/devices/virtual/powercap",
)  # fmt: skip
READ_ONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


@dataclass(frozen=True, slots=True)
class Bind:
    """A host path (file or directory) that appears in a container."""

    source: str
    target: str
    read_only: bool = False
    propagation: str = ""  # "", HostToContainer, Bidirectional
    recursive_read_only: bool = False  # also mounts below the source (Linux 5.12)
    sub_path: str = ""  # relative to the source; symbolic links in it must not lead out of the source
    device: bool = False  # a device node of the host that works as a device
    optional: bool = False  # skipped instead of refused if this machine allows no mounts (namespaces: none)


@dataclass(frozen=True, slots=True)
class Launch:
    """One process to start, in a new container (`Jail.launch`) or in a running one (`Jail.enter`)."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str = ""  # "": /
    hostname: str = ""  # only with uts: own; otherwise the keeper sets the pod's hostname
    directory: str = ""  # containers/<id>: holds upper, work and root; created if missing
    binds: tuple[Bind, ...] = ()
    hidden: tuple[str, ...] = ()  # directories of the host that are empty inside: the agent's own state
    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] = ()
    capabilities_add: tuple[str, ...] = ()  # NET_ADMIN, ALL, ...
    capabilities_drop: tuple[str, ...] = ()
    privileged: bool = False
    no_new_privileges: bool = False
    seccomp: str = ""  # the program of the filter, in base64; "": no filter
    seccomp_flags: int = 0
    seccomp_required: bool = False  # otherwise the process may run without it if the kernel refuses it
    keyring: str = ""  # the name of a session keyring; "": that of the agent
    read_only_root: bool = False
    pid: str = "own"  # own | pod | host
    ipc: str = "pod"
    uts: str = "pod"
    tty: bool = False  # its three files are one console socket, over which it sends the master of its terminal
    masked: tuple[str, ...] = MASKED_PATHS  # not if privileged
    read_only_paths: tuple[str, ...] = READ_ONLY_PATHS  # not if privileged
    device_filter: bool = False  # the cgroup limits the devices; set by the keeper at the start
    cgroups: tuple[str, ...] = ()  # cgroup.procs files to join before exec
    most_processes: int = 0  # limit of the pod if the user namespace enforces it, 0: no limit
    beside: int = 0  # with pid: own, the PID of a process whose PID namespace to share; set by the keeper at the start

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        for bind in values["binds"]:
            if not bind["device"]:
                del bind["device"]  # a keeper of an older podkeeper refuses the field
        return values

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Launch":
        """Decode the result of `to_json`. Ignore fields that only a newer podkeeper has."""
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {key: value for key, value in data.items() if key in known}
        values |= {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        if "binds" in values:
            names = {field.name for field in fields(Bind)}
            values["binds"] = tuple(
                Bind(**{key: value for key, value in bind.items() if key in names}) for bind in values["binds"]
            )
        return cls(**values)
