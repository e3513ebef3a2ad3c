"""Active deadlines, compared with the rule applied to every pod."""

import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.engine.deadlines import ActiveDeadlines
from podkeeper.engine.status import StatusManager
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.model.times import format_time
from podkeeper.rules.evict import deadline_eviction
from tests.doubles import stand_in
from tests.engine.loop_harness import pod

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
WEB = PodUID("web")


class Harness:
    """Active deadlines with a manual clock and a dictionary of statuses."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.statuses: dict[PodUID, PodStatus] = {}
        self.terminating: set[PodUID] = set()
        self.deadlines = ActiveDeadlines(
            statuses=stand_in(StatusManager, self), is_terminating=self.terminating.__contains__, clock=self
        )

    def now(self) -> datetime:
        return BEGINNING + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    def fraction(self) -> float:
        return 0.0

    def get_pod_status(self, uid: PodUID) -> PodStatus | None:
        return self.statuses.get(uid)


def started(after_seconds: float) -> str:
    return format_time(BEGINNING + timedelta(seconds=after_seconds))


def test_a_pod_is_past_its_deadline_from_the_exact_time_on() -> None:
    harness = Harness()
    harness.deadlines.follow(pod("web", deadline=10, status=PodStatus(start_time=started(0))))
    assert (harness.deadlines.past(), harness.deadlines.seconds_to_next()) == ([], 10.0)
    for harness.seconds in (10, 11, 500):
        assert (harness.deadlines.past(), harness.deadlines.seconds_to_next()) == ([WEB], 1.0)


def test_a_pod_added_twice_is_past_its_deadline_once() -> None:
    harness = Harness()
    for _ in range(2):
        harness.deadlines.follow(pod("web", deadline=10, status=PodStatus(start_time=started(0))))
    harness.seconds = 20
    assert harness.deadlines.past() == [WEB]


def test_a_terminating_pod_is_checked_again_after_a_minute() -> None:
    harness = Harness()
    harness.deadlines.follow(pod("web", deadline=10, status=PodStatus(start_time=started(0))))
    harness.terminating.add(WEB)
    harness.seconds = 20
    assert (harness.deadlines.past(), harness.deadlines.seconds_to_next()) == ([], 60.0)
    harness.terminating.clear()
    harness.seconds = 80
    assert harness.deadlines.past() == [WEB]


def test_without_deadlines_there_is_no_next_check() -> None:
    harness = Harness()
    harness.deadlines.follow(pod("web"))
    assert harness.deadlines.seconds_to_next() is None
    harness.deadlines.follow(pod("web", deadline=10, status=PodStatus(start_time=started(0))))
    harness.deadlines.forget(WEB)
    assert harness.deadlines.seconds_to_next() is None


ODD = {
    "no start time": pod("web", deadline=10),
    "an invalid start time": pod("web", deadline=10, status=PodStatus(start_time="yesterday")),
    "a deadline beyond the largest date": pod("web", deadline=2**63 - 1, status=PodStatus(start_time=started(0))),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_a_pod_without_a_computable_deadline_is_checked_again(odd: Pod) -> None:
    harness = Harness()
    harness.deadlines.follow(odd)
    harness.seconds = 5
    assert (harness.deadlines.past(), harness.deadlines.seconds_to_next()) == ([], 5.0)


WAITS = {  # seconds until the deadline, and until the next call
    "one second past": (-1.0, 1.0),
    "right now": (0.0, 1.0),
    "just ahead": (0.5, 0.5),
    "less than a minute ahead": (59.0, 59.0),
    "a minute ahead": (60.0, 60.0),
    "more than a minute ahead": (61.0, 60.0),
}


@pytest.mark.parametrize("ahead, wait", WAITS.values(), ids=WAITS.keys())
def test_the_wait_ends_at_the_next_deadline_or_after_a_minute(ahead: float, wait: float) -> None:
    harness = Harness()
    harness.deadlines.follow(pod("later", deadline=500, status=PodStatus(start_time=started(0))))
    harness.deadlines.follow(pod("web", deadline=100, status=PodStatus(start_time=started(0))))
    harness.seconds = 100 - ahead
    assert harness.deadlines.seconds_to_next() == wait


def test_a_pod_that_has_not_started_is_checked_every_five_seconds() -> None:
    harness = Harness()
    harness.deadlines.follow(pod("web", deadline=1))
    harness.statuses[WEB] = PodStatus(start_time=started(1))
    for harness.seconds, past in ((4.9, []), (5.0, [WEB])):
        assert harness.deadlines.past() == past


@pytest.mark.parametrize("deadline_seconds", [5, 20, 50])
def test_a_changed_deadline_replaces_the_former_one(deadline_seconds: int) -> None:
    harness = Harness()
    for each in (20, deadline_seconds):
        harness.deadlines.follow(pod("web", deadline=each, status=PodStatus(start_time=started(0))))
    assert harness.deadlines.seconds_to_next() == deadline_seconds


def test_the_longest_overdue_pod_comes_first_and_terminating_pods_are_skipped() -> None:
    harness = Harness()
    for name, deadline_seconds in {"c": 30, "a": 10, "terminating": 15, "d": 41, "b": 20}.items():
        harness.deadlines.follow(pod(name, deadline=deadline_seconds, status=PodStatus(start_time=started(0))))
    harness.terminating.add(PodUID("terminating"))
    harness.seconds = 40
    for _ in range(2):
        assert (harness.deadlines.past(), harness.deadlines.seconds_to_next()) == (["a", "b", "c"], 1.0)
    harness.seconds = 41
    assert harness.deadlines.past() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("times", [1, 2, 14, 15, 16, 100])
def test_a_pod_that_changes_often_keeps_its_latest_deadline(times: int) -> None:
    harness = Harness()
    for number in reversed(range(times)):
        for name, deadline_seconds in {"e": 50, "d": 40, "c": 30, "b": 20, "a": 10}.items():
            harness.deadlines.follow(
                pod(name, deadline=deadline_seconds + number, status=PodStatus(start_time=started(0)))
            )
    assert harness.deadlines.seconds_to_next() == 10
    for harness.seconds, past in ((9, []), (10, ["a"]), (25, ["a", "b"]), (30, ["a", "b", "c"]), (60, list("abcde"))):
        assert harness.deadlines.past() == past


def test_a_pod_that_changes_often_does_not_leak_memory() -> None:
    harness = Harness()
    web = pod("web", deadline=10)
    tracemalloc.start()
    try:
        for number in range(2000):
            harness.seconds = number / 1000  # each time with another check time
            harness.deadlines.follow(web)
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_a_pod_without_a_uid_is_known_by_the_empty_uid() -> None:
    harness = Harness()
    web = pod("web", deadline=10, status=PodStatus(start_time=started(0)))
    for each in (web, replace(web, metadata=replace(web.metadata, uid=None))):
        harness.deadlines.follow(each)
    harness.seconds = 10
    assert harness.deadlines.past() == ["", "web"]
    harness.deadlines.forget(PodUID(""))
    assert harness.deadlines.past() == ["web"]


STEPS = st.tuples(
    st.sampled_from(["follow", "follow", "forget", "publish"]),
    st.sampled_from("abc"),
    st.sampled_from([None, 5, 10, 20]),
    st.sampled_from([None, 0, 7, 15]),
    st.integers(0, 6),
)


@given(st.lists(STEPS, max_size=40))
def test_the_result_is_the_same_as_checking_every_pod(
    steps: list[tuple[str, str, int | None, int | None, int]],
) -> None:
    harness = Harness()
    pods: dict[str, Pod] = {}
    for step, uid, deadline_seconds, start, pause in steps:
        start_time = None if start is None else started(start)
        match step:
            case "follow":
                pods[uid] = pod(uid, deadline=deadline_seconds, status=PodStatus(start_time=start_time))
                harness.deadlines.follow(pods[uid])
            case "publish" if PodUID(uid) not in harness.statuses:
                # A pod never starts in the future.
                harness.statuses[PodUID(uid)] = PodStatus(start_time=started(harness.seconds))
                harness.deadlines.follow(pods.setdefault(uid, pod(uid)))
            case "forget":
                pods.pop(uid, None)
                harness.deadlines.forget(PodUID(uid))
        harness.seconds += pause
        expected = {
            uid for uid, each in pods.items() if _past(each, harness.get_pod_status(PodUID(uid)), harness.now())
        }
        assert set(harness.deadlines.past()) == expected


def _past(each: Pod, published: PodStatus | None, now: datetime) -> bool:
    return deadline_eviction(each, published, now) is not None
