"""Find volumes that exceed their size limit.

Input: directories with limits. Output: an `Overuse` for each directory that is too large, at every measurement.
Counting stops at the limit. The pause between measurements grows with their duration, so that they use only a small
share of a CPU. Kubelet counterpart: `emptyDirLimitEviction` in pkg/kubelet/eviction.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from podkeeper.linux.tree import disk_usage
from podkeeper.model.messages import PodUID
from podkeeper.model.quantity import Quantity

# The kubelet's eviction monitoring period.
PERIOD_SECONDS = 10.0
PAUSE_FACTOR = 100  # at most 1 % of a CPU


@dataclass(frozen=True, slots=True)
class LimitedVolume:
    """A volume with a size limit."""

    uid: PodUID
    volume: str
    path: str
    limit: Quantity


@dataclass(frozen=True, slots=True)
class Overuse:
    """A volume that exceeds its limit."""

    uid: PodUID
    volume: str
    used_bytes: int  # at least this many, because counting stops above the limit
    limit: Quantity

    @property
    def message(self) -> str:
        """The kubelet's message for the status of the evicted pod."""
        return f'Usage of EmptyDir volume "{self.volume}" exceeds the limit "{self.limit}". '


def overused(directories: Iterable[LimitedVolume]) -> tuple[Overuse, ...]:
    """Return the volumes that exceed their limit. Missing directories do not. Blocks."""
    found = []
    for directory in directories:
        limit = directory.limit.value
        # The volume may have been removed meanwhile.
        with suppress(OSError):
            used = disk_usage(directory.path, stop_above=limit)
            if used > limit:
                found.append(Overuse(directory.uid, directory.volume, used, directory.limit))
    return tuple(found)


def measure(
    directories: Iterable[LimitedVolume], period_seconds: float = PERIOD_SECONDS
) -> tuple[tuple[Overuse, ...], float]:
    """Return the volumes that exceed their limit, and the pause until the next measurement. Blocks."""
    begun = time.monotonic()
    found = overused(directories)
    return found, max(period_seconds, PAUSE_FACTOR * (time.monotonic() - begun))
