import pytest

from podkeeper.rules.resource_version import is_newer, is_older, version_number

LONGEST = "9" * 40


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0", 0), ("17", 17), ("007", 7), (LONGEST, int(LONGEST)), ("9" * 41, None)]
    + [(text, None) for text in ("", " 1", "-1", "1.0", "0x1", "²", "٣", "abc")],
)
def test_a_version_is_a_number_of_at_most_40_ascii_digits(version: str, expected: int | None) -> None:
    assert version_number(version) == expected


COMPARED = {
    "smaller": ("9", "10", True, False),
    "greater": ("10", "9", False, True),
    "equal": ("10", "10", False, False),
    "no number, another text": ("a", "b", False, True),
    "no number, the same text": ("a", "a", False, False),
    "a number and a text": ("1", "a", False, True),
    "an empty text and a number": ("", "1", False, True),
}


@pytest.mark.parametrize(("version", "than", "older", "newer"), COMPARED.values(), ids=COMPARED.keys())
def test_versions_are_compared_as_numbers_or_not_at_all(version: str, than: str, older: bool, newer: bool) -> None:
    assert (is_older(version, than), is_newer(version, than)) == (older, newer)
