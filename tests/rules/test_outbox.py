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


def test_at_once_starts_before_the_retry_and_only_once() -> None:
    outbox = offered("a")
    outbox.start()
    outbox.ended("a", failed=True, fraction=0)
    outbox.offer("a", "a", at_once=True)
    assert started(outbox) == ["a"]
    outbox.retry("a")
    outbox.ended("a", failed=False, fraction=0)
    assert started(outbox) == []


def turns_after(outbox: Outbox[str], *keys: str) -> list[str]:
    """The order of all turns once some sendings ended, with a slot for each."""
    for key in keys:
        outbox.ended(key, failed=False, fraction=0)
    return started(outbox)


def test_a_held_key_is_urgent_after_its_retry_if_any_offer_was() -> None:
    for urgencies, expected in (((False, True, False), ["a", "x"]), ((False, False), ["x", "a"])):
        outbox = offered("a")
        outbox.start()
        outbox.ended("a", failed=True, fraction=0)
        outbox.offer("x", "x")
        for urgent in urgencies:
            outbox.offer("a", "a", urgent=urgent)
        outbox.retry("a")
        assert started(outbox) == expected


def test_a_key_in_flight_is_urgent_next_time_if_any_offer_was() -> None:
    for urgencies, expected in (((False, True, False), ["a", "x"]), ((False, False), ["x", "a"])):
        outbox = offered("a", "x", slots=1)
        assert started(outbox) == ["a"]
        for urgent in urgencies:
            outbox.offer("a", "a", urgent=urgent)
        turns = []
        for ended in ("a", expected[0]):
            turns += turns_after(outbox, ended)
        assert turns == expected


def test_a_key_that_failed_without_an_urgent_offer_is_not_urgent() -> None:
    outbox = offered("a")
    outbox.start()
    outbox.ended("a", failed=True, fraction=0)
    outbox.offer("x", "x")
    outbox.retry("a")
    assert started(outbox) == ["x", "a"]


def test_a_key_that_became_urgent_has_one_turn() -> None:
    outbox = offered("a")
    outbox.offer("a", "a", urgent=True)
    outbox.offer("a", "a")
    assert started(outbox) == ["a"]
    assert turns_after(outbox, "a") == []
    assert not outbox.is_pending("a")


def test_a_busy_target_does_not_keep_others_waiting() -> None:
    outbox: Outbox[str] = Outbox(slots=9)
    for key, target in (("old", "name"), ("new", "name"), ("x", "x")):
        outbox.offer(key, target)
    assert started(outbox) == ["old", "x"]


def test_a_lease_is_that_of_the_key_in_flight() -> None:
    outbox: Outbox[str] = Outbox(slots=1)
    outbox.offer("old", "name")
    outbox.offer("new", "name")
    outbox.offer("x", "x")
    assert started(outbox) == ["old"]
    outbox.lease_over("new")
    outbox.lease_over("nobody")
    assert started(outbox) == []
    outbox.lease_over("old")
    assert started(outbox) == ["x"]


def test_a_forgotten_failure_leaves_nothing() -> None:
    outbox = offered("a")
    assert not outbox.has_failed("a")
    outbox.start()
    assert not outbox.has_failed("a")
    outbox.ended("a", failed=True, fraction=0)
    assert outbox.has_failed("a")
    outbox.forget("a")
    assert (outbox.has_failed("a"), outbox.is_pending("a")) == (False, False)
    outbox.retry("a")
    assert started(outbox) == []
    outbox.offer("a", "a")
    outbox.forget("a")
    assert not outbox.is_pending("a")


def test_the_fourth_the_eighth_and_the_twelfth_turn_are_for_the_others() -> None:
    outbox = offered("a", "b", "c", "d", slots=20)
    for key in "0123456789":
        outbox.offer(key, key, urgent=True)
    assert "".join(started(outbox)) == "012a345b678c9d"


def test_delays_are_configurable_and_spread_over_their_second_half() -> None:
    for fraction, expected in ((0.0, [1.0, 2.0, 2.5, 2.5]), (0.5, [1.5, 3.0, 3.75, 3.75])):
        outbox: Outbox[str] = Outbox(slots=1, first_delay_seconds=2.0, longest_delay_seconds=5.0)
        outbox.offer("a", "a")
        delays = []
        for _ in expected:
            assert outbox.start() == "a"
            delays.append(outbox.ended("a", failed=True, fraction=fraction))
            outbox.retry("a")
        assert delays == expected


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
TestHistories.settings = settings(max_examples=75, stateful_step_count=40, deadline=None)
