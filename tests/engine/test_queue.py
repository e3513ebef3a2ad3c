"""The work queue, compared with a dictionary of times."""

import weakref

from hypothesis import given
from hypothesis import strategies as st

from podkeeper.engine.queue import WorkQueue
from podkeeper.model.messages import PodUID

WEB, DB = PodUID("web"), PodUID("db")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def queue() -> tuple[WorkQueue, Clock]:
    clock = Clock()
    return WorkQueue(clock), clock


def test_a_pod_is_due_after_its_time_and_not_at_its_time() -> None:
    work, clock = queue()
    work.enqueue(WEB, 10)
    clock.now = 10
    assert work.get_work() == []
    clock.now = 10.001
    assert work.get_work() == [WEB]


def test_a_due_pod_is_returned_once() -> None:
    work, clock = queue()
    work.enqueue(WEB, 0)
    clock.now = 1
    assert (work.get_work(), work.get_work(), len(work)) == ([WEB], [], 0)


def test_a_new_entry_replaces_an_earlier_or_later_one() -> None:
    work, clock = queue()
    work.enqueue(WEB, 5)
    work.enqueue(WEB, 50)
    work.enqueue(DB, 50)
    work.enqueue(DB, 5)
    clock.now = 6
    assert work.get_work() == [DB]
    clock.now = 51
    assert work.get_work() == [WEB]


def test_pods_are_returned_in_the_order_of_their_times() -> None:
    work, clock = queue()
    work.enqueue(WEB, 2)
    work.enqueue(DB, 1)
    clock.now = 3
    assert work.get_work() == [DB, WEB]


def test_next_due_is_the_time_of_the_first_entry() -> None:
    work, clock = queue()
    assert work.next_due() is None
    clock.now = 100
    work.enqueue(WEB, 5)
    work.enqueue(DB, 60)
    assert work.next_due() == 105
    work.enqueue(WEB, 90)
    assert work.next_due() == 160


class TracedUID(str):
    """A `str` that supports weak references."""


def test_replaced_entries_are_removed_from_the_heap() -> None:
    work, clock = queue()
    watched = []
    for turn in range(5_000):
        clock.now = float(turn)
        uid = TracedUID(f"pod-{turn % 10}")
        watched.append(weakref.ref(uid))
        work.enqueue(PodUID(uid), 1_000_000)
    assert len(work) == 10
    assert sum(reference() is not None for reference in watched) < 200


def test_pods_stay_in_order_while_one_is_enqueued_many_times() -> None:
    work, clock = queue()
    late, middle, early = PodUID("late"), PodUID("middle"), PodUID("early")
    for uid, delay_seconds in ((late, 3000), (middle, 2000), (early, 1000)):
        work.enqueue(uid, delay_seconds)
    for turn in range(200):
        work.enqueue(late, 3000 + turn)
        assert work.next_due() == 1000
    clock.now = 5000
    assert work.get_work() == [early, middle, late]
    assert (work.next_due(), len(work)) == (None, 0)


STEPS = st.one_of(
    st.tuples(st.just("enqueue"), st.sampled_from(["a", "b", "c"]), st.integers(-2, 5)),
    st.tuples(st.just("advance"), st.just(""), st.integers(0, 3)),
    st.tuples(st.just("get"), st.just(""), st.just(0)),
)


@given(st.lists(STEPS, max_size=60))
def test_the_queue_behaves_like_a_dictionary_of_times(steps: list[tuple[str, str, int]]) -> None:
    work, clock = queue()
    due: dict[str, float] = {}
    for step, uid, seconds in steps:
        match step:
            case "enqueue":
                work.enqueue(PodUID(uid), seconds)
                due[uid] = clock.now + seconds
            case "advance":
                clock.now += seconds
            case "get":
                ready = {uid for uid, when in due.items() if when < clock.now}
                assert set(work.get_work()) == ready
                due = {uid: when for uid, when in due.items() if uid not in ready}
        assert work.next_due() == min(due.values(), default=None)
        assert len(work) == len(due)
