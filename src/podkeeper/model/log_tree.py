"""The log tree as it was seen: which pods have a directory in it, and which files their containers have."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContainerLogs:
    """The files of one container of a pod: all its attempts, all their parts."""

    pod: str  # its directory: `<namespace>_<name>_<uid>`
    container: str
    sizes: Mapping[str, int]  # in bytes, by name


@dataclass(frozen=True, slots=True)
class LogTree:
    """Everything in a log tree."""

    pods: tuple[str, ...]
    logs: tuple[ContainerLogs, ...]
    has_litter: bool  # somebody began to delete a pod's directory and did not come to the end
