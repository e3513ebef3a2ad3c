"""The order of sends: small histories, then laws."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from podkeeper.concurrency.backoff import GrowingDelay
from podkeeper.concurrency.outbox import Outbox


def started(outbox: Outbox[str]) -> list[str]:
    """Start keys until no slot is free or no key is left."""
    return list(iter(outbox.start, None))


def offered(*keys: str, slots: int = 9) -> Outbox[str]:
    outbox: Outbox[str] = Outbox(slots=slots)
    for key in keys:
        outbox.offer(key, key)
    return outbox


def test_keys_start_in_order_and_not_more_than_there_are_slots() -> None:
    outbox = offered("a", "b", "a", "c", slots=2)
    assert started(outbox) == ["a", "b"]
    assert outbox.done("a", failed=False, fraction=0) is None
    assert started(outbox) == ["c"]


def test_urgent_keys_come_first_but_every_fourth_start_is_for_the_others() -> None:
    outbox = offered("a", "b", "c")
    for key in "VWXYZ":
        outbox.offer(key, key, urgent=True)
    outbox.offer("c", "c", urgent=True)
    assert started(outbox) == ["V", "W", "X", "a", "Y", "Z", "c", "b"]


def test_an_urgent_key_stays_urgent_until_it_is_sent() -> None:
    outbox = offered("a", "b", slots=1)
    outbox.offer("u", "u", urgent=True)
    outbox.offer("u", "u")
    assert outbox.start() == "u"
    outbox.done("u", failed=True, fraction=0)
    outbox.retry("u")
    assert outbox.start() == "u"
    outbox.offer("u", "u")
    outbox.done("u", failed=False, fraction=0)
    assert [outbox.start(), outbox.done("a", failed=False, fraction=0), outbox.start()] == ["a", None, "b"]


def test_a_key_offered_while_in_flight_is_sent_again() -> None:
    outbox = offered("a")
    assert started(outbox) == ["a"]
    outbox.offer("a", "a")
    assert started(outbox) == []
    outbox.done("a", failed=False, fraction=0)
    assert started(outbox) == ["a"]
    outbox.done("a", failed=False, fraction=0)
    assert started(outbox) == []
    assert not outbox.is_pending("a")


def test_a_key_whose_target_changes_in_flight_has_one_send_at_a_time() -> None:
    outbox = offered()
    outbox.offer("a", "old name")
    assert started(outbox) == ["a"]
    outbox.offer("a", "new name")
    assert started(outbox) == []
    outbox.done("a", failed=False, fraction=0)
    assert started(outbox) == ["a"]
    outbox.done("a", failed=False, fraction=0)
    assert not outbox.is_pending("a")


def test_two_keys_of_one_target_are_sent_one_after_the_other() -> None:
    outbox = offered()
    outbox.offer("old", "name")
    outbox.offer("new", "name", urgent=True)
    assert started(outbox) == ["new"]
    outbox.done("new", failed=True, fraction=0)
    assert started(outbox) == ["old"]
    outbox.retry("new")
    assert started(outbox) == []
    outbox.done("old", failed=False, fraction=0)
    assert started(outbox) == ["new"]


def test_a_failed_key_blocks_no_other_and_waits_longer_each_time() -> None:
    outbox = offered("bad", "good")
    delays = []
    for _ in range(8):
        assert "bad" in started(outbox)
        delays.append(outbox.done("bad", failed=True, fraction=0.5))
        outbox.offer("bad", "bad")
        assert (started(outbox), outbox.is_pending("bad"), outbox.has_failed("bad")) == ([], False, True)
        outbox.retry("bad")
    assert delays == [0.75, 1.5, 3.0, 6.0, 12.0, 22.5, 22.5, 22.5]
    assert started(outbox) == ["bad"]
    outbox.done("bad", failed=False, fraction=0)
    outbox.offer("bad", "bad")
    assert started(outbox) == ["bad"]
    assert outbox.done("bad", failed=True, fraction=0) == 0.5


def test_many_failures_do_not_overflow() -> None:
    outbox = offered("bad")
    for _ in range(5000):
        outbox.start()
        assert (outbox.done("bad", failed=True, fraction=0.999) or 0) < 30
        outbox.retry("bad")


def test_at_once_does_not_wait_for_the_retry() -> None:
    outbox = offered("a")
    outbox.start()
    outbox.done("a", failed=True, fraction=0)
    outbox.offer("a", "a", at_once=True)
    outbox.retry("a")
    assert started(outbox) == ["a"]


def test_a_hung_send_releases_its_slot_once() -> None:
    outbox = offered("hung", "b", "c", slots=1)
    assert started(outbox) == ["hung"]
    outbox.release_slot("hung")
    outbox.release_slot("hung")
    assert started(outbox) == ["b"]
    outbox.done("hung", failed=False, fraction=0)
    assert started(outbox) == []
    outbox.release_slot("hung")
    assert started(outbox) == []


def test_a_forgotten_key_is_not_sent_but_its_send_in_flight_completes() -> None:
    outbox = offered("a", "b")
    outbox.forget("a")
    assert started(outbox) == ["b"]
    outbox.offer("b", "b")
    outbox.forget("b")
    assert outbox.is_pending("b")
    outbox.done("b", failed=False, fraction=0)
    assert (started(outbox), outbox.is_pending("b")) == ([], False)
    outbox.forget("unknown")


def test_at_once_starts_before_the_retry_and_only_once() -> None:
    outbox = offered("a")
    outbox.start()
    outbox.done("a", failed=True, fraction=0)
    outbox.offer("a", "a", at_once=True)
    assert started(outbox) == ["a"]
    outbox.retry("a")
    outbox.done("a", failed=False, fraction=0)
    assert started(outbox) == []


def order_after(outbox: Outbox[str], *keys: str) -> list[str]:
    """The order in which all keys start after some sends are done, with a slot for each."""
    for key in keys:
        outbox.done(key, failed=False, fraction=0)
    return started(outbox)


def test_a_held_key_is_urgent_after_its_retry_if_any_offer_was_urgent() -> None:
    for urgencies, expected in (((False, True, False), ["a", "x"]), ((False, False), ["x", "a"])):
        outbox = offered("a")
        outbox.start()
        outbox.done("a", failed=True, fraction=0)
        outbox.offer("x", "x")
        for urgent in urgencies:
            outbox.offer("a", "a", urgent=urgent)
        outbox.retry("a")
        assert started(outbox) == expected


def test_a_key_in_flight_is_urgent_next_time_if_any_offer_was_urgent() -> None:
    for urgencies, expected in (((False, True, False), ["a", "x"]), ((False, False), ["x", "a"])):
        outbox = offered("a", "x", slots=1)
        assert started(outbox) == ["a"]
        for urgent in urgencies:
            outbox.offer("a", "a", urgent=urgent)
        turns = []
        for ended in ("a", expected[0]):
            turns += order_after(outbox, ended)
        assert turns == expected


def test_a_key_that_failed_without_an_urgent_offer_is_not_urgent() -> None:
    outbox = offered("a")
    outbox.start()
    outbox.done("a", failed=True, fraction=0)
    outbox.offer("x", "x")
    outbox.retry("a")
    assert started(outbox) == ["x", "a"]


def test_a_held_urgent_key_stays_urgent_when_it_is_offered_at_once() -> None:
    outbox: Outbox[str] = Outbox(slots=9)
    outbox.offer("a", "a", urgent=True)
    outbox.start()
    outbox.done("a", failed=True, fraction=0)
    outbox.offer("x", "x")
    outbox.offer("a", "a", at_once=True)
    assert started(outbox) == ["a", "x"]


def test_an_urgent_offer_during_a_failed_send_makes_the_retry_urgent() -> None:
    outbox = offered("a")
    outbox.start()
    outbox.offer("a", "a", urgent=True)
    outbox.done("a", failed=True, fraction=0)
    outbox.offer("x", "x")
    outbox.retry("a")
    assert started(outbox) == ["a", "x"]


def test_a_key_that_became_urgent_is_sent_once() -> None:
    outbox = offered("a")
    outbox.offer("a", "a", urgent=True)
    outbox.offer("a", "a")
    assert started(outbox) == ["a"]
    assert order_after(outbox, "a") == []
    assert not outbox.is_pending("a")


def test_a_busy_target_does_not_block_others() -> None:
    outbox: Outbox[str] = Outbox(slots=9)
    for key, target in (("old", "name"), ("new", "name"), ("x", "x")):
        outbox.offer(key, target)
    assert started(outbox) == ["old", "x"]


def test_only_the_key_in_flight_can_release_the_slot() -> None:
    outbox: Outbox[str] = Outbox(slots=1)
    outbox.offer("old", "name")
    outbox.offer("new", "name")
    outbox.offer("x", "x")
    assert started(outbox) == ["old"]
    outbox.release_slot("new")
    outbox.release_slot("unknown")
    assert started(outbox) == []
    outbox.release_slot("old")
    assert started(outbox) == ["x"]


def test_a_forgotten_key_has_no_failures() -> None:
    outbox = offered("a")
    assert not outbox.has_failed("a")
    outbox.start()
    assert not outbox.has_failed("a")
    outbox.done("a", failed=True, fraction=0)
    assert outbox.has_failed("a")
    outbox.forget("a")
    assert (outbox.has_failed("a"), outbox.is_pending("a")) == (False, False)
    outbox.retry("a")
    assert started(outbox) == []
    outbox.offer("a", "a")
    outbox.forget("a")
    assert not outbox.is_pending("a")


def test_the_fourth_eighth_and_twelfth_start_are_for_keys_that_are_not_urgent() -> None:
    outbox = offered("a", "b", "c", "d", slots=20)
    for key in "0123456789":
        outbox.offer(key, key, urgent=True)
    assert "".join(started(outbox)) == "012a345b678c9d"


def test_delays_are_configurable_and_spread_over_their_second_half() -> None:
    for fraction, expected in ((0.0, [1.0, 2.0, 2.5, 2.5]), (0.5, [1.5, 3.0, 3.75, 3.75])):
        outbox: Outbox[str] = Outbox(slots=1, delay=GrowingDelay(first_seconds=2.0, longest_seconds=5.0))
        outbox.offer("a", "a")
        delays = []
        for _ in expected:
            assert outbox.start() == "a"
            delays.append(outbox.done("a", failed=True, fraction=fraction))
            outbox.retry("a")
        assert delays == expected


KEYS = [(name, f"target-{name[0]}") for name in ("a1", "a2", "b1", "b2", "c1")]


class Histories(RuleBasedStateMachine):
    """Random histories: one send per target, no more sends than slots, no key is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox: Outbox[str] = Outbox(slots=2)
        self.targets = dict(KEYS)
        self.in_flight: dict[str, bool] = {}  # whether it holds a slot
        self.held: set[str] = set()
        self.queued: set[str] = set()  # offered and not started since

    @rule(offer=st.sampled_from(KEYS), urgent=st.booleans(), at_once=st.booleans())
    def offer(self, offer: tuple[str, str], urgent: bool, at_once: bool) -> None:
        self.outbox.offer(*offer, urgent=urgent, at_once=at_once)
        self.queued.add(offer[0])
        if at_once:
            self.held.discard(offer[0])

    @rule()
    def start(self) -> None:
        key = self.outbox.start()
        if key is None:
            free = 2 - sum(self.in_flight.values())
            busy = {self.targets[each] for each in self.in_flight}
            waiting = {each for each in self.queued - self.held if self.targets[each] not in busy}
            assert free == 0 or not waiting
        else:
            assert key in self.queued - self.held
            assert self.targets[key] not in {self.targets[each] for each in self.in_flight}
            self.queued.discard(key)
            self.in_flight[key] = True
            assert sum(self.in_flight.values()) <= 2

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), failed=st.booleans())
    def end(self, data: st.DataObject, failed: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.in_flight)))
        delay = self.outbox.done(key, failed=failed, fraction=0.0)
        del self.in_flight[key]
        assert (delay is not None) == failed
        if failed:
            self.held.add(key)
            self.queued.add(key)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def hang(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.in_flight)))
        self.outbox.release_slot(key)
        self.in_flight[key] = False

    @rule(key=st.sampled_from(sorted(name for name, _ in KEYS)))
    def retry(self, key: str) -> None:
        self.outbox.retry(key)
        self.held.discard(key)

    @rule(key=st.sampled_from(sorted(name for name, _ in KEYS)))
    def forget(self, key: str) -> None:
        self.outbox.forget(key)
        self.queued.discard(key)
        self.held.discard(key)

    @invariant()
    def a_key_is_pending_if_it_is_queued_or_in_flight(self) -> None:
        for key in self.targets:
            assert self.outbox.is_pending(key) == (key in self.in_flight or key in self.queued - self.held)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=75, stateful_step_count=40, deadline=None)
