"""The journal's format: written records are read back, and damage is classified."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.journal.records import HEADER, Damage, OtherVersion, ParsedRecords, encode, encode_all, read, record_size

ENTRIES = {"status/a": b'{"phase":"Running"}', "pod/ü": b"", "seen/": bytes(range(256))}
WHOLE = encode_all(ENTRIES)
FIRST = len(HEADER) + record_size("status/a", ENTRIES["status/a"])
SECOND = FIRST + record_size("pod/ü", b"")


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.binary()))
def test_written_entries_are_read_back(entries: dict[str, bytes]) -> None:
    data = encode_all(entries)
    assert read(data) == ParsedRecords(entries, len(data))
    assert len(data) == len(HEADER) + sum(record_size(key, value) for key, value in entries.items())


def parsed(entries: int, end: int, damage: Damage) -> ParsedRecords:
    """Return the first few entries."""
    return ParsedRecords({key: ENTRIES[key] for key in list(ENTRIES)[:entries]}, end, damage)


LATER = encode("seen/", b"1") + encode("pod/ü", None) + encode("status/a", None)
CASES = {
    "an empty file is an empty journal": (b"", ParsedRecords({}, 0)),
    "a first line alone is an empty journal": (HEADER, ParsedRecords({}, len(HEADER))),
    "an incomplete first line is torn": (HEADER[:7], parsed(0, 0, Damage.TAIL)),
    "the last record of a key counts": (WHOLE + LATER, ParsedRecords({"seen/": b"1"}, len(WHOLE + LATER))),
    "an incomplete record is torn": (WHOLE[:-1], parsed(2, SECOND, Damage.TAIL)),
    "zeros at the end, as after a power cut, are torn": (WHOLE + bytes(4096), parsed(3, len(WHOLE), Damage.TAIL)),
    "rubbish at the end is torn": (WHOLE + b"\xf5pk1 rubbish" * 9, parsed(3, len(WHOLE), Damage.TAIL)),
    "an invalid last record is torn": (flipped(WHOLE, len(WHOLE) - 5), parsed(2, SECOND, Damage.TAIL)),
    "an invalid record before a valid one is damage": (flipped(WHOLE, FIRST + 3), parsed(1, FIRST, Damage.MIDDLE)),
    "a wrong length before a valid record is damage": (flipped(WHOLE, FIRST + 8), parsed(1, FIRST, Damage.MIDDLE)),
    "a damaged first line loses no entry": (flipped(WHOLE, 3), parsed(3, 0, Damage.MIDDLE)),
    "a damaged version loses no entry": (flipped(WHOLE, len(HEADER) - 2), parsed(3, 0, Damage.MIDDLE)),
    "other content is damage": (b"SQLite format 3\0" + bytes(100), parsed(0, 0, Damage.MIDDLE)),
}  # fmt: skip


@pytest.mark.parametrize("data, expected", CASES.values(), ids=CASES.keys())
def test_complete_and_damaged_records_are_parsed(data: bytes, expected: ParsedRecords) -> None:
    assert read(data) == expected


def test_another_version_is_not_damage() -> None:
    with pytest.raises(OtherVersion, match="12"):
        read(b"podkeeper journal 12\nwhatever that may mean")


def test_every_flipped_bit_is_detected() -> None:
    for place in range(len(WHOLE)):
        reading = read(flipped(WHOLE, place))
        assert reading.damage is not Damage.NONE
        assert reading.entries.items() <= ENTRIES.items()
        assert list(reading.entries) == list(ENTRIES)[: len(reading.entries)]


def record(key: bytes, value_length: int, value: bytes = b"", mark: bytes = b"\xf5pk1") -> bytes:
    """A record with a correct checksum, built without the code under test."""
    summed = struct.pack("<Ii", len(key), value_length) + key + value
    return mark + struct.pack("<I", zlib.crc32(summed)) + summed


def test_the_bytes_of_a_record() -> None:
    assert HEADER == b"podkeeper journal 1\n"
    assert encode("kü", b"value") == record("kü".encode(), 5, b"value")
    assert encode("k", b"") == record(b"k", 0)
    assert encode("k", None) == record(b"k", -1)
    assert encode_all({"k": b"v", "": b""}) == HEADER + record(b"k", 1, b"v") + record(b"", 0)
    assert read(HEADER + record(b"k", 1, b"v") + record(b"", 0)).entries == {"k": b"v", "": b""}
    assert record_size("kü", b"value") == 4 + 4 + 4 + 4 + 3 + 5


GOOD = record(b"k", 1, b"v")
MORE_CASES = {
    "a key may be dropped that was never written": (HEADER + record(b"x", -1) + GOOD, {"k": b"v"}, None, Damage.NONE),
    "a length below that of a dropped key": (HEADER + record(b"k", -2), {}, 20, Damage.TAIL),
    "such a length before a valid record": (HEADER + record(b"k", -2) + GOOD, {}, 20, Damage.MIDDLE),
    "another mark": (HEADER + GOOD + record(b"k", 1, b"w", b"\xf5pk2"), {"k": b"v"}, 38, Damage.TAIL),
    "a record of a head alone": (HEADER + record(b"", 0), {"": b""}, None, Damage.NONE),
    "a head without its last byte": (HEADER + record(b"", 0)[:-1], {}, 20, Damage.TAIL),
    "a byte between two records": (HEADER + GOOD + b"x" + GOOD, {"k": b"v"}, 38, Damage.MIDDLE),
    "a false mark and then a record": (HEADER + b"x\xf5pk1\xf5pk1" + GOOD, {}, 20, Damage.MIDDLE),
    "a first line without its end": (HEADER[:-1], {}, 0, Damage.TAIL),
    "a version that is not a number": (b"podkeeper journal x\n", {}, 0, Damage.MIDDLE),
    "a version without a number": (b"podkeeper journal \n2", {}, 0, Damage.MIDDLE),
    "a number after another first word": (b"podkeeping journal 2\n", {}, 0, Damage.MIDDLE),
    "records behind a first line of another version": (
        b"podkeeper journal 2\n" + GOOD, {"k": b"v"}, 0, Damage.MIDDLE),
}  # fmt: skip


@pytest.mark.parametrize("data, entries, end, damage", MORE_CASES.values(), ids=MORE_CASES.keys())
def test_unusual_records_are_parsed(data: bytes, entries: dict[str, bytes], end: int | None, damage: Damage) -> None:
    assert read(data) == ParsedRecords(entries, len(data) if end is None else end, damage)


@pytest.mark.parametrize("version", ["2", "12", "0"])
def test_the_error_names_the_unsupported_version(version: str) -> None:
    with pytest.raises(OtherVersion) as raised:
        read(f"podkeeper journal {version}\nwhatever that may mean\n".encode())
    assert str(raised.value) == version
