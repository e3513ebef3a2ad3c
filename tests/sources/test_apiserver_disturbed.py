"""The API source with an event at every await and a failure at every call: its last updates match the API."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.engine.storage import PodStorage
from podkeeper.model.errors import ApiUnavailable
from podkeeper.model.k8s.core import Pod
from podkeeper.sources.apiserver import ApiSource
from podkeeper.sources.stored_pods import StoredPodsSource
from podkeeper.testing import build
from podkeeper.testing.failures import check_backoff_resets, fail_each_call
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.interleave import interleave
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import FixedJitterClock, VirtualClock

pod = partial(build.pod, namespace="ns", uid="", node="n1", image="nginx:1")


@dataclass
class Harness:
    api: MemoryApi
    watched: MemoryApi
    journal: FakeJournal
    clock: VirtualClock
    group: asyncio.TaskGroup
    running: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.storage = PodStorage(emit=lambda _: None, record_event=lambda _: None, now=self.clock.now)

    def start(self) -> None:
        """Start the source of a new agent. Received pods are lost, checkpoints are not."""
        for task in self.running:
            task.cancel()
        seen, pods = Checkpoints(self.journal, "seen/"), Checkpoints(self.journal, "pod/")
        source = StoredPodsSource(
            lambda store: ApiSource(api=self.watched, node_name="n1", clock=self.clock, checkpoints=seen, store=store),
            pods,
        )
        self.storage = PodStorage(emit=lambda _: None, record_event=lambda _: None, now=self.clock.now)
        self.running = [self.group.create_task(source.run(self.storage.merge))]

    def put(self, pod: Pod) -> None:
        self.api.put(pod)

    def received(self) -> dict[str, str]:
        return {pod.metadata.name or "": pod.spec.containers[0].image or "" for pod in self.storage.merged_state()}

    def expected_pods(self) -> dict[str, str]:
        pods = [self.api.peek(Pod, name, "ns") for name in ("stays", "changes", "goes", "comes", "last")]
        return {pod.metadata.name or "": pod.spec.containers[0].image or "" for pod in pods if pod is not None}

    def lose_history(self) -> None:
        self.api.expire()
        self.api.break_watches()


@asynccontextmanager
async def open_harness(calls: PortCalls) -> AsyncIterator[Harness]:
    clock = FixedJitterClock()
    api = MemoryApi(clock)
    for name in ("stays", "changes", "goes"):
        api.put(pod(name))
    async with asyncio.TaskGroup() as group:
        made = Harness(api, calls.watch("api", api), FakeJournal(), clock, group)
        yield made
        for task in made.running:
            task.cancel()


async def change_pods(harness: Harness) -> None:
    """List, watch, receive a change, lose the watch, and continue."""
    harness.start()
    await asyncio.sleep(1)
    harness.api.put(pod("changes", image="nginx:2"))
    await asyncio.sleep(1)
    harness.api.break_watches()
    harness.api.remove(Pod, "goes", "ns")
    await asyncio.sleep(10)


def check_pods_and_checkpoints(harness: Harness) -> None:
    assert harness.received() == harness.expected_pods()
    # A restart without the API starts the stored pods, so they must match, too.
    uids = {pod.metadata.uid for pod in harness.api.objects(Pod)}
    assert {key.removeprefix("pod/") for key in harness.journal.load() if key.startswith("pod/")} == uids


async def changes_still_arrive(harness: Harness) -> None:
    harness.api.put(pod("last"))
    await asyncio.sleep(1)
    check_pods_and_checkpoints(harness)


LIVE = OperationTest(
    setup=open_harness,
    run=change_pods,
    state=Harness.received,
    check=check_pods_and_checkpoints,
    afterwards=changes_still_arrive,
    settle_seconds=120,
)
EVENTS: dict[str, Event[Harness]] = {
    "a pod comes": lambda harness: harness.put(pod("comes")),
    "a pod changes": lambda harness: harness.put(pod("stays", image="nginx:3")),
    "a pod goes": lambda harness: harness.api.remove(Pod, "stays", "ns"),
    "the connection breaks": lambda harness: harness.api.break_watches(),
    "the stream ends": lambda harness: harness.api.end_watches(),
    "the history is lost": Harness.lose_history,
    "the agent restarts": Harness.start,
    "the clock jumps": lambda harness: harness.clock.jump(3600),
}


def test_every_event_at_every_await() -> None:
    interleave(LIVE, EVENTS, cancel=False)


def test_every_call_fails_once() -> None:
    fail_each_call(LIVE)


@pytest.mark.parametrize("method", ["list", "watch"])
def test_a_success_resets_the_backoff(method: str) -> None:
    async def lose_the_watch(harness: Harness) -> None:
        harness.lose_history()

    pauses = check_backoff_resets(LIVE, "api", method, ApiUnavailable, lose_the_watch)
    assert pauses[:3] == [1, 2, 4]
