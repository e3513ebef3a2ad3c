"""Log rotation: which log files of a container to remove, compress or rotate.

    0.log                          the current log
    0.log.20261115-101502          the newest rotated part, not compressed yet
    0.log.20261115-100007.gz       older parts, compressed
    0.log.20261115-100007.tmp      left by a compression that was interrupted

Inputs are file names and a size, the output is a `RotationPlan`. It depends only on the files that exist, so after an
interruption the same plan is computed again. Files with other names are ignored.

Unlike in the kubelet, timestamps are in UTC and always increase. So a clock that was set back, or two rotations within
a second, cannot replace a part or remove it too early.

Kubelet counterpart: pkg/kubelet/logs/container_log_manager.go.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NewType

COMPRESSED: Final = ".gz"
UNFINISHED: Final = ".tmp"
# The kubelet requires 3 s. A fast log would exceed its limit by far in that time.
MIN_INTERVAL_SECONDS: Final = 1.0

Stamp = NewType("Stamp", str)
"""When a part was rotated. Later stamps are greater."""

BEFORE_ALL: Final = Stamp("")

_STAMP_FORMAT: Final = "%Y%m%d-%H%M%S"
_NAME: Final = re.compile(r"(?P<log>[0-9]+\.log)(?:\.(?P<stamp>[0-8][0-9]{7}-[0-9]{6})(?P<suffix>\.gz|\.tmp)?)?")


@dataclass(frozen=True, slots=True)
class RotationPolicy:
    """How much of a container's log is kept, and how often it is checked."""

    # The kubelet's defaults (containerLogMaxSize, containerLogMaxFiles, containerLogMaxWorkers,
    # containerLogMonitorInterval).
    max_bytes: int | None = 10 * 2**20  # rotate at this size; None: never
    max_files: int = 5  # of one container, including the current one
    workers: int = 1  # number of logs compressed concurrently
    interval_seconds: float = 10.0  # the longest time between two checks


DEFAULT_ROTATION_POLICY: Final = RotationPolicy()


@dataclass(frozen=True, slots=True)
class RotationPlan:
    """Actions on the files of one log: first remove, then rotate, then compress."""

    remove: tuple[str, ...] = ()
    rotate_to: str = ""  # the new name of the current log; "": do not rotate
    compress: tuple[str, ...] = ()


NOTHING_TO_DO: Final = RotationPlan()


def attempt_of(name: str) -> int | None:
    """Return the attempt number of a log file, None if it is not a log file."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found["log"].partition(".")[0])


def parts_of(log: str, names: Iterable[str]) -> dict[Stamp, str]:
    """Return the readable rotated parts of a log by stamp, oldest first."""
    parts: dict[Stamp, str] = {}
    for name, stamp, suffix in _rotated(log, names):
        # A compressed part is complete, because it is renamed last. Its uncompressed original is not needed any more.
        if suffix == COMPRESSED or (suffix is None and stamp not in parts):
            parts[stamp] = name
    return dict(sorted(parts.items()))


def rotation_plan(log: str, size: int, names: Collection[str], policy: RotationPolicy, now: datetime) -> RotationPlan:
    """Return the actions for a log of this size that may still be written to."""
    rotated = list(_rotated(log, names))
    parts = list(parts_of(log, names).values())
    leftovers = [name for name, _, _ in rotated if name not in parts]
    is_due = policy.max_bytes is not None and size >= policy.max_bytes and log in names
    rotate_to = f"{log}.{_next_stamp((stamp for _, stamp, _ in rotated), now)}" if is_due else ""
    # The current log counts, and after a rotation the new current log as well.
    room = max(0, policy.max_files - (2 if is_due else 1))
    excess, kept = parts[: max(0, len(parts) - room)], parts[max(0, len(parts) - room) :]
    # Keep the newest part uncompressed, because a reader may not have reached its end.
    finished = kept if is_due else kept[:-1]
    compress = [name for name in finished if not name.endswith(COMPRESSED)]
    return RotationPlan((*leftovers, *excess), rotate_to, tuple(compress))


def stale_files(names: Iterable[str], attempts: Collection[int]) -> tuple[str, ...]:
    """Return the log files of removed attempts older than the newest one. `attempts` are those that exist.

    The newest files always stay: if the runtime has lost a container, they are all that is left of it.
    """
    newest = max(attempts, default=0)
    return tuple(
        name
        for name in names
        if (attempt := attempt_of(name)) is not None and attempt < newest and attempt not in attempts
    )


def seconds_until_next_check(growing: Iterable[tuple[int, float]], policy: RotationPolicy) -> float:
    """Return the time until the next check, given the bytes left and the growth per second of each log.

    If a log will be full before the interval ends, the check is at that time. So a fast log is rotated near its size
    limit.
    """
    shortest = min(MIN_INTERVAL_SECONDS, policy.interval_seconds)
    full_in = min((left / rate for left, rate in growing if rate > 0), default=policy.interval_seconds)
    return min(policy.interval_seconds, max(shortest, full_in))


def stamp_at(moment: datetime) -> Stamp:
    return Stamp(moment.astimezone(UTC).strftime(_STAMP_FORMAT))


def _rotated(log: str, names: Iterable[str]) -> Iterator[tuple[str, Stamp, str | None]]:
    """Yield name, stamp and suffix of every rotated file of a log."""
    for name in names:
        found = _NAME.fullmatch(name)
        if found is not None and found["log"] == log and found["stamp"] is not None:
            yield name, Stamp(found["stamp"]), found["suffix"]


def _next_stamp(taken: Iterable[Stamp], now: datetime) -> Stamp:
    """Return the stamp of now, or if it is not the newest, the number after the newest (maybe no valid time)."""
    newest = max(taken, default=BEFORE_ALL)
    if (stamp := stamp_at(now)) > newest:
        return stamp
    number = f"{int(newest.replace('-', '')) + 1:014}"
    return Stamp(f"{number[:8]}-{number[8:]}")
