"""Shell patterns over one word, as in Go's filepath.Match."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.rules.images.glob import matches

CASES = {
    # pattern, text -> whether it matches
    "a word is itself":                         ("abc", "abc", True),
    "a word is no other":                       ("abc", "abd", False),
    "all of the text must match":               ("abc", "abcd", False),
    "all of the pattern must match":            ("abcd", "abc", False),
    "nothing matches nothing":                  ("", "", True),
    "a star matches everything":                         ("*", "abc", True),
    "a star matches nothing":                     ("abc*", "abc", True),
    "a star at the start":                   ("*-good", "very-good", True),
    "a star backtracks":             ("*ab", "aab", True),
    "two stars share":                          ("a*b*c", "aXbXbXc", True),
    "two stars cannot share what is not there": ("a*b*c", "aXc", False),
    "a question mark matches one character":                ("a?c", "abc", True),
    "a question mark does not match nothing":            ("abc?", "abc", False),
    "a class matches a member":                  ("reg[0-9]", "reg7", True),
    "a class does not match others":                   ("reg[0-9]", "regx", False),
    "a class with two ranges":                  ("[a-cx-z]", "y", True),
    "a negated class":                     ("[^a-c]", "d", True),
    "a negated class does not match a member":     ("[^a-c]", "b", False),
    "an escaped star matches a star":          ("a\\*", "a*", True),
    "an escaped star matches nothing else":    ("a\\*", "ab", False),
    "a backslash in a class":                   ("[\\-]", "-", True),
    "an open class matches nothing":            ("[a", "a", False),
    "an empty class matches nothing":           ("[]a]", "]", False),
    "a range without an end matches nothing":   ("[a-]", "a", False),
    "a backslash at the end matches nothing":   ("a\\", "a", False),
}  # fmt: skip


@pytest.mark.parametrize("pattern, text, expected", CASES.values(), ids=CASES.keys())
def test_matches(pattern: str, text: str, expected: bool) -> None:
    assert matches(pattern, text) is expected


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_stars_and_question_marks_match_like_a_regular_expression(pattern: str, text: str) -> None:
    expression = "".join({"*": ".*", "?": "."}.get(each, each) for each in pattern)
    assert matches(pattern, text) is (re.fullmatch(expression, text) is not None)


@given(st.text("ab*?[]^-\\", max_size=12), st.text("ab-]", max_size=8))
def test_no_pattern_raises(pattern: str, text: str) -> None:
    assert matches(pattern, text) in (True, False)


def test_a_pattern_of_many_stars_is_fast() -> None:
    began = time.perf_counter()
    assert not matches("*a" * 60 + "b", "a" * 250)
    assert time.perf_counter() - began < 1
