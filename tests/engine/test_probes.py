"""Probe workers in virtual time: when they execute, which results they send, and that none delays another."""

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
from podkeeper.model.pods import uid_of
from podkeeper.rules.probe.report import ProbeOutcome, Report
from podkeeper.rules.probe.worker import Target, period_annotation
from podkeeper.testing.build import container, probe
from podkeeper.testing.virtual_time import simulate
from tests.engine.probe_harness import (
    FAILURE,
    HEALTHY,
    LIVENESS,
    READINESS,
    STARTUP,
    SUCCESS,
    UNHEALTHY,
    ProbeHarness,
    pod,
    run_scenario,
)


def test_a_probe_runs_once_a_period_and_sends_each_changed_result() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", readiness=probe(period=10, failures=2)))
        harness.runs(web, "web-1")
        harness.probes.add_pod(web)
        await asyncio.sleep(15)
        harness.report = UNHEALTHY
        await asyncio.sleep(30)
        assert harness.times == [0, 10, 20, 30, 40]
        assert harness.sent == [
            (0, READINESS, "fake://web-1", SUCCESS),
            (30, READINESS, "fake://web-1", FAILURE),
        ]
        assert harness.probes.view(uid_of(web)).readiness == {"fake://web-1": FAILURE}

    run_scenario(scenario)


def test_a_container_started_before_the_agent_stays_ready_until_its_first_result() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", readiness=probe(period=60)))
        harness.takes = lambda _: 1
        harness.runs(web, "web-1", ready=True, since=harness.agent_started - timedelta(seconds=2))
        harness.probes.add_pod(web)
        await asyncio.sleep(0.5)
        assert (harness.sent, harness.probes.view(uid_of(web)).readiness) == ([], {})
        await asyncio.sleep(1)
        assert harness.probes.view(uid_of(web)).readiness == {"fake://web-1": SUCCESS}

    run_scenario(scenario)


def test_a_failed_liveness_probe_waits_for_the_next_container() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", liveness=probe(period=10, failures=3)))
        harness.runs(web, "web-1")
        harness.report = UNHEALTHY
        harness.probes.add_pod(web)
        await asyncio.sleep(55)
        assert harness.times == [0, 10, 20]
        assert harness.probes.liveness(uid_of(web)) == {"web-1": FAILURE}
        harness.runs(web, "web-2")
        await asyncio.sleep(6)
        assert harness.times == [0, 10, 20, 60]
        assert harness.probes.liveness(uid_of(web)) == {"web-2": SUCCESS}
        assert [(at, result) for at, _, _, result in harness.sent] == [(20, FAILURE)]

    run_scenario(scenario)


def test_other_probes_wait_until_the_startup_probe_has_succeeded() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", startup=probe(period=5), liveness=probe(period=10)))
        harness.runs(web, "web-1", started=False)
        harness.probes.add_pod(web)
        await asyncio.sleep(1)
        assert harness.executed == [(0, "web", STARTUP)]
        assert harness.probes.startup(uid_of(web)) == {"web-1": SUCCESS}
        harness.runs(web, "web-1", started=True)
        await asyncio.sleep(20)
        assert harness.executed == [(0, "web", STARTUP), (10, "web", LIVENESS), (20, "web", LIVENESS)]

    run_scenario(scenario)


def test_a_started_container_gets_its_readiness_probe_at_once() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", readiness=probe(period=60), liveness=probe(period=60)))
        harness.probes.add_pod(web)
        await asyncio.sleep(7)
        harness.runs(web, "web-1")
        harness.probes.wake(uid_of(web), ["web"])
        harness.probes.wake(uid_of(web), ["web"])
        await asyncio.sleep(63)
        assert harness.executed == [(7, "web", READINESS), (60, "web", LIVENESS), (67, "web", READINESS)]

    run_scenario(scenario)


def test_an_executing_probe_is_not_woken() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", readiness=probe(period=60)))
        harness.runs(web, "web-1")
        harness.takes = lambda _: 5
        harness.probes.add_pod(web)
        for _ in range(3):
            await asyncio.sleep(1)
            harness.probes.wake(uid_of(web), ["web"])
        assert harness.in_flight.total() == 1
        await asyncio.sleep(62)
        assert harness.times == [0, 60]  # and there is no extra tick afterwards

    run_scenario(scenario)


def test_a_probe_that_waits_for_a_slot_is_not_woken() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        harness.takes = lambda _: 5
        first, second = (pod(name, container(name, readiness=probe(period=60))) for name in ("a", "b"))
        for each in (first, second):
            harness.runs(each, each.metadata.name or "")
            harness.probes.add_pod(each)
        await asyncio.sleep(1)
        harness.probes.wake(uid_of(second), ["b"])
        await asyncio.sleep(20)
        assert [(at, name) for at, name, _ in harness.executed] == [(0, "a"), (5, "b")]

    run_scenario(scenario, slots=1, lease_seconds=30)


def test_a_probe_that_waits_for_a_slot_and_is_stopped_is_not_executed() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        harness.takes = lambda _: 5
        pods = [pod(name, container(name, liveness=probe(period=60))) for name in ("a", "b", "c")]
        for each in pods:
            harness.runs(each, each.metadata.name or "")
            harness.probes.add_pod(each)
        await asyncio.sleep(1)
        harness.probes.remove_pod(uid_of(pods[1]))
        await asyncio.sleep(20)
        assert [(at, name) for at, name, _ in harness.executed] == [(0, "a"), (5, "c")]

    run_scenario(scenario, slots=1, lease_seconds=30)


def test_a_probe_whose_container_exited_before_its_slot_came_can_be_woken_again() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        harness.takes = lambda _: 1
        first, second = (pod(name, container(name, readiness=probe(period=60))) for name in ("a", "b"))
        for each in (first, second):
            harness.runs(each, each.metadata.name or "")
            harness.probes.add_pod(each)
        await asyncio.sleep(0.5)
        harness.exits(second, "b", 0)
        await asyncio.sleep(6.5)  # it gets the slot, but its container does not run
        harness.runs(second, "b-2")
        harness.probes.wake(uid_of(second), ["b"])
        await asyncio.sleep(5)
        assert [(at, name) for at, name, _ in harness.executed] == [(0, "a"), (7, "b")]

    run_scenario(scenario, slots=1)


def test_the_lease_of_an_execution_does_not_end_the_next_one() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        first, second = (pod(name, container(name, readiness=probe(period=60))) for name in ("a", "b"))
        harness.runs(first, "a")
        harness.probes.add_pod(first)
        await asyncio.sleep(1.5)
        harness.takes = lambda _: 10
        harness.probes.wake(uid_of(first), ["a"])
        await asyncio.sleep(0.25)
        harness.runs(second, "b")
        harness.probes.add_pod(second)
        await asyncio.sleep(5)
        assert [(at, name) for at, name, _ in harness.executed] == [(0, "a"), (1.5, "a"), (3.5, "b")]

    run_scenario(scenario, slots=1, lease_seconds=2)


def test_after_an_error_a_probe_can_be_woken_again() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", readiness=probe(period=60)))
        harness.runs(web, "web-1")
        harness.report = RuntimeError("a bug")
        harness.probes.add_pod(web)
        await asyncio.sleep(1)
        harness.report = HEALTHY
        harness.probes.wake(uid_of(web), ["web"])
        await asyncio.sleep(1)
        assert harness.times == [0, 1]
        assert harness.probes.view(uid_of(web)).readiness == {"fake://web-1": SUCCESS}

    run_scenario(scenario)


def test_an_error_releases_the_slot() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        harness.report = RuntimeError("a bug")
        for number in range(5):
            each = pod(f"pod-{number}", container("web", liveness=probe(period=60)))
            harness.runs(each, f"web-{number}")
            harness.probes.add_pod(each)
        await asyncio.sleep(1)
        assert harness.times == [0] * 5

    run_scenario(scenario, slots=1, lease_seconds=30)


def test_a_young_agent_spreads_its_first_probes_over_a_period() -> None:
    async def scenario(harness: ProbeHarness) -> list[float]:
        for number in range(100):
            each = pod(f"pod-{number}", container("web", liveness=probe(period=60)))
            harness.runs(each, f"web-{number}")
            harness.probes.add_pod(each)
        await asyncio.sleep(60)
        return harness.times

    first = run_scenario(scenario, agent_age_seconds=0)
    assert len(first) == 100
    assert max(Counter(int(at / 6) for at in first).values()) <= 20
    assert first == run_scenario(scenario, agent_age_seconds=0)  # the random numbers are seeded


def test_after_an_agent_restart_running_pods_are_not_all_probed_at_once() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        old, new = (
            pod("old", container("web", readiness=probe(period=60))),
            pod("new", container("web", readiness=probe(period=60))),
        )
        harness.runs(old, "old-1", since=harness.clock.now() - timedelta(hours=1))
        harness.runs(new, "new-1")
        for each in (old, new):
            harness.probes.add_pod(each)
            harness.probes.wake(uid_of(each), ["web"])
        await asyncio.sleep(0.001)
        assert len(harness.executed) == 1
        assert harness.probes.view(uid_of(new)).readiness == {"fake://new-1": SUCCESS}
        assert harness.probes.view(uid_of(old)).readiness == {}  # the published value stays until the first result
        await asyncio.sleep(60)
        assert harness.probes.view(uid_of(old)).readiness == {"fake://old-1": SUCCESS}

    run_scenario(scenario, agent_age_seconds=0)


def test_a_slow_probe_skips_missed_ticks_except_one() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", liveness=probe(period=10)))
        harness.runs(web, "web-1")
        harness.takes = lambda _: 25 if len(harness.executed) == 1 else 1
        harness.probes.add_pod(web)
        await asyncio.sleep(45)
        assert harness.times == [0, 25, 30, 40]

    run_scenario(scenario)


def test_the_number_of_concurrent_executions_is_limited() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        harness.takes = lambda _: 1
        for number in range(10):
            each = pod(f"pod-{number}", container("web", liveness=probe(period=60)))
            harness.runs(each, f"web-{number}")
            harness.probes.add_pod(each)
        await asyncio.sleep(5)
        assert harness.times == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
        assert harness.max_concurrent == 3

    run_scenario(scenario, slots=3)


def test_hung_probes_release_their_slots_and_delay_no_other_probe() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        harness.takes = lambda target: math.inf if target.container.name == "hung" else 0.0
        for number in range(100):
            name = "hung" if number < 50 else "fine"
            each = pod(f"pod-{number}", container(name, liveness=probe(period=60)))
            harness.runs(each, f"web-{number}")
            harness.probes.add_pod(each)
        await asyncio.sleep(59)
        assert Counter(name for _, name, _ in harness.executed) == {"hung": 50, "fine": 50}
        first_round = [at for at, name, _ in harness.executed if name == "fine"]
        await asyncio.sleep(60)
        fine = [at for at, name, _ in harness.executed if name == "fine"]
        assert fine[50:] == [60.0] * 50  # each on its own grid: no probe waits any more
        assert max(first_round) <= 25 * 2  # before them, four hung probes at a time hold the slots for two seconds
        assert harness.in_flight.total() == 50

    run_scenario(scenario, slots=4, lease_seconds=2)


def test_a_probe_that_waited_for_a_slot_checks_its_container_again() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        harness.takes = lambda _: 1
        first, second = (
            pod("a", container("web", liveness=probe(period=60))),
            pod("b", container("web", liveness=probe(period=60))),
        )
        for each in (first, second):
            harness.runs(each, each.metadata.name or "")
            harness.probes.add_pod(each)
        await asyncio.sleep(0.5)
        harness.exits(second, "b", 0)
        await asyncio.sleep(5)
        assert harness.times == [0]
        assert harness.probes.liveness(uid_of(second)) == {"b": FAILURE}

    run_scenario(scenario, slots=1)


def test_the_result_for_a_container_replaced_meanwhile_is_dropped() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", liveness=probe(period=60, failures=1)))
        harness.runs(web, "web-1")
        harness.report, harness.takes = UNHEALTHY, lambda _: 5
        harness.probes.add_pod(web)
        await asyncio.sleep(1)
        harness.runs(web, "web-2")
        await asyncio.sleep(4.5)
        assert harness.probes.liveness(uid_of(web)) == {"web-2": SUCCESS}
        assert harness.times == [0, 5]  # the new container is probed before the next tick
        await asyncio.sleep(5)
        assert harness.probes.liveness(uid_of(web)) == {"web-2": FAILURE}

    run_scenario(scenario)


def test_a_stopped_probe_sends_records_and_counts_nothing() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", liveness=probe(period=60, failures=1)))
        harness.runs(web, "web-1")
        harness.report, harness.takes = UNHEALTHY, lambda _: 5
        harness.probes.add_pod(web)
        await asyncio.sleep(1)
        harness.probes.remove_pod(uid_of(web))
        await asyncio.sleep(100)
        assert harness.sent == []
        assert (harness.recorded, harness.counted) == ([], [])
        assert harness.times == [0]
        assert harness.ended == [(web, "web", LIVENESS)]

    run_scenario(scenario)


def test_a_terminating_pod_keeps_its_readiness_and_sidecar_probes() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        sidecar = container("proxy", liveness=probe(), readiness=probe(), startup=probe(), sidecar=True)
        web = pod("web", container("web", liveness=probe(), readiness=probe(), startup=probe()), init=(sidecar,))
        harness.runs(web, "web-1", "proxy-1")
        harness.probes.add_pod(web)
        await asyncio.sleep(1)
        harness.probes.stop_liveness_and_startup(web)
        assert harness.probes.view(uid_of(web)).workers == {
            ("web", READINESS),
            ("proxy", LIVENESS),
            ("proxy", READINESS),
            ("proxy", STARTUP),
        }
        assert set(harness.probes.liveness(uid_of(web))) == {"proxy-1"}
        harness.probes.remove_pod(uid_of(web))
        harness.probes.remove_pod(uid_of(web))
        assert len(harness.probes) == 0
        assert harness.probes.view(uid_of(web)).workers == frozenset()

    run_scenario(scenario)


def test_adding_a_pod_again_changes_nothing() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", readiness=probe(period=10)))
        harness.runs(web, "web-1")
        harness.probes.add_pod(web)
        await asyncio.sleep(1)
        view = harness.probes.view(uid_of(web))
        harness.probes.add_pod(web)
        harness.probes.add_pod(pod("web", container("web", readiness=probe(period=10))))
        assert harness.probes.view(uid_of(web)) is view
        await asyncio.sleep(10)
        assert harness.times == [0, 10]

    run_scenario(scenario)


def test_the_probe_of_a_container_that_never_restarts_ends() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        job = pod("web", container("web", readiness=probe(period=10)), policy="Never")
        harness.runs(job, "job-1")
        harness.probes.add_pod(job)
        await asyncio.sleep(5)
        harness.exits(job, "job-1", 0)
        await asyncio.sleep(10)
        assert harness.sent[-1] == (10, READINESS, "fake://job-1", FAILURE)
        assert len(harness.probes) == 0
        harness.probes.add_pod(job)  # as every sync does
        await asyncio.sleep(100)
        assert len(harness.sent) == 2
        harness.runs(job, "job-2")
        harness.probes.add_pod(job)
        await asyncio.sleep(1)
        assert harness.sent[-1] == (115, READINESS, "fake://job-2", SUCCESS)

    run_scenario(scenario)


def test_keep_only_stops_the_probes_of_other_pods() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        pods = [pod(f"pod-{number}", container("web", liveness=probe())) for number in range(3)]
        for each in pods:
            harness.probes.add_pod(each)
        harness.probes.keep_only({uid_of(pods[1])})
        assert [len(harness.probes.view(uid_of(each)).workers) for each in pods] == [0, 1, 0]

    run_scenario(scenario)


PERIODS = {
    "milliseconds by annotation": ("250", [0, 0.25, 0.5, 0.75, 1.0]),
    "a period below the minimum is raised": ("1", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
    "an invalid annotation is ignored": ("often", [0, 1]),
}


@pytest.mark.parametrize("text, times", PERIODS.values(), ids=PERIODS.keys())
def test_sub_second_periods(text: str, times: list[float], caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod(
            "web", container("web", liveness=probe(period=1)), annotations={period_annotation("web", LIVENESS): text}
        )
        harness.runs(web, "web-1")
        for _ in range(5):
            harness.probes.add_pod(web)
        await asyncio.sleep(1.05)
        assert harness.times == pytest.approx(times)

    with caplog.at_level(logging.WARNING):
        run_scenario(scenario)
    assert len(caplog.records) == (0 if text.isdigit() else 1)


def test_events_name_the_container_and_the_failure() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        sidecar = container("proxy", liveness=probe(), sidecar=True)
        web = pod("web", container("web", readiness=probe()), init=(sidecar,))
        harness.runs(web, "web-1", "proxy-1")
        harness.report = UNHEALTHY
        harness.probes.add_pod(web)
        await asyncio.sleep(1)
        assert [(each.reason, each.message, each.uid, each.container_path) for each, _ in harness.recorded] == [
            ("Unhealthy", "Readiness probe failed: no", "uid-web", "spec.containers{web}"),
            ("Unhealthy", "Liveness probe failed: no", "uid-web", "spec.initContainers{proxy}"),
        ]

    run_scenario(scenario)


def test_a_probe_that_cannot_be_executed_is_tried_three_times_without_a_result() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", liveness=probe(period=10, failures=1)))
        harness.runs(web, "web-1")
        harness.report = Report(ProbeOutcome.UNKNOWN, error="no runtime")
        harness.probes.add_pod(web)
        await asyncio.sleep(5)
        assert harness.times == [0, 0, 0]
        assert [each.message for each, _ in harness.recorded] == [
            "Liveness probe errored and resulted in unknown state: no runtime"
        ]
        assert harness.probes.liveness(uid_of(web)) == {"web-1": SUCCESS}
        assert harness.counted == []

    run_scenario(scenario)


def test_a_probe_continues_after_errors_in_its_surroundings() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", readiness=probe(period=10)))
        harness.runs(web, "web-1")
        harness.send_fails = True
        harness.probes.add_pod(web)
        await asyncio.sleep(5)
        harness.send_fails, harness.report = False, RuntimeError("a bug")
        await asyncio.sleep(10)
        harness.report = UNHEALTHY
        await asyncio.sleep(50)
        assert harness.times == [0, 10, 20, 30, 40, 50, 60]
        assert harness.sent == [(40, READINESS, "fake://web-1", FAILURE)]  # the success could not be sent

    run_scenario(scenario)


def test_ten_thousand_idle_probes_need_no_task() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        for number in range(10_000):
            each = pod(f"pod-{number}", container("web", readiness=probe(period=60)))
            harness.probes.add_pod(each)
        await asyncio.sleep(1)
        assert len(asyncio.all_tasks()) <= 3
        await asyncio.sleep(60)
        assert len(asyncio.all_tasks()) <= 3

    run_scenario(scenario, agent_age_seconds=0)


def test_probes_due_before_the_manager_runs_are_executed_when_it_runs() -> None:
    async def scenario() -> list[float]:
        harness = ProbeHarness()
        await asyncio.sleep(100)
        harness.began = 100
        web = pod("web", container("web", liveness=probe(period=10)))
        harness.runs(web, "web-1")
        harness.probes.add_pod(web)
        await asyncio.sleep(3)
        assert harness.times == []
        async with asyncio.TaskGroup() as group:
            running = group.create_task(harness.probes.run())
            await asyncio.sleep(10)
            running.cancel()
        return harness.times

    assert simulate(scenario())[0] == [3, 10]


SPEEDS: dict[str, Callable[[Target], float]] = {"slow": lambda _: 20.0, "quick": lambda _: 0.0}
ACTIONS = ("wake", "replace", "exit", "stop", "add", "remove", "fail", "succeed", "slow", "quick")


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 15)), max_size=25))
def test_in_any_history_results_are_sent_once_and_belong_to_a_live_worker(history: list[tuple[str, int]]) -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod(
            "web",
            container(
                "web",
                readiness=probe(period=10, failures=2),
                liveness=probe(period=7, failures=2),
                startup=probe(period=5, failures=2),
            ),
        )
        age = 1
        harness.runs(web, f"web-{age}")
        harness.probes.add_pod(web)
        for action, seconds in history:
            match action:
                case "wake":
                    harness.probes.wake(uid_of(web), ["web"])
                case "replace":
                    age += 1
                    harness.runs(web, f"web-{age}")
                case "exit":
                    harness.exits(web, f"web-{age}", 1)
                case "stop":
                    harness.probes.stop_liveness_and_startup(web)
                case "add":
                    harness.probes.add_pod(web)
                case "remove":
                    harness.probes.remove_pod(uid_of(web))
                    assert harness.probes.view(uid_of(web)).readiness == harness.probes.liveness(uid_of(web)) == {}
                case "fail" | "succeed":
                    harness.report = UNHEALTHY if action == "fail" else HEALTHY
                case "slow" | "quick":
                    harness.takes = SPEEDS[action]
            await asyncio.sleep(seconds)
            view = harness.probes.view(uid_of(web))
            assert len(view.readiness) <= 1
            assert bool(view.readiness) <= (("web", READINESS) in view.workers)
        if "remove" not in {action for action, _ in history}:
            for kind in ProbeKind:
                sent = [(container_id, result) for _, of, container_id, result in harness.sent if of is kind]
                assert all(one != other for one, other in pairwise(sent))

    run_scenario(scenario)
