"""The `started` and `ready` flags of container statuses."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.k8s.core import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
    Probe,
)
from podkeeper.model.messages import ProbeKind, ProbeResult
from podkeeper.model.times import format_time
from podkeeper.rules.probe.flags import AGENT_RESTART_MARGIN, ProbeView, readiness_wanted_now, with_probe_flags
from podkeeper.testing.build import container, pod

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
OLD = running(-60)  # it started before this agent


def probed_pod(*, init: bool = False, sidecar: bool = False, readiness: bool = False, was_ready: bool = False) -> Pod:
    """A pod with one container `web`, which is an init container for `init` and `sidecar`."""
    web = container("web", sidecar=sidecar, readiness=Probe() if readiness else None)
    status = PodStatus(conditions=(PodCondition(type="Ready", status="True" if was_ready else "False"),))
    return pod(init=(web,), status=status) if init or sidecar else pod("web", web, status=status)


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
PLAIN = probed_pod()
PROBED = probed_pod(readiness=True)
WAS_READY = probed_pod(readiness=True, was_ready=True)
INIT = probed_pod(init=True)
SIDECAR = probed_pod(sidecar=True)
PROBED_SIDECAR = probed_pod(sidecar=True, readiness=True)
WAS_READY_SIDECAR = probed_pod(sidecar=True, readiness=True, was_ready=True)

REGULAR_CASES = {
    "a running container without probes is started and ready":    (PLAIN, NEW, view(), UP),
    "a waiting container is neither started nor ready":           (PLAIN, WAITING, view(), DOWN),
    "an exited container is neither, even after a probe success": (PLAIN, exited(0), HEALTHY, DOWN),
    "without a startup result it has not started":                (PLAIN, NEW, view(STARTUP), DOWN),
    "an unknown startup result means not started":                (PLAIN, NEW, view(STARTUP, startup=UNKNOWN), DOWN),
    "a failed startup probe means not started":                   (PLAIN, NEW, view(STARTUP, startup=FAILURE), DOWN),
    "a startup success means started":                            (PLAIN, NEW, view(STARTUP, startup=SUCCESS), UP),
    "without a readiness result it is not ready":                 (PROBED, NEW, view(READINESS), STARTED),
    "a readiness success means ready":                            (PROBED, NEW, view(READINESS, readiness=SUCCESS), UP),
    "a readiness failure means not ready":                        (PROBED, NEW, UNREADY, STARTED),
    "ready before a restart of the agent, it stays ready":        (WAS_READY, OLD, view(READINESS), UP),
    "it stays ready even before it has a probe worker":           (WAS_READY, OLD, view(), UP),
    "unready before a restart of the agent, it stays unready":    (PROBED, OLD, view(), STARTED),
    "a new probe failure replaces the old readiness":             (WAS_READY, OLD, UNREADY, STARTED),
    "without a readiness probe, the old readiness has no effect": (PLAIN, OLD, view(), UP),
    "started within the margin before the agent, it is new":      (WAS_READY, running(-10), view(READINESS), STARTED),
}  # fmt: skip


@pytest.mark.parametrize("of, state, seen, expected", REGULAR_CASES.values(), ids=REGULAR_CASES.keys())
def test_regular_containers(
    of: Pod, state: ContainerState, seen: ProbeView, expected: tuple[bool | None, bool]
) -> None:
    assert flags(of, state, seen) == expected


INIT_CASES = {
    "an init container that succeeded is ready, not started": (INIT, exited(0), view(), (False, True)),
    "an init container that failed is neither":               (INIT, exited(1), view(), DOWN),
    "a running init container is started, not ready":         (INIT, NEW, view(), STARTED),
    "a sidecar without probes is ready when it runs":         (SIDECAR, NEW, view(), UP),
    "a sidecar that succeeded is not ready":                  (SIDECAR, exited(0), view(), DOWN),
    "a sidecar waits for its startup probe":                  (SIDECAR, NEW, view(STARTUP), DOWN),
    "a sidecar waits for its readiness probe":                (PROBED_SIDECAR, NEW, view(READINESS), STARTED),
    "a sidecar keeps its readiness across an agent restart":  (WAS_READY_SIDECAR, OLD, view(READINESS), UP),
}  # fmt: skip


@pytest.mark.parametrize("of, state, seen, expected", INIT_CASES.values(), ids=INIT_CASES.keys())
def test_init_containers(of: Pod, state: ContainerState, seen: ProbeView, expected: tuple[bool | None, bool]) -> None:
    assert flags(of, state, seen) == expected


@pytest.mark.parametrize("was_ready", [True, False])
@pytest.mark.parametrize("in_api", [PROBED, WAS_READY], ids=["not ready in the API", "ready in the API"])
def test_a_published_container_status_takes_precedence_over_the_pod_condition_in_the_api(
    in_api: Pod, was_ready: bool
) -> None:
    found = ContainerStatus(name="web", container_id=ID, state=OLD)
    published = PodStatus(container_statuses=(replace(found, ready=was_ready),))
    flagged = with_probe_flags(in_api, PodStatus(container_statuses=(found,)), view(READINESS), (published,))
    assert [each.ready for each in flagged.container_statuses or ()] == [was_ready]


def test_the_first_published_status_with_the_container_determines_its_readiness() -> None:
    found = ContainerStatus(name="web", container_id=ID, state=OLD)
    status, ready = PodStatus(container_statuses=(found,)), PodStatus(container_statuses=(replace(found, ready=True),))
    for published, expected in (((PodStatus(), ready), True), ((status, ready), False), ((ready, status), True)):
        flagged = with_probe_flags(PROBED, status, view(READINESS), published)
        assert [each.ready for each in flagged.container_statuses or ()] == [expected]


def test_the_published_status_of_another_container_does_not_count() -> None:
    found = ContainerStatus(name="web", container_id=ID, state=OLD)
    published = PodStatus(container_statuses=(replace(found, container_id="fake://before", ready=True),))
    flagged = with_probe_flags(PROBED, PodStatus(container_statuses=(found,)), view(READINESS), (published,))
    assert [each.ready for each in flagged.container_statuses or ()] == [False]


def test_a_published_started_flag_stays_until_the_startup_probe_has_a_result() -> None:
    assert flags(probed_pod(), OLD, view(STARTUP), started=True) == UP
    assert flags(probed_pod(), OLD, view(STARTUP, startup=UNKNOWN), started=True) == DOWN


def test_a_status_that_matches_no_init_container_of_the_spec_keeps_its_readiness() -> None:
    status = PodStatus(init_container_statuses=(ContainerStatus(name="other", state=exited(0)),))
    changed = with_probe_flags(probed_pod(init=True), status, view()).init_container_statuses
    assert changed is not None
    assert (changed[0].started, changed[0].ready) == DOWN


def test_absent_lists_stay_absent() -> None:
    assert with_probe_flags(probed_pod(), PodStatus(), view()) == PodStatus()


def test_only_a_started_container_without_a_readiness_result_is_probed_at_once() -> None:
    def probed_at_once(state: ContainerState, seen: ProbeView) -> tuple[str, ...]:
        of = probed_pod(readiness=True)
        found = ContainerStatus(name="web", container_id=ID, state=state)
        return readiness_wanted_now(of, with_probe_flags(of, PodStatus(container_statuses=(found,)), seen), seen)

    assert probed_at_once(running(), view(READINESS)) == ("web",)
    assert probed_at_once(running(), view(READINESS, readiness=FAILURE)) == ("web",)
    assert probed_at_once(running(), view(READINESS, readiness=SUCCESS)) == ()
    assert probed_at_once(running(), view(READINESS, STARTUP)) == ()
    assert probed_at_once(running(), view()) == ()
    assert probed_at_once(exited(1), view(READINESS)) == ()


def test_a_sidecar_is_probed_at_once_and_an_init_container_is_not() -> None:
    for of, expected in (
        (probed_pod(sidecar=True, readiness=True), ("web",)),
        (probed_pod(init=True, readiness=True), ()),
    ):
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
pods = st.builds(probed_pod, sidecar=st.booleans(), readiness=st.booleans(), was_ready=st.booleans())


@given(pods, states, views)
def test_ready_implies_started_implies_running(of: Pod, state: ContainerState, seen: ProbeView) -> None:
    started, ready = flags(of, state, seen)
    assert not ready or started
    assert not started or state.running is not None


@given(pods, states, views)
def test_setting_flags_twice_changes_nothing(of: Pod, state: ContainerState, seen: ProbeView) -> None:
    started, ready = flags(of, state, seen)
    assert flags(of, state, seen, started=started) == (started, ready)


@given(st.booleans(), st.booleans(), st.integers(1, 10**6))
def test_a_restart_of_the_agent_changes_no_flag(readiness: bool, was_ready: bool, seconds_older: int) -> None:
    """Only the Ready condition was published. The new agent has no results yet, with or without workers."""
    before = (True, was_ready if readiness else True)
    old = running(-AGENT_RESTART_MARGIN.total_seconds() - seconds_older)
    for seen in (view(), view(*([READINESS] if readiness else []))):
        assert flags(probed_pod(readiness=readiness, was_ready=was_ready), old, seen, started=True) == before
