"""Pains 3 and 4: late, lost, repeated and reordered events."""

import asyncio
from collections.abc import Iterable
from functools import cache
from random import Random

import pytest

from podkeeper.model.runtime_calls import RuntimeEvent
from podkeeper.runtimes.fake import Behaviour, EventFilter, ExecStep
from podkeeper.testing.build import container, probe
from podkeeper.testing.sim.world import World
from tests.sim.sim_node import AT_ONCE, SimNode, pod, run_scenario

# 3: up to 1 s late on every container start or stop.

RUNS = Behaviour(after_seconds=20.4, exit_code=1, crashes=1)


def _restart_seconds(node: SimNode, name: str = "web") -> float:
    first, second = node.runs_of(node.uid(name))[:2]
    assert first.ended is not None
    assert second.started is not None
    return second.started - first.ended


def test_an_exit_is_detected_and_the_restart_begun_within_milliseconds() -> None:
    """Pain 3: k/k 45278, 137362."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web", behaviours={"app": RUNS}))
        await node.until(lambda: len(node.runs_of(uid)) == 2 and node.is_ready("web"), within=30)
        assert _restart_seconds(node) <= AT_ONCE

    run_scenario(scenario)


def test_a_deleted_pod_is_removed_as_soon_as_its_containers_are() -> None:
    """Pain 3: k/k 137362."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web", behaviours={"app": Behaviour(term_seconds=0.3)}))
        assert await node.until(lambda: node.is_ready("web"), within=3) <= AT_ONCE
        node.delete("web")
        await node.until(lambda: node.is_gone("web"), within=3)
        (run,) = node.runs_of(uid)
        assert run.ended is not None
        assert node.world.now() - run.ended <= AT_ONCE

    run_scenario(scenario)


def test_without_events_the_agent_inspects_after_its_own_calls() -> None:
    """Pain 3: k/k 45278; the runtime sends no events, and the agent inspects after each of its own calls."""

    def prepare(world: World) -> None:
        world.runtime.filter_events(lambda event: ())

    async def scenario(node: SimNode) -> None:
        node.put(pod("web", container(), init=(container("setup"),), behaviours={"setup": Behaviour(after_seconds=0)}))
        await node.until(lambda: node.is_ready("web"), within=3)
        node.put(pod("db"))
        assert await node.until(lambda: node.is_ready("db"), within=3) <= AT_ONCE
        node.delete("db")
        assert await node.until(lambda: node.is_gone("db"), within=3) <= AT_ONCE

    run_scenario(scenario, prepare=prepare)


def test_while_the_event_stream_is_broken_a_relist_finds_an_exit_within_a_second() -> None:
    """Pain 3: k/k 45278; the relist finds the exit."""

    async def scenario(node: SimNode) -> None:
        node.put(pod("web", behaviours={"app": RUNS}))
        await node.until(lambda: node.is_ready("web"), within=3)
        breaking = asyncio.create_task(_keep_breaking(node))
        await node.until(lambda: len(node.runs_of(node.uid("web"))) == 2, within=30)
        breaking.cancel()
        await asyncio.sleep(1)
        assert _restart_seconds(node) <= 1 + AT_ONCE

    run_scenario(scenario)


async def _keep_breaking(node: SimNode) -> None:
    while True:
        node.runtime.break_events()
        await asyncio.sleep(0.01)


# 4: evented mode lost or reordered events: duplicate containers.


class Mess:
    """An event filter that loses, repeats and delays events in a deterministic way."""

    def __init__(self, seed: str, *, lost: float = 0.0, doubled: float = 0.0, latest_seconds: float = 0.0) -> None:
        self._random = Random(seed)
        self._lost, self._doubled, self._latest_seconds = lost, doubled, latest_seconds

    def __call__(self, event: RuntimeEvent) -> Iterable[tuple[float, RuntimeEvent]]:
        if self._random.random() < self._lost:
            return
        for _ in range(2 if self._random.random() < self._doubled else 1):
            yield self._random.random() * self._latest_seconds, event


MESSES: dict[str, EventFilter] = {
    "all lost": Mess("a", lost=1.0),
    "half of them lost": Mess("b", lost=0.5),
    "all doubled": Mess("c", doubled=1.0),
    "reordered within a second": Mess("d", latest_seconds=1.0),
    "reordered within a minute": Mess("e", latest_seconds=60.0),
    "lost, doubled and reordered": Mess("f", lost=0.3, doubled=0.5, latest_seconds=10.0),
}

SHORT = Behaviour(after_seconds=3)
ILL = Behaviour(exec=(ExecStep(), ExecStep(from_seconds=40, exit_code=1)))
PODS = (
    pod("web", container(readiness=probe())),
    pod("loop", behaviours={"app": Behaviour(after_seconds=5, exit_code=1, crashes=2)}),
    pod("job", policy="Never", behaviours={"app": Behaviour(after_seconds=30, exit_code=0)}),
    pod("bad", policy="Never", behaviours={"app": Behaviour(after_seconds=30, exit_code=4)}),
    pod("staged", init=(container("one"), container("two")), behaviours={"one": SHORT, "two": SHORT}),
    pod("ill", container(liveness=probe(failures=1)), behaviours={"app": ILL}),
)


def _end_state(event_filter: EventFilter | None) -> dict[str, object]:
    """Return the state of the node after a quarter of an hour."""
    end: dict[str, object] = {}

    def prepare(world: World) -> None:
        world.runtime.filter_events(event_filter)

    async def scenario(node: SimNode) -> None:
        node.put(*PODS, pod("gone"))
        await asyncio.sleep(60)
        node.delete("gone")
        await asyncio.sleep(840)
        for each in PODS:
            name = each.metadata.name or ""
            running = sorted(run.name for run in node.world.truth.running(node.uid(name)))
            ended = node.status(name).state.terminated
            end[name] = (
                node.phase(name),
                node.is_ready(name) if name != "ill" else None,  # it is killed every 40 s, so its readiness varies
                running if name != "ill" else None,
                None if ended is None else ended.exit_code,
            )
        end["restarts"] = node.status("loop").restart_count
        end["gone"] = node.is_gone("gone")
        end["missed"] = _counted(node, "podkeeper_pleg_missed_events_total") > 0

    run_scenario(scenario, prepare=prepare)
    return end


def _counted(node: SimNode, sample: str) -> float:
    families = node.agent.engine.metrics.registry.collect()
    return sum(each.value for family in families for each in family.samples if each.name == sample)


@cache
def _quiet_end_state() -> dict[str, object]:
    return _end_state(None)


@pytest.mark.parametrize("mess", MESSES.values(), ids=MESSES.keys())
def test_lost_repeated_and_reordered_events_do_not_change_the_result(mess: EventFilter) -> None:
    """Pain 4: k/k 121349; missed events are counted."""
    quiet, messy = dict(_quiet_end_state()), _end_state(mess)
    assert quiet.pop("missed") is False
    lost = mess in (MESSES["all lost"], MESSES["half of them lost"])
    assert messy.pop("missed") or not lost
    assert messy == quiet
