"""Active deadlines against the simplest thing that could work: asking the rule about every pod."""

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
from tests.engine.loop_house import pod

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
WEB = PodUID("web")


class Desk:
    """Deadlines, a clock that moves when told to, and a status manager that is a dictionary."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.statuses: dict[PodUID, PodStatus] = {}
        self.ending: set[PodUID] = set()
        self.deadlines = ActiveDeadlines(
            status=stand_in(StatusManager, self), is_ending=self.ending.__contains__, clock=self
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


def test_a_pod_is_past_its_deadline_from_that_very_moment_on() -> None:
    desk = Desk()
    desk.deadlines.follow(pod("web", deadline_seconds=10, start_time=started(0)))
    assert (desk.deadlines.past(), desk.deadlines.seconds_to_next()) == ([], 10.0)
    for desk.seconds in (10, 11, 500):
        assert (desk.deadlines.past(), desk.deadlines.seconds_to_next()) == ([WEB], 1.0)


def test_a_pod_that_is_told_of_twice_is_past_its_deadline_once() -> None:
    desk = Desk()
    for _ in range(2):
        desk.deadlines.follow(pod("web", deadline_seconds=10, start_time=started(0)))
    desk.seconds = 20
    assert desk.deadlines.past() == [WEB]


def test_a_pod_that_ends_is_left_alone_until_it_may_have_come_back() -> None:
    desk = Desk()
    desk.deadlines.follow(pod("web", deadline_seconds=10, start_time=started(0)))
    desk.ending.add(WEB)
    desk.seconds = 20
    assert (desk.deadlines.past(), desk.deadlines.seconds_to_next()) == ([], 60.0)
    desk.ending.clear()
    desk.seconds = 80
    assert desk.deadlines.past() == [WEB]


def test_nobody_is_waited_for_when_no_pod_has_a_deadline() -> None:
    desk = Desk()
    desk.deadlines.follow(pod("web"))
    assert desk.deadlines.seconds_to_next() is None
    desk.deadlines.follow(pod("web", deadline_seconds=10, start_time=started(0)))
    desk.deadlines.forget(WEB)
    assert desk.deadlines.seconds_to_next() is None


ODD = {
    "no start time": pod("web", deadline_seconds=10),
    "a start time nobody can read": pod("web", deadline_seconds=10, start_time="yesterday"),
    "a deadline beyond all time": pod("web", deadline_seconds=2**63 - 1, start_time=started(0)),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_a_pod_whose_deadline_cannot_be_told_is_looked_at_again(odd: Pod) -> None:
    desk = Desk()
    desk.deadlines.follow(odd)
    desk.seconds = 5
    assert (desk.deadlines.past(), desk.deadlines.seconds_to_next()) == ([], 5.0)


WAITS = {  # seconds until the deadline, and until the caller should ask again
    "one second past": (-1.0, 1.0),
    "right now": (0.0, 1.0),
    "just ahead": (0.5, 0.5),
    "less than a minute ahead": (59.0, 59.0),
    "a minute ahead": (60.0, 60.0),
    "more than a minute ahead": (61.0, 60.0),
}


@pytest.mark.parametrize("ahead, wait", WAITS.values(), ids=WAITS.keys())
def test_the_wait_ends_with_the_next_deadline_and_after_a_minute_at_the_latest(ahead: float, wait: float) -> None:
    desk = Desk()
    desk.deadlines.follow(pod("later", deadline_seconds=500, start_time=started(0)))
    desk.deadlines.follow(pod("web", deadline_seconds=100, start_time=started(0)))
    desk.seconds = 100 - ahead
    assert desk.deadlines.seconds_to_next() == wait


def test_a_pod_that_has_not_started_is_inspected_every_five_seconds() -> None:
    desk = Desk()
    desk.deadlines.follow(pod("web", deadline_seconds=1))
    desk.statuses[WEB] = PodStatus(start_time=started(1))
    for desk.seconds, past in ((4.9, []), (5.0, [WEB])):
        assert desk.deadlines.past() == past


@pytest.mark.parametrize("deadline_seconds", [5, 20, 50])
def test_a_changed_deadline_replaces_the_former_one(deadline_seconds: int) -> None:
    desk = Desk()
    for each in (20, deadline_seconds):
        desk.deadlines.follow(pod("web", deadline_seconds=each, start_time=started(0)))
    assert desk.deadlines.seconds_to_next() == deadline_seconds


def test_the_longest_overdue_pod_comes_first_and_one_that_ends_hides_no_other() -> None:
    desk = Desk()
    for name, deadline_seconds in {"c": 30, "a": 10, "over": 15, "d": 41, "b": 20}.items():
        desk.deadlines.follow(pod(name, deadline_seconds=deadline_seconds, start_time=started(0)))
    desk.ending.add(PodUID("over"))
    desk.seconds = 40
    for _ in range(2):
        assert (desk.deadlines.past(), desk.deadlines.seconds_to_next()) == (["a", "b", "c"], 1.0)
    desk.seconds = 41
    assert desk.deadlines.past() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("times", [1, 2, 14, 15, 16, 100])
def test_a_pod_that_changes_often_keeps_its_latest_deadline(times: int) -> None:
    desk = Desk()
    for turn in reversed(range(times)):
        for name, deadline_seconds in {"e": 50, "d": 40, "c": 30, "b": 20, "a": 10}.items():
            desk.deadlines.follow(pod(name, deadline_seconds=deadline_seconds + turn, start_time=started(0)))
    assert desk.deadlines.seconds_to_next() == 10
    for desk.seconds, past in ((9, []), (10, ["a"]), (25, ["a", "b"]), (30, ["a", "b", "c"]), (60, list("abcde"))):
        assert desk.deadlines.past() == past


def test_a_pod_that_changes_often_does_not_use_ever_more_memory() -> None:
    desk = Desk()
    web = pod("web", deadline_seconds=10)
    tracemalloc.start()
    try:
        for number in range(2000):
            desk.seconds = number / 1000  # each time another moment to inspect it
            desk.deadlines.follow(web)
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_a_pod_without_a_uid_is_known_by_the_empty_uid() -> None:
    desk = Desk()
    web = pod("web", deadline_seconds=10, start_time=started(0))
    for each in (web, replace(web, metadata=replace(web.metadata, uid=None))):
        desk.deadlines.follow(each)
    desk.seconds = 10
    assert desk.deadlines.past() == ["", "web"]
    desk.deadlines.forget(PodUID(""))
    assert desk.deadlines.past() == ["web"]


STEPS = st.tuples(
    st.sampled_from(["follow", "follow", "forget", "publish"]),
    st.sampled_from("abc"),
    st.sampled_from([None, 5, 10, 20]),
    st.sampled_from([None, 0, 7, 15]),
    st.integers(0, 6),
)


@given(st.lists(STEPS, max_size=40))
def test_it_says_what_asking_about_every_pod_would_say(
    steps: list[tuple[str, str, int | None, int | None, int]],
) -> None:
    desk = Desk()
    pods: dict[str, Pod] = {}
    for step, uid, deadline_seconds, start, pause in steps:
        start_time = None if start is None else started(start)
        match step:
            case "follow":
                pods[uid] = pod(uid, deadline_seconds=deadline_seconds, start_time=start_time)
                desk.deadlines.follow(pods[uid])
            case "publish" if PodUID(uid) not in desk.statuses:
                desk.statuses[PodUID(uid)] = PodStatus(start_time=started(desk.seconds))  # a pod starts now, or did
                desk.deadlines.follow(pods.setdefault(uid, pod(uid)))
            case "forget":
                pods.pop(uid, None)
                desk.deadlines.forget(PodUID(uid))
        desk.seconds += pause
        expected = {uid for uid, each in pods.items() if _past(each, desk.get_pod_status(PodUID(uid)), desk.now())}
        assert set(desk.deadlines.past()) == expected


def _past(each: Pod, published: PodStatus | None, now: datetime) -> bool:
    return deadline_eviction(each, published, now) is not None
