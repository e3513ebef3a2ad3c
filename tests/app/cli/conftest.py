"""A house for each test that asks for one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.local.house import House, house


@pytest.fixture
def it(tmp_path: Path) -> Iterator[House]:
    with house(tmp_path) as made:
        yield made
