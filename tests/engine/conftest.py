"""Fixtures that several engine tests use."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test in which the engine logged an error. A test that expects one clears what was logged."""
    yield
    assert [line.getMessage() for line in caplog.records if line.levelno >= logging.ERROR] == []
