"""The API source against every way in which an API can misbehave, in virtual time."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from podkeeper.model.api import Listed, WatchEvent
from podkeeper.model.errors import ApiUnavailable, BadInput, Gone, Problem
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUpdate
from podkeeper.ports.source import Source, Tell
from podkeeper.sources.apiserver import ApiSource
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.sources.scripted_api import (
    FOR_EVER,
    Consumer,
    ScriptedApi,
    Step,
    bookmark,
    event,
    listed,
    pod,
)

RESET = ApiUnavailable("cannot read: connection reset")
GONE = Gone("cannot watch: too old")
QUIET: tuple[Step, ...] = (FOR_EVER,)


def play(
    lists: Sequence[Listed[Pod] | Exception | float],
    *streams: Sequence[Step],
    seconds: float = 60,
    tell: Tell | None = None,
) -> tuple[list[str], ScriptedApi, list[str]]:
    """Run a source over a script for some time. Returns what it told, the API with its requests, and the notes."""
    consumer, notes, api = Consumer(), list[str](), ScriptedApi(lists, streams)

    async def scenario() -> None:
        source: Source = ApiSource(api=api, node_name="n1", clock=VirtualClock(seed=1), note=notes.append)
        assert source.name == "api"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await source.run(tell or consumer.tell)

    simulate(scenario())
    return consumer.words, api, notes


def asked(api: ScriptedApi) -> list[str]:
    return [request for _, request in api.requests]


# What is told.

TOLD: dict[str, tuple[Sequence[Listed[Pod] | Exception | float], Sequence[Sequence[Step]], list[str]]] = {
    "an empty node is told too": ([listed(10)], [QUIET], ["SET"]),
    "each event is told by itself": (
        [listed(10, pod("a", 3))],
        [[event("ADDED", "b", 11), event("MODIFIED", "a", 12), event("DELETED", "b", 13), *QUIET]],
        ["SET a@3", "ADD b@11", "UPDATE a@12", "REMOVE b@13"],
    ),
    "a pod that is first heard of as modified is added": (
        [listed(10)],
        [[event("MODIFIED", "a", 11), *QUIET]],
        ["SET", "ADD a@11"],
    ),
    "a known pod that is added anew is updated": (
        [listed(10, pod("a", 3))],
        [[event("ADDED", "a", 11), *QUIET]],
        ["SET a@3", "UPDATE a@11"],
    ),
    "a name may come back under another UID": (
        [listed(10, pod("a", 3))],
        [[event("DELETED", "a", 11), event("ADDED", "a", 12, uid="other"), *QUIET]],
        ["SET a@3", "REMOVE a@11", "ADD a@12"],
    ),
    "repetitions say nothing": (
        [listed(10, pod("a", 3))],
        [[event("ADDED", "b", 11), event("ADDED", "b", 11), event("ADDED", "a", 3), *QUIET]],
        ["SET a@3", "ADD b@11"],
    ),
    "a deleted pod is not brought back by an old event": (
        [listed(10, pod("a", 3))],
        [[event("DELETED", "a", 12), event("MODIFIED", "a", 11), event("DELETED", "a", 12), *QUIET]],
        ["SET a@3", "REMOVE a@12"],
    ),
    "nor after a bookmark stands for its deletion": (
        [listed(10, pod("a", 3))],
        [[event("DELETED", "a", 12), bookmark(20), event("MODIFIED", "a", 11), *QUIET]],
        ["SET a@3", "REMOVE a@12"],
    ),
    "a bookmark from before a deletion does not hide it": (
        [listed(10, pod("a", 3))],
        [[event("DELETED", "a", 15), bookmark(12), event("MODIFIED", "a", 14), *QUIET]],
        ["SET a@3", "REMOVE a@15"],
    ),
    "a deletion may carry the pod's last version": (
        [listed(10, pod("a", 3))],
        [[event("DELETED", "a", 3), *QUIET]],
        ["SET a@3", "REMOVE a@3"],
    ),
    "events that overtook each other count for their own pods": (
        [listed(10)],
        [[event("ADDED", "b", 12), event("ADDED", "a", 11), *QUIET]],
        ["SET", "ADD b@12", "ADD a@11"],
    ),
    "versions are compared as numbers, not as text": (
        [listed(99, pod("a", 99))],
        [[event("MODIFIED", "a", 100), event("MODIFIED", "a", 99), *QUIET]],
        ["SET a@99", "UPDATE a@100"],
    ),
    "versions that are no numbers are told unless they are the same": (
        [listed("x", pod("a", "x"))],
        [[event("MODIFIED", "a", "x"), event("MODIFIED", "a", "w"), event("DELETED", "a", "w"), *QUIET]],
        ["SET a@x", "UPDATE a@w", "REMOVE a@w"],
    ),
    "a version of thousands of digits is no number": (
        [listed("9" * 5000)],
        [[event("ADDED", "a", 11), *QUIET]],
        ["SET", "ADD a@11"],
    ),
    "an event without a UID is refused, and the next one counts": (
        [listed(10, pod("a", 3))],
        [[event("ADDED", "b", 11, uid=""), event("DELETED", "", 12, uid=""), event("ADDED", "c", 13), *QUIET]],
        ["SET a@3", "ADD c@13"],
    ),
    "a listed pod without a UID does not remove the one of its name": (
        [listed(10, pod("a", 3), pod("b", 4)), listed(20, pod("a", 15, uid=""), pod("c", 16, uid=""))],
        [[GONE], QUIET],
        ["SET a@3 b@4", "SET a@3"],
    ),
    "nothing is told before a list succeeded": ([RESET, RESET, listed(10)], [QUIET], ["SET"]),
    "a list that never comes is given up and asked for again": ([FOR_EVER, listed(10)], [QUIET], ["SET"]),
    "a list older than what was seen removes nobody": (
        [listed(10), listed(10), listed(12, pod("a", 11))],
        [[event("ADDED", "a", 11), GONE], QUIET],
        ["SET", "ADD a@11", "SET a@11"],
    ),
    "nor one older than a bookmark": (
        [listed(10, pod("a", 3)), listed(19), listed(20, pod("a", 3))],
        [[bookmark(20), GONE], QUIET],
        ["SET a@3", "SET a@3"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("lists, streams, expected", TOLD.values(), ids=TOLD.keys())
def test_told(
    lists: Sequence[Listed[Pod] | Exception | float], streams: Sequence[Sequence[Step]], expected: list[str]
) -> None:
    assert play(lists, *streams, seconds=200)[0] == expected


# What is asked: each way in which watches of other clients were seen to fail.


def test_a_version_too_old_at_every_watch_is_no_hot_loop_and_lists_each_time() -> None:
    words, api, _ = play([listed(10), listed(20), listed(30)], [GONE], seconds=120)
    assert asked(api)[:6] == ["list", "watch 10", "list", "watch 20", "list", "watch 30"]
    assert len(api.requests) <= 16  # two per round; the rounds are 1, 2, 4, 8, 16, 30 s apart and more
    assert words[0] == "SET"


def test_the_same_event_before_every_error_does_not_make_the_loop_hot() -> None:
    _, api, _ = play([listed(10)], [event("ADDED", "a", 5), GONE], seconds=120)
    assert len(api.requests) <= 16


def test_nor_does_news_before_every_error() -> None:
    streams: list[list[Step]] = [[event("ADDED", f"p{n}", n * 10), GONE] for n in range(2, 30)]
    _, api, _ = play([listed(n * 10) for n in range(1, 30)], *streams, seconds=120)
    assert len(api.requests) <= 16


def test_a_stream_that_closes_at_once_is_asked_for_ever_more_rarely() -> None:
    _, api, _ = play([listed(10)], [], seconds=120)
    assert len(api.requests) <= 10
    gaps = [later - earlier for (earlier, _), (later, _) in zip(api.requests, api.requests[1:], strict=False)]
    watches = [gap for gap in gaps if gap > 0]
    assert watches == sorted(watches)
    assert watches[0] >= 1


def test_a_stream_that_lived_long_and_closes_is_renewed_at_once_from_where_it_was() -> None:
    _, api, _ = play([listed(10)], [event("ADDED", "a", 11), 290.0], QUIET, seconds=300)
    assert api.requests == [(0, "list"), (0, "watch 10"), (290, "watch 11")]
    assert api.closed == 2


def test_a_broken_connection_is_resumed_from_the_last_version_after_a_pause() -> None:
    words, api, notes = play([listed(10)], [event("ADDED", "a", 11), bookmark(15), RESET], QUIET)
    assert asked(api) == ["list", "watch 10", "watch 15"]
    assert 1 <= api.requests[2][0] <= 2
    assert words == ["SET", "ADD a@11"]
    assert any("broke" in line for line in notes)


def test_a_repetition_does_not_turn_the_watch_back() -> None:
    _, api, _ = play([listed(10)], [event("ADDED", "a", 11), event("ADDED", "b", 5), bookmark(4), RESET], QUIET)
    assert asked(api) == ["list", "watch 10", "watch 11"]


def test_a_stream_that_breaks_after_each_event_keeps_its_pace() -> None:
    streams: list[list[Step]] = [[event("ADDED", f"p{n}", n), RESET] for n in range(11, 31)]
    words, api, _ = play([listed(10)], *streams, QUIET, seconds=45)
    assert len(words) == 21
    assert "list" not in asked(api)[1:]


def test_a_stream_that_says_nothing_is_renewed() -> None:
    words, api, _ = play([listed(10, pod("a", 3))], QUIET, [event("ADDED", "b", 11), *QUIET], seconds=400)
    assert api.requests == [(0, "list"), (0, "watch 10"), (300, "watch 10")]
    assert words == ["SET a@3", "ADD b@11"]
    assert api.closed == 2


def test_bookmarks_keep_a_quiet_stream_alive() -> None:
    stream: list[Step] = [step for n in range(20) for step in (60.0, bookmark(11 + n))]
    _, api, _ = play([listed(10)], [*stream, *QUIET], seconds=850)
    assert asked(api) == ["list", "watch 10"]


def test_watches_that_bring_nothing_lead_to_a_list() -> None:
    # So a version from the future, which a server that lost its data refuses for ever, is left.
    _, api, _ = play([listed(10)], [RESET], [RESET], [RESET], QUIET)
    assert asked(api) == ["list", "watch 10", "watch 10", "watch 10", "list", "watch 10"]


def test_now_and_then_a_list_heals_what_the_stream_lost() -> None:
    stream: list[Step] = [step for n in range(100) for step in (60.0, bookmark(11 + n))]
    words, api, _ = play([listed(10, pod("a", 3)), listed(500, pod("b", 9))], stream, QUIET, seconds=1801)
    assert words == ["SET a@3", "SET b@9"]
    assert asked(api) == ["list", "watch 10", "list", "watch 500"]
    assert 900 <= api.requests[2][0] <= 1800


HEALING_LISTS: dict[str, Listed[Pod] | Exception | float] = {"fails": RESET, "hangs": FOR_EVER, "is stale": listed(5)}


@pytest.mark.parametrize("answer", HEALING_LISTS.values(), ids=HEALING_LISTS.keys())
def test_watching_goes_on_if_that_list(answer: Listed[Pod] | Exception | float) -> None:
    lively: list[list[Step]] = [[bookmark(500), *QUIET]]
    lively += [[event("ADDED", f"p{n}", n), *QUIET] for n in range(501, 540)]
    words, api, _ = play([listed(10), answer], *lively, seconds=2500)
    assert words == ["SET", *(f"ADD p{n}@{n}" for n in range(501, 501 + len(words) - 1))]
    assert len(words) >= 5
    assert asked(api).count("list") >= 5


def test_a_quiet_node_is_watched_between_healing_lists_that_fail() -> None:
    stream: list[Step] = [step for n in range(30) for step in (60.0, bookmark(11 + n))]
    _, api, _ = play([listed(10), RESET], [*stream, *QUIET], QUIET, seconds=2500)
    requests = [request.partition(" ")[0] for request in asked(api)]
    assert requests == ["list", "watch"] * (len(requests) // 2)
    assert len(requests) > 10


def test_while_the_api_is_away_for_a_day_nothing_is_removed_and_little_is_asked() -> None:
    words, api, _ = play([listed(10, pod("a", 3)), RESET], [300.0, RESET], [RESET], seconds=86_400)
    assert words == ["SET a@3"]
    assert len(api.requests) < 86_400 / 30 + 10


def test_a_server_that_stays_behind_is_believed_in_the_end() -> None:
    words, api, _ = play([listed(900, pod("a", 3)), listed(20, pod("b", 15))], [GONE], QUIET, seconds=300)
    assert words == ["SET a@3", "SET b@15"]
    assert asked(api) == ["list", "watch 900", *["list"] * 7, "watch 20"]
    assert api.requests[-1][0] > 60


def test_a_server_that_is_late_now_and_then_is_not_believed() -> None:
    rounds: list[Listed[Pod]] = []
    for fresh in range(900, 905):
        rounds += [listed(fresh, pod("a", 3)), *[listed(20)] * 4]
    words, _, _ = play([*rounds, listed(905, pod("a", 3))], [GONE], [GONE], [GONE], [GONE], [GONE], QUIET, seconds=1200)
    assert words == ["SET a@3"] * 6


def test_after_a_restore_a_pod_seen_deleted_may_live_again() -> None:
    words, _, _ = play(
        [listed(900, pod("a", 3)), listed(20)],
        [event("DELETED", "a", 901), GONE],
        [event("ADDED", "a", 21), *QUIET],
        seconds=300,
    )
    assert words == ["SET a@3", "REMOVE a@901", "SET", "ADD a@21"]


def test_pauses_differ_from_node_to_node() -> None:
    async def pauses(seed: int) -> list[float]:
        api = ScriptedApi([RESET], [QUIET])
        source = ApiSource(api=api, node_name="n1", clock=VirtualClock(seed=seed))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await source.run(Consumer().tell)
        return [at for at, _ in api.requests]

    assert simulate(pauses(1))[0] != simulate(pauses(2))[0]


def test_a_stream_that_is_left_is_closed() -> None:
    class Endless:
        """A stream that is no generator, so that nothing closes it by itself."""

        closed = 0

        def __aiter__(self) -> "Endless":
            return self

        async def __anext__(self) -> WatchEvent[Pod]:
            await asyncio.sleep(FOR_EVER)
            raise StopAsyncIteration

        async def aclose(self) -> None:
            self.closed += 1

    stream = Endless()

    class Api(ScriptedApi):
        def watch(self, *_: object, **__: object) -> Any:
            return stream

    async def scenario() -> None:
        source = ApiSource(api=Api([listed(10)], []), node_name="n1", clock=VirtualClock())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(700):
                await source.run(Consumer().tell)

    simulate(scenario())
    assert stream.closed == 3  # two silences, and the end


# Those who are told may fail.


@pytest.mark.parametrize("error", [BadInput(Problem("cannot merge that")), ZeroDivisionError()], ids=["refusal", "bug"])
def test_who_refuses_one_pod_is_told_of_the_others_and_later_of_everything(error: Exception) -> None:
    words: list[str] = []

    def tell(update: PodUpdate) -> None:
        words.append(update.op + "".join(f" {pod.metadata.name}" for pod in update.pods))
        if words == ["SET", "ADD bad"]:
            raise error

    stream = [event("ADDED", "bad", 11), event("ADDED", "good", 12), *QUIET]
    play([listed(10), listed(12, pod("bad", 11), pod("good", 12))], stream, QUIET, tell=tell)
    assert words == ["SET", "ADD bad", "ADD good", "SET bad good"]


def test_run_again_it_begins_with_a_set() -> None:
    async def scenario() -> list[str]:
        consumer = Consumer()
        api = ScriptedApi([listed(10, pod("a", 3))], [QUIET])
        source = ApiSource(api=api, node_name="n1", clock=VirtualClock())
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(10):
                    await source.run(consumer.tell)
        return consumer.words

    assert simulate(scenario())[0] == ["SET a@3", "SET a@3"]


def test_who_fails_to_note_harms_nobody() -> None:
    async def scenario() -> list[str]:
        consumer, broken = Consumer(), dict[str, str]()
        api = ScriptedApi([RESET, listed(10)], [[event("ADDED", "a", 11), *QUIET]])
        source = ApiSource(api=api, node_name="n1", clock=VirtualClock(), note=broken.__getitem__)  # type: ignore[arg-type]  # raises
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await source.run(consumer.tell)
        return consumer.words

    assert simulate(scenario())[0] == ["SET", "ADD a@11"]


def test_an_error_that_no_client_should_raise_is_survived() -> None:
    words, api, _ = play([listed(10)], [ZeroDivisionError()], [event("ADDED", "a", 11), *QUIET])
    assert words == ["SET", "SET", "ADD a@11"]
    assert asked(api) == ["list", "watch 10", "list", "watch 10"]


def test_a_burst_that_lies_ready_leaves_the_loop_to_others() -> None:
    async def scenario() -> int:
        stream = [event("ADDED", f"p{n}", n) for n in range(11, 2011)]
        consumer = Consumer()
        source = ApiSource(api=ScriptedApi([listed(10)], [[*stream, *QUIET]]), node_name="n1", clock=VirtualClock())
        async with asyncio.TaskGroup() as group:
            running = group.create_task(source.run(consumer.tell))
            turns = 0
            while len(consumer.words) < 2001:
                await asyncio.sleep(0)
                turns += 1
            running.cancel()
        return turns

    assert simulate(scenario())[0] > 20
