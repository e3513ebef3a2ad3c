"""Boundaries of probe workers: exact views, exact arguments, and which results are sent."""

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
from podkeeper.model.pods import uid_of
from podkeeper.model.times import format_time
from podkeeper.rules.probe.flags import ProbeView
from podkeeper.rules.probe.report import ProbeOutcome, Report
from podkeeper.rules.probe.worker import Target, period_annotation
from podkeeper.testing.build import container, probe
from podkeeper.testing.virtual_time import BEGINNING, simulate
from tests.engine.probe_harness import (
    FAILURE,
    HEALTHY,
    LIVENESS,
    READINESS,
    STARTUP,
    SUCCESS,
    UNHEALTHY,
    UNKNOWN,
    ProbeHarness,
    pod,
    run_scenario,
)

RUNNING = ContainerState(running=ContainerStateRunning(started_at=format_time(BEGINNING)))
FULL = container("web", liveness=probe(period=60), readiness=probe(period=60), startup=probe(period=60))
ONLY = {
    LIVENESS: container("web", liveness=probe(period=60)),
    READINESS: container("web", readiness=probe(period=60)),
    STARTUP: container("web", startup=probe(period=60)),
}
OTHER = PodUID("other")


def found(
    name: str, container_id: str, *, ready: bool = False, started: bool | None = True, state: ContainerState = RUNNING
) -> ContainerStatus:
    return ContainerStatus(name=name, container_id=f"fake://{container_id}", state=state, started=started, ready=ready)


# Views.


def test_a_view_shows_claimed_containers_results_and_workers() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", FULL)
        harness.takes = lambda _: 1
        harness.probes.claim(uid_of(web), "web", "web-1")
        harness.shows(web, found("web", "web-1", started=False))
        harness.probes.add_pod(web)
        await asyncio.sleep(0.5)
        assert harness.probes.view(uid_of(web)) == ProbeView(
            own=frozenset({"web-1"}),
            readiness={"fake://web-1": FAILURE},
            startup={"fake://web-1": UNKNOWN},
            workers=frozenset({("web", LIVENESS), ("web", READINESS), ("web", STARTUP)}),
        )
        assert harness.probes.liveness(uid_of(web)) == {"web-1": SUCCESS}
        assert harness.probes.startup(uid_of(web)) == {"web-1": UNKNOWN}
        assert len(harness.probes) == 3

    run_scenario(scenario)


def test_a_pod_without_probes_has_an_empty_view_and_no_workers() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        plain = pod("web", container("web"))
        harness.probes.add_pod(plain)
        harness.probes.wake(uid_of(plain), ["web"])
        harness.probes.stop_liveness_and_startup(plain)
        for each in (uid_of(plain), OTHER):
            assert harness.probes.view(each) == ProbeView()
            assert (harness.probes.liveness(each), harness.probes.startup(each)) == ({}, {})
        assert len(harness.probes) == 0

    run_scenario(scenario)


def test_a_view_changes_with_each_claim_worker_and_result() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        one = container("one", readiness=probe(period=10))
        web = pod("web", one)
        of_one, of_two = ("one", READINESS), ("two", READINESS)

        def view() -> ProbeView:
            return harness.probes.view(uid_of(web))

        harness.probes.add_pod(web)
        assert view() == ProbeView(workers=frozenset({of_one}))
        harness.probes.claim(uid_of(web), "one", "one-1")
        assert view().own == {"one-1"}
        harness.probes.claim(uid_of(web), "one", "one-2")
        harness.probes.claim(uid_of(web), "two", "two-1")
        assert view().own == {"one-2", "two-1"}
        both = pod("web", one, container("two", readiness=probe(period=10)))
        harness.probes.add_pod(both)
        assert view().workers == {of_one, of_two}
        harness.shows(both, found("one", "one-2"), found("two", "two-1"))
        await asyncio.sleep(11)
        assert view().readiness == {"fake://one-2": SUCCESS, "fake://two-1": SUCCESS}
        harness.shows(both, found("one", "found"), found("two", "two-1"))  # not made by this agent
        harness.takes = lambda _: 1
        await asyncio.sleep(9.5)
        assert view().readiness == {"fake://two-1": SUCCESS}
        harness.statuses[uid_of(both)] = PodStatus(phase="Succeeded")
        await asyncio.sleep(10)
        assert view() == ProbeView(own=frozenset({"one-2", "two-1"}))

    run_scenario(scenario)


def test_a_removed_pod_is_forgotten_with_its_claims() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web, db, plain = pod("web", FULL), pod("db", FULL), pod("plain", container("web"))
        for each in (web, db, plain):
            harness.probes.claim(uid_of(each), "web", f"{each.metadata.name}-1")
            harness.probes.add_pod(each)
        harness.probes.remove_pod(uid_of(web))
        harness.probes.keep_only([uid_of(db)])
        for each in (web, db, plain):
            harness.probes.add_pod(pod(each.metadata.name or "", FULL))
        assert [harness.probes.view(uid_of(each)).own for each in (web, db, plain)] == [set(), {"db-1"}, set()]

    run_scenario(scenario)


# Which results are sent.

WAITING = ContainerState(waiting=ContainerStateWaiting(reason="CrashLoopBackOff"))
BEGINNINGS: dict[str, tuple[ProbeKind, ContainerStatus, list[ProbeResult]]] = {
    "a running container counts as live": (LIVENESS, found("web", "web-1"), []),
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


@pytest.mark.parametrize("kind, status, sent", BEGINNINGS.values(), ids=BEGINNINGS.keys())
def test_before_the_first_outcome_only_a_result_that_contradicts_the_status_is_sent(
    kind: ProbeKind, status: ContainerStatus, sent: list[ProbeResult]
) -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("other"), ONLY[kind])
        harness.takes = lambda _: 1
        harness.probes.claim(uid_of(web), "web", "web-1")
        opposite = replace(status, name="other", ready=not status.ready, started=not status.started)
        harness.shows(web, opposite, status)
        harness.probes.add_pod(web)
        await asyncio.sleep(0.5)
        assert harness.sent == [(0, kind, "fake://web-1", result) for result in sent]

    run_scenario(scenario)


@pytest.mark.parametrize("ready", [False, True])
def test_the_status_of_a_sidecar_counts_as_well(ready: bool) -> None:
    async def scenario(harness: ProbeHarness) -> None:
        sidecar = container("proxy", readiness=probe(period=60), sidecar=True)
        web = pod("web", container("web"), init=(sidecar,))
        harness.takes = lambda _: 1
        harness.probes.claim(uid_of(web), "proxy", "proxy-1")
        harness.shows(web, found("web", "web-1", ready=not ready), init=(found("proxy", "proxy-1", ready=ready),))
        harness.probes.add_pod(web)
        await asyncio.sleep(0.5)
        assert harness.sent == ([(0, READINESS, "fake://proxy-1", FAILURE)] if ready else [])

    run_scenario(scenario)


def test_a_pod_that_is_removed_when_its_first_result_is_sent_is_not_probed() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", readiness=probe(period=10)))
        harness.probes.claim(uid_of(web), "web", "web-1")
        harness.shows(web, found("web", "web-1", ready=True))
        harness.on_send = lambda: harness.probes.remove_pod(uid_of(web))
        harness.probes.add_pod(web)
        await asyncio.sleep(30)
        assert harness.sent == [(0, READINESS, "fake://web-1", FAILURE)]
        assert harness.executed == []

    run_scenario(scenario)


def test_a_tick_that_fails_executes_nothing_and_the_next_one_does() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", readiness=probe(period=10)))
        harness.runs(web, "web-1")
        harness.probes.add_pod(web)
        await asyncio.sleep(5)
        harness.failing_lookups = 1
        await asyncio.sleep(20)
        assert harness.times == [0, 20]

    run_scenario(scenario)


def test_a_first_outcome_is_sent_even_if_it_equals_the_assumed_one() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", readiness=probe(period=60, failures=1), liveness=probe(period=60)))
        harness.shows(web, found("web", "web-1"))  # created by an earlier agent
        harness.report = UNHEALTHY
        harness.probes.add_pod(web)
        await asyncio.sleep(1)
        assert harness.sent == [(0, READINESS, "fake://web-1", FAILURE)]
        harness.report = HEALTHY
        await asyncio.sleep(60)
        assert harness.sent[1:] == [
            (60, READINESS, "fake://web-1", SUCCESS),
            (60, LIVENESS, "fake://web-1", SUCCESS),
        ]

    run_scenario(scenario)


# Executions.


def test_an_execution_gets_the_pod_the_target_the_address_and_the_container() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", readiness=probe(period=60)))
        harness.shows(web, found("web", "web-1"))
        harness.probes.add_pod(web)
        await asyncio.sleep(1)
        target = Target(web.spec.containers[0], READINESS, probe(period=60))
        assert harness.arguments == [(web, target, "10.0.0.7", "fake://web-1")]
        assert harness.counted == [(web, "web", READINESS, SUCCESS, 0.0)]
        harness.statuses[uid_of(web)] = replace(harness.statuses[uid_of(web)], pod_ip=None)
        harness.probes.wake(uid_of(web), ["web"])
        await asyncio.sleep(1)
        assert harness.arguments[1:] == [(web, target, "", "fake://web-1")]

    run_scenario(scenario)


def test_an_execution_that_is_repeated_after_the_status_is_removed_has_no_address() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", readiness=probe(period=60)))
        harness.shows(web, found("web", "web-1"))
        harness.report, harness.takes = Report(ProbeOutcome.UNKNOWN, error="no runtime"), lambda _: 1
        harness.probes.add_pod(web)
        await asyncio.sleep(0.5)
        harness.statuses.clear()
        await asyncio.sleep(5)
        assert [ip for _, _, ip, _ in harness.arguments] == ["10.0.0.7", "", ""]
        assert harness.counted == []

    run_scenario(scenario)


REPORTS: dict[str, tuple[Report, list[tuple[str, str]], list[ProbeResult]]] = {
    "success": (HEALTHY, [], [SUCCESS]),
    "failure": (UNHEALTHY, [("Unhealthy", "Readiness probe failed: no")], [FAILURE]),
    "warning": (Report(ProbeOutcome.WARNING, "hm"), [("ProbeWarning", "Readiness probe warning: hm")], [SUCCESS]),
}


@pytest.mark.parametrize("report, events, results", REPORTS.values(), ids=REPORTS.keys())
def test_each_execution_is_counted_and_recorded_for_its_pod(
    report: Report, events: list[tuple[str, str]], results: list[ProbeResult]
) -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("first"), container("second", readiness=probe(period=60)))
        harness.shows(web, found("first", "first-1"), found("second", "second-1"))
        harness.report, harness.takes = report, lambda _: 0.25
        harness.probes.add_pod(web)
        await asyncio.sleep(1)
        assert harness.recorded == [
            (PodEvent(EventType.WARNING, reason, message, uid_of(web), "spec.containers{second}"), web)
            for reason, message in events
        ]
        assert harness.counted == [(web, "second", READINESS, result, 0.25) for result in results]

    run_scenario(scenario)


@pytest.mark.parametrize("kind, sent", [(LIVENESS, [FAILURE]), (READINESS, [])])
def test_a_container_that_exits_during_an_execution_fails_when_the_execution_ends(
    kind: ProbeKind, sent: list[ProbeResult]
) -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", ONLY[kind])
        harness.runs(web, "web-1")
        harness.takes = lambda _: 5
        harness.probes.add_pod(web)
        await asyncio.sleep(1)
        harness.exits(web, "web-1", 1)
        await asyncio.sleep(10)
        assert harness.sent == [(5, kind, "fake://web-1", result) for result in sent]  # readiness was false before
        assert harness.probes.liveness(uid_of(web)) == ({"web-1": FAILURE} if kind is LIVENESS else {})
        assert harness.probes.view(uid_of(web)).readiness == ({"fake://web-1": FAILURE} if kind is READINESS else {})
        assert harness.times == [0]

    run_scenario(scenario)


def test_by_default_there_are_100_slots_with_a_lease_of_one_second() -> None:
    async def scenario(harness: ProbeHarness) -> ProbeHarness:
        harness.takes = lambda _: 5
        for number in range(101):
            each = pod(f"pod-{number}", container("web", liveness=probe(period=60)))
            harness.runs(each, f"web-{number}")
            harness.probes.add_pod(each)
        await asyncio.sleep(4)
        assert harness.times == [0] * 100 + [1]
        harness.probes.remove_pod(uid_of(pod("pod-7")))
        return harness

    harness = run_scenario(scenario, defaults=True)
    assert (harness.counted, harness.ended) == ([], [])  # by default there is no observer


def test_an_execution_that_outlived_its_lease_releases_no_second_slot() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        harness.takes = lambda _: 3
        for name in "abc":
            each = pod(name, container(name, liveness=probe(period=60)))
            harness.runs(each, name)
            harness.probes.add_pod(each)
            await asyncio.sleep(0.125)
        await asyncio.sleep(10)
        assert [(at, name) for at, name, _ in harness.executed] == [(0, "a"), (2, "b"), (4, "c")]

    run_scenario(scenario, slots=1, lease_seconds=2)


# Periods.

PERIODS: dict[str, tuple[Probe, str | None, list[float]]] = {
    "the period of the spec": (probe(period=29), None, [0.25, 29.25, 58.25]),
    "from 30 s on, ticks are rounded up to half seconds": (probe(period=30), None, [0.25, 30.5, 60.5]),
    "31 s is rounded, too": (probe(period=31), None, [0.25, 31.5, 62.5]),
    "ten seconds if the spec has no period": (Probe(), None, [0.25, 10.25, 20.25, 30.25, 40.25, 50.25, 60.25]),
    "ten seconds if the annotation is invalid, too": (
        Probe(), "often", [0.25, 10.25, 20.25, 30.25, 40.25, 50.25, 60.25],
    ),
    "the period of the spec if the annotation is invalid": (probe(period=25), "often", [0.25, 25.25, 50.25]),
}  # fmt: skip


@pytest.mark.parametrize("probe, text, times", PERIODS.values(), ids=PERIODS.keys())
def test_a_probe_is_executed_once_in_each_period(probe: Probe, text: str | None, times: list[float]) -> None:
    async def scenario(harness: ProbeHarness) -> None:
        annotations = None if text is None else {period_annotation("web", LIVENESS): text}
        web = pod("web", container("web", liveness=probe), annotations=annotations)
        harness.runs(web, "web-1")
        await asyncio.sleep(0.25)
        harness.probes.add_pod(web)
        await asyncio.sleep(64)
        assert harness.times == times

    run_scenario(scenario, agent_age_seconds=3500)


@pytest.mark.parametrize("age, at_once", [(59.75, False), (60.0, True)])
def test_first_probes_are_spread_while_the_agent_is_younger_than_their_period(age: float, at_once: bool) -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", liveness=probe(period=60)))
        harness.runs(web, "web-1")
        harness.probes.add_pod(web)
        await asyncio.sleep(60)
        assert (harness.times[0] == 0) is at_once

    run_scenario(scenario, agent_age_seconds=age)


# Pods that change.


def test_a_worker_uses_the_latest_version_of_its_pod() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", liveness=probe(period=10)))
        harness.runs(web, "web-1")
        harness.probes.add_pod(web)
        await asyncio.sleep(1)
        deleted = replace(web, metadata=replace(web.metadata, deletion_timestamp=format_time(BEGINNING)))
        harness.probes.add_pod(deleted)
        await asyncio.sleep(10)
        assert (harness.times, len(harness.probes)) == ([0], 0)
        assert harness.ended == [(deleted, "web", LIVENESS)]
        assert harness.sent == []

    run_scenario(scenario)


def test_an_ended_probe_starts_again_only_for_a_new_container() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        one, two = container("one", readiness=probe(period=10)), container("two", readiness=probe(period=10))
        job = pod("web", one, two, policy="Never")
        harness.shows(job, found("two", "two-1"))
        harness.probes.add_pod(job)
        await asyncio.sleep(1)
        harness.probes.stop_liveness_and_startup(job)
        harness.statuses[uid_of(job)] = PodStatus(phase="Succeeded")
        await asyncio.sleep(10)
        assert harness.ended == [(job, "one", READINESS), (job, "two", READINESS)]
        same, none_yet = found("two", "two-1"), ContainerStatus(name="two", state=WAITING)
        for status in (
            None,
            PodStatus(),
            PodStatus(container_statuses=(same,)),
            PodStatus(container_statuses=(none_yet,)),
            PodStatus(init_container_statuses=(same,)),
        ):
            if status is None:
                harness.statuses.clear()
            else:
                harness.statuses[uid_of(job)] = status
            harness.probes.add_pod(job)
            assert len(harness.probes) == 0
        harness.shows(job, found("two", "two-2"))
        harness.probes.add_pod(job)
        assert harness.probes.view(uid_of(job)).workers == {("two", READINESS)}

    run_scenario(scenario)


def test_all_workers_of_a_removed_pod_are_reported_as_removed() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", FULL)
        harness.probes.add_pod(web)
        harness.probes.remove_pod(uid_of(web))
        assert harness.ended == [(web, "web", kind) for kind in (STARTUP, READINESS, LIVENESS)]

    run_scenario(scenario)


def test_waking_skips_containers_without_a_readiness_probe() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("plain"), container("web", readiness=probe(period=60)))
        harness.probes.add_pod(web)
        await asyncio.sleep(7)
        harness.shows(web, found("plain", "plain-1"), found("web", "web-1"))
        harness.probes.wake(uid_of(web), ["plain", "unknown", "web"])
        await asyncio.sleep(1)
        assert harness.executed == [(7, "web", READINESS)]

    run_scenario(scenario)


def test_a_container_older_than_the_agent_can_be_woken_after_its_first_tick() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", readiness=probe(period=20)))
        harness.shows(web, found("web", "web-1"))
        harness.probes.add_pod(web)
        harness.probes.wake(uid_of(web), ["web"])
        await asyncio.sleep(20)
        (first,) = harness.times
        assert first > 0
        harness.probes.wake(uid_of(web), ["web"])
        await asyncio.sleep(0.5)
        assert harness.times == [first, 20]

    run_scenario(scenario, agent_age_seconds=1)


def test_a_worker_of_a_pod_without_a_status_can_be_woken() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", readiness=probe(period=20)))
        harness.probes.add_pod(web)
        harness.probes.wake(uid_of(web), ["web"])
        await asyncio.sleep(1)
        harness.shows(web, found("web", "web-1"))
        await asyncio.sleep(25)
        assert harness.times == [20]  # a period after it was woken, and not at the time drawn for its first tick

    run_scenario(scenario, agent_age_seconds=1)


def test_a_terminating_pod_has_no_startup_results_any_more() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("first"), FULL)
        harness.probes.claim(uid_of(web), "web", "web-1")
        harness.shows(web, found("first", "first-1"), found("web", "web-1", started=False))
        harness.takes = lambda _: 1
        harness.probes.add_pod(web)
        await asyncio.sleep(0.5)
        assert harness.probes.view(uid_of(web)).startup == {"fake://web-1": UNKNOWN}
        harness.probes.stop_liveness_and_startup(web)
        assert harness.ended == [(web, "web", LIVENESS), (web, "web", STARTUP)]
        assert (harness.probes.liveness(uid_of(web)), harness.probes.startup(uid_of(web))) == ({}, {})
        assert harness.probes.view(uid_of(web)).startup == {}

    run_scenario(scenario)


# The end.


def test_a_stopped_manager_leaves_nothing_in_the_event_loop() -> None:
    async def scenario() -> None:
        harness = ProbeHarness(slots=1)
        gone = weakref.ref(harness.probes)
        web = pod("web", FULL)
        harness.takes = lambda _: 100
        harness.probes.add_pod(web)
        harness.runs(web, "web-1")
        running = asyncio.ensure_future(harness.probes.run())
        await asyncio.sleep(70)
        running.cancel()
        await asyncio.wait({running})
        del harness, running
        gc.collect()
        assert gone() is None

    simulate(scenario())


def test_a_manager_that_has_stopped_executes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> list[float]:
        harness = ProbeHarness(slots=1)
        old, new = (pod(name, container("web", liveness=probe(period=1))) for name in ("old", "new"))
        for each in (old, new):
            harness.runs(each, f"{each.metadata.name}-1")
        harness.takes = lambda _: 5
        running = asyncio.ensure_future(harness.probes.run())
        harness.probes.add_pod(old)
        await asyncio.sleep(2)
        running.cancel()
        await asyncio.wait({running})
        harness.probes.add_pod(new)
        await asyncio.sleep(100)
        return harness.times

    with caplog.at_level(logging.WARNING):
        assert len(simulate(scenario())[0]) == 1
    assert caplog.records == []


def test_a_pod_without_a_uid_is_known_by_the_empty_uid() -> None:
    async def scenario(harness: ProbeHarness) -> None:
        web = pod("web", container("web", readiness=probe(period=60), liveness=probe(period=60)))
        nameless = replace(web, metadata=replace(web.metadata, uid=None))
        harness.probes.add_pod(nameless)
        assert harness.probes.view(PodUID("")).workers == {("web", READINESS), ("web", LIVENESS)}
        harness.probes.stop_liveness_and_startup(nameless)
        assert harness.probes.view(PodUID("")).workers == {("web", READINESS)}

    run_scenario(scenario)
