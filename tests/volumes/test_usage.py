"""Volumes that exceed their limit: exact limits, and the time between measurements."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeeper.model.messages import PodUID
from podkeeper.model.quantity import parse_quantity
from podkeeper.volumes.usage import LimitedVolume, Overuse, measure, overused

UID = PodUID("uid-1")


def limited(path: Path, limit: int, volume: str = "data") -> LimitedVolume:
    return LimitedVolume(UID, volume, str(path), parse_quantity(str(limit)))


@pytest.fixture
def used(tmp_path: Path) -> int:
    """Create a file and return its size on disk."""
    (tmp_path / "file").write_bytes(b"x" * 8192)
    return (tmp_path / "file").stat().st_blocks * 512


def test_a_volume_exceeds_its_limit_only_above_it(tmp_path: Path, used: int) -> None:
    limits = [used - 1, used, used + 1]
    found = [overused([limited(tmp_path, limit)]) for limit in limits]
    assert found == [(Overuse(UID, "data", used, parse_quantity(str(used - 1))),), (), ()]


def test_a_missing_volume_does_not_hide_the_others(tmp_path: Path, used: int) -> None:
    volumes = [limited(tmp_path, 0, "a"), limited(tmp_path / "gone", 0, "gone"), limited(tmp_path, 0, "b")]
    assert overused(volumes) == tuple(Overuse(UID, name, used, parse_quantity("0")) for name in ("a", "b"))


def test_the_message_is_that_of_the_kubelet() -> None:
    message = Overuse(UID, "cache", 2 << 20, parse_quantity("1Mi")).message
    assert message == 'Usage of EmptyDir volume "cache" exceeds the limit "1Mi". '


def test_a_quick_measurement_is_repeated_after_the_period(tmp_path: Path, used: int) -> None:
    over = (Overuse(UID, "data", used, parse_quantity("1")),)
    assert measure([limited(tmp_path, 1)], period_seconds=3600.0) == (over, 3600.0)
    assert measure([]) == ((), 10.0)


def test_a_slow_measurement_is_followed_by_a_pause_a_hundred_times_as_long() -> None:
    spent = 0.0

    def slow() -> Iterator[LimitedVolume]:
        nonlocal spent
        begun = time.monotonic()
        while spent < 0.001:
            spent = time.monotonic() - begun
        yield from ()

    begun = time.monotonic()
    found, pause = measure(slow(), period_seconds=0.0)
    assert found == ()
    assert 100 * spent <= pause <= 100 * (time.monotonic() - begun)
