"""Started and ready: what the probes make of a container's status."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.k8s.core import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    Probe,
)
from podkeeper.model.messages import ProbeKind, ProbeResult
from podkeeper.model.times import format_time
from podkeeper.rules.probe.flags import AGENT_RESTART_MARGIN, ProbeView, readiness_wanted_now, with_probe_flags

AGENT_START = datetime(2000, 1, 1, 12, tzinfo=UTC)
ID = "containerd://one"
READINESS = ("web", ProbeKind.READINESS)
STARTUP = ("web", ProbeKind.STARTUP)
SUCCESS, FAILURE, UNKNOWN = ProbeResult.SUCCESS, ProbeResult.FAILURE, ProbeResult.UNKNOWN


def running(seconds_after_agent: float = 5) -> ContainerState:
    started_at = format_time(AGENT_START + timedelta(seconds=seconds_after_agent))
    return ContainerState(running=ContainerStateRunning(started_at=started_at))


def exited(code: int) -> ContainerState:
    return ContainerState(terminated=ContainerStateTerminated(exit_code=code))


WAITING = ContainerState(waiting=ContainerStateWaiting(reason="CrashLoopBackOff"))
OLD = running(-60)  # it ran before this agent did


def pod(*, init: bool = False, sidecar: bool = False, readiness: bool = False, was_ready: bool = False) -> Pod:
    container = Container(
        name="web",
        restart_policy="Always" if sidecar else None,
        readiness_probe=Probe() if readiness else None,
    )
    spec = PodSpec(init_containers=(container,)) if init or sidecar else PodSpec(containers=(container,))
    conditions = (PodCondition(type="Ready", status="True" if was_ready else "False"),)
    return Pod(spec=spec, status=PodStatus(conditions=conditions))


def view(
    *workers: tuple[str, ProbeKind], readiness: ProbeResult | None = None, startup: ProbeResult | None = None
) -> ProbeView:
    return ProbeView(
        agent_started=AGENT_START,
        readiness={} if readiness is None else {ID: readiness},
        startup={} if startup is None else {ID: startup},
        workers=frozenset(workers),
    )


def flags(of: Pod, state: ContainerState, seen: ProbeView, started: bool | None = None) -> tuple[bool | None, bool]:
    """(started, ready) of the only container."""
    found = ContainerStatus(name="web", container_id=ID, state=state, started=started)
    if of.spec.init_containers:
        statuses = with_probe_flags(of, PodStatus(init_container_statuses=(found,)), seen).init_container_statuses
    else:
        statuses = with_probe_flags(of, PodStatus(container_statuses=(found,)), seen).container_statuses
    assert statuses is not None
    return statuses[0].started, statuses[0].ready


UP, STARTED, DOWN = (True, True), (True, False), (False, False)

NEW = running()
HEALTHY = view(readiness=SUCCESS, startup=SUCCESS)
UNREADY = view(READINESS, readiness=FAILURE)
PLAIN = pod()
PROBED = pod(readiness=True)
WAS_READY = pod(readiness=True, was_ready=True)
INIT = pod(init=True)
SIDECAR = pod(sidecar=True)
PROBED_SIDECAR = pod(sidecar=True, readiness=True)
WAS_READY_SIDECAR = pod(sidecar=True, readiness=True, was_ready=True)

REGULAR_CASES = {
    "a running container without probes is started and ready":  (PLAIN, NEW, view(), UP),
    "a waiting container is neither":                           (PLAIN, WAITING, view(), DOWN),
    "an exited container is neither, even after a success":     (PLAIN, exited(0), HEALTHY, DOWN),
    "before its startup probe has spoken it has not started":   (PLAIN, NEW, view(STARTUP), DOWN),
    "a startup probe that knows nothing yet has not succeeded": (PLAIN, NEW, view(STARTUP, startup=UNKNOWN), DOWN),
    "a failed startup probe means not started":                 (PLAIN, NEW, view(STARTUP, startup=FAILURE), DOWN),
    "a startup success lets it start":                          (PLAIN, NEW, view(STARTUP, startup=SUCCESS), UP),
    "before its readiness probe has spoken it is not ready":    (PROBED, NEW, view(READINESS), STARTED),
    "a readiness success makes it ready":                       (PROBED, NEW, view(READINESS, readiness=SUCCESS), UP),
    "a readiness failure keeps it from being ready":            (PROBED, NEW, UNREADY, STARTED),
    "ready before the agent restarted, it stays so":            (WAS_READY, OLD, view(READINESS), UP),
    "also while the agent has no worker for it yet":            (WAS_READY, OLD, view(), UP),
    "not ready before the agent restarted, it stays so":        (PROBED, OLD, view(), STARTED),
    "once the probe has failed again, the past does not count": (WAS_READY, OLD, UNREADY, STARTED),
    "without a readiness probe the pod's past is no obstacle":  (PLAIN, OLD, view(), UP),
    "started just before the agent, the margin calls it new":   (WAS_READY, running(-10), view(READINESS), STARTED),
}  # fmt: skip


@pytest.mark.parametrize("of, state, seen, expected", REGULAR_CASES.values(), ids=REGULAR_CASES.keys())
def test_regular_containers(
    of: Pod, state: ContainerState, seen: ProbeView, expected: tuple[bool | None, bool]
) -> None:
    assert flags(of, state, seen) == expected


INIT_CASES = {
    "an init container that ended well is ready, not started": (INIT, exited(0), view(), (False, True)),
    "one that failed is neither":                              (INIT, exited(1), view(), DOWN),
    "one that runs is started, not ready":                     (INIT, NEW, view(), STARTED),
    "a sidecar without probes is ready when it runs":          (SIDECAR, NEW, view(), UP),
    "a sidecar that ended well is not ready":                  (SIDECAR, exited(0), view(), DOWN),
    "a sidecar waits for its startup probe":                   (SIDECAR, NEW, view(STARTUP), DOWN),
    "a sidecar waits for its readiness probe":                 (PROBED_SIDECAR, NEW, view(READINESS), STARTED),
    "a sidecar keeps its readiness over an agent restart":     (WAS_READY_SIDECAR, OLD, view(READINESS), UP),
}  # fmt: skip


@pytest.mark.parametrize("of, state, seen, expected", INIT_CASES.values(), ids=INIT_CASES.keys())
def test_init_containers(of: Pod, state: ContainerState, seen: ProbeView, expected: tuple[bool | None, bool]) -> None:
    assert flags(of, state, seen) == expected


@pytest.mark.parametrize("was_ready", [True, False])
@pytest.mark.parametrize("in_api", [PROBED, WAS_READY], ids=["not ready in the API", "ready in the API"])
def test_what_was_published_of_a_container_counts_more_than_the_pods_condition_in_the_api(
    in_api: Pod, was_ready: bool
) -> None:
    found = ContainerStatus(name="web", container_id=ID, state=OLD)
    published = PodStatus(container_statuses=(replace(found, ready=was_ready),))
    flagged = with_probe_flags(in_api, PodStatus(container_statuses=(found,)), view(READINESS), (published,))
    assert [each.ready for each in flagged.container_statuses or ()] == [was_ready]


def test_the_first_that_knows_a_container_says_whether_it_was_ready() -> None:
    found = ContainerStatus(name="web", container_id=ID, state=OLD)
    status, ready = PodStatus(container_statuses=(found,)), PodStatus(container_statuses=(replace(found, ready=True),))
    for published, expected in (((PodStatus(), ready), True), ((status, ready), False), ((ready, status), True)):
        flagged = with_probe_flags(PROBED, status, view(READINESS), published)
        assert [each.ready for each in flagged.container_statuses or ()] == [expected]


def test_what_was_published_of_another_container_does_not_count() -> None:
    found = ContainerStatus(name="web", container_id=ID, state=OLD)
    published = PodStatus(container_statuses=(replace(found, container_id="fake://before", ready=True),))
    flagged = with_probe_flags(PROBED, PodStatus(container_statuses=(found,)), view(READINESS), (published,))
    assert [each.ready for each in flagged.container_statuses or ()] == [False]


def test_what_was_published_as_started_stays_started_until_the_startup_probe_speaks() -> None:
    assert flags(pod(), OLD, view(STARTUP), started=True) == UP
    assert flags(pod(), OLD, view(STARTUP, startup=UNKNOWN), started=True) == DOWN


def test_a_status_that_matches_no_init_container_of_the_spec_keeps_its_readiness() -> None:
    status = PodStatus(init_container_statuses=(ContainerStatus(name="other", state=exited(0)),))
    changed = with_probe_flags(pod(init=True), status, view()).init_container_statuses
    assert changed is not None
    assert (changed[0].started, changed[0].ready) == DOWN


def test_lists_that_are_absent_stay_absent() -> None:
    assert with_probe_flags(pod(), PodStatus(), view()) == PodStatus()


def test_only_a_started_container_with_an_undecided_readiness_probe_is_hurried() -> None:
    def hurried(state: ContainerState, seen: ProbeView) -> tuple[str, ...]:
        of = pod(readiness=True)
        found = ContainerStatus(name="web", container_id=ID, state=state)
        return readiness_wanted_now(of, with_probe_flags(of, PodStatus(container_statuses=(found,)), seen), seen)

    assert hurried(running(), view(READINESS)) == ("web",)
    assert hurried(running(), view(READINESS, readiness=FAILURE)) == ("web",)
    assert hurried(running(), view(READINESS, readiness=SUCCESS)) == ()
    assert hurried(running(), view(READINESS, STARTUP)) == ()
    assert hurried(running(), view()) == ()
    assert hurried(exited(1), view(READINESS)) == ()


def test_a_sidecar_is_hurried_and_an_ordinary_init_container_is_not() -> None:
    for of, expected in ((pod(sidecar=True, readiness=True), ("web",)), (pod(init=True, readiness=True), ())):
        found = ContainerStatus(name="web", container_id=ID, state=running())
        status = with_probe_flags(of, PodStatus(init_container_statuses=(found,)), view(READINESS))
        assert readiness_wanted_now(of, status, view(READINESS)) == expected


states = st.one_of(
    st.just(WAITING),
    st.builds(exited, st.integers(0, 2)),
    st.builds(running, st.integers(-3600, 3600)),
)
views = st.builds(
    lambda workers, readiness, startup: view(*workers, readiness=readiness, startup=startup),
    st.sets(st.sampled_from([READINESS, STARTUP])),
    st.none() | st.sampled_from(ProbeResult),
    st.none() | st.sampled_from(ProbeResult),
)
pods = st.builds(pod, sidecar=st.booleans(), readiness=st.booleans(), was_ready=st.booleans())


@given(pods, states, views)
def test_ready_implies_started_implies_running(of: Pod, state: ContainerState, seen: ProbeView) -> None:
    started, ready = flags(of, state, seen)
    assert not ready or started
    assert not started or state.running is not None


@given(pods, states, views)
def test_flags_settle_at_once(of: Pod, state: ContainerState, seen: ProbeView) -> None:
    started, ready = flags(of, state, seen)
    assert flags(of, state, seen, started=started) == (started, ready)


@given(st.booleans(), st.booleans(), st.integers(1, 10**6))
def test_a_restart_of_the_agent_changes_no_flag(readiness: bool, was_ready: bool, seconds_older: int) -> None:
    """The pod's last word was its Ready condition; the new agent knows no results yet, with or without workers."""
    before = (True, was_ready if readiness else True)
    old = running(-AGENT_RESTART_MARGIN.total_seconds() - seconds_older)
    for seen in (view(), view(*([READINESS] if readiness else []))):
        assert flags(pod(readiness=readiness, was_ready=was_ready), old, seen, started=True) == before
