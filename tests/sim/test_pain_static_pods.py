"""Pains of static pods: changed ones that do not come back, two copies at a time, mirrors that lie."""

import asyncio
from collections.abc import Callable
from itertools import permutations

import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.sim.records import ContainerChanged
from podkeeper.testing.sim.world import World
from tests.sim.stories import AT_ONCE, Story, container, pod, tell

PLACE = "/etc/podkeeper/web.yaml"
NAME = "web-n1"


def manifest(image: str = "app:v1", *, grace: int = 5, term_seconds: float | None = 1.0) -> Pod:
    life = Behaviour(term_seconds=term_seconds)
    return pod("web", container(image=image), grace=grace, app=life)


def runs_only(it: Story, image: str) -> bool:
    """Whether exactly one container runs on the whole node, and that of this image."""
    return [life.image for life in it.world.truth.all_running()] == [image]


def is_told(it: Story, image: str) -> bool:
    """Whether the mirror shows that pod, running and ready."""
    mirror = it.in_api(NAME)
    return mirror is not None and it.is_ready(NAME) and mirror.spec.containers[0].image == image


class NeverTwice:
    """Sees to it that no two copies of a static pod live at once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.most = 0
        world.bus.subscribe(ContainerChanged, self._look)

    def _look(self, _: ContainerChanged) -> None:
        self.most = max(self.most, len({life.uid for life in self._world.truth.all_running()}))


# 5: a changed static pod does not come back.


def _file(it: Story) -> None:
    it.write(PLACE, manifest("app:v2"))


def _mirror(it: Story) -> None:
    if it.in_api(NAME) is not None:
        it.delete(NAME, grace=0)


def _crash(it: Story) -> None:
    it.world.crash(away_seconds=1.5)


def _outage(it: Story) -> None:
    it.api.go_down()
    it.world.loop.call_later(20, it.api.come_up)


EVENTS: dict[str, Callable[[Story], None]] = {"file": _file, "mirror": _mirror, "crash": _crash, "outage": _outage}
ORDERS = list(permutations(EVENTS))


@pytest.mark.parametrize("pause", [0.4, 3.0])
@pytest.mark.parametrize("order", ORDERS, ids=map(", ".join, ORDERS))
def test_a_changed_static_pod_comes_back_whatever_the_order_of_events(order: tuple[str, ...], pause: float) -> None:
    """Pain 5: k/k 104648, 107483, 109596; file changed, mirror deleted, agent killed, API away: in every order."""

    async def story(it: Story) -> None:
        copies = NeverTwice(it.world)
        it.write(PLACE, manifest("app:v1"))
        await it.until(lambda: is_told(it, "app:v1"), within=3)
        for event in order:
            EVENTS[event](it)
            await asyncio.sleep(pause)
        await it.until(lambda: runs_only(it, "app:v2"), within=15)
        await it.until(lambda: is_told(it, "app:v2"), within=70)
        await asyncio.sleep(10)
        assert runs_only(it, "app:v2")
        assert copies.most == 1

    tell(story)


FLIPS = {
    "there and back at once": (0.0, 0.0),
    "there and back while the first one ends": (0.5, 0.5),
    "there and back while the second one starts": (1.1, 0.0),
    "there and back and the second one had started": (4.0, 0.5),
}


@pytest.mark.parametrize("pauses", FLIPS.values(), ids=FLIPS.keys())
def test_a_static_pod_that_is_changed_and_changed_back_runs_as_it_was(pauses: tuple[float, float]) -> None:
    """Pain 5: k/k 104648, 107483; the first version comes back under the very UID that is still ending."""

    async def story(it: Story) -> None:
        copies = NeverTwice(it.world)
        first = it.write(PLACE, manifest("app:v1"))
        await it.until(lambda: is_told(it, "app:v1"), within=3)
        it.write(PLACE, manifest("app:v2"))
        await asyncio.sleep(pauses[0])
        assert it.write(PLACE, manifest("app:v1")) == first
        await asyncio.sleep(pauses[1])
        await it.until(lambda: runs_only(it, "app:v1") and is_told(it, "app:v1"), within=15)
        await asyncio.sleep(10)
        assert runs_only(it, "app:v1")
        assert copies.most == 1

    tell(story)


def test_the_successor_of_a_static_pod_starts_as_soon_as_its_predecessor_is_gone() -> None:
    """Pain 5: k/k 109596."""

    async def story(it: Story) -> None:
        first = it.write(PLACE, manifest("app:v1", term_seconds=3.0))
        await it.until(lambda: it.runs(first), within=3)
        second = it.write(PLACE, manifest("app:v2"))
        await it.until(lambda: it.runs(second), within=10)
        (before,), (after,) = it.lives(first), it.lives(second)
        assert before.ended is not None
        assert after.started is not None
        assert after.started - before.ended <= AT_ONCE

    tell(story)


# 6: two copies of a static pod fight for a port while the API server is down.


def test_static_pods_start_change_and_go_without_an_api_server() -> None:
    """Pain 6: k/k 112814, 88402, 116880; the API has never answered this agent."""

    async def story(it: Story) -> None:
        copies = NeverTwice(it.world)
        it.api.go_down()
        it.write(PLACE, manifest("app:v1"))
        assert await it.until(lambda: runs_only(it, "app:v1"), within=5) <= AT_ONCE
        it.write(PLACE, manifest("app:v2"))
        await it.until(lambda: runs_only(it, "app:v2"), within=5)
        it.world.files.erase(PLACE)
        await it.until(lambda: not list(it.world.truth.all_running()), within=5)
        assert copies.most == 1

    tell(story)


@pytest.mark.parametrize("api_is_up", [True, False], ids=["the API answers", "the API is away"])
@pytest.mark.parametrize("source", ["file", "http"])
def test_a_static_pod_that_changed_while_no_agent_lived_never_runs_twice(source: str, api_is_up: bool) -> None:
    """Pain 6: k/k 112814; the new agent finds the old copy running, and nobody who knows it."""

    async def story(it: Story) -> None:
        copies = NeverTwice(it.world)
        place = {"file": it.world.files, "http": it.world.web}[source]
        where = {"file": PLACE, "http": "http://boot.example/web.yaml"}[source]
        place.write(where, manifest("app:v1"))
        await it.until(lambda: is_told(it, "app:v1"), within=3)
        if not api_is_up:
            it.api.go_down()
        it.world.crash(away_seconds=5)
        place.write(where, manifest("app:v2"))
        await asyncio.sleep(5)
        await it.until(lambda: runs_only(it, "app:v2"), within=10)
        await asyncio.sleep(60)
        assert runs_only(it, "app:v2")
        it.api.come_up()
        await it.until(lambda: is_told(it, "app:v2"), within=70)
        assert copies.most == 1

    tell(story)


# 7: mirror pod stale, flapping or missing.

DELAYS = {"the watch is prompt": 0.0, "the watch lags": 2.0}


@pytest.mark.parametrize("delay", DELAYS.values(), ids=DELAYS.keys())
def test_the_status_reaches_a_recreated_mirror_at_once(delay: float) -> None:
    """Pain 7: k/k 137309, 79147; somebody deletes the mirror of a pod that runs."""

    async def story(it: Story) -> None:
        uid = it.write(PLACE, manifest())
        await it.until(lambda: is_told(it, "app:v1"), within=3)
        it.api.set_watch_pace(delay_seconds=delay)
        mirrors = set()
        for _ in range(3):
            mirrors.add(it.uid(NAME))
            it.delete(NAME, grace=0)
            seconds = await it.until(lambda: it.is_ready(NAME), within=60)
            # The deletion must be seen, and the new mirror.
            assert seconds <= 2 * delay + AT_ONCE + 0.1
            await asyncio.sleep(30)
        mirrors.add(it.uid(NAME))
        assert len(mirrors) == 4
        assert len(it.lives(uid)) == 1

    tell(story)


@pytest.mark.parametrize("grace", [0, None], ids=["by force", "gracefully"])
@pytest.mark.parametrize("delay", [0.0, 0.5, 2.0])
def test_the_status_of_a_running_static_pod_is_never_dropped(delay: float, grace: int | None) -> None:
    """Pain 7: k/k 137309; it changes while the mirror has been replaced and the watch has not shown that yet."""

    async def story(it: Story) -> None:
        uid = it.write(PLACE, manifest())
        await it.until(lambda: is_told(it, "app:v1"), within=3)
        it.api.set_watch_pace(delay_seconds=delay)
        dropped: list[float] = []

        async def look() -> None:
            while True:
                if it.agent.statuses.get_pod_status(uid) is None:
                    dropped.append(it.world.now())
                await asyncio.sleep(0.01)

        looking = asyncio.create_task(look())
        old = it.uid(NAME)
        it.delete(NAME, grace)
        await it.until(lambda: it.in_api(NAME) is not None and it.uid(NAME) != old, within=60)
        for _ in range(3):
            it.runtime.end_container(uid, "app", 1)
            await asyncio.sleep(0.3)
        await asyncio.sleep(60)
        looking.cancel()
        assert dropped == []
        assert it.is_ready(NAME)

    tell(story)


def test_a_mirror_that_somebody_rewrote_is_put_right_and_does_not_flap() -> None:
    """Pain 7: k/k 79147; its status is overwritten; it is put right, and then all stays as it is."""

    async def story(it: Story) -> None:
        uid = it.write(PLACE, manifest())
        await it.until(lambda: is_told(it, "app:v1"), within=3)
        it.api.put(replace(it.seen(NAME), status=PodStatus(phase="Pending")))
        await it.until(lambda: is_told(it, "app:v1"), within=15)
        changes = it.changes()
        await asyncio.sleep(300)
        assert [change.new for change in changes] == []
        assert len(it.lives(PodUID(uid))) == 1

    tell(story)
