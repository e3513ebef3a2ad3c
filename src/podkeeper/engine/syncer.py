"""The pod syncer: the four functions a pod worker calls, each a plain sequence over the neighbours.

    sync_pod              status -> network? -> references, mirror, cgroup, volumes, probes -> the plan, executed
    sync_terminating_pod  status -> stop the containers -> look: does any still run? -> final status
    sync_terminating_runtime_pod                 stop what only the runtime knows
    sync_terminated_pod   final status -> volumes -> references -> cgroup -> no more updates

In: a pod and a record of it, fresher than the last pass. Out: calls to the neighbours; an error, when something is
to be tried again. Every step bears being repeated, so a crash between any two is healed by running the function again.
Nothing here decides: the status is `rules.status.pod`'s, the plan `rules.plan`'s.

A pass that is cancelled ends at its next await, so nothing is started once termination was observed; a call in
flight is completed by the neighbour that makes it. A pass over a pod that is as it was when there last was nothing to
do is over after a few comparisons. The Go ancestors are `SyncPod`, `SyncTerminatingPod`,
`SyncTerminatingRuntimePod` and `SyncTerminatedPod` in pkg/kubelet/kubelet.go.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from msgspec.structs import replace

from podkeeper.engine.executor import PlanExecutor
from podkeeper.engine.ground import Ground, Prepared
from podkeeper.engine.mirrors import MirrorClient
from podkeeper.engine.observer import Observer
from podkeeper.engine.predecessors import Predecessors
from podkeeper.engine.probes import ProbeManager
from podkeeper.engine.pull_secrets import PullSecrets
from podkeeper.engine.status import StatusManager
from podkeeper.model.errors import AgentError, BadInput, GiveUp, NetworkNotReady, TryLater
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import CONFIG_FIRST_SEEN_ANNOTATION, EventType, PodEvent, PodUID
from podkeeper.model.runtime import ContainerState, PodRecord
from podkeeper.model.times import parse_time
from podkeeper.ports.clock import Clock
from podkeeper.rules.evict import PAST_DEADLINE, Eviction, deadline_eviction, evicted_status
from podkeeper.rules.mirror import is_static_pod
from podkeeper.rules.phase import Phase, is_terminal
from podkeeper.rules.plan import PodActions, compute_pod_actions, is_stranded
from podkeeper.rules.probe.flags import ProbeView, readiness_wanted_now
from podkeeper.rules.probe.worker import probes_of
from podkeeper.rules.restart import ALL_CONTAINERS_RESTARTING
from podkeeper.rules.status.conditions import TRUE, find_condition
from podkeeper.rules.status.pod import NodeView, PodView, api_pod_status
from podkeeper.rules.worker.updates import StatusFunction, UpdateType

log = logging.getLogger(__name__)

RUNTIME_POD_GRACE_SECONDS: Final = 1

NETWORK_NOT_READY = "NetworkNotReady"
FAILED_KILL = "FailedKillPod"
SANDBOX_LOST = "SandboxLost"

Record = Callable[[PodEvent, Pod | PodRecord | None], None]
Evicting = Callable[[Pod], Eviction | None]


class _Round(Enum):
    """How a round of `sync_pod` ended."""

    DONE = auto()
    ENDED = auto()  # the pod has come to its end
    CLEARED = auto()  # all containers are removed, to start over


@dataclass(slots=True)
class _Quiet:
    """What a pass saw that found nothing to do: seen again, it leads to the same."""

    pod: Pod
    mirror: Pod | None
    record: PodRecord
    published: PodStatus
    probes: ProbeView
    node: NodeView


class PodSyncer:
    """Brings pods into being, and to their end."""

    def __init__(
        self,
        *,
        statuses: StatusManager,
        probes: ProbeManager,
        executor: PlanExecutor,
        ground: Ground,
        mirrors: MirrorClient,
        references: PullSecrets,
        look: Callable[[PodUID], Awaitable[PodRecord]],
        request_look: Callable[[PodUID], None],
        node: Callable[[], NodeView],
        network_trouble: Callable[[], str | None],
        record: Record,
        clock: Clock,
        evictions: Sequence[Evicting] = (),
        predecessors: Predecessors | None = None,
        observer: Observer | None = None,
    ) -> None:
        """`look` waits for a record of a pod as it is from now on, `request_look` only asks that one be taken soon."""
        self._statuses = statuses
        self._probes = probes
        self._executor = executor
        self._ground = ground
        self._mirrors = mirrors
        self._references = references
        self._look = look
        self._request_look = request_look
        self._node = node
        self._network_trouble = network_trouble
        self._record = record
        self._clock = clock
        self._evictions = tuple(evictions)
        self._predecessors = predecessors
        self._observer = observer or Observer()
        self._quiet: dict[PodUID, _Quiet] = {}
        self._with_sandbox: dict[PodUID, PodRecord] = {}  # seen in the middle of the pass that is under way
        self._starting_over: set[PodUID] = set()  # pods whose containers in the runtime are of a former run

    # The four functions.

    async def sync_pod(self, update_type: UpdateType, pod: Pod, mirror_pod: Pod | None, record: PodRecord) -> bool:
        """Bring a pod one step nearer to what its spec says. True: it has come to its end."""
        if self._is_quiet(pod, mirror_pod, record):
            return False
        self._quiet.pop(_uid(pod), None)
        if update_type is UpdateType.CREATE:
            self._measure(pod, self._observer.first_pass)
        if _uid(pod) in self._starting_over:
            record = await self._without_former_run(pod, record)
        try:
            ended = await self._round(pod, mirror_pod, record)
            if ended is _Round.CLEARED:  # nobody tells of removed containers: go on without waiting for news
                ended = await self._round(pod, mirror_pod, await self._look(_uid(pod)))
        except GiveUp as error:
            log.warning("pod %s can never run here: %s", _name(pod), error)
            status = self._status(pod, record, ended=False)
            given_up = Eviction(error.reason, str(error))
            self._statuses.set_pod_status(pod, evicted_status(pod, status, given_up, self._clock.now()))
            return True
        return ended is _Round.ENDED

    async def sync_terminating_pod(
        self, pod: Pod, record: PodRecord, grace_seconds: int | None, status_function: StatusFunction | None
    ) -> None:
        """Stop a pod's containers. Returns once none of them runs, and their exits are in the status."""
        uid = _uid(pod)
        self._quiet.pop(uid, None)
        status = self._status(pod, record, ended=False)
        self._statuses.set_pod_status(pod, status if status_function is None else status_function(status))
        self._probes.stop_liveness_and_startup(pod)
        try:
            await self._executor.kill_pod(pod, record, grace_seconds)
        except (AgentError, ExceptionGroup) as error:
            self._warn(FAILED_KILL, f"error killing pod: {_in_words(error)}", pod)
            raise
        self._probes.remove_pod(uid)
        stopped = await self._look(uid)
        if running := sorted(each.name for each in stopped.containers if each.state is ContainerState.RUNNING):
            raise TryLater(f"cannot call pod {_name(pod)} stopped: container {', '.join(running)} still runs")
        # A stopped sandbox has no addresses any more; the pod's last status keeps those it had.
        stopped = replace(stopped, ips=record.ips)
        self._statuses.set_pod_status(pod, self._status(pod, stopped, ended=True))

    async def sync_terminating_runtime_pod(self, running_pod: PodRecord) -> None:
        """Stop what the runtime still has of a pod that nobody knows any more; there is no status to keep."""
        try:
            await self._executor.kill_running_pod(running_pod, RUNTIME_POD_GRACE_SECONDS)
        except (AgentError, ExceptionGroup) as error:
            self._warn(FAILED_KILL, f"error killing pod: {_in_words(error)}", running_pod)
            raise
        self._look_soon(PodUID(running_pod.uid))

    async def sync_terminated_pod(self, pod: Pod, record: PodRecord) -> None:
        """Give back all that a stopped pod still holds; last of all, say so."""
        uid = _uid(pod)
        self._quiet.pop(uid, None)
        self._statuses.set_pod_status(pod, self._status(pod, record, ended=True))
        await self._ground.unmount(uid)
        self._references.unregister(uid)
        await self._ground.remove_cgroup(uid)
        self._statuses.terminate_pod(pod)
        self._executor.forget(uid)
        self._starting_over.discard(uid)

    def start_over(self, uid: PodUID) -> None:
        """Remove the dead containers of a pod at its next sync: the pod has ended, and runs again with the same UID."""
        self._starting_over.add(uid)

    def on_sandbox_ready(self, pod: Pod, record: PodRecord) -> None:
        """In the middle of a pass, a pod got its sandbox: that is worth telling before images are pulled."""
        self._with_sandbox[_uid(pod)] = record
        self._publish(pod, record)

    # Setting up.

    async def _without_former_run(self, pod: Pod, record: PodRecord) -> PodRecord:
        """Remove what a former run of a pod left in the runtime. Raises TryLater if a dead container stays."""
        uid = _uid(pod)
        await self._executor.collect_dead_containers(record, everything=True)
        left = await self._look(uid)
        if dead := sorted(each.name for each in left.containers if each.state is not ContainerState.RUNNING):
            raise TryLater(f"cannot start pod {_name(pod)} again: its former container {', '.join(dead)} still exists")
        self._starting_over.discard(uid)
        return left

    async def _round(self, pod: Pod, mirror_pod: Pod | None, record: PodRecord) -> _Round:
        """Publish where a pod stands, make ready what it needs, plan, and execute the plan."""
        uid = _uid(pod)
        self._executor.clear_failures(record)
        before = self._statuses.get_pod_status(uid)
        if not self._probes.view(uid).workers and _runs_probed(pod, record):
            # A restarted agent finds it so: a container whose probe nobody knows yet would count as one without.
            self._probes.add_pod(pod)
        # What the status is made from. Read here and not when the sync turns out quiet: both may change at the awaits
        # in between, and then the next sync must not take the published status for the latest one.
        probes, node = self._probes.view(uid), self._node()
        status = self._publish(pod, record)
        if is_terminal(status.phase):
            return _Round.ENDED
        if is_stranded(pod, record):
            text = "its sandbox is gone before all its containers have begun, and it is to run only once"
            raise GiveUp(f"cannot go on with pod {_name(pod)}: {text}", SANDBOX_LOST)
        self._require_network(pod)
        self._references.register(pod)
        if is_static_pod(pod):
            await self._mirror(pod, mirror_pod)
        ground = await self._ground.prepare(pod)
        self._probes.add_pod(pod)
        restarts_all = _is_true(status, ALL_CONTAINERS_RESTARTING)
        actions = compute_pod_actions(
            pod, record, self._probes.liveness(uid), self._probes.startup(uid), restart_all_containers=restarts_all
        )
        if not _has_work(actions):
            published = self._statuses.get_pod_status(uid)
            if published is not None and published is before and (mirror_pod is not None or not is_static_pod(pod)):
                self._quiet[uid] = _Quiet(pod, mirror_pod, record, published, probes, node)
            return _Round.DONE
        if actions.create_sandbox and self._predecessors is not None and is_static_pod(pod):
            await self._predecessors.end(pod)
        await self._execute(pod, _with_ips_of(record, status), actions, ground)
        return _Round.CLEARED if restarts_all and actions.containers_to_reset else _Round.DONE

    async def _execute(self, pod: Pod, record: PodRecord, actions: PodActions, ground: Prepared) -> None:
        uid = _uid(pod)
        failures = self._executor.failures_of(uid)
        secrets = await self._references.pull_secrets(pod) if pod.spec.image_pull_secrets else ()
        try:
            await self._executor.execute(
                pod,
                record,
                actions,
                mounts=ground.host_paths,
                cgroup_parent=ground.cgroup_parent,
                pull_secrets=secrets,
            )
        except (AgentError, ExceptionGroup):
            if self._executor.failures_of(uid) is not failures:
                # Or nobody would learn before the next pass why a container waits.
                self._publish(pod, self._with_sandbox.get(uid, record))
            raise
        finally:
            self._with_sandbox.pop(uid, None)
            self._look_soon(uid)

    def _look_soon(self, uid: PodUID) -> None:
        """Have a pod looked at, once this pass has ended: before that, the next would find what is seen too old."""
        asyncio.get_running_loop().call_soon(self._request_look, uid)

    def _is_quiet(self, pod: Pod, mirror_pod: Pod | None, record: PodRecord) -> bool:
        """Whether all is as it was when there was nothing to do."""
        uid = _uid(pod)
        last = self._quiet.get(uid)
        if (
            last is None
            or last.pod is not pod
            or last.mirror is not mirror_pod
            or last.published is not self._statuses.get_pod_status(uid)
            or last.probes is not self._probes.view(uid)
            or last.record != record
            or last.node != self._node()
            or self._executor.failures_of(uid)
            or self._eviction(pod, last.published) is not None
            or self._trouble_of(pod) is not None
        ):
            return False
        last.record = record  # the one that others keep too
        return True

    def _require_network(self, pod: Pod) -> None:
        trouble = self._trouble_of(pod)
        if trouble is not None:
            text = f"network is not ready: {trouble}"
            self._warn(NETWORK_NOT_READY, text, pod)
            raise NetworkNotReady(f"cannot start pod {_name(pod)}: {text}")

    def _trouble_of(self, pod: Pod) -> str | None:
        """What keeps a pod off the network; the node's own network serves pods whatever the runtime says."""
        return None if pod.spec.host_network else self._network_trouble()

    async def _mirror(self, pod: Pod, mirror_pod: Pod | None) -> None:
        try:
            await self._mirrors.ensure(pod, mirror_pod)
        except AgentError as error:
            log.warning("mirror of pod %s not brought up to date, the pod goes on: %s", _name(pod), error)

    # StatusManager.

    def _publish(self, pod: Pod, record: PodRecord) -> PodStatus:
        """Set the status of a pod that is alive. What only waits for its readiness probe is probed at once."""
        uid = _uid(pod)
        before = self._statuses.get_pod_status(uid)
        status = self._status(pod, record, ended=False)
        if status.phase == Phase.RUNNING and (before is None or before.phase == Phase.PENDING):
            self._measure(pod, self._observer.running)
        self._statuses.set_pod_status(pod, status)
        if not is_terminal(status.phase) and (wanted := readiness_wanted_now(pod, status, self._probes.view(uid))):
            self._probes.wake(uid, wanted)
        return status

    def _status(self, pod: Pod, record: PodRecord, *, ended: bool) -> PodStatus:
        uid = _uid(pod)
        published = self._statuses.get_pod_status(uid)
        eviction = self._eviction(pod, published)
        if eviction is PAST_DEADLINE and (published is None or published.reason != eviction.reason):
            self._record(PodEvent(EventType.NORMAL, eviction.reason, eviction.message, uid), pod)
        view = PodView(
            record=record,
            probes=self._probes.view(uid),
            published=published,
            # Once it has ended nothing of it starts again: a start that failed must not hide how its container ended.
            start_failures={} if ended else self._executor.failures_of(uid),
            eviction=eviction,
            ended=ended,
            end_is_final=True,
            keeps_init_ends=True,
        )
        return api_pod_status(pod, view, self._node())

    def _eviction(self, pod: Pod, published: PodStatus | None) -> Eviction | None:
        """Why this pod must end, if somebody says so; the first who does counts."""
        eviction = None
        if pod.spec.active_deadline_seconds is not None:
            eviction = deadline_eviction(pod, published, self._clock.now())
        for evicting in self._evictions:
            if eviction is not None:
                break
            eviction = evicting(pod)
        return eviction

    def _measure(self, pod: Pod, observe: Callable[[float], None]) -> None:
        """Tell how long ago the agent first saw a pod, if that is known."""
        try:
            seen = parse_time((pod.metadata.annotations or {}).get(CONFIG_FIRST_SEEN_ANNOTATION, ""))
        except BadInput:
            return
        observe((self._clock.now() - seen).total_seconds())

    def _warn(self, reason: str, message: str, about: Pod | PodRecord) -> None:
        uid = about.uid if isinstance(about, PodRecord) else _uid(about)
        self._record(PodEvent(EventType.WARNING, reason, message, uid), about)


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
    """Whether something runs of a pod that has probes."""
    return any(each.state is ContainerState.RUNNING for each in record.containers) and any(probes_of(pod))


def _with_ips_of(record: PodRecord, status: PodStatus) -> PodRecord:
    """The record with the addresses the API shows: a pod on the node's network has those of the node."""
    ips = tuple(each.ip for each in status.pod_ips or ())
    return record if ips == record.ips else replace(record, ips=ips)


def _is_true(status: PodStatus, condition: str) -> bool:
    found = find_condition(status.conditions, condition)
    return found is not None and found.status == TRUE


def _in_words(error: Exception) -> str:
    """What went wrong, all of it."""
    return "; ".join(map(_in_words, error.exceptions)) if isinstance(error, ExceptionGroup) else str(error)


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}"


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")
