"""Pains of what is the same for all, back-off and probe periods; and of what should be: the engine."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from podkeeper.app.build import Agent
from podkeeper.app.demo.node import DemoNode
from podkeeper.model.messages import PodUID, ProbeKind
from podkeeper.rules.backoff import Curve
from podkeeper.rules.backoff_tuning import BackoffKind, annotation
from podkeeper.rules.probe.worker import period_annotation
from podkeeper.runtimes.fake import Behaviour, ExecStep
from podkeeper.testing.sim.records import Asked
from podkeeper.testing.sim.world import World
from podkeeper.testing.virtual_time import simulate
from tests.app.node_house import NodeHouse
from tests.sim.stories import DAWDLE, Story, container, exec_probe, pod, tell

SLACK = 0.01 if DAWDLE == 0 else 3.0
CRASHES = Behaviour(after_seconds=0.5, exit_code=1)

# 14: crash-loop back-off fixed for all.


def _pauses(it: Story, uid: PodUID) -> list[float]:
    """From each exit to the next start."""
    lives = it.lives(uid)
    return [
        (after.started or 0.0) - (before.ended or 0.0) for before, after in pairwise(lives) if after.started is not None
    ]


def _are_about(pauses: list[float], expected: list[float]) -> bool:
    """Never sooner than said; a pod's next turn is put off by up to half of the delay, so that not all come at once."""
    return len(pauses) >= len(expected) and all(
        least - 1e-6 <= pause <= 1.5 * least + 1 + SLACK for pause, least in zip(pauses, expected, strict=False)
    )


def tuned(initial: str, maximum: str) -> dict[str, str]:
    return {
        annotation(BackoffKind.RESTART, "initial"): initial,
        annotation(BackoffKind.RESTART, "maximum"): maximum,
    }


TUNED: dict[str, tuple[dict[str, str], list[float]]] = {
    "a pod that says nothing": ({}, [0, 10, 20, 40, 80, 160]),
    "a pod that is impatient": (tuned("2s", "8s"), [0, 2, 4, 8, 8, 8]),
    "a pod that is patient": (tuned("60s", "90s"), [0, 60, 90, 90, 90, 90]),
    "a pod that asks for too much": (tuned("1ms", "1ms"), [0, 1, 1, 1, 1, 1]),
    "a pod that cannot be understood": (tuned("soon", "later"), [0, 10, 20, 40, 80, 160]),
}


@pytest.mark.parametrize("annotations, expected", TUNED.values(), ids=TUNED.keys())
def test_a_pod_tunes_its_crash_loop_back_off(annotations: dict[str, str], expected: list[float]) -> None:
    """Pain 14: k/k 57291; per pod, with a floor of a second."""

    async def story(it: Story) -> None:
        uid = it.put(pod("loop", annotations=annotations, app=CRASHES))
        await it.until(lambda: len(_pauses(it, uid)) >= len(expected), within=2 * sum(expected) + 60)
        assert _are_about(_pauses(it, uid), expected)

    tell(story)


def test_a_node_tunes_the_crash_loop_back_off_of_its_pods() -> None:
    """Pain 14: k/k 57291; per node; a pod's own word goes before the node's."""

    def prepare(world: World) -> None:
        curve = Curve(timedelta(seconds=3), timedelta(seconds=12))
        world.settings = replace(world.settings, restart_curve=curve)

    async def story(it: Story) -> None:
        usual, own = it.put(pod("usual", app=CRASHES)), it.put(pod("own", annotations=tuned("5s", "5s"), app=CRASHES))
        await it.until(lambda: len(_pauses(it, usual)) >= 5, within=200)
        assert _are_about(_pauses(it, usual), [0, 3, 6, 12, 12])
        assert _are_about(_pauses(it, own), [0, 5, 5])

    tell(story, prepare=prepare)


# 15: no sub-second probes.

PERIODS = {
    "a quarter of a second": ("250", 0.25),
    "below the floor": ("1", 0.1),
    "not to be understood": ("fast", 10.0),
}


@pytest.mark.parametrize("text, seconds", PERIODS.values(), ids=PERIODS.keys())
def test_a_probe_may_run_more_often_than_every_second(text: str, seconds: float) -> None:
    """Pain 15: k/k 38778; by annotation, with a floor of a tenth of a second."""
    asked: list[float] = []

    def prepare(world: World) -> None:
        def see(made: Asked) -> None:
            if made.operation == "exec_sync":
                asked.append(made.begun)

        world.bus.subscribe(Asked, see)

    async def story(it: Story) -> None:
        annotations = {period_annotation("app", ProbeKind.READINESS): text}
        life = Behaviour(exec=(ExecStep(), ExecStep(from_seconds=60.05, exit_code=1)))
        ready = exec_probe(period=10, failures=1)
        uid = it.put(pod("web", container(ready=ready), annotations=annotations, app=life))
        await it.until(lambda: it.is_ready("web"), within=20)
        await asyncio.sleep(50 - it.world.now())
        begun = len(asked)
        await asyncio.sleep(9.99)
        assert len(asked) - begun == pytest.approx(9.99 / seconds, rel=0.3 if DAWDLE else 0.1, abs=1)
        await it.until(lambda: not it.is_ready("web"), within=20)
        assert it.world.now() - (it.lives(uid)[0].started or 0.0) <= 60.05 + seconds + SLACK

    tell(story, prepare=prepare)


# 23: virtual nodes leave probes, restarts, init order, deadlines to the plugin.


def test_probes_restarts_init_order_and_deadlines_come_from_the_engine() -> None:
    """Pain 23: VK 238, 762, 982; the runtime knows sandboxes, containers and images, and nothing of pods' lives."""

    async def story(it: Story) -> None:
        ends = Behaviour(after_seconds=2)
        staged = it.put(pod("staged", container(), init=(container("one"), container("two")), one=ends, two=ends))
        sick = Behaviour(exec=(ExecStep(), ExecStep(from_seconds=20, exit_code=1)))
        ill = it.put(pod("ill", container(live=exec_probe(period=1, failures=1)), grace=1, app=sick))
        late = it.put(pod("late", deadline=15, policy="Never", grace=1))
        twice = it.put(pod("twice", policy="OnFailure", app=Behaviour(after_seconds=1, exit_code=1, crashes=1)))
        await asyncio.sleep(40)
        one, two, app = (it.lives(staged, name)[0] for name in ("one", "two", "app"))
        assert (one.ended or 0) <= (two.started or 0) < (two.ended or 0) <= (app.started or 0)
        assert len(it.lives(ill)) == 2
        assert (it.phase("late"), it.seen("late").status.reason, it.runs(late)) == ("Failed", "DeadlineExceeded", False)
        assert [life.exit_code for life in it.lives(twice)] == [1, None]

    tell(story)


# 25: simulators and kube-play are not faithful.


def test_simulation_demonstration_and_tests_run_the_same_engine() -> None:
    """Pain 25: kwok 1406, podman 12417, 20372, 25157; there is one engine, wired in one place."""

    async def agents() -> list[Agent]:
        return [DemoNode(seed=1).agent, NodeHouse().agent]

    found: list[Agent] = list(simulate(agents())[0])

    async def story(it: Story) -> None:
        await asyncio.sleep(1)
        found.append(it.agent)

    tell(story)
    rooms = [{name: type(room) for name, room in vars(agent).items()} for agent in found]
    assert [type(agent) for agent in found] == [Agent] * 3
    assert rooms[0] == rooms[1] == rooms[2]
