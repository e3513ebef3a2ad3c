"""The log tree on disk: directories of pods, files of containers."""

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
