"""Construct the engine: connect its modules.

    sources -> storage -> inbox -> loop -> workers -> syncer -> executor -> runtime
    runtime -> PLEG -> cache -> syncer -> statuses -> API
    PLEG, probes -> inbox

Input: `Ports` and `Settings`. Output: an `Engine`. Cancelling `Engine.run` stops the agent, not the pods. Another
agent on the same runtime adopts them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from podkeeper.engine.admission import Admission
from podkeeper.engine.api_sender import ApiSender
from podkeeper.engine.background import Background
from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.bounded_runtime import DEFAULT_CALL_LIMITS, BoundedRuntime, CallLimits
from podkeeper.engine.cache import IncreasingClock, PodCache
from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.engine.container_deletor import PodContainerDeletor
from podkeeper.engine.container_gc import ContainerGC
from podkeeper.engine.deadlines import ActiveDeadlines
from podkeeper.engine.events import EventRecorder
from podkeeper.engine.eviction import EvictionManager
from podkeeper.engine.executor import PlanExecutor
from podkeeper.engine.handlers import SyncHandlers
from podkeeper.engine.history import PodHistory
from podkeeper.engine.hooks import HookRunner
from podkeeper.engine.housekeeping import Housekeeping
from podkeeper.engine.image_gc import ImageGCManager
from podkeeper.engine.image_pull_manager import ImagePullManager
from podkeeper.engine.images import ImageManager
from podkeeper.engine.inbox import LoopInbox
from podkeeper.engine.log_manager import ContainerLogManager
from podkeeper.engine.loop import SyncLoop
from podkeeper.engine.manager import PodManager
from podkeeper.engine.metrics import Metrics
from podkeeper.engine.mirror_client import MirrorClient
from podkeeper.engine.node_info import NodeInfo
from podkeeper.engine.orphans import OrphanCheck
from podkeeper.engine.pleg import DEFAULT_PLEG_TIMING, Pleg, PlegTiming
from podkeeper.engine.pod_facts import PodFacts
from podkeeper.engine.pod_setup import PodSetup
from podkeeper.engine.preemption import Preemption
from podkeeper.engine.prober import ProbeExecutor
from podkeeper.engine.probes import ProbeManager
from podkeeper.engine.pull_secrets import PullSecrets
from podkeeper.engine.runtime_state import RuntimeState
from podkeeper.engine.starter import ContainerStarter
from podkeeper.engine.state_gc import StateGC
from podkeeper.engine.static_conflicts import StaticConflicts
from podkeeper.engine.status import StatusManager
from podkeeper.engine.stopper import PodStopper
from podkeeper.engine.storage import PodStorage
from podkeeper.engine.syncer import PodSyncer
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.k8s.core import Node, NodeStatus, Pod
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.ports.api import Api, ObjectReader
from podkeeper.ports.cgroups import Cgroups
from podkeeper.ports.clock import Clock
from podkeeper.ports.journal import Journal
from podkeeper.ports.logs import LogFiles
from podkeeper.ports.prober import Prober
from podkeeper.ports.runtime import Runtime
from podkeeper.ports.source import Source
from podkeeper.ports.volumes import Volumes
from podkeeper.rules.admission.admit import Enforcement
from podkeeper.rules.backoff.table import DEFAULT_CURVE, BackoffTable, Curve
from podkeeper.rules.dispatch import on_removal_at_once
from podkeeper.rules.dns import PodDns
from podkeeper.rules.images.gc import GcPolicy
from podkeeper.rules.images.pull_access import DEFAULT_VERIFICATION, Verification
from podkeeper.rules.logs.rotation import DEFAULT_ROTATION_POLICY
from podkeeper.rules.logs.rotation import RotationPolicy as LogPolicy
from podkeeper.rules.static.mirror import is_outdated_mirror
from podkeeper.rules.status.publish import aligned_with, would_revive
from podkeeper.rules.worker.timing import DEFAULT_TIMING, SyncTiming
from podkeeper.rules.worker.workers import WorkerTable

KUBERNETES_VERSION = "1.36"


OveruseSubscriber = Callable[[PodUID, str], None]
"""Receives a pod whose volumes exceed a limit, and the message for its eviction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Everything outside the engine."""

    runtime: Runtime
    volumes: Volumes
    cgroups: Cgroups
    prober: Prober
    clock: Clock
    sources: tuple[Source, ...] = ()
    api: Api | None = None
    objects: ObjectReader | None = None  # reads ConfigMaps and Secrets; None: `api` does
    keep_objects: Callable[[Iterable[Pod]], None] | None = None  # receives the pods whose objects are still needed
    journal: Journal | None = None
    subscribe_overuse: Callable[[OveruseSubscriber], None] | None = None  # None: local storage is not watched
    node_pull_configs: Callable[[], Awaitable[Sequence[str]]] | None = None  # the node's own docker configurations
    # Records of image pulls and their credentials; None: all pods may use all present images.
    pull_journal: Journal | None = None
    kept_images: tuple[str, ...] = ()  # names of images that are never removed
    log_files: LogFiles | None = None  # None: the agent does not rotate logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    node: Node
    host_ips: tuple[str, ...] = ()
    log_root: str = "/var/log/pods"
    cluster_domain: str = "cluster.local"
    lookup: Callable[[Pod], Awaitable[PodDns]] | None = None  # DNS settings of pods; None: those of the runtime
    log_policy: LogPolicy = DEFAULT_ROTATION_POLICY
    timing: SyncTiming = DEFAULT_TIMING
    restart_curve: Curve = DEFAULT_CURVE
    pull_curve: Curve = DEFAULT_CURVE
    runtime_limits: CallLimits = DEFAULT_CALL_LIMITS
    verification: Verification = DEFAULT_VERIFICATION  # used only with a `pull_journal`
    image_gc: GcPolicy | None = None  # None: images are never removed
    # None: no periodic collection; dead containers are removed when a later attempt exits.
    container_gc_seconds: float | None = None
    relisting: PlegTiming = DEFAULT_PLEG_TIMING
    enforcement: Enforcement | None = None  # what the runtime can enforce; None: admission does not check it

    @property
    def node_name(self) -> str:
        return self.node.metadata.name or ""


class _Component(Protocol):
    """A part of the agent that runs as long as the agent."""

    async def run(self) -> None: ...


class Engine:
    """All modules of the engine, connected. `app.agent.Agent` is the interface for the CLI and the local server."""

    def __init__(self, ports: Ports, settings: Settings) -> None:
        self.ports = ports
        self.settings = settings
        self._build_base()
        self._build_observation()
        self._build_execution()
        self._build_sync()
        self._build_loop()
        self.image_gc = self._image_gc(settings.image_gc)
        self.container_gc = self._container_gc(settings.container_gc_seconds)
        self.log_manager = self._log_manager(ports.log_files)

    async def run(self) -> None:
        """Run until cancelled. The pods keep running."""
        optional = (self.image_gc, self.container_gc, self.log_manager)
        components: tuple[_Component, ...] = (
            *(self.runtime, self.background, self.pleg, self.statuses, self.events),
            *(self.mirrors, self.probes, self.preemption, self.workers, self.loop),
            *(each for each in optional if each is not None),
        )
        try:
            async with asyncio.TaskGroup() as group:
                for component in components:
                    group.create_task(component.run(), name=f"agent: {type(component).__name__}")
                for source in self.ports.sources:
                    group.create_task(source.run(self.storage.merge), name=f"agent: source {source.name}")
        finally:
            # If one component fails before `background` runs, its early work would never be closed.
            self.background.give_up()

    # Desired pods, events, and the runtime with bounded concurrency.

    def _build_base(self) -> None:
        ports, settings, clock = self.ports, self.settings, self.ports.clock
        self.metrics = Metrics()
        self.history = PodHistory(clock=clock)
        self.manager = PodManager()
        self.events = EventRecorder(
            api=ports.api,
            node_name=settings.node_name,
            clock=clock,
            sender=ApiSender(clock=clock, what="event"),
            pod_by_uid=self.manager.pod_by_uid,
            history=self.history,
        )
        self.inbox = LoopInbox(clock=clock)
        self.storage = PodStorage(emit=self.inbox.put, record_event=self.events.record, now=clock.now)
        self.runtime = BoundedRuntime(ports.runtime, clock=clock, limits=settings.runtime_limits, observer=self.metrics)
        self.runtime_state = RuntimeState(self.runtime)
        self.node_info = NodeInfo(node=settings.node, host_ips=settings.host_ips, runtime=self.runtime)
        self.background = Background()
        self._objects: ObjectReader | None = ports.objects or ports.api
        self._restart_backoff = self._backoff(settings.restart_curve, "restart-backoff/")
        self._pull_backoff = self._backoff(settings.pull_curve, "pull-backoff/")

    def _backoff(self, curve: Curve, prefix: str) -> DurableBackoff:
        checkpoints = Checkpoints(self.ports.journal, prefix)
        return DurableBackoff(table=BackoffTable(curve), clock=self.ports.clock, checkpoints=checkpoints)

    # Observed state: cache, PLEG, statuses, probes.

    def _build_observation(self) -> None:
        clock = self.ports.clock
        self._inspection_clock = IncreasingClock(clock)
        self._states = WorkerTable(self.settings.timing)
        self.cache = PodCache()
        self.orphans = None if self.ports.api is None else OrphanCheck(api=self.ports.api, clock=clock)
        self.facts = PodFacts(
            storage=self.storage,
            pods=self.manager,
            cache=self.cache,
            states=self._states,
            inbox=self.inbox,
            sources=[source.name for source in self.ports.sources],
            orphans=self.orphans,
        )
        self.pleg = Pleg(
            runtime=self.runtime,
            cache=self.cache,
            emit=self.inbox.put,
            clock=clock,
            inspection_clock=self._inspection_clock,
            timing=self.settings.relisting,
            observer=self.metrics,
        )
        self.statuses = StatusManager(
            api=self.ports.api,
            pods=self.manager,
            could_run=self.facts.could_have_running_containers,
            clock=clock,
            sender=ApiSender(clock=clock, what="status"),
            checkpoints=Checkpoints(self.ports.journal, "status/"),
            observer=self.metrics,
            is_outdated=is_outdated_mirror,
            would_revive=would_revive,
            align=aligned_with,
            only_running_is_ready=True,
            is_needed=self.facts.needs_status,
        )
        self.statuses.subscribe(self.history.status_changed)
        # Subscribed after the inbox: the loop handles the update later, and finds the restored statuses then.
        self.storage.subscribe(self.statuses.restore_added)
        self.probes = ProbeManager(
            execute=ProbeExecutor(runtime=self.runtime, prober=self.ports.prober, version=KUBERNETES_VERSION).execute,
            status_of=self.statuses.get_pod_status,
            send=self.inbox.put,
            record_event=self.events.record,
            clock=clock,
            observer=self.metrics,
        )

    # Execution of plans on the runtime.

    def _build_execution(self) -> None:
        clock, record_event, spawn = self.ports.clock, self.events.record, self.background.spawn
        hooks = HookRunner(
            commands=self.runtime, prober=self.ports.prober, record_event=record_event, version=KUBERNETES_VERSION
        )
        stopper = PodStopper(runtime=self.runtime, hooks=hooks, clock=clock, record_event=record_event, spawn=spawn)
        self._pull_manager = self._image_pull_manager(self.ports.pull_journal)
        starter = ContainerStarter(
            runtime=self.runtime,
            images=ImageManager(
                runtime=self.runtime,
                clock=clock,
                record_event=record_event,
                spawn=spawn,
                backoff=self._pull_backoff,
                curve=self.settings.pull_curve,
                observer=self.metrics,
                node_configs=self.ports.node_pull_configs,
                pull_manager=self._pull_manager,
            ),
            hooks=hooks,
            stopper=stopper,
            objects=self._objects,
            restarts=self._restart_backoff,
            claim=self.probes.claim,
            clock=clock,
            record_event=record_event,
            host_ips=self.node_info.host_ips,
            allocatable=self.node_info.allocatable,
            curve=self.settings.restart_curve,
            may_start=self.facts.may_start,
        )
        self.executor = PlanExecutor(
            runtime=self.runtime,
            starter=starter,
            stopper=stopper,
            record_event=record_event,
            host_ips=self.node_info.host_ips,
            log_root=self.settings.log_root,
            cluster_domain=self.settings.cluster_domain,
            lookup=self.settings.lookup,
            observer=self.metrics,
            may_start=self.facts.may_start,
        )

    # Syncs of single pods.

    def _build_sync(self) -> None:
        clock, record_event = self.ports.clock, self.events.record
        self.mirrors = self._mirror_client()
        self.syncer = PodSyncer(
            statuses=self.statuses,
            probes=self.probes,
            executor=self.executor,
            pod_setup=PodSetup(
                volumes=self.ports.volumes,
                cgroups=self.ports.cgroups,
                record_event=record_event,
                spawn=self.background.spawn,
            ),
            mirrors=self.mirrors,
            pull_secrets=self._pull_secrets(),
            cache=self.cache,
            inspection_clock=self._inspection_clock,
            node=self.node_info.view,
            runtime_state=self.runtime_state,
            record_event=record_event,
            clock=clock,
            static_conflicts=StaticConflicts(
                runtime=self.runtime, kill=self.executor.kill_running_pod, pods=self.manager
            ),
            observer=self.metrics,
        )
        self.workers = PodWorkers(
            syncer=self.syncer,
            cache=self.cache,
            enqueue=self.inbox.enqueue,
            record_event=record_event,
            clock=clock,
            inspection_clock=self._inspection_clock,
            states=self._states,
            static_pod_ended=self.inbox.static_pod_ended,
            add_history=self.history.add,
            observer=self.metrics,
        )

    def _mirror_client(self) -> MirrorClient:
        return MirrorClient(
            api=self.ports.api,
            pods=self.manager,
            node_name=self.settings.node_name,
            node_uid=self.node_info.uid,
        )

    def _pull_secrets(self) -> PullSecrets:
        return PullSecrets(objects=self._objects, record_event=self.events.record)

    # Decisions about all pods: admission, handlers, housekeeping, the loop.

    def _build_loop(self) -> None:
        clock, record_event = self.ports.clock, self.events.record
        deadlines = ActiveDeadlines(
            statuses=self.statuses, is_terminating=self.workers.is_pod_termination_requested, clock=clock
        )
        admission = Admission(
            node=self.node_info.node,
            workers=self.workers,
            statuses=self.statuses,
            enforcement=self.settings.enforcement,
        )
        self.preemption = Preemption(
            workers=self.workers, record_event=record_event, clock=clock, observer=self.metrics
        )
        self.eviction_manager = EvictionManager(
            workers=self.workers,
            pod_by_uid=self.manager.pod_by_uid,
            record_event=record_event,
            spawn=self.background.spawn,
            clock=clock,
            observer=self.metrics,
        )
        if self.ports.subscribe_overuse is not None:
            self.ports.subscribe_overuse(self.eviction_manager.evict)
        handlers = SyncHandlers(
            pods=self.manager,
            workers=self.workers,
            statuses=self.statuses,
            deadlines=deadlines,
            admission=admission,
            preemption=self.preemption,
            sources=[source.name for source in self.ports.sources],
            has_seen=self.storage.has_seen,
            collect_dead=self._container_deletor().delete_containers_in_pod,
            record_event=record_event,
            clock=clock,
            # The kubelet's rule waits for all sources. A static pod would not stop while the API is down (k/k 88402,
            # 116880).
            on_removal=on_removal_at_once,
            history=self.history,
            observer=self.metrics,
        )
        self.housekeeping = Housekeeping(
            pods=self.manager,
            workers=self.workers,
            runtime=self.runtime,
            statuses=self.statuses,
            probes=self.probes,
            mirrors=self.mirrors,
            admission=admission,
            clock=clock,
            volumes=self.ports.volumes,
            cgroups=self.ports.cgroups,
            remove_containers=self.executor.remove_containers,
            orphans=self.orphans,
            held=self.preemption.held,
            state_gc=self._state_gc(),
            observer=self.metrics,
            slow_calls=self.runtime.slow_calls,
            inbox=self.inbox,
            start_over=self.syncer.start_over,
        )
        self.loop = SyncLoop(
            handlers=handlers,
            inbox=self.inbox,
            deadlines=deadlines,
            housekeeping=self.housekeeping,
            runtime_state=self.runtime_state,
            clock=clock,
        )

    def _container_deletor(self) -> PodContainerDeletor:
        return PodContainerDeletor(
            executor=self.executor,
            cache=self.cache,
            workers=self.workers,
            statuses=self.statuses,
            spawn=self.background.spawn,
        )

    def _state_gc(self) -> StateGC:
        return StateGC(
            backoffs=(self._restart_backoff, self._pull_backoff),
            events=self.events,
            statuses=self.statuses,
            pods=self.manager,
            facts=self.facts,
            keep_objects=self.ports.keep_objects,
        )

    # Optional parts.

    def _image_pull_manager(self, journal: Journal | None) -> ImagePullManager | None:
        if journal is None:
            return None
        return ImagePullManager(
            intents=Checkpoints(journal, "pull-begun/"),
            pulled=Checkpoints(journal, "pulled/"),
            clock=self.ports.clock,
            verification=self.settings.verification,
        )

    def _image_gc(self, policy: GcPolicy | None) -> ImageGCManager | None:
        if policy is None:
            return None
        return ImageGCManager(
            runtime=self.runtime,
            clock=self.ports.clock,
            policy=policy,
            record_event=self.events.record_node,
            pinned=self.ports.kept_images,
            pull_manager=self._pull_manager,
            observer=self.metrics,
        )

    def _container_gc(self, period_seconds: float | None) -> ContainerGC | None:
        if period_seconds is None:
            return None
        return ContainerGC(
            runtime=self.runtime,
            collect=self.executor.collect_dead_containers,
            record_event=self.events.record_node,
            period_seconds=period_seconds,
        )

    def _log_manager(self, files: LogFiles | None) -> ContainerLogManager | None:
        if files is None:
            return None
        return ContainerLogManager(
            runtime=self.runtime,
            files=files,
            clock=self.ports.clock,
            policy=self.settings.log_policy,
            is_removed=self.facts.is_removed,
        )


def simple_node(name: str, *, cpu: str = "8", memory: str = "32Gi", pods: int = 110) -> Node:
    """Return a node with this capacity."""
    amounts = {"cpu": cpu, "memory": memory, "pods": str(pods)}
    return Node(
        metadata=ObjectMeta(name=name, uid=f"node-{name}", labels={"kubernetes.io/os": "linux"}),
        status=NodeStatus(capacity=dict(amounts), allocatable=dict(amounts)),
    )
