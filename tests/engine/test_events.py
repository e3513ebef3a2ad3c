"""The event recorder in virtual time: writes to the API, stored events, and failures of the API."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar, cast

import pytest

from podkeeper.engine.api_sender import ApiSender
from podkeeper.engine.events import EventKey, EventRecorder
from podkeeper.engine.history import PodHistory
from podkeeper.model.errors import AlreadyExists, ApiError, ApiUnavailable, NotFound
from podkeeper.model.history import EventRecorded
from podkeeper.model.k8s.core import Event, EventSource, ObjectReference, Pod
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.model.wire import JSONObject, Wire
from podkeeper.rules.events import EventLimits, RecordedEvent
from podkeeper.testing import build
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import BEGINNING, VirtualClock, simulate
from tests.doubles import stand_in
from tests.engine.fake_api import FakeApi, patched
from tests.engine.recording_sender import RecordingSender
from tests.violations import violation

K = TypeVar("K", bound=Wire)


pod = partial(build.pod, namespace="ns", version=7)


def event(message: str = "Container started", *, type_: EventType = EventType.NORMAL, uid: str = "") -> PodEvent:
    return PodEvent(type_, "Started", message, uid, "spec.containers{app}")


@dataclass
class EventsApi(FakeApi):
    """Events in the API. `fail_before` is called before a call takes effect, `fail_after` after it."""

    events: dict[str, Event] = field(default_factory=dict)
    fail_before: Callable[[str, str], None] = lambda verb, name: None
    fail_after: Callable[[str, str], None] = lambda verb, name: None
    hung: set[str] = field(default_factory=set)  # pods whose calls do not return
    calls: list[tuple[float, str]] = field(default_factory=list)

    @asynccontextmanager
    async def call(self, verb: str, name: str) -> AsyncIterator[None]:
        self.calls.append((asyncio.get_running_loop().time(), verb))
        while name.partition(".")[0] in self.hung:
            await asyncio.sleep(0.5)
        self.fail_before(verb, name)
        yield
        self.fail_after(verb, name)

    async def create(self, what: K) -> K:
        if not isinstance(what, Event):
            raise violation(f"a recorder creates only events, not {what}")
        name = what.metadata.name or ""
        async with self.call("create", name):
            if name in self.events:
                raise AlreadyExists(f"cannot create {name}: it is there")
            self.events[name] = what
            return what

    async def patch(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        async with self.call("patch", name):
            if name not in self.events or self.events[name].metadata.namespace != namespace:
                raise NotFound(f"cannot patch {name}: there is none")
            found = self.events[name] = patched(self.events[name], patch)
            return cast(K, found)

    def shown(self) -> list[tuple[str, int | None, str | None]]:
        """Return (pod, count, message) of all events, in the order of their names."""
        found = sorted(self.events.values(), key=lambda each: each.metadata.name or "")
        return [(each.involved_object.name or "", each.count, each.message) for each in found]


class EventsHarness:
    """A recorder with a fake API."""

    def __init__(
        self,
        *pods: Pod,
        api: bool = True,
        pending: int = 100,
        calls: PortCalls | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        self.api = EventsApi()
        self.clock = clock or VirtualClock()
        known = {PodUID(each.metadata.uid or ""): each for each in pods}
        self.recorder = EventRecorder(
            api=None if not api else self.api if calls is None else calls.watch("api", self.api),
            node_name="node-1",
            clock=self.clock,
            sender=ApiSender(clock=self.clock, what="event"),
            pod_by_uid=known.get,
            max_pending=pending,
            max_stored_per_pod=3,
        )

    @property
    def at(self) -> float:
        return self.clock.monotonic()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.recorder.run())
            yield
            task.cancel()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """The API answers the first event of pod web only after this block."""
        self.api.hung = {"web"}
        async with self.running():
            self.recorder.record(event(), WEB)
            await asyncio.sleep(0.1)
            yield
            self.api.hung = set()
            await asyncio.sleep(1)


WEB = pod("web")
FIRST_STAMP = int(BEGINNING.timestamp()) * 10**9


def test_an_event_is_created_and_its_repetitions_are_counted() -> None:
    async def scenario() -> None:
        harness = EventsHarness()
        async with harness.running():
            for _ in range(3):
                harness.recorder.record(event(), WEB)
                await asyncio.sleep(2)
        assert harness.api.shown() == [("web", 3, "Container started")]
        (made,) = harness.api.events.values()
        assert made == Event(
            api_version="v1",
            kind="Event",
            metadata=ObjectMeta(name=f"web.{FIRST_STAMP:x}", namespace="ns"),
            involved_object=ObjectReference(
                api_version="v1",
                kind="Pod",
                name="web",
                namespace="ns",
                uid="uid-web",
                resource_version="7",
                field_path="spec.containers{app}",
            ),
            type="Normal",
            reason="Started",
            message="Container started",
            count=3,
            first_timestamp="2026-01-01T00:00:00Z",
            last_timestamp="2026-01-01T00:00:04Z",
            source=EventSource(component="kubelet", host="node-1"),
            reporting_component="kubelet",
            reporting_instance="node-1",
        )
        assert [verb for _, verb in harness.api.calls] == ["create", "patch", "patch"]

    simulate(scenario())


def test_different_events_of_one_instant_have_different_names() -> None:
    async def scenario() -> None:
        harness = EventsHarness()
        async with harness.running():
            for number in range(5):
                harness.recorder.record(event(str(number)), WEB)
            await asyncio.sleep(1)
        assert harness.api.shown() == [("web", 1, str(number)) for number in range(5)]

    simulate(scenario())


def test_similar_events_are_aggregated() -> None:
    async def scenario() -> None:
        harness = EventsHarness()
        async with harness.running():
            for number in range(12):
                harness.recorder.record(event(str(number)), WEB)
                await asyncio.sleep(1)
        assert harness.api.shown()[-1] == ("web", 3, "(combined from similar events): 11")
        assert len(harness.api.events) == 10

    simulate(scenario())


ABOUT: dict[str, tuple[PodEvent, Pod | PodRecord | ObjectReference | None, tuple[str | None, str | None]]] = {
    "a pod": (event(), WEB, ("web", "uid-web")),
    "a pod of the runtime": (event(), PodRecord(uid="u9", name="stray", namespace="ns"), ("stray", "u9")),
    "the pod with its UID": (event(uid="uid-web"), None, ("web", "uid-web")),
    "a reference": (event(), ObjectReference(kind="Node", name="node-1"), ("node-1", None)),
}


@pytest.mark.parametrize("what, about, expected", ABOUT.values(), ids=ABOUT.keys())
def test_an_event_refers_to_its_object(
    what: PodEvent, about: Pod | PodRecord | ObjectReference | None, expected: tuple[str | None, str | None]
) -> None:
    async def scenario() -> None:
        harness = EventsHarness(WEB)
        harness.recorder.record(what, about)
        await harness.recorder.flush()
        (made,) = harness.api.events.values()
        assert (made.involved_object.name, made.involved_object.uid) == expected

    simulate(scenario())


def test_events_of_pods_are_in_their_history_and_events_of_the_node_name_it() -> None:
    async def scenario() -> None:
        clock, api = VirtualClock(), EventsApi()
        history = PodHistory(clock=clock)
        recorder = EventRecorder(
            api=api, node_name="node-1", clock=clock, sender=ApiSender(clock=clock, what="event"), history=history
        )
        recorder.record(PodEvent(EventType.NORMAL, "Pulled", "image web:1", "uid-web"), WEB)
        recorder.record_node(PodEvent(EventType.WARNING, "ImageGCFailed", "disk full"))
        assert [entry.event for entry in history.explain(PodUID("uid-web")).timeline] == [
            EventRecorded("Pulled", "image web:1")
        ]
        assert history.explain(PodUID("")).timeline == ()
        await recorder.flush()
        subjects = {event.reason: event.involved_object for event in api.events.values()}
        assert (subjects["ImageGCFailed"].kind, subjects["ImageGCFailed"].name) == ("Node", "node-1")
        assert (subjects["Pulled"].kind, subjects["Pulled"].name) == ("Pod", "web")

    simulate(scenario())


def test_an_event_of_an_unknown_pod_is_stored_but_not_written(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        harness = EventsHarness()
        harness.recorder.record(event(uid="uid-gone"))
        await harness.recorder.flush()
        assert harness.api.events == {}
        assert [stored.count for stored in harness.recorder.events_of(PodUID("uid-gone"))] == [1]

    simulate(scenario())
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []  # this is normal


def test_an_invalid_event_or_object_is_dropped_without_an_error() -> None:
    async def scenario() -> None:
        harness = EventsHarness(WEB)
        for wrong in (None, "text", object(), PodEvent(cast(EventType, "Odd"), "", "", "uid-web")):
            harness.recorder.record(cast(PodEvent, wrong), WEB)
            harness.recorder.record(event(), cast(Pod, wrong))
        await harness.recorder.flush()
        assert harness.api.shown() == []
        harness.recorder.record(event(), WEB)
        await harness.recorder.flush()
        assert harness.api.shown() == [("web", 1, "Container started")]

    simulate(scenario())


# Offers to the sender.


def sends_twice() -> RecordingSender[EventKey]:
    """Return a sender that calls twice for each key. The second call has nothing left to write."""
    return RecordingSender(times=2)


def key_of(name: str, number: int = 0) -> EventKey:
    """Return the key of the event with this number of the first instant."""
    return "ns", f"{name}.{FIRST_STAMP + number:x}"


def test_each_event_is_its_own_target_and_only_warnings_are_urgent() -> None:
    async def scenario() -> None:
        sender, api = sends_twice(), EventsApi()
        recorder = EventRecorder(api=api, node_name="node-1", clock=VirtualClock(), sender=stand_in(ApiSender, sender))
        recorder.record(event("a"), WEB)
        recorder.record(event("b", type_=EventType.WARNING), WEB)
        recorder.record(event("a"), WEB)
        a, b = key_of("web"), key_of("web", 1)
        assert sender.offers == [(a, a, False, False), (b, b, True, False), (a, a, False, False)]
        sender.offers.clear()
        await recorder.flush()
        assert sender.offers == [(a, a, False, True), (b, b, False, True)]
        assert sender.drained == [a, b]
        assert [(name, count) for name, count, _ in api.shown()] == [("web", 2), ("web", 1)]
        await recorder.flush()
        assert (sender.drained, len(api.calls)) == ([], 2)  # nothing is pending

    simulate(scenario())


@pytest.mark.parametrize("api", [False, True], ids=["without an API", "with an API"])
def test_events_above_the_pending_limit_are_dropped_and_counted(api: bool) -> None:
    async def scenario() -> None:
        harness = EventsHarness(api=api, pending=2)
        dropped = []
        for name in ("a", "b", "a", "c", "b", "d"):
            harness.recorder.record(event(), pod(name))
            dropped.append(harness.recorder.dropped)
        await harness.recorder.flush()
        expected = [("a", 2, "Container started"), ("b", 2, "Container started")]
        assert (dropped, harness.api.shown()) == (([0, 0, 0, 1, 1, 2], expected) if api else ([0] * 6, []))

    simulate(scenario())


def test_by_default_4096_events_can_be_pending_and_32_of_a_pod_are_stored() -> None:
    async def scenario() -> None:
        recorder = EventRecorder(
            api=EventsApi(),
            node_name="node-1",
            clock=VirtualClock(),
            sender=stand_in(ApiSender, sends_twice()),
        )
        for number in range(4096):
            recorder.record(event(), ObjectReference(kind="Pod", name=f"p{number}"))
        assert recorder.dropped == 0
        recorder.record(event(), ObjectReference(kind="Pod", name="last"))
        assert recorder.dropped == 1
        for number in range(33):
            recorder.record(event(str(number), uid="uid-many"))
        stored = recorder.events_of(PodUID("uid-many"))
        assert [each.event.message for each in stored] == [str(number) for number in range(1, 33)]

    simulate(scenario())


def test_an_event_above_the_rate_limit_is_stored_and_counted_but_not_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        api, clock = EventsApi(), VirtualClock()
        limits = EventLimits(burst=2, refill_seconds=60)
        recorder = EventRecorder(
            api=api,
            node_name="node-1",
            clock=clock,
            sender=stand_in(ApiSender, sends_twice()),
            limits=limits,
        )
        for _ in range(4):
            recorder.record(event(), WEB)
            await recorder.flush()
        assert [count for _, count, _ in api.shown()] == [2]
        assert [each.count for each in recorder.events_of(PodUID("uid-web"))] == [4]
        await asyncio.sleep(60)
        recorder.record(event(), WEB)
        await recorder.flush()
        assert [count for _, count, _ in api.shown()] == [5]

    simulate(scenario())
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


def test_event_names_have_unique_timestamps_even_if_the_wall_clock_is_set_back() -> None:
    async def scenario() -> None:
        harness = EventsHarness()
        for number, (sleep, jump) in enumerate(((0, 0), (0, 0), (0, -10), (0.000001, 10), (1, 0))):
            await asyncio.sleep(sleep)
            harness.clock.jump(jump)
            harness.recorder.record(event(str(number)), WEB)
        await harness.recorder.flush()
        stamps = [int(name.removeprefix("web."), 16) - FIRST_STAMP for name in sorted(harness.api.events)]
        assert stamps == [0, 1, 2, 1000, 1_000_001_000]

    simulate(scenario())


def test_event_names_start_at_one_if_the_wall_clock_was_never_set() -> None:
    async def scenario() -> None:
        harness = EventsHarness()
        harness.clock.jump(-BEGINNING.timestamp())
        for number in range(2):
            harness.recorder.record(event(str(number)), WEB)
        await harness.recorder.flush()
        assert sorted(harness.api.events) == ["web.1", "web.2"]

    simulate(scenario())


def test_an_event_that_is_flushed_during_its_write_is_written_once() -> None:
    async def scenario() -> None:
        harness = EventsHarness()
        async with harness.writing():
            flushing = asyncio.ensure_future(harness.recorder.flush())
            await asyncio.sleep(0.1)
        await flushing
        assert [verb for _, verb in harness.api.calls] == ["create"]

    simulate(scenario())


# Stored events.


def test_an_event_is_stored_under_its_own_uid_or_that_of_its_object() -> None:
    async def scenario() -> None:
        harness = EventsHarness(WEB)
        harness.recorder.record(event("0"), WEB)
        harness.recorder.record(event("1", uid="uid-other"), WEB)
        harness.recorder.record(event("2"), ObjectReference(kind="Node", name="node-1"))
        harness.recorder.record(event("3", uid="uid-gone"))
        harness.recorder.record(event("4"))
        stored = {uid: harness.recorder.events_of(PodUID(uid)) for uid in ("uid-web", "uid-other", "", "uid-gone")}

        def once(message: str, uid: str = "") -> tuple[RecordedEvent, ...]:
            return (RecordedEvent(event(message, uid=uid), 1, BEGINNING, BEGINNING),)

        assert stored == {
            "uid-web": once("0"),
            "uid-other": once("1", "uid-other"),
            "": (*once("2"), *once("4")),
            "uid-gone": once("3", "uid-gone"),
        }
        harness.recorder.keep_only([PodUID("uid-web"), PodUID("uid-new")])
        assert [bool(harness.recorder.events_of(PodUID(uid))) for uid in stored] == [True, False, False, False]

    simulate(scenario())


def test_a_repeated_event_is_stored_with_its_first_and_last_time() -> None:
    async def scenario() -> None:
        harness = EventsHarness(WEB)
        for _ in range(3):
            harness.recorder.record(event(), WEB)
            await asyncio.sleep(5)

        def at(seconds: float) -> datetime:
            return BEGINNING + timedelta(seconds=seconds)

        assert harness.recorder.events_of(PodUID("uid-web")) == (RecordedEvent(event(), 3, at(0), at(10)),)

    simulate(scenario())


@pytest.mark.parametrize("api", [False, True])
def test_the_last_events_of_each_pod_are_stored_and_counted(api: bool) -> None:
    async def scenario() -> None:
        harness = EventsHarness(WEB, pod("db"), api=api)
        harness.api.fail_before = unavailable
        async with harness.running():
            for message in ("a", "b", "b", "c", "d", "b"):
                harness.recorder.record(event(message), WEB)
                await asyncio.sleep(1)
        stored = harness.recorder.events_of(PodUID("uid-web"))
        assert [(each.event.message, each.count) for each in stored] == [("c", 1), ("d", 1), ("b", 3)]
        assert [(each.last_at - each.first_at).total_seconds() for each in stored] == [0, 0, 4]
        assert harness.recorder.events_of(PodUID("uid-db")) == ()
        harness.recorder.keep_only([PodUID("uid-web")])
        assert len(harness.recorder.events_of(PodUID("uid-web"))) == 3
        harness.recorder.keep_only(())
        assert harness.recorder.events_of(PodUID("uid-web")) == ()

    simulate(scenario())


def unavailable(verb: str, name: str) -> None:
    raise ApiUnavailable("cannot connect")


# Failures.


def test_after_an_hour_without_the_api_each_event_is_written_once_with_its_count() -> None:
    async def scenario() -> None:
        harness = EventsHarness(pending=20)
        pods = [pod(f"p{index}") for index in range(30)]

        def fail_before(verb: str, name: str) -> None:
            if harness.at < 3600:
                unavailable(verb, name)

        harness.api.fail_before = fail_before
        async with harness.running():
            for _ in range(60):
                for each in pods:
                    harness.recorder.record(event(), each)
                await asyncio.sleep(60)
            assert harness.api.events == {}
            assert harness.recorder.dropped > 0
            calls = len(harness.api.calls)
            assert calls < 20 * 3600 / 10
            await asyncio.sleep(31)
            assert len(harness.api.calls) - calls == 20
        counts = {count for _, count, _ in harness.api.shown()}
        assert len(counts) == 1
        assert counts < set(range(55, 61))  # the rate limit allows one in five minutes
        assert all(
            stored.count == 60
            for each in pods
            for stored in harness.recorder.events_of(PodUID(each.metadata.uid or ""))
        )

    simulate(scenario())


def test_an_event_whose_create_call_lost_its_answer_is_written_once() -> None:
    async def scenario() -> None:
        harness = EventsHarness()

        def fail_after(verb: str, name: str) -> None:
            if harness.at < 0.1:
                raise ApiUnavailable("cannot read the answer")

        harness.api.fail_after = fail_after
        async with harness.running():
            harness.recorder.record(event(), WEB)
            await asyncio.sleep(0.2)
            harness.recorder.record(event(), WEB)
            await asyncio.sleep(10)
        assert harness.api.shown() == [("web", 2, "Container started")]
        assert [verb for _, verb in harness.api.calls] == ["create", "create", "patch"]

    simulate(scenario())


def test_an_expired_event_is_created_again() -> None:
    async def scenario() -> None:
        harness = EventsHarness()
        async with harness.running():
            harness.recorder.record(event(), WEB)
            await asyncio.sleep(3601)
            harness.api.events.clear()
            harness.recorder.record(event(), WEB)
            await asyncio.sleep(1)
        assert harness.api.shown() == [("web", 2, "Container started")]

    simulate(scenario())


def test_an_event_that_the_api_rejects_is_dropped() -> None:
    async def scenario() -> None:
        harness = EventsHarness()

        def fail_before(verb: str, name: str) -> None:
            raise ApiError("cannot create: the namespace is being terminated")

        harness.api.fail_before = fail_before
        async with harness.running():
            harness.recorder.record(event(), WEB)
            await asyncio.sleep(600)
            assert len(harness.api.calls) == 1
            await harness.recorder.flush()
            assert len(harness.api.calls) == 1
            harness.api.fail_before = lambda verb, name: None
            harness.recorder.record(event(), WEB)
            await asyncio.sleep(1)
        assert harness.api.shown() == [("web", 2, "Container started")]
        assert [verb for _, verb in harness.api.calls] == ["create", "patch", "create"]

    simulate(scenario())


def test_a_repetition_during_the_first_write_is_counted_afterwards() -> None:
    async def scenario() -> None:
        harness = EventsHarness()
        async with harness.writing():
            for _ in range(4):
                harness.recorder.record(event(), WEB)
        assert harness.api.shown() == [("web", 5, "Container started")]
        assert [verb for _, verb in harness.api.calls] == ["create", "patch"]

    simulate(scenario())


def test_hung_calls_for_some_pods_do_not_delay_the_events_of_others() -> None:
    async def scenario() -> None:
        pods = [pod(f"p{index}") for index in range(100)]
        harness = EventsHarness(*pods, pending=1000)
        harness.api.hung = {"p7"}
        async with harness.running():
            for each in pods:
                harness.recorder.record(event(), each)
            await asyncio.sleep(0.1)
            assert len(harness.api.events) == 99
            harness.api.hung = {f"p{index}" for index in range(30)}
            for each in pods:
                harness.recorder.record(event("again"), each)
            await asyncio.sleep(10.1)  # two rounds of sixteen slots, with a lease of five seconds
            assert len(harness.api.events) == 99 + 70

    simulate(scenario())


def test_flush_writes_all_pending_events() -> None:
    async def scenario() -> None:
        harness = EventsHarness()
        harness.api.fail_before = unavailable
        async with harness.running():
            for number in range(9):
                harness.recorder.record(event(str(number)), WEB)
            await asyncio.sleep(0.1)
            harness.api.fail_before = lambda verb, name: None
            await harness.recorder.flush()
            assert (len(harness.api.events), harness.at) == (9, 0.1)

    simulate(scenario())
