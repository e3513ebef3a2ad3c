"""The probe worker's state machine: one container, one kind of probe, and when to ask.

    Waiting -> Probing <-> OnHold            (and from anywhere -> Ended)

Comes in, at each tick: what is known of the pod now (`Known`). Goes out: a `Step`, which says
whether to execute the probe, which result to store and which to forget; `after` does the same with
what an execution gave. Promises:

* an outcome is stored only when as many equal ones in a row as its threshold asks for were seen;
* an execution that gave no outcome changes nothing;
* a container that does not run is stored as failed, a new one as its kind begins (`INITIAL_RESULTS`);
* on hold, nothing is executed until the container has another id: a failed liveness probe, or a
  startup probe that has decided, has nothing more to say about this one;
* what a restarted agent knew of a container stays: its result is not reset to the initial one.

The initial delay and the wait for the startup probe are no states: they follow from the container's
status at each tick, and a state could only come to disagree with it; the `Reason` tells them.
The streak of outcomes goes on from one container to the next unless a hold came between: a quirk of
the reference, recorded and kept.

The Go ancestor is `worker` in pkg/kubelet/prober/worker.go.
"""

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from math import inf

import msgspec
from msgspec.structs import replace

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s.core import Container, ContainerStateRunning, ContainerStatus, Pod, PodStatus, Probe
from podkeeper.model.messages import ProbeKind, ProbeResult
from podkeeper.model.times import parse_time
from podkeeper.rules.phase import is_terminal
from podkeeper.rules.probe.flags import predates_agent
from podkeeper.rules.restart import ALL_CONTAINERS_RESTARTING, asks_to_restart_all, is_sidecar, restarts_after_exit

INITIAL_RESULTS = {
    ProbeKind.LIVENESS: ProbeResult.SUCCESS,
    ProbeKind.READINESS: ProbeResult.FAILURE,
    ProbeKind.STARTUP: ProbeResult.UNKNOWN,
}
"""What counts until the first outcome that reaches its threshold."""

DEFAULT_PERIOD_SECONDS = 10
MIN_PERIOD_MILLISECONDS = 100
PERIOD_ANNOTATION_PREFIX = "probe-period-milliseconds.podkeeper.io"


class Target(msgspec.Struct, frozen=True):
    """What one worker probes."""

    container: Container
    kind: ProbeKind
    probe: Probe


class Known(msgspec.Struct, frozen=True):
    """What is known at one tick. `status` is the last one the status manager holds; None: it has none."""

    pod: Pod
    status: PodStatus | None
    agent_started: datetime | None  # as in a `ProbeView`
    now: datetime
    monotonic: float = 0.0  # seconds on a clock that nobody puts back
    own: frozenset[str] = frozenset()  # as in a `ProbeView`


class Streak(msgspec.Struct, frozen=True):
    """The last outcome and how many times in a row it came."""

    result: ProbeResult
    count: int


class Waiting(msgspec.Struct, frozen=True):
    """No container has been seen yet."""


class Probing(msgspec.Struct, frozen=True):
    """This container is probed whenever it is ready to be."""

    container_id: str
    streak: Streak | None = None
    seen: float = 0.0  # since when, on the monotonic clock


class OnHold(msgspec.Struct, frozen=True):
    """The probe has decided about this container; it waits for another one."""

    container_id: str


class Ended(msgspec.Struct, frozen=True):
    """The worker is gone. What was stored for its last container goes with it."""

    container_id: str | None


Live = Waiting | Probing | OnHold
State = Live | Ended


class Reason(StrEnum):
    """Why a step is what it is."""

    DUE = "the probe is due"
    NO_STATUS = "the pod has no status yet"
    POD_ENDED = "the pod has ended"
    NO_CONTAINER = "the container has not been created"
    ON_HOLD = "the probe has decided; it waits for the next container"
    NOT_RUNNING = "the container does not run"
    NO_RESTART = "the container has ended and will not run again"
    POD_DELETED = "the pod is being deleted"
    INITIAL_DELAY = "the initial delay has not passed"
    STARTED_ALREADY = "the container has started; its startup probe rests"
    NOT_STARTED = "the startup probe has not succeeded yet"
    STOPPED = "the worker was stopped"
    NO_OUTCOME = "the probe could not be executed; nothing is concluded from that"
    BELOW_THRESHOLD = "not enough equal outcomes in a row"
    DECIDED = "enough equal outcomes in a row"


class Step(msgspec.Struct, frozen=True):
    """What one tick, or one outcome, leads to; `store` is for the container the new state names."""

    state: State
    reason: Reason
    store: ProbeResult | None = None
    forget: str | None = None  # the id of a container that is no more: drop its result, if it has one

    @property
    def execute(self) -> bool:
        """Whether the probe is to be executed now, and `after` told its outcome."""
        return self.reason is Reason.DUE


def probes_of(pod: Pod) -> Iterator[Target]:
    """What a pod's workers probe: its regular containers and sidecars, each startup probe first."""
    sidecars = [container for container in pod.spec.init_containers or () if is_sidecar(container)]
    for container in [*pod.spec.containers, *sidecars]:
        if container.startup_probe is not None:
            yield Target(container, ProbeKind.STARTUP, container.startup_probe)
        if container.readiness_probe is not None:
            yield Target(container, ProbeKind.READINESS, container.readiness_probe)
        if container.liveness_probe is not None:
            yield Target(container, ProbeKind.LIVENESS, container.liveness_probe)


def tick(state: Live, target: Target, known: Known) -> Step:
    """Decide what a worker does at one tick of its period."""
    if known.status is None:
        return Step(state, Reason.NO_STATUS)
    if is_terminal(known.status.phase):
        return stop(state, Reason.POD_ENDED)
    found = _status_of(target.container.name, known.status)
    if found is None or not found.container_id:
        return Step(state, Reason.NO_CONTAINER)
    arrived = _arrive(state, target, found.container_id, found, known)
    return _look(arrived, found.container_id, target, found, known) if arrived.execute else arrived


def after(state: Probing, target: Target, outcome: ProbeResult | None) -> Step:
    """Count what an execution gave; None: it gave no outcome, however often it was tried."""
    if outcome is None:
        return Step(state, Reason.NO_OUTCOME)
    match state.streak:
        case Streak(result=last, count=count) if last is outcome:
            streak = Streak(outcome, count + 1)
        case _:
            streak = Streak(outcome, 1)
    if streak.count < _threshold(target.probe, outcome):
        return Step(replace(state, streak=streak), Reason.BELOW_THRESHOLD)
    decided = target.kind is ProbeKind.STARTUP or (target.kind is ProbeKind.LIVENESS and outcome is ProbeResult.FAILURE)
    next_state = OnHold(state.container_id) if decided else replace(state, streak=streak)
    return Step(next_state, Reason.DECIDED, store=outcome)


def stop(state: Live, reason: Reason = Reason.STOPPED) -> Step:
    """End a worker, for instance because its pod is terminating or is gone."""
    match state:
        case Waiting():
            return Step(Ended(None), reason)
        case Probing(container_id=container_id) | OnHold(container_id=container_id):
            return Step(Ended(container_id), reason)


def period_annotation(container_name: str, kind: ProbeKind) -> str:
    """The pod annotation that gives a probe a period in milliseconds, below a second if wanted.

    The container's name is the whole name part of the key: with anything beside it, a long name would not fit.
    """
    return f"{kind}.{PERIOD_ANNOTATION_PREFIX}/{container_name}"


def probe_period_seconds(pod: Pod, target: Target) -> float:
    """How often a probe runs: as its annotation says (never below the floor), else as its spec says.

    Raises BadInput for an annotation that is no whole number.
    """
    key = period_annotation(target.container.name, target.kind)
    text = (pod.metadata.annotations or {}).get(key)
    if text is None:
        milliseconds = (target.probe.period_seconds or DEFAULT_PERIOD_SECONDS) * 1000
    elif text.isascii() and text.isdigit() and len(text) <= 9:
        milliseconds = int(text)
    else:
        full_name = f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}"
        raise BadInput(
            Problem(
                f"cannot use {text!r} as a probe period of pod {full_name}; "
                "right would be whole milliseconds such as '250'",
                field=f"metadata.annotations[{key}]",
            )
        )
    return max(milliseconds, MIN_PERIOD_MILLISECONDS) / 1000


def first_tick_delay_seconds(period_seconds: float, agent_age_seconds: float, fraction: float) -> float:
    """How long a new worker waits before its first tick.

    A young agent starts the workers of all its pods at once: they spread over a period by `fraction`, drawn
    by the caller from [0, 1).
    """
    return period_seconds * fraction if agent_age_seconds < period_seconds else 0.0


def _arrive(state: Live, target: Target, container_id: str, found: ContainerStatus, known: Known) -> Step:
    """Where a worker stands once it has seen which container is there; a new one starts afresh."""
    match state:
        case OnHold(container_id=held) if held == container_id:
            return Step(state, Reason.ON_HOLD)
        case Probing(container_id=probed) if probed == container_id:
            return Step(state, Reason.DUE)
        case Waiting():
            streak, forget = None, None
        case OnHold(container_id=old):
            streak, forget = None, old
        case Probing(container_id=old, streak=streak):
            forget = old
    store = _first_result(target, found, known)
    return Step(Probing(container_id, streak, known.monotonic), Reason.DUE, store=store, forget=forget)


def _first_result(target: Target, found: ContainerStatus, known: Known) -> ProbeResult | None:
    """What to store for a container seen for the first time; None: let what was published stand."""
    if not predates_agent(found, known.own, known.agent_started):
        return INITIAL_RESULTS[target.kind]
    if target.kind is ProbeKind.STARTUP and found.started and _is_sidecar_of(target.container, known.pod):
        return ProbeResult.SUCCESS  # or the plan would take the pod for one that is not initialized yet
    return None


def _look(arrived: Step, container_id: str, target: Target, found: ContainerStatus, known: Known) -> Step:
    """Whether the container in sight can be probed now."""
    if found.state.running is None:
        ended = found.state.terminated
        if ended is None or _runs_again(target.container, ended.exit_code, known):
            return replace(arrived, reason=Reason.NOT_RUNNING, store=ProbeResult.FAILURE)
        return replace(arrived, state=Ended(container_id), reason=Reason.NO_RESTART, store=ProbeResult.FAILURE)
    if known.pod.metadata.deletion_timestamp is not None and target.kind is not ProbeKind.READINESS:
        # A success as the last word: whoever looks at the results must not kill or restart anything now.
        return replace(arrived, state=Ended(container_id), reason=Reason.POD_DELETED, store=ProbeResult.SUCCESS)
    if _age_seconds(arrived.state, found.state.running, known) < (target.probe.initial_delay_seconds or 0):
        return replace(arrived, reason=Reason.INITIAL_DELAY)
    if target.kind is ProbeKind.STARTUP:
        return replace(arrived, reason=Reason.STARTED_ALREADY) if found.started else arrived
    return arrived if found.started else replace(arrived, reason=Reason.NOT_STARTED)


def _age_seconds(state: State, running: ContainerStateRunning, known: Known) -> float:
    """How long a container has run, in whole seconds.

    Where it seems to have started in the future, the clock was put back since. The reference then waits for the clock
    to come round, hours if need be, and probes nothing; we count from when we saw the container first.
    """
    if running.started_at is None:
        return inf
    whole_seconds = int((known.now - parse_time(running.started_at)).total_seconds())
    if whole_seconds < 0 and isinstance(state, Probing):
        return known.monotonic - state.seen
    return whole_seconds


def _runs_again(container: Container, exit_code: int, known: Known) -> bool:
    """Whether a container that exited will be there again, by its own policy or with all others."""
    return restarts_after_exit(container, known.pod.spec, exit_code) or _all_start_over(known)


def _all_start_over(known: Known) -> bool:
    status = known.status or PodStatus()
    if any(held.type == ALL_CONTAINERS_RESTARTING and held.status == "True" for held in status.conditions or ()):
        return True
    exits = {
        found.name: found.state.terminated.exit_code
        for found in (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        if found.state.terminated is not None
    }
    spec = known.pod.spec
    return any(
        container.name in exits and asks_to_restart_all(container, exits[container.name])
        for container in (*(spec.init_containers or ()), *spec.containers)
    )


def _status_of(name: str, status: PodStatus) -> ContainerStatus | None:
    """The status of a container that exists, be it a regular or an init container."""
    for statuses in (status.container_statuses, status.init_container_statuses):
        found = next((found for found in statuses or () if found.name == name), None)
        if found is not None and found.container_id:
            return found
    return None


def _is_sidecar_of(container: Container, pod: Pod) -> bool:
    return is_sidecar(container) and any(init.name == container.name for init in pod.spec.init_containers or ())


def _threshold(probe: Probe, outcome: ProbeResult) -> int:
    """How many equal outcomes in a row count; a result that is neither success nor failure counts at once."""
    match outcome:
        case ProbeResult.SUCCESS:
            return probe.success_threshold or 0
        case ProbeResult.FAILURE:
            return probe.failure_threshold or 0
        case ProbeResult.UNKNOWN:
            return 0
