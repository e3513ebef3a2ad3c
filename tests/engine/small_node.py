"""A small node in virtual time: the real rooms from the workers down to a fake runtime, and a loop of a few lines.

async def scenario(node: SmallNode) -> ...:
    node.add(pod("web"))
    await asyncio.sleep(5)

in_small_node(scenario)
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from math import inf, nextafter
from typing import Any, TypeVar

from msgspec.structs import replace

from podkeeper.engine.background import Background
from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.cache import PodCache
from podkeeper.engine.executor import PlanExecutor
from podkeeper.engine.ground import Ground
from podkeeper.engine.guard import GuardedRuntime
from podkeeper.engine.hooks import HookRunner
from podkeeper.engine.images import ImageManager
from podkeeper.engine.manager import PodManager
from podkeeper.engine.mirrors import MirrorClient
from podkeeper.engine.notebook import Notebook
from podkeeper.engine.pleg import Pleg
from podkeeper.engine.postman import Postman
from podkeeper.engine.prober import ProbeExecutor
from podkeeper.engine.probes import ProbeManager
from podkeeper.engine.pull_secrets import PullSecrets
from podkeeper.engine.queue import WorkQueue
from podkeeper.engine.starter import ContainerStarter
from podkeeper.engine.status import StatusManager
from podkeeper.engine.stopper import PodStopper
from podkeeper.engine.syncer import PodSyncer
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import AgentError
from podkeeper.model.k8s.core import (
    Container,
    ContainerStatus,
    ExecAction,
    Lifecycle,
    LifecycleHandler,
    Pod,
    PodSpec,
    PodStatus,
    Probe,
    Volume,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import (
    API_SOURCE,
    CONFIG_SOURCE_ANNOTATION,
    LifecycleEvent,
    LifecycleEventType,
    PodEvent,
    PodUID,
    ProbeKind,
    ProbeResult,
    ProbeUpdate,
)
from podkeeper.model.runtime import PodRecord
from podkeeper.model.times import format_time
from podkeeper.rules.backoff import BackoffTable
from podkeeper.rules.evict import Eviction, deadline_eviction
from podkeeper.rules.keyring import PullSecret
from podkeeper.rules.status.pod import NodeView
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType
from podkeeper.runtimes.fake import Behaviour, FakeRuntime
from podkeeper.testing.fakes import FakeCgroups, FakeProber, FakeVolumes
from podkeeper.testing.virtual_time import FixedJitterClock, simulate
from tests.doubles import stand_in

T = TypeVar("T")


def container(
    name: str = "app",
    *,
    sidecar: bool = False,
    readiness: Probe | None = None,
    liveness: Probe | None = None,
    pre_stop: bool = False,
) -> Container:
    hook = Lifecycle(pre_stop=LifecycleHandler(exec=ExecAction(command=("bye",))))
    return Container(
        name=name,
        image=f"{name}:v1",
        restart_policy="Always" if sidecar else None,
        readiness_probe=readiness,
        liveness_probe=liveness,
        lifecycle=hook if pre_stop else None,
    )


def probe(period: int = 10, failures: int = 3) -> Probe:
    action = ExecAction(command=("check",))
    return Probe(exec=action, period_seconds=period, failure_threshold=failures, success_threshold=1)


def pod(
    name: str = "web",
    *containers: Container,
    init: tuple[Container, ...] = (),
    policy: str = "Always",
    grace: int = 30,
    deadline: int | None = None,
    volumes: tuple[str, ...] = (),
    source: str = API_SOURCE,
    host_network: bool = False,
) -> Pod:
    return Pod(
        metadata=ObjectMeta(
            name=name, namespace="ns", uid=f"uid-{name}", annotations={CONFIG_SOURCE_ANNOTATION: source}
        ),
        spec=PodSpec(
            containers=containers or (container(),),
            init_containers=init or None,
            restart_policy=policy,
            termination_grace_period_seconds=grace,
            active_deadline_seconds=deadline,
            volumes=tuple(Volume(name=each) for each in volumes) or None,
            host_network=host_network or None,
        ),
    )


def uid(of: Pod) -> PodUID:
    return PodUID(of.metadata.uid or "")


class FakeMirrors:
    """Notes which mirrors are wanted, and fails on order."""

    def __init__(self) -> None:
        self.wanted: list[tuple[str, bool]] = []
        self.error: AgentError | None = None

    async def ensure(self, static: Pod, mirror: Pod | None) -> None:
        self.wanted.append((static.metadata.name or "", mirror is not None))
        if self.error is not None:
            raise self.error


class FakeReferences:
    """Notes who needs config maps and secrets."""

    def __init__(self) -> None:
        self.registered: set[PodUID] = set()

    def register(self, pod: Pod) -> None:
        self.registered.add(uid(pod))

    def unregister(self, uid: PodUID) -> None:
        self.registered.discard(uid)

    async def pull_secrets(self, pod: Pod) -> tuple[PullSecret, ...]:
        return ()


class SmallNode:
    """One agent on a fake runtime. Make another one on the same runtime, and the agent was restarted."""

    def __init__(
        self,
        *,
        behaviours: Mapping[str, Behaviour] | None = None,
        delays: Mapping[str, float] | None = None,
        before: "SmallNode | None" = None,
    ) -> None:
        self.clock = FixedJitterClock()
        scripts = {("*", name): behaviour for name, behaviour in (behaviours or {}).items()}
        runtime = FakeRuntime(self.clock, behaviours=scripts, delays=delays)
        self.runtime: FakeRuntime = runtime if before is None else before.runtime
        self.volumes: FakeVolumes = FakeVolumes(self.clock) if before is None else before.volumes
        self.cgroups: FakeCgroups = FakeCgroups(self.clock) if before is None else before.cgroups
        self.mirrors, self.references, self.prober = FakeMirrors(), FakeReferences(), FakeProber()
        self.events: list[tuple[float, str, str]] = []  # (when, reason, message)
        self.phases: list[tuple[float, str, str]] = []  # (when, pod, phase) of each change
        self._phase: dict[str, str] = {}
        self.network: str | None = None
        self.evictions: dict[PodUID, Eviction] = {}
        self.pods = PodManager()
        self.queue = WorkQueue(self.clock.monotonic)
        self._last_moment = -inf
        self.pleg: Pleg
        self.syncer: PodSyncer
        self.workers: PodWorkers
        self._build()

    def _build(self) -> None:
        clock, record = self.clock, self.record
        guarded = self.guarded = GuardedRuntime(self.runtime, clock=clock)
        self.background = Background()
        self.cache = PodCache(refresh=lambda uid, since: self.pleg.request(uid, since))
        self.pleg = Pleg(runtime=guarded, cache=self.cache, emit=self.on_event, clock=clock, moment=self.moment)
        self.statuses = StatusManager(
            api=None,
            pods=self.pods,
            could_run=lambda uid: self.workers.could_have_running_containers(uid),
            clock=clock,
            postman=Postman(clock=clock, what="status"),
            notebook=Notebook(None, "status/"),
        )
        self.statuses.subscribe(self.on_status)
        hooks = HookRunner(commands=guarded, prober=self.prober, record=record, version="1.36")
        spawn = self.background.spawn
        stopper = PodStopper(runtime=guarded, hooks=hooks, clock=clock, record=record, spawn=spawn)
        restarts, pulls = (
            DurableBackoff(table=BackoffTable(), clock=clock, notebook=Notebook(None, "")) for _ in range(2)
        )
        images = ImageManager(runtime=guarded, clock=clock, record=record, spawn=spawn, pulls=pulls)
        starter = ContainerStarter(
            runtime=guarded,
            images=images,
            hooks=hooks,
            killer=stopper,
            objects=None,
            restarts=restarts,
            claim=lambda uid, name, container_id: self.probes.claim(uid, name, container_id),
            clock=clock,
            record=record,
            host_ips=lambda: ("192.0.2.1",),
            allocatable=dict,
        )
        self.executor = PlanExecutor(
            runtime=guarded,
            starter=starter,
            stopper=stopper,
            record=record,
            host_ips=lambda: ("192.0.2.1",),
            sandbox_ready=lambda pod, record: self.syncer.on_sandbox_ready(pod, record),
        )
        self.probes = ProbeManager(
            execute=ProbeExecutor(runtime=guarded, prober=self.prober, version="1.36").execute,
            status_of=self.statuses.get_pod_status,
            tell=self.on_probe,
            record=record,
            clock=clock,
        )
        self.syncer = PodSyncer(
            statuses=self.statuses,
            probes=self.probes,
            executor=self.executor,
            ground=Ground(volumes=self.volumes, cgroups=self.cgroups, record=record, spawn=spawn),
            mirrors=stand_in(MirrorClient, self.mirrors),
            references=stand_in(PullSecrets, self.references),
            look=lambda uid: self.cache.get_newer_than(uid, self.moment()),
            request_look=self.pleg.request,
            node=lambda: NodeView(runtime_name="fake", host_ips=("192.0.2.1",)),
            network_trouble=lambda: self.network,
            record=record,
            clock=clock,
            evictions=[lambda pod: self.evictions.get(uid(pod))],
        )
        self.workers = PodWorkers(
            syncer=self.syncer,
            cache=self.cache,
            enqueue=self.queue.enqueue,
            record=record,
            clock=clock,
            moment=self.moment,
        )

    def moment(self) -> float:
        self._last_moment = max(self.clock.monotonic(), nextafter(self._last_moment, inf))
        return self._last_moment

    # The loop, in a few lines.

    async def run(self) -> None:
        rooms = (self.guarded, self.background, self.pleg, self.probes, self.workers)
        async with asyncio.TaskGroup() as group:
            for room in rooms:
                group.create_task(room.run())
            while True:
                due = self.queue.next_due()
                await asyncio.sleep(1 if due is None else min(1, max(due - self.clock.monotonic() + 1e-6, 0)))
                for each in (*self.queue.get_work(), *self._past_their_deadline()):
                    self.sync(each)

    def _past_their_deadline(self) -> list[PodUID]:
        now, pods = self.clock.now(), self.pods.pods()
        return [uid(each) for each in pods if deadline_eviction(each, self.statuses.get_pod_status(uid(each)), now)]

    def sync(self, uid: PodUID) -> None:
        pod = self.pods.pod_by_uid(uid)
        if pod is not None:
            self.workers.update_pod(Update(type=UpdateType.SYNC, pod=pod, mirror_pod=self.pods.mirror_of_pod(pod)))

    def on_event(self, event: LifecycleEvent) -> None:
        if event.type is not LifecycleEventType.CONTAINER_REMOVED:
            self.sync(event.uid)

    def on_probe(self, update: ProbeUpdate) -> None:
        well = update.result is ProbeResult.SUCCESS
        if update.kind is ProbeKind.READINESS:
            self.statuses.set_container_readiness(update.uid, update.container_id, well)
        elif update.kind is ProbeKind.STARTUP:
            self.statuses.set_container_startup(update.uid, update.container_id, well)
        elif well:
            return
        self.sync(update.uid)

    def on_status(self, uid: PodUID, status: PodStatus) -> None:
        name = uid.removeprefix("uid-")
        if status.phase != self._phase.get(name):
            self._phase[name] = status.phase or ""
            self.phases.append((self.clock.monotonic(), name, self._phase[name]))

    def record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.events.append((self.clock.monotonic(), event.reason, event.message))

    # What a scenario does and sees.

    def add(self, *pods: Pod) -> None:
        for each in pods:
            self.pods.update(each)
            self.workers.update_pod(Update(type=UpdateType.CREATE, pod=each))

    def delete(self, of: Pod, grace: int | None = None) -> None:
        """Delete a pod as the API does: gracefully."""
        grace = of.spec.termination_grace_period_seconds if grace is None else grace
        meta = replace(
            of.metadata, deletion_timestamp=format_time(self.clock.now()), deletion_grace_period_seconds=grace
        )
        deleted = replace(of, metadata=meta)
        self.pods.update(deleted)
        self.workers.update_pod(Update(type=UpdateType.UPDATE, pod=deleted))

    def kill(self, of: Pod, options: KillOptions) -> None:
        self.workers.update_pod(Update(type=UpdateType.KILL, pod=of, kill=options))

    def status(self, of: Pod) -> PodStatus:
        return self.statuses.get_pod_status(uid(of)) or PodStatus()

    def is_ready(self, of: Pod) -> bool:
        return any(each.type == "Ready" and each.status == "True" for each in self.status(of).conditions or ())

    def container_status(self, of: Pod, name: str = "app") -> ContainerStatus:
        status = self.status(of)
        every = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
        return next(each for each in every if each.name == name)

    def calls(self, *operations: str, about: Pod | None = None) -> list[tuple[float, str, str]]:
        """(when it began, operation, of what) of the runtime calls so far."""
        return [
            (call.begun, call.operation, call.subject)
            for call in self.runtime.ledger
            if (not operations or call.operation in operations) and (about is None or call.about == uid(about))
        ]

    def reasons(self) -> list[str]:
        return [reason for _, reason, _ in self.events]

    def phases_of(self, of: Pod) -> list[str]:
        return [phase for _, name, phase in self.phases if name == of.metadata.name]


def in_small_node(scenario: Callable[[SmallNode], Awaitable[T]], **options: Any) -> T:
    """Play a scenario in virtual time on a node that runs; the runtime must find nothing to complain of."""

    async def play() -> T:
        node = SmallNode(**options)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(node.run())
            await asyncio.sleep(0)
            result = await scenario(node)
            running.cancel()
        assert node.runtime.violations == []
        return result

    return simulate(play())[0]
