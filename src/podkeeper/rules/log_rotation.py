"""Which files a container's log consists of, and what is to be done about them: removed, compressed, rotated.

    0.log                          what the container writes now
    0.log.20261115-101502          the newest rotated part: still as it was written
    0.log.20261115-100007.gz       older ones, compressed
    0.log.20261115-100007.tmp      left by somebody who died while compressing

Names and a size come in; a `Plan` goes out. It is made from nothing but what there is, so one that was interrupted
anywhere, by whatever, is simply made again. Files with other names are nobody's business here.

Unlike the reference, stamps are in UTC and only ever grow: neither a clock that was put back nor two rotations within
a second make a part replace another one, or go before its turn. The Go ancestor is
pkg/kubelet/logs/container_log_manager.go.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NewType

COMPRESSED: Final = ".gz"
UNFINISHED: Final = ".tmp"
SHORTEST_PAUSE_SECONDS: Final = 1.0

Stamp = NewType("Stamp", str)
"""When a part was rotated away; later ones are greater."""

BEFORE_ALL: Final = Stamp("")

_STAMP_FORMAT: Final = "%Y%m%d-%H%M%S"
_NAME: Final = re.compile(r"(?P<log>[0-9]+\.log)(?:\.(?P<stamp>[0-8][0-9]{7}-[0-9]{6})(?P<ending>\.gz|\.tmp)?)?")


@dataclass(frozen=True, slots=True)
class Policy:
    """How much of a container's log is kept, and how closely it is watched."""

    max_bytes: int | None = 10 * 2**20  # the size from which on it is rotated; None: never
    max_files: int = 5  # of one container, with the one that is written now
    workers: int = 1  # how many logs are compressed at a time
    interval_seconds: float = 10.0  # the longest time between two looks


USUAL_POLICY: Final = Policy()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with the files of one log: first remove, then rotate, then compress."""

    remove: tuple[str, ...] = ()
    rotate_to: str = ""  # the new name of the file that is written now; empty: it stays
    compress: tuple[str, ...] = ()


NOTHING_TO_DO: Final = Plan()


def attempt_of(name: str) -> int | None:
    """Whose log a file is part of; None: it is none."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found["log"].partition(".")[0])


def parts_of(log: str, names: Iterable[str]) -> dict[Stamp, str]:
    """The rotated parts of a log that hold something, oldest first."""
    parts: dict[Stamp, str] = {}
    for name, stamp, ending in _rotated(log, names):
        # A compressed part is whole: it gets its name last. What it was made from is not needed any more.
        if ending == COMPRESSED or (ending is None and stamp not in parts):
            parts[stamp] = name
    return dict(sorted(parts.items()))


def plan_of(log: str, size: int, names: Collection[str], policy: Policy, now: datetime) -> Plan:
    """What to do with the files of a log that may still be written to and is so large."""
    rotated = list(_rotated(log, names))
    parts = list(parts_of(log, names).values())
    litter = [name for name, _, _ in rotated if name not in parts]
    is_due = policy.max_bytes is not None and size >= policy.max_bytes and log in names
    rotate_to = f"{log}.{_next_stamp((stamp for _, stamp, _ in rotated), now)}" if is_due else ""
    room = max(0, policy.max_files - (2 if is_due else 1))
    excess, kept = parts[: max(0, len(parts) - room)], parts[max(0, len(parts) - room) :]
    # The newest part stays as it is: whoever reads it may not have come to its end.
    finished = kept if is_due else kept[:-1]
    compress = [name for name in finished if not name.endswith(COMPRESSED)]
    return Plan((*litter, *excess), rotate_to, tuple(compress))


def outdated(names: Iterable[str], attempts: Collection[int]) -> tuple[str, ...]:
    """The files of a container's attempts that are gone, while later ones are there; `attempts` are those there are.

    The newest files stay whatever is there: of a container that a runtime has lost they are all that is left.
    """
    newest = max(attempts, default=0)
    return tuple(
        name
        for name in names
        if (attempt := attempt_of(name)) is not None and attempt < newest and attempt not in attempts
    )


def pause_seconds(growing: Iterable[tuple[int, float]], policy: Policy) -> float:
    """How long until the next look, given how much each log may still grow, and how fast it does per second.

    A log that will be full sooner than the interval is over is looked at then: so a flood is cut into pieces of about
    the right size, and not into whatever comes within an interval.
    """
    shortest = min(SHORTEST_PAUSE_SECONDS, policy.interval_seconds)
    full_in = min((left / rate for left, rate in growing if rate > 0), default=policy.interval_seconds)
    return min(policy.interval_seconds, max(shortest, full_in))


def stamp_at(moment: datetime) -> Stamp:
    """The stamp of a part that is rotated away at a moment."""
    return Stamp(moment.astimezone(UTC).strftime(_STAMP_FORMAT))


def _rotated(log: str, names: Iterable[str]) -> Iterator[tuple[str, Stamp, str | None]]:
    """Name, stamp and ending of every rotated file of a log, whatever its state."""
    for name in names:
        found = _NAME.fullmatch(name)
        if found is not None and found["log"] == log and found["stamp"] is not None:
            yield name, Stamp(found["stamp"]), found["ending"]


def _next_stamp(taken: Iterable[Stamp], now: datetime) -> Stamp:
    """The stamp of now, or the first one after all that are taken: the next number, which need not be a time."""
    newest = max(taken, default=BEFORE_ALL)
    if (stamp := stamp_at(now)) > newest:
        return stamp
    number = f"{int(newest.replace('-', '')) + 1:014}"
    return Stamp(f"{number[:8]}-{number[8:]}")
