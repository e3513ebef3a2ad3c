"""Garbage collection of what the agent keeps about removed pods."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pytest

from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.events import EventRecorder
from podkeeper.engine.manager import PodManager
from podkeeper.engine.pod_facts import PodFacts
from podkeeper.engine.state_gc import StateGC
from podkeeper.engine.status import StatusManager
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from tests.doubles import stand_in
from tests.engine.small_node import pod

WEB = pod("web")


class Modules:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def is_removed(self, uid: PodUID) -> bool:
        return uid == "gone"

    def collect(self, is_removed: Callable[[PodUID], bool]) -> None:
        self.calls.append(("backoff", is_removed(PodUID("gone")), is_removed(PodUID("web"))))

    def phases(self) -> Mapping[PodUID, str]:
        return {PodUID("web"): "Running"}

    def keep_only(self, uids: Collection[PodUID]) -> None:
        self.calls.append(("events", *uids))

    def pods(self) -> tuple[Pod, ...]:
        return (WEB,)

    def keep_objects(self, pods: Iterable[Pod]) -> None:
        self.calls.append(("objects", *pods))


@pytest.mark.parametrize("has_objects", [True, False])
def test_removed_pods_are_dropped_everywhere(has_objects: bool) -> None:
    modules = Modules()
    StateGC(
        backoffs=(stand_in(DurableBackoff, modules),) * 2,
        events=stand_in(EventRecorder, modules),
        statuses=stand_in(StatusManager, modules),
        pods=stand_in(PodManager, modules),
        facts=stand_in(PodFacts, modules),
        keep_objects=modules.keep_objects if has_objects else None,
    ).collect()
    assert modules.calls == [
        *[("backoff", True, False)] * 2,
        ("events", "web"),
        *([("objects", WEB)] if has_objects else []),
    ]
