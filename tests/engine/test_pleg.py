"""PLEG in virtual time: with any loss of events, the cache follows the runtime and every change is reported."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf, nextafter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.engine.bounded_runtime import BoundedRuntime
from podkeeper.engine.cache import PodCache
from podkeeper.engine.observer import Observer
from podkeeper.engine.pleg import Pleg, PlegTiming
from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable
from podkeeper.model.messages import LifecycleEvent, LifecycleEventType, PodUID
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState, SandboxRecord
from podkeeper.model.runtime_calls import RuntimeEvent, RuntimeEventType
from podkeeper.testing.virtual_time import BEGINNING, VirtualClock, simulate
from tests.doubles import stand_in

CREATED, RUNNING, EXITED, UNKNOWN = RecordState
STARTED, DIED, REMOVED, CHANGED, SYNC = LifecycleEventType
WEB, DB = PodUID("web"), PodUID("db")
KINDS = {RUNNING: RuntimeEventType.STARTED, EXITED: RuntimeEventType.STOPPED, None: RuntimeEventType.DELETED}


def record(uid: PodUID, states: dict[str, RecordState]) -> PodRecord:
    """Return a pod with these containers. Its sandbox has an address while a container runs."""
    ips = ("10.0.0.1",) if RUNNING in states.values() else ()
    containers = tuple(ContainerRecord(id=key, name=key, state=state) for key, state in states.items())
    return PodRecord(uid=uid, name=uid, namespace="ns", ips=ips, containers=containers)


class Runtime:
    """Pods in a dictionary. An inspection or listing takes time, and reads the state half-way through it."""

    def __init__(self) -> None:
        self.pods: dict[PodUID, dict[str, RecordState]] = {}
        self.inspection_seconds = 0.0
        self.list_seconds = 0.0
        self.hung: set[PodUID] = set()
        self.refusing: set[PodUID] = set()
        self.list_hangs = False
        self.list_error: Exception | None = None
        self.inspection_error: Exception | None = None
        self.has_stream = True
        self.inspections: list[tuple[PodUID, float]] = []
        self.lists: list[float] = []
        self.streams: list[asyncio.Queue[RuntimeEvent | None]] = []

    def put(self, uid: PodUID, state: RecordState | None, container: str = "app", send: bool = True) -> None:
        """Set the state of a container, or remove it, and send an event."""
        pod = self.pods.setdefault(uid, {})
        pod.pop(container, None)
        if state is not None:
            pod[container] = state
        if not pod:
            del self.pods[uid]
        if send:
            self.send(uid, container, state)

    def send(
        self,
        uid: PodUID,
        container: str = "app",
        state: RecordState | None = RUNNING,
        happened: datetime = BEGINNING,
    ) -> None:
        for stream in self.streams:
            stream.put_nowait(RuntimeEvent(uid, container, KINDS.get(state, RuntimeEventType.CREATED), happened))

    def break_streams(self) -> None:
        for stream in self.streams:
            stream.put_nowait(None)

    def record(self, uid: PodUID) -> PodRecord:
        return record(uid, self.pods[uid]) if uid in self.pods else PodRecord(uid=uid)

    async def pod_record(self, uid: PodUID) -> PodRecord:
        self.inspections.append((uid, now()))
        await asyncio.sleep(self.inspection_seconds / 2)
        if uid in self.hung:
            await asyncio.Event().wait()
        if uid in self.refusing:
            raise RuntimeRefused("cannot inspect")
        found = self.record(uid)
        await asyncio.sleep(self.inspection_seconds / 2)
        if self.inspection_error is not None:
            raise self.inspection_error
        return found

    async def list_pods(self) -> Sequence[PodRecord]:
        self.lists.append(now())
        await asyncio.sleep(self.list_seconds / 2)
        if self.list_hangs:
            await asyncio.Event().wait()
        found = [self.record(uid) for uid in self.pods]
        await asyncio.sleep(self.list_seconds / 2)
        if self.list_error is not None:
            raise self.list_error
        return found

    async def events(self) -> AsyncIterator[RuntimeEvent]:
        if not self.has_stream:
            raise RuntimeUnavailable("cannot stream events")
        stream: asyncio.Queue[RuntimeEvent | None] = asyncio.Queue()
        self.streams.append(stream)
        try:
            while (event := await stream.get()) is not None:
                yield event
        finally:
            self.streams.remove(stream)


class UnknownInListings(Runtime):
    """Shows containers as UNKNOWN in every listing."""

    async def list_pods(self) -> Sequence[PodRecord]:
        await super().list_pods()
        return [record(uid, dict.fromkeys(states, UNKNOWN)) for uid, states in self.pods.items()]


class Counts(Observer):
    """An observer that records its calls. `seen` holds calls with their arguments, except those about events."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []
        self.missed_pods = 0
        self.discarded_events = 0
        self.intervals: list[float | None] = []
        self.latencies: list[float] = []
        self.breaks = 0

    def relisted(self, seconds: float, interval_seconds: float | None) -> None:
        self.seen.append(("relisted", seconds, interval_seconds))
        self.intervals.append(interval_seconds)

    def pods_listed(self, pods: Sequence[PodRecord], now: datetime) -> None:
        self.seen.append(("listed", [pod.uid for pod in pods], (now - BEGINNING).total_seconds()))

    def inspected(self, seconds: float) -> None:
        self.seen.append(("inspected", seconds))

    def events_missed(self, pods: int) -> None:
        self.missed_pods += pods

    def event_discarded(self) -> None:
        self.discarded_events += 1

    def event_received(self, latency_seconds: float) -> None:
        self.latencies.append(latency_seconds)

    def stream_opened(self) -> None:
        self.seen.append(("opened", now()))

    def stream_ended(self) -> None:
        self.seen.append(("broke", now()))
        self.breaks += 1


@dataclass
class PlegHarness:
    """A PLEG and its modules. `sent` holds each event with its time and the record cached at that time."""

    runtime: Runtime = field(default_factory=Runtime)
    timing: PlegTiming = field(default_factory=PlegTiming)
    counts: Counts = field(default_factory=Counts)
    sent: list[tuple[float, LifecycleEvent, PodRecord]] = field(default_factory=list)
    emit_fails: bool = False
    last: float = -inf

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.cache = PodCache()
        self.pleg = Pleg(
            runtime=stand_in(BoundedRuntime, self.runtime),
            cache=self.cache,
            emit=self.emit,
            clock=self.clock,
            inspection_clock=self.moment,
            timing=self.timing,
            observer=self.counts,
        )

    def moment(self) -> float:
        self.last = max(now(), nextafter(self.last, inf))
        return self.last

    def emit(self, event: LifecycleEvent) -> None:
        if self.emit_fails:
            raise RuntimeError("no room")
        self.sent.append((now(), event, self.cache.get(event.uid)))

    def events_sent(self) -> list[tuple[float, str, LifecycleEventType]]:
        return [(at, event.uid, event.type) for at, event, _ in self.sent]


def now() -> float:
    return asyncio.get_running_loop().time()


async def fail_inspections(harness: "PlegHarness", *, seconds: float) -> None:
    """Make inspections of WEB fail for some seconds, and request one."""
    harness.runtime.refusing.add(WEB)
    harness.pleg.request(WEB)
    await asyncio.sleep(seconds)
    harness.runtime.refusing.clear()


def run_scenario(
    scenario: Callable[[PlegHarness], Awaitable[None]],
    runtime: Runtime | None = None,
    timing: PlegTiming | None = None,
    kind: type[PlegHarness] = PlegHarness,
) -> PlegHarness:
    """Run a PLEG and a scenario in virtual time."""

    async def run() -> PlegHarness:
        harness = kind(runtime or Runtime(), timing or PlegTiming())
        bugs: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, bug: bugs.append(bug))
        running = asyncio.ensure_future(harness.pleg.run())
        await scenario(harness)
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert bugs == []
        return harness

    return simulate(run())[0]


def runtime_with(**pods: RecordState) -> Runtime:
    runtime = Runtime()
    for uid, state in pods.items():
        runtime.put(PodUID(uid), state)
    return runtime


# Events and requests.


def test_an_event_causes_an_inspection_then_a_cache_entry_then_lifecycle_events() -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.inspection_seconds = 0.25
        await asyncio.sleep(30.25)
        harness.runtime.put(WEB, RUNNING)
        await asyncio.sleep(1)

    harness = run_scenario(scenario)
    assert harness.events_sent() == [(30.5, "web", STARTED)]
    assert harness.sent[0][2] == record(WEB, {"app": RUNNING})
    assert harness.counts.latencies == [30.25]


def test_the_removal_of_a_container_that_never_started_is_not_reported_as_died() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.put(WEB, CREATED, "next")
        await asyncio.sleep(1)
        harness.runtime.put(WEB, None, "next")
        await asyncio.sleep(1)

    assert run_scenario(scenario, runtime_with(web=RUNNING)).events_sent()[1:] == [(31.0, "web", REMOVED)]


def test_pods_that_exist_at_the_start_are_reported() -> None:
    harness = run_scenario(lambda harness: asyncio.sleep(1), runtime_with(web=RUNNING, db=EXITED))
    assert sorted(harness.events_sent()) == [(0.0, "db", DIED), (0.0, "web", STARTED)]
    assert harness.counts.missed_pods == 0


def test_a_reader_gets_a_record_after_its_own_action_without_a_relist() -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.inspection_seconds = 0.1
        await asyncio.sleep(30)
        since = harness.moment()
        harness.runtime.put(WEB, RUNNING, send=False)
        found = await harness.cache.get_newer_than(WEB, since)
        assert (found, now()) == (record(WEB, {"app": RUNNING}), 30.1)
        assert await harness.cache.get_newer_than(WEB, since) == found

    harness = run_scenario(scenario)
    assert harness.runtime.inspections == [(WEB, 30.0)]
    assert harness.counts.missed_pods == 0


def test_an_inspection_of_an_absent_pod_ends_the_wait_and_leaves_no_state() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        assert await harness.cache.get_newer_than(WEB, harness.moment()) == PodRecord(uid=WEB)

    assert run_scenario(scenario).events_sent() == []


def test_requests_during_an_inspection_cause_one_more() -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.inspection_seconds = 1.0
        await asyncio.sleep(30)
        for _ in range(5):
            harness.pleg.request(WEB)
        await asyncio.sleep(0.6)  # the inspection read the state after half a second
        harness.runtime.put(WEB, RUNNING, send=False)
        for _ in range(5):
            harness.pleg.request(WEB)
        await asyncio.sleep(5)

    harness = run_scenario(scenario)
    assert harness.runtime.inspections == [(WEB, 30.0), (WEB, 31.0)]
    assert harness.events_sent() == [(32.0, "web", STARTED)]


def test_a_running_inspection_serves_only_actions_before_its_begin() -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.inspection_seconds = 1.0
        harness.runtime.put(WEB, RUNNING, send=False)
        await asyncio.sleep(30)
        acted = harness.moment()
        harness.pleg.request(WEB)
        await asyncio.sleep(0.2)
        await harness.cache.get_newer_than(WEB, acted)
        assert now() == 31.0
        harness.pleg.request(WEB)
        await asyncio.sleep(0.2)
        await harness.cache.get_newer_than(WEB, harness.moment())
        assert now() == 33.0

    harness = run_scenario(scenario)
    assert [at for _, at in harness.runtime.inspections if at >= 30] == [30.0, 31.0, 32.0]


def test_an_ended_pod_keeps_its_address() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(10)
        harness.runtime.put(WEB, EXITED)
        await asyncio.sleep(1)
        assert harness.cache.get(WEB).ips == ("10.0.0.1",)

    run_scenario(scenario, runtime_with(web=RUNNING))


def test_a_pod_that_disappears_is_dropped_and_its_end_reported() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(10)
        harness.runtime.put(WEB, None)
        harness.runtime.put(DB, None, send=False)
        await asyncio.sleep(60)
        assert (harness.cache.get(WEB), harness.cache.get(DB)) == (PodRecord(uid=WEB), PodRecord(uid=DB))

    harness = run_scenario(scenario, runtime_with(web=RUNNING, db=RUNNING))
    assert harness.events_sent()[2:] == [
        (10.0, "web", DIED), (10.0, "web", REMOVED), (65.0, "db", DIED), (65.0, "db", REMOVED),
    ]  # fmt: skip


def test_a_sandbox_alone_is_a_pod() -> None:
    class Boxes(Runtime):
        def record(self, uid: PodUID) -> PodRecord:
            return PodRecord(uid=uid, sandboxes=(SandboxRecord(id="box", ready=True),))

    async def scenario(harness: PlegHarness) -> None:
        harness.pleg.request(WEB)
        await asyncio.sleep(1)

    assert run_scenario(scenario, Boxes()).events_sent() == [(0.0, "web", STARTED)]


# The relist.


def test_with_events_the_relist_is_slow_once_the_stream_is_trusted() -> None:
    harness = run_scenario(lambda harness: asyncio.sleep(130), runtime_with(web=RUNNING))
    assert harness.runtime.lists == [0, 1, 2, 3, 4, 5, 65, 125]
    assert harness.counts.intervals == [None, 1, 1, 1, 1, 1, 60, 60]
    assert len(harness.runtime.inspections) == 1


def test_without_events_the_relist_period_is_that_of_the_kubelet() -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.has_stream = False
        await asyncio.sleep(100.5)
        harness.runtime.put(WEB, RUNNING)
        await asyncio.sleep(20)

    harness = run_scenario(scenario)
    assert [at for at in harness.runtime.lists if 40 < at < 60] == list(range(41, 60))
    assert harness.events_sent() == [(101.0, "web", STARTED)]
    assert harness.counts.missed_pods == 0  # no event was possible


def test_a_stream_that_ends_at_once_again_and_again_counts_as_none() -> None:
    class EndingStreams(Runtime):
        async def events(self) -> AsyncIterator[RuntimeEvent]:
            return
            yield

    harness = run_scenario(lambda harness: asyncio.sleep(60.5), EndingStreams())
    assert set(range(60)) <= set(harness.runtime.lists)
    assert harness.counts.breaks < 12  # retried with backoff


def test_after_a_break_there_is_a_relist_and_the_stream_is_followed_again() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.put(WEB, RUNNING, send=False)
        harness.runtime.break_streams()
        await asyncio.sleep(20)
        harness.runtime.put(WEB, EXITED)
        await asyncio.sleep(1)

    harness = run_scenario(scenario)
    assert harness.events_sent() == [(30.0, "web", STARTED), (50.0, "web", DIED)]
    assert harness.counts.missed_pods == 0  # PLEG does not count changes during a break


def test_the_relist_finds_a_lost_event_and_counts_it_once() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.put(WEB, EXITED, send=False)
        harness.runtime.put(DB, None, send=False)
        await asyncio.sleep(36)
        await harness.cache.get_newer_than(WEB, harness.moment())  # as the worker does after the event
        await asyncio.sleep(64)

    harness = run_scenario(scenario, runtime_with(web=RUNNING, db=EXITED))
    assert sorted(harness.events_sent()[2:]) == [(65.0, "db", REMOVED), (65.0, "web", DIED)]
    assert harness.counts.missed_pods == 2
    assert 70 in harness.runtime.lists  # 65 and 2 for a late event; then every second


def test_events_of_our_own_reaction_to_a_missed_event_do_not_replace_it() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.put(WEB, EXITED, send=False)
        await asyncio.sleep(36)  # the relist at 65 has found it
        harness.runtime.put(WEB, RUNNING, send=False)
        harness.runtime.send(WEB, happened=BEGINNING + timedelta(seconds=66))
        await asyncio.sleep(30)

    assert run_scenario(scenario, runtime_with(web=RUNNING)).counts.missed_pods == 1


def test_a_late_event_is_not_a_missed_one() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(64.5)
        harness.runtime.put(WEB, EXITED, send=False)
        await asyncio.sleep(1)
        harness.runtime.send(WEB)
        await asyncio.sleep(30)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert harness.events_sent()[1:] == [(65.0, "web", DIED)]
    assert harness.counts.missed_pods == 0


def test_a_change_with_an_event_but_no_inspection_yet_is_not_a_missed_one() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.refusing.add(WEB)
        harness.runtime.put(WEB, EXITED)
        await asyncio.sleep(155.5)
        harness.runtime.refusing.clear()  # half a second after a relist
        harness.pleg.request(WEB)
        await asyncio.sleep(60)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert harness.events_sent()[1:] == [(185.5, "web", DIED)]
    assert harness.counts.missed_pods == 0


def test_a_listing_that_disagrees_with_inspections_is_no_missed_event() -> None:
    runtime = UnknownInListings()
    runtime.put(WEB, RUNNING)
    harness = run_scenario(lambda harness: asyncio.sleep(200), runtime)
    assert (harness.events_sent(), harness.counts.missed_pods) == ([(0.0, "web", STARTED)], 0)


def test_an_inspection_that_began_after_the_listing_wins() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.list_seconds = 4.0  # taken at 67
        await asyncio.sleep(38)
        harness.runtime.put(WEB, RUNNING)
        harness.runtime.put(DB, EXITED)
        await asyncio.sleep(10)
        assert harness.cache.get(WEB) == record(WEB, {"app": RUNNING})
        assert harness.cache.get(DB).containers == record(DB, {"app": EXITED}).containers

    harness = run_scenario(scenario, runtime_with(db=RUNNING))
    assert harness.events_sent()[1:] == [(68.0, "web", STARTED), (68.0, "db", DIED)]
    assert harness.runtime.inspections[1:] == [(WEB, 68.0), (DB, 68.0)]
    assert harness.counts.missed_pods == 0


def test_an_inspection_older_than_the_listing_without_the_pod_is_ignored() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.inspection_seconds = 60.0  # taken at 64, answered at 94
        await asyncio.sleep(4)
        harness.pleg.request(WEB)
        await asyncio.sleep(30.5)
        harness.runtime.put(WEB, None, send=False)
        await asyncio.sleep(60)
        assert harness.cache.get(WEB) == PodRecord(uid=WEB)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert harness.events_sent()[1:] == [(65.0, "web", DIED), (65.0, "web", REMOVED)]


def test_a_refused_slow_inspection_does_not_confirm_its_record() -> None:
    """Regression: PLEG recorded the new state, the cache kept the old one, and the next listing confirmed it."""

    async def scenario(harness: PlegHarness) -> None:
        runtime = harness.runtime
        runtime.has_stream = False  # a listing every second
        await asyncio.sleep(1.5)
        runtime.inspection_seconds = 8.0  # answered at 9.5
        harness.pleg.request(WEB)
        await asyncio.sleep(2)  # listings at 2 and 3 confirm the cached record: it is newer than the inspection
        runtime.put(WEB, EXITED, send=False)
        since = harness.moment()
        found = await harness.cache.get_newer_than(WEB, since)
        assert [container.state for container in found.containers] == [EXITED]

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert harness.events_sent()[1:] == [(17.5, "web", DIED)]


def test_a_removed_pod_is_dropped_although_its_inspection_failed_during_the_listing() -> None:
    """Regression: the cache kept the error, PLEG dropped the pod, and every later listing confirmed the error."""

    async def scenario(harness: PlegHarness) -> None:
        runtime = harness.runtime
        runtime.has_stream = False
        await asyncio.sleep(3.5)
        runtime.list_seconds = 2.0  # from 4 to 6, read at 5
        await asyncio.sleep(1)
        runtime.refusing.add(WEB)
        harness.pleg.request(WEB)  # begun after the listing, and failed before its end
        runtime.put(WEB, None, send=False)
        await asyncio.sleep(20)
        assert await harness.cache.get_newer_than(WEB, harness.moment() - 10) == PodRecord(uid=WEB)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert [type_ for _, _, type_ in harness.events_sent()] == [STARTED, DIED, REMOVED]


def test_a_refused_listing_does_not_stop_inspection_retries() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.list_seconds = 2.0  # from 65 to 67, read at 66
        await asyncio.sleep(35.5)
        harness.runtime.refusing.add(WEB)
        harness.runtime.put(WEB, None)  # inspections at 65.5 and 66.5 fail
        await asyncio.sleep(2)
        harness.runtime.refusing.clear()
        await asyncio.sleep(10)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert [at for _, at in harness.runtime.inspections] == [0, 65.5, 66.5, 68.5]
    assert harness.events_sent()[1:] == [(68.5, "web", DIED), (68.5, "web", REMOVED)]


# Failures.


def test_a_failed_inspection_is_retried_with_backoff_and_reported_on_success() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.refusing.add(WEB)
        harness.runtime.put(WEB, EXITED)
        await asyncio.sleep(5)
        assert harness.cache.get(WEB) == record(WEB, {"app": RUNNING})
        with pytest.raises(RuntimeRefused):
            await harness.cache.get_newer_than(WEB, 29)
        harness.runtime.refusing.clear()
        await asyncio.sleep(10)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert [at for _, at in harness.runtime.inspections] == [0, 30, 31, 33, 37]
    assert harness.events_sent()[1:] == [(37.0, "web", DIED)]


def test_a_failed_inspection_without_a_change_still_causes_a_sync() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        await fail_inspections(harness, seconds=0.5)
        await asyncio.sleep(1)

    assert run_scenario(scenario, runtime_with(web=RUNNING)).events_sent()[1:] == [(31.0, "web", SYNC)]


def test_a_request_does_not_wait_for_the_pause_after_a_failure() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        await fail_inspections(harness, seconds=8)
        await harness.cache.get_newer_than(WEB, harness.moment())
        assert now() == 38
        await asyncio.sleep(20)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert [at for _, at in harness.runtime.inspections] == [0, 30, 31, 33, 37, 38]


def test_a_relist_keeps_the_backoff_of_failed_inspections_but_drops_removed_pods() -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.has_stream = False
        harness.runtime.refusing.add(WEB)
        harness.runtime.put(WEB, RUNNING)
        await asyncio.sleep(40)
        harness.runtime.put(WEB, None)
        await asyncio.sleep(40)

    harness = run_scenario(scenario)
    assert [at for _, at in harness.runtime.inspections] == [0, 1, 3, 7, 15, 31]
    assert harness.events_sent() == [(40.0, "web", SYNC)]


def test_a_failed_relist_is_retried_with_backoff() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(60)
        harness.runtime.list_error = RuntimeUnavailable("cannot list")
        await asyncio.sleep(10)
        harness.runtime.list_error = ValueError("a bug")
        await asyncio.sleep(9.5)
        harness.runtime.list_error = None
        await asyncio.sleep(20.5)

    assert run_scenario(scenario).runtime.lists[6:] == [65, 66, 68, 72, 80]


def test_a_receiver_that_raises_is_counted_and_stops_nothing() -> None:
    async def scenario(harness: PlegHarness) -> None:
        harness.emit_fails = True
        await asyncio.sleep(1)
        harness.emit_fails = False
        harness.runtime.put(DB, RUNNING)
        await asyncio.sleep(1)

    harness = run_scenario(scenario, runtime_with(web=RUNNING))
    assert (harness.counts.discarded_events, harness.events_sent()) == (1, [(1.0, "db", STARTED)])


def test_an_event_that_names_no_pod_is_refused() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.send(PodUID(""))
        harness.runtime.put(WEB, RUNNING)
        await asyncio.sleep(1)

    harness = run_scenario(scenario)
    assert (harness.runtime.inspections, harness.events_sent()) == ([(WEB, 30.0)], [(30.0, "web", STARTED)])


def test_a_jump_of_the_wall_clock_has_no_effect() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.clock.jump(-86_400)
        harness.runtime.put(WEB, RUNNING)
        await asyncio.sleep(30)
        harness.clock.jump(10 * 86_400)
        await asyncio.sleep(70)
        assert harness.pleg.health() is None

    harness = run_scenario(scenario)
    assert harness.runtime.lists == [0, 1, 2, 3, 4, 5, 65, 125]
    assert harness.events_sent() == [(30.0, "web", STARTED)]
    assert harness.counts.latencies == [0.0]


# Calls that hang.


def test_one_hung_inspection_delays_no_other_pod_and_no_relist() -> None:
    pods = [PodUID(f"pod-{index}") for index in range(100)]

    async def scenario(harness: PlegHarness) -> None:
        harness.runtime.inspection_seconds = 0.1
        await asyncio.sleep(30)
        harness.runtime.hung.add(pods[7])
        for uid in pods:
            harness.runtime.put(uid, EXITED)
        await asyncio.sleep(0.8)  # 16 at a time, less the hung one: 7 rounds of 0.1 s
        assert len(harness.sent) == 100 + 99
        await asyncio.sleep(20)
        for uid in pods:
            harness.runtime.put(uid, RUNNING)
        await asyncio.sleep(0.8)
        assert len(harness.sent) == 100 + 99 + 99
        assert harness.pleg.health() is None
        [slow] = harness.pleg.slow_inspections()
        assert (slow.uid, slow.pod, round(slow.seconds, 3)) == (pods[7], "ns/pod-7", 21.6)
        harness.runtime.hung.clear()
        await asyncio.sleep(150)  # its own deadline has passed, and it was inspected again

    harness = run_scenario(scenario, runtime_with(**dict.fromkeys(pods, RUNNING)))
    assert harness.runtime.lists[:8] == [0, 1, 2, 3, 4, 5, 65, 125]
    assert [event.type for _, event, _ in harness.sent if event.uid == pods[7]] == [STARTED, SYNC]


def test_hung_inspections_return_their_slots_after_the_lease() -> None:
    hung = [PodUID(f"hung-{index}") for index in range(4)]

    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.hung.update(hung)
        for uid in hung:
            harness.pleg.request(uid)
            await asyncio.sleep(0.5)
        harness.runtime.put(WEB, RUNNING)
        harness.runtime.put(DB, RUNNING)
        await asyncio.sleep(20)

    harness = run_scenario(scenario, timing=PlegTiming(inspection_slots=4, inspection_lease_seconds=10))
    assert harness.events_sent() == [(40.0, "web", STARTED), (40.0, "db", STARTED)]


def test_a_hung_inspection_times_out() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.hung.add(WEB)
        harness.runtime.put(WEB, EXITED, send=False)  # a listing without changes would answer the waiter
        with pytest.raises(CallTimedOut, match="ns/web"):
            await harness.cache.get_newer_than(WEB, harness.moment())
        assert now() == 150

    run_scenario(scenario, runtime_with(web=RUNNING))


def test_a_hung_relist_delays_no_inspection_is_named_and_times_out() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.list_hangs = True  # from the relist at 65 on; the last good one was at 5
        await asyncio.sleep(154)
        harness.runtime.put(WEB, RUNNING)
        await asyncio.sleep(1)
        assert harness.pleg.health() is None
        harness.runtime.hung.add(DB)
        harness.pleg.request(DB)
        await asyncio.sleep(15)
        assert harness.pleg.health() == (
            "the last successful relist began 195 s ago; the current one has been running for 135 s; "
            "inspections that hang: db for 15 s"
        )
        harness.runtime.list_hangs = False
        await asyncio.sleep(60)
        assert harness.pleg.health() is None

    harness = run_scenario(scenario)
    assert harness.events_sent() == [(184.0, "web", STARTED)]
    assert harness.runtime.lists[6:8] == [65, 246]


def test_a_listing_without_changes_answers_waiters_of_a_hung_inspection() -> None:
    async def scenario(harness: PlegHarness) -> None:
        await asyncio.sleep(30)
        harness.runtime.hung.add(WEB)
        assert await harness.cache.get_newer_than(WEB, harness.moment()) == record(WEB, {"app": RUNNING})
        assert now() == 65

    run_scenario(scenario, runtime_with(web=RUNNING))


def test_pleg_is_unhealthy_before_the_first_relist() -> None:
    async def scenario(harness: PlegHarness) -> None:
        assert harness.pleg.health() == "no relist has succeeded yet"
        await asyncio.sleep(1)
        assert harness.pleg.health() is None

    run_scenario(scenario)


# Any events, lost, repeated, late or out of order.

STATES = [RUNNING, EXITED, None]
FAULTS = ["sent", "lost", "twice", "late", "stream breaks", "inspection fails", "list fails"]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["x", "y"]),
        st.sampled_from(FAULTS),
        st.sampled_from([0.0, 0.03, 0.4, 7.0, 61.0]),
    ),
    max_size=25,
)


class Faulty(Runtime):
    """Fail the next inspection or listing on request. Deliver events late."""

    fail_inspection = False
    fail_list = False

    async def pod_record(self, uid: PodUID) -> PodRecord:
        found = await super().pod_record(uid)
        if self.fail_inspection:
            self.fail_inspection = False
            raise RuntimeRefused("cannot inspect now")
        return found

    async def list_pods(self) -> Sequence[PodRecord]:
        found = await super().list_pods()
        if self.fail_list:
            self.fail_list = False
            raise RuntimeUnavailable("cannot list now")
        return found


async def apply_changes(harness: PlegHarness, changes: list[tuple[str, str, str, float]]) -> None:
    """Let each change start, stop or remove its container. Container IDs are never reused."""
    runtime = harness.runtime
    assert isinstance(runtime, Faulty)
    runtime.inspection_seconds, runtime.list_seconds = 0.1, 0.2
    steps: dict[tuple[str, str], int] = {}
    for index, (pod, container, fault, pause) in enumerate(changes):
        uid = PodUID(pod)
        step = steps.get((pod, container), 0)
        steps[pod, container] = step + 1
        name, state = f"{container}{step // 3}", STATES[step % 3]
        runtime.put(uid, state, name, send=fault in ("sent", "twice", "inspection fails", "list fails"))
        match fault:
            case "twice":
                runtime.send(uid, name, state)
            case "late":
                asyncio.get_running_loop().call_later(1 + index % 3, runtime.send, uid, name, state)
            case "stream breaks":
                runtime.break_streams()
            case "inspection fails":
                runtime.fail_inspection = True
            case "list fails":
                runtime.fail_list = True
        await asyncio.sleep(pause)
    await asyncio.sleep(130)


@settings(max_examples=75)
@given(CHANGES)
def test_the_end_state_does_not_depend_on_events(changes: list[tuple[str, str, str, float]]) -> None:
    harness = run_scenario(lambda harness: apply_changes(harness, changes), Faulty())
    for name in "abc":
        uid = PodUID(name)
        truth = harness.runtime.record(uid)
        assert harness.cache.get(uid).containers == truth.containers
        sent = [event for _, event, _ in harness.sent if event.uid == uid]
        for container in truth.containers:
            ends = [event.type for event in sent if event.data == container.id]
            assert ends.count(DIED) == (container.state is EXITED)
            assert STARTED in ends or container.state is EXITED  # a short run may be detected only after its end
        known_running = {event.data for event in sent if event.type is STARTED}
        for container_id in known_running - {container.id for container in truth.containers}:
            assert [event.type for event in sent if event.data == container_id] == [STARTED, DIED, REMOVED]
    for _, event, cached in harness.sent:
        states = {container.id: container.state for container in cached.containers}
        match event.type:
            case LifecycleEventType.CONTAINER_STARTED:
                assert states[event.data] is RUNNING
            case LifecycleEventType.CONTAINER_DIED:
                assert states.get(event.data) in (EXITED, None)
            case LifecycleEventType.CONTAINER_REMOVED:
                assert event.data not in states


# Views and actions.

STEPS = st.lists(
    st.tuples(
        st.sampled_from([WEB, DB]),
        st.sampled_from(["wait", "wait", "go on", "request"]),
        st.booleans(),  # whether the runtime sends an event
        st.sampled_from([0.0, 0.3, 1.1, 2.5, 7.0]),  # the pause afterwards
        st.sampled_from([0.0, 0.2, 1.4, 6.0]),  # how long an inspection takes from now on
        st.sampled_from([0.0, 0.5, 3.0]),  # how long a listing takes from now on
    ),
    max_size=20,
)


@settings(max_examples=100)
@given(STEPS, st.booleans())
def test_a_record_newer_than_an_action_shows_that_action(
    steps: list[tuple[PodUID, str, bool, float, float, float]], has_stream: bool
) -> None:
    async def scenario(harness: PlegHarness) -> None:
        runtime = harness.runtime
        runtime.has_stream = has_stream
        for number, (uid, then, sent, pause, runtime.inspection_seconds, runtime.list_seconds) in enumerate(steps):
            if then == "request":
                harness.pleg.request(uid)
            else:
                container, state = f"c{number // 3}", STATES[number % 3]
                runtime.put(uid, state, container, send=sent)
            if then == "wait":
                found = await harness.cache.get_newer_than(uid, harness.moment())
                assert {each.id: each.state for each in found.containers} == runtime.pods.get(uid, {})
            await asyncio.sleep(pause)

    run_scenario(scenario)
