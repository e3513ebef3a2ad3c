"""The API source with all kinds of API failures, in virtual time."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from podkeeper.model.api import Listed, ObjectEvent
from podkeeper.model.errors import ApiUnavailable, BadInput, Gone, Problem
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUpdate
from podkeeper.ports.source import SendUpdate, Source
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
    send: SendUpdate | None = None,
) -> tuple[list[str], ScriptedApi, list[str]]:
    """Run a source on a script for some time. Return its updates, the API with its requests, and the messages."""
    consumer, messages, api = Consumer(), list[str](), ScriptedApi(lists, streams)

    async def scenario() -> None:
        source: Source = ApiSource(api=api, node_name="n1", clock=VirtualClock(seed=1), on_message=messages.append)
        assert source.name == "api"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await source.run(send or consumer.send)

    simulate(scenario())
    return consumer.updates, api, messages


def requests_of(api: ScriptedApi) -> list[str]:
    return [request for _, request in api.requests]


# Updates.

UPDATES: dict[str, tuple[Sequence[Listed[Pod] | Exception | float], Sequence[Sequence[Step]], list[str]]] = {
    "an empty node is an empty SET": ([listed(10)], [QUIET], ["SET"]),
    "each event is one update": (
        [listed(10, pod("a", version=3))],
        [[event("ADDED", "b", 11), event("MODIFIED", "a", 12), event("DELETED", "b", 13), *QUIET]],
        ["SET a@3", "ADD b@11", "UPDATE a@12", "REMOVE b@13"],
    ),
    "a modification of an unknown pod is an ADD": (
        [listed(10)],
        [[event("MODIFIED", "a", 11), *QUIET]],
        ["SET", "ADD a@11"],
    ),
    "an addition of a known pod is an UPDATE": (
        [listed(10, pod("a", version=3))],
        [[event("ADDED", "a", 11), *QUIET]],
        ["SET a@3", "UPDATE a@11"],
    ),
    "a name may be reused with another UID": (
        [listed(10, pod("a", version=3))],
        [[event("DELETED", "a", 11), event("ADDED", "a", 12, uid="other"), *QUIET]],
        ["SET a@3", "REMOVE a@11", "ADD a@12"],
    ),
    "a repeated event is ignored": (
        [listed(10, pod("a", version=3))],
        [[event("ADDED", "b", 11), event("ADDED", "b", 11), event("ADDED", "a", 3), *QUIET]],
        ["SET a@3", "ADD b@11"],
    ),
    "an old event does not restore a deleted pod": (
        [listed(10, pod("a", version=3))],
        [[event("DELETED", "a", 12), event("MODIFIED", "a", 11), event("DELETED", "a", 12), *QUIET]],
        ["SET a@3", "REMOVE a@12"],
    ),
    "an old event does not restore a pod deleted before a bookmark": (
        [listed(10, pod("a", version=3))],
        [[event("DELETED", "a", 12), bookmark(20), event("MODIFIED", "a", 11), *QUIET]],
        ["SET a@3", "REMOVE a@12"],
    ),
    "a bookmark from before a deletion does not undo it": (
        [listed(10, pod("a", version=3))],
        [[event("DELETED", "a", 15), bookmark(12), event("MODIFIED", "a", 14), *QUIET]],
        ["SET a@3", "REMOVE a@15"],
    ),
    "a deletion may carry the pod's last version": (
        [listed(10, pod("a", version=3))],
        [[event("DELETED", "a", 3), *QUIET]],
        ["SET a@3", "REMOVE a@3"],
    ),
    "events out of order apply to their own pods": (
        [listed(10)],
        [[event("ADDED", "b", 12), event("ADDED", "a", 11), *QUIET]],
        ["SET", "ADD b@12", "ADD a@11"],
    ),
    "versions are compared as numbers, not as text": (
        [listed(99, pod("a", version=99))],
        [[event("MODIFIED", "a", 100), event("MODIFIED", "a", 99), *QUIET]],
        ["SET a@99", "UPDATE a@100"],
    ),
    "versions that are not numbers are compared for equality": (
        [listed("x", pod("a", version="x"))],
        [[event("MODIFIED", "a", "x"), event("MODIFIED", "a", "w"), event("DELETED", "a", "w"), *QUIET]],
        ["SET a@x", "UPDATE a@w", "REMOVE a@w"],
    ),
    "a version of thousands of digits is not a number": (
        [listed("9" * 5000)],
        [[event("ADDED", "a", 11), *QUIET]],
        ["SET", "ADD a@11"],
    ),
    "an event without a UID is ignored, the next one is used": (
        [listed(10, pod("a", version=3))],
        [[event("ADDED", "b", 11, uid=""), event("DELETED", "", 12, uid=""), event("ADDED", "c", 13), *QUIET]],
        ["SET a@3", "ADD c@13"],
    ),
    "a listed pod without a UID does not remove the one of its name": (
        [
            listed(10, pod("a", version=3), pod("b", version=4)),
            listed(20, pod("a", version=15, uid=""), pod("c", version=16, uid="")),
        ],
        [[GONE], QUIET],
        ["SET a@3 b@4", "SET a@3"],
    ),
    "there is no update before a successful list": ([RESET, RESET, listed(10)], [QUIET], ["SET"]),
    "a list without an answer is requested again": ([FOR_EVER, listed(10)], [QUIET], ["SET"]),
    "a list older than a known version removes no pod": (
        [listed(10), listed(10), listed(12, pod("a", version=11))],
        [[event("ADDED", "a", 11), GONE], QUIET],
        ["SET", "ADD a@11", "SET a@11"],
    ),
    "a list older than a bookmark removes no pod": (
        [listed(10, pod("a", version=3)), listed(19), listed(20, pod("a", version=3))],
        [[bookmark(20), GONE], QUIET],
        ["SET a@3", "SET a@3"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("lists, streams, expected", UPDATES.values(), ids=UPDATES.keys())
def test_updates(
    lists: Sequence[Listed[Pod] | Exception | float], streams: Sequence[Sequence[Step]], expected: list[str]
) -> None:
    assert play(lists, *streams, seconds=200)[0] == expected


# Requests: failures that watches of other clients have shown.


def test_a_version_that_is_always_too_old_causes_lists_but_no_hot_loop() -> None:
    words, api, _ = play([listed(10), listed(20), listed(30)], [GONE], seconds=120)
    assert requests_of(api)[:6] == ["list", "watch 10", "list", "watch 20", "list", "watch 30"]
    assert len(api.requests) <= 16  # two per round, with pauses of 1, 2, 4, 8, 16, 30 s and more
    assert words[0] == "SET"


def test_the_same_event_before_every_error_causes_no_hot_loop() -> None:
    _, api, _ = play([listed(10)], [event("ADDED", "a", 5), GONE], seconds=120)
    assert len(api.requests) <= 16


def test_a_new_event_before_every_error_causes_no_hot_loop() -> None:
    streams: list[list[Step]] = [[event("ADDED", f"p{n}", n * 10), GONE] for n in range(2, 30)]
    _, api, _ = play([listed(n * 10) for n in range(1, 30)], *streams, seconds=120)
    assert len(api.requests) <= 16


def test_a_stream_that_closes_at_once_is_retried_with_backoff() -> None:
    _, api, _ = play([listed(10)], [], seconds=120)
    assert len(api.requests) <= 10
    gaps = [later - earlier for (earlier, _), (later, _) in zip(api.requests, api.requests[1:], strict=False)]
    watches = [gap for gap in gaps if gap > 0]
    assert watches == sorted(watches)
    assert watches[0] >= 1


def test_a_long_stream_that_closes_is_renewed_at_once_from_the_last_version() -> None:
    _, api, _ = play([listed(10)], [event("ADDED", "a", 11), 290.0], QUIET, seconds=300)
    assert api.requests == [(0, "list"), (0, "watch 10"), (290, "watch 11")]
    assert api.closed == 2


def test_a_broken_connection_is_resumed_from_the_last_version_after_a_pause() -> None:
    words, api, messages = play([listed(10)], [event("ADDED", "a", 11), bookmark(15), RESET], QUIET)
    assert requests_of(api) == ["list", "watch 10", "watch 15"]
    assert 1 <= api.requests[2][0] <= 2
    assert words == ["SET", "ADD a@11"]
    assert any("broke" in line for line in messages)


def test_a_repeated_event_does_not_move_the_watch_back() -> None:
    _, api, _ = play([listed(10)], [event("ADDED", "a", 11), event("ADDED", "b", 5), bookmark(4), RESET], QUIET)
    assert requests_of(api) == ["list", "watch 10", "watch 11"]


def test_a_stream_that_breaks_after_each_event_has_no_backoff() -> None:
    streams: list[list[Step]] = [[event("ADDED", f"p{n}", n), RESET] for n in range(11, 31)]
    words, api, _ = play([listed(10)], *streams, QUIET, seconds=45)
    assert len(words) == 21
    assert "list" not in requests_of(api)[1:]


def test_a_silent_stream_is_renewed() -> None:
    words, api, _ = play([listed(10, pod("a", version=3))], QUIET, [event("ADDED", "b", 11), *QUIET], seconds=400)
    assert api.requests == [(0, "list"), (0, "watch 10"), (300, "watch 10")]
    assert words == ["SET a@3", "ADD b@11"]
    assert api.closed == 2


def test_bookmarks_keep_a_quiet_stream_alive() -> None:
    stream: list[Step] = [step for n in range(20) for step in (60.0, bookmark(11 + n))]
    _, api, _ = play([listed(10)], [*stream, *QUIET], seconds=850)
    assert requests_of(api) == ["list", "watch 10"]


def test_watches_without_events_lead_to_a_list() -> None:
    # So the source gives up a version from the future, which a server without its data always refuses.
    _, api, _ = play([listed(10)], [RESET], [RESET], [RESET], QUIET)
    assert requests_of(api) == ["list", "watch 10", "watch 10", "watch 10", "list", "watch 10"]


def test_a_periodic_list_recovers_lost_events() -> None:
    stream: list[Step] = [step for n in range(100) for step in (60.0, bookmark(11 + n))]
    words, api, _ = play(
        [listed(10, pod("a", version=3)), listed(500, pod("b", version=9))], stream, QUIET, seconds=1801
    )
    assert words == ["SET a@3", "SET b@9"]
    assert requests_of(api) == ["list", "watch 10", "list", "watch 500"]
    assert 900 <= api.requests[2][0] <= 1800


HEALING_LISTS: dict[str, Listed[Pod] | Exception | float] = {"fails": RESET, "hangs": FOR_EVER, "is stale": listed(5)}


@pytest.mark.parametrize("answer", HEALING_LISTS.values(), ids=HEALING_LISTS.keys())
def test_the_watch_continues_if_the_periodic_list_fails(answer: Listed[Pod] | Exception | float) -> None:
    lively: list[list[Step]] = [[bookmark(500), *QUIET]]
    lively += [[event("ADDED", f"p{n}", n), *QUIET] for n in range(501, 540)]
    words, api, _ = play([listed(10), answer], *lively, seconds=2500)
    assert words == ["SET", *(f"ADD p{n}@{n}" for n in range(501, 501 + len(words) - 1))]
    assert len(words) >= 5
    assert requests_of(api).count("list") >= 5


def test_the_watch_continues_between_periodic_lists_that_fail() -> None:
    stream: list[Step] = [step for n in range(30) for step in (60.0, bookmark(11 + n))]
    _, api, _ = play([listed(10), RESET], [*stream, *QUIET], QUIET, seconds=2500)
    requests = [request.partition(" ")[0] for request in requests_of(api)]
    assert requests == ["list", "watch"] * (len(requests) // 2)
    assert len(requests) > 10


def test_an_outage_of_a_day_removes_no_pod_and_causes_few_requests() -> None:
    words, api, _ = play([listed(10, pod("a", version=3)), RESET], [300.0, RESET], [RESET], seconds=86_400)
    assert words == ["SET a@3"]
    assert len(api.requests) < 86_400 / 30 + 10


def test_a_server_that_stays_behind_is_accepted() -> None:
    words, api, _ = play(
        [listed(900, pod("a", version=3)), listed(20, pod("b", version=15))], [GONE], QUIET, seconds=300
    )
    assert words == ["SET a@3", "SET b@15"]
    assert requests_of(api) == ["list", "watch 900", *["list"] * 7, "watch 20"]
    assert api.requests[-1][0] > 60


def test_a_server_that_is_sometimes_behind_is_not_accepted() -> None:
    rounds: list[Listed[Pod]] = []
    for fresh in range(900, 905):
        rounds += [listed(fresh, pod("a", version=3)), *[listed(20)] * 4]
    words, _, _ = play(
        [*rounds, listed(905, pod("a", version=3))], [GONE], [GONE], [GONE], [GONE], [GONE], QUIET, seconds=1200
    )
    assert words == ["SET a@3"] * 6


def test_after_a_restore_a_deleted_pod_may_exist_again() -> None:
    words, _, _ = play(
        [listed(900, pod("a", version=3)), listed(20)],
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
                await source.run(Consumer().send)
        return [at for at, _ in api.requests]

    assert simulate(pauses(1))[0] != simulate(pauses(2))[0]


def test_streams_are_closed() -> None:
    class Endless:
        """A stream that is not a generator, so that nothing closes it automatically."""

        closed = 0

        def __aiter__(self) -> "Endless":
            return self

        async def __anext__(self) -> ObjectEvent[Pod]:
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
                await source.run(Consumer().send)

    simulate(scenario())
    assert stream.closed == 3  # two silent streams and the last one


# Failures of the receiver.


@pytest.mark.parametrize("error", [BadInput(Problem("cannot merge that")), ZeroDivisionError()], ids=["refusal", "bug"])
def test_after_a_refused_update_other_updates_and_then_a_list_are_sent(error: Exception) -> None:
    words: list[str] = []

    def send(update: PodUpdate) -> None:
        words.append(update.op + "".join(f" {pod.metadata.name}" for pod in update.pods))
        if words == ["SET", "ADD bad"]:
            raise error

    stream = [event("ADDED", "bad", 11), event("ADDED", "good", 12), *QUIET]
    play([listed(10), listed(12, pod("bad", version=11), pod("good", version=12))], stream, QUIET, send=send)
    assert words == ["SET", "ADD bad", "ADD good", "SET bad good"]


def test_a_second_run_starts_with_a_set() -> None:
    async def scenario() -> list[str]:
        consumer = Consumer()
        api = ScriptedApi([listed(10, pod("a", version=3))], [QUIET])
        source = ApiSource(api=api, node_name="n1", clock=VirtualClock())
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(10):
                    await source.run(consumer.send)
        return consumer.updates

    assert simulate(scenario())[0] == ["SET a@3", "SET a@3"]


def test_a_failing_message_callback_is_ignored() -> None:
    async def scenario() -> list[str]:
        consumer, broken = Consumer(), dict[str, str]()
        api = ScriptedApi([RESET, listed(10)], [[event("ADDED", "a", 11), *QUIET]])
        source = ApiSource(api=api, node_name="n1", clock=VirtualClock(), on_message=broken.__getitem__)  # type: ignore[arg-type]  # raises
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await source.run(consumer.send)
        return consumer.updates

    assert simulate(scenario())[0] == ["SET", "ADD a@11"]


def test_an_unexpected_error_does_not_end_the_source() -> None:
    words, api, _ = play([listed(10)], [ZeroDivisionError()], [event("ADDED", "a", 11), *QUIET])
    assert words == ["SET", "SET", "ADD a@11"]
    assert requests_of(api) == ["list", "watch 10", "list", "watch 10"]


def test_other_tasks_run_during_a_burst_of_events() -> None:
    async def scenario() -> int:
        stream = [event("ADDED", f"p{n}", n) for n in range(11, 2011)]
        consumer = Consumer()
        source = ApiSource(api=ScriptedApi([listed(10)], [[*stream, *QUIET]]), node_name="n1", clock=VirtualClock())
        async with asyncio.TaskGroup() as group:
            running = group.create_task(source.run(consumer.send))
            turns = 0
            while len(consumer.updates) < 2001:
                await asyncio.sleep(0)
                turns += 1
            running.cancel()
        return turns

    assert simulate(scenario())[0] > 20
