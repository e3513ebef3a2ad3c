"""The journal's format: a line that names the version, then records, each with a checksum.

    podkeeper journal 1\\n
    mark (4 bytes) | CRC-32 (4) | length of the key (4) | length of the value (4; -1: dropped) | key | value
    ...

Numbers are little-endian; the checksum covers everything after itself. Bytes come in, a `Reading` goes out: the notes
up to the first record that cannot be read, where that is, and whether records that can be read come after it. If none
do, the end is torn, as a crash in the middle of a write leaves it. If some do, something else has happened to the
file. Nothing here touches a disk.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

HEADER = b"podkeeper journal 1\n"

_FAMILY = b"podkeeper journal "
_MARK = b"\xf5pk1"  # 0xf5 is in no UTF-8 text: looking for marks in damaged notes finds few that are none
_HEAD = struct.Struct("<4sIIi")
_SUMMED = struct.Struct("<Ii")  # the part of the head that the checksum covers
_DROPPED = -1


class Damage(Enum):
    """What is wrong with a journal's bytes."""

    NONE = "none"
    TAIL = "the end is torn"
    MIDDLE = "something in the middle cannot be read"


@dataclass(frozen=True, slots=True)
class Reading:
    """The notes that could be read, and from which byte on the file is damaged (without damage: where it ends)."""

    notes: dict[str, bytes]
    end: int
    damage: Damage = Damage.NONE


class OtherVersion(ValueError):
    """The file is of a version that this program does not know; the message is that version."""


def encode(key: str, value: bytes | None) -> bytes:
    """One record; no value: the key is dropped."""
    name = key.encode()
    body = name if value is None else name + value
    summed = _SUMMED.pack(len(name), _DROPPED if value is None else len(value))
    return _HEAD.pack(_MARK, zlib.crc32(body, zlib.crc32(summed)), *_SUMMED.unpack(summed)) + body


def encode_all(notes: Mapping[str, bytes]) -> bytes:
    """A whole file that holds these notes and nothing else."""
    return HEADER + b"".join(encode(key, value) for key, value in notes.items())


def record_size(key: str, value: bytes) -> int:
    """How many bytes a note takes in the file."""
    return _HEAD.size + len(key.encode()) + len(value)


def read(data: bytes) -> Reading:
    """Read a file's bytes. Raises OtherVersion; any other damage is told in the reading."""
    if not data.startswith(HEADER):
        return _read_without_header(data)
    notes, end = _replay(data, len(HEADER))
    if end == len(data):
        return Reading(notes, end)
    return Reading(notes, end, Damage.MIDDLE if _record_after(data, end) else Damage.TAIL)


def _read_without_header(data: bytes) -> Reading:
    """A file whose first line is not ours: cut short, damaged, or from another version."""
    if HEADER.startswith(data):
        return Reading({}, 0, Damage.TAIL if data else Damage.NONE)
    if _record_at(data, len(HEADER)) is not None:  # only the line itself is damaged: it tells us nothing we do not know
        notes, _ = _replay(data, len(HEADER))
        return Reading(notes, 0, Damage.MIDDLE)
    version = data[len(_FAMILY) :].partition(b"\n")[0]
    if data.startswith(_FAMILY) and version.isdigit():
        raise OtherVersion(version.decode())
    return Reading({}, 0, Damage.MIDDLE)


def _replay(data: bytes, start: int) -> tuple[dict[str, bytes], int]:
    """The notes from there on, and where the last record ends that can be read."""
    notes: dict[str, bytes] = {}
    while found := _record_at(data, start):
        key, value, start = found
        if value is None:
            notes.pop(key, None)
        else:
            notes[key] = value
    return notes, start


def _record_at(data: bytes, start: int) -> tuple[str, bytes | None, int] | None:
    """The key, the value and the end of the record that begins there; None when none does."""
    if len(data) - start < _HEAD.size:
        return None
    mark, checksum, key_length, value_length = _HEAD.unpack_from(data, start)
    body = start + _HEAD.size
    end = body + key_length + max(value_length, 0)
    if mark != _MARK or value_length < _DROPPED or end > len(data):
        return None
    summed = zlib.crc32(_SUMMED.pack(key_length, value_length))
    if zlib.crc32(memoryview(data)[body:end], summed) != checksum:
        return None
    key = data[body : body + key_length].decode(errors="replace")  # with that checksum it is what we wrote
    return key, None if value_length == _DROPPED else data[body + key_length : end], end


def _record_after(data: bytes, start: int) -> bool:
    """Whether a whole record begins anywhere after a place."""
    place = data.find(_MARK, start + 1)
    while place >= 0:
        if _record_at(data, place) is not None:
            return True
        place = data.find(_MARK, place + 1)
    return False
