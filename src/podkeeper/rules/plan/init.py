"""The part of a plan that brings a pod through its initialization, and keeps its sidecars running.

Init containers run one after the other; a sidecar's turn is over as soon as it has started. How far a
pod has come is read from the runtime, where finished init containers may already have been removed.
So only the *frontier* counts, the last init container of which the runtime knows anything:

    i0 (gone)   i1 (exited 0)   i2 (running)   i3 (unknown to the runtime)
    `---- behind: had their turn ----'  frontier

Behind the frontier only sidecars still matter: they are kept running. At the frontier the pod waits,
goes on to the next one, tries again, or fails. Once an app container exists in this sandbox, all init
containers are behind.

Spec, newest records and probe results come in; `InitActions` goes out. The Go ancestor is
`computeInitContainerActions` in pkg/kubelet/kuberuntime/kuberuntime_container.go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.messages import ProbeResult
from podkeeper.model.runtime import ContainerRecord, ContainerState
from podkeeper.rules.container_grace import KillReason
from podkeeper.rules.container_hash import container_hash
from podkeeper.rules.plan.actions import ContainerToKill
from podkeeper.rules.restart import container_should_restart, is_sidecar, restarts_on_failure

Newest = Mapping[str, ContainerRecord]
"""Container name -> the newest container of that name."""


class Initialization(StrEnum):
    """How far a pod has come with its init containers."""

    IN_PROGRESS = "in progress"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ProbeResults:
    """The results that decide about restarts, by container id; absent means that there is none yet."""

    liveness: Mapping[str, ProbeResult]
    startup: Mapping[str, ProbeResult]


@dataclass(frozen=True, slots=True)
class InitActions:
    """What to do about the init containers: indexes in the order of the spec, and containers to kill."""

    initialization: Initialization
    to_start: tuple[int, ...] = ()
    to_kill: tuple[ContainerToKill, ...] = ()


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one init container needs, and whether the next one may have its turn."""

    over: bool = False
    start: bool = False
    kill: ContainerToKill | None = None
    failed: bool = False


_WAIT = _Turn()
_OVER = _Turn(over=True)
_START = _Turn(start=True)
_FAILED = _Turn(failed=True)


def init_actions(pod: Pod, newest: Newest, probes: ProbeResults) -> InitActions:
    """Decide what the init containers of a pod need."""
    init_containers = pod.spec.init_containers or ()
    if not init_containers:
        return InitActions(Initialization.DONE)
    if _app_container_exists(pod.spec.containers, newest):
        to_start, to_kill = _sidecars_to_restart(init_containers, newest, probes)
        return InitActions(Initialization.DONE, tuple(to_start), tuple(to_kill))
    frontier = _frontier(init_containers, newest)
    if frontier is None:
        return InitActions(Initialization.IN_PROGRESS, to_start=(0,))
    turn = _frontier_turn(pod, init_containers[frontier], newest[init_containers[frontier].name], probes)
    if turn.failed:
        return InitActions(Initialization.FAILED)
    to_start, to_kill = _sidecars_to_restart(init_containers[:frontier], newest, probes)
    if turn.start:
        to_start.append(frontier)
    if turn.kill is not None:
        to_kill.append(turn.kill)
    if turn.over and frontier == len(init_containers) - 1:
        return InitActions(Initialization.DONE, tuple(to_start), tuple(to_kill))
    if turn.over:  # also when it is a sidecar that has started and is to be replaced: the next one need not wait
        to_start.append(frontier + 1)
    return InitActions(Initialization.IN_PROGRESS, tuple(to_start), tuple(to_kill))


def _app_container_exists(app_containers: Sequence[Container], newest: Newest) -> bool:
    """Whether an app container shows that initialization was completed in this sandbox.

    One that has exited shows nothing: it may stem from the sandbox before.
    """
    return any(
        found is not None and found.state in (ContainerState.CREATED, ContainerState.RUNNING)
        for found in (newest.get(container.name) for container in app_containers)
    )


def _frontier(init_containers: Sequence[Container], newest: Newest) -> int | None:
    """The index of the last init container that the runtime knows."""
    for index in range(len(init_containers) - 1, -1, -1):
        if init_containers[index].name in newest:
            return index
    return None


def _sidecars_to_restart(
    behind: Sequence[Container], newest: Newest, probes: ProbeResults
) -> tuple[list[int], list[ContainerToKill]]:
    """Of the init containers behind the frontier: which to start again, and what to kill before."""
    to_start: list[int] = []
    to_kill: list[ContainerToKill] = []
    for index, container in enumerate(behind):
        if not is_sidecar(container):
            continue
        found = newest.get(container.name)
        turn = _START if found is None else _sidecar_turn(container, found, probes)
        if turn.start:
            to_start.append(index)
        if turn.kill is not None:
            to_kill.append(turn.kill)
    return to_start, to_kill


def _frontier_turn(pod: Pod, container: Container, found: ContainerRecord, probes: ProbeResults) -> _Turn:
    """What the init container needs whose turn it is."""
    if is_sidecar(container):
        return _sidecar_turn(container, found, probes)
    match found.state:
        case ContainerState.CREATED:
            return _START  # creating and starting are one step for us: the runtime failed between the two
        case ContainerState.RUNNING:
            return _WAIT
        case ContainerState.EXITED if not _failed(found):
            return _OVER
        case ContainerState.EXITED:
            return _START if container_should_restart(container, pod, found) else _FAILED
        case ContainerState.UNKNOWN:
            return _replace_unknown(found) if restarts_on_failure(container, pod.spec) else _FAILED


def _sidecar_turn(container: Container, found: ContainerRecord, probes: ProbeResults) -> _Turn:
    """What a sidecar needs to be running, started and alive."""
    match found.state:
        case ContainerState.CREATED | ContainerState.EXITED:
            return _START
        case ContainerState.UNKNOWN:
            return _replace_unknown(found)
        case ContainerState.RUNNING:
            return _running_sidecar_turn(container, found, probes)


def _running_sidecar_turn(container: Container, found: ContainerRecord, probes: ProbeResults) -> _Turn:
    # A sidecar without a startup probe has started once it runs; a result for it would be a stale one.
    if container.startup_probe is not None:
        match probes.startup.get(found.id):
            case ProbeResult.SUCCESS:
                pass
            case ProbeResult.FAILURE:
                return _replace(found, "failed startup probe", KillReason.STARTUP_PROBE, started=False)
            case _:
                return _WAIT
    if found.spec_hash != container_hash(container):
        return _replace(found, "definition changed", KillReason.SPEC_CHANGED, started=True)
    if container.liveness_probe is not None and probes.liveness.get(found.id) is ProbeResult.FAILURE:
        return _replace(found, "failed liveness probe", KillReason.LIVENESS_PROBE, started=True)
    return _OVER


def _failed(found: ContainerRecord) -> bool:
    """Whether an exited init container failed; out of memory is a failure whatever the exit code says."""
    return found.exit_code != 0 or found.reason == "OOMKilled"


def _replace(found: ContainerRecord, why: str, reason: KillReason, *, started: bool) -> _Turn:
    message = f"Init container {found.name} {why}"
    return _Turn(over=started, start=True, kill=ContainerToKill(found.id, found.name, message, reason))


def _replace_unknown(found: ContainerRecord) -> _Turn:
    """Start anew what may or may not run, but kill it first: there must never be two of it."""
    message = f'Init container is in "{found.state}" state, try killing it before restart'
    return _Turn(start=True, kill=ContainerToKill(found.id, found.name, message, KillReason.UNKNOWN))
