"""The grace period of a pod, and the time limit for a kill."""

from itertools import product

import pytest

from podkeeper.rules.grace import Grace, effective_grace, kill_pod_timeout

CURRENT = [None, 1, 2, 5, 30]
REQUESTED = [None, -1, 0, 1, 2, 5, 30, 60]

CASES = {
    "nothing is set: one second":                              ((None, None, None, None), Grace(1, changed=False)),
    "the spec counts if nothing else is set":                  ((None, None, None, 30), Grace(30, changed=False)),
    "the deletion takes precedence over the spec":             ((None, 60, None, 30), Grace(60, changed=False)),
    "the kill may shorten it":                                 ((None, 60, 5, 30), Grace(5, changed=False)),
    "the kill may not extend it":                              ((None, 5, 60, 30), Grace(5, changed=False)),
    "the current grace period is shortened":                   ((30, 10, None, 60), Grace(10, changed=True)),
    "the current grace period is not extended":                ((10, 30, None, 60), Grace(10, changed=False)),
    "the current grace period takes precedence over the spec": ((10, None, None, 5), Grace(10, changed=False)),
    "zero counts as one second":                               ((None, None, 0, 30), Grace(1, changed=False)),
    "a negative value counts as one second":                   ((None, None, -5, 30), Grace(1, changed=False)),
    "a deletion with zero, then a longer kill":                ((5, 0, 10, None), Grace(10, changed=True)),
    "one second, and zero again":                              ((1, None, 0, None), Grace(1, changed=False)),
}  # fmt: skip


@pytest.mark.parametrize("given, expected", CASES.values(), ids=CASES.keys())
def test_effective_grace(given: tuple[int | None, int | None, int | None, int | None], expected: Grace) -> None:
    current, deletion, override, spec = given
    grace = effective_grace(current, deletion_seconds=deletion, override_seconds=override, spec_seconds=spec)
    assert grace == expected


def test_a_grace_period_never_becomes_longer_unless_the_deletion_has_zero() -> None:
    for current, deletion, override, spec in product([1, 2, 5, 30], REQUESTED, REQUESTED, REQUESTED):
        grace = effective_grace(current, deletion_seconds=deletion, override_seconds=override, spec_seconds=spec)
        assert grace.seconds <= current or deletion == 0


def test_a_grace_period_is_at_least_one_second_and_reports_a_change() -> None:
    for current, deletion, override, spec in product(CURRENT, REQUESTED, REQUESTED, REQUESTED):
        grace = effective_grace(current, deletion_seconds=deletion, override_seconds=override, spec_seconds=spec)
        assert grace.seconds >= 1
        assert grace.changed == (current is not None and grace.seconds != current)


def test_repeated_values_change_nothing_unless_one_is_zero() -> None:
    for current, deletion, override, spec in product(CURRENT, REQUESTED, REQUESTED, REQUESTED):
        if 0 in (deletion, override):
            continue
        once = effective_grace(current, deletion_seconds=deletion, override_seconds=override, spec_seconds=spec)
        again = effective_grace(once.seconds, deletion_seconds=deletion, override_seconds=override, spec_seconds=spec)
        assert again == Grace(once.seconds, changed=False)


TIMEOUTS = {
    "one and a half times the grace period":       ((None, 30), 45),
    "the override takes precedence over the spec": ((60, 5), 90),
    "an override of 0 counts, too":                ((0, 600), 10),
    "at least ten seconds":                        ((None, 6), 10),
    "no grace period":                             ((None, None), 10),
    "half seconds are cut off":                    ((15, None), 22),
    "a negative value":                            ((-100, None), 10),
}  # fmt: skip


@pytest.mark.parametrize("given, seconds", TIMEOUTS.values(), ids=TIMEOUTS.keys())
def test_kill_pod_timeout(given: tuple[int | None, int | None], seconds: int) -> None:
    assert kill_pod_timeout(*given) == seconds
