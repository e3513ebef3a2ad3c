"""The plan: what one sync has to do so that a pod runs as its spec says.

The pod, the runtime's record of it and the probe results come in; `PodActions` goes out. One plan
brings the pod one step further, and the next sync plans anew from what the runtime then shows, so no
plan has to foresee anything. Three ways through this room, the first that fits is taken:

* all containers start over: everything the runtime has of them is removed;
* the sandbox must be replaced: everything stops, and the pod begins from its first container;
* the sandbox serves on: ephemeral containers start, initialization goes on (`rules.plan.init`), and
  once it is done, each app container is kept, started, replaced or left alone.

Whether a start has to wait (`rules.backoff`) is not the plan's business. Resizing a running container
in place is not planned here: a changed resource alone changes nothing. The Go ancestor is
`computePodActions` in pkg/kubelet/kuberuntime/kuberuntime_manager.go.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.messages import ProbeResult
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord
from podkeeper.rules.container_grace import KillReason
from podkeeper.rules.container_hash import container_hash
from podkeeper.rules.plan.actions import ContainerToKill, ContainerToReset, PodActions
from podkeeper.rules.plan.init import Initialization, Newest, ProbeResults, init_actions
from podkeeper.rules.plan.sandbox import SandboxChange, sandbox_change
from podkeeper.rules.restart import (
    RestartPolicy,
    asks_to_restart_all,
    container_should_restart,
    restarts_on_failure,
    runs_until_success,
)


def compute_pod_actions(
    pod: Pod,
    record: PodRecord,
    liveness: Mapping[str, ProbeResult],
    startup: Mapping[str, ProbeResult],
    *,
    restart_all_containers: bool = False,
) -> PodActions:
    """Plan the next step of a pod. Probe results are keyed by the runtime's own container ids."""
    sandbox = sandbox_change(bool(pod.spec.host_network), record.sandboxes)
    if restart_all_containers:
        return _reset(pod, record, sandbox)
    # Newest first: read backwards, the newest of each name is the one that stays.
    newest = {found.name: found for found in reversed(record.containers)}
    if sandbox.changed:
        return _begin_anew(pod, newest, sandbox)
    return _go_on(pod, newest, sandbox, ProbeResults(liveness, startup))


# All containers start over.


def _reset(pod: Pod, record: PodRecord, sandbox: SandboxChange) -> PodActions:
    """Remove all containers. Those whose exit asked for it go last: until then their exit tells why."""
    caused: list[ContainerToReset] = []
    affected: list[ContainerToReset] = []
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        for found in record.containers:
            if found.name != container.name:
                continue
            exited = found.state is ContainerState.EXITED
            asked = exited and asks_to_restart_all(container, found.exit_code)
            (caused if asked else affected).append(ContainerToReset(found.id, found.name, kill_first=not exited))
    return PodActions(
        kill_pod=sandbox.changed,
        create_sandbox=sandbox.changed,
        sandbox_id=sandbox.sandbox_id,
        attempt=sandbox.attempt,
        containers_to_reset=(*affected, *caused),
    )


# The sandbox must be replaced.


def _begin_anew(pod: Pod, newest: Newest, sandbox: SandboxChange) -> PodActions:
    """Stop everything; make a new sandbox and begin again, unless the pod has done all it ever will."""
    remaining = _unfinished(pod, newest)
    all_succeeded = bool(pod.spec.containers) and not remaining
    if all_succeeded or _never_runs_again(pod, newest, sandbox):
        return PodActions(kill_pod=True, sandbox_id=sandbox.sandbox_id, attempt=sandbox.attempt)
    has_init_containers = bool(pod.spec.init_containers)
    return PodActions(
        kill_pod=True,
        create_sandbox=True,
        sandbox_id=sandbox.sandbox_id,
        attempt=sandbox.attempt,
        init_containers_to_start=(0,) if has_init_containers else (),
        containers_to_start=() if has_init_containers else remaining,
    )


def _never_runs_again(pod: Pod, newest: Newest, sandbox: SandboxChange) -> bool:
    """Whether a pod that is run once has had its run. Without any container it has not: only its sandbox failed."""
    return pod.spec.restart_policy == RestartPolicy.NEVER and sandbox.attempt != 0 and bool(newest)


def is_stranded(pod: Pod, record: PodRecord) -> bool:
    """Whether a pod that is run once lost its sandbox before all its containers had begun: now none ever will.

    No container of it has failed, so nothing else would end it: in the reference such a pod is pending for ever.
    """
    sandbox = sandbox_change(bool(pod.spec.host_network), record.sandboxes)
    newest = {found.name: found for found in reversed(record.containers)}
    if not sandbox.changed or not _never_runs_again(pod, newest, sandbox):
        return False
    regular = (newest.get(container.name) for container in pod.spec.containers)
    return any(found is None or found.state is ContainerState.CREATED for found in regular)


def _unfinished(pod: Pod, newest: Newest) -> tuple[int, ...]:
    """The app containers that a new sandbox would have to run."""
    return tuple(
        index
        for index, container in enumerate(pod.spec.containers)
        if not (runs_until_success(container, pod.spec) and _succeeded(newest.get(container.name)))
    )


def _succeeded(found: ContainerRecord | None) -> bool:
    return found is not None and found.state is ContainerState.EXITED and found.exit_code == 0


# The sandbox serves on.


def _go_on(pod: Pod, newest: Newest, sandbox: SandboxChange, probes: ProbeResults) -> PodActions:
    """Bring the pod one step further in the sandbox it has."""
    # Ephemeral containers may start before initialization is done, and never start twice.
    ephemeral = tuple(
        index for index, container in enumerate(pod.spec.ephemeral_containers or ()) if container.name not in newest
    )
    init = init_actions(pod, newest, probes)
    if init.initialization is not Initialization.DONE:
        return PodActions(
            kill_pod=init.initialization is Initialization.FAILED,
            sandbox_id=sandbox.sandbox_id,
            attempt=sandbox.attempt,
            init_containers_to_start=init.to_start,
            ephemeral_containers_to_start=ephemeral,
            containers_to_kill=init.to_kill,
        )
    app = _app_actions(pod, newest, probes)
    return PodActions(
        kill_pod=app.all_done,
        sandbox_id=sandbox.sandbox_id,
        attempt=sandbox.attempt,
        # Sidecars do not keep a pod alive.
        init_containers_to_start=() if app.all_done else init.to_start,
        containers_to_start=app.to_start,
        ephemeral_containers_to_start=ephemeral,
        containers_to_kill=(*init.to_kill, *app.to_kill),
    )


@dataclass(frozen=True, slots=True)
class _AppActions:
    to_start: tuple[int, ...]
    to_kill: tuple[ContainerToKill, ...]
    all_done: bool  # none is kept and none is started


def _app_actions(pod: Pod, newest: Newest, probes: ProbeResults) -> _AppActions:
    """Keep, start, replace or leave alone each app container."""
    to_start: list[int] = []
    to_kill: list[ContainerToKill] = []
    kept = 0
    for index, container in enumerate(pod.spec.containers):
        found = newest.get(container.name)
        if found is None or found.state is not ContainerState.RUNNING:
            if container_should_restart(container, pod, found):
                to_start.append(index)
                if found is not None and found.state is ContainerState.UNKNOWN:
                    to_kill.append(_kill_unknown(found))
            continue
        trouble = _trouble(container, found, probes)
        if trouble is None:
            kept += 1
            continue
        # A changed spec must be run, whatever the restart policy says of failures.
        restarts = trouble.reason is KillReason.SPEC_CHANGED or restarts_on_failure(container, pod.spec)
        if restarts:
            to_start.append(index)
        message = f"{trouble.message}, will be restarted" if restarts else trouble.message
        to_kill.append(ContainerToKill(found.id, found.name, message, trouble.reason))
    return _AppActions(tuple(to_start), tuple(to_kill), all_done=not kept and not to_start)


@dataclass(frozen=True, slots=True)
class _Trouble:
    message: str
    reason: KillReason


def _trouble(container: Container, found: ContainerRecord, probes: ProbeResults) -> _Trouble | None:
    """Why a running container cannot be kept."""
    if found.spec_hash != container_hash(container):
        return _Trouble(f"Container {container.name} definition changed", KillReason.SPEC_CHANGED)
    if probes.liveness.get(found.id) is ProbeResult.FAILURE:
        return _Trouble(f"Container {container.name} failed liveness probe", KillReason.LIVENESS_PROBE)
    if probes.startup.get(found.id) is ProbeResult.FAILURE:
        return _Trouble(f"Container {container.name} failed startup probe", KillReason.STARTUP_PROBE)
    return None


def _kill_unknown(found: ContainerRecord) -> ContainerToKill:
    """Kill what may or may not run before it is started anew: there must never be two of it."""
    message = f'Container is in "{found.state}" state, try killing it before restart'
    return ContainerToKill(found.id, found.name, message, KillReason.UNKNOWN)
