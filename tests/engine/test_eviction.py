"""Eviction manager: pods over their limits are killed once; critical, unknown and terminating pods are not."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

from podkeeper.engine.eviction import EMPTY_DIR_SIGNAL, EvictionManager
from podkeeper.engine.observer import Observer
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.updates import StatusFunction
from podkeeper.testing import build
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock
from tests.doubles import stand_in

T = TypeVar("T")

WEB = PodUID("web")


@dataclass
class EvictionHarness:
    """Fakes of the collaborators of an eviction manager."""

    pods: dict[PodUID, Pod]
    terminating: set[PodUID] = field(default_factory=set)
    error: Exception | None = None
    kills: list[tuple[str, bool, int, PodStatus]] = field(default_factory=list)
    events: list[PodEvent] = field(default_factory=list)
    about: list[Pod | PodRecord | None] = field(default_factory=list)
    signals: list[str] = field(default_factory=list)
    work: list[asyncio.Future[Any]] = field(default_factory=list)

    def eviction_manager(self, calls: PortCalls | None = None) -> EvictionManager:
        workers = stand_in(PodWorkers, self)
        return EvictionManager(
            workers=workers if calls is None else calls.watch("workers", workers, {"kill_pod": (TryLater,)}),
            pod_by_uid=self.pods.get,
            record_event=self.record,
            spawn=self.spawn,
            clock=VirtualClock(),
            observer=stand_in(Observer, SimpleNamespace(evicted=self.signals.append)),
        )

    def is_pod_termination_requested(self, uid: PodUID) -> bool:
        return uid in self.terminating

    async def kill_pod(
        self, pod: Pod, *, evict: bool, grace_override_seconds: int, status_function: StatusFunction
    ) -> None:
        self.terminating.add(PodUID(pod.metadata.uid or ""))
        status = status_function(PodStatus(phase="Running"))
        self.kills.append((pod.metadata.name or "", evict, grace_override_seconds, status))
        if self.error is not None:
            raise self.error

    def record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.events.append(event)
        self.about.append(about)

    def spawn(self, work: Coroutine[Any, Any, T], /) -> asyncio.Future[T]:
        task = asyncio.ensure_future(work)
        self.work.append(task)
        return task


pod = partial(build.pod, uid=WEB)


def evicted(harness: EvictionHarness, times: int = 1) -> EvictionHarness:
    """Evict pod web `times` times and wait for the kills."""

    async def scenario() -> None:
        eviction_manager = harness.eviction_manager()
        for _ in range(times):
            eviction_manager.evict(WEB, "too large")
            await asyncio.gather(*harness.work)

    asyncio.run(scenario())
    return harness


def test_a_pod_over_its_limit_is_killed_with_an_event_and_a_status() -> None:
    harness = evicted(EvictionHarness({WEB: pod()}))
    assert harness.kills == [("web", True, 1, PodStatus(phase="Failed", reason="Evicted", message="too large"))]
    assert harness.events == [PodEvent(EventType.WARNING, "Evicted", "too large", WEB)]
    assert harness.about == [harness.pods[WEB]]
    assert harness.signals == [EMPTY_DIR_SIGNAL]


def test_a_pod_is_killed_once_for_repeated_reports() -> None:
    assert len(evicted(EvictionHarness({WEB: pod()}), times=3).kills) == 1


def test_a_critical_pod_is_not_evicted_but_recorded_once() -> None:
    harness = evicted(EvictionHarness({WEB: pod(priority=2_000_000_000)}), times=3)
    assert (harness.kills, harness.signals) == ([], [])
    text = "too large Not evicted: critical pods, including all static pods, are never evicted."
    assert harness.events == [PodEvent(EventType.WARNING, "NotEvicted", text, WEB)]
    assert harness.about == [harness.pods[WEB]]


def test_an_unknown_pod_is_ignored() -> None:
    harness = evicted(EvictionHarness({}))
    assert (harness.kills, harness.events) == ([], [])


def test_a_failed_kill_raises_no_error() -> None:
    harness = evicted(EvictionHarness({WEB: pod()}, error=TryLater("cannot kill it")))
    assert (len(harness.kills), [work.exception() for work in harness.work]) == (1, [None])


def test_a_terminating_pod_is_not_evicted() -> None:
    harness = evicted(EvictionHarness({WEB: pod()}, terminating={WEB}))
    assert (harness.kills, harness.events, harness.signals) == ([], [], [])


def test_a_pod_is_not_evicted_twice_before_its_kill_begins() -> None:
    harness = EvictionHarness({WEB: pod()})

    async def scenario() -> None:
        eviction_manager = harness.eviction_manager()
        for _ in range(3):
            eviction_manager.evict(WEB, "too large")
        assert (len(harness.work), len(harness.events)) == (1, 1)
        await asyncio.gather(*harness.work)
        harness.terminating.clear()  # the worker has forgotten the pod, which still exceeds the limit
        eviction_manager.evict(WEB, "too large")
        await asyncio.gather(*harness.work)
        assert len(harness.kills) == 2

    asyncio.run(scenario())


def test_a_critical_pod_that_was_removed_and_added_is_recorded_again() -> None:
    critical, other = pod(priority=2_000_000_000), PodUID("other")
    harness = EvictionHarness({WEB: critical, other: critical})

    async def scenario() -> None:
        eviction_manager = harness.eviction_manager()
        eviction_manager.evict(WEB, "too large")
        del harness.pods[WEB]
        eviction_manager.evict(other, "too large")
        harness.pods[WEB] = critical
        eviction_manager.evict(other, "too large")
        eviction_manager.evict(WEB, "too large")
        assert [event.uid for event in harness.events] == [WEB, other, WEB]

    asyncio.run(scenario())
