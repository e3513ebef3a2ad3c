"""The times of the API source's requests, and the order of stores and updates."""

import asyncio
from collections.abc import Sequence

import pytest

from podkeeper.model.api import Listed, ObjectEvent, WatchType
from podkeeper.model.errors import ApiUnavailable, BadInput, Gone, Problem
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.sources.apiserver import ApiSource, ReflectorState, WatchTiming, is_usable
from podkeeper.testing.virtual_time import FixedJitterClock, simulate
from tests.sources.scripted_api import FOR_EVER, Consumer, ScriptedApi, Step, bookmark, event, listed, pod

RESET = ApiUnavailable("connection reset")
GONE = Gone("too old")
QUIET: tuple[Step, ...] = (FOR_EVER,)


def minutes(count: int, first: int = 11, seconds: float = 60.0) -> list[Step]:
    """A stream that sends a bookmark after each minute."""
    return [step for n in range(count) for step in (seconds, bookmark(first + n))]


def timeline(
    lists: Sequence[Listed[Pod] | Exception | float],
    *streams: Sequence[Step],
    seconds: float,
    jitter: float = 0.0,
    timing: WatchTiming | None = None,
) -> tuple[list[tuple[float, str]], list[str]]:
    """Return all requests with their times, and all messages."""
    messages: list[str] = []
    api = ScriptedApi(lists, streams)

    async def scenario() -> None:
        clock = FixedJitterClock(jitter)
        if timing is None:
            source = ApiSource(api=api, node_name="n1", clock=clock, on_message=messages.append)
        else:
            source = ApiSource(api=api, node_name="n1", clock=clock, on_message=messages.append, timing=timing)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await source.run(Consumer().send)

    simulate(scenario())
    return api.requests, messages


def requests(*texts: str) -> list[tuple[float, str]]:
    """`7 list`, `7 watch 10`."""
    return [(float(at), request) for at, _, request in (each.partition(" ") for each in texts)]


TIMELINES: dict[str, tuple[Sequence[Listed[Pod] | Exception | float], Sequence[Sequence[Step]], float, list[str]]] = {
    "a list that fails is retried with a backoff of 1 to 30 seconds": (
        [RESET], [QUIET], 95,
        ["0 list", "1 list", "3 list", "7 list", "15 list", "31 list", "61 list", "91 list"]),
    "a list may take two minutes": (
        [FOR_EVER, listed(10)], [QUIET], 122, ["0 list", "121 list", "121 watch 10"]),
    "a watch that breaks is retried with a backoff, and every third time with a list": (
        [listed(10)], [[RESET]], 95,
        ["0 list", "0 watch 10", "1 watch 10", "3 watch 10", "7 list", "7 watch 10", "15 watch 10", "31 watch 10",
         "61 list", "61 watch 10", "91 watch 10"]),
    "a watch that is closed early is retried the same way": (
        [listed(10)], [[59.0]], 200,
        ["0 list", "0 watch 10", "60 watch 10", "121 watch 10", "184 list", "184 watch 10"]),
    "a watch of at least a minute is renewed at once": (
        [listed(10)], [[60.0]], 200,
        ["0 list", "0 watch 10", "60 watch 10", "120 watch 10", "180 list", "180 watch 10"]),
    "a watch that breaks after a minute is renewed after the shortest pause": (
        [listed(10)], [[60.0, RESET]], 200,
        ["0 list", "0 watch 10", "61 watch 10", "122 watch 10", "183 list", "183 watch 10"]),
    "a version that is too old after a minute leads to a list at once": (
        [listed(10), listed(20)], [[60.0, GONE], QUIET], 100, ["0 list", "0 watch 10", "60 list", "60 watch 20"]),
    "a version that is too old earlier leads to a list after a pause": (
        [listed(10), listed(20)], [[59.0, GONE], QUIET], 100, ["0 list", "0 watch 10", "60 list", "60 watch 20"]),
    "events do not shorten the backoff of versions that are too old": (
        [listed(10), listed(20), listed(30), listed(40)],
        [[bookmark(15), GONE], [bookmark(25), GONE], [bookmark(35), GONE], QUIET], 100,
        ["0 list", "0 watch 10", "1 list", "1 watch 20", "3 list", "3 watch 30", "7 list", "7 watch 40"]),
    "events do shorten the backoff of watches that break": (
        [listed(10)], [[bookmark(11), RESET], [bookmark(12), RESET], [bookmark(13), RESET], QUIET], 100,
        ["0 list", "0 watch 10", "1 watch 11", "2 watch 12", "3 watch 13"]),
    "only consecutive watches without events lead to a list": (
        [listed(10)], [[RESET], [RESET], [bookmark(11), RESET], [RESET], [RESET], QUIET], 100,
        ["0 list", "0 watch 10", "1 watch 10", "3 watch 10", "4 watch 11", "6 watch 11", "10 watch 11"]),
    "a silent stream is closed after five minutes, and the third one leads to a list": (
        [listed(10)], [QUIET], 1000,
        ["0 list", "0 watch 10", "300 watch 10", "600 watch 10", "900 list", "900 watch 10"]),
    "each event gives a stream five more minutes": (
        [listed(10)], [[299.0, bookmark(11), 299.0, bookmark(12), *QUIET], QUIET], 1000,
        ["0 list", "0 watch 10", "898 watch 12"]),
    "after half an hour there is a list, even if the stream sends events": (
        [listed(10), listed(500)], [minutes(100), QUIET], 1900,
        ["0 list", "0 watch 10", "1800 list", "1800 watch 500"]),
    "if that list fails, the next one comes after 30 seconds": (
        [listed(10), RESET, RESET, listed(500)], [minutes(100), *[minutes(10, 50, 7.0)] * 2, QUIET], 1900,
        ["0 list", "0 watch 10", "1800 list", "1800 watch 39", "1830 list", "1830 watch 53", "1860 list",
         "1860 watch 500"]),
    "after seven consecutive stale lists, the list is accepted": (
        [listed(900), listed(20)], [[GONE], QUIET], 200,
        ["0 list", "0 watch 900", "1 list", "3 list", "7 list", "15 list", "31 list", "61 list", "91 list",
         "91 watch 20"]),
}  # fmt: skip


@pytest.mark.parametrize("lists, streams, seconds, expected", TIMELINES.values(), ids=TIMELINES.keys())
def test_requests_and_their_times(
    lists: Sequence[Listed[Pod] | Exception | float],
    streams: Sequence[Sequence[Step]],
    seconds: float,
    expected: list[str],
) -> None:
    assert timeline(lists, *streams, seconds=seconds)[0] == requests(*expected)


def test_jitter_lengthens_pauses_and_shortens_the_period_of_lists() -> None:
    assert timeline([RESET], QUIET, seconds=15, jitter=0.5)[0] == requests(
        "0 list", "1.5 list", "4.5 list", "10.5 list"
    )
    stream = minutes(100)
    found, _ = timeline([listed(10), RESET, listed(500)], stream, QUIET, seconds=1500, jitter=0.5)
    assert found == requests("0 list", "0 watch 10", "1350 list", "1350 watch 32", "1395 list", "1395 watch 500")


def test_progress_of_a_watch_clears_the_count_of_old_lists() -> None:
    timing = WatchTiming(stale_lists=2, relist=100.0, longest_pause=50.0)
    stream: list[Step] = [bookmark(900), *QUIET]
    more: list[Step] = [bookmark(901), *QUIET]
    found, _ = timeline([listed(10), listed(20)], stream, more, QUIET, seconds=249, timing=timing)
    assert found == requests(
        "0 list", "0 watch 10", "100 list", "100 watch 900", "150 list", "150 watch 901", "200 list", "200 watch 20"
    )


def test_timing_can_be_chosen() -> None:
    timing = WatchTiming(first_pause=3.0, longest_pause=5.0, fruitless_watches=1, silence=20.0, lasting=10.0)
    found, _ = timeline([RESET, RESET, RESET, listed(10)], [RESET], QUIET, seconds=64, timing=timing)
    assert found == requests(
        "0 list", "3 list", "8 list", "13 list", "13 watch 10", "18 list", "18 watch 10", "38 list", "38 watch 10",
        "58 list", "58 watch 10",
    )  # fmt: skip


def test_all_lists_and_failures_are_reported() -> None:
    unnamed = pod("", version=4)
    _, checkpoints = timeline(
        [RESET, FOR_EVER, listed(10, pod("a", version=3), unnamed), listed(9), listed(20)],
        [event("ADDED", "b", 11, uid=""), event("ADDED", "c", 11), bookmark(11), RESET],
        [],
        [GONE],
        [ZeroDivisionError()],
        QUIET,
        seconds=500,
    )
    assert checkpoints == [
        "cannot list pods: connection reset; will retry in 1.0 s",
        "cannot list pods: no answer in time; will retry in 2.0 s",
        "ignored pod _ns: it has no name or no UID",
        "listed 1 pods at version 10",
        "ignored pod b_ns: it has no name or no UID",
        "the watch of pods broke; will retry in 1.0 s",
        "the watch of pods was closed early; will retry in 2.0 s",
        "the watch of pods cannot continue, because its version is too old; will retry in 4.0 s",
        "cannot use a list of pods of version 9: version 11 is already known; will retry in 8.0 s",
        "listed 0 pods at version 20",
        "unexpected error while watching pods; will retry in 16.0 s",
        "listed 0 pods at version 20",
    ]


def test_a_silent_watch_of_less_than_a_minute_is_reported() -> None:
    timing = WatchTiming(silence=5.0)
    found, checkpoints = timeline([listed(10)], QUIET, seconds=8, timing=timing)
    assert found == requests("0 list", "0 watch 10", "6 watch 10")
    assert checkpoints == [
        "listed 0 pods at version 10",
        "the watch of pods received no events or bookmarks; will retry in 1.0 s",
    ]


def test_a_refused_change_leads_to_a_list_after_30_seconds_and_not_later_than_due() -> None:
    async def scenario(relist: float) -> list[tuple[float, str]]:
        api = ScriptedApi([listed(10)], [[5.0, event("ADDED", "a", 11), *QUIET], QUIET])

        def send(update: PodUpdate) -> None:
            if update.op is Op.ADD:
                raise BadInput(Problem("cannot merge that"))

        timing = WatchTiming(relist=relist)
        source = ApiSource(api=api, node_name="n1", clock=FixedJitterClock(), timing=timing)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(39):
                await source.run(send)
        return api.requests

    # The list is older than the event, so the watch continues.
    expected = requests("0 list", "0 watch 10", "35 list", "35 watch 11")
    assert simulate(scenario(1800.0))[0] == expected
    expected = requests("0 list", "0 watch 10", "20 list", "20 watch 11")
    assert simulate(scenario(20.0))[0] == expected


def test_a_burst_yields_after_every_64_events() -> None:
    async def scenario() -> list[int]:
        consumer = Consumer()
        stream: list[Step] = [event("ADDED", f"p{n}", n) for n in range(11, 311)]
        api = ScriptedApi([listed(10)], [[*stream, *QUIET]])
        source = ApiSource(api=api, node_name="n1", clock=FixedJitterClock())
        seen: list[int] = []
        running = asyncio.ensure_future(source.run(consumer.send))
        while not seen or seen[-1] < 300:
            await asyncio.sleep(0)
            seen.append(len(consumer.updates) - 1)
        running.cancel()
        return seen

    assert [count for count in simulate(scenario())[0] if count > 0] == [64, 128, 192, 256, 300]


# Stored positions.


class Checkpoints:
    """Records stores, writes, syncs and updates in order."""

    def __init__(self, before: bytes | None = None) -> None:
        self.before = before
        self.calls: list[str] = []
        self.refuses = ""  # the call that fails

    def take(self, key: str) -> bytes | None:
        self.calls.append(f"take {key}")
        return self.before

    def old_keys(self) -> tuple[str, ...]:
        return ()

    def write(self, key: str, data: bytes) -> None:
        self.calls.append(f"write {key} {data.decode()}")
        self._maybe_fail("write")

    def drop(self, key: str) -> None:
        self.calls.append(f"drop {key}")

    async def settle(self, key: str | None = None) -> None:
        self.calls.append(f"settle {key}")
        await asyncio.sleep(1)

    def store(self, update: PodUpdate) -> None:
        self.calls.append(f"store {update.op}")
        self._maybe_fail("store")

    def send(self, update: PodUpdate) -> None:
        self.calls.append(f"send {update.op}")

    def _maybe_fail(self, call: str) -> None:
        if self.refuses == call:
            raise RuntimeError("the journal is closed")


def calls_of(
    checkpoints: Checkpoints,
    lists: Sequence[Listed[Pod] | Exception | float],
    *streams: Sequence[Step],
    seconds: float = 50,
) -> list[str]:
    async def scenario() -> None:
        api = ScriptedApi(lists, streams)
        source = ApiSource(
            api=api, node_name="n1", clock=FixedJitterClock(), checkpoints=checkpoints, store=checkpoints.store
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await source.run(checkpoints.send)

    simulate(scenario())
    return checkpoints.calls


def changed(version: int, *, phase: str | None = None, deleted: bool = False) -> ObjectEvent[Pod]:
    return ObjectEvent(WatchType.MODIFIED, pod("a", version=version, phase=phase, deleted=deleted), str(version))


def test_the_end_of_a_pod_is_sent_after_the_pod_and_the_position_are_durable() -> None:
    stream = [
        changed(11, phase="Running"),
        changed(12, phase="Running", deleted=True),
        changed(13, phase="Failed"),
        changed(14, phase="Succeeded"),
        changed(15, phase="Pending"),
        event("DELETED", "a", 16),
        *QUIET,
    ]
    assert calls_of(Checkpoints(), [listed(10, pod("a", version=3))], stream) == [
        "take api",
        *("store SET", "write api 10", "settle api", "send SET"),
        *("store UPDATE", "write api 11", "send UPDATE"),
        *("store UPDATE", "write api 12", "settle api", "send UPDATE"),
        *("store UPDATE", "write api 13", "settle api", "send UPDATE"),
        *("store UPDATE", "write api 14", "settle api", "send UPDATE"),
        *("store UPDATE", "write api 15", "send UPDATE"),
        *("store REMOVE", "write api 16", "settle api", "send REMOVE"),
    ]


def test_the_version_from_before_a_restart_is_used() -> None:
    assert calls_of(Checkpoints(b"15"), [listed(14), listed(15)], QUIET) == [
        "take api", "store SET", "write api 15", "settle api", "send SET",
    ]  # fmt: skip
    assert calls_of(Checkpoints(b"\xff"), [listed(14)], QUIET)[2:] == ["write api 14", "settle api", "send SET"]


def test_a_change_is_sent_even_if_it_cannot_be_stored() -> None:
    checkpoints = Checkpoints()
    checkpoints.refuses = "write"
    calls = calls_of(checkpoints, [listed(10)], QUIET, seconds=0.5)
    assert calls == ["take api", "store SET", "write api 10", "send SET"]


def test_the_position_is_not_stored_if_the_pods_cannot_be_stored() -> None:
    checkpoints = Checkpoints()
    checkpoints.refuses = "store"
    calls = calls_of(checkpoints, [listed(10)], QUIET, seconds=0.5)
    assert calls == ["take api", "store SET", "send SET"]


# The state of the reflector.


def test_a_list_is_stale_only_if_it_is_older() -> None:
    state = ReflectorState()
    assert not state.is_stale(listed(1))
    state.take_list(listed(10))
    versions = ["9", "10", "11", "", "x", "-1", "٩", "9" * 40, "1" + "0" * 40]
    assert [state.is_stale(listed(version)) for version in versions] == [True] + [False] * 8
    state.take_list(listed("5" + "0" * 39))
    assert [state.is_stale(listed(version)) for version in ("4" + "9" * 39, "4" + "9" * 38)] == [True, True]
    state.take_list(listed("1" + "0" * 40))  # 41 digits, so not a number
    assert not state.is_stale(listed(5))


def test_a_list_is_a_set_of_its_usable_pods() -> None:
    state = ReflectorState()
    usable, unnamed, without_uid = pod("a", version=3), pod("", version=4), pod("b", version=5, uid="")
    assert [is_usable(each) for each in (usable, unnamed, without_uid)] == [True, False, False]
    update, refused = state.take_list(listed(10, usable, unnamed, without_uid))
    assert (update, refused) == (PodUpdate(Op.SET, (usable,), "api"), (unnamed, without_uid))
    assert state.position == "10"


def test_an_unusable_pod_is_kept_unless_another_pod_has_its_name() -> None:
    state = ReflectorState()
    a, b, c = pod("a", version=3), pod("b", version=4), pod("c", version=5)
    state.take_list(listed(10, a, b, c))
    again = pod("b", version=12, uid="new")
    update, _ = state.take_list(listed(20, pod("a", version=11, uid=""), pod("b", version=11, uid=""), again))
    assert update.pods == (again, a)


def test_events_change_the_position_and_are_sent_once() -> None:
    state = ReflectorState()
    state.take_list(listed(10, pod("a", version=3)))
    updates = []
    for each in (
        event("MODIFIED", "a", 10),
        event("MODIFIED", "a", 10),
        event("ADDED", "old", 10),
        event("ADDED", "b", 12),
        event("ADDED", "c", 11),
        event("DELETED", "never", 13),
        event("ADDED", "never", 14),
        bookmark(20),
        event("ADDED", "d", 20),
        event("ADDED", "e", 21),
        event("DELETED", "e", 19),
        event("MODIFIED", "e", 22),
        event("ADDED", "", 23, uid="x"),
    ):
        update = state.take_event(each)
        updates.append((f"{update.op} {update.pods[0].metadata.name}" if update else None, state.position))
    assert updates == [
        ("UPDATE a", "10"),
        (None, "10"),
        (None, "10"),
        ("ADD b", "12"),
        ("ADD c", "12"),
        (None, "13"),
        (None, "14"),
        (None, "20"),
        (None, "20"),
        ("ADD e", "21"),
        ("REMOVE e", "21"),
        ("ADD e", "22"),
        (None, "23"),
    ]


def test_an_older_bookmark_does_not_undo_a_newer_one() -> None:
    state = ReflectorState()
    state.take_list(listed(10))
    for version in (30, 20, "x"):
        state.take_event(bookmark(version))
    assert state.take_event(event("ADDED", "a", 30)) is None
    assert state.take_event(event("ADDED", "a", 31)) is not None


def test_a_deletion_is_dropped_after_its_bookmark() -> None:
    state = ReflectorState()
    state.take_list(listed(10))
    for name, version in (("a", 20), ("b", 21), ("odd", "x")):
        state.take_event(event("DELETED", name, version))
    state.take_event(bookmark(20))
    updates = {name: state.take_event(event("ADDED", name, 25)) is not None for name in ("a", "b", "odd", "new")}
    assert updates == {"a": True, "b": False, "odd": False, "new": True}
