"""Compute the plan of one sync, so that a pod runs as its spec requires.

In: the pod, its runtime record and the probe results. Out: `PodActions`. A plan is one step. The next sync computes a
new plan from the new state of the runtime. There are three cases, and the first one that applies is used:

* All containers restart: everything that the runtime has of them is removed.
* The sandbox must be replaced: everything stops, and the pod begins with its first container.
* The sandbox stays: ephemeral containers start, and initialization continues (`rules.plan.init`). After that, each app
  container is kept, started, replaced or left alone.

The plan does not consider backoff (`rules.backoff.table`). It does not resize containers in place, so a changed
resource alone has no effect. Kubelet counterpart: `computePodActions` in
pkg/kubelet/kuberuntime/kuberuntime_manager.go.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.messages import ProbeResult
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.rules.container.grace import KillReason
from podkeeper.rules.container.hash import container_hash
from podkeeper.rules.container.restart import (
    RestartPolicy,
    container_should_restart,
    exit_restarts_all,
    restarts_on_failure,
    runs_until_success,
)
from podkeeper.rules.plan.actions import ContainerToKill, ContainerToReset, PodActions
from podkeeper.rules.plan.init import Initialization, Newest, ProbeResults, init_actions
from podkeeper.rules.plan.sandbox import SandboxChange, sandbox_change


def compute_pod_actions(
    pod: Pod,
    record: PodRecord,
    liveness: Mapping[str, ProbeResult],
    startup: Mapping[str, ProbeResult],
    *,
    restart_all_containers: bool = False,
) -> PodActions:
    """Return the plan of one sync. Probe results are keyed by the runtime's container IDs."""
    sandbox = sandbox_change(bool(pod.spec.host_network), record.sandboxes)
    # Before the other cases: the old containers must be removed before any of them is judged alone.
    if restart_all_containers:
        return _reset(pod, record, sandbox)
    # Reversed, because records are newest first and the last one of each name stays in the dict.
    newest = {found.name: found for found in reversed(record.containers)}
    if sandbox.changed:
        return _replace_sandbox(pod, newest, sandbox)
    return _continue(pod, newest, sandbox, ProbeResults(liveness, startup))


# All containers restart.


def _reset(pod: Pod, record: PodRecord, sandbox: SandboxChange) -> PodActions:
    """Remove all containers.

    The containers whose exit triggers the restart come last, so that an interrupted reset is found again.
    """
    causes: list[ContainerToReset] = []
    affected: list[ContainerToReset] = []
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        for found in record.containers:
            if found.name != container.name:
                continue
            exited = found.state is RecordState.EXITED
            is_cause = exited and exit_restarts_all(container, found.exit_code)
            (causes if is_cause else affected).append(ContainerToReset(found.id, found.name, kill_first=not exited))
    return PodActions(
        kill_pod=sandbox.changed,
        create_sandbox=sandbox.changed,
        sandbox_id=sandbox.sandbox_id,
        attempt=sandbox.attempt,
        containers_to_reset=(*affected, *causes),
    )


# The sandbox must be replaced.


def _replace_sandbox(pod: Pod, newest: Newest, sandbox: SandboxChange) -> PodActions:
    """Stop everything. Create a new sandbox and begin again, unless the pod has completed."""
    remaining = _unfinished(pod, newest)
    all_succeeded = bool(pod.spec.containers) and not remaining
    # As in the kubelet: a completed pod whose sandbox died must not start again.
    if all_succeeded or _has_run_once(pod, newest, sandbox):
        return PodActions(kill_pod=True, sandbox_id=sandbox.sandbox_id, attempt=sandbox.attempt)
    has_init_containers = bool(pod.spec.init_containers)
    return PodActions(
        kill_pod=True,
        create_sandbox=True,
        sandbox_id=sandbox.sandbox_id,
        attempt=sandbox.attempt,
        # As in the kubelet, all init containers run again in a new sandbox.
        init_containers_to_start=(0,) if has_init_containers else (),
        containers_to_start=() if has_init_containers else remaining,
    )


def _has_run_once(pod: Pod, newest: Newest, sandbox: SandboxChange) -> bool:
    """Return whether a pod with `restartPolicy: Never` has run. Without containers, only its sandbox failed."""
    return pod.spec.restart_policy == RestartPolicy.NEVER and sandbox.attempt != 0 and bool(newest)


def is_stranded(pod: Pod, record: PodRecord) -> bool:
    """Return whether a pod with `restartPolicy: Never` lost its sandbox before all its containers started.

    No container has failed, so nothing else would terminate it. In the kubelet, such a pod stays Pending forever.
    """
    sandbox = sandbox_change(bool(pod.spec.host_network), record.sandboxes)
    newest = {found.name: found for found in reversed(record.containers)}
    if not sandbox.changed or not _has_run_once(pod, newest, sandbox):
        return False
    regular = (newest.get(container.name) for container in pod.spec.containers)
    return any(found is None or found.state is RecordState.CREATED for found in regular)


def _unfinished(pod: Pod, newest: Newest) -> tuple[int, ...]:
    """Return the app containers that a new sandbox must run."""
    return tuple(
        index
        for index, container in enumerate(pod.spec.containers)
        if not (runs_until_success(container, pod.spec) and _succeeded(newest.get(container.name)))
    )


def _succeeded(found: ContainerRecord | None) -> bool:
    return found is not None and found.state is RecordState.EXITED and found.exit_code == 0


# The sandbox stays.


def _continue(pod: Pod, newest: Newest, sandbox: SandboxChange, probes: ProbeResults) -> PodActions:
    """Plan the next step in the current sandbox."""
    # Ephemeral containers may start before initialization is done, and never restart.
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
        # Sidecars do not keep a pod running.
        init_containers_to_start=() if app.all_done else init.to_start,
        containers_to_start=app.to_start,
        ephemeral_containers_to_start=ephemeral,
        containers_to_kill=(*init.to_kill, *app.to_kill),
    )


@dataclass(frozen=True, slots=True)
class _AppActions:
    to_start: tuple[int, ...]
    to_kill: tuple[ContainerToKill, ...]
    all_done: bool  # no container is kept or started


def _app_actions(pod: Pod, newest: Newest, probes: ProbeResults) -> _AppActions:
    to_start: list[int] = []
    to_kill: list[ContainerToKill] = []
    kept = 0
    for index, container in enumerate(pod.spec.containers):
        found = newest.get(container.name)
        if found is None or found.state is not RecordState.RUNNING:
            if container_should_restart(container, pod, found):
                to_start.append(index)
                if found is not None and found.state is RecordState.UNKNOWN:
                    to_kill.append(_kill_unknown(found))
            continue
        cause = _kill_cause(container, found, probes)
        if cause is None:
            kept += 1
            continue
        # A container with a changed spec always restarts, whatever its restart policy is.
        restarts = cause.reason is KillReason.SPEC_CHANGED or restarts_on_failure(container, pod.spec)
        if restarts:
            to_start.append(index)
        message = f"{cause.message}, will be restarted" if restarts else cause.message
        to_kill.append(ContainerToKill(found.id, found.name, message, cause.reason))
    return _AppActions(tuple(to_start), tuple(to_kill), all_done=not kept and not to_start)


@dataclass(frozen=True, slots=True)
class _KillCause:
    message: str
    reason: KillReason


def _kill_cause(container: Container, found: ContainerRecord, probes: ProbeResults) -> _KillCause | None:
    """Return why a running container must be killed. None if it is kept."""
    # The kubelet's order: a changed spec restarts the container whatever its restart policy is, so it counts first.
    if found.spec_hash != container_hash(container):
        return _KillCause(f"Container {container.name} definition changed", KillReason.SPEC_CHANGED)
    if probes.liveness.get(found.id) is ProbeResult.FAILURE:
        return _KillCause(f"Container {container.name} failed liveness probe", KillReason.LIVENESS_PROBE)
    if probes.startup.get(found.id) is ProbeResult.FAILURE:
        return _KillCause(f"Container {container.name} failed startup probe", KillReason.STARTUP_PROBE)
    return None


def _kill_unknown(found: ContainerRecord) -> ContainerToKill:
    """Kill a container that may still run before its restart, because there must never be two."""
    message = f'Container is in "{found.state}" state, try killing it before restart'
    return ContainerToKill(found.id, found.name, message, KillReason.UNKNOWN)
