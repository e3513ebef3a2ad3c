"""The rooms that execute plans, furnished for tests: the fake runtime behind its guard, all in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from podkeeper.engine.background import Background
from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.executor import PlanExecutor
from podkeeper.engine.guard import GuardedRuntime
from podkeeper.engine.hooks import HookRunner
from podkeeper.engine.images import ImageManager
from podkeeper.engine.notebook import Notebook
from podkeeper.engine.starter import ContainerStarter
from podkeeper.engine.stopper import PodStopper
from podkeeper.model.k8s.core import (
    Container,
    EphemeralContainer,
    ExecAction,
    Lifecycle,
    LifecycleHandler,
    Pod,
    PodSpec,
    SleepAction,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodEvent, PodUID
from podkeeper.model.runtime import ContainerState, PodRecord
from podkeeper.ports.api import Reader
from podkeeper.rules.backoff import BackoffTable
from podkeeper.rules.dns import Lookup
from podkeeper.rules.plan import PodActions, compute_pod_actions
from podkeeper.runtimes.fake import FakeRuntime, Operation
from podkeeper.testing.fakes import FakeProber
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock

UID = PodUID("uid-web")

STARTS = (Operation.RUN_SANDBOX, Operation.CREATE_CONTAINER, Operation.START_CONTAINER)
CHANGES = (*STARTS, Operation.STOP_CONTAINER, Operation.STOP_SANDBOX, Operation.REMOVE_CONTAINER)


def container(
    name: str,
    *,
    image: str = "",
    pre_stop: LifecycleHandler | None = None,
    post_start: LifecycleHandler | None = None,
    sidecar: bool = False,
    policy: str = "IfNotPresent",
) -> Container:
    hooks = None if pre_stop is None and post_start is None else Lifecycle(pre_stop=pre_stop, post_start=post_start)
    return Container(
        name=name,
        image=image or f"registry.example/{name}:v1",
        image_pull_policy=policy,
        lifecycle=hooks,
        restart_policy="Always" if sidecar else None,
    )


def pod(
    *apps: Container,
    init: tuple[Container, ...] = (),
    debug: tuple[EphemeralContainer, ...] = (),
    grace: int | None = 30,
    name: str = "web",
    restart_policy: str = "Always",
    annotations: dict[str, str] | None = None,
) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", annotations=annotations),
        spec=PodSpec(
            containers=apps,
            init_containers=init or None,
            ephemeral_containers=debug or None,
            termination_grace_period_seconds=grace,
            restart_policy=restart_policy,
        ),
    )


def command(*words: str) -> LifecycleHandler:
    return LifecycleHandler(exec=ExecAction(command=words))


def sleep(seconds: int) -> LifecycleHandler:
    return LifecycleHandler(sleep=SleepAction(seconds=seconds))


class House:
    """Everything that executes plans, over a fake runtime."""

    def __init__(
        self,
        objects: Reader | None = None,
        lookup: Callable[[Pod], Awaitable[Lookup]] | None = None,
        calls: PortCalls | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.fake = FakeRuntime(self.clock)
        watched = self.fake if calls is None else calls.watch("runtime", self.fake)
        self.guard = GuardedRuntime(watched, clock=self.clock)
        self.background = Background()
        self.prober = FakeProber()
        self.restarts, self.pulls = (
            DurableBackoff(table=BackoffTable(), clock=self.clock, notebook=Notebook(None, "")) for _ in range(2)
        )
        self.told: list[PodEvent] = []
        self.ready: list[PodRecord] = []
        self.ended: dict[str, tuple[float, int]] = {}  # as `note_exits` last found them
        self.claimed: list[tuple[PodUID, str, str]] = []
        self.hooks = HookRunner(commands=self.guard, prober=self.prober, record=self._record, version="1.36")
        hooks, spawn = self.hooks, self.background.spawn
        self.images = ImageManager(
            runtime=self.guard, clock=self.clock, record=self._record, spawn=spawn, pulls=self.pulls
        )
        self.stopper = PodStopper(runtime=self.guard, hooks=hooks, clock=self.clock, record=self._record, spawn=spawn)
        self.starter = ContainerStarter(
            runtime=self.guard,
            images=self.images,
            hooks=hooks,
            killer=self.stopper,
            objects=objects,
            restarts=self.restarts,
            claim=lambda uid, name, container_id: self.claimed.append((uid, name, container_id)),
            clock=self.clock,
            record=self._record,
            host_ips=lambda: ("192.0.2.1",),
            allocatable=dict,
        )
        self.executor = PlanExecutor(
            runtime=self.guard,
            starter=self.starter,
            stopper=self.stopper,
            record=self._record,
            host_ips=lambda: ("192.0.2.1",),
            lookup=lookup,
            sandbox_ready=lambda _, record: self.ready.append(record),
            max_pods_with_failures=2,
        )

    def _record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.told.append(event)

    # What a syncer would do.

    async def look(self, uid: PodUID = UID) -> PodRecord:
        return await self.fake.pod_record(uid)

    async def sync(self, of: Pod, mounts: Mapping[str, str] | None = None) -> None:
        """One pass: look, plan, execute."""
        record = await self.look(PodUID(of.metadata.uid or ""))
        actions = compute_pod_actions(of, record, {}, {})
        await self.executor.execute(of, record, actions, mounts=mounts or {}, cgroup_parent="/pods", pull_secrets=())

    def plan_is_empty(self, of: Pod, record: PodRecord) -> bool:
        """Whether a sync would find nothing to do."""
        actions = compute_pod_actions(of, record, {}, {})
        return actions == PodActions(sandbox_id=actions.sandbox_id, attempt=actions.attempt)

    async def try_sync(self, of: Pod) -> Sequence[Exception]:
        """One pass, and what it raised."""
        try:
            await self.sync(of)
        except ExceptionGroup as group:
            return group.exceptions
        return ()

    async def kill(self, of: Pod, grace: int | None = None) -> None:
        await self.executor.kill_pod(of, await self.look(PodUID(of.metadata.uid or "")), grace)

    # What happened.

    def changes(self, *operations: str) -> list[tuple[str, str]]:
        """The calls that changed something, with their subject; ids of sandboxes are left out."""
        return [
            (call.operation, "" if call.operation == Operation.STOP_SANDBOX else call.subject)
            for call in self.fake.ledger
            if call.operation in (operations or CHANGES)
        ]

    def stops(self) -> list[tuple[str, float, float]]:
        """Each stop of a container: name, when, with which grace."""
        return [
            (call.subject, call.begun, call.given)
            for call in self.fake.ledger
            if call.operation == Operation.STOP_CONTAINER
        ]

    def events(self, *reasons: str) -> list[tuple[str, str]]:
        return [(event.reason, event.message) for event in self.told if not reasons or event.reason in reasons]

    async def note_exits(self) -> None:
        """Note when each container exited, and how."""
        record = await self.look()
        began = self.clock.now().timestamp() - self.clock.monotonic()
        self.ended = {
            found.name: (round(found.finished_at.timestamp() - began, 3), found.exit_code)
            for found in record.containers
            if found.state is ContainerState.EXITED and found.finished_at is not None
        }


@asynccontextmanager
async def house(
    objects: Reader | None = None,
    lookup: Callable[[Pod], Awaitable[Lookup]] | None = None,
    calls: PortCalls | None = None,
) -> AsyncIterator[House]:
    """A house that is lived in."""
    built = House(objects, lookup, calls)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(built.guard.run()), group.create_task(built.background.run())]
        try:
            yield built
        finally:
            for task in tasks:
                task.cancel()
    assert list(built.fake.violations) == []
