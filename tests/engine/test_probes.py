"""Probe workers in virtual time: when they ask, whom they tell, and that none is in another's way."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.model.messages import ProbeKind
from podkeeper.rules.probe.report import Outcome, Report
from podkeeper.rules.probe.worker import Target, period_annotation
from podkeeper.testing.virtual_time import simulate
from tests.engine.probe_house import (
    FAILURE,
    ILL,
    LIVENESS,
    READINESS,
    STARTUP,
    SUCCESS,
    WELL,
    World,
    container,
    in_world,
    pod,
    probe,
    uid,
)


def test_a_probe_runs_once_a_period_and_tells_each_change_of_its_result() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(readiness=probe(10, failures=2)))
        world.runs(web, "web-1")
        world.probes.add_pod(web)
        await asyncio.sleep(15)
        world.report = ILL
        await asyncio.sleep(30)
        assert world.times == [0, 10, 20, 30, 40]
        assert world.told == [
            (0, READINESS, "fake://web-1", SUCCESS),
            (30, READINESS, "fake://web-1", FAILURE),
        ]
        assert world.probes.view(uid(web)).readiness == {"fake://web-1": FAILURE}

    in_world(scenario)


def test_a_container_that_started_just_before_the_agent_stays_ready_until_its_probe_speaks() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(readiness=probe(60)))
        world.takes = lambda _: 1
        world.runs(web, "web-1", ready=True, since=world.agent_started - timedelta(seconds=2))
        world.probes.add_pod(web)
        await asyncio.sleep(0.5)
        assert (world.told, world.probes.view(uid(web)).readiness) == ([], {})
        await asyncio.sleep(1)
        assert world.probes.view(uid(web)).readiness == {"fake://web-1": SUCCESS}

    in_world(scenario)


def test_a_failed_liveness_probe_waits_for_the_next_container() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(liveness=probe(10, failures=3)))
        world.runs(web, "web-1")
        world.report = ILL
        world.probes.add_pod(web)
        await asyncio.sleep(55)
        assert world.times == [0, 10, 20]
        assert world.probes.liveness(uid(web)) == {"web-1": FAILURE}
        world.runs(web, "web-2")
        await asyncio.sleep(6)
        assert world.times == [0, 10, 20, 60]
        assert world.probes.liveness(uid(web)) == {"web-2": SUCCESS}
        assert [(at, result) for at, _, _, result in world.told] == [(20, FAILURE)]

    in_world(scenario)


def test_nothing_else_is_probed_before_the_startup_probe_has_succeeded() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(startup=probe(5), liveness=probe(10)))
        world.runs(web, "web-1", started=False)
        world.probes.add_pod(web)
        await asyncio.sleep(1)
        assert world.executed == [(0, "web", STARTUP)]
        assert world.probes.startup(uid(web)) == {"web-1": SUCCESS}
        world.runs(web, "web-1", started=True)
        await asyncio.sleep(20)
        assert world.executed == [(0, "web", STARTUP), (10, "web", LIVENESS), (20, "web", LIVENESS)]

    in_world(scenario)


def test_a_container_that_has_started_is_asked_at_once_whether_it_is_ready() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(readiness=probe(60), liveness=probe(60)))
        world.probes.add_pod(web)
        await asyncio.sleep(7)
        world.runs(web, "web-1")
        world.probes.wake(uid(web), ["web"])
        world.probes.wake(uid(web), ["web"])
        await asyncio.sleep(63)
        assert world.executed == [(7, "web", READINESS), (60, "web", LIVENESS), (67, "web", READINESS)]

    in_world(scenario)


def test_a_probe_that_is_being_executed_is_not_woken() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(readiness=probe(60)))
        world.runs(web, "web-1")
        world.takes = lambda _: 5
        world.probes.add_pod(web)
        for _ in range(3):
            await asyncio.sleep(1)
            world.probes.wake(uid(web), ["web"])
        assert world.under_way.total() == 1
        await asyncio.sleep(62)
        assert world.times == [0, 60]  # nor does it tick another time afterwards

    in_world(scenario)


def test_a_probe_that_waits_for_a_slot_is_not_woken() -> None:
    async def scenario(world: World) -> None:
        world.takes = lambda _: 5
        first, second = (pod(container(name, readiness=probe(60)), name=name) for name in ("a", "b"))
        for each in (first, second):
            world.runs(each, each.metadata.name or "")
            world.probes.add_pod(each)
        await asyncio.sleep(1)
        world.probes.wake(uid(second), ["b"])
        await asyncio.sleep(20)
        assert [(at, name) for at, name, _ in world.executed] == [(0, "a"), (5, "b")]

    in_world(scenario, slots=1, lease_seconds=30)


def test_a_probe_that_waits_for_a_slot_and_is_stopped_is_not_executed() -> None:
    async def scenario(world: World) -> None:
        world.takes = lambda _: 5
        pods = [pod(container(name, liveness=probe(60)), name=name) for name in ("a", "b", "c")]
        for each in pods:
            world.runs(each, each.metadata.name or "")
            world.probes.add_pod(each)
        await asyncio.sleep(1)
        world.probes.remove_pod(uid(pods[1]))
        await asyncio.sleep(20)
        assert [(at, name) for at, name, _ in world.executed] == [(0, "a"), (5, "c")]

    in_world(scenario, slots=1, lease_seconds=30)


def test_a_probe_that_waited_for_a_slot_in_vain_can_be_woken_again() -> None:
    async def scenario(world: World) -> None:
        world.takes = lambda _: 1
        first, second = (pod(container(name, readiness=probe(60)), name=name) for name in ("a", "b"))
        for each in (first, second):
            world.runs(each, each.metadata.name or "")
            world.probes.add_pod(each)
        await asyncio.sleep(0.5)
        world.exits(second, "b", 0)
        await asyncio.sleep(6.5)  # it has its turn, and does not run
        world.runs(second, "b-2")
        world.probes.wake(uid(second), ["b"])
        await asyncio.sleep(5)
        assert [(at, name) for at, name, _ in world.executed] == [(0, "a"), (7, "b")]

    in_world(scenario, slots=1)


def test_the_lease_of_an_execution_ends_with_it_and_not_the_next_one() -> None:
    async def scenario(world: World) -> None:
        first, second = (pod(container(name, readiness=probe(60)), name=name) for name in ("a", "b"))
        world.runs(first, "a")
        world.probes.add_pod(first)
        await asyncio.sleep(1.5)
        world.takes = lambda _: 10
        world.probes.wake(uid(first), ["a"])
        await asyncio.sleep(0.25)
        world.runs(second, "b")
        world.probes.add_pod(second)
        await asyncio.sleep(5)
        assert [(at, name) for at, name, _ in world.executed] == [(0, "a"), (1.5, "a"), (3.5, "b")]

    in_world(scenario, slots=1, lease_seconds=2)


def test_after_an_error_a_probe_can_be_woken_again() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(readiness=probe(60)))
        world.runs(web, "web-1")
        world.report = RuntimeError("a bug")
        world.probes.add_pod(web)
        await asyncio.sleep(1)
        world.report = WELL
        world.probes.wake(uid(web), ["web"])
        await asyncio.sleep(1)
        assert world.times == [0, 1]
        assert world.probes.view(uid(web)).readiness == {"fake://web-1": SUCCESS}

    in_world(scenario)


def test_an_error_gives_the_slot_back() -> None:
    async def scenario(world: World) -> None:
        world.report = RuntimeError("a bug")
        for number in range(5):
            each = pod(container(liveness=probe(60)), name=f"pod-{number}")
            world.runs(each, f"web-{number}")
            world.probes.add_pod(each)
        await asyncio.sleep(1)
        assert world.times == [0] * 5

    in_world(scenario, slots=1, lease_seconds=30)


def test_a_young_agent_spreads_its_first_probes_over_a_period() -> None:
    async def scenario(world: World) -> list[float]:
        for number in range(100):
            each = pod(container(liveness=probe(60)), name=f"pod-{number}")
            world.runs(each, f"web-{number}")
            world.probes.add_pod(each)
        await asyncio.sleep(60)
        return world.times

    first = in_world(scenario, agent_age_seconds=0)
    assert len(first) == 100
    assert max(Counter(int(at / 6) for at in first).values()) <= 20
    assert first == in_world(scenario, agent_age_seconds=0)  # chance is seeded


def test_after_a_restart_of_the_agent_pods_that_run_are_not_all_probed_at_once() -> None:
    async def scenario(world: World) -> None:
        old, new = pod(container(readiness=probe(60)), name="old"), pod(container(readiness=probe(60)), name="new")
        world.runs(old, "old-1", since=world.clock.now() - timedelta(hours=1))
        world.runs(new, "new-1")
        for each in (old, new):
            world.probes.add_pod(each)
            world.probes.wake(uid(each), ["web"])
        await asyncio.sleep(0.001)
        assert len(world.executed) == 1
        assert world.probes.view(uid(new)).readiness == {"fake://new-1": SUCCESS}
        assert world.probes.view(uid(old)).readiness == {}  # what was published stands until the probe speaks
        await asyncio.sleep(60)
        assert world.probes.view(uid(old)).readiness == {"fake://old-1": SUCCESS}

    in_world(scenario, agent_age_seconds=0)


def test_a_slow_probe_misses_ticks_and_makes_up_for_one() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(liveness=probe(10)))
        world.runs(web, "web-1")
        world.takes = lambda _: 25 if len(world.executed) == 1 else 1
        world.probes.add_pod(web)
        await asyncio.sleep(45)
        assert world.times == [0, 25, 30, 40]

    in_world(scenario)


def test_only_so_many_probes_are_executed_at_a_time() -> None:
    async def scenario(world: World) -> None:
        world.takes = lambda _: 1
        for number in range(10):
            each = pod(container(liveness=probe(60)), name=f"pod-{number}")
            world.runs(each, f"web-{number}")
            world.probes.add_pod(each)
        await asyncio.sleep(5)
        assert world.times == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
        assert world.most_at_a_time == 3

    in_world(scenario, slots=3)


def test_hung_probes_give_their_slots_back_and_delay_no_other() -> None:
    async def scenario(world: World) -> None:
        world.takes = lambda target: math.inf if target.container.name == "hung" else 0.0
        for number in range(100):
            name = "hung" if number < 50 else "fine"
            each = pod(container(name, liveness=probe(60)), name=f"pod-{number}")
            world.runs(each, f"web-{number}")
            world.probes.add_pod(each)
        await asyncio.sleep(59)
        assert Counter(name for _, name, _ in world.executed) == {"hung": 50, "fine": 50}
        first_round = [at for at, name, _ in world.executed if name == "fine"]
        await asyncio.sleep(60)
        fine = [at for at, name, _ in world.executed if name == "fine"]
        assert fine[50:] == [60.0] * 50  # the grid of each; nobody waits any more
        assert max(first_round) <= 25 * 2  # hung ones stand four abreast before them, for two seconds each
        assert world.under_way.total() == 50

    in_world(scenario, slots=4, lease_seconds=2)


def test_a_probe_that_waited_for_a_slot_looks_again_before_it_is_executed() -> None:
    async def scenario(world: World) -> None:
        world.takes = lambda _: 1
        first, second = pod(container(liveness=probe(60)), name="a"), pod(container(liveness=probe(60)), name="b")
        for each in (first, second):
            world.runs(each, each.metadata.name or "")
            world.probes.add_pod(each)
        await asyncio.sleep(0.5)
        world.exits(second, "b", 0)
        await asyncio.sleep(5)
        assert world.times == [0]
        assert world.probes.liveness(uid(second)) == {"b": FAILURE}

    in_world(scenario, slots=1)


def test_what_is_said_about_a_container_that_was_replaced_meanwhile_is_ignored() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(liveness=probe(60, failures=1)))
        world.runs(web, "web-1")
        world.report, world.takes = ILL, lambda _: 5
        world.probes.add_pod(web)
        await asyncio.sleep(1)
        world.runs(web, "web-2")
        await asyncio.sleep(4.5)
        assert world.probes.liveness(uid(web)) == {"web-2": SUCCESS}
        assert world.times == [0, 5]  # the new one is looked at without waiting for the next tick
        await asyncio.sleep(5)
        assert world.probes.liveness(uid(web)) == {"web-2": FAILURE}

    in_world(scenario)


def test_a_stopped_probe_says_nothing_more() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(liveness=probe(60, failures=1)))
        world.runs(web, "web-1")
        world.report, world.takes = ILL, lambda _: 5
        world.probes.add_pod(web)
        await asyncio.sleep(1)
        world.probes.remove_pod(uid(web))
        await asyncio.sleep(100)
        assert world.told == []
        assert (world.recorded, world.counted) == ([], [])
        assert world.times == [0]
        assert world.ended == [(web, "web", LIVENESS)]

    in_world(scenario)


def test_a_terminating_pod_keeps_readiness_probes_and_those_of_its_sidecars() -> None:
    async def scenario(world: World) -> None:
        sidecar = container("proxy", liveness=probe(), readiness=probe(), startup=probe(), policy="Always")
        web = pod(container(liveness=probe(), readiness=probe(), startup=probe()), init=(sidecar,))
        world.runs(web, "web-1", "proxy-1")
        world.probes.add_pod(web)
        await asyncio.sleep(1)
        world.probes.stop_liveness_and_startup(web)
        assert world.probes.view(uid(web)).workers == {
            ("web", READINESS),
            ("proxy", LIVENESS),
            ("proxy", READINESS),
            ("proxy", STARTUP),
        }
        assert set(world.probes.liveness(uid(web))) == {"proxy-1"}
        world.probes.remove_pod(uid(web))
        world.probes.remove_pod(uid(web))
        assert len(world.probes) == 0
        assert world.probes.view(uid(web)).workers == frozenset()

    in_world(scenario)


def test_adding_a_pod_again_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(readiness=probe(10)))
        world.runs(web, "web-1")
        world.probes.add_pod(web)
        await asyncio.sleep(1)
        view = world.probes.view(uid(web))
        world.probes.add_pod(web)
        world.probes.add_pod(pod(container(readiness=probe(10))))
        assert world.probes.view(uid(web)) is view
        await asyncio.sleep(10)
        assert world.times == [0, 10]

    in_world(scenario)


def test_the_probe_of_a_container_that_never_runs_again_ends_and_does_not_come_back() -> None:
    async def scenario(world: World) -> None:
        job = pod(container(readiness=probe(10)), policy="Never")
        world.runs(job, "job-1")
        world.probes.add_pod(job)
        await asyncio.sleep(5)
        world.exits(job, "job-1", 0)
        await asyncio.sleep(10)
        assert world.told[-1] == (10, READINESS, "fake://job-1", FAILURE)
        assert len(world.probes) == 0
        world.probes.add_pod(job)  # as every sync does: it would tell the same for ever
        await asyncio.sleep(100)
        assert len(world.told) == 2
        world.runs(job, "job-2")
        world.probes.add_pod(job)
        await asyncio.sleep(1)
        assert world.told[-1] == (115, READINESS, "fake://job-2", SUCCESS)

    in_world(scenario)


def test_housekeeping_ends_the_probes_of_pods_that_cannot_run() -> None:
    async def scenario(world: World) -> None:
        pods = [pod(container(liveness=probe()), name=f"pod-{number}") for number in range(3)]
        for each in pods:
            world.probes.add_pod(each)
        world.probes.keep_only({uid(pods[1])})
        assert [len(world.probes.view(uid(each)).workers) for each in pods] == [0, 1, 0]

    in_world(scenario)


PERIODS = {
    "milliseconds by annotation": ("250", [0, 0.25, 0.5, 0.75, 1.0]),
    "never faster than the floor": ("1", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
    "nonsense is as good as none": ("often", [0, 1]),
}


@pytest.mark.parametrize("text, times", PERIODS.values(), ids=PERIODS.keys())
def test_sub_second_periods(text: str, times: list[float], caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        web = pod(container(liveness=probe(1)), annotations={period_annotation("web", LIVENESS): text})
        world.runs(web, "web-1")
        for _ in range(5):
            world.probes.add_pod(web)
        await asyncio.sleep(1.05)
        assert world.times == pytest.approx(times)

    with caplog.at_level(logging.WARNING):
        in_world(scenario)
    assert len(caplog.records) == (0 if text.isdigit() else 1)


def test_events_name_the_container_and_what_went_wrong() -> None:
    async def scenario(world: World) -> None:
        sidecar = container("proxy", liveness=probe(), policy="Always")
        web = pod(container(readiness=probe()), init=(sidecar,))
        world.runs(web, "web-1", "proxy-1")
        world.report = ILL
        world.probes.add_pod(web)
        await asyncio.sleep(1)
        assert [(each.reason, each.message, each.uid, each.container_path) for each, _ in world.recorded] == [
            ("Unhealthy", "Readiness probe failed: no", "uid-web", "spec.containers{web}"),
            ("Unhealthy", "Liveness probe failed: no", "uid-web", "spec.initContainers{proxy}"),
        ]

    in_world(scenario)


def test_a_probe_that_cannot_be_executed_is_tried_three_times_and_concludes_nothing() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(liveness=probe(10, failures=1)))
        world.runs(web, "web-1")
        world.report = Report(Outcome.UNKNOWN, error="no runtime")
        world.probes.add_pod(web)
        await asyncio.sleep(5)
        assert world.times == [0, 0, 0]
        assert [each.message for each, _ in world.recorded] == [
            "Liveness probe errored and resulted in unknown state: no runtime"
        ]
        assert world.probes.liveness(uid(web)) == {"web-1": SUCCESS}
        assert world.counted == []

    in_world(scenario)


def test_whatever_goes_wrong_around_a_probe_it_goes_on() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(readiness=probe(10)))
        world.runs(web, "web-1")
        world.deaf = True
        world.probes.add_pod(web)
        await asyncio.sleep(5)
        world.deaf, world.report = False, RuntimeError("a bug")
        await asyncio.sleep(10)
        world.report = ILL
        await asyncio.sleep(50)
        assert world.times == [0, 10, 20, 30, 40, 50, 60]
        assert world.told == [(40, READINESS, "fake://web-1", FAILURE)]  # the success was lost on the deaf

    in_world(scenario)


def test_ten_thousand_idle_probes_need_no_task() -> None:
    async def scenario(world: World) -> None:
        for number in range(10_000):
            each = pod(container(readiness=probe(60)), name=f"pod-{number}")
            world.probes.add_pod(each)
        await asyncio.sleep(1)
        assert len(asyncio.all_tasks()) <= 3
        await asyncio.sleep(60)
        assert len(asyncio.all_tasks()) <= 3

    in_world(scenario, agent_age_seconds=0)


def test_probes_that_are_due_before_the_manager_runs_are_executed_once_it_does() -> None:
    async def scenario() -> list[float]:
        world = World()
        await asyncio.sleep(100)
        world.began = 100
        web = pod(container(liveness=probe(10)))
        world.runs(web, "web-1")
        world.probes.add_pod(web)
        await asyncio.sleep(3)
        assert world.times == []
        async with asyncio.TaskGroup() as group:
            running = group.create_task(world.probes.run())
            await asyncio.sleep(10)
            running.cancel()
        return world.times

    assert simulate(scenario())[0] == [3, 10]


SPEEDS: dict[str, Callable[[Target], float]] = {"slow": lambda _: 20.0, "quick": lambda _: 0.0}
ACTIONS = ("wake", "replace", "exit", "stop", "add", "remove", "ill", "well", "slow", "quick")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 15)), max_size=25))
def test_in_any_history_results_are_told_once_and_belong_to_a_live_worker(history: list[tuple[str, int]]) -> None:
    async def scenario(world: World) -> None:
        web = pod(container(readiness=probe(10, 2), liveness=probe(7, 2), startup=probe(5, 2)))
        age = 1
        world.runs(web, f"web-{age}")
        world.probes.add_pod(web)
        for action, seconds in history:
            match action:
                case "wake":
                    world.probes.wake(uid(web), ["web"])
                case "replace":
                    age += 1
                    world.runs(web, f"web-{age}")
                case "exit":
                    world.exits(web, f"web-{age}", 1)
                case "stop":
                    world.probes.stop_liveness_and_startup(web)
                case "add":
                    world.probes.add_pod(web)
                case "remove":
                    world.probes.remove_pod(uid(web))
                    assert world.probes.view(uid(web)).readiness == world.probes.liveness(uid(web)) == {}
                case "ill" | "well":
                    world.report = ILL if action == "ill" else WELL
                case "slow" | "quick":
                    world.takes = SPEEDS[action]
            await asyncio.sleep(seconds)
            view = world.probes.view(uid(web))
            assert len(view.readiness) <= 1
            assert bool(view.readiness) <= (("web", READINESS) in view.workers)
        if "remove" not in {action for action, _ in history}:
            for kind in ProbeKind:
                told = [(container_id, result) for _, of, container_id, result in world.told if of is kind]
                assert all(one != other for one, other in pairwise(told))

    in_world(scenario)
