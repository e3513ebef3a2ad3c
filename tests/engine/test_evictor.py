"""The evictor: who is too large is killed once, with last words; who is critical, unknown or ending is left alone."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from podkeeper.engine.evictor import EMPTY_DIR_SIGNAL, Evictor
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod, PodSpec, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.updates import StatusFunction
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock
from tests.doubles import stand_in

WEB = PodUID("web")


@dataclass
class House:
    """The evictor's neighbours, and what they were told."""

    pods: dict[PodUID, Pod]
    ending: set[PodUID] = field(default_factory=set)
    error: Exception | None = None
    kills: list[tuple[str, bool, int, PodStatus]] = field(default_factory=list)
    events: list[PodEvent] = field(default_factory=list)
    about: list[Pod | PodRecord | None] = field(default_factory=list)
    signals: list[str] = field(default_factory=list)
    work: "list[asyncio.Future[None]]" = field(default_factory=list)

    def evictor(self, calls: PortCalls | None = None) -> Evictor:
        """An evictor among these neighbours."""
        workers = stand_in(PodWorkers, self)
        return Evictor(
            workers=workers if calls is None else calls.watch("workers", workers, {"kill_pod": (TryLater,)}),
            pod_by_uid=self.pods.get,
            record=self.record,
            spawn=self.spawn,
            clock=VirtualClock(),
            evicted=self.signals.append,
        )

    def is_pod_termination_requested(self, uid: PodUID) -> bool:
        return uid in self.ending

    async def kill_pod(
        self, pod: Pod, *, evict: bool, grace_override_seconds: int, status_function: StatusFunction
    ) -> None:
        self.ending.add(PodUID(pod.metadata.uid or ""))
        words = status_function(PodStatus(phase="Running"))
        self.kills.append((pod.metadata.name or "", evict, grace_override_seconds, words))
        if self.error is not None:
            raise self.error

    def record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.events.append(event)
        self.about.append(about)

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Future[None]":
        self.work.append(asyncio.ensure_future(work))
        return self.work[-1]


def pod(priority: int | None = None) -> Pod:
    return Pod(metadata=ObjectMeta(name="web", namespace="default", uid=WEB), spec=PodSpec(priority=priority))


def evicted(home: House, times: int = 1) -> House:
    """Tell of pod web so many times, and let the work end."""

    async def scenario() -> None:
        evictor = home.evictor()
        for _ in range(times):
            evictor.evict(WEB, "too large")
            await asyncio.gather(*home.work)

    asyncio.run(scenario())
    return home


def test_a_pod_that_is_too_large_is_killed_and_says_why() -> None:
    home = evicted(House({WEB: pod()}))
    assert home.kills == [("web", True, 1, PodStatus(phase="Failed", reason="Evicted", message="too large"))]
    assert home.events == [PodEvent(EventType.WARNING, "Evicted", "too large", WEB)]
    assert home.about == [home.pods[WEB]]
    assert home.signals == [EMPTY_DIR_SIGNAL]


def test_it_is_killed_once_however_often_it_is_told() -> None:
    assert len(evicted(House({WEB: pod()}), times=3).kills) == 1


def test_a_critical_pod_is_not_evicted_and_one_event_tells_why() -> None:
    home = evicted(House({WEB: pod(priority=2_000_000_000)}), times=3)
    assert (home.kills, home.signals) == ([], [])
    words = "too large It stays: critical pods, and so all pods from manifests, are not evicted."
    assert home.events == [PodEvent(EventType.WARNING, "NotEvicted", words, WEB)]
    assert home.about == [home.pods[WEB]]


def test_nobody_looks_for_a_pod_that_is_gone() -> None:
    home = evicted(House({}))
    assert (home.kills, home.events) == ([], [])


def test_a_kill_that_takes_too_long_is_nobody_elses_trouble() -> None:
    home = evicted(House({WEB: pod()}, error=TryLater("cannot kill it")))
    assert (len(home.kills), [work.exception() for work in home.work]) == (1, [None])


def test_a_pod_that_ends_already_is_left_alone() -> None:
    home = evicted(House({WEB: pod()}, ending={WEB}))
    assert (home.kills, home.events, home.signals) == ([], [], [])


def test_a_pod_is_not_evicted_twice_before_its_kill_begins() -> None:
    home = House({WEB: pod()})

    async def scenario() -> None:
        evictor = home.evictor()
        for _ in range(3):
            evictor.evict(WEB, "too large")
        assert (len(home.work), len(home.events)) == (1, 1)
        await asyncio.gather(*home.work)
        home.ending.clear()  # the worker has forgotten it, and the pod is still too large
        evictor.evict(WEB, "too large")
        await asyncio.gather(*home.work)
        assert len(home.kills) == 2

    asyncio.run(scenario())


def test_a_critical_pod_that_was_gone_in_between_is_told_again() -> None:
    critical, other = pod(priority=2_000_000_000), PodUID("other")
    home = House({WEB: critical, other: critical})

    async def scenario() -> None:
        evictor = home.evictor()
        evictor.evict(WEB, "too large")
        del home.pods[WEB]
        evictor.evict(other, "too large")
        home.pods[WEB] = critical
        evictor.evict(other, "too large")
        evictor.evict(WEB, "too large")
        assert [event.uid for event in home.events] == [WEB, other, WEB]

    asyncio.run(scenario())
