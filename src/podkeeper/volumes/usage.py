"""Which directories grew beyond their limit: measured now and then, told to whoever evicts.

Directories with limits come in; an `OverUse` for each that is too large goes out, at every measurement as long as it
is. Measuring walks a tree no further than to its limit; and the next one comes the later, the longer it took, so that
it costs a small share of a processor at most. The Go ancestor is `emptyDirLimitEviction` in pkg/kubelet/eviction.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from podkeeper.model.messages import PodUID
from podkeeper.model.quantity import Quantity
from podkeeper.volumes.tree import disk_usage

PERIOD_SECONDS = 10.0
PAUSES_PER_WORK = 100


@dataclass(frozen=True, slots=True)
class Limited:
    """A directory that must not grow beyond a limit."""

    uid: PodUID
    volume: str
    path: str
    limit: Quantity


@dataclass(frozen=True, slots=True)
class OverUse:
    """A volume that is larger than it may be."""

    uid: PodUID
    volume: str
    used_bytes: int  # at least: counting stopped there
    limit: Quantity

    @property
    def message(self) -> str:
        """What the status of an evicted pod says, in the words of the reference."""
        return f'Usage of EmptyDir volume "{self.volume}" exceeds the limit "{self.limit}". '


def over_used(directories: Iterable[Limited]) -> tuple[OverUse, ...]:
    """Those that are too large. One that is gone is not. Blocks."""
    found = []
    for directory in directories:
        limit = directory.limit.value
        with suppress(OSError):
            used = disk_usage(directory.path, stop_above=limit)
            if used > limit:
                found.append(OverUse(directory.uid, directory.volume, used, directory.limit))
    return tuple(found)


def measured(
    directories: Iterable[Limited], period_seconds: float = PERIOD_SECONDS
) -> tuple[tuple[OverUse, ...], float]:
    """Those that are too large, and how many seconds to wait before the next look. Blocks."""
    begun = time.monotonic()
    found = over_used(directories)
    return found, max(period_seconds, PAUSES_PER_WORK * (time.monotonic() - begun))
