"""Durations: parsing and formatting as in Go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.durations import format_duration, parse_duration, seconds_of
from podkeeper.model.errors import BadInput

SECOND = 1_000_000_000

# The results of Go's time.ParseDuration and Duration.String.
DURATIONS = {
    "zero": ("0", 0, "0s"),
    "minus zero": ("-0", 0, "0s"),
    "a minute and a half": ("90s", 90 * SECOND, "1m30s"),
    "an hour": ("60m", 3600 * SECOND, "1h0m0s"),
    "several terms": ("1h15m30.918s", 4_530_918_000_000, "1h15m30.918s"),
    "the same unit twice": ("1s1s", 2 * SECOND, "2s"),
    "half an hour": (".5h", 1800 * SECOND, "30m0s"),
    "a point without a fraction": ("1.s", SECOND, "1s"),
    "milliseconds": ("100ms", 100_000_000, "100ms"),
    "microseconds in three spellings": ("1us1µs1μs", 3_000, "3µs"),
    "less than a microsecond": ("999ns", 999, "999ns"),
    "a part of a microsecond": ("1.5us", 1_500, "1.5µs"),
    "negative": ("-1.5s", -1_500_000_000, "-1.5s"),
    "a fraction is cut to nanoseconds": ("0.9999999999s", 999_999_999, "999.999999ms"),
    "more digits than count": ("0.1000000000000000000000000000000000001h", 360 * SECOND, "6m0s"),
    "the longest": ("9223372036854775807ns", 2**63 - 1, "2562047h47m16.854775807s"),
    "the longest into the past": ("-9223372036854775808ns", -(2**63), "-2562047h47m16.854775808s"),
}


@pytest.mark.parametrize("text, nanoseconds, written", DURATIONS.values(), ids=DURATIONS.keys())
def test_a_duration_is_read_and_written_as_in_go(text: str, nanoseconds: int, written: str) -> None:
    assert parse_duration(text) == nanoseconds
    assert format_duration(nanoseconds) == written


@pytest.mark.parametrize(
    "text",
    ["", "-", "5", "1h5", "1d", "1S", ".s", "1e3s", " 1s", "1s ", "9223372036854775808ns", "3000000h", "1" * 5000],
)
def test_a_malformed_duration_is_rejected(text: str) -> None:
    with pytest.raises(BadInput, match=r"Invalid value: .*: must be a duration"):
        parse_duration(text)


@given(st.integers(-(2**63), 2**63 - 1) | st.integers(-3600 * SECOND, 3600 * SECOND))
def test_formatted_durations_parse_to_the_same_value(nanoseconds: int) -> None:
    assert parse_duration(format_duration(nanoseconds)) == nanoseconds


def test_seconds_for_timers() -> None:
    assert seconds_of("1m0.5s") == 60.5
