"""Construct an agent: connect the modules of the engine.

    sources -> storage -> loop -> workers -> syncer -> executor -> runtime
                           ^  ^                                       |
                 probes ---+  +--- PLEG <- cache <--------------------+      statuses -> API

Input: `Ports` and `Settings`. Output: an `Agent`. Cancelling `Agent.run` stops the agent, not the pods. Another agent
on the same runtime adopts them.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, nextafter
from typing import Protocol

from podkeeper.engine.admission import Admission
from podkeeper.engine.background import Background
from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.cache import PodCache
from podkeeper.engine.container_care import ContainerCare
from podkeeper.engine.deadlines import ActiveDeadlines
from podkeeper.engine.events import EventRecorder
from podkeeper.engine.evictor import Evictor
from podkeeper.engine.executor import PlanExecutor
from podkeeper.engine.ground import Ground
from podkeeper.engine.guard import USUAL_LIMITS, GuardedRuntime
from podkeeper.engine.guard import Limits as RuntimeLimits
from podkeeper.engine.handlers import SyncHandlers
from podkeeper.engine.history import MOVED, Explanation, History
from podkeeper.engine.hooks import HookRunner
from podkeeper.engine.housekeeping import Housekeeping
from podkeeper.engine.image_access import PullBook
from podkeeper.engine.image_care import ImageCare
from podkeeper.engine.images import ImageManager
from podkeeper.engine.log_care import LogCare
from podkeeper.engine.loop import SyncLoop
from podkeeper.engine.manager import PodManager
from podkeeper.engine.metrics import Metrics
from podkeeper.engine.mirrors import MirrorClient
from podkeeper.engine.notebook import Notebook
from podkeeper.engine.orphans import OrphanCheck
from podkeeper.engine.pleg import USUAL_PACE, Pace, Pleg
from podkeeper.engine.postman import Postman
from podkeeper.engine.predecessors import Predecessors
from podkeeper.engine.preemption import Preemption
from podkeeper.engine.prober import ProbeExecutor
from podkeeper.engine.probes import ProbeManager
from podkeeper.engine.pull_secrets import PullSecrets
from podkeeper.engine.queue import WorkQueue
from podkeeper.engine.starter import ContainerStarter
from podkeeper.engine.status import StatusManager
from podkeeper.engine.stopper import PodStopper
from podkeeper.engine.storage import PodStorage
from podkeeper.engine.syncer import PodSyncer
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.k8s.core import Node, NodeStatus, ObjectReference, Pod, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import LifecycleEvent, Op, PodEvent, PodUID, PodUpdate
from podkeeper.model.runtime import PodRecord
from podkeeper.model.runtime_calls import RuntimeHealth
from podkeeper.ports.api import Api, Reader
from podkeeper.ports.cgroups import Cgroups
from podkeeper.ports.clock import Clock
from podkeeper.ports.journal import Journal
from podkeeper.ports.logs import LogFiles
from podkeeper.ports.prober import Prober
from podkeeper.ports.runtime import Health, Runtime
from podkeeper.ports.source import Source
from podkeeper.ports.volumes import Volumes
from podkeeper.rules.admit import Enforcement
from podkeeper.rules.backoff import DEFAULT_CURVE, BackoffTable, Curve
from podkeeper.rules.dispatch import on_removal_at_once
from podkeeper.rules.dns import Lookup
from podkeeper.rules.housekeeping import is_running
from podkeeper.rules.image_access import USUAL_VERIFICATION, Verification
from podkeeper.rules.image_gc import GcPolicy
from podkeeper.rules.log_rotation import USUAL_POLICY
from podkeeper.rules.log_rotation import Policy as LogPolicy
from podkeeper.rules.mirror import is_outdated_mirror
from podkeeper.rules.resources import amounts_of
from podkeeper.rules.status.pod import NodeView
from podkeeper.rules.status.publish import aligned_with, takes_back
from podkeeper.rules.worker.pauses import USUAL_TIMING, Timing
from podkeeper.rules.worker.states import Unknown

KUBERNETES_VERSION = "1.36"


Complain = Callable[[PodUID, str], None]
"""Receives a pod and its problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Everything outside the engine."""

    runtime: Runtime
    volumes: Volumes
    cgroups: Cgroups
    prober: Prober
    clock: Clock
    sources: tuple[Source, ...]
    api: Api | None = None
    objects: Reader | None = None  # config maps and secrets; None: the API's
    keep_objects: Callable[[Iterable[Pod]], None] | None = None  # receives the pods whose objects are still needed
    journal: Journal | None = None
    over_used: Callable[[Complain], None] | None = None  # reports pods whose volumes exceed their limit
    node_pull_configs: Callable[[], Awaitable[Sequence[str]]] | None = None  # the node's own docker configurations
    pull_journal: Journal | None = None  # which pod pulled which image; None: all pods may use all present images
    kept_images: tuple[str, ...] = ()  # names of images that are never removed
    log_files: LogFiles | None = None  # None: the agent does not rotate logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    node: Node
    host_ips: tuple[str, ...] = ()
    log_root: str = "/var/log/pods"
    cluster_domain: str = "cluster.local"
    lookup: Callable[[Pod], Awaitable[Lookup]] | None = None  # DNS settings of pods; None: those of the runtime
    log_policy: LogPolicy = USUAL_POLICY
    timing: Timing = USUAL_TIMING
    restart_curve: Curve = DEFAULT_CURVE
    pull_curve: Curve = DEFAULT_CURVE
    runtime_limits: RuntimeLimits = USUAL_LIMITS
    verification: Verification = USUAL_VERIFICATION  # used only with a `pull_journal`
    image_gc: GcPolicy | None = None  # None: images are never removed
    container_gc_seconds: float | None = None  # None: dead containers are removed only when their successors exit
    relisting: Pace = USUAL_PACE
    enforcement: Enforcement | None = None  # what the runtime can enforce; None: admission does not check it

    @property
    def node_name(self) -> str:
        return self.node.metadata.name or ""


class _Room(Protocol):
    """A part of the agent that runs as long as the agent."""

    async def run(self) -> None: ...


class Moments:
    """Strictly increasing instants of the monotonic clock, so that of two instants one is always newer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = -inf

    def __call__(self) -> float:
        self._last = max(self._clock.monotonic(), nextafter(self._last, inf))
        return self._last


@dataclass(slots=True)
class _NetworkWatch:
    """Store the network state of the loop's last health check of the runtime."""

    runtime: Health
    trouble: str | None = field(default="the runtime has not answered yet")

    async def health(self) -> RuntimeHealth:
        health = await self.runtime.health()
        self.trouble = None if health.network_ready else health.message or "the runtime's network is not ready"
        return health


class Agent:
    def __init__(self, ports: Ports, settings: Settings) -> None:
        self.ports = ports
        self.settings = settings
        clock = ports.clock
        self.metrics = Metrics()
        self.history = History(clock=clock)
        self.manager = PodManager()
        self.events = EventRecorder(
            api=ports.api,
            node_name=settings.node_name,
            clock=clock,
            postman=Postman(clock=clock, what="event"),
            pod_by_uid=self.manager.pod_by_uid,
        )
        self.runtime = GuardedRuntime(
            ports.runtime, clock=clock, limits=settings.runtime_limits, observe=self.metrics.runtime_call
        )
        self.background = Background()
        self._moment = Moments(clock)
        self._restarts = self._backoff(settings.restart_curve, "restart-backoff/")
        self._pulls = self._backoff(settings.pull_curve, "pull-backoff/")
        self._network = _NetworkWatch(self.runtime)
        self._happenings = 0  # counts events that may require housekeeping
        self._build_sight()
        self._build_hands()
        self._build_mind()
        self.image_care = self._image_care(settings.image_gc)
        self.container_care = self._container_care(settings.container_gc_seconds)
        self.storage = PodStorage(emit=self._on_update, record=self.events.record, now=clock.now)
        self.log_care = self._log_care(ports.log_files)

    async def run(self) -> None:
        """Run until cancelled. The pods keep running."""
        rooms: tuple[_Room, ...] = (
            *(self.runtime, self.background, self.pleg, self.statuses, self.events),
            *(self.mirrors, self.probes, self.preemption, self.workers, self.loop),
            *(() if self.image_care is None else (self.image_care,)),
            *(() if self.container_care is None else (self.container_care,)),
            *(() if self.log_care is None else (self.log_care,)),
        )
        try:
            async with asyncio.TaskGroup() as group:
                for room in rooms:
                    group.create_task(room.run(), name=f"agent: {type(room).__name__}")
                for source in self.ports.sources:
                    group.create_task(source.run(self.storage.merge), name=f"agent: source {source.name}")
        finally:
            self.background.give_up()

    async def flush(self, within_seconds: float) -> None:
        """Send pending statuses and events to the API. Must be called before a graceful exit, while the agent runs."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                await self.statuses.sync_batch(every=True)
                await self.events.flush()

    def explain(self, uid: PodUID) -> Explanation:
        """Return a pod's state, what it waits for, and its timeline."""
        return self.history.explain(uid)

    def node_view(self) -> NodeView:
        """Return the facts about this node that pod statuses contain."""
        return NodeView(
            runtime_name=self.runtime.name,
            host_ips=self.settings.host_ips,
            recursive_read_only=_mounts_recursively(self.settings.node),
        )

    def health(self) -> tuple[str, ...]:
        """Return problems of the agent itself. Empty if it is healthy."""
        return tuple(filter(None, (self.loop.health(), self.pleg.health())))

    # Observation: the cache and the PLEG, statuses, probes.

    def _build_sight(self) -> None:
        clock = self.ports.clock
        self.cache = PodCache(refresh=lambda uid, since: self.pleg.request(uid, since))
        self.pleg = Pleg(
            runtime=self.runtime,
            cache=self.cache,
            emit=self._on_lifecycle,
            clock=clock,
            moment=self._moment,
            pace=self.settings.relisting,
            observer=self.metrics,
        )
        self.statuses = StatusManager(
            api=self.ports.api,
            pods=self.manager,
            could_run=self._could_run,
            clock=clock,
            postman=Postman(clock=clock, what="status"),
            notebook=Notebook(self.ports.journal, "status/"),
            observe_lag=self.metrics.status_synced,
            is_outdated=is_outdated_mirror,
            takes_back=takes_back,
            align=aligned_with,
            only_running_is_ready=True,
            is_needed=self._needs_status,
        )
        self.statuses.subscribe(self._note_status)
        self.probes = ProbeManager(
            execute=ProbeExecutor(runtime=self.runtime, prober=self.ports.prober, version=KUBERNETES_VERSION).execute,
            status_of=self.statuses.get_pod_status,
            tell=lambda update: self.loop.tell_probe(update),
            record=self._record,
            clock=clock,
            observer=self.metrics,
        )

    def _backoff(self, curve: Curve, prefix: str) -> DurableBackoff:
        notebook = Notebook(self.ports.journal, prefix)
        return DurableBackoff(table=BackoffTable(curve), clock=self.ports.clock, notebook=notebook)

    # Actions on the runtime.

    def _build_hands(self) -> None:
        clock, record, spawn = self.ports.clock, self._record, self.background.spawn
        hooks = HookRunner(commands=self.runtime, prober=self.ports.prober, record=record, version=KUBERNETES_VERSION)
        stopper = PodStopper(runtime=self.runtime, hooks=hooks, clock=clock, record=record, spawn=spawn)
        self._pull_book = self._book_of(self.ports.pull_journal)
        starter = ContainerStarter(
            runtime=self.runtime,
            images=ImageManager(
                runtime=self.runtime,
                clock=clock,
                record=record,
                spawn=spawn,
                pulls=self._pulls,
                curve=self.settings.pull_curve,
                observer=self.metrics,
                node_configs=self.ports.node_pull_configs,
                book=self._pull_book,
            ),
            hooks=hooks,
            killer=stopper,
            objects=self.ports.objects or self.ports.api,
            restarts=self._restarts,
            claim=self.probes.claim,
            clock=clock,
            record=record,
            host_ips=lambda: self.settings.host_ips,
            allocatable=lambda: amounts_of(self.settings.node.status.allocatable),
            curve=self.settings.restart_curve,
            may_start=self._may_start,
        )
        self.executor = PlanExecutor(
            runtime=self.runtime,
            starter=starter,
            stopper=stopper,
            record=record,
            host_ips=lambda: self.settings.host_ips,
            log_root=self.settings.log_root,
            cluster_domain=self.settings.cluster_domain,
            lookup=self.settings.lookup,
            sandbox_ready=lambda pod, seen: self.syncer.on_sandbox_ready(pod, seen),
            observer=self.metrics,
            may_start=self._may_start,
        )

    # Decisions: syncer, workers, loop.

    def _build_mind(self) -> None:
        clock, record = self.ports.clock, self._record
        self.mirrors = MirrorClient(
            api=self.ports.api,
            pods=self.manager,
            node_name=self.settings.node_name,
            node_uid=lambda: self.settings.node.metadata.uid,
        )
        self.syncer = PodSyncer(
            statuses=self.statuses,
            probes=self.probes,
            executor=self.executor,
            ground=Ground(
                volumes=self.ports.volumes, cgroups=self.ports.cgroups, record=record, spawn=self.background.spawn
            ),
            mirrors=self.mirrors,
            look=lambda uid: self.cache.get_newer_than(uid, self._moment()),
            predecessors=Predecessors(
                runtime=self.runtime,
                kill=self.executor.kill_running_pod,
                is_desired=lambda uid: self.manager.pod_by_uid(uid) is not None,
            ),
            request_look=self.pleg.request,
            node=self.node_view,
            network_trouble=lambda: self._network.trouble,
            references=PullSecrets(objects=self.ports.objects or self.ports.api, record=record),
            record=record,
            clock=clock,
            observer=self.metrics,
        )
        self.workers = PodWorkers(
            syncer=self.syncer,
            cache=self.cache,
            enqueue=self._enqueue,
            record=record,
            clock=clock,
            moment=self._moment,
            timing=self.settings.timing,
            left=lambda name: self.loop.left(name),
            note=self._note,
            observer=self.metrics,
        )
        self.orphans = None if self.ports.api is None else OrphanCheck(api=self.ports.api, clock=clock)
        deadlines = ActiveDeadlines(
            status=self.statuses, is_ending=self.workers.is_pod_termination_requested, clock=clock
        )
        admission = Admission(
            node=lambda: self.settings.node,
            workers=self.workers,
            status=self.statuses,
            enforcement=self.settings.enforcement,
        )
        self.preemption = Preemption(workers=self.workers, record=record, clock=clock, preempted=self.metrics.preempted)
        self.evictor = Evictor(
            workers=self.workers,
            pod_by_uid=self.manager.pod_by_uid,
            record=record,
            spawn=self.background.spawn,
            clock=clock,
            evicted=self.metrics.evicted,
        )
        if self.ports.over_used is not None:
            self.ports.over_used(self.evictor.evict)
        self.loop = SyncLoop(
            handlers=SyncHandlers(
                pods=self.manager,
                workers=self.workers,
                status=self.statuses,
                deadlines=deadlines,
                admission=admission,
                preemption=self.preemption,
                sources=[source.name for source in self.ports.sources],
                has_seen=lambda names: self.storage.has_seen(names),
                collect_dead=self._collect_dead_containers,
                record=record,
                clock=clock,
                on_removal=on_removal_at_once,
                note=self.history.note,
                ask_anew=self.statuses.ask_anew,
                rejected=self.metrics.rejected,
                retry=self.workers.retry,
            ),
            queue=WorkQueue(clock.monotonic),
            deadlines=deadlines,
            housekeeping=Housekeeping(
                pods=self.manager,
                workers=self.workers,
                runtime=self.runtime,
                status=self.statuses,
                probes=self.probes,
                mirrors=self.mirrors,
                admission=admission,
                clock=clock,
                volumes=self.ports.volumes,
                cgroups=self.ports.cgroups,
                remove_remains=partial(self.executor.collect_dead_containers, everything=True),
                orphans=self.orphans,
                held=self.preemption.held,
                collect=(self._forget_the_past,),
                observe=self.metrics.kept_house,
                happenings=lambda: self._happenings,
                start_over=self._start_over,
            ),
            runtime=self._network,
            clock=clock,
        )

    # Optional parts.

    def _book_of(self, journal: Journal | None) -> PullBook | None:
        if journal is None:
            return None
        return PullBook(
            begun=Notebook(journal, "pull-begun/"),
            pulled=Notebook(journal, "pulled/"),
            clock=self.ports.clock,
            verification=self.settings.verification,
        )

    def _image_care(self, policy: GcPolicy | None) -> ImageCare | None:
        if policy is None:
            return None
        return ImageCare(
            runtime=self.runtime,
            clock=self.ports.clock,
            policy=policy,
            tell=self._record_of_node,
            kept=self.ports.kept_images,
            left=lambda ids, at: None if self._pull_book is None else self._pull_book.keep_only(ids, at),
            removed=self.metrics.image_removed,
        )

    def _container_care(self, period_seconds: float | None) -> ContainerCare | None:
        if period_seconds is None:
            return None
        return ContainerCare(
            runtime=self.runtime,
            collect=self.executor.collect_dead_containers,
            tell=self._record_of_node,
            period_seconds=period_seconds,
        )

    def _log_care(self, files: LogFiles | None) -> LogCare | None:
        if files is None:
            return None
        return LogCare(
            runtime=self.runtime,
            files=files,
            clock=self.ports.clock,
            policy=self.settings.log_policy,
            is_gone=self._is_gone,
        )

    # Connections between modules.

    def _record_of_node(self, event: PodEvent) -> None:
        self.events.record(event, ObjectReference(api_version="v1", kind="Node", name=self.settings.node_name))

    def _is_gone(self, uid: PodUID) -> bool:
        """Return whether a pod is removed: all sources are ready, and neither they nor the workers have it."""
        if not self.storage.has_seen([source.name for source in self.ports.sources]):
            return False
        if self.orphans is not None and self.orphans.is_in_doubt(uid):
            return False
        return self.manager.pod_by_uid(uid) is None and self.workers.should_pod_content_be_removed(uid)

    def _needs_status(self, uid: PodUID) -> bool:
        return self.manager.pod_by_uid(uid) is not None or not self.workers.should_pod_be_finished(uid)

    def _may_start(self, uid: PodUID) -> bool:
        # The loop handles no deletion while the runtime is unhealthy. After recovery, a sync may continue before the
        # loop handles the deletion.
        return self.storage.wants(uid)

    def _start_over(self, uid: PodUID) -> None:
        """Drop the status of an ended pod. Its next sync removes the dead containers before it starts new ones."""
        self.statuses.start_over(uid)
        self.syncer.start_over(uid)

    def _could_run(self, uid: PodUID) -> bool:
        """Return whether a container of a pod may run."""
        # Containers never run under the UID of a mirror pod, so use the UID of its static pod.
        uid = self.manager.translate_uid(uid)
        if not isinstance(self.workers.state(uid), Unknown) or self.manager.pod_by_uid(uid) is None:
            return self.workers.could_have_running_containers(uid)
        # Until all sources are ready, workers assume that unknown pods may be running. If a source never became ready,
        # a pod rejected for lack of resources would never be reported as failed. So check the runtime's cache, too.
        seen = self.cache.get_if_sure(uid)
        return self.workers.could_have_running_containers(uid) and (seen is None or is_running(seen))

    def _on_update(self, update: PodUpdate) -> None:
        self._happenings += 1
        if update.op is Op.ADD:
            self.statuses.restore(update.pods)  # from the journal of the previous agent
        self.loop.tell_config(update)

    def _on_lifecycle(self, event: LifecycleEvent) -> None:
        self._happenings += 1
        self.loop.tell_lifecycle(event)

    def _note(self, uid: PodUID, what: str, detail: str) -> None:
        if what == MOVED:
            self._happenings += 1
        self.history.note(uid, what, detail)

    def _enqueue(self, uid: PodUID, delay_seconds: float) -> None:
        self.loop.enqueue(uid, delay_seconds)
        self.history.will_retry(uid, delay_seconds)

    def _record(self, event: PodEvent, about: Pod | PodRecord | None = None) -> None:
        self.events.record(event, about)
        if event.uid:
            self.history.note(PodUID(event.uid), event.reason, event.message)

    def _note_status(self, uid: PodUID, status: PodStatus) -> None:
        ready = next((each.status for each in status.conditions or () if each.type == "Ready"), "")
        self.history.note(uid, f"phase {status.phase}", "ready" if ready == "True" else "not ready")

    def _forget_the_past(self) -> None:
        self._restarts.collect(self._is_gone)
        self._pulls.collect(self._is_gone)
        self.events.keep_only(self.statuses.phases().keys())
        if self.ports.keep_objects is not None:
            self.ports.keep_objects(self.manager.pods())
        self.metrics.slow_calls(len(self.runtime.slow_calls()))

    def _collect_dead_containers(self, uid: PodUID, container_id: str, everything: bool) -> None:
        self.background.spawn(self._collect(uid, container_id, everything))

    async def _collect(self, uid: PodUID, container_id: str, everything: bool) -> None:
        # Remove all containers of a finished pod, but only after its last status is saved, because the exit codes are
        # lost with the containers. If a full disk prevents that, cleanup removes them once no source has the pod.
        # Workers do not know a pod that is missing in a stale list. It may still run, so housekeeping asks the API.
        known = not isinstance(self.workers.state(uid), Unknown)
        is_over = known and self.workers.should_pod_be_finished(uid)
        everything = everything and is_over and await self.statuses.is_saved(uid)
        await self.executor.collect_dead_containers(
            self.cache.get(uid), container_id=container_id, everything=everything
        )


def _mounts_recursively(node: Node) -> bool:
    """Return whether the runtime's default handler supports recursive read-only mounts."""
    usual = next((each.features for each in node.status.runtime_handlers or () if not each.name), None)
    return usual is not None and bool(usual.recursive_read_only_mounts)


def simple_node(name: str, *, cpu: str = "8", memory: str = "32Gi", pods: int = 110) -> Node:
    """Return a node with this capacity, for tests, benchmarks and simulations."""
    amounts = {"cpu": cpu, "memory": memory, "pods": str(pods)}
    return Node(
        metadata=ObjectMeta(name=name, uid=f"node-{name}", labels={"kubernetes.io/os": "linux"}),
        status=NodeStatus(capacity=dict(amounts), allocatable=dict(amounts)),
    )
