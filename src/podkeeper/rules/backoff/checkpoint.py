"""Encode and decode a pod's backoff entries, for the journal.

    entries of a pod --encode_checkpoint--> bytes -- restart or reboot --> bytes --decode_checkpoint--> entries

A checkpoint stores ages instead of times, and when it was written by the monotonic clock and by the wall clock. Within
one boot, the monotonic clock continues while the agent is down. It gives the exact age of the checkpoint, even if the
wall clock jumps. After a reboot the monotonic clock starts again, and the wall clock is used.

Guarantees: a decoded entry holds a container or a pull for at most its curve's maximum from now on. A checkpoint that
cannot be decoded gives no entries, and no error. The kubelet has no counterpart: a restart resets its backoff.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated

import msgspec

from podkeeper.model.errors import UNDECODABLE
from podkeeper.rules.backoff.table import BackoffEntry, BackoffKey, BackoffRecord, Curve, SeenExit

_NOTHING = timedelta()
_Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class _ExitCheckpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    finished_at: _Instant
    age: timedelta


class _EntryCheckpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: BackoffKey
    delay: timedelta
    age: timedelta
    curve: Curve
    cause: str = ""
    exit: _ExitCheckpoint | None = None


class _BackoffCheckpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    steady: _Instant
    wall: _Instant
    entries: tuple[_EntryCheckpoint, ...]


def encode_checkpoint(entries: Iterable[BackoffRecord], now: datetime, wall: datetime) -> bytes:
    """Encode the entries of one pod. `now` is steady time."""
    stored = tuple(
        _EntryCheckpoint(
            key=each.key,
            delay=each.entry.delay,
            age=now - each.entry.updated_at,
            curve=each.entry.curve,
            cause=each.entry.cause,
            exit=None
            if each.exit is None
            else _ExitCheckpoint(each.exit.container_id, each.exit.finished_at, now - each.exit.at),
        )
        for each in entries
    )
    return msgspec.json.encode(_BackoffCheckpoint(now, wall, stored))


def decode_checkpoint(checkpoint: bytes, now: datetime, wall: datetime) -> tuple[BackoffRecord, ...]:
    """Decode a checkpoint into entries in steady time, as of `now`. An invalid checkpoint gives no entries."""
    try:
        found = msgspec.json.decode(checkpoint, type=_BackoffCheckpoint)
        written_at = now - time_away(found.steady, found.wall, now, wall)
        return tuple(_record_of(each, written_at, found.wall - written_at) for each in found.entries)
    except (*UNDECODABLE, OverflowError):
        # Ages of a damaged file may be too large for a datetime. No backoff is better than an agent that does not
        # start.
        return ()


def time_away(written: datetime, wall_written: datetime, now: datetime, wall: datetime) -> timedelta:
    """Return how long ago a checkpoint was written, given both clocks then and now.

    The steady clock never overestimates: within one boot it is exact, and after a reboot it underestimates. A negative
    result means that the machine has rebooted. Then the wall clock is used.
    """
    steady_away = now - written
    return steady_away if steady_away >= _NOTHING else max(wall - wall_written, _NOTHING)


def _record_of(stored: _EntryCheckpoint, written_at: datetime, wall_ahead: timedelta) -> BackoffRecord:
    # A damaged or manipulated value must not hold a container forever.
    delay = min(max(stored.delay, _NOTHING), stored.curve.maximum)
    entry = BackoffEntry(delay, written_at - max(stored.age, _NOTHING), stored.curve, stored.cause)
    seen = None
    if stored.exit is not None:
        seen = SeenExit(stored.exit.id, stored.exit.finished_at, written_at - max(stored.exit.age, _NOTHING))
    return BackoffRecord(stored.key, entry, seen, wall_ahead)
