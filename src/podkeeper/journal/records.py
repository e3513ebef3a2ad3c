r"""The journal's file format: a version line, then records with checksums.

    podkeeper journal 1\n
    mark (4 bytes) | CRC-32 (4) | length of the key (4) | length of the value (4; -1: dropped) | key | value
    ...

Numbers are little-endian. The checksum covers everything after itself. `read` returns the entries up to the first
invalid record, its position, and whether valid records follow. If no valid record follows, the end is torn, as after a
crash during a write. Otherwise the file is damaged. Nothing here accesses a disk.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

HEADER = b"podkeeper journal 1\n"

_FAMILY = b"podkeeper journal "
_MARK = b"\xf5pk1"  # 0xf5 never occurs in UTF-8, so a search for marks in damaged entries finds few false ones
_HEAD = struct.Struct("<4sIIi")
_SUMMED = struct.Struct("<Ii")  # the part of the header that the checksum covers
_DROPPED = -1


class Damage(Enum):
    """The kind of damage."""

    NONE = "none"
    TAIL = "the end is torn"
    MIDDLE = "a record before the end is invalid"


@dataclass(frozen=True, slots=True)
class ParsedRecords:
    """The entries that could be read, and the position of the damage (without damage: the end of the file)."""

    entries: dict[str, bytes]
    end: int
    damage: Damage = Damage.NONE


class OtherVersion(ValueError):
    """The file has an unsupported version. The message is that version."""


def encode(key: str, value: bytes | None) -> bytes:
    """Return one record. Without a value, the key is dropped."""
    name = key.encode()
    body = name if value is None else name + value
    summed = _SUMMED.pack(len(name), _DROPPED if value is None else len(value))
    return _HEAD.pack(_MARK, zlib.crc32(body, zlib.crc32(summed)), *_SUMMED.unpack(summed)) + body


def encode_all(entries: Mapping[str, bytes]) -> bytes:
    """Return a whole file with exactly these entries."""
    return HEADER + b"".join(encode(key, value) for key, value in entries.items())


def record_size(key: str, value: bytes) -> int:
    """Return the number of bytes that an entry takes in the file."""
    return _HEAD.size + len(key.encode()) + len(value)


def read(data: bytes) -> ParsedRecords:
    """Parse a file. Raises OtherVersion. The result describes any other damage."""
    if not data.startswith(HEADER):
        return _read_without_header(data)
    entries, end = _replay(data, len(HEADER))
    if end == len(data):
        return ParsedRecords(entries, end)
    # A crash during a write only tears the end. A valid record behind the gap means that the disk changed older data.
    return ParsedRecords(entries, end, Damage.MIDDLE if _record_after(data, end) else Damage.TAIL)


def _read_without_header(data: bytes) -> ParsedRecords:
    """Parse a file whose first line is not the header: truncated, damaged, or of another version."""
    if HEADER.startswith(data):
        return ParsedRecords({}, 0, Damage.TAIL if data else Damage.NONE)
    if _record_at(data, len(HEADER)) is not None:  # only the version line is damaged
        entries, _ = _replay(data, len(HEADER))
        return ParsedRecords(entries, 0, Damage.MIDDLE)
    version = data[len(_FAMILY) :].partition(b"\n")[0]
    if data.startswith(_FAMILY) and version.isdigit():
        raise OtherVersion(version.decode())
    return ParsedRecords({}, 0, Damage.MIDDLE)


def _replay(data: bytes, start: int) -> tuple[dict[str, bytes], int]:
    """Return the entries from a position on, and the end of the last valid record."""
    entries: dict[str, bytes] = {}
    while found := _record_at(data, start):
        key, value, start = found
        if value is None:
            entries.pop(key, None)
        else:
            entries[key] = value
    return entries, start


def _record_at(data: bytes, start: int) -> tuple[str, bytes | None, int] | None:
    """Return key, value and end of the record at a position, None if there is no valid one."""
    if len(data) - start < _HEAD.size:
        return None
    mark, checksum, key_length, value_length = _HEAD.unpack_from(data, start)
    body = start + _HEAD.size
    end = body + key_length + max(value_length, 0)
    # Check the lengths before the checksum: a damaged length may point behind the end of the file.
    if mark != _MARK or value_length < _DROPPED or end > len(data):
        return None
    summed = zlib.crc32(_SUMMED.pack(key_length, value_length))
    if zlib.crc32(memoryview(data)[body:end], summed) != checksum:
        return None
    key = data[body : body + key_length].decode(errors="replace")  # valid UTF-8, because the checksum matches
    return key, None if value_length == _DROPPED else data[body + key_length : end], end


def _record_after(data: bytes, start: int) -> bool:
    """Return whether a valid record starts anywhere after a position."""
    position = data.find(_MARK, start + 1)
    while position >= 0:
        if _record_at(data, position) is not None:
            return True
        position = data.find(_MARK, position + 1)
    return False
