"""Probe workers at their boundaries: exact views, exact arguments, and which results are news."""

import asyncio
import gc
import logging
import weakref

import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateWaiting,
    ContainerStatus,
    PodStatus,
    Probe,
)
from podkeeper.model.messages import EventType, PodEvent, PodUID, ProbeKind, ProbeResult
from podkeeper.model.times import format_time
from podkeeper.rules.probe.flags import ProbeView
from podkeeper.rules.probe.report import Outcome, Report
from podkeeper.rules.probe.worker import Target, period_annotation
from podkeeper.testing.virtual_time import BEGINNING, simulate
from tests.engine.probe_house import (
    FAILURE,
    ILL,
    LIVENESS,
    READINESS,
    STARTUP,
    SUCCESS,
    UNKNOWN,
    WELL,
    World,
    container,
    in_world,
    pod,
    probe,
    uid,
)

RUNNING = ContainerState(running=ContainerStateRunning(started_at=format_time(BEGINNING)))
FULL = container(liveness=probe(60), readiness=probe(60), startup=probe(60))
ONLY = {
    LIVENESS: container(liveness=probe(60)),
    READINESS: container(readiness=probe(60)),
    STARTUP: container(startup=probe(60)),
}
OTHER = PodUID("other")


def found(
    name: str, container_id: str, *, ready: bool = False, started: bool | None = True, state: ContainerState = RUNNING
) -> ContainerStatus:
    return ContainerStatus(name=name, container_id=f"fake://{container_id}", state=state, started=started, ready=ready)


# Views.


def test_a_view_shows_who_made_a_container_its_results_and_the_workers_of_its_pod() -> None:
    async def scenario(world: World) -> None:
        web = pod(FULL)
        world.takes = lambda _: 1
        world.probes.claim(uid(web), "web", "web-1")
        world.shows(web, found("web", "web-1", started=False))
        world.probes.add_pod(web)
        await asyncio.sleep(0.5)
        assert world.probes.view(uid(web)) == ProbeView(
            own=frozenset({"web-1"}),
            readiness={"fake://web-1": FAILURE},
            startup={"fake://web-1": UNKNOWN},
            workers=frozenset({("web", LIVENESS), ("web", READINESS), ("web", STARTUP)}),
        )
        assert world.probes.liveness(uid(web)) == {"web-1": SUCCESS}
        assert world.probes.startup(uid(web)) == {"web-1": UNKNOWN}
        assert len(world.probes) == 3

    in_world(scenario)


def test_a_pod_without_probes_has_an_empty_view_and_no_workers() -> None:
    async def scenario(world: World) -> None:
        plain = pod(container())
        world.probes.add_pod(plain)
        world.probes.wake(uid(plain), ["web"])
        world.probes.stop_liveness_and_startup(plain)
        for each in (uid(plain), OTHER):
            assert world.probes.view(each) == ProbeView()
            assert (world.probes.liveness(each), world.probes.startup(each)) == ({}, {})
        assert len(world.probes) == 0

    in_world(scenario)


def test_a_view_changes_with_each_claim_worker_and_result() -> None:
    async def scenario(world: World) -> None:
        one = container("one", readiness=probe(10))
        web = pod(one)
        of_one, of_two = ("one", READINESS), ("two", READINESS)

        def view() -> ProbeView:
            return world.probes.view(uid(web))

        world.probes.add_pod(web)
        assert view() == ProbeView(workers=frozenset({of_one}))
        world.probes.claim(uid(web), "one", "one-1")
        assert view().own == {"one-1"}
        world.probes.claim(uid(web), "one", "one-2")
        world.probes.claim(uid(web), "two", "two-1")
        assert view().own == {"one-2", "two-1"}
        both = pod(one, container("two", readiness=probe(10)))
        world.probes.add_pod(both)
        assert view().workers == {of_one, of_two}
        world.shows(both, found("one", "one-2"), found("two", "two-1"))
        await asyncio.sleep(11)
        assert view().readiness == {"fake://one-2": SUCCESS, "fake://two-1": SUCCESS}
        world.shows(both, found("one", "found"), found("two", "two-1"))  # not made by this agent
        world.takes = lambda _: 1
        await asyncio.sleep(9.5)
        assert view().readiness == {"fake://two-1": SUCCESS}
        world.statuses[uid(both)] = PodStatus(phase="Succeeded")
        await asyncio.sleep(10)
        assert view() == ProbeView(own=frozenset({"one-2", "two-1"}))

    in_world(scenario)


def test_a_removed_pod_is_forgotten_with_all_that_the_agent_made_of_it() -> None:
    async def scenario(world: World) -> None:
        web, db, plain = pod(FULL), pod(FULL, name="db"), pod(container(), name="plain")
        for each in (web, db, plain):
            world.probes.claim(uid(each), "web", f"{each.metadata.name}-1")
            world.probes.add_pod(each)
        world.probes.remove_pod(uid(web))
        world.probes.keep_only([uid(db)])
        for each in (web, db, plain):
            world.probes.add_pod(pod(FULL, name=each.metadata.name or ""))
        assert [world.probes.view(uid(each)).own for each in (web, db, plain)] == [set(), {"db-1"}, set()]

    in_world(scenario)


# What is news.

WAITING = ContainerState(waiting=ContainerStateWaiting(reason="CrashLoopBackOff"))
BEGINNINGS: dict[str, tuple[ProbeKind, ContainerStatus, list[ProbeResult]]] = {
    "a running container counts as alive": (LIVENESS, found("web", "web-1"), []),
    "a container that does not run counts as failed": (
        LIVENESS,
        found("web", "web-1", state=WAITING),
        [FAILURE],
    ),
    "the status shows a container as ready that has not been probed": (
        READINESS,
        found("web", "web-1", ready=True),
        [FAILURE],
    ),
    "the status shows it as not ready": (READINESS, found("web", "web-1"), []),
    "the status shows a container as started that has not been probed": (
        STARTUP,
        found("web", "web-1", started=True),
        [UNKNOWN],
    ),
    "the status shows it as not started": (
        STARTUP,
        found("web", "web-1", started=False),
        [],
    ),
    "the status has no started flag": (STARTUP, found("web", "web-1", started=None), []),
}


@pytest.mark.parametrize("kind, status, told", BEGINNINGS.values(), ids=BEGINNINGS.keys())
def test_before_the_first_outcome_only_a_result_that_contradicts_the_status_is_sent(
    kind: ProbeKind, status: ContainerStatus, told: list[ProbeResult]
) -> None:
    async def scenario(world: World) -> None:
        web = pod(container("other"), ONLY[kind])
        world.takes = lambda _: 1
        world.probes.claim(uid(web), "web", "web-1")
        opposite = replace(status, name="other", ready=not status.ready, started=not status.started)
        world.shows(web, opposite, status)
        world.probes.add_pod(web)
        await asyncio.sleep(0.5)
        assert world.told == [(0, kind, "fake://web-1", result) for result in told]

    in_world(scenario)


@pytest.mark.parametrize("ready", [False, True])
def test_the_status_of_a_sidecar_counts_as_well(ready: bool) -> None:
    async def scenario(world: World) -> None:
        sidecar = container("proxy", readiness=probe(60), policy="Always")
        web = pod(container(), init=(sidecar,))
        world.takes = lambda _: 1
        world.probes.claim(uid(web), "proxy", "proxy-1")
        world.shows(web, found("web", "web-1", ready=not ready), init=(found("proxy", "proxy-1", ready=ready),))
        world.probes.add_pod(web)
        await asyncio.sleep(0.5)
        assert world.told == ([(0, READINESS, "fake://proxy-1", FAILURE)] if ready else [])

    in_world(scenario)


def test_a_pod_that_is_removed_when_its_first_result_is_sent_is_not_probed() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(readiness=probe(10)))
        world.probes.claim(uid(web), "web", "web-1")
        world.shows(web, found("web", "web-1", ready=True))
        world.on_tell = lambda: world.probes.remove_pod(uid(web))
        world.probes.add_pod(web)
        await asyncio.sleep(30)
        assert world.told == [(0, READINESS, "fake://web-1", FAILURE)]
        assert world.executed == []

    in_world(scenario)


def test_a_tick_that_fails_executes_nothing_and_the_next_one_does() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(readiness=probe(10)))
        world.runs(web, "web-1")
        world.probes.add_pod(web)
        await asyncio.sleep(5)
        world.failing_lookups = 1
        await asyncio.sleep(20)
        assert world.times == [0, 20]

    in_world(scenario)


def test_a_first_outcome_is_sent_even_if_it_equals_the_assumed_one() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(readiness=probe(60, failures=1), liveness=probe(60)))
        world.shows(web, found("web", "web-1"))  # of an agent that ran before
        world.report = ILL
        world.probes.add_pod(web)
        await asyncio.sleep(1)
        assert world.told == [(0, READINESS, "fake://web-1", FAILURE)]
        world.report = WELL
        await asyncio.sleep(60)
        assert world.told[1:] == [
            (60, READINESS, "fake://web-1", SUCCESS),
            (60, LIVENESS, "fake://web-1", SUCCESS),
        ]

    in_world(scenario)


# Executions.


def test_an_execution_gets_the_pod_the_target_the_address_and_the_container() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(readiness=probe(60)))
        world.shows(web, found("web", "web-1"))
        world.probes.add_pod(web)
        await asyncio.sleep(1)
        target = Target(web.spec.containers[0], READINESS, probe(60))
        assert world.asked == [(web, target, "10.0.0.7", "fake://web-1")]
        assert world.counted == [(web, "web", READINESS, SUCCESS, 0.0)]
        world.statuses[uid(web)] = replace(world.statuses[uid(web)], pod_ip=None)
        world.probes.wake(uid(web), ["web"])
        await asyncio.sleep(1)
        assert world.asked[1:] == [(web, target, "", "fake://web-1")]

    in_world(scenario)


def test_an_execution_that_is_repeated_after_the_status_is_gone_has_no_address() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(readiness=probe(60)))
        world.shows(web, found("web", "web-1"))
        world.report, world.takes = Report(Outcome.UNKNOWN, error="no runtime"), lambda _: 1
        world.probes.add_pod(web)
        await asyncio.sleep(0.5)
        world.statuses.clear()
        await asyncio.sleep(5)
        assert [ip for _, _, ip, _ in world.asked] == ["10.0.0.7", "", ""]
        assert world.counted == []

    in_world(scenario)


REPORTS: dict[str, tuple[Report, list[tuple[str, str]], list[ProbeResult]]] = {
    "success": (WELL, [], [SUCCESS]),
    "failure": (ILL, [("Unhealthy", "Readiness probe failed: no")], [FAILURE]),
    "warning": (Report(Outcome.WARNING, "hm"), [("ProbeWarning", "Readiness probe warning: hm")], [SUCCESS]),
}


@pytest.mark.parametrize("report, events, results", REPORTS.values(), ids=REPORTS.keys())
def test_each_execution_is_counted_and_recorded_for_its_pod(
    report: Report, events: list[tuple[str, str]], results: list[ProbeResult]
) -> None:
    async def scenario(world: World) -> None:
        web = pod(container("first"), container("second", readiness=probe(60)))
        world.shows(web, found("first", "first-1"), found("second", "second-1"))
        world.report, world.takes = report, lambda _: 0.25
        world.probes.add_pod(web)
        await asyncio.sleep(1)
        assert world.recorded == [
            (PodEvent(EventType.WARNING, reason, message, uid(web), "spec.containers{second}"), web)
            for reason, message in events
        ]
        assert world.counted == [(web, "second", READINESS, result, 0.25) for result in results]

    in_world(scenario)


@pytest.mark.parametrize("kind, told", [(LIVENESS, [FAILURE]), (READINESS, [])])
def test_a_container_that_dies_during_an_execution_fails_when_that_ends(
    kind: ProbeKind, told: list[ProbeResult]
) -> None:
    async def scenario(world: World) -> None:
        web = pod(ONLY[kind])
        world.runs(web, "web-1")
        world.takes = lambda _: 5
        world.probes.add_pod(web)
        await asyncio.sleep(1)
        world.exits(web, "web-1", 1)
        await asyncio.sleep(10)
        assert world.told == [(5, kind, "fake://web-1", result) for result in told]  # readiness was false before
        assert world.probes.liveness(uid(web)) == ({"web-1": FAILURE} if kind is LIVENESS else {})
        assert world.probes.view(uid(web)).readiness == ({"fake://web-1": FAILURE} if kind is READINESS else {})
        assert world.times == [0]

    in_world(scenario)


def test_by_default_a_hundred_probes_are_executed_at_a_time_and_keep_their_slot_for_a_second() -> None:
    async def scenario(world: World) -> World:
        world.takes = lambda _: 5
        for number in range(101):
            each = pod(container(liveness=probe(60)), name=f"pod-{number}")
            world.runs(each, f"web-{number}")
            world.probes.add_pod(each)
        await asyncio.sleep(4)
        assert world.times == [0] * 100 + [1]
        world.probes.remove_pod(uid(pod(name="pod-7")))
        return world

    world = in_world(scenario, usual=True)
    assert (world.counted, world.ended) == ([], [])  # by default there is no observer


def test_an_execution_that_outlived_its_lease_frees_no_second_slot_when_it_ends() -> None:
    async def scenario(world: World) -> None:
        world.takes = lambda _: 3
        for name in "abc":
            each = pod(container(name, liveness=probe(60)), name=name)
            world.runs(each, name)
            world.probes.add_pod(each)
            await asyncio.sleep(0.125)
        await asyncio.sleep(10)
        assert [(at, name) for at, name, _ in world.executed] == [(0, "a"), (2, "b"), (4, "c")]

    in_world(scenario, slots=1, lease_seconds=2)


# Periods.

PERIODS: dict[str, tuple[Probe, str | None, list[float]]] = {
    "the period of the spec": (probe(29), None, [0.25, 29.25, 58.25]),
    "rare probes meet at half seconds": (probe(30), None, [0.25, 30.5, 60.5]),
    "so do rarer ones": (probe(31), None, [0.25, 31.5, 62.5]),
    "ten seconds if the spec has no period": (Probe(), None, [0.25, 10.25, 20.25, 30.25, 40.25, 50.25, 60.25]),
    "ten seconds if the annotation cannot be used either": (
        Probe(), "often", [0.25, 10.25, 20.25, 30.25, 40.25, 50.25, 60.25],
    ),
    "the period of the spec if the annotation cannot be used": (probe(25), "often", [0.25, 25.25, 50.25]),
}  # fmt: skip


@pytest.mark.parametrize("probe, text, times", PERIODS.values(), ids=PERIODS.keys())
def test_a_probe_is_executed_once_in_each_period(probe: Probe, text: str | None, times: list[float]) -> None:
    async def scenario(world: World) -> None:
        annotations = None if text is None else {period_annotation("web", LIVENESS): text}
        web = pod(container(liveness=probe), annotations=annotations)
        world.runs(web, "web-1")
        await asyncio.sleep(0.25)
        world.probes.add_pod(web)
        await asyncio.sleep(64)
        assert world.times == times

    in_world(scenario, agent_age_seconds=3500)


@pytest.mark.parametrize("age, at_once", [(59.75, False), (60.0, True)])
def test_first_probes_are_spread_while_the_agent_is_younger_than_their_period(age: float, at_once: bool) -> None:
    async def scenario(world: World) -> None:
        web = pod(container(liveness=probe(60)))
        world.runs(web, "web-1")
        world.probes.add_pod(web)
        await asyncio.sleep(60)
        assert (world.times[0] == 0) is at_once

    in_world(scenario, agent_age_seconds=age)


# Pods that change.


def test_a_worker_uses_the_latest_version_of_its_pod() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(liveness=probe(10)))
        world.runs(web, "web-1")
        world.probes.add_pod(web)
        await asyncio.sleep(1)
        deleted = replace(web, metadata=replace(web.metadata, deletion_timestamp=format_time(BEGINNING)))
        world.probes.add_pod(deleted)
        await asyncio.sleep(10)
        assert (world.times, len(world.probes)) == ([0], 0)
        assert world.ended == [(deleted, "web", LIVENESS)]
        assert world.told == []

    in_world(scenario)


def test_a_probe_that_has_ended_does_not_come_back_while_there_is_no_other_container() -> None:
    async def scenario(world: World) -> None:
        one, two = container("one", readiness=probe(10)), container("two", readiness=probe(10))
        job = pod(one, two, policy="Never")
        world.shows(job, found("two", "two-1"))
        world.probes.add_pod(job)
        await asyncio.sleep(1)
        world.probes.stop_liveness_and_startup(job)
        world.statuses[uid(job)] = PodStatus(phase="Succeeded")
        await asyncio.sleep(10)
        assert world.ended == [(job, "one", READINESS), (job, "two", READINESS)]
        same, none_yet = found("two", "two-1"), ContainerStatus(name="two", state=WAITING)
        for status in (
            None,
            PodStatus(),
            PodStatus(container_statuses=(same,)),
            PodStatus(container_statuses=(none_yet,)),
            PodStatus(init_container_statuses=(same,)),
        ):
            if status is None:
                world.statuses.clear()
            else:
                world.statuses[uid(job)] = status
            world.probes.add_pod(job)
            assert len(world.probes) == 0
        world.shows(job, found("two", "two-2"))
        world.probes.add_pod(job)
        assert world.probes.view(uid(job)).workers == {("two", READINESS)}

    in_world(scenario)


def test_all_workers_of_a_removed_pod_are_reported_as_gone() -> None:
    async def scenario(world: World) -> None:
        web = pod(FULL)
        world.probes.add_pod(web)
        world.probes.remove_pod(uid(web))
        assert world.ended == [(web, "web", kind) for kind in (STARTUP, READINESS, LIVENESS)]

    in_world(scenario)


def test_waking_skips_containers_without_a_readiness_probe() -> None:
    async def scenario(world: World) -> None:
        web = pod(container("plain"), container("web", readiness=probe(60)))
        world.probes.add_pod(web)
        await asyncio.sleep(7)
        world.shows(web, found("plain", "plain-1"), found("web", "web-1"))
        world.probes.wake(uid(web), ["plain", "unknown", "web"])
        await asyncio.sleep(1)
        assert world.executed == [(7, "web", READINESS)]

    in_world(scenario)


def test_a_container_that_ran_before_the_agent_can_be_woken_once_its_worker_has_ticked() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(readiness=probe(20)))
        world.shows(web, found("web", "web-1"))
        world.probes.add_pod(web)
        world.probes.wake(uid(web), ["web"])
        await asyncio.sleep(20)
        (first,) = world.times
        assert first > 0
        world.probes.wake(uid(web), ["web"])
        await asyncio.sleep(0.5)
        assert world.times == [first, 20]

    in_world(scenario, agent_age_seconds=1)


def test_a_worker_of_a_pod_without_a_status_can_be_woken() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(readiness=probe(20)))
        world.probes.add_pod(web)
        world.probes.wake(uid(web), ["web"])
        await asyncio.sleep(1)
        world.shows(web, found("web", "web-1"))
        await asyncio.sleep(25)
        assert world.times == [20]  # a period after it was woken, and not at the time drawn for its first tick

    in_world(scenario, agent_age_seconds=1)


def test_a_terminating_pod_has_no_startup_results_any_more() -> None:
    async def scenario(world: World) -> None:
        web = pod(container("first"), FULL)
        world.probes.claim(uid(web), "web", "web-1")
        world.shows(web, found("first", "first-1"), found("web", "web-1", started=False))
        world.takes = lambda _: 1
        world.probes.add_pod(web)
        await asyncio.sleep(0.5)
        assert world.probes.view(uid(web)).startup == {"fake://web-1": UNKNOWN}
        world.probes.stop_liveness_and_startup(web)
        assert world.ended == [(web, "web", LIVENESS), (web, "web", STARTUP)]
        assert (world.probes.liveness(uid(web)), world.probes.startup(uid(web))) == ({}, {})
        assert world.probes.view(uid(web)).startup == {}

    in_world(scenario)


# The end.


def test_nothing_is_left_in_the_event_loop_once_it_has_stopped() -> None:
    async def scenario() -> None:
        world = World(slots=1)
        gone = weakref.ref(world.probes)
        web = pod(FULL)
        world.takes = lambda _: 100
        world.probes.add_pod(web)
        world.runs(web, "web-1")
        running = asyncio.ensure_future(world.probes.run())
        await asyncio.sleep(70)
        running.cancel()
        await asyncio.wait({running})
        del world, running
        gc.collect()
        assert gone() is None

    simulate(scenario())


def test_a_manager_that_has_stopped_executes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> list[float]:
        world = World(slots=1)
        old, new = (pod(container(liveness=probe(1)), name=name) for name in ("old", "new"))
        for each in (old, new):
            world.runs(each, f"{each.metadata.name}-1")
        world.takes = lambda _: 5
        running = asyncio.ensure_future(world.probes.run())
        world.probes.add_pod(old)
        await asyncio.sleep(2)
        running.cancel()
        await asyncio.wait({running})
        world.probes.add_pod(new)
        await asyncio.sleep(100)
        return world.times

    with caplog.at_level(logging.WARNING):
        assert len(simulate(scenario())[0]) == 1
    assert caplog.records == []


def test_a_pod_without_a_uid_is_known_by_the_empty_uid() -> None:
    async def scenario(world: World) -> None:
        web = pod(container(readiness=probe(60), liveness=probe(60)))
        nameless = replace(web, metadata=replace(web.metadata, uid=None))
        world.probes.add_pod(nameless)
        assert world.probes.view(PodUID("")).workers == {("web", READINESS), ("web", LIVENESS)}
        world.probes.stop_liveness_and_startup(nameless)
        assert world.probes.view(PodUID("")).workers == {("web", READINESS)}

    in_world(scenario)
