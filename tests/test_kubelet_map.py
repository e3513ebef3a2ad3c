"""The names in docs/kubelet-map.md exist: modules, functions, tests and table rows."""

import importlib
import re
from pathlib import Path

import pytest

import podkeeper

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "kubelet-map.md"
FIRST_PARTS, _, NOTES = PAGE.read_text().partition("## Tests of the behaviours in the kubelet notes")
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split(" | "))
    for line in NOTES.splitlines()
    if line.startswith("| ") and not line.startswith("| in the notes")
]
NAME_ROWS = [
    row[1]
    for table in re.findall(r"(?<=\| Go \| ours \|\n\|---\|---\|\n)(?:\| .*\n)+", FIRST_PARTS)
    for line in table.splitlines()
    if len(row := [cell.strip() for cell in line.strip("|").split(" | ")]) == 2
]
PACKAGES = "|".join(sorted(path.parent.name for path in Path(podkeeper.__file__).parent.glob("*/__init__.py")))


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def exists(name: str) -> bool:
    """Return whether a dotted name inside the package exists."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(["podkeeper", *parts[:length]]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def is_beside(name: str, dotted: str) -> bool:
    """Return whether the module or the class of a dotted name, or that name itself, has the other name."""
    parts = dotted.split(".")
    return any(exists(".".join([*parts[:length], name])) for length in range(len(parts), 0, -1))


def is_tested(reference: str) -> bool:
    """Return whether a test file has a test or table row with this name."""
    path, _, what = reference.partition("::")
    text = (TESTS / path).read_text() if (TESTS / path).is_file() else ""
    return bool(text) and (f"def {what}(" in text if not what.startswith('"') else what in text)


def test_every_dotted_name_in_the_first_parts_exists() -> None:
    found = [name for name in names(FIRST_PARTS) if re.fullmatch(rf"(?:{PACKAGES})\.[\w.]+", name)]
    assert len(found) > 100
    assert [name for name in found if not exists(name)] == []


@pytest.mark.parametrize("ours", NAME_ROWS)
def test_every_name_that_differs_exists(ours: str) -> None:
    module = ""
    for name in names(ours.partition(". ")[0]):
        if re.match(rf"(?:{PACKAGES})\.", name):
            module = name
        else:
            assert is_beside(name, module), f"{name} does not exist in {module}"


def test_every_row_has_three_cells() -> None:
    assert len(ROWS) > 100
    assert [row for row in ROWS if len(row) != 3 or not all(row)] == []


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:60] for row in ROWS])
def test_every_function_and_every_test_exists(row: tuple[str, str, str]) -> None:
    dotted = [name for name in names(row[1]) if "." in name]
    if "(snake case)" in row[1]:
        dotted = [f"{dotted[0]}.{re.sub(r'(?<!^)(?=[A-Z])', '_', name).lower()}" for name in names(row[0])]
    assert [name for name in dotted if not exists(name)] == []
    references = names(row[2])
    assert references
    assert [name for name in references if not is_tested(name)] == []
