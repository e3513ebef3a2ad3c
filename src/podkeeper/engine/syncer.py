"""Pod syncer: the four functions that a pod worker calls.

    sync_pod              status -> network? -> mirror, cgroup, volumes, probes -> execute the plan
    sync_terminating_pod  status -> stop the containers -> inspect: does any still run? -> final status
    sync_terminating_runtime_pod                 stop a pod that only the runtime has
    sync_terminated_pod   final status -> volumes -> cgroup -> no more updates

Input: a pod and a record of it that is newer than its last sync. Output: calls of other modules, and an error if the
sync must be repeated. Every step can be repeated, so after a crash between two steps the function runs again from its
start. The decisions are in `rules.status.pod` (status) and `rules.plan` (plan).

A cancelled sync ends at its next await, so nothing starts after termination was observed. The module that made a
runtime call completes it. If nothing has changed since a sync that had no work, the next sync ends after a few
comparisons. Kubelet counterparts: `SyncPod`, `SyncTerminatingPod`, `SyncTerminatingRuntimePod` and `SyncTerminatedPod`
in pkg/kubelet/kubelet.go.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from msgspec.structs import replace

from podkeeper.engine.cache import PodCache
from podkeeper.engine.events import EventFunction
from podkeeper.engine.executor import PlanExecutor
from podkeeper.engine.mirror_client import MirrorClient
from podkeeper.engine.observer import Observer
from podkeeper.engine.pod_setup import PodSetup, Prepared
from podkeeper.engine.probes import ProbeManager
from podkeeper.engine.pull_secrets import PullSecrets
from podkeeper.engine.runtime_state import RuntimeState
from podkeeper.engine.static_conflicts import StaticConflicts
from podkeeper.engine.status import StatusManager
from podkeeper.model.errors import AgentError, BadInput, GiveUp, NetworkNotReady, TryLater
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import CONFIG_FIRST_SEEN_ANNOTATION, EventType, PodEvent, PodUID
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime import PodRecord, RecordState
from podkeeper.model.times import parse_time
from podkeeper.ports.clock import Clock
from podkeeper.rules.container.restart import ALL_CONTAINERS_RESTARTING
from podkeeper.rules.evict import Eviction, deadline_eviction, evicted_status
from podkeeper.rules.plan import PodActions, compute_pod_actions, is_stranded
from podkeeper.rules.probe.flags import ProbeView, readiness_wanted_now
from podkeeper.rules.probe.worker import probes_of
from podkeeper.rules.static.mirror import is_static_pod
from podkeeper.rules.status.conditions import TRUE, find_condition
from podkeeper.rules.status.phase import Phase, is_terminal
from podkeeper.rules.status.pod import NodeView, PodView, api_pod_status
from podkeeper.rules.worker.updates import StatusFunction, UpdateType

log = logging.getLogger(__name__)

# As in the kubelet: without a spec there is no grace period, and 1 s is the shortest one.
RUNTIME_POD_GRACE_SECONDS: Final = 1

NETWORK_NOT_READY = "NetworkNotReady"
FAILED_KILL = "FailedKillPod"
SANDBOX_LOST = "SandboxLost"


class _SyncStep(Enum):
    """How one execution of `_sync` ended."""

    DONE = auto()
    POD_ENDED = auto()  # the pod has reached a terminal phase
    CONTAINERS_REMOVED = auto()  # all containers were removed and must start again


@dataclass(slots=True)
class _SyncWithoutWork:
    """The inputs of the last sync that had nothing to do. Equal inputs lead to the same result."""

    pod: Pod
    mirror: Pod | None
    record: PodRecord
    published: PodStatus
    probes: ProbeView
    node: NodeView


class PodSyncer:
    def __init__(
        self,
        *,
        statuses: StatusManager,
        probes: ProbeManager,
        executor: PlanExecutor,
        pod_setup: PodSetup,
        mirrors: MirrorClient,
        pull_secrets: PullSecrets,
        cache: PodCache,
        inspection_clock: Callable[[], float],
        node: Callable[[], NodeView],
        runtime_state: RuntimeState,
        record_event: EventFunction,
        clock: Clock,
        static_conflicts: StaticConflicts | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._statuses = statuses
        self._probes = probes
        self._executor = executor
        self._pod_setup = pod_setup
        self._mirrors = mirrors
        self._pull_secrets = pull_secrets
        self._cache = cache
        self._inspection_clock = inspection_clock
        self._node = node
        self._runtime_state = runtime_state
        self._record_event = record_event
        self._clock = clock
        self._static_conflicts = static_conflicts
        self._observer = observer or Observer()
        self._without_work: dict[PodUID, _SyncWithoutWork] = {}
        self._starting_over: set[PodUID] = set()  # pods whose containers are from a former run

    # The four functions.

    async def sync_pod(self, update_type: UpdateType, pod: Pod, mirror_pod: Pod | None, record: PodRecord) -> bool:
        """Bring a pod closer to its spec. Return True if it has reached a terminal phase."""
        # Pods are synced every minute, and most of these syncs find nothing to do.
        if self._is_unchanged(pod, mirror_pod, record):
            return False
        # Before the first await: if this sync fails or is cancelled, the next one must not be skipped.
        self._without_work.pop(uid_of(pod), None)
        if update_type is UpdateType.CREATE:
            self._measure(pod, self._observer.first_sync_started)
        if uid_of(pod) in self._starting_over:
            # First of all: the exits of the former run would otherwise end the new run at once.
            record = await self._without_former_containers(pod, record)
        try:
            ended = await self._sync(pod, mirror_pod, record)
            if ended is _SyncStep.CONTAINERS_REMOVED:  # the removals cause no sync, so continue at once
                ended = await self._sync(pod, mirror_pod, await self._inspect(uid_of(pod)))
        except GiveUp as error:
            log.warning("pod %s can never run on this node: %s", _name(pod), error)
            status = self._status(pod, record, ended=False)
            eviction = Eviction(error.reason, str(error))
            self._statuses.set_pod_status(pod, evicted_status(pod, status, eviction, self._clock.now()))
            return True
        return ended is _SyncStep.POD_ENDED

    async def sync_terminating_pod(
        self, pod: Pod, record: PodRecord, grace_seconds: int | None, status_function: StatusFunction | None
    ) -> None:
        """Stop a pod's containers. Return when none of them runs and their exits are in the status."""
        uid = uid_of(pod)
        self._without_work.pop(uid, None)
        status = self._status(pod, record, ended=False)
        self._statuses.set_pod_status(pod, status if status_function is None else status_function(status))
        # A failed liveness or startup probe would restart a container of a terminating pod. Readiness probes continue
        # until the containers have stopped, as in the kubelet, because the pod may still serve requests.
        self._probes.stop_liveness_and_startup(pod)
        try:
            await self._executor.kill_pod(pod, record, grace_seconds)
        except (AgentError, ExceptionGroup) as error:
            self._warn(FAILED_KILL, f"error killing pod: {_text_of(error)}", pod)
            raise
        # Only after the kill: until then, readiness and the probes of sidecars still count.
        self._probes.remove_pod(uid)
        # Inspect again instead of trusting the stop calls. The exit codes for the last status are in the runtime only.
        stopped = await self._inspect(uid)
        if running := sorted(each.name for each in stopped.containers if each.state is RecordState.RUNNING):
            raise TryLater(f"cannot stop pod {_name(pod)}: containers still running: {', '.join(running)}")
        # A stopped sandbox has no addresses, but the pod's last status keeps them.
        stopped = replace(stopped, ips=record.ips)
        self._statuses.set_pod_status(pod, self._status(pod, stopped, ended=True))

    async def sync_terminating_runtime_pod(self, running_pod: PodRecord) -> None:
        """Stop the containers of a pod that only the runtime has. It has no status."""
        try:
            await self._executor.kill_running_pod(running_pod, RUNTIME_POD_GRACE_SECONDS)
        except (AgentError, ExceptionGroup) as error:
            self._warn(FAILED_KILL, f"error killing pod: {_text_of(error)}", running_pod)
            raise
        # Nothing else follows this pod, so the cache would show it as running until the next relist.
        self._request_inspection(PodUID(running_pod.uid))

    async def sync_terminated_pod(self, pod: Pod, record: PodRecord) -> None:
        """Release the resources of a stopped pod. At the end, report it as terminated."""
        uid = uid_of(pod)
        self._without_work.pop(uid, None)
        self._statuses.set_pod_status(pod, self._status(pod, record, ended=True))
        # The kubelet's order. Only after all of this is released does `terminate_pod` allow the deletion of the API
        # object. Otherwise a controller could start a replacement while the volumes are still in use.
        await self._pod_setup.unmount(uid)
        await self._pod_setup.remove_cgroup(uid)
        self._statuses.terminate_pod(pod)
        self._executor.forget(uid)
        self._starting_over.discard(uid)

    def start_over(self, uid: PodUID) -> None:
        """Drop the status of an ended pod that runs again. Its next sync removes the dead containers first."""
        self._statuses.start_over(uid)
        self._starting_over.add(uid)

    async def _inspect(self, uid: PodUID) -> PodRecord:
        """Return the record of an inspection that begins after this call."""
        return await self._cache.get_newer_than(uid, self._inspection_clock())

    # Steps of a sync.

    async def _without_former_containers(self, pod: Pod, record: PodRecord) -> PodRecord:
        """Remove the containers of a pod's former run. Raises TryLater if a dead container remains."""
        uid = uid_of(pod)
        await self._executor.collect_dead_containers(record, everything=True)
        left = await self._inspect(uid)
        if dead := sorted(each.name for each in left.containers if each.state is not RecordState.RUNNING):
            raise TryLater(
                f"cannot start pod {_name(pod)} again: containers of its former run still exist: {', '.join(dead)}"
            )
        self._starting_over.discard(uid)
        return left

    async def _sync(self, pod: Pod, mirror_pod: Pod | None, record: PodRecord) -> _SyncStep:
        """Publish the status, prepare what the pod needs, compute the plan, and execute it."""
        uid = uid_of(pod)
        # Before the status is computed, so that an old start failure does not hide that the container runs.
        self._executor.clear_failures(record)
        before = self._statuses.get_pod_status(uid)
        if not self._probes.view(uid).workers and _runs_probed(pod, record):
            # After a restart of the agent. Without its probes, a running container would count as ready.
            self._probes.add_pod(pod)
        # The inputs of the status. Read them here, not at the end, because they may change during the awaits below.
        # The next sync must then not treat the published status as the latest one.
        probes, node = self._probes.view(uid), self._node()
        # Publish before the steps below: each of them may fail or wait, and the status shows why the pod waits.
        status = self._publish(pod, record)
        if is_terminal(status.phase):
            return _SyncStep.POD_ENDED
        if is_stranded(pod, record):
            text = "its sandbox was lost before all its containers had started, and its containers must not restart"
            raise GiveUp(f"cannot continue pod {_name(pod)}: {text}", SANDBOX_LOST)
        # First, as in the kubelet: no volume is mounted and no cgroup created for a pod that cannot start.
        self._require_network(pod)
        if is_static_pod(pod):
            # Before the volumes, so that the API shows the static pod even if they cannot be mounted. This only queues
            # the mirror pod, because a static pod must not wait for the API.
            await self._mirror(pod, mirror_pod)
        # Before the plan: the sandbox is created in the pod's cgroup, and containers need the paths of the volumes.
        pod_setup = await self._pod_setup.prepare(pod)
        self._probes.add_pod(pod)
        # From the status, because only the status has the condition of a container restart rule that has matched.
        restarts_all = _is_true(status, ALL_CONTAINERS_RESTARTING)
        actions = compute_pod_actions(
            pod, record, self._probes.liveness(uid), self._probes.startup(uid), restart_all_containers=restarts_all
        )
        if not _has_work(actions):
            published = self._statuses.get_pod_status(uid)
            if published is not None and published is before and (mirror_pod is not None or not is_static_pod(pod)):
                self._without_work[uid] = _SyncWithoutWork(pod, mirror_pod, record, published, probes, node)
            return _SyncStep.DONE
        if actions.create_sandbox and self._static_conflicts is not None and is_static_pod(pod):
            # Before the sandbox: both versions would otherwise use the same ports (k/k 112814).
            await self._static_conflicts.resolve(pod)
        await self._execute(pod, _with_ips_of(record, status), actions, pod_setup)
        return _SyncStep.CONTAINERS_REMOVED if restarts_all and actions.containers_to_reset else _SyncStep.DONE

    async def _execute(self, pod: Pod, record: PodRecord, actions: PodActions, pod_setup: Prepared) -> None:
        uid, newest = uid_of(pod), record

        def on_sandbox(with_sandbox: PodRecord) -> None:
            """Publish the addresses of a new sandbox before images are pulled."""
            nonlocal newest
            newest = with_sandbox
            self._publish(pod, with_sandbox)

        failures = self._executor.failures_of(uid)
        # Only here, because a sync without work must not read Secrets every minute.
        secrets = await self._pull_secrets.pull_secrets(pod) if pod.spec.image_pull_secrets else ()
        try:
            await self._executor.execute(
                pod,
                record,
                actions,
                mounts=pod_setup.host_paths,
                cgroup_parent=pod_setup.cgroup_parent,
                pull_secrets=secrets,
                on_sandbox=on_sandbox,
            )
        except (AgentError, ExceptionGroup):
            if self._executor.failures_of(uid) is not failures:
                # Publish now, not with the next sync, why a container waits.
                self._publish(pod, newest)
            raise
        finally:
            self._request_inspection(uid)

    def _request_inspection(self, uid: PodUID) -> None:
        """Request an inspection after the end of this sync. The next sync would find an earlier one too old."""
        # Not at once: the worker takes the time of this sync after it returns.
        asyncio.get_running_loop().call_soon(self._cache.request, uid)

    def _is_unchanged(self, pod: Pod, mirror_pod: Pod | None, record: PodRecord) -> bool:
        """Return whether all inputs are as in the last sync that had nothing to do."""
        uid = uid_of(pod)
        last = self._without_work.get(uid)
        if (
            last is None
            or last.pod is not pod
            or last.mirror is not mirror_pod
            or last.published is not self._statuses.get_pod_status(uid)
            or last.probes is not self._probes.view(uid)
            or last.record != record
            or last.node != self._node()
            or self._executor.failures_of(uid)
            # These depend on the time or on the node, not only on the compared inputs.
            or self._eviction(pod, last.published) is not None
            or self._network_error_of(pod) is not None
        ):
            return False
        last.record = record  # equal, and also referenced by the cache, so the old one can be freed
        return True

    def _require_network(self, pod: Pod) -> None:
        error = self._network_error_of(pod)
        if error is not None:
            text = f"network is not ready: {error}"
            self._warn(NETWORK_NOT_READY, text, pod)
            raise NetworkNotReady(f"cannot start pod {_name(pod)}: {text}")

    def _network_error_of(self, pod: Pod) -> str | None:
        """Return the network error that affects a pod. Pods with host network need no pod network."""
        return None if pod.spec.host_network else self._runtime_state.network_error

    async def _mirror(self, pod: Pod, mirror_pod: Pod | None) -> None:
        try:
            await self._mirrors.ensure(pod, mirror_pod)
        except AgentError as error:
            # A static pod may be the API server itself, so it must start without its mirror pod.
            log.warning("cannot update the mirror of pod %s, the sync continues: %s", _name(pod), error)

    # Status.

    def _publish(self, pod: Pod, record: PodRecord) -> PodStatus:
        """Publish the status of a pod that has not ended. Immediately probe containers that only wait for readiness."""
        uid = uid_of(pod)
        before = self._statuses.get_pod_status(uid)
        status = self._status(pod, record, ended=False)
        if status.phase == Phase.RUNNING and (before is None or before.phase == Phase.PENDING):
            self._measure(pod, self._observer.pod_running)
        self._statuses.set_pod_status(pod, status)
        # As in the kubelet, a container that only waits for its readiness probe does not wait for the next period.
        if not is_terminal(status.phase) and (wanted := readiness_wanted_now(pod, status, self._probes.view(uid))):
            self._probes.wake(uid, wanted)
        return status

    def _status(self, pod: Pod, record: PodRecord, *, ended: bool) -> PodStatus:
        uid = uid_of(pod)
        published = self._statuses.get_pod_status(uid)
        eviction = self._eviction(pod, published)
        if eviction is not None and (published is None or published.reason != eviction.reason):
            self._record_event(PodEvent(EventType.NORMAL, eviction.reason, eviction.message, uid), pod)
        view = PodView(
            record=record,
            probes=self._probes.view(uid),
            published=published,
            # No container of an ended pod starts again, and a failed start must not hide its exit.
            start_failures={} if ended else self._executor.failures_of(uid),
            eviction=eviction,
            pod_is_terminal=ended,
            terminal_phase_is_final=True,
            keeps_init_exits=True,
        )
        return api_pod_status(pod, view, self._node())

    def _eviction(self, pod: Pod, published: PodStatus | None) -> Eviction | None:
        """Return the reason why this pod must end, if its active deadline has passed."""
        if pod.spec.active_deadline_seconds is None:
            return None
        return deadline_eviction(pod, published, self._clock.now())

    def _measure(self, pod: Pod, observe: Callable[[float], None]) -> None:
        """Report the time since the agent first saw a pod, if it is known."""
        try:
            seen = parse_time((pod.metadata.annotations or {}).get(CONFIG_FIRST_SEEN_ANNOTATION, ""))
        except BadInput:
            return
        observe((self._clock.now() - seen).total_seconds())

    def _warn(self, reason: str, message: str, about: Pod | PodRecord) -> None:
        uid = about.uid if isinstance(about, PodRecord) else uid_of(about)
        self._record_event(PodEvent(EventType.WARNING, reason, message, uid), about)


def _has_work(actions: PodActions) -> bool:
    return bool(
        actions.kill_pod
        or actions.create_sandbox
        or actions.init_containers_to_start
        or actions.containers_to_start
        or actions.ephemeral_containers_to_start
        or actions.containers_to_kill
        or actions.containers_to_reset
    )


def _runs_probed(pod: Pod, record: PodRecord) -> bool:
    """Return whether a container runs in a pod with probes."""
    return any(each.state is RecordState.RUNNING for each in record.containers) and any(probes_of(pod))


def _with_ips_of(record: PodRecord, status: PodStatus) -> PodRecord:
    """Return the record with the addresses of the status. A pod with host network has those of the node."""
    ips = tuple(each.ip for each in status.pod_ips or ())
    return record if ips == record.ips else replace(record, ips=ips)


def _is_true(status: PodStatus, condition: str) -> bool:
    found = find_condition(status.conditions, condition)
    return found is not None and found.status == TRUE


def _text_of(error: Exception) -> str:
    """Join the messages of all errors in a group."""
    return "; ".join(map(_text_of, error.exceptions)) if isinstance(error, ExceptionGroup) else str(error)


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}"
