"""The example in docs/testing.md runs, and it detects the bug that the page describes."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parent.parent.parent / "docs" / "testing.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def names(code: str) -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "/checkout/tests/test_gauge.py", "exec"), found)
    return found


@pytest.mark.parametrize("test", ["test_every_event_at_every_await", "test_every_call_fails_once"])
def test_the_example_runs(test: str) -> None:
    names(EXAMPLE)[test]()


def test_without_its_lock_the_example_fails_as_described() -> None:
    assert "async with self._lock:" in EXAMPLE
    racy = names(EXAMPLE.replace("async with self._lock:", "if True:"))
    (report,) = re.findall(r"```text\n(.*?)\n```", PAGE, flags=re.DOTALL)
    with pytest.raises(AssertionError, match=re.escape(report)):
        racy["test_every_event_at_every_await"]()
