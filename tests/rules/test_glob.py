"""Shell patterns over one word, as Go's filepath.Match reads them."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.rules.glob import matches

CASES = {
    # pattern, text -> whether it matches
    "a word is itself":                         ("abc", "abc", True),
    "a word is no other":                       ("abc", "abd", False),
    "all of the text must match":               ("abc", "abcd", False),
    "all of the pattern must match":            ("abcd", "abc", False),
    "nothing matches nothing":                  ("", "", True),
    "a star takes all":                         ("*", "abc", True),
    "a star takes nothing":                     ("abc*", "abc", True),
    "a star stands in front":                   ("*-good", "very-good", True),
    "a star takes more if it must":             ("*ab", "aab", True),
    "two stars share":                          ("a*b*c", "aXbXbXc", True),
    "two stars cannot share what is not there": ("a*b*c", "aXc", False),
    "a question mark takes one":                ("a?c", "abc", True),
    "a question mark takes no less":            ("abc?", "abc", False),
    "a class takes one of it":                  ("reg[0-9]", "reg7", True),
    "a class takes no other":                   ("reg[0-9]", "regx", False),
    "a class with two ranges":                  ("[a-cx-z]", "y", True),
    "a class turned round":                     ("[^a-c]", "d", True),
    "a class turned round takes no member":     ("[^a-c]", "b", False),
    "a backslash makes a star a star":          ("a\\*", "a*", True),
    "a backslash makes a star nothing else":    ("a\\*", "ab", False),
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
def test_stars_and_question_marks_mean_what_a_regular_expression_says(pattern: str, text: str) -> None:
    expression = "".join({"*": ".*", "?": "."}.get(each, each) for each in pattern)
    assert matches(pattern, text) is (re.fullmatch(expression, text) is not None)


@given(st.text("ab*?[]^-\\", max_size=12), st.text("ab-]", max_size=8))
def test_no_pattern_raises(pattern: str, text: str) -> None:
    assert matches(pattern, text) in (True, False)


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    began = time.perf_counter()
    assert not matches("*a" * 60 + "b", "a" * 250)
    assert time.perf_counter() - began < 1
