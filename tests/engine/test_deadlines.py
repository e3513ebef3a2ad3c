"""Active deadlines against the simplest thing that could work: asking the rule about every pod."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.engine.deadlines import ActiveDeadlines
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.model.times import format_time
from podkeeper.rules.evict import deadline_eviction
from tests.engine.loop_house import pod

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
WEB = PodUID("web")


class Desk:
    """Deadlines, a clock that moves when told to, and a status manager that is a dictionary."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.statuses: dict[PodUID, PodStatus] = {}
        self.finished: set[PodUID] = set()
        self.deadlines = ActiveDeadlines(status=self, is_finished=self.finished.__contains__, clock=self)

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


def test_a_finished_pod_is_left_alone_until_it_may_have_come_back() -> None:
    desk = Desk()
    desk.deadlines.follow(pod("web", deadline_seconds=10, start_time=started(0)))
    desk.finished.add(WEB)
    desk.seconds = 20
    assert (desk.deadlines.past(), desk.deadlines.seconds_to_next()) == ([], 60.0)
    desk.finished.clear()
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
