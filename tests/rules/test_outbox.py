"""Whose turn it is: a table of small histories, and laws over all of them."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from podkeeper.rules.outbox import Outbox


def started(outbox: Outbox[str]) -> list[str]:
    """All that start until the slots are taken."""
    return list(iter(outbox.start, None))


def offered(*keys: str, slots: int = 9) -> Outbox[str]:
    outbox: Outbox[str] = Outbox(slots=slots)
    for key in keys:
        outbox.offer(key, key)
    return outbox


def test_first_come_first_served_and_no_more_than_slots() -> None:
    outbox = offered("a", "b", "a", "c", slots=2)
    assert started(outbox) == ["a", "b"]
    assert outbox.ended("a", failed=False, fraction=0) is None
    assert started(outbox) == ["c"]


def test_urgent_keys_go_first_but_every_fourth_turn_is_for_the_others() -> None:
    outbox = offered("a", "b", "c")
    for key in "VWXYZ":
        outbox.offer(key, key, urgent=True)
    outbox.offer("c", "c", urgent=True)
    assert started(outbox) == ["V", "W", "X", "a", "Y", "Z", "c", "b"]


def test_what_was_urgent_stays_so_until_it_is_sent() -> None:
    outbox = offered("a", "b", slots=1)
    outbox.offer("u", "u", urgent=True)
    outbox.offer("u", "u")
    assert outbox.start() == "u"
    outbox.ended("u", failed=True, fraction=0)
    outbox.retry("u")
    assert outbox.start() == "u"
    outbox.offer("u", "u")
    outbox.ended("u", failed=False, fraction=0)
    assert [outbox.start(), outbox.ended("a", failed=False, fraction=0), outbox.start()] == ["a", None, "b"]


def test_a_key_offered_while_in_flight_has_another_turn() -> None:
    outbox = offered("a")
    assert started(outbox) == ["a"]
    outbox.offer("a", "a")
    assert started(outbox) == []
    outbox.ended("a", failed=False, fraction=0)
    assert started(outbox) == ["a"]
    outbox.ended("a", failed=False, fraction=0)
    assert started(outbox) == []
    assert not outbox.is_pending("a")


def test_a_key_whose_target_changes_in_flight_has_one_turn_at_a_time() -> None:
    outbox = offered()
    outbox.offer("a", "old name")
    assert started(outbox) == ["a"]
    outbox.offer("a", "new name")
    assert started(outbox) == []
    outbox.ended("a", failed=False, fraction=0)
    assert started(outbox) == ["a"]
    outbox.ended("a", failed=False, fraction=0)
    assert not outbox.is_pending("a")


def test_two_keys_of_one_target_take_turns() -> None:
    outbox = offered()
    outbox.offer("old", "name")
    outbox.offer("new", "name", urgent=True)
    assert started(outbox) == ["new"]
    outbox.ended("new", failed=True, fraction=0)
    assert started(outbox) == ["old"]
    outbox.retry("new")
    assert started(outbox) == []
    outbox.ended("old", failed=False, fraction=0)
    assert started(outbox) == ["new"]


def test_a_failed_key_waits_alone_and_ever_longer() -> None:
    outbox = offered("bad", "good")
    delays = []
    for _ in range(8):
        assert "bad" in started(outbox)
        delays.append(outbox.ended("bad", failed=True, fraction=0.5))
        outbox.offer("bad", "bad")
        assert (started(outbox), outbox.is_pending("bad"), outbox.has_failed("bad")) == ([], False, True)
        outbox.retry("bad")
    assert delays == [0.75, 1.5, 3.0, 6.0, 12.0, 22.5, 22.5, 22.5]
    assert started(outbox) == ["bad"]
    outbox.ended("bad", failed=False, fraction=0)
    outbox.offer("bad", "bad")
    assert started(outbox) == ["bad"]
    assert outbox.ended("bad", failed=True, fraction=0) == 0.5


def test_failures_without_end_do_not_overflow() -> None:
    outbox = offered("bad")
    for _ in range(5000):
        outbox.start()
        assert (outbox.ended("bad", failed=True, fraction=0.999) or 0) < 30
        outbox.retry("bad")


def test_at_once_does_not_wait_for_the_retry() -> None:
    outbox = offered("a")
    outbox.start()
    outbox.ended("a", failed=True, fraction=0)
    outbox.offer("a", "a", at_once=True)
    outbox.retry("a")
    assert started(outbox) == ["a"]


def test_a_hung_sending_gives_its_slot_back_once() -> None:
    outbox = offered("hung", "b", "c", slots=1)
    assert started(outbox) == ["hung"]
    outbox.lease_over("hung")
    outbox.lease_over("hung")
    assert started(outbox) == ["b"]
    outbox.ended("hung", failed=False, fraction=0)
    assert started(outbox) == []
    outbox.lease_over("hung")
    assert started(outbox) == []


def test_a_forgotten_key_has_no_turn_but_ends_what_it_began() -> None:
    outbox = offered("a", "b")
    outbox.forget("a")
    assert started(outbox) == ["b"]
    outbox.offer("b", "b")
    outbox.forget("b")
    assert outbox.is_pending("b")
    outbox.ended("b", failed=False, fraction=0)
    assert (started(outbox), outbox.is_pending("b")) == ([], False)
    outbox.forget("nobody")


KEYS = [(name, f"target-{name[0]}") for name in ("a1", "a2", "b1", "b2", "c1")]


class Histories(RuleBasedStateMachine):
    """Any history of offers, ends, failures and hangs: targets have one sender, slots are kept, nothing is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox: Outbox[str] = Outbox(slots=2)
        self.targets = dict(KEYS)
        self.flying: dict[str, bool] = {}  # whether it holds a slot
        self.held: set[str] = set()
        self.owed: set[str] = set()  # offered, and not begun since

    @rule(offer=st.sampled_from(KEYS), urgent=st.booleans(), at_once=st.booleans())
    def offer(self, offer: tuple[str, str], urgent: bool, at_once: bool) -> None:
        self.outbox.offer(*offer, urgent=urgent, at_once=at_once)
        self.owed.add(offer[0])
        if at_once:
            self.held.discard(offer[0])

    @rule()
    def start(self) -> None:
        key = self.outbox.start()
        if key is None:
            free = 2 - sum(self.flying.values())
            busy = {self.targets[each] for each in self.flying}
            waiting = {each for each in self.owed - self.held if self.targets[each] not in busy}
            assert free == 0 or not waiting
        else:
            assert key in self.owed - self.held
            assert self.targets[key] not in {self.targets[each] for each in self.flying}
            self.owed.discard(key)
            self.flying[key] = True
            assert sum(self.flying.values()) <= 2

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), failed=st.booleans())
    def end(self, data: st.DataObject, failed: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.flying)))
        delay = self.outbox.ended(key, failed=failed, fraction=0.0)
        del self.flying[key]
        assert (delay is not None) == failed
        if failed:
            self.held.add(key)
            self.owed.add(key)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def hang(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.flying)))
        self.outbox.lease_over(key)
        self.flying[key] = False

    @rule(key=st.sampled_from(sorted(name for name, _ in KEYS)))
    def retry(self, key: str) -> None:
        self.outbox.retry(key)
        self.held.discard(key)

    @rule(key=st.sampled_from(sorted(name for name, _ in KEYS)))
    def forget(self, key: str) -> None:
        self.outbox.forget(key)
        self.owed.discard(key)
        self.held.discard(key)

    @invariant()
    def pending_is_what_flies_or_waits(self) -> None:
        for key in self.targets:
            assert self.outbox.is_pending(key) == (key in self.flying or key in self.owed - self.held)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
