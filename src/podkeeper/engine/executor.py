"""The plan executor: does what a plan says, step by step, over the runtime port.

    kill_pod, or containers_to_kill and containers_to_reset
    -> old init containers removed -> create_sandbox -> ephemeral -> init -> app containers

In: a pod, its record, a plan (`rules.plan`), and what the pod stands on. Out: a pod one step nearer to its spec; then
everything that went wrong, as one exception group, so that one container's failure keeps no other from starting. Why
a container could not start is kept for its status until a start succeeds (`failures_of`) or the container is seen
running (`clear_failures`).

Containers of one pod start one after the other, in the order of the spec: people rely on a postStart hook that holds
up the next container. A cancelled execution ends with the step that is under way and begins no other. Nothing that
exited is removed unless the plan or `rules.collect` says so: with a container goes its exit code. The Go ancestor is
`SyncPod` in pkg/kubelet/kuberuntime/kuberuntime_manager.go.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from podkeeper.engine.observer import Observer
from podkeeper.engine.starter import ContainerStarter
from podkeeper.engine.stopper import PodStopper
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import ContainerState, PodRecord
from podkeeper.model.runtime_calls import Dns, SandboxConfig
from podkeeper.rules.collect import Garbage, all_garbage_of, all_init_containers, garbage_of, old_init_containers
from podkeeper.rules.container_events import Reason
from podkeeper.rules.container_grace import KillReason
from podkeeper.rules.dns import Lookup
from podkeeper.rules.keyring import PullSecret
from podkeeper.rules.naming import described, hostname_of, pod_log_directory
from podkeeper.rules.plan.actions import ContainerToKill, PodActions
from podkeeper.rules.plan.place import Place
from podkeeper.rules.plan.result import NotStarted, raise_all
from podkeeper.rules.restart import is_sidecar
from podkeeper.rules.status.containers import StartFailure

log = logging.getLogger(__name__)

MAX_PODS_WITH_FAILURES: Final = 20_000

Spec = Container | EphemeralContainer
_NONE: Final[Mapping[str, StartFailure]] = {}


class Runtime(Protocol):
    """What is needed of a runtime."""

    async def run_sandbox(self, config: SandboxConfig) -> str:
        """Make a sandbox and start it. Returns its id."""

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox."""

    async def remove_container(self, container_id: str) -> None:
        """Remove a container."""

    async def pod_record(self, uid: PodUID) -> PodRecord:
        """All about one pod."""


def _ignore(*_: object) -> None:
    """Nobody wants to know."""


class PlanExecutor:
    """Executes plans, and kills."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        starter: ContainerStarter,
        stopper: PodStopper,
        record: Callable[[PodEvent, Pod | PodRecord | None], None],
        host_ips: Callable[[], tuple[str, ...]],
        log_root: str = "/var/log/pods",
        cluster_domain: str = "cluster.local",
        lookup: Callable[[Pod], Awaitable[Lookup]] | None = None,
        sandbox_ready: Callable[[Pod, PodRecord], None] = _ignore,
        observer: Observer | None = None,
        may_start: Callable[[PodUID], bool] = lambda uid: True,
        max_pods_with_failures: int = MAX_PODS_WITH_FAILURES,
    ) -> None:
        """`sandbox_ready` hears of each new sandbox, with a record that shows it, before any image is pulled.

        `lookup` says how names are looked up in a pod; None: as the runtime does it. `may_start` says whether a pod
        may still get a sandbox and containers; if not, the plan ends there without an error.
        """
        self._runtime = runtime
        self._starter = starter
        self._stopper = stopper
        self._record = record
        self._host_ips = host_ips
        self._log_root = log_root
        self._cluster_domain = cluster_domain
        self._lookup = lookup
        self._sandbox_ready = sandbox_ready
        self._observer = observer or Observer()
        self._may_start = may_start
        self._max_pods_with_failures = max_pods_with_failures
        # A pod's mapping is replaced when something changes, and only then: whoever holds one can compare.
        self._failures: OrderedDict[PodUID, Mapping[str, StartFailure]] = OrderedDict()

    # The doors.

    async def execute(
        self,
        pod: Pod,
        record: PodRecord,
        actions: PodActions,
        *,
        mounts: Mapping[str, str],
        cgroup_parent: str,
        pull_secrets: Sequence[PullSecret],
    ) -> None:
        """Do all that can be done of a plan; then raise what went wrong. `mounts` are host paths by volume name."""
        errors = await self._stop(pod, record, actions)
        raise_all(f"cannot stop or remove containers of pod {described(pod)}", errors)
        if actions.kill_pod and not actions.create_sandbox:
            return  # nothing can start any more
        if not self._may_start(PodUID(pod.metadata.uid or "")):
            return
        place = Place(
            sandbox_id=actions.sandbox_id,
            pod_ips=record.ips or (self._host_ips() if pod.spec.host_network else ()),
            volumes=mounts,
            pull_secrets=pull_secrets,
        )
        if actions.create_sandbox:
            place = await self._create_sandbox(pod, actions.attempt, cgroup_parent, place)
        errors = await self._start(pod, record, actions, place)
        raise_all(f"cannot start all containers of pod {described(pod)}", errors)

    async def kill_pod(self, pod: Pod, record: PodRecord, grace_seconds: int | None) -> None:
        """Stop all containers of a pod and its sandboxes; None: within the graces of the spec. Raises what failed."""
        errors = await self._stopper.kill_pod(pod, record, grace_seconds)
        raise_all(f"cannot kill pod {described(pod)}", errors)

    async def kill_running_pod(self, record: PodRecord, grace_seconds: int) -> None:
        """Stop all containers and sandboxes of a pod whose spec nobody knows. Raises what failed."""
        errors = await self._stopper.kill_pod(None, record, grace_seconds)
        raise_all(f"cannot kill pod {record.namespace}/{record.name} ({record.uid})", errors)

    async def collect_dead_containers(
        self, record: PodRecord, *, container_id: str = "", everything: bool = False
    ) -> None:
        """Remove older exits, only those of the same name if a container is given; or everything that is dead."""
        garbage = all_garbage_of(record) if everything else garbage_of(record, like=container_id)
        await self._remove(garbage, record.uid)

    def failures_of(self, uid: PodUID) -> Mapping[str, StartFailure]:
        """Why containers of a pod could not be started, by name; another mapping whenever something changes."""
        return self._failures.get(uid, _NONE)

    def clear_failures(self, record: PodRecord) -> None:
        """Drop the start failures of containers that run."""
        # A start whose answer was lost counts as failed, and may have taken effect. No other start of the container
        # follows, so the failure would stay, and hide the container's next exit in the pod's status.
        uid = PodUID(record.uid)
        for found in record.containers if uid in self._failures else ():
            if found.state is ContainerState.RUNNING:
                self._keep(uid, found.name, None)

    def forget(self, uid: PodUID) -> None:
        """Forget a pod that is no more."""
        self._failures.pop(uid, None)
        self._stopper.forget(uid)

    # The steps.

    async def _stop(self, pod: Pod, record: PodRecord, actions: PodActions) -> tuple[TryLater, ...]:
        """Stop and remove what must not be there any more. Returns what kept that from being done."""
        if actions.create_sandbox and actions.sandbox_id:
            text = "Pod sandbox changed, it will be killed and re-created."
            self._tell(EventType.NORMAL, Reason.SANDBOX_CHANGED, text, pod)
        if actions.kill_pod:
            errors = await self._stopper.kill_pod(pod, record, None)
            if errors or not actions.create_sandbox:
                return errors
            # Remove all init containers before the new sandbox is created. Otherwise an exit in the old sandbox counts
            # as progress, and that init container and those before it do not run again.
            return await self._remove(Garbage(all_init_containers(pod, record)), pod.metadata.uid or "")
        errors = await self._stopper.kill_containers(pod, record, actions.containers_to_kill)
        errors = errors or await self._reset(pod, record, actions)
        if not errors:
            await self._remove(Garbage(old_init_containers(pod, record)), pod.metadata.uid or "")
        return errors

    async def _reset(self, pod: Pod, record: PodRecord, actions: PodActions) -> tuple[TryLater, ...]:
        """Remove the containers that start over, in the plan's order; those that run have no grace."""
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

    async def _create_sandbox(self, pod: Pod, attempt: int, cgroup_parent: str, place: Place) -> Place:
        """Make a sandbox, and learn its addresses. Raises when there is none."""
        self._observer.sandbox_begun()
        try:
            config = SandboxConfig(
                pod=pod,
                attempt=attempt,
                hostname=hostname_of(pod, self._cluster_domain),
                log_directory=pod_log_directory(self._log_root, pod),
                cgroup_parent=cgroup_parent,
                dns=await self._dns(pod),
            )
            sandbox_id = await self._runtime.run_sandbox(config)
        except TryLater as error:
            self._observer.sandbox_failed()
            self._tell(EventType.WARNING, Reason.SANDBOX_FAILED, f"Failed to create pod sandbox: {error}", pod)
            raise
        log.info("created sandbox %s of pod %s, attempt %s", sandbox_id, described(pod), attempt)
        try:
            seen = await self._runtime.pod_record(PodUID(pod.metadata.uid or ""))
        except TryLater as error:
            text = f"Unable to get pod sandbox status: {error}"
            self._tell(EventType.WARNING, Reason.SANDBOX_STATUS_FAILED, text, pod)
            raise
        self._sandbox_ready(pod, seen)
        pod_ips = place.pod_ips if pod.spec.host_network else _addresses(seen, sandbox_id)
        return Place(sandbox_id=sandbox_id, pod_ips=pod_ips, volumes=place.volumes, pull_secrets=place.pull_secrets)

    async def _dns(self, pod: Pod) -> Dns | None:
        """How names are looked up in a pod; what its owner has to know of that is told."""
        if self._lookup is None:
            return None
        found = await self._lookup(pod)
        for event in found.events:
            self._record(event, pod)
        return found.dns

    async def _start(self, pod: Pod, record: PodRecord, actions: PodActions, place: Place) -> tuple[TryLater, ...]:
        """Start containers; what fails is returned. Only an init container that fails holds up those after it."""
        spec = pod.spec
        errors: list[TryLater] = []
        for kind, containers in (
            ("ephemeral_container", _chosen(spec.ephemeral_containers, actions.ephemeral_containers_to_start)),
            ("init_container", _chosen(spec.init_containers, actions.init_containers_to_start)),
            ("container", _chosen(spec.containers, actions.containers_to_start)),
        ):
            for container in containers:
                if not self._may_start(PodUID(pod.metadata.uid or "")):
                    return tuple(errors)
                self._observer.start_begun(kind)
                trouble = await self._starter.start(pod, container, record, place)
                self._keep(PodUID(pod.metadata.uid or ""), container.name, trouble)
                if trouble is None:
                    continue
                self._observer.start_failed(kind, trouble.failure.reason)
                errors.append(trouble.error(container.name))
                if kind == "init_container" and isinstance(container, Container) and not is_sidecar(container):
                    return tuple(errors)
        return tuple(errors)

    def _keep(self, uid: PodUID, name: str, trouble: NotStarted | None) -> None:
        """Keep why a container did not start, or forget why it once did not."""
        before = self._failures.get(uid, _NONE)
        if trouble is not None:
            if before.get(name) != trouble.failure:
                self._failures[uid] = {**before, name: trouble.failure}
            self._failures.move_to_end(uid)
            if len(self._failures) > self._max_pods_with_failures:
                self._failures.popitem(last=False)
        elif name in before:
            after = {other: failure for other, failure in before.items() if other != name}
            if after:
                self._failures[uid] = after
            else:
                del self._failures[uid]

    def _tell(self, type_: EventType, reason: Reason, text: str, pod: Pod) -> None:
        self._record(PodEvent(type_, reason, text, pod.metadata.uid or ""), pod)


def _chosen(containers: Sequence[Spec] | None, indexes: Iterable[int]) -> list[Spec]:
    """The containers that a plan points to."""
    return [(containers or ())[index] for index in indexes]


def _addresses(record: PodRecord, sandbox_id: str) -> tuple[str, ...]:
    """The addresses of a sandbox, the primary one first."""
    for sandbox in record.sandboxes:
        if sandbox.id == sandbox_id and sandbox.ip:
            return (sandbox.ip, *sandbox.additional_ips)
    return ()
