"""Plan executor: execute the plan of a pod step by step on the runtime.

    kill_pod, or containers_to_kill and containers_to_reset
    -> old init containers removed -> create_sandbox -> ephemeral -> init -> app containers

Input: a pod, its record, a plan (`rules.plan`), and its volumes and cgroup. Output: calls of the runtime. All errors
are raised at the end as one exception group, so that the failure of one container does not prevent others from
starting. The reason of a failed start is kept for the container's status until a start succeeds (`failures_of`) or
the container is observed running (`clear_failures`).

Containers of one pod start one after the other. A cancelled execution completes the current step and starts no other.
An exited container is removed only if the plan or `rules.container_gc` requires it, because its exit code is lost with
it. Kubelet counterpart: `SyncPod` in pkg/kubelet/kuberuntime/kuberuntime_manager.go.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from podkeeper.engine.events import EventFunction
from podkeeper.engine.observer import Observer
from podkeeper.engine.starter import ContainerStarter
from podkeeper.engine.stopper import PodStopper
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.pods import AnyContainer
from podkeeper.model.runtime import PodRecord, RecordState
from podkeeper.model.runtime_calls import Dns, SandboxConfig
from podkeeper.ports.runtime import Runtime
from podkeeper.rules.container.events import EventReason
from podkeeper.rules.container.grace import KillReason
from podkeeper.rules.container.restart import is_sidecar
from podkeeper.rules.container_gc import Garbage, all_garbage_of, all_init_containers, garbage_of, old_init_containers
from podkeeper.rules.dns import PodDns
from podkeeper.rules.images.keyring import PullSecret
from podkeeper.rules.naming import format_pod, hostname_of, pod_log_directory
from podkeeper.rules.plan.actions import ContainerToKill, PodActions
from podkeeper.rules.plan.result import NotStarted, raise_all
from podkeeper.rules.plan.sandbox_config import SandboxContext
from podkeeper.rules.status.containers import StartFailure

log = logging.getLogger(__name__)

# The kubelet's reasonCache has a limit as well (1000 containers). The pod whose entry is dropped shows its containers
# as ContainerCreating until the next failed start.
MAX_PODS_WITH_FAILURES: Final = 20_000

_NONE: Final[Mapping[str, StartFailure]] = {}


class PlanExecutor:
    def __init__(
        self,
        *,
        runtime: Runtime,
        starter: ContainerStarter,
        stopper: PodStopper,
        record_event: EventFunction,
        host_ips: Callable[[], tuple[str, ...]],
        log_root: str = "/var/log/pods",
        cluster_domain: str = "cluster.local",
        lookup: Callable[[Pod], Awaitable[PodDns]] | None = None,
        observer: Observer | None = None,
        may_start: Callable[[PodUID], bool] = lambda uid: True,
        max_pods_with_failures: int = MAX_PODS_WITH_FAILURES,
    ) -> None:
        """`lookup` returns the DNS settings of a pod. None: those of the runtime.

        If `may_start` returns False, no further sandbox or container starts, and the plan ends without an error.
        """
        self._runtime = runtime
        self._starter = starter
        self._stopper = stopper
        self._record_event = record_event
        self._host_ips = host_ips
        self._log_root = log_root
        self._cluster_domain = cluster_domain
        self._lookup = lookup
        self._observer = observer or Observer()
        self._may_start = may_start
        self._max_pods_with_failures = max_pods_with_failures
        # Replace a pod's mapping if and only if it changes, so that callers can compare by identity.
        self._failures: OrderedDict[PodUID, Mapping[str, StartFailure]] = OrderedDict()

    async def execute(
        self,
        pod: Pod,
        record: PodRecord,
        actions: PodActions,
        *,
        mounts: Mapping[str, str],
        cgroup_parent: str,
        pull_secrets: Sequence[PullSecret],
        on_sandbox: Callable[[PodRecord], None] | None = None,
    ) -> None:
        """Execute as much of a plan as possible, then raise the errors. `mounts` are host paths by volume name.

        `on_sandbox` is called after a sandbox was created, with a record that shows it, before any image is pulled.
        """
        # A failed stop prevents all starts, because the old container may still run and two containers of one name must
        # never run at once. A failed start has no such effect on the other containers.
        errors = await self._stop(pod, record, actions)
        raise_all(f"cannot stop or remove containers of pod {format_pod(pod)}", errors)
        if actions.kill_pod and not actions.create_sandbox:
            return  # the pod has ended
        if not self._may_start(PodUID(pod.metadata.uid or "")):
            return
        sandbox = SandboxContext(
            sandbox_id=actions.sandbox_id,
            # A pod with host network has no address of its own in the runtime.
            pod_ips=record.ips or (self._host_ips() if pod.spec.host_network else ()),
            volumes=mounts,
            pull_secrets=pull_secrets,
        )
        if actions.create_sandbox:
            sandbox = await self._create_sandbox(pod, actions.attempt, cgroup_parent, sandbox, on_sandbox)
        errors = await self._start(pod, record, actions, sandbox)
        raise_all(f"cannot start all containers of pod {format_pod(pod)}", errors)

    async def kill_pod(self, pod: Pod, record: PodRecord, grace_seconds: int | None) -> None:
        """Stop all containers and sandboxes of a pod. `grace_seconds` None: the grace periods of the spec."""
        errors = await self._stopper.kill_pod(pod, record, grace_seconds)
        raise_all(f"cannot kill pod {format_pod(pod)}", errors)

    async def kill_running_pod(self, record: PodRecord, grace_seconds: int) -> None:
        """Stop all containers and sandboxes of a pod without a spec."""
        errors = await self._stopper.kill_pod(None, record, grace_seconds)
        raise_all(f"cannot kill pod {record.namespace}/{record.name} ({record.uid})", errors)

    async def collect_dead_containers(
        self, record: PodRecord, *, container_id: str = "", everything: bool = False
    ) -> None:
        """Remove all exited containers but the last of each name, or all dead containers and sandboxes.

        With `container_id`, consider only containers with the same name.
        """
        garbage = all_garbage_of(record) if everything else garbage_of(record, like=container_id)
        await self._remove(garbage, record.uid)

    async def remove_containers(self, record: PodRecord) -> None:
        """Remove all dead containers and sandboxes of a pod."""
        await self.collect_dead_containers(record, everything=True)

    def failures_of(self, uid: PodUID) -> Mapping[str, StartFailure]:
        """Return the start failures of a pod's containers by name. A new mapping after each change."""
        return self._failures.get(uid, _NONE)

    def clear_failures(self, record: PodRecord) -> None:
        """Drop the start failures of running containers."""
        # A start whose answer was lost counts as failed, but the container may run. No other start follows then, so
        # the failure would stay and hide the container's next exit in the pod's status.
        uid = PodUID(record.uid)
        for found in record.containers if uid in self._failures else ():
            if found.state is RecordState.RUNNING:
                self._keep(uid, found.name, None)

    def forget(self, uid: PodUID) -> None:
        self._failures.pop(uid, None)
        self._stopper.forget(uid)

    # Steps.

    async def _stop(self, pod: Pod, record: PodRecord, actions: PodActions) -> tuple[TryLater, ...]:
        """Stop and remove containers and sandboxes according to the plan. Return the errors."""
        if actions.create_sandbox and actions.sandbox_id:
            text = "Pod sandbox changed, it will be killed and re-created."
            self._record_about(EventType.NORMAL, EventReason.SANDBOX_CHANGED, text, pod)
        if actions.kill_pod:
            errors = await self._stopper.kill_pod(pod, record, None)
            if errors or not actions.create_sandbox:
                return errors
            # Remove all init containers before the new sandbox is created. Otherwise an exit in the old sandbox counts
            # as progress, and that init container and those before it do not run again.
            return await self._remove(Garbage(all_init_containers(pod, record)), pod.metadata.uid or "")
        errors = await self._stopper.kill_containers(pod, record, actions.containers_to_kill)
        # Not after a failed stop: the container to remove may still run.
        errors = errors or await self._reset(pod, record, actions)
        if not errors:
            # Errors are ignored on purpose: an old attempt does no harm in the same sandbox, and the next sync tries
            # again.
            await self._remove(Garbage(old_init_containers(pod, record)), pod.metadata.uid or "")
        return errors

    async def _reset(self, pod: Pod, record: PodRecord, actions: PodActions) -> tuple[TryLater, ...]:
        """Remove the containers that start over, in the plan's order. Running ones have no grace period."""
        # The container whose exit requested the restart is removed last. After a crash in between, its exit still
        # requests the restart of the others.
        for reset in actions.containers_to_reset:
            if reset.kill_first:
                kill = ContainerToKill(reset.id, reset.name, "killing", KillReason.RESTART_ALL_CONTAINERS)
                errors = await self._stopper.kill_containers(pod, record, (kill,), 0)
                if errors:
                    return errors
            try:
                await self._runtime.remove_container(reset.id)
            except TryLater as error:
                return (error,)
        return ()

    async def _remove(self, garbage: Garbage, uid: str) -> tuple[TryLater, ...]:
        """Remove all containers and sandboxes that can be removed. Returns the errors of the others."""
        errors: list[TryLater] = []
        for remove, ids in (
            (self._runtime.remove_container, garbage.container_ids),
            (self._runtime.remove_sandbox, garbage.sandbox_ids),
        ):
            for each in ids:
                try:
                    await remove(each)
                except TryLater as error:
                    log.warning("leftover %s of pod %s not removed, will retry: %s", each, uid, error)
                    errors.append(error)
        return tuple(errors)

    async def _create_sandbox(
        self,
        pod: Pod,
        attempt: int,
        cgroup_parent: str,
        sandbox: SandboxContext,
        on_sandbox: Callable[[PodRecord], None] | None,
    ) -> SandboxContext:
        """Create a sandbox and read its addresses."""
        self._observer.sandbox_starting()
        try:
            config = SandboxConfig(
                pod=pod,
                attempt=attempt,
                hostname=hostname_of(pod, self._cluster_domain),
                log_directory=pod_log_directory(self._log_root, pod),
                cgroup_parent=cgroup_parent,
                # Read for each new sandbox, because the resolv.conf of the node may have changed.
                dns=await self._dns(pod),
            )
            sandbox_id = await self._runtime.run_sandbox(config)
        except TryLater as error:
            self._observer.sandbox_failed()
            message = f"Failed to create pod sandbox: {error}"
            self._record_about(EventType.WARNING, EventReason.SANDBOX_FAILED, message, pod)
            raise
        log.info("created sandbox %s of pod %s, attempt %s", sandbox_id, format_pod(pod), attempt)
        try:
            # Query the runtime and not the cache: the addresses of the new sandbox are needed now, for variables and
            # hooks.
            seen = await self._runtime.pod_record(PodUID(pod.metadata.uid or ""))
        except TryLater as error:
            text = f"Unable to get pod sandbox status: {error}"
            self._record_about(EventType.WARNING, EventReason.SANDBOX_STATUS_FAILED, text, pod)
            raise
        if on_sandbox is not None:
            on_sandbox(seen)
        # Of this sandbox only. The record may still have an older sandbox with other addresses.
        pod_ips = sandbox.pod_ips if pod.spec.host_network else _addresses(seen, sandbox_id)
        return SandboxContext(
            sandbox_id=sandbox_id, pod_ips=pod_ips, volumes=sandbox.volumes, pull_secrets=sandbox.pull_secrets
        )

    async def _dns(self, pod: Pod) -> Dns | None:
        """Return the DNS settings of a pod, and record events about problems with them."""
        if self._lookup is None:
            return None
        found = await self._lookup(pod)
        for event in found.events:
            self._record_event(event, pod)
        return found.dns

    async def _start(
        self, pod: Pod, record: PodRecord, actions: PodActions, sandbox: SandboxContext
    ) -> tuple[TryLater, ...]:
        """Start containers and return the errors. Stop after an init container that failed to start."""
        spec = pod.spec
        errors: list[TryLater] = []
        for kind, containers in (
            # The kubelet's order: a debugger must start even if an init container fails.
            ("ephemeral_container", _chosen(spec.ephemeral_containers, actions.ephemeral_containers_to_start)),
            ("init_container", _chosen(spec.init_containers, actions.init_containers_to_start)),
            ("container", _chosen(spec.containers, actions.containers_to_start)),
        ):
            # One after the other, in the order of the spec: users rely on postStart hooks that delay the next
            # container.
            for container in containers:
                if not self._may_start(PodUID(pod.metadata.uid or "")):
                    return tuple(errors)
                self._observer.container_starting(kind)
                not_started = await self._starter.start(pod, container, record, sandbox)
                self._keep(PodUID(pod.metadata.uid or ""), container.name, not_started)
                if not_started is None:
                    continue
                self._observer.container_start_failed(kind, not_started.failure.reason)
                errors.append(not_started.error(container.name))
                # The next init container must not run before this one has succeeded. A sidecar only needs to be tried.
                if kind == "init_container" and isinstance(container, Container) and not is_sidecar(container):
                    return tuple(errors)
        return tuple(errors)

    def _keep(self, uid: PodUID, name: str, not_started: NotStarted | None) -> None:
        """Store or drop the start failure of a container."""
        before = self._failures.get(uid, _NONE)
        if not_started is not None:
            if before.get(name) != not_started.failure:
                self._failures[uid] = {**before, name: not_started.failure}
            # The least recently failed pod is dropped first.
            self._failures.move_to_end(uid)
            if len(self._failures) > self._max_pods_with_failures:
                self._failures.popitem(last=False)
        elif name in before:
            after = {other: failure for other, failure in before.items() if other != name}
            if after:
                self._failures[uid] = after
            else:
                del self._failures[uid]

    def _record_about(self, event_type: EventType, reason: EventReason, text: str, pod: Pod) -> None:
        self._record_event(PodEvent(event_type, reason, text, pod.metadata.uid or ""), pod)


def _chosen(containers: Sequence[AnyContainer] | None, indexes: Iterable[int]) -> list[AnyContainer]:
    return [(containers or ())[index] for index in indexes]


def _addresses(record: PodRecord, sandbox_id: str) -> tuple[str, ...]:
    """Return the addresses of a sandbox, primary address first."""
    for sandbox in record.sandboxes:
        if sandbox.id == sandbox_id and sandbox.ip:
            return (sandbox.ip, *sandbox.additional_ips)
    return ()
