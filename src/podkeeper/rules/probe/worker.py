"""State machine of a probe worker: one container, one kind of probe.

    AwaitingContainer -> Probing <-> OnHold            (and from any state -> Stopped)

In, at each tick: the pod and its status (`TickInput`). Out: a `ProbeStep` with the result to store and the one to
remove, and whether to execute the probe. `count_outcome` returns the same for the outcome of an execution.
Guarantees:

* A result is stored only after as many equal outcomes in a row as its threshold requires.
* An execution without an outcome changes nothing.
* A container that does not run is stored as failed, a new one with its initial result (`INITIAL_RESULTS`).
* On hold, nothing is executed until the container has another ID. A failed liveness probe, or a startup probe with a
  result, is final for a container.
* A restart of the agent does not reset the result of a container to the initial one.

The initial delay and the wait for the startup probe are not states. They follow from the container status at each
tick, and `ProbeReason` shows them. The streak of outcomes continues with the next container, unless the worker was on
hold. This is a quirk of the kubelet.

Kubelet counterpart: `worker` in pkg/kubelet/prober/worker.go.
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
from podkeeper.rules.container.restart import (
    ALL_CONTAINERS_RESTARTING,
    exit_restarts_all,
    is_sidecar,
    restarts_after_exit,
)
from podkeeper.rules.probe.flags import predates_agent
from podkeeper.rules.status.phase import is_terminal

INITIAL_RESULTS = {
    ProbeKind.LIVENESS: ProbeResult.SUCCESS,
    ProbeKind.READINESS: ProbeResult.FAILURE,
    ProbeKind.STARTUP: ProbeResult.UNKNOWN,
}
"""The result until the first outcome reaches its threshold."""

# The default of periodSeconds in the API.
DEFAULT_PERIOD_SECONDS = 10
# Sub-second probes are a deviation from the kubelet (k/k 38778). The minimum protects the node from a typo.
MIN_PERIOD_MILLISECONDS = 100
PERIOD_ANNOTATION_PREFIX = "probe-period-milliseconds.podkeeper.io"


class Target(msgspec.Struct, frozen=True):
    """The container and the probe of one worker."""

    container: Container
    kind: ProbeKind
    probe: Probe


class TickInput(msgspec.Struct, frozen=True):
    """The input of one tick. `status` is the last status in the status manager, or None."""

    pod: Pod
    status: PodStatus | None
    agent_started: datetime | None  # as in a `ProbeView`
    now: datetime
    monotonic: float = 0.0  # seconds
    own: frozenset[str] = frozenset()  # as in a `ProbeView`


class Streak(msgspec.Struct, frozen=True):
    """The last outcome, and how many times in a row it occurred."""

    result: ProbeResult
    count: int


class AwaitingContainer(msgspec.Struct, frozen=True):
    """The container does not exist yet."""


class Probing(msgspec.Struct, frozen=True):
    """The container exists and its result is not final. The probe is executed if the container runs."""

    container_id: str
    streak: Streak | None = None
    seen: float = 0.0  # monotonic time at which the container was first seen


class OnHold(msgspec.Struct, frozen=True):
    """The result for this container is final. The worker waits for the next container."""

    container_id: str


class Stopped(msgspec.Struct, frozen=True):
    """The worker has stopped. The result of its last container is removed."""

    container_id: str | None


Live = AwaitingContainer | Probing | OnHold
State = Live | Stopped


class ProbeReason(StrEnum):
    """Why a step has its result."""

    DUE = "the probe is due"
    NO_STATUS = "the pod has no status yet"
    POD_ENDED = "the pod has terminated"
    NO_CONTAINER = "the container has not been created"
    ON_HOLD = "the result is final, waiting for the next container"
    NOT_RUNNING = "the container is not running"
    NO_RESTART = "the container has exited and will not restart"
    POD_DELETED = "the pod is being deleted"
    INITIAL_DELAY = "the initial delay has not passed"
    STARTED_ALREADY = "the container has started, so its startup probe is not executed"
    NOT_STARTED = "the startup probe has not succeeded yet"
    STOPPED = "the worker was stopped"
    NO_OUTCOME = "the probe could not be executed"
    BELOW_THRESHOLD = "not enough equal outcomes in a row"
    DECIDED = "enough equal outcomes in a row"


class ProbeStep(msgspec.Struct, frozen=True):
    """The result of one tick or one outcome. `store` is for the container of the new state."""

    state: State
    reason: ProbeReason
    store: ProbeResult | None = None
    forget: str | None = None  # the ID of a former container whose result is removed

    @property
    def execute(self) -> bool:
        """Return whether to execute the probe now, and to pass its outcome to `count_outcome`."""
        return self.reason is ProbeReason.DUE


def probes_of(pod: Pod) -> Iterator[Target]:
    """Return the probes of a pod's regular containers and sidecars. Startup probes come first."""
    sidecars = [container for container in pod.spec.init_containers or () if is_sidecar(container)]
    for container in [*pod.spec.containers, *sidecars]:
        if container.startup_probe is not None:
            yield Target(container, ProbeKind.STARTUP, container.startup_probe)
        if container.readiness_probe is not None:
            yield Target(container, ProbeKind.READINESS, container.readiness_probe)
        if container.liveness_probe is not None:
            yield Target(container, ProbeKind.LIVENESS, container.liveness_probe)


def tick(state: Live, target: Target, known: TickInput) -> ProbeStep:
    """Return the step of a worker at one tick of its period."""
    if known.status is None:
        return ProbeStep(state, ProbeReason.NO_STATUS)
    if is_terminal(known.status.phase):
        return stop(state, ProbeReason.POD_ENDED)
    found = _status_of(target.container.name, known.status)
    if found is None or not found.container_id:
        return ProbeStep(state, ProbeReason.NO_CONTAINER)
    step = _with_container(state, target, found.container_id, found, known)
    return _if_probeable(step, found.container_id, target, found, known) if step.execute else step


def count_outcome(state: Probing, target: Target, outcome: ProbeResult | None) -> ProbeStep:
    """Count the outcome of an execution. None: all attempts failed without an outcome."""
    if outcome is None:
        return ProbeStep(state, ProbeReason.NO_OUTCOME)
    match state.streak:
        case Streak(result=last, count=count) if last is outcome:
            streak = Streak(outcome, count + 1)
        case _:
            streak = Streak(outcome, 1)
    if streak.count < _threshold(target.probe, outcome):
        return ProbeStep(replace(state, streak=streak), ProbeReason.BELOW_THRESHOLD)
    # As in the kubelet: a failed container is about to be restarted, and further executions would only repeat its
    # event.
    decided = target.kind is ProbeKind.STARTUP or (target.kind is ProbeKind.LIVENESS and outcome is ProbeResult.FAILURE)
    next_state = OnHold(state.container_id) if decided else replace(state, streak=streak)
    return ProbeStep(next_state, ProbeReason.DECIDED, store=outcome)


def stop(state: Live, reason: ProbeReason = ProbeReason.STOPPED) -> ProbeStep:
    """Stop a worker, for example because its pod terminates."""
    match state:
        case AwaitingContainer():
            return ProbeStep(Stopped(None), reason)
        case Probing(container_id=container_id) | OnHold(container_id=container_id):
            return ProbeStep(Stopped(container_id), reason)


def period_annotation(container_name: str, kind: ProbeKind) -> str:
    """Return the pod annotation that sets the period of a probe in milliseconds.

    The name part of the key is only the container name, because a long name would not fit with a prefix.
    """
    return f"{kind}.{PERIOD_ANNOTATION_PREFIX}/{container_name}"


def probe_period_seconds(pod: Pod, target: Target) -> float:
    """Return the period of a probe: from its annotation (with a minimum), otherwise from its spec.

    Raises BadInput if the annotation is not a whole number.
    """
    key = period_annotation(target.container.name, target.kind)
    text = (pod.metadata.annotations or {}).get(key)
    if text is None:
        milliseconds = (target.probe.period_seconds or DEFAULT_PERIOD_SECONDS) * 1000
    elif text.isascii() and text.isdigit() and len(text) <= 9:
        # Not `int(text)` alone: it also accepts spaces, signs, underscores and digits of other scripts.
        milliseconds = int(text)
    else:
        full_name = f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}"
        raise BadInput(
            Problem(
                f'Invalid value: "{text}": must be a number of milliseconds such as "250" (pod {full_name})',
                field=f"metadata.annotations[{key}]",
            )
        )
    return max(milliseconds, MIN_PERIOD_MILLISECONDS) / 1000


def first_tick_delay_seconds(period_seconds: float, agent_age_seconds: float, fraction: float) -> float:
    """Return the delay before the first tick of a new worker.

    A new agent starts the workers of all its pods at once. `fraction`, drawn by the caller from [0, 1), spreads them
    over a period.
    """
    # Only for a young agent: later, pods are added one by one, and their first probe must not be delayed.
    return period_seconds * fraction if agent_age_seconds < period_seconds else 0.0


def _with_container(
    state: Live, target: Target, container_id: str, found: ContainerStatus, known: TickInput
) -> ProbeStep:
    """Return the step for the current container. A new container begins with its initial result."""
    match state:
        case OnHold(container_id=old) if old == container_id:
            return ProbeStep(state, ProbeReason.ON_HOLD)
        case Probing(container_id=probed) if probed == container_id:
            return ProbeStep(state, ProbeReason.DUE)
        case AwaitingContainer():
            streak, forget = None, None
        case OnHold(container_id=old):
            streak, forget = None, old
        case Probing(container_id=old, streak=streak):
            # The kubelet does not reset the streak for a new container unless it was on hold. Recorded traces depend on
            # it.
            forget = old
    store = _first_result(target, found, known)
    return ProbeStep(Probing(container_id, streak, known.monotonic), ProbeReason.DUE, store=store, forget=forget)


def _first_result(target: Target, found: ContainerStatus, known: TickInput) -> ProbeResult | None:
    """Return the result to store for a new container. None: keep the published flags."""
    if not predates_agent(found, known.own, known.agent_started):
        return INITIAL_RESULTS[target.kind]
    if target.kind is ProbeKind.STARTUP and found.started and _is_sidecar_of(target.container, known.pod):
        return ProbeResult.SUCCESS  # otherwise the plan would treat the pod as not initialized
    return None


def _if_probeable(
    step: ProbeStep, container_id: str, target: Target, found: ContainerStatus, known: TickInput
) -> ProbeStep:
    """Return the step, changed if the container cannot be probed now."""
    if found.state.running is None:
        exit_ = found.state.terminated
        if exit_ is None or _restarts(target.container, exit_.exit_code, known):
            return replace(step, reason=ProbeReason.NOT_RUNNING, store=ProbeResult.FAILURE)
        return replace(step, state=Stopped(container_id), reason=ProbeReason.NO_RESTART, store=ProbeResult.FAILURE)
    # Readiness probes continue, as in the kubelet, because a terminating pod may still receive requests.
    if known.pod.metadata.deletion_timestamp is not None and target.kind is not ProbeKind.READINESS:
        # Store a success, so that no other module kills or restarts the container because of an old result.
        return replace(step, state=Stopped(container_id), reason=ProbeReason.POD_DELETED, store=ProbeResult.SUCCESS)
    if _age_seconds(step.state, found.state.running, known) < (target.probe.initial_delay_seconds or 0):
        return replace(step, reason=ProbeReason.INITIAL_DELAY)
    if target.kind is ProbeKind.STARTUP:
        return replace(step, reason=ProbeReason.STARTED_ALREADY) if found.started else step
    return step if found.started else replace(step, reason=ProbeReason.NOT_STARTED)


def _age_seconds(state: State, running: ContainerStateRunning, known: TickInput) -> float:
    """Return how long a container has run, in whole seconds.

    If its start time is in the future, the clock was set back. The kubelet then does not probe until the clock has
    caught up. This agent counts from the time at which it first saw the container.
    """
    if running.started_at is None:
        return inf
    whole_seconds = int((known.now - parse_time(running.started_at)).total_seconds())
    if whole_seconds < 0 and isinstance(state, Probing):
        return known.monotonic - state.seen
    return whole_seconds


def _restarts(container: Container, exit_code: int, known: TickInput) -> bool:
    """Return whether an exited container restarts, by its own policy or with all other containers."""
    return restarts_after_exit(container, known.pod.spec, exit_code) or _all_containers_restart(known)


def _all_containers_restart(known: TickInput) -> bool:
    status = known.status or PodStatus()
    if any(each.type == ALL_CONTAINERS_RESTARTING and each.status == "True" for each in status.conditions or ()):
        return True
    exits = {
        found.name: found.state.terminated.exit_code
        for found in (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        if found.state.terminated is not None
    }
    spec = known.pod.spec
    return any(
        container.name in exits and exit_restarts_all(container, exits[container.name])
        for container in (*(spec.init_containers or ()), *spec.containers)
    )


def _status_of(name: str, status: PodStatus) -> ContainerStatus | None:
    """Return the status of a regular or init container that exists."""
    for statuses in (status.container_statuses, status.init_container_statuses):
        found = next((found for found in statuses or () if found.name == name), None)
        if found is not None and found.container_id:
            return found
    return None


def _is_sidecar_of(container: Container, pod: Pod) -> bool:
    return is_sidecar(container) and any(init.name == container.name for init in pod.spec.init_containers or ())


def _threshold(probe: Probe, outcome: ProbeResult) -> int:
    """Return how many equal outcomes in a row are required. An unknown outcome counts at once."""
    match outcome:
        case ProbeResult.SUCCESS:
            return probe.success_threshold or 0
        case ProbeResult.FAILURE:
            return probe.failure_threshold or 0
        case ProbeResult.UNKNOWN:
            return 0
