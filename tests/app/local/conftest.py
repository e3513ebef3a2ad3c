"""The fixture `it`: a harness for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.local.harness import Harness, harness


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Harness]:
    with harness(tmp_path) as made:
        yield made
