"""The event recorder in virtual time: what the API is told, what is kept without it, and that nobody ever waits."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar, cast

import msgspec
import pytest

from podkeeper.engine.events import EventKey, EventRecorder
from podkeeper.engine.postman import Postman
from podkeeper.model.errors import AlreadyExists, ApiError, ApiUnavailable, NotFound
from podkeeper.model.k8s.core import Event, EventSource, ObjectReference, Pod
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.model.wire import JSONObject, Wire
from podkeeper.rules.events import Limits, RecordedEvent
from podkeeper.rules.patch.strategic import apply
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import BEGINNING, VirtualClock, simulate
from tests.doubles import stand_in
from tests.violations import violation

K = TypeVar("K", bound=Wire)


def pod(name: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}", resource_version="7"))


def event(message: str = "Container started", *, type_: EventType = EventType.NORMAL, uid: str = "") -> PodEvent:
    return PodEvent(type_, "Started", message, uid, "spec.containers{app}")


@dataclass
class FakeApi:
    """Events in the API; `trouble` comes before a call takes effect, `lost` after it."""

    events: dict[str, Event] = field(default_factory=dict)
    trouble: Callable[[str, str], None] = lambda verb, name: None
    lost: Callable[[str, str], None] = lambda verb, name: None
    hung: set[str] = field(default_factory=set)  # pods whose events do not return
    calls: list[tuple[float, str]] = field(default_factory=list)

    @asynccontextmanager
    async def call(self, verb: str, name: str) -> AsyncIterator[None]:
        self.calls.append((asyncio.get_running_loop().time(), verb))
        while name.partition(".")[0] in self.hung:
            await asyncio.sleep(0.5)
        self.trouble(verb, name)
        yield
        self.lost(verb, name)

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
            old = msgspec.json.decode(msgspec.json.encode(self.events[name]))
            patched = msgspec.convert(apply(old, patch, "v1/Event"), Event)
            self.events[name] = patched
            return cast(K, patched)

    async def patch_status(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        raise violation("events have no status")

    async def delete(
        self,
        kind: type[K],
        name: str,
        namespace: str = "",
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None:
        raise violation("a recorder deletes nothing")

    def shown(self) -> list[tuple[str, int | None, str | None]]:
        """(pod, count, message) of all events, in the order of their names."""
        found = sorted(self.events.values(), key=lambda each: each.metadata.name or "")
        return [(each.involved_object.name or "", each.count, each.message) for each in found]


class Desk:
    """A recorder with its neighbours."""

    def __init__(
        self,
        *pods: Pod,
        api: bool = True,
        pending: int = 100,
        calls: PortCalls | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        self.api = FakeApi()
        self.clock = clock or VirtualClock()
        known = {PodUID(each.metadata.uid or ""): each for each in pods}
        self.recorder = EventRecorder(
            api=None if not api else self.api if calls is None else calls.watch("api", self.api),
            node_name="node-1",
            clock=self.clock,
            postman=Postman(clock=self.clock, what="event"),
            pod_by_uid=known.get,
            pending=pending,
            kept_per_pod=3,
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
        desk = Desk()
        async with desk.running():
            for _ in range(3):
                desk.recorder.record(event(), WEB)
                await asyncio.sleep(2)
        assert desk.api.shown() == [("web", 3, "Container started")]
        (made,) = desk.api.events.values()
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
        assert [verb for _, verb in desk.api.calls] == ["create", "patch", "patch"]

    simulate(scenario())


def test_different_events_of_one_instant_have_different_names() -> None:
    async def scenario() -> None:
        desk = Desk()
        async with desk.running():
            for number in range(5):
                desk.recorder.record(event(str(number)), WEB)
            await asyncio.sleep(1)
        assert desk.api.shown() == [("web", 1, str(number)) for number in range(5)]

    simulate(scenario())


def test_similar_events_are_combined() -> None:
    async def scenario() -> None:
        desk = Desk()
        async with desk.running():
            for number in range(12):
                desk.recorder.record(event(str(number)), WEB)
                await asyncio.sleep(1)
        assert desk.api.shown()[-1] == ("web", 3, "(combined from similar events): 11")
        assert len(desk.api.events) == 10

    simulate(scenario())


ABOUT: dict[str, tuple[PodEvent, Pod | PodRecord | ObjectReference | None, tuple[str | None, str | None]]] = {
    "a pod": (event(), WEB, ("web", "uid-web")),
    "a pod of the runtime": (event(), PodRecord(uid="u9", name="stray", namespace="ns"), ("stray", "u9")),
    "the pod of its UID": (event(uid="uid-web"), None, ("web", "uid-web")),
    "a reference": (event(), ObjectReference(kind="Node", name="node-1"), ("node-1", None)),
}


@pytest.mark.parametrize("what, about, expected", ABOUT.values(), ids=ABOUT.keys())
def test_an_event_names_its_subject(
    what: PodEvent, about: Pod | PodRecord | ObjectReference | None, expected: tuple[str | None, str | None]
) -> None:
    async def scenario() -> None:
        desk = Desk(WEB)
        desk.recorder.record(what, about)
        await desk.recorder.flush()
        (made,) = desk.api.events.values()
        assert (made.involved_object.name, made.involved_object.uid) == expected

    simulate(scenario())


def test_an_event_about_an_unknown_pod_is_kept_here(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.recorder.record(event(uid="uid-gone"))
        await desk.recorder.flush()
        assert desk.api.events == {}
        assert [kept.count for kept in desk.recorder.events_of(PodUID("uid-gone"))] == [1]

    simulate(scenario())
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []  # that is no trouble


def test_a_wrong_event_or_subject_is_dropped_without_an_error() -> None:
    async def scenario() -> None:
        desk = Desk(WEB)
        for wrong in (None, "text", object(), PodEvent(cast(EventType, "Odd"), "", "", "uid-web")):
            desk.recorder.record(cast(PodEvent, wrong), WEB)
            desk.recorder.record(event(), cast(Pod, wrong))
        await desk.recorder.flush()
        assert desk.api.shown() == []
        desk.recorder.record(event(), WEB)
        await desk.recorder.flush()
        assert desk.api.shown() == [("web", 1, "Container started")]

    simulate(scenario())


# What the postman gets.


@dataclass
class FakePostman:
    """Keeps what it is asked for; it delivers only what is drained."""

    offers: list[tuple[EventKey, Hashable, bool, bool]] = field(default_factory=list)  # the flags: urgent, at once
    drained: list[EventKey] = field(default_factory=list)

    def offer(self, key: EventKey, target: Hashable, *, urgent: bool = False, at_once: bool = False) -> None:
        self.offers.append((key, target, urgent, at_once))

    async def run(self, send: Callable[[EventKey], Awaitable[None]]) -> None:
        raise violation("these tests only drain")

    async def drain(self, keys: Iterable[EventKey], send: Callable[[EventKey], Awaitable[None]]) -> None:
        self.drained = list(keys)
        for key in self.drained:
            await send(key)
            await send(key)  # a key may have another turn when nothing is left to write


def key_of(name: str, number: int = 0) -> EventKey:
    """The key of the event that was recorded as the number-th in the first instant."""
    return "ns", f"{name}.{FIRST_STAMP + number:x}"


def test_each_event_is_its_own_target_and_only_warnings_are_urgent() -> None:
    async def scenario() -> None:
        post, api = FakePostman(), FakeApi()
        recorder = EventRecorder(api=api, node_name="node-1", clock=VirtualClock(), postman=stand_in(Postman, post))
        recorder.record(event("a"), WEB)
        recorder.record(event("b", type_=EventType.WARNING), WEB)
        recorder.record(event("a"), WEB)
        a, b = key_of("web"), key_of("web", 1)
        assert post.offers == [(a, a, False, False), (b, b, True, False), (a, a, False, False)]
        post.offers.clear()
        await recorder.flush()
        assert post.offers == [(a, a, False, True), (b, b, False, True)]
        assert post.drained == [a, b]
        assert [(name, count) for name, count, _ in api.shown()] == [("web", 2), ("web", 1)]
        await recorder.flush()
        assert (post.drained, len(api.calls)) == ([], 2)  # nothing waits any more

    simulate(scenario())


@pytest.mark.parametrize("api", [False, True], ids=["without an API", "with an API"])
def test_events_beyond_those_that_may_wait_are_dropped_and_counted(api: bool) -> None:
    async def scenario() -> None:
        desk = Desk(api=api, pending=2)
        dropped = []
        for name in ("a", "b", "a", "c", "b", "d"):
            desk.recorder.record(event(), pod(name))
            dropped.append(desk.recorder.dropped)
        await desk.recorder.flush()
        expected = [("a", 2, "Container started"), ("b", 2, "Container started")]
        assert (dropped, desk.api.shown()) == (([0, 0, 0, 1, 1, 2], expected) if api else ([0] * 6, []))

    simulate(scenario())


def test_by_default_4096_events_may_wait_and_32_of_a_pod_are_kept() -> None:
    async def scenario() -> None:
        recorder = EventRecorder(
            api=FakeApi(), node_name="node-1", clock=VirtualClock(), postman=stand_in(Postman, FakePostman())
        )
        for number in range(4096):
            recorder.record(event(), ObjectReference(kind="Pod", name=f"p{number}"))
        assert recorder.dropped == 0
        recorder.record(event(), ObjectReference(kind="Pod", name="last"))
        assert recorder.dropped == 1
        for number in range(33):
            recorder.record(event(str(number), uid="uid-many"))
        kept = recorder.events_of(PodUID("uid-many"))
        assert [each.event.message for each in kept] == [str(number) for number in range(1, 33)]

    simulate(scenario())


def test_an_event_beyond_the_limits_is_kept_but_not_written_and_still_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        api, clock = FakeApi(), VirtualClock()
        limits = Limits(burst=2, refill_seconds=60)
        recorder = EventRecorder(
            api=api, node_name="node-1", clock=clock, postman=stand_in(Postman, FakePostman()), limits=limits
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


def test_names_are_stamps_of_the_wall_clock_that_never_repeat_even_if_it_is_set_back() -> None:
    async def scenario() -> None:
        desk = Desk()
        for number, (sleep, jump) in enumerate(((0, 0), (0, 0), (0, -10), (0.000001, 10), (1, 0))):
            await asyncio.sleep(sleep)
            desk.clock.jump(jump)
            desk.recorder.record(event(str(number)), WEB)
        await desk.recorder.flush()
        stamps = [int(name.removeprefix("web."), 16) - FIRST_STAMP for name in sorted(desk.api.events)]
        assert stamps == [0, 1, 2, 1000, 1_000_001_000]

    simulate(scenario())


def test_names_begin_with_one_if_the_wall_clock_was_never_set() -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.clock.jump(-BEGINNING.timestamp())
        for number in range(2):
            desk.recorder.record(event(str(number)), WEB)
        await desk.recorder.flush()
        assert sorted(desk.api.events) == ["web.1", "web.2"]

    simulate(scenario())


def test_an_event_that_is_flushed_while_it_is_written_is_written_once() -> None:
    async def scenario() -> None:
        desk = Desk()
        async with desk.writing():
            flushing = asyncio.ensure_future(desk.recorder.flush())
            await asyncio.sleep(0.1)
        await flushing
        assert [verb for _, verb in desk.api.calls] == ["create"]

    simulate(scenario())


# Kept here.


def test_an_event_is_kept_under_its_own_uid_or_that_of_its_subject() -> None:
    async def scenario() -> None:
        desk = Desk(WEB)
        desk.recorder.record(event("0"), WEB)
        desk.recorder.record(event("1", uid="uid-other"), WEB)
        desk.recorder.record(event("2"), ObjectReference(kind="Node", name="node-1"))
        desk.recorder.record(event("3", uid="uid-gone"))
        desk.recorder.record(event("4"))
        kept = {uid: desk.recorder.events_of(PodUID(uid)) for uid in ("uid-web", "uid-other", "", "uid-gone")}

        def once(message: str, uid: str = "") -> tuple[RecordedEvent, ...]:
            return (RecordedEvent(event(message, uid=uid), 1, BEGINNING, BEGINNING),)

        assert kept == {
            "uid-web": once("0"),
            "uid-other": once("1", "uid-other"),
            "": (*once("2"), *once("4")),
            "uid-gone": once("3", "uid-gone"),
        }
        desk.recorder.keep_only([PodUID("uid-web"), PodUID("uid-new")])
        assert [bool(desk.recorder.events_of(PodUID(uid))) for uid in kept] == [True, False, False, False]

    simulate(scenario())


def test_a_repeated_event_is_kept_with_its_first_and_last_time() -> None:
    async def scenario() -> None:
        desk = Desk(WEB)
        for _ in range(3):
            desk.recorder.record(event(), WEB)
            await asyncio.sleep(5)

        def at(seconds: float) -> datetime:
            return BEGINNING + timedelta(seconds=seconds)

        assert desk.recorder.events_of(PodUID("uid-web")) == (RecordedEvent(event(), 3, at(0), at(10)),)

    simulate(scenario())


@pytest.mark.parametrize("api", [False, True])
def test_the_last_events_of_each_pod_are_kept_here_and_counted(api: bool) -> None:
    async def scenario() -> None:
        desk = Desk(WEB, pod("db"), api=api)
        desk.api.trouble = refuse
        async with desk.running():
            for message in ("a", "b", "b", "c", "d", "b"):
                desk.recorder.record(event(message), WEB)
                await asyncio.sleep(1)
        kept = desk.recorder.events_of(PodUID("uid-web"))
        assert [(each.event.message, each.count) for each in kept] == [("c", 1), ("d", 1), ("b", 3)]
        assert [(each.last_at - each.first_at).total_seconds() for each in kept] == [0, 0, 4]
        assert desk.recorder.events_of(PodUID("uid-db")) == ()
        desk.recorder.keep_only([PodUID("uid-web")])
        assert len(desk.recorder.events_of(PodUID("uid-web"))) == 3
        desk.recorder.keep_only(())
        assert desk.recorder.events_of(PodUID("uid-web")) == ()

    simulate(scenario())


def refuse(verb: str, name: str) -> None:
    raise ApiUnavailable("cannot connect")


# Trouble.


def test_after_an_hour_without_the_api_each_event_is_written_once_with_its_count() -> None:
    async def scenario() -> None:
        desk = Desk(pending=20)
        pods = [pod(f"p{index}") for index in range(30)]

        def trouble(verb: str, name: str) -> None:
            if desk.at < 3600:
                refuse(verb, name)

        desk.api.trouble = trouble
        async with desk.running():
            for _ in range(60):
                for each in pods:
                    desk.recorder.record(event(), each)
                await asyncio.sleep(60)
            assert desk.api.events == {}
            assert desk.recorder.dropped > 0
            calls = len(desk.api.calls)
            assert calls < 20 * 3600 / 10
            await asyncio.sleep(31)
            assert len(desk.api.calls) - calls == 20
        counts = {count for _, count, _ in desk.api.shown()}
        assert len(counts) == 1
        assert counts < set(range(55, 61))  # as of the last that was not too many: one in five minutes
        assert all(
            kept.count == 60 for each in pods for kept in desk.recorder.events_of(PodUID(each.metadata.uid or ""))
        )

    simulate(scenario())


def test_an_event_whose_creation_was_not_answered_is_not_lost_and_not_doubled() -> None:
    async def scenario() -> None:
        desk = Desk()

        def lost(verb: str, name: str) -> None:
            if desk.at < 0.1:
                raise ApiUnavailable("cannot read the answer")

        desk.api.lost = lost
        async with desk.running():
            desk.recorder.record(event(), WEB)
            await asyncio.sleep(0.2)
            desk.recorder.record(event(), WEB)
            await asyncio.sleep(10)
        assert desk.api.shown() == [("web", 2, "Container started")]
        assert [verb for _, verb in desk.api.calls] == ["create", "create", "patch"]

    simulate(scenario())


def test_an_event_the_api_has_forgotten_is_created_again() -> None:
    async def scenario() -> None:
        desk = Desk()
        async with desk.running():
            desk.recorder.record(event(), WEB)
            await asyncio.sleep(3601)
            desk.api.events.clear()
            desk.recorder.record(event(), WEB)
            await asyncio.sleep(1)
        assert desk.api.shown() == [("web", 2, "Container started")]

    simulate(scenario())


def test_an_event_that_is_refused_for_good_is_dropped() -> None:
    async def scenario() -> None:
        desk = Desk()

        def trouble(verb: str, name: str) -> None:
            raise ApiError("cannot create: the namespace is being terminated")

        desk.api.trouble = trouble
        async with desk.running():
            desk.recorder.record(event(), WEB)
            await asyncio.sleep(600)
            assert len(desk.api.calls) == 1
            await desk.recorder.flush()
            assert len(desk.api.calls) == 1
            desk.api.trouble = lambda verb, name: None
            desk.recorder.record(event(), WEB)
            await asyncio.sleep(1)
        assert desk.api.shown() == [("web", 2, "Container started")]
        assert [verb for _, verb in desk.api.calls] == ["create", "patch", "create"]

    simulate(scenario())


def test_a_repetition_that_comes_while_the_first_is_being_written_is_counted_afterwards() -> None:
    async def scenario() -> None:
        desk = Desk()
        async with desk.writing():
            for _ in range(4):
                desk.recorder.record(event(), WEB)
        assert desk.api.shown() == [("web", 5, "Container started")]
        assert [verb for _, verb in desk.api.calls] == ["create", "patch"]

    simulate(scenario())


def test_hung_calls_about_some_pods_do_not_delay_the_events_of_others() -> None:
    async def scenario() -> None:
        pods = [pod(f"p{index}") for index in range(100)]
        desk = Desk(*pods, pending=1000)
        desk.api.hung = {"p7"}
        async with desk.running():
            for each in pods:
                desk.recorder.record(event(), each)
            await asyncio.sleep(0.1)
            assert len(desk.api.events) == 99
            desk.api.hung = {f"p{index}" for index in range(30)}
            for each in pods:
                desk.recorder.record(event("again"), each)
            await asyncio.sleep(10.1)  # twice sixteen slots, five seconds each
            assert len(desk.api.events) == 99 + 70

    simulate(scenario())


def test_what_waits_can_be_written_before_the_agent_ends() -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.api.trouble = refuse
        async with desk.running():
            for number in range(9):
                desk.recorder.record(event(str(number)), WEB)
            await asyncio.sleep(0.1)
            desk.api.trouble = lambda verb, name: None
            await desk.recorder.flush()
            assert (len(desk.api.events), desk.at) == (9, 0.1)

    simulate(scenario())
