"""The probe worker: when it probes, which results it stores, when it stops."""

from datetime import UTC, datetime, timedelta
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import (
    Container,
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
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
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import ProbeKind, ProbeResult
from podkeeper.model.times import format_time
from podkeeper.rules.probe.worker import (
    INITIAL_RESULTS,
    MIN_PERIOD_MILLISECONDS,
    AwaitingContainer,
    Live,
    OnHold,
    ProbeReason,
    ProbeStep,
    Probing,
    Stopped,
    Streak,
    Target,
    TickInput,
    count_outcome,
    first_tick_delay_seconds,
    period_annotation,
    probe_period_seconds,
    probes_of,
    stop,
    tick,
)

NOW = datetime(2000, 1, 1, 12, tzinfo=UTC)
AGENT_START = NOW - timedelta(minutes=5)
ONE, TWO = "containerd://one", "containerd://two"
LIVENESS, READINESS, STARTUP = ProbeKind.LIVENESS, ProbeKind.READINESS, ProbeKind.STARTUP
SUCCESS, FAILURE, UNKNOWN = ProbeResult.SUCCESS, ProbeResult.FAILURE, ProbeResult.UNKNOWN


def target(kind: ProbeKind, *, failures: int = 1, successes: int = 1, delay: int = 0, sidecar: bool = False) -> Target:
    probe = Probe(failure_threshold=failures, success_threshold=successes, initial_delay_seconds=delay)
    container = Container(name="web", restart_policy="Always" if sidecar else None)
    return Target(msgspec.structs.replace(container, **{f"{kind}_probe": probe}), kind, probe)


def running(age_seconds: float = 60) -> ContainerState:
    return ContainerState(running=ContainerStateRunning(started_at=format_time(NOW - timedelta(seconds=age_seconds))))


def exited(code: int) -> ContainerState:
    return ContainerState(terminated=ContainerStateTerminated(exit_code=code))


WAITING = ContainerState(waiting=ContainerStateWaiting(reason="CrashLoopBackOff"))
OLD = running(3600)  # it started before this agent


def tick_input(
    of: Target,
    state: ContainerState | None = None,
    *,
    id: str = ONE,
    started: bool | None = True,
    phase: str = "Running",
    policy: str = "Always",
    deleting: bool = False,
    conditions: tuple[PodCondition, ...] = (),
) -> TickInput:
    """The input for a pod whose only container is that of the target. Without a state, there is no container."""
    found = None if state is None else (ContainerStatus(name="web", container_id=id, state=state, started=started),)
    metadata = ObjectMeta(deletion_timestamp=format_time(NOW) if deleting else None)
    if of.container.restart_policy == "Always":
        spec = PodSpec(init_containers=(of.container,), restart_policy=policy)
        status = PodStatus(phase=phase, init_container_statuses=found, conditions=conditions)
    else:
        spec = PodSpec(containers=(of.container,), restart_policy=policy)
        status = PodStatus(phase=phase, container_statuses=found, conditions=conditions)
    return TickInput(Pod(metadata=metadata, spec=spec), status, AGENT_START, NOW)


LIVE, READY, START = target(LIVENESS), target(READINESS), target(STARTUP)
AT_ONE = Probing(ONE)
ON_HOLD = OnHold(ONE)
RESTARTING_ALL = PodCondition(type="AllContainersRestarting", status="True")

TICKS = {
    "the worker waits for the status of its pod":
        (AwaitingContainer(), LIVE, replace(tick_input(LIVE), status=None),
         ProbeStep(AwaitingContainer(), ProbeReason.NO_STATUS)),
    "the worker waits until its container is created":
        (AwaitingContainer(), LIVE, tick_input(LIVE), ProbeStep(AwaitingContainer(), ProbeReason.NO_CONTAINER)),
    "a container without an ID has not been created":
        (AwaitingContainer(), LIVE, tick_input(LIVE, WAITING, id=""),
         ProbeStep(AwaitingContainer(), ProbeReason.NO_CONTAINER)),
    "the worker of a terminated pod stops":
        (AT_ONE, LIVE, tick_input(LIVE, running(), phase="Succeeded"), ProbeStep(Stopped(ONE), ProbeReason.POD_ENDED)),
    "a worker on hold stops with its pod, too":
        (ON_HOLD, LIVE, tick_input(LIVE, running(), phase="Failed"), ProbeStep(Stopped(ONE), ProbeReason.POD_ENDED)),
    "a new container is live":
        (AwaitingContainer(), LIVE, tick_input(LIVE, running()), ProbeStep(AT_ONE, ProbeReason.DUE, store=SUCCESS)),
    "a new container is not ready":
        (AwaitingContainer(), READY, tick_input(READY, running()), ProbeStep(AT_ONE, ProbeReason.DUE, store=FAILURE)),
    "the startup result of a new container is unknown":
        (AwaitingContainer(), START, tick_input(START, running(), started=False),
         ProbeStep(AT_ONE, ProbeReason.DUE, store=UNKNOWN)),
    "a tick_input container is probed":
        (AT_ONE, LIVE, tick_input(LIVE, running()), ProbeStep(AT_ONE, ProbeReason.DUE)),
    "the next container gets its initial result, and the old result is removed":
        (AT_ONE, LIVE, tick_input(LIVE, running(), id=TWO),
         ProbeStep(Probing(TWO), ProbeReason.DUE, store=SUCCESS, forget=ONE)),
    "the next container ends the hold":
        (ON_HOLD, LIVE, tick_input(LIVE, running(), id=TWO),
         ProbeStep(Probing(TWO), ProbeReason.DUE, store=SUCCESS, forget=ONE)),
    "on hold, the same container is not probed":
        (ON_HOLD, LIVE, tick_input(LIVE, running()), ProbeStep(ON_HOLD, ProbeReason.ON_HOLD)),
    "on hold, an exited container is not probed either":
        (ON_HOLD, LIVE, tick_input(LIVE, exited(1), policy="Never"), ProbeStep(ON_HOLD, ProbeReason.ON_HOLD)),
    "a container that ran before the agent keeps its published result":
        (AwaitingContainer(), READY, tick_input(READY, OLD), ProbeStep(AT_ONE, ProbeReason.DUE)),
    "a container that waits for its restart has failed":
        (AT_ONE, LIVE, tick_input(LIVE, WAITING), ProbeStep(AT_ONE, ProbeReason.NOT_RUNNING, store=FAILURE)),
    "an exited container that restarts has failed":
        (AT_ONE, LIVE, tick_input(LIVE, exited(1)), ProbeStep(AT_ONE, ProbeReason.NOT_RUNNING, store=FAILURE)),
    "a container that does not restart stops its worker":
        (AT_ONE, LIVE, tick_input(LIVE, exited(0), policy="OnFailure"),
         ProbeStep(Stopped(ONE), ProbeReason.NO_RESTART, store=FAILURE)),
    "a container that restarts with all others does not stop its worker":
        (AT_ONE, LIVE,
         tick_input(LIVE, exited(0), policy="Never", conditions=(RESTARTING_ALL,)),
         ProbeStep(AT_ONE, ProbeReason.NOT_RUNNING, store=FAILURE)),
    "a completed restart of all containers does not keep its worker":
        (AT_ONE, LIVE,
         tick_input(LIVE, exited(0), policy="Never", conditions=(replace(RESTARTING_ALL, status="False"),)),
         ProbeStep(Stopped(ONE), ProbeReason.NO_RESTART, store=FAILURE)),
    "another condition that is true does not keep its worker":
        (AT_ONE, LIVE,
         tick_input(LIVE, exited(0), policy="Never", conditions=(PodCondition(type="Ready", status="True"),)),
         ProbeStep(Stopped(ONE), ProbeReason.NO_RESTART, store=FAILURE)),
    "a liveness probe of a pod that is being deleted ends with a success":
        (AT_ONE, LIVE, tick_input(LIVE, running(), deleting=True),
         ProbeStep(Stopped(ONE), ProbeReason.POD_DELETED, store=SUCCESS)),
    "a startup probe of a pod that is being deleted ends with a success":
        (AT_ONE, START, tick_input(START, running(), deleting=True),
         ProbeStep(Stopped(ONE), ProbeReason.POD_DELETED, store=SUCCESS)),
    "a readiness probe of a pod that is being deleted continues":
        (AT_ONE, READY, tick_input(READY, running(), deleting=True), ProbeStep(AT_ONE, ProbeReason.DUE)),
    "a liveness probe waits for the startup probe":
        (AT_ONE, LIVE, tick_input(LIVE, running(), started=False), ProbeStep(AT_ONE, ProbeReason.NOT_STARTED)),
    "a readiness probe waits for the startup probe":
        (AT_ONE, READY, tick_input(READY, running(), started=None), ProbeStep(AT_ONE, ProbeReason.NOT_STARTED)),
    "after the start, the startup probe is not executed":
        (AT_ONE, START, tick_input(START, running()), ProbeStep(AT_ONE, ProbeReason.STARTED_ALREADY)),
    "a sidecar that started before the agent has started":
        (AwaitingContainer(), target(STARTUP, sidecar=True), tick_input(target(STARTUP, sidecar=True), OLD),
         ProbeStep(AT_ONE, ProbeReason.STARTED_ALREADY, store=SUCCESS)),
    "a regular container that started before the agent keeps its published result":
        (AwaitingContainer(), START, tick_input(START, OLD), ProbeStep(AT_ONE, ProbeReason.STARTED_ALREADY)),
    "the exit of a sidecar never stops its worker":
        (AT_ONE, target(LIVENESS, sidecar=True), tick_input(target(LIVENESS, sidecar=True), exited(0), policy="Never"),
         ProbeStep(AT_ONE, ProbeReason.NOT_RUNNING, store=FAILURE)),
}  # fmt: skip


@pytest.mark.parametrize("state, of, seen, expected", TICKS.values(), ids=TICKS.keys())
def test_tick(state: Live, of: Target, seen: TickInput, expected: ProbeStep) -> None:
    assert tick(state, of, seen) == expected


@pytest.mark.parametrize("age, delay, due", [(9, 10, False), (9.9, 10, False), (10, 10, True), (0, 0, True)])
def test_the_initial_delay_counts_whole_seconds_since_the_start(age: float, delay: int, due: bool) -> None:
    of = target(LIVENESS, delay=delay)
    seen = tick_input(of, running(0))
    step = tick(AT_ONE, of, replace(seen, now=NOW + timedelta(seconds=age)))
    assert step == ProbeStep(AT_ONE, ProbeReason.DUE if due else ProbeReason.INITIAL_DELAY)


@pytest.mark.parametrize("seen_seconds, due", [(0, False), (9.9, False), (10, True)])
def test_after_the_clock_is_set_back_the_initial_delay_counts_from_the_first_tick(
    seen_seconds: float, due: bool
) -> None:
    of = target(LIVENESS, delay=10)
    seen = replace(tick_input(of, running(0)), now=NOW - timedelta(hours=1), monotonic=500.0)
    arrived = tick(AwaitingContainer(), of, seen)
    assert arrived.reason is ProbeReason.INITIAL_DELAY
    assert isinstance(arrived.state, Probing)
    step = tick(arrived.state, of, replace(seen, monotonic=500.0 + seen_seconds))
    assert step == ProbeStep(arrived.state, ProbeReason.DUE if due else ProbeReason.INITIAL_DELAY)


def test_an_exit_that_restarts_all_containers_keeps_every_worker() -> None:
    rule = ContainerRestartRule(
        action="RestartAllContainers", exit_codes=ContainerRestartRuleOnExitCodes(operator="In", values=(42,))
    )
    other = Container(name="other", restart_policy="Never", restart_policy_rules=(rule,))
    seen = tick_input(LIVE, exited(0), policy="Never")
    assert seen.status is not None
    statuses = (*(seen.status.container_statuses or ()), ContainerStatus(name="other", state=exited(42)))
    spec = msgspec.structs.replace(seen.pod.spec, containers=(*seen.pod.spec.containers, other))
    both = replace(
        seen,
        pod=msgspec.structs.replace(seen.pod, spec=spec),
        status=msgspec.structs.replace(seen.status, container_statuses=statuses),
    )
    assert isinstance(tick(AT_ONE, LIVE, seen).state, Stopped)
    assert tick(AT_ONE, LIVE, both).state == AT_ONE


def counted(result: ProbeResult, count: int) -> Probing:
    return Probing(ONE, Streak(result, count))


THRICE = target(LIVENESS, failures=3, successes=2)

OUTCOMES = {
    "no outcome changes nothing":
        (counted(FAILURE, 2), THRICE, None, ProbeStep(counted(FAILURE, 2), ProbeReason.NO_OUTCOME)),
    "a first failure is not enough for a threshold of three":
        (AT_ONE, THRICE, FAILURE, ProbeStep(counted(FAILURE, 1), ProbeReason.BELOW_THRESHOLD)),
    "the third failure in a row is enough, and the liveness result is final":
        (counted(FAILURE, 2), THRICE, FAILURE, ProbeStep(ON_HOLD, ProbeReason.DECIDED, store=FAILURE)),
    "a success resets the count of failures":
        (counted(FAILURE, 2), THRICE, SUCCESS, ProbeStep(counted(SUCCESS, 1), ProbeReason.BELOW_THRESHOLD)),
    "enough successes count, and the liveness probe continues":
        (counted(SUCCESS, 1), THRICE, SUCCESS, ProbeStep(counted(SUCCESS, 2), ProbeReason.DECIDED, store=SUCCESS)),
    "a readiness failure does not stop the probe":
        (AT_ONE, READY, FAILURE, ProbeStep(counted(FAILURE, 1), ProbeReason.DECIDED, store=FAILURE)),
    "a startup success is final":
        (AT_ONE, START, SUCCESS, ProbeStep(ON_HOLD, ProbeReason.DECIDED, store=SUCCESS)),
    "a startup failure is final":
        (AT_ONE, START, FAILURE, ProbeStep(ON_HOLD, ProbeReason.DECIDED, store=FAILURE)),
}  # fmt: skip


@pytest.mark.parametrize("state, of, outcome, expected", OUTCOMES.values(), ids=OUTCOMES.keys())
def test_count_outcome(state: Probing, of: Target, outcome: ProbeResult | None, expected: ProbeStep) -> None:
    assert count_outcome(state, of, outcome) == expected


@pytest.mark.parametrize("state, container_id", [(AwaitingContainer(), None), (AT_ONE, ONE), (ON_HOLD, ONE)])
def test_a_stopped_worker_has_the_container_whose_result_is_removed(state: Live, container_id: str | None) -> None:
    assert stop(state) == ProbeStep(Stopped(container_id), ProbeReason.STOPPED)


def test_probes_are_those_of_regular_containers_and_sidecars() -> None:
    probe = Probe()
    spec = PodSpec(
        containers=(Container(name="app", liveness_probe=probe, readiness_probe=probe, startup_probe=probe),),
        init_containers=(
            Container(name="migrate", readiness_probe=probe),
            Container(name="proxy", restart_policy="Always", readiness_probe=probe),
        ),
    )
    assert [(found.container.name, found.kind) for found in probes_of(Pod(spec=spec))] == [
        ("app", STARTUP),
        ("app", READINESS),
        ("app", LIVENESS),
        ("proxy", READINESS),
    ]


def annotated(value: str) -> Pod:
    return Pod(metadata=ObjectMeta(annotations={period_annotation("web", LIVENESS): value}))


def test_the_period_is_that_of_the_spec_unless_an_annotation_sets_milliseconds() -> None:
    def period(of: Pod, seconds: int | None = 3) -> float:
        return probe_period_seconds(of, replace(LIVE, probe=Probe(period_seconds=seconds)))

    assert period(Pod()) == 3
    assert period(Pod(), None) == 10
    assert period(annotated("250")) == 0.25
    assert period(annotated("60000")) == 60
    assert period(annotated("1")) == MIN_PERIOD_MILLISECONDS / 1000
    assert probe_period_seconds(annotated("250"), replace(READY, probe=Probe(period_seconds=3))) == 3


@pytest.mark.parametrize("value", ["", "fast", "0.5", "-5", "1e3", "²", "9" * 10])
def test_a_period_that_is_not_a_whole_number_is_rejected(value: str) -> None:
    with pytest.raises(BadInput, match=r"liveness\.probe-period-milliseconds\.podkeeper\.io/web"):
        probe_period_seconds(annotated(value), LIVE)


@given(st.floats(0.1, 3600), st.floats(0, 7200), st.floats(0, 1, exclude_max=True))
def test_only_a_new_agent_spreads_first_ticks_and_never_beyond_a_period(
    period: float, age: float, fraction: float
) -> None:
    delay = first_tick_delay_seconds(period, age, fraction)
    assert 0 <= delay <= period
    assert delay == 0 or age < period


# Laws. One step from everywhere covers every history of a small machine.

TARGETS = [
    target(kind, failures=failures, successes=successes, sidecar=sidecar)
    for kind, failures, successes, sidecar in product(ProbeKind, (1, 3), (1, 2), (False, True))
]
STATES: list[Live] = [
    AwaitingContainer(),
    ON_HOLD,
    AT_ONE,
    *(counted(result, count) for result in (SUCCESS, FAILURE) for count in (1, 2)),
]


def every_input(of: Target) -> list[TickInput]:
    return [replace(tick_input(of), status=None), tick_input(of)] + [
        tick_input(of, state, id=id, started=started, phase=phase, policy=policy, deleting=deleting)
        for state, id, started, phase, policy, deleting in product(
            (running(), OLD, WAITING, exited(0), exited(1)),
            (ONE, TWO),
            (None, True),
            ("Running", "Failed"),
            ("Always", "OnFailure", "Never"),
            (False, True),
        )
    ]


def every_tick() -> list[tuple[Live, Target, TickInput, ProbeStep]]:
    return [(state, of, seen, tick(state, of, seen)) for of in TARGETS for seen in every_input(of) for state in STATES]


def found_id(of: Target, seen: TickInput) -> str | None:
    status = seen.status or PodStatus()
    found = status.init_container_statuses if of.container.restart_policy else status.container_statuses
    return found[0].container_id if found else None


def test_on_hold_nothing_is_executed_until_the_container_id_changes() -> None:
    steps = [(of, seen, step) for state, of, seen, step in every_tick() if isinstance(state, OnHold)]
    assert steps
    assert all(found_id(of, seen) == TWO for of, seen, step in steps if step.execute)


def test_a_new_container_ends_the_hold_and_removes_the_old_result() -> None:
    met = [
        (state, seen, step)
        for state, of, seen, step in every_tick()
        if not isinstance(state, AwaitingContainer)
        and found_id(of, seen) == TWO
        and not (seen.status and seen.status.phase == "Failed")
    ]
    assert met
    for _, seen, step in met:
        assert step.forget == ONE
        assert isinstance(step.state, Probing | Stopped)
        assert step.state.container_id == TWO
        assert step.store is not None or found_is_old(seen)


def found_is_old(seen: TickInput) -> bool:
    status = seen.status or PodStatus()
    return any(
        found.state == OLD for found in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    )


def test_a_tick_probes_only_running_containers_in_the_probing_state() -> None:
    for _, _, seen, step in every_tick():
        if step.execute:
            assert isinstance(step.state, Probing)
            assert seen.status is not None
            statuses = (*(seen.status.container_statuses or ()), *(seen.status.init_container_statuses or ()))
            assert statuses[0].state.running is not None


def test_a_repeated_tick_stores_the_same_result_or_nothing() -> None:
    for _, of, seen, first in every_tick():
        if not isinstance(first.state, Stopped):
            second = tick(first.state, of, seen)
            assert second.state == first.state
            assert second.forget is None
            assert second.store in (None, first.store)


outcomes = st.lists(st.none() | st.sampled_from([SUCCESS, FAILURE]), max_size=30)


@given(st.sampled_from(TARGETS), outcomes)
def test_a_result_changes_only_after_as_many_equal_outcomes_in_a_row(
    of: Target, history: list[ProbeResult | None]
) -> None:
    state, stored, seen = Probing(ONE), INITIAL_RESULTS[of.kind], list[ProbeResult]()
    for outcome in history:
        step = count_outcome(state, of, outcome)
        seen += [] if outcome is None else [outcome]
        needed = of.probe.success_threshold if outcome is SUCCESS else of.probe.failure_threshold
        enough = outcome is not None and seen[-(needed or 1) :] == [outcome] * (needed or 1)
        assert step.store == (outcome if enough else None)
        stored = step.store or stored
        if not isinstance(step.state, Probing):
            break
        state = step.state
    assert stored is INITIAL_RESULTS[of.kind] or stored in history


@given(st.sampled_from(TARGETS), outcomes)
def test_executions_without_an_outcome_have_no_effect(of: Target, history: list[ProbeResult | None]) -> None:
    def run(outcomes: list[ProbeResult | None]) -> list[ProbeResult]:
        state, stored = Probing(ONE), list[ProbeResult]()
        for outcome in outcomes:
            step = count_outcome(state, of, outcome)
            stored += [] if step.store is None else [step.store]
            if not isinstance(step.state, Probing):
                break
            state = step.state
        return stored

    assert run(history) == run([outcome for outcome in history if outcome is not None])
