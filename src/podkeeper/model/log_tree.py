"""The log tree on disk: directories of pods, files of containers, and links to the files."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContainerLogs:
    """The log files of one container: all its attempts, including rotated parts."""

    pod: str  # the name of its directory: `<namespace>_<name>_<uid>`
    container: str
    sizes: Mapping[str, int]  # in bytes, by file name


@dataclass(frozen=True, slots=True)
class LogTree:
    pods: tuple[str, ...]
    logs: tuple[ContainerLogs, ...]
    has_leftovers: bool  # the deletion of a pod's directory was interrupted


@dataclass(frozen=True, slots=True)
class LogLink:
    """A link to a container's log: its name in the flat directory of links, and its target."""

    name: str
    log: str
    runs: bool = True  # whether its container runs
