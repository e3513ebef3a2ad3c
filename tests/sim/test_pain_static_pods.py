"""Pains 5, 6 and 7: changed static pods, two copies of one, stale mirror pods."""

import asyncio
from collections.abc import Callable
from itertools import permutations

import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.build import container
from podkeeper.testing.sim.records import ContainerChanged
from podkeeper.testing.sim.world import World
from tests.sim.sim_node import AT_ONCE, SimNode, pod, run_scenario

PLACE = "/etc/podkeeper/web.yaml"
NAME = "web-n1"


def manifest(image: str = "app:v1", *, grace: int = 5, term_seconds: float | None = 1.0) -> Pod:
    run = Behaviour(term_seconds=term_seconds)
    return pod("web", container(image=image), grace=grace, behaviours={"app": run})


def runs_only(node: SimNode, image: str) -> bool:
    """Whether exactly one container runs on the node, with this image."""
    return [run.image for run in node.world.truth.all_running()] == [image]


def is_published(node: SimNode, image: str) -> bool:
    """Whether the mirror pod shows this image, running and ready."""
    mirror = node.in_api(NAME)
    return mirror is not None and node.is_ready(NAME) and mirror.spec.containers[0].image == image


class NeverTwice:
    """Counts how many copies of a static pod run at once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.most = 0
        world.bus.subscribe(ContainerChanged, self._look)

    def _look(self, _: ContainerChanged) -> None:
        self.most = max(self.most, len({run.uid for run in self._world.truth.all_running()}))


# 5: a changed static pod does not come back.


def _file(node: SimNode) -> None:
    node.write(PLACE, manifest("app:v2"))


def _mirror(node: SimNode) -> None:
    if node.in_api(NAME) is not None:
        node.delete(NAME, grace=0)


def _crash(node: SimNode) -> None:
    node.world.crash(downtime_seconds=1.5)


def _outage(node: SimNode) -> None:
    node.api.go_down()
    node.world.loop.call_later(20, node.api.come_up)


EVENTS: dict[str, Callable[[SimNode], None]] = {"file": _file, "mirror": _mirror, "crash": _crash, "outage": _outage}
ORDERS = list(permutations(EVENTS))


@pytest.mark.parametrize("pause", [0.4, 3.0])
@pytest.mark.parametrize("order", ORDERS, ids=map(", ".join, ORDERS))
def test_a_changed_static_pod_runs_again_in_any_order_of_events(order: tuple[str, ...], pause: float) -> None:
    """Pain 5: k/k 104648, 107483, 109596; file changed, mirror deleted, agent killed, API down, in every order."""

    async def scenario(node: SimNode) -> None:
        copies = NeverTwice(node.world)
        node.write(PLACE, manifest("app:v1"))
        await node.until(lambda: is_published(node, "app:v1"), within=3)
        for event in order:
            EVENTS[event](node)
            await asyncio.sleep(pause)
        await node.until(lambda: runs_only(node, "app:v2"), within=15)
        await node.until(lambda: is_published(node, "app:v2"), within=70)
        await asyncio.sleep(10)
        assert runs_only(node, "app:v2")
        assert copies.most == 1

    run_scenario(scenario)


FLIPS = {
    "changed back at once": (0.0, 0.0),
    "changed back while the first one terminates": (0.5, 0.5),
    "changed back while the second one starts": (1.1, 0.0),
    "changed back after the second one has started": (4.0, 0.5),
}


@pytest.mark.parametrize("pauses", FLIPS.values(), ids=FLIPS.keys())
def test_a_static_pod_that_is_changed_and_changed_back_runs_the_first_version(pauses: tuple[float, float]) -> None:
    """Pain 5: k/k 104648, 107483; the first version returns with the UID of the pod that still terminates."""

    async def scenario(node: SimNode) -> None:
        copies = NeverTwice(node.world)
        first = node.write(PLACE, manifest("app:v1"))
        await node.until(lambda: is_published(node, "app:v1"), within=3)
        node.write(PLACE, manifest("app:v2"))
        await asyncio.sleep(pauses[0])
        assert node.write(PLACE, manifest("app:v1")) == first
        await asyncio.sleep(pauses[1])
        await node.until(lambda: runs_only(node, "app:v1") and is_published(node, "app:v1"), within=15)
        await asyncio.sleep(10)
        assert runs_only(node, "app:v1")
        assert copies.most == 1

    run_scenario(scenario)


def test_the_successor_of_a_static_pod_starts_as_soon_as_its_predecessor_has_ended() -> None:
    """Pain 5: k/k 109596."""

    async def scenario(node: SimNode) -> None:
        first = node.write(PLACE, manifest("app:v1", term_seconds=3.0))
        await node.until(lambda: node.runs(first), within=3)
        second = node.write(PLACE, manifest("app:v2"))
        await node.until(lambda: node.runs(second), within=10)
        (before,), (after,) = node.runs_of(first), node.runs_of(second)
        assert before.ended is not None
        assert after.started is not None
        assert after.started - before.ended <= AT_ONCE

    run_scenario(scenario)


# 6: two copies of a static pod fight for a port while the API server is down.


def test_static_pods_start_change_and_stop_without_an_api_server() -> None:
    """Pain 6: k/k 112814, 88402, 116880; the API has never answered this agent."""

    async def scenario(node: SimNode) -> None:
        copies = NeverTwice(node.world)
        node.api.go_down()
        node.write(PLACE, manifest("app:v1"))
        assert await node.until(lambda: runs_only(node, "app:v1"), within=5) <= AT_ONCE
        node.write(PLACE, manifest("app:v2"))
        await node.until(lambda: runs_only(node, "app:v2"), within=5)
        node.world.files.erase(PLACE)
        await node.until(lambda: not list(node.world.truth.all_running()), within=5)
        assert copies.most == 1

    run_scenario(scenario)


@pytest.mark.parametrize("api_is_up", [True, False], ids=["the API answers", "the API is down"])
@pytest.mark.parametrize("source", ["file", "http"])
def test_a_static_pod_that_changed_while_no_agent_ran_never_runs_twice(source: str, api_is_up: bool) -> None:
    """Pain 6: k/k 112814; the new agent finds the old copy running without a source."""

    async def scenario(node: SimNode) -> None:
        copies = NeverTwice(node.world)
        place = {"file": node.world.files, "http": node.world.web}[source]
        with_spec = {"file": PLACE, "http": "http://boot.example/web.yaml"}[source]
        place.write(with_spec, manifest("app:v1"))
        await node.until(lambda: is_published(node, "app:v1"), within=3)
        if not api_is_up:
            node.api.go_down()
        node.world.crash(downtime_seconds=5)
        place.write(with_spec, manifest("app:v2"))
        await asyncio.sleep(5)
        await node.until(lambda: runs_only(node, "app:v2"), within=10)
        await asyncio.sleep(60)
        assert runs_only(node, "app:v2")
        node.api.come_up()
        await node.until(lambda: is_published(node, "app:v2"), within=70)
        assert copies.most == 1

    run_scenario(scenario)


# 7: mirror pod stale, flapping or missing.

DELAYS = {"the watch is prompt": 0.0, "the watch lags": 2.0}


@pytest.mark.parametrize("delay", DELAYS.values(), ids=DELAYS.keys())
def test_the_status_reaches_a_recreated_mirror_at_once(delay: float) -> None:
    """Pain 7: k/k 137309, 79147; the mirror of a running pod is deleted."""

    async def scenario(node: SimNode) -> None:
        uid = node.write(PLACE, manifest())
        await node.until(lambda: is_published(node, "app:v1"), within=3)
        node.api.set_watch_pace(delay_seconds=delay)
        mirrors = set()
        for _ in range(3):
            mirrors.add(node.uid(NAME))
            node.delete(NAME, grace=0)
            seconds = await node.until(lambda: node.is_ready(NAME), within=60)
            # The agent must receive the deletion and the new mirror.
            assert seconds <= 2 * delay + AT_ONCE + 0.1
            await asyncio.sleep(30)
        mirrors.add(node.uid(NAME))
        assert len(mirrors) == 4
        assert len(node.runs_of(uid)) == 1

    run_scenario(scenario)


@pytest.mark.parametrize("grace", [0, None], ids=["by force", "gracefully"])
@pytest.mark.parametrize("delay", [0.0, 0.5, 2.0])
def test_the_status_of_a_running_static_pod_is_never_dropped(delay: float, grace: int | None) -> None:
    """Pain 7: k/k 137309; it changes after the mirror was replaced and before the watch delivers that."""

    async def scenario(node: SimNode) -> None:
        uid = node.write(PLACE, manifest())
        await node.until(lambda: is_published(node, "app:v1"), within=3)
        node.api.set_watch_pace(delay_seconds=delay)
        dropped: list[float] = []

        async def poll() -> None:
            while True:
                if node.agent.engine.statuses.get_pod_status(uid) is None:
                    dropped.append(node.world.now())
                await asyncio.sleep(0.01)

        polling = asyncio.create_task(poll())
        old = node.uid(NAME)
        node.delete(NAME, grace)
        await node.until(lambda: node.in_api(NAME) is not None and node.uid(NAME) != old, within=60)
        for _ in range(3):
            node.runtime.end_container(uid, "app", 1)
            await asyncio.sleep(0.3)
        await asyncio.sleep(60)
        polling.cancel()
        assert dropped == []
        assert node.is_ready(NAME)

    run_scenario(scenario)


def test_an_overwritten_mirror_status_is_restored_and_does_not_flap() -> None:
    """Pain 7: k/k 79147; its status is overwritten, restored, and then stable."""

    async def scenario(node: SimNode) -> None:
        uid = node.write(PLACE, manifest())
        await node.until(lambda: is_published(node, "app:v1"), within=3)
        node.api.put(replace(node.seen(NAME), status=PodStatus(phase="Pending")))
        await node.until(lambda: is_published(node, "app:v1"), within=15)
        changes = node.changes()
        await asyncio.sleep(300)
        assert [change.new for change in changes] == []
        assert len(node.runs_of(PodUID(uid))) == 1

    run_scenario(scenario)
