"""The API source, with an event at every await and a failure at every call: in the end it has told what the API has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from podkeeper.engine.notebook import Notebook
from podkeeper.engine.storage import PodStorage
from podkeeper.model.errors import ApiUnavailable
from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.sources.apiserver import ApiSource
from podkeeper.sources.remembered import RememberedSource
from podkeeper.testing.failures import check_backoff_resets, fail_each_call
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.interleave import interleave
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import FixedJitterClock, VirtualClock


def pod(name: str, image: str = "nginx:1") -> Pod:
    spec = PodSpec(node_name="n1", containers=(Container(name="c", image=image),))
    return Pod(metadata=ObjectMeta(name=name, namespace="ns"), spec=spec)


@dataclass
class Stage:
    api: MemoryApi
    watched: MemoryApi
    journal: FakeJournal
    clock: VirtualClock
    group: asyncio.TaskGroup
    running: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.storage = PodStorage(emit=lambda _: None, record=lambda _: None, now=self.clock.now)

    def start(self) -> None:
        """Start an agent's source. What an earlier one told is forgotten, what it noted is not."""
        for task in self.running:
            task.cancel()
        seen, pods = Notebook(self.journal, "seen/"), Notebook(self.journal, "pod/")
        source = RememberedSource(
            lambda remember: ApiSource(
                api=self.watched, node_name="n1", clock=self.clock, notes=seen, remember=remember
            ),
            pods,
        )
        self.storage = PodStorage(emit=lambda _: None, record=lambda _: None, now=self.clock.now)
        self.running = [self.group.create_task(source.run(self.storage.merge))]

    def put(self, pod: Pod) -> None:
        self.api.put(pod)

    def told(self) -> dict[str, str]:
        return {pod.metadata.name or "": pod.spec.containers[0].image or "" for pod in self.storage.merged_state()}

    def true(self) -> dict[str, str]:
        pods = [self.api.peek(Pod, name, "ns") for name in ("stays", "changes", "goes", "comes", "last")]
        return {pod.metadata.name or "": pod.spec.containers[0].image or "" for pod in pods if pod is not None}

    def lose_history(self) -> None:
        self.api.expire()
        self.api.break_watches()


@asynccontextmanager
async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
    clock = FixedJitterClock()
    api = MemoryApi(clock)
    for name in ("stays", "changes", "goes"):
        api.put(pod(name))
    async with asyncio.TaskGroup() as group:
        made = Stage(api, calls.watch("api", api), FakeJournal(), clock, group)
        yield made
        for task in made.running:
            task.cancel()


async def live(stage: Stage) -> None:
    """List, watch, see a change, lose the watch, and go on."""
    stage.start()
    await asyncio.sleep(1)
    stage.api.put(pod("changes", "nginx:2"))
    await asyncio.sleep(1)
    stage.api.break_watches()
    stage.api.remove(Pod, "goes", "ns")
    await asyncio.sleep(10)


def all_is_told(stage: Stage) -> None:
    assert stage.told() == stage.true()
    # A restart without the API starts the noted pods, so the notes must be as true.
    uids = {pod.metadata.uid for pod in stage.api.objects(Pod)}
    assert {key.removeprefix("pod/") for key in stage.journal.load() if key.startswith("pod/")} == uids


async def news_still_arrives(stage: Stage) -> None:
    stage.api.put(pod("last"))
    await asyncio.sleep(1)
    all_is_told(stage)


LIVE = Operation(
    stage=stage, run=live, state=Stage.told, check=all_is_told, afterwards=news_still_arrives, settle_seconds=120
)
EVENTS: dict[str, Event[Stage]] = {
    "a pod comes": lambda stage: stage.put(pod("comes")),
    "a pod changes": lambda stage: stage.put(pod("stays", "nginx:3")),
    "a pod goes": lambda stage: stage.api.remove(Pod, "stays", "ns"),
    "the connection breaks": lambda stage: stage.api.break_watches(),
    "the stream ends": lambda stage: stage.api.end_watches(),
    "the history is lost": Stage.lose_history,
    "the agent restarts": Stage.start,
    "the clock jumps": lambda stage: stage.clock.jump(3600),
}


def test_every_event_at_every_await() -> None:
    interleave(LIVE, EVENTS, cancel=False)


def test_every_call_fails_once() -> None:
    fail_each_call(LIVE)


@pytest.mark.parametrize("method", ["list", "watch"])
def test_a_success_resets_the_pause_between_tries(method: str) -> None:
    async def lose_the_watch(stage: Stage) -> None:
        stage.lose_history()

    pauses = check_backoff_resets(LIVE, "api", method, ApiUnavailable, lose_the_watch)
    assert pauses[:3] == [1, 2, 4]
