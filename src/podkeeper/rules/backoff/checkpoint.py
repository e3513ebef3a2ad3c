"""Encode and decode a pod's backoff entries, for the journal.

    entries of a pod --encode_note--> bytes -- restart or reboot --> bytes --decode_note--> entries

A note stores ages instead of times, and when it was written by the monotonic clock and by the wall clock. Within one
boot, the monotonic clock continues while the agent is down. It gives the exact age of the note, even if the wall
clock jumps. After a reboot the monotonic clock starts again, and the wall clock is used.

Guarantees: a decoded entry holds a container or a pull for at most its curve's maximum from now on. A note that cannot
be decoded gives no entries, and no error. The kubelet has no counterpart: a restart resets its backoff.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated

import msgspec

from podkeeper.model.errors import UNDECODABLE
from podkeeper.rules.backoff.table import BackoffEntry, BackoffKey, BackoffRecord, Curve, SeenExit

_NOTHING = timedelta()
_Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class _ExitNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    finished_at: _Instant
    age: timedelta


class _EntryNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: BackoffKey
    delay: timedelta
    age: timedelta
    curve: Curve
    cause: str = ""
    exit: _ExitNote | None = None


class _BackoffNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    steady: _Instant
    wall: _Instant
    entries: tuple[_EntryNote, ...]


def encode_note(entries: Iterable[BackoffRecord], now: datetime, wall: datetime) -> bytes:
    """Encode the entries of one pod. `now` is steady time."""
    noted = tuple(
        _EntryNote(
            key=each.key,
            delay=each.entry.delay,
            age=now - each.entry.updated_at,
            curve=each.entry.curve,
            cause=each.entry.cause,
            exit=None
            if each.exit is None
            else _ExitNote(each.exit.container_id, each.exit.finished_at, now - each.exit.at),
        )
        for each in entries
    )
    return msgspec.json.encode(_BackoffNote(now, wall, noted))


def decode_note(note: bytes, now: datetime, wall: datetime) -> tuple[BackoffRecord, ...]:
    """Decode a note into entries in steady time, as of `now`. An invalid note gives no entries."""
    try:
        found = msgspec.json.decode(note, type=_BackoffNote)
        written_at = now - time_away(found.steady, found.wall, now, wall)
        return tuple(_record_of(each, written_at, found.wall - written_at) for each in found.entries)
    except (*UNDECODABLE, OverflowError):
        return ()


def time_away(noted: datetime, noted_wall: datetime, now: datetime, wall: datetime) -> timedelta:
    """Return how long ago a note was written, given both clocks then and now.

    The steady clock never gives too much: it is exact within one boot, and gives less after a reboot. If it gives a
    negative time, the machine has rebooted, and the wall clock is used.
    """
    steady_away = now - noted
    return steady_away if steady_away >= _NOTHING else max(wall - noted_wall, _NOTHING)


def _record_of(noted: _EntryNote, written_at: datetime, wall_ahead: timedelta) -> BackoffRecord:
    delay = min(max(noted.delay, _NOTHING), noted.curve.maximum)
    entry = BackoffEntry(delay, written_at - max(noted.age, _NOTHING), noted.curve, noted.cause)
    seen = None
    if noted.exit is not None:
        seen = SeenExit(noted.exit.id, noted.exit.finished_at, written_at - max(noted.exit.age, _NOTHING))
    return BackoffRecord(noted.key, entry, seen, wall_ahead)
