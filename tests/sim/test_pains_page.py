"""docs/pains.md has every pain, and each test that it names exists and cites its pain."""

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "pains.md"

PAINS = (*range(1, 16), 17, 18, 19, 20, 22, 23, 24, 25, 26)
WITHOUT_A_TEST = (19, 22, 24, 26)  # they do not touch the engine


def rows() -> dict[int, list[str]]:
    """Return the cells of each row of the table, by the number of its pain."""
    found = {}
    for line in PAGE.read_text().splitlines():
        if match := re.match(r"\| (\d+) \|", line):
            found[int(match[1])] = [cell.strip() for cell in line.strip("|").split(" | ")]
    return found


def named_in(number: int) -> list[tuple[str, str]]:
    """Return the tests that a row names: (file, name)."""
    return re.findall(r"`(\w+\.py)::(\w+)`", rows()[number][3])


def docstrings() -> dict[tuple[str, str], str]:
    """Return all scenarios with their docstrings."""
    return {
        (path.name, node.name): ast.get_docstring(node) or ""
        for path in sorted(HERE.glob("test_pain_*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_pain_is_on_the_page() -> None:
    assert tuple(rows()) == PAINS
    assert all(len(cells) == 4 and all(cells) for cells in rows().values())


@pytest.mark.parametrize("number", PAINS)
def test_a_row_names_existing_tests_that_cite_its_pain(number: int) -> None:
    named, there = named_in(number), docstrings()
    assert bool(named) is (number not in WITHOUT_A_TEST)
    assert [test for test in named if test not in there] == []
    assert [test for test in named if not there[test].startswith(f"Pain {number}:")] == []


def test_every_scenario_is_on_the_page() -> None:
    named = {test for number in PAINS for test in named_in(number)}
    assert sorted(docstrings().keys() - named) == []
