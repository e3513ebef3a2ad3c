"""The grace of a whole pod, and how long a killer waits."""

from itertools import product

import pytest

from podkeeper.rules.grace import Grace, effective_grace, kill_pod_timeout

AGREED = [None, 1, 2, 5, 30]
WISHES = [None, -1, 0, 1, 2, 5, 30, 60]

CASES = {
    "nobody says anything: the least there is":        ((None, None, None, None), Grace(1, changed=False)),
    "the spec speaks when nobody else does":           ((None, None, None, 30), Grace(30, changed=False)),
    "the deletion outranks the spec":                  ((None, 60, None, 30), Grace(60, changed=False)),
    "the killer may be in more of a hurry":            ((None, 60, 5, 30), Grace(5, changed=False)),
    "the killer may not be in less of a hurry":        ((None, 5, 60, 30), Grace(5, changed=False)),
    "an agreed grace is shortened":                    ((30, 10, None, 60), Grace(10, changed=True)),
    "an agreed grace is not lengthened":               ((10, 30, None, 60), Grace(10, changed=False)),
    "an agreed grace silences the spec":               ((10, None, None, 5), Grace(10, changed=False)),
    "at once still means a second":                    ((None, None, 0, 30), Grace(1, changed=False)),
    "less than nothing too":                           ((None, None, -5, 30), Grace(1, changed=False)),
    "deletion at once, then a killer with more time":  ((5, 0, 10, None), Grace(10, changed=True)),
    "agreed on a second, and told so again":           ((1, None, 0, None), Grace(1, changed=False)),
}  # fmt: skip


@pytest.mark.parametrize("given, expected", CASES.values(), ids=CASES.keys())
def test_effective_grace(given: tuple[int | None, int | None, int | None, int | None], expected: Grace) -> None:
    agreed, deletion, override, spec = given
    grace = effective_grace(agreed, deletion_seconds=deletion, override_seconds=override, spec_seconds=spec)
    assert grace == expected


def test_a_grace_never_grows_unless_the_deletion_says_at_once() -> None:
    for agreed, deletion, override, spec in product([1, 2, 5, 30], WISHES, WISHES, WISHES):
        grace = effective_grace(agreed, deletion_seconds=deletion, override_seconds=override, spec_seconds=spec)
        assert grace.seconds <= agreed or deletion == 0


def test_a_grace_is_at_least_a_second_and_says_when_it_changed() -> None:
    for agreed, deletion, override, spec in product(AGREED, WISHES, WISHES, WISHES):
        grace = effective_grace(agreed, deletion_seconds=deletion, override_seconds=override, spec_seconds=spec)
        assert grace.seconds >= 1
        assert grace.changed == (agreed is not None and grace.seconds != agreed)


def test_asking_for_the_same_again_changes_nothing_unless_something_said_at_once() -> None:
    for agreed, deletion, override, spec in product(AGREED, WISHES, WISHES, WISHES):
        if 0 in (deletion, override):
            continue
        once = effective_grace(agreed, deletion_seconds=deletion, override_seconds=override, spec_seconds=spec)
        again = effective_grace(once.seconds, deletion_seconds=deletion, override_seconds=override, spec_seconds=spec)
        assert again == Grace(once.seconds, changed=False)


TIMEOUTS = {
    "half as long again as the grace":      ((None, 30), 45),
    "the override counts before the spec":  ((60, 5), 90),
    "an override of 0 counts too":          ((0, 600), 10),
    "at least ten seconds":                 ((None, 6), 10),
    "no grace known":                       ((None, None), 10),
    "halves are cut off":                   ((15, None), 22),
    "nonsense is no reason to hang":        ((-100, None), 10),
}  # fmt: skip


@pytest.mark.parametrize("given, seconds", TIMEOUTS.values(), ids=TIMEOUTS.keys())
def test_kill_pod_timeout(given: tuple[int | None, int | None], seconds: int) -> None:
    assert kill_pod_timeout(*given) == seconds
