"""Fixtures of the volume tests: a state directory of an ordinary user."""

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests.volumes.harness import NOBODY


@pytest.fixture
def root() -> Iterator[str]:
    """A directory that belongs to the user nobody."""
    path = tempfile.mkdtemp(prefix="volumes-", dir="/var/tmp")  # on disk, even if TMPDIR is in memory
    os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path, ignore_errors=True)
