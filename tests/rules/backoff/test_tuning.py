"""Backoff curves that annotations of a pod set."""

from datetime import timedelta

import pytest

from podkeeper.rules.backoff.table import DEFAULT_CURVE, MIN_DELAY
from podkeeper.rules.backoff.tuning import BackoffKind, curve_for
from podkeeper.testing.build import pod

CURVES = {
    # annotations -> initial, maximum
    "defaults": ({}, 10, 300),
    "a shorter initial delay": ({"podkeeper.io/restart-backoff-initial": "2s"}, 2, 300),
    "a lower maximum lowers the initial delay": ({"podkeeper.io/restart-backoff-maximum": "5s"}, 5, 5),
    "both": ({"podkeeper.io/restart-backoff-initial": "1m", "podkeeper.io/restart-backoff-maximum": "1h"}, 60, 3600),
    "never below the minimum": ({"podkeeper.io/restart-backoff-initial": "1ms"}, MIN_DELAY.total_seconds(), 300),
    "never negative": ({"podkeeper.io/restart-backoff-maximum": "-5s"}, 1, 1),
    "never more than a day": ({"podkeeper.io/restart-backoff-maximum": "99999h"}, 10, 86400),
    "a zero duration is ignored": ({"podkeeper.io/restart-backoff-initial": "soon"}, 10, 300),
    "the other kind of backoff is not affected": ({"podkeeper.io/pull-backoff-initial": "2s"}, 10, 300),
}  # fmt: skip


@pytest.mark.parametrize("annotations, initial, maximum", CURVES.values(), ids=CURVES.keys())
def test_backoff_curve(annotations: dict[str, str], initial: float, maximum: float) -> None:
    curve = curve_for(pod("web", annotations=annotations), BackoffKind.RESTART, DEFAULT_CURVE)
    assert (curve.initial, curve.maximum) == (timedelta(seconds=initial), timedelta(seconds=maximum))
