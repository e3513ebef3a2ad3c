"""The hub that passes runtime events on: filters, full queues and the end of streams."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import RuntimeEvent, RuntimeEventType
from podkeeper.runtimes.events import QUEUE_LIMIT, EventHub, EventStream
from podkeeper.testing.virtual_time import simulate


def event(name: str) -> RuntimeEvent:
    return RuntimeEvent(PodUID("u"), name, RuntimeEventType.STARTED, datetime(2026, 1, 1, tzinfo=UTC))


async def rest(stream: EventStream) -> list[str]:
    """The ids of all events that lie ready."""
    found = []
    with suppress(TimeoutError):
        async with asyncio.timeout(0.001):
            while True:
                found.append((await anext(stream)).container_id)
    return found


def test_every_stream_receives_events_after_it_was_opened() -> None:
    async def scenario() -> None:
        hub = EventHub()
        first = hub.subscribe()
        hub.send(event("a"))
        second = hub.subscribe()
        hub.send(event("b"))
        assert [await rest(each) for each in (first, second)] == [["a", "b"], ["b"]]
        assert aiter(first) is first

    simulate(scenario())


def test_a_consumer_that_waits_is_woken() -> None:
    async def scenario() -> None:
        hub = EventHub()
        stream = hub.subscribe()
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(1)
        hub.send(event("a"))
        hub.send(event("b"))
        assert [await waiting, await anext(stream)] == [event("a"), event("b")]
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        hub.send(event("c"))
        assert await anext(stream) == event("c")

    simulate(scenario())


def test_a_full_queue_breaks_the_stream_of_that_consumer_only() -> None:
    async def scenario() -> None:
        hub = EventHub(limit=2)
        slow, quick = hub.subscribe(), hub.subscribe()
        for name in "abcd":
            hub.send(event(name))
            assert await rest(quick) == [name]
        for _ in range(2):
            with pytest.raises(RuntimeUnavailable, match="cannot send more events: the consumer has not read 2 events"):
                await anext(slow)
        just_full = hub.subscribe()
        for name in "xy":
            hub.send(event(name))
        assert await rest(just_full) == ["x", "y"]

    simulate(scenario())


def test_the_default_limit_is_ten_thousand_events() -> None:
    async def scenario() -> None:
        stream = EventHub().subscribe()
        for _ in range(10_000):
            stream.put(event("a"))
        assert await anext(stream) == event("a")
        stream.put(event("a"))
        stream.put(event("a"))
        with pytest.raises(RuntimeUnavailable, match="the consumer has not read 10000 events"):
            await anext(stream)

    assert QUEUE_LIMIT == 10_000
    simulate(scenario())


def test_an_ended_stream_returns_its_queue_and_a_broken_one_does_not() -> None:
    async def scenario() -> None:
        ended, broken = EventHub(), EventHub()
        streams = ended.subscribe(), broken.subscribe()
        for hub in (ended, broken):
            hub.send(event("a"))
        ended.close(StopAsyncIteration())
        broken.close(RuntimeUnavailable("gone"))
        for hub in (ended, broken):
            hub.close(RuntimeUnavailable("too late"))
            hub.send(event("b"))
        assert [each.container_id async for each in streams[0]] == ["a"]
        with pytest.raises(RuntimeUnavailable, match="gone"):
            await anext(streams[1])

    simulate(scenario())


def test_the_end_wakes_a_consumer_that_waits() -> None:
    async def scenario() -> None:
        hub = EventHub()
        stream, other = hub.subscribe(), hub.subscribe()
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(1)
        hub.close(RuntimeUnavailable("gone"))
        with pytest.raises(RuntimeUnavailable, match="gone"):
            await waiting
        await other.aclose()
        with pytest.raises(RuntimeUnavailable, match="gone"):
            await anext(other)
        fresh = hub.subscribe()
        await fresh.aclose()
        hub.send(event("a"))
        assert [each async for each in fresh] == []

    simulate(scenario())


def test_filters_drop_repeat_and_delay_in_order() -> None:
    async def scenario() -> list[tuple[float, str]]:
        hub = EventHub()
        loop = asyncio.get_running_loop()
        hub.filters.append(lambda each: [] if each.container_id == "lost" else [(0.0, each), (2.0, event("twin"))])
        hub.filters.append(lambda each: [(3.0 if each.container_id == "twin" else 0.0, each)])
        stream = hub.subscribe()
        hub.send(event("lost"))
        hub.send(event("a"))
        names = [((await anext(stream)).container_id, loop.time()) for _ in range(2)]
        return [(at, name) for name, at in names]

    assert simulate(scenario())[0] == [(0.0, "a"), (5.0, "twin")]
