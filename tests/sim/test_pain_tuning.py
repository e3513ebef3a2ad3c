"""Pains 14, 15, 23 and 25: tunable backoff and probe periods, one engine."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from podkeeper.app.agent import Agent
from podkeeper.app.demo.node import DemoNode
from podkeeper.model.messages import PodUID, ProbeKind
from podkeeper.rules.backoff.table import Curve
from podkeeper.rules.backoff.tuning import BackoffKind, annotation
from podkeeper.rules.probe.worker import period_annotation
from podkeeper.runtimes.fake import Behaviour, ExecStep
from podkeeper.testing.build import container, probe
from podkeeper.testing.node import NodeHarness
from podkeeper.testing.sim.records import ReadEnded
from podkeeper.testing.sim.world import World
from podkeeper.testing.virtual_time import simulate
from tests.sim.sim_node import LATE_SHARE, SimNode, pod, run_scenario

SLACK = 0.01 if LATE_SHARE == 0 else 3.0
CRASHES = Behaviour(after_seconds=0.5, exit_code=1)

# 14: crash-loop back-off fixed for all.


def _pauses(node: SimNode, uid: PodUID) -> list[float]:
    """Return the pauses from each exit to the next start."""
    runs_of = node.runs_of(uid)
    return [
        (after.started or 0.0) - (before.ended or 0.0)
        for before, after in pairwise(runs_of)
        if after.started is not None
    ]


def _are_about(pauses: list[float], expected: list[float]) -> bool:
    """Whether no pause is too short or too long. A retry has a jitter of up to half of the delay."""
    return len(pauses) >= len(expected) and all(
        least - 1e-6 <= pause <= 1.5 * least + 1 + SLACK for pause, least in zip(pauses, expected, strict=False)
    )


def tuned(initial: str, maximum: str) -> dict[str, str]:
    return {
        annotation(BackoffKind.RESTART, "initial"): initial,
        annotation(BackoffKind.RESTART, "maximum"): maximum,
    }


TUNED: dict[str, tuple[dict[str, str], list[float]]] = {
    "no annotation": ({}, [0, 10, 20, 40, 80, 160]),
    "short backoff": (tuned("2s", "8s"), [0, 2, 4, 8, 8, 8]),
    "long backoff": (tuned("60s", "90s"), [0, 60, 90, 90, 90, 90]),
    "below the minimum": (tuned("1ms", "1ms"), [0, 1, 1, 1, 1, 1]),
    "invalid durations": (tuned("soon", "later"), [0, 10, 20, 40, 80, 160]),
}


@pytest.mark.parametrize("annotations, expected", TUNED.values(), ids=TUNED.keys())
def test_a_pod_tunes_its_crash_loop_backoff(annotations: dict[str, str], expected: list[float]) -> None:
    """Pain 14: k/k 57291; per pod, with a floor of a second."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("loop", annotations=annotations, behaviours={"app": CRASHES}))
        await node.until(lambda: len(_pauses(node, uid)) >= len(expected), within=2 * sum(expected) + 60)
        assert _are_about(_pauses(node, uid), expected)

    run_scenario(scenario)


def test_a_node_tunes_the_crash_loop_backoff_of_its_pods() -> None:
    """Pain 14: k/k 57291; per node. The pod's annotation has precedence."""

    def prepare(world: World) -> None:
        curve = Curve(timedelta(seconds=3), timedelta(seconds=12))
        world.settings = replace(world.settings, restart_curve=curve)

    async def scenario(node: SimNode) -> None:
        usual, own = (
            node.put(pod("usual", behaviours={"app": CRASHES})),
            node.put(pod("own", annotations=tuned("5s", "5s"), behaviours={"app": CRASHES})),
        )
        await node.until(lambda: len(_pauses(node, usual)) >= 5, within=200)
        assert _are_about(_pauses(node, usual), [0, 3, 6, 12, 12])
        assert _are_about(_pauses(node, own), [0, 5, 5])

    run_scenario(scenario, prepare=prepare)


# 15: no sub-second probes.

PERIODS = {
    "a quarter of a second": ("250", 0.25),
    "below the floor": ("1", 0.1),
    "invalid": ("fast", 10.0),
}


@pytest.mark.parametrize("text, seconds", PERIODS.values(), ids=PERIODS.keys())
def test_a_probe_may_run_more_often_than_every_second(text: str, seconds: float) -> None:
    """Pain 15: k/k 38778; by annotation, with a floor of a tenth of a second."""
    probes: list[float] = []

    def prepare(world: World) -> None:
        def see(made: ReadEnded) -> None:
            if made.operation == "exec_sync":
                probes.append(made.began)

        world.bus.subscribe(ReadEnded, see)

    async def scenario(node: SimNode) -> None:
        annotations = {period_annotation("app", ProbeKind.READINESS): text}
        run = Behaviour(exec=(ExecStep(), ExecStep(from_seconds=60.05, exit_code=1)))
        ready = probe(period=10, failures=1)
        uid = node.put(pod("web", container(readiness=ready), annotations=annotations, behaviours={"app": run}))
        await node.until(lambda: node.is_ready("web"), within=20)
        await asyncio.sleep(50 - node.world.now())
        begun = len(probes)
        await asyncio.sleep(9.99)
        assert len(probes) - begun == pytest.approx(9.99 / seconds, rel=0.3 if LATE_SHARE else 0.1, abs=1)
        await node.until(lambda: not node.is_ready("web"), within=20)
        assert node.world.now() - (node.runs_of(uid)[0].started or 0.0) <= 60.05 + seconds + SLACK

    run_scenario(scenario, prepare=prepare)


# 23: virtual nodes leave probes, restarts, init order, deadlines to the plugin.


def test_probes_restarts_init_order_and_deadlines_come_from_the_engine() -> None:
    """Pain 23: VK 238, 762, 982; the runtime only has sandboxes, containers and images."""

    async def scenario(node: SimNode) -> None:
        ends = Behaviour(after_seconds=2)
        staged = node.put(
            pod("staged", container(), init=(container("one"), container("two")), behaviours={"one": ends, "two": ends})
        )
        sick = Behaviour(exec=(ExecStep(), ExecStep(from_seconds=20, exit_code=1)))
        ill = node.put(pod("ill", container(liveness=probe(period=1, failures=1)), grace=1, behaviours={"app": sick}))
        late = node.put(pod("late", deadline=15, policy="Never", grace=1))
        twice = node.put(
            pod("twice", policy="OnFailure", behaviours={"app": Behaviour(after_seconds=1, exit_code=1, crashes=1)})
        )
        await asyncio.sleep(40)
        one, two, app = (node.runs_of(staged, name)[0] for name in ("one", "two", "app"))
        assert (one.ended or 0) <= (two.started or 0) < (two.ended or 0) <= (app.started or 0)
        assert len(node.runs_of(ill)) == 2
        assert (node.phase("late"), node.seen("late").status.reason, node.runs(late)) == (
            "Failed",
            "DeadlineExceeded",
            False,
        )
        assert [run.exit_code for run in node.runs_of(twice)] == [1, None]

    run_scenario(scenario)


# 25: simulators and kube-play do not behave like a node.


def test_simulation_demonstration_and_tests_run_the_same_engine() -> None:
    """Pain 25: kwok 1406, podman 12417, 20372, 25157; there is one engine, wired in one place."""

    async def other_agents() -> list[Agent]:
        return [DemoNode(seed=1).agent, NodeHarness().new_agent()]

    found: list[Agent] = list(simulate(other_agents())[0])

    async def scenario(node: SimNode) -> None:
        await asyncio.sleep(1)
        found.append(node.agent)

    run_scenario(scenario)
    rooms = [{name: type(room) for name, room in vars(agent).items()} for agent in found]
    assert [type(agent) for agent in found] == [Agent] * 3
    assert rooms[0] == rooms[1] == rooms[2]
