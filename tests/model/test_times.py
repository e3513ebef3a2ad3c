"""Times: Kubernetes' parsing and formatting."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.errors import BadInput
from podkeeper.model.times import format_micro_time, format_time, instant, parse_micro_time, parse_time

INSTANTS = {
    "whole seconds": ("2000-01-31T23:59:59Z", "2000-01-31T23:59:59.000000Z"),
    "a fraction": ("2000-01-31T03:59:59.5Z", "2000-01-31T03:59:59.500000Z"),
    "a comma before the fraction": ("2000-01-31T03:59:59,5Z", "2000-01-31T03:59:59.500000Z"),
    "nanoseconds are cut": ("2000-01-31T03:59:59.123456789012Z", "2000-01-31T03:59:59.123456Z"),
    "one digit for the hour": ("2000-01-31T3:59:59Z", "2000-01-31T03:59:59.000000Z"),
    "east of Greenwich": ("2000-01-31T03:59:59+02:00", "2000-01-31T01:59:59.000000Z"),
    "west of Greenwich": ("2000-01-31T03:59:59-02:30", "2000-01-31T06:29:59.000000Z"),
    "an offset of a day": ("2000-01-31T03:59:59+24:00", "2000-01-30T03:59:59.000000Z"),
    "an offset of sixty minutes": ("2000-01-31T03:59:59+23:60", "2000-01-30T03:59:59.000000Z"),
    "a leap day": ("2000-02-29T03:59:59Z", "2000-02-29T03:59:59.000000Z"),
    "the first second": ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z"),
    "the last second": ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59.000000Z"),
}  # fmt: skip


@pytest.mark.parametrize("text, micro", INSTANTS.values(), ids=INSTANTS.keys())
def test_times_are_parsed_as_in_go(text: str, micro: str) -> None:
    moment = parse_time(text)
    assert (format_micro_time(moment), format_time(moment)) == (micro, f"{micro[:19]}Z")
    assert moment.tzinfo is UTC


NO_TIMES = (
    "", "2000-01-31", "2000-01-31T03:59Z", "2000-01-31T03:59:59", "2000-01-31 03:59:59Z", "2000-01-31t03:59:59Z",
    "2000-01-31T03:59:59z", "2000-01-31T03:59:59.Z", "2000-01-31T03:59:60Z", "2000-01-31T24:00:00Z",
    "2000-01-31T03:60:00Z", "2000-02-30T03:59:59Z", "1900-02-29T03:59:59Z", "2000-13-01T03:59:59Z",
    "2000-1-01T03:59:59Z", "2000-01-1T03:59:59Z", "10000-01-01T00:00:00Z", "2000-01-31T03:59:59+25:00",
    "2000-01-31T03:59:59+00:61", "2000-01-31T03:59:59+0200", "2000-01-31T03:59:59Z ", "٢٠٠٠-01-31T03:59:59Z",
    "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00",
)  # fmt: skip


@pytest.mark.parametrize("text", NO_TIMES)
def test_a_malformed_time_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match=r"RFC 3339 format \(e\.g\. 2000-01-31T23:59:59Z\)"):
        parse_time(text)


def test_a_micro_time_carries_exactly_six_digits() -> None:
    moment = datetime(2000, 1, 31, 3, 59, 59, 123456, UTC)
    assert parse_micro_time("2000-01-31T03:59:59.123456Z") == moment
    assert parse_micro_time("2000-01-31T05:59:59,123456+02:00") == moment
    for fraction in ("", ".5", ".1234567"):
        with pytest.raises(BadInput, match=r"RFC 3339 format \(e\.g\. 2000-01-31T23:59:59\.000000Z\)"):
            parse_micro_time(f"2000-01-31T03:59:59{fraction}Z")


def test_absent_and_zero_times_are_none() -> None:
    assert instant(None) is None
    assert instant("0001-01-01T00:00:00Z") is None
    assert instant("2000-01-31T00:00:00Z") == datetime(2000, 1, 31, tzinfo=UTC)


@given(st.datetimes(timezones=st.just(UTC)))
def test_times_survive_the_wire(moment: datetime) -> None:
    assert parse_micro_time(format_micro_time(moment)) == moment
    assert parse_time(format_time(moment)) == moment.replace(microsecond=0)
