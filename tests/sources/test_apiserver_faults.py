"""The API source with a real API in memory and storage, and with random histories and faults."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.engine.storage import PodStorage
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUpdate
from podkeeper.sources.apiserver import ApiSource
from podkeeper.testing.build import pod
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.sources.scripted_api import LIST_FAULTS, WATCH_FAULTS, Consumer, FaultyApi
from tests.violations import violation

# With the API in memory and the storage.

OUTAGES: dict[str, Callable[[MemoryApi], None]] = {
    "the connection breaks": MemoryApi.break_watches,
    "the stream ends": MemoryApi.end_watches,
    "the history is lost": MemoryApi.expire,
    "the stream is silent": lambda api: api.set_watch_pace(stalled=True),
    "the server is down": MemoryApi.go_down,
}


@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES.keys())
def test_changes_during_an_outage_are_received_after_it(outage: Callable[[MemoryApi], None]) -> None:
    bound = partial(pod, namespace="ns", uid="", node="n1", image="nginx:1")

    async def scenario() -> tuple[dict[str, str], dict[str, str]]:
        clock = VirtualClock()
        api = MemoryApi(clock)
        storage = PodStorage(emit=lambda _: None, record_event=lambda _: None, now=clock.now)
        source = ApiSource(api=api, node_name="n1", clock=clock)

        def images() -> dict[str, str]:
            return {pod.metadata.name or "": pod.spec.containers[0].image or "" for pod in storage.merged_state()}

        for name in ("stays", "changes", "goes"):
            api.put(bound(name))
        async with asyncio.TaskGroup() as group:
            running = group.create_task(source.run(storage.merge))
            await asyncio.sleep(100)
            outage(api)
            api.put(bound("changes", image="nginx:2"))
            api.put(bound("comes"))
            api.remove(Pod, "goes", "ns")
            await asyncio.sleep(100)
            during = images()
            api.come_up()
            api.set_watch_pace()
            await asyncio.sleep(400)
            running.cancel()
        return during, images()

    during, after = simulate(scenario())[0]
    assert {"stays", "changes"} <= during.keys()
    assert after == {"stays": "nginx:1", "changes": "nginx:2", "comes": "nginx:1"}


# Random histories and faults.

CHANGES = st.tuples(
    st.sampled_from(["create", "create", "touch", "delete"]), st.sampled_from("abcd"), st.sampled_from([0, 0.5, 40])
)


@settings(max_examples=75, deadline=None)
@given(
    changes=st.lists(CHANGES, max_size=25),
    list_faults=st.lists(st.sampled_from(LIST_FAULTS), max_size=6),  # fewer than the limit of stale lists
    watch_faults=st.lists(st.sampled_from(WATCH_FAULTS), max_size=12),
    bookmarks=st.booleans(),
    seed=st.integers(0, 9),
)
def test_after_the_faults_the_updates_match_the_api(
    changes: list[tuple[str, str, float]], list_faults: list[str], watch_faults: list[str], bookmarks: bool, seed: int
) -> None:
    async def scenario() -> tuple[dict[str, str], dict[str, str]]:
        api, consumer = FaultyApi(list_faults, watch_faults, bookmarks=bookmarks), Consumer()
        deleted: set[str] = set()  # UIDs that the API has deleted

        def send(update: PodUpdate) -> None:
            before = set(consumer.pods)
            consumer.send(update)
            if gone := before - set(consumer.pods) - deleted:
                raise violation(f"only pods that the API deleted may go: {gone}")

        source = ApiSource(api=api, node_name="n1", clock=VirtualClock(seed=seed))
        async with asyncio.TaskGroup() as group:
            running = group.create_task(source.run(send))
            for kind, name, pause in changes:
                if kind == "delete" and name in api.pods:
                    deleted.add(api.pods[name].metadata.uid or "")
                api.change(kind, name)
                await asyncio.sleep(pause)
            await asyncio.sleep(6 * 3600)
            running.cancel()
        return consumer.pods, {pod.metadata.uid or "": pod.metadata.resource_version or "" for pod in api.pods.values()}

    updates, real = simulate(scenario())[0]
    assert updates == real
