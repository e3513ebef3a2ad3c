"""The plan for init containers: run them in order, and keep sidecars running.

Init containers run one after the other. After a sidecar has started, the next one may start. The runtime shows the
progress, but finished init containers may have been removed. So only the *frontier* counts: the last init container
that the runtime reports.

    i0 (gone)   i1 (exited 0)   i2 (running)   i3 (unknown to the runtime)
    `------- before: done -------'      frontier

Before the frontier, only sidecars matter: they are kept running. At the frontier, the pod waits, continues with the
next container, retries or fails. If an app container exists in this sandbox, all init containers are done.

In: the spec, the newest records and the probe results. Out: `InitActions`. Kubelet counterpart:
`computeInitContainerActions` in pkg/kubelet/kuberuntime/kuberuntime_container.go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.messages import ProbeResult
from podkeeper.model.runtime import ContainerRecord, RecordState
from podkeeper.rules.container.grace import KillReason
from podkeeper.rules.container.hash import container_hash
from podkeeper.rules.container.restart import container_should_restart, is_sidecar, restarts_on_failure
from podkeeper.rules.plan.actions import ContainerToKill

Newest = Mapping[str, ContainerRecord]
"""The newest container of each name."""


class Initialization(StrEnum):
    """The progress of a pod's init containers."""

    IN_PROGRESS = "in progress"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ProbeResults:
    """Probe results by container ID, if there are any yet."""

    liveness: Mapping[str, ProbeResult]
    startup: Mapping[str, ProbeResult]


@dataclass(frozen=True, slots=True)
class InitActions:
    """The init containers to start (indexes in the order of the spec) and to kill."""

    initialization: Initialization
    to_start: tuple[int, ...] = ()
    to_kill: tuple[ContainerToKill, ...] = ()


@dataclass(frozen=True, slots=True)
class _InitStep:
    """What one init container needs. `done`: the next one may start."""

    done: bool = False
    start: bool = False
    kill: ContainerToKill | None = None
    failed: bool = False


_WAIT = _InitStep()
_DONE = _InitStep(done=True)
_START = _InitStep(start=True)
_FAILED = _InitStep(failed=True)


def init_actions(pod: Pod, newest: Newest, probes: ProbeResults) -> InitActions:
    init_containers = pod.spec.init_containers or ()
    if not init_containers:
        return InitActions(Initialization.DONE)
    if _app_container_exists(pod.spec.containers, newest):
        to_start, to_kill = _sidecars_to_restart(init_containers, newest, probes)
        return InitActions(Initialization.DONE, tuple(to_start), tuple(to_kill))
    # From the last to the first: earlier init containers may have been removed after they succeeded.
    frontier = _frontier(init_containers, newest)
    if frontier is None:
        return InitActions(Initialization.IN_PROGRESS, to_start=(0,))
    step = _frontier_step(pod, init_containers[frontier], newest[init_containers[frontier].name], probes)
    # Nothing else is started: the pod ends, and its sidecars are stopped with it.
    if step.failed:
        return InitActions(Initialization.FAILED)
    to_start, to_kill = _sidecars_to_restart(init_containers[:frontier], newest, probes)
    if step.start:
        to_start.append(frontier)
    if step.kill is not None:
        to_kill.append(step.kill)
    if step.done and frontier == len(init_containers) - 1:
        return InitActions(Initialization.DONE, tuple(to_start), tuple(to_kill))
    if step.done:  # also for a started sidecar that is replaced, because the next one need not wait
        to_start.append(frontier + 1)
    return InitActions(Initialization.IN_PROGRESS, tuple(to_start), tuple(to_kill))


def _app_container_exists(app_containers: Sequence[Container], newest: Newest) -> bool:
    """Return whether an app container shows that initialization is done in this sandbox.

    An exited one does not count, because it may be from the former sandbox.
    """
    return any(
        found is not None and found.state in (RecordState.CREATED, RecordState.RUNNING)
        for found in (newest.get(container.name) for container in app_containers)
    )


def _frontier(init_containers: Sequence[Container], newest: Newest) -> int | None:
    """Return the index of the last init container that the runtime reports."""
    for index in range(len(init_containers) - 1, -1, -1):
        if init_containers[index].name in newest:
            return index
    return None


def _sidecars_to_restart(
    before: Sequence[Container], newest: Newest, probes: ProbeResults
) -> tuple[list[int], list[ContainerToKill]]:
    """Return the sidecars before the frontier to restart, and the containers to kill first."""
    to_start: list[int] = []
    to_kill: list[ContainerToKill] = []
    for index, container in enumerate(before):
        if not is_sidecar(container):
            continue
        found = newest.get(container.name)
        step = _START if found is None else _sidecar_step(container, found, probes)
        if step.start:
            to_start.append(index)
        if step.kill is not None:
            to_kill.append(step.kill)
    return to_start, to_kill


def _frontier_step(pod: Pod, container: Container, found: ContainerRecord, probes: ProbeResults) -> _InitStep:
    if is_sidecar(container):
        return _sidecar_step(container, found, probes)
    match found.state:
        case RecordState.CREATED:
            return _START  # the start failed after the container was created
        case RecordState.RUNNING:
            return _WAIT
        case RecordState.EXITED if not _failed(found):
            return _DONE
        case RecordState.EXITED:
            return _START if container_should_restart(container, pod, found) else _FAILED
        case RecordState.UNKNOWN:
            return _replace_unknown(found) if restarts_on_failure(container, pod.spec) else _FAILED


def _sidecar_step(container: Container, found: ContainerRecord, probes: ProbeResults) -> _InitStep:
    """Return the next step for a sidecar that must run, pass its startup probe and be live."""
    match found.state:
        case RecordState.CREATED | RecordState.EXITED:
            return _START
        case RecordState.UNKNOWN:
            return _replace_unknown(found)
        case RecordState.RUNNING:
            return _running_sidecar_step(container, found, probes)


def _running_sidecar_step(container: Container, found: ContainerRecord, probes: ProbeResults) -> _InitStep:
    # A sidecar without a startup probe has started when it runs. A result for it would be outdated.
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
    return _DONE


def _failed(found: ContainerRecord) -> bool:
    """Return whether an exited init container failed. OOM-killed counts as failed with any exit code."""
    # As in the kubelet: an OOM kill of a child process can leave exit code 0.
    return found.exit_code != 0 or found.reason == "OOMKilled"


def _replace(found: ContainerRecord, why: str, reason: KillReason, *, started: bool) -> _InitStep:
    message = f"Init container {found.name} {why}"
    return _InitStep(done=started, start=True, kill=ContainerToKill(found.id, found.name, message, reason))


def _replace_unknown(found: ContainerRecord) -> _InitStep:
    """Kill a container that may still run before its restart, because there must never be two."""
    message = f'Init container is in "{found.state}" state, try killing it before restart'
    return _InitStep(start=True, kill=ContainerToKill(found.id, found.name, message, KillReason.UNKNOWN))
