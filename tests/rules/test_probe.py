"""The probe worker: when it asks, what it concludes, when it ends."""

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
    Ended,
    Known,
    Live,
    OnHold,
    Probing,
    Reason,
    Step,
    Streak,
    Target,
    Waiting,
    after,
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
OLD = running(3600)  # it ran before this agent did


def known(
    of: Target,
    state: ContainerState | None = None,
    *,
    id: str = ONE,
    started: bool | None = True,
    phase: str = "Running",
    policy: str = "Always",
    deleting: bool = False,
    conditions: tuple[PodCondition, ...] = (),
) -> Known:
    """What is known of a pod whose only container is the target's; without a state there is no container yet."""
    found = None if state is None else (ContainerStatus(name="web", container_id=id, state=state, started=started),)
    metadata = ObjectMeta(deletion_timestamp=format_time(NOW) if deleting else None)
    if of.container.restart_policy == "Always":
        spec = PodSpec(init_containers=(of.container,), restart_policy=policy)
        status = PodStatus(phase=phase, init_container_statuses=found, conditions=conditions)
    else:
        spec = PodSpec(containers=(of.container,), restart_policy=policy)
        status = PodStatus(phase=phase, container_statuses=found, conditions=conditions)
    return Known(Pod(metadata=metadata, spec=spec), status, AGENT_START, NOW)


LIVE, READY, START = target(LIVENESS), target(READINESS), target(STARTUP)
AT_ONE = Probing(ONE)
HELD = OnHold(ONE)
STARTING_OVER = PodCondition(type="AllContainersRestarting", status="True")

TICKS = {
    "a pod without a status is waited for":
        (Waiting(), LIVE, replace(known(LIVE), status=None), Step(Waiting(), Reason.NO_STATUS)),
    "a container that has not been created is waited for":
        (Waiting(), LIVE, known(LIVE), Step(Waiting(), Reason.NO_CONTAINER)),
    "a container without an id has not been created":
        (Waiting(), LIVE, known(LIVE, WAITING, id=""), Step(Waiting(), Reason.NO_CONTAINER)),
    "a worker whose pod has ended ends":
        (AT_ONE, LIVE, known(LIVE, running(), phase="Succeeded"), Step(Ended(ONE), Reason.POD_ENDED)),
    "also one that is on hold":
        (HELD, LIVE, known(LIVE, running(), phase="Failed"), Step(Ended(ONE), Reason.POD_ENDED)),
    "a new container is taken for alive":
        (Waiting(), LIVE, known(LIVE, running()), Step(AT_ONE, Reason.DUE, store=SUCCESS)),
    "a new container is not ready":
        (Waiting(), READY, known(READY, running()), Step(AT_ONE, Reason.DUE, store=FAILURE)),
    "of a new container's start nothing is known":
        (Waiting(), START, known(START, running(), started=False), Step(AT_ONE, Reason.DUE, store=UNKNOWN)),
    "a known container is probed":
        (AT_ONE, LIVE, known(LIVE, running()), Step(AT_ONE, Reason.DUE)),
    "the next container starts afresh, and the old result goes":
        (AT_ONE, LIVE, known(LIVE, running(), id=TWO), Step(Probing(TWO), Reason.DUE, store=SUCCESS, forget=ONE)),
    "the next container ends the hold":
        (HELD, LIVE, known(LIVE, running(), id=TWO), Step(Probing(TWO), Reason.DUE, store=SUCCESS, forget=ONE)),
    "on hold, the same container is left alone":
        (HELD, LIVE, known(LIVE, running()), Step(HELD, Reason.ON_HOLD)),
    "on hold, even a dead one is":
        (HELD, LIVE, known(LIVE, exited(1), policy="Never"), Step(HELD, Reason.ON_HOLD)),
    "a container that ran before the agent keeps what was published":
        (Waiting(), READY, known(READY, OLD), Step(AT_ONE, Reason.DUE)),
    "one that waits to run again has failed":
        (AT_ONE, LIVE, known(LIVE, WAITING), Step(AT_ONE, Reason.NOT_RUNNING, store=FAILURE)),
    "one that exited and runs again has failed":
        (AT_ONE, LIVE, known(LIVE, exited(1)), Step(AT_ONE, Reason.NOT_RUNNING, store=FAILURE)),
    "one that will not run again ends its worker":
        (AT_ONE, LIVE, known(LIVE, exited(0), policy="OnFailure"), Step(Ended(ONE), Reason.NO_RESTART, store=FAILURE)),
    "one that starts over with all others does not":
        (AT_ONE, LIVE,
         known(LIVE, exited(0), policy="Never", conditions=(STARTING_OVER,)),
         Step(AT_ONE, Reason.NOT_RUNNING, store=FAILURE)),
    "a restart of all containers that is over does not keep its worker":
        (AT_ONE, LIVE,
         known(LIVE, exited(0), policy="Never", conditions=(replace(STARTING_OVER, status="False"),)),
         Step(Ended(ONE), Reason.NO_RESTART, store=FAILURE)),
    "another condition that is true does not keep its worker":
        (AT_ONE, LIVE,
         known(LIVE, exited(0), policy="Never", conditions=(PodCondition(type="Ready", status="True"),)),
         Step(Ended(ONE), Reason.NO_RESTART, store=FAILURE)),
    "a liveness probe of a pod that is being deleted ends with a success":
        (AT_ONE, LIVE, known(LIVE, running(), deleting=True), Step(Ended(ONE), Reason.POD_DELETED, store=SUCCESS)),
    "a startup probe too":
        (AT_ONE, START, known(START, running(), deleting=True), Step(Ended(ONE), Reason.POD_DELETED, store=SUCCESS)),
    "a readiness probe goes on":
        (AT_ONE, READY, known(READY, running(), deleting=True), Step(AT_ONE, Reason.DUE)),
    "liveness waits for the start":
        (AT_ONE, LIVE, known(LIVE, running(), started=False), Step(AT_ONE, Reason.NOT_STARTED)),
    "readiness waits for the start":
        (AT_ONE, READY, known(READY, running(), started=None), Step(AT_ONE, Reason.NOT_STARTED)),
    "once started, the startup probe rests":
        (AT_ONE, START, known(START, running()), Step(AT_ONE, Reason.STARTED_ALREADY)),
    "a sidecar that had started before the agent has started":
        (Waiting(), target(STARTUP, sidecar=True), known(target(STARTUP, sidecar=True), OLD),
         Step(AT_ONE, Reason.STARTED_ALREADY, store=SUCCESS)),
    "a regular container that had is left as it was published":
        (Waiting(), START, known(START, OLD), Step(AT_ONE, Reason.STARTED_ALREADY)),
    "a sidecar's exit never ends its worker":
        (AT_ONE, target(LIVENESS, sidecar=True), known(target(LIVENESS, sidecar=True), exited(0), policy="Never"),
         Step(AT_ONE, Reason.NOT_RUNNING, store=FAILURE)),
}  # fmt: skip


@pytest.mark.parametrize("state, of, seen, expected", TICKS.values(), ids=TICKS.keys())
def test_tick(state: Live, of: Target, seen: Known, expected: Step) -> None:
    assert tick(state, of, seen) == expected


@pytest.mark.parametrize("age, delay, due", [(9, 10, False), (9.9, 10, False), (10, 10, True), (0, 0, True)])
def test_the_initial_delay_counts_whole_seconds_since_the_start(age: float, delay: int, due: bool) -> None:
    of = target(LIVENESS, delay=delay)
    seen = known(of, running(0))
    step = tick(AT_ONE, of, replace(seen, now=NOW + timedelta(seconds=age)))
    assert step == Step(AT_ONE, Reason.DUE if due else Reason.INITIAL_DELAY)


@pytest.mark.parametrize("seen_seconds, due", [(0, False), (9.9, False), (10, True)])
def test_where_the_clock_was_put_back_the_initial_delay_counts_since_the_container_was_seen(
    seen_seconds: float, due: bool
) -> None:
    of = target(LIVENESS, delay=10)
    seen = replace(known(of, running(0)), now=NOW - timedelta(hours=1), monotonic=500.0)
    arrived = tick(Waiting(), of, seen)
    assert arrived.reason is Reason.INITIAL_DELAY
    assert isinstance(arrived.state, Probing)
    step = tick(arrived.state, of, replace(seen, monotonic=500.0 + seen_seconds))
    assert step == Step(arrived.state, Reason.DUE if due else Reason.INITIAL_DELAY)


def test_an_exit_that_restarts_all_containers_keeps_every_worker() -> None:
    rule = ContainerRestartRule(
        action="RestartAllContainers", exit_codes=ContainerRestartRuleOnExitCodes(operator="In", values=(42,))
    )
    other = Container(name="other", restart_policy="Never", restart_policy_rules=(rule,))
    seen = known(LIVE, exited(0), policy="Never")
    assert seen.status is not None
    statuses = (*(seen.status.container_statuses or ()), ContainerStatus(name="other", state=exited(42)))
    spec = msgspec.structs.replace(seen.pod.spec, containers=(*seen.pod.spec.containers, other))
    both = replace(
        seen,
        pod=msgspec.structs.replace(seen.pod, spec=spec),
        status=msgspec.structs.replace(seen.status, container_statuses=statuses),
    )
    assert isinstance(tick(AT_ONE, LIVE, seen).state, Ended)
    assert tick(AT_ONE, LIVE, both).state == AT_ONE


def counted(result: ProbeResult, count: int) -> Probing:
    return Probing(ONE, Streak(result, count))


THRICE = target(LIVENESS, failures=3, successes=2)

OUTCOMES = {
    "no outcome changes nothing":
        (counted(FAILURE, 2), THRICE, None, Step(counted(FAILURE, 2), Reason.NO_OUTCOME)),
    "a first failure is not enough for a threshold of three":
        (AT_ONE, THRICE, FAILURE, Step(counted(FAILURE, 1), Reason.BELOW_THRESHOLD)),
    "the third in a row is, and the liveness probe has decided":
        (counted(FAILURE, 2), THRICE, FAILURE, Step(HELD, Reason.DECIDED, store=FAILURE)),
    "a success breaks the row":
        (counted(FAILURE, 2), THRICE, SUCCESS, Step(counted(SUCCESS, 1), Reason.BELOW_THRESHOLD)),
    "enough successes count, and liveness goes on":
        (counted(SUCCESS, 1), THRICE, SUCCESS, Step(counted(SUCCESS, 2), Reason.DECIDED, store=SUCCESS)),
    "a readiness failure does not stop the probing":
        (AT_ONE, READY, FAILURE, Step(counted(FAILURE, 1), Reason.DECIDED, store=FAILURE)),
    "a startup success decides":
        (AT_ONE, START, SUCCESS, Step(HELD, Reason.DECIDED, store=SUCCESS)),
    "a startup failure decides":
        (AT_ONE, START, FAILURE, Step(HELD, Reason.DECIDED, store=FAILURE)),
}  # fmt: skip


@pytest.mark.parametrize("state, of, outcome, expected", OUTCOMES.values(), ids=OUTCOMES.keys())
def test_after(state: Probing, of: Target, outcome: ProbeResult | None, expected: Step) -> None:
    assert after(state, of, outcome) == expected


@pytest.mark.parametrize("state, container_id", [(Waiting(), None), (AT_ONE, ONE), (HELD, ONE)])
def test_a_stopped_worker_says_whose_result_goes_with_it(state: Live, container_id: str | None) -> None:
    assert stop(state) == Step(Ended(container_id), Reason.STOPPED)


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


def test_the_period_is_the_specs_unless_an_annotation_gives_milliseconds() -> None:
    def period(of: Pod, seconds: int | None = 3) -> float:
        return probe_period_seconds(of, replace(LIVE, probe=Probe(period_seconds=seconds)))

    assert period(Pod()) == 3
    assert period(Pod(), None) == 10
    assert period(annotated("250")) == 0.25
    assert period(annotated("60000")) == 60
    assert period(annotated("1")) == MIN_PERIOD_MILLISECONDS / 1000
    assert probe_period_seconds(annotated("250"), replace(READY, probe=Probe(period_seconds=3))) == 3


@pytest.mark.parametrize("value", ["", "fast", "0.5", "-5", "1e3", "²", "9" * 10])
def test_a_period_that_is_no_whole_number_is_refused_by_name(value: str) -> None:
    with pytest.raises(BadInput, match=r"liveness\.probe-period-milliseconds\.podkeeper\.io/web"):
        probe_period_seconds(annotated(value), LIVE)


@given(st.floats(0.1, 3600), st.floats(0, 7200), st.floats(0, 1, exclude_max=True))
def test_only_a_young_agent_spreads_first_ticks_and_never_beyond_a_period(
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
    Waiting(),
    HELD,
    AT_ONE,
    *(counted(result, count) for result in (SUCCESS, FAILURE) for count in (1, 2)),
]


def every_sight(of: Target) -> list[Known]:
    return [replace(known(of), status=None), known(of)] + [
        known(of, state, id=id, started=started, phase=phase, policy=policy, deleting=deleting)
        for state, id, started, phase, policy, deleting in product(
            (running(), OLD, WAITING, exited(0), exited(1)),
            (ONE, TWO),
            (None, True),
            ("Running", "Failed"),
            ("Always", "OnFailure", "Never"),
            (False, True),
        )
    ]


def every_tick() -> list[tuple[Live, Target, Known, Step]]:
    return [(state, of, seen, tick(state, of, seen)) for of in TARGETS for seen in every_sight(of) for state in STATES]


def found_id(of: Target, seen: Known) -> str | None:
    status = seen.status or PodStatus()
    found = status.init_container_statuses if of.container.restart_policy else status.container_statuses
    return found[0].container_id if found else None


def test_on_hold_nothing_is_executed_until_the_id_changes() -> None:
    steps = [(of, seen, step) for state, of, seen, step in every_tick() if isinstance(state, OnHold)]
    assert steps
    assert all(found_id(of, seen) == TWO for of, seen, step in steps if step.execute)


def test_a_new_container_ends_the_hold_forgets_the_old_and_stores_at_most_its_own() -> None:
    met = [
        (state, seen, step)
        for state, of, seen, step in every_tick()
        if not isinstance(state, Waiting)
        and found_id(of, seen) == TWO
        and not (seen.status and seen.status.phase == "Failed")
    ]
    assert met
    for _, seen, step in met:
        assert step.forget == ONE
        assert isinstance(step.state, Probing | Ended)
        assert step.state.container_id == TWO
        assert step.store is not None or found_is_old(seen)


def found_is_old(seen: Known) -> bool:
    status = seen.status or PodStatus()
    return any(
        found.state == OLD for found in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    )


def test_a_tick_executes_only_in_the_probing_state_and_only_a_running_container() -> None:
    for _, _, seen, step in every_tick():
        if step.execute:
            assert isinstance(step.state, Probing)
            assert seen.status is not None
            statuses = (*(seen.status.container_statuses or ()), *(seen.status.init_container_statuses or ()))
            assert statuses[0].state.running is not None


def test_the_same_sight_twice_stores_the_same_again_or_nothing() -> None:
    for _, of, seen, first in every_tick():
        if not isinstance(first.state, Ended):
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
        step = after(state, of, outcome)
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
def test_executions_without_an_outcome_make_no_difference(of: Target, history: list[ProbeResult | None]) -> None:
    def run(told: list[ProbeResult | None]) -> list[ProbeResult]:
        state, stored = Probing(ONE), list[ProbeResult]()
        for outcome in told:
            step = after(state, of, outcome)
            stored += [] if step.store is None else [step.store]
            if not isinstance(step.state, Probing):
                break
            state = step.state
        return stored

    assert run(history) == run([outcome for outcome in history if outcome is not None])
