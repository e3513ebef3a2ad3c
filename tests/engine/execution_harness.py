"""A plan executor for tests, on a bounded fake runtime in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from podkeeper.engine.background import Background
from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.bounded_runtime import BoundedRuntime
from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.engine.executor import PlanExecutor
from podkeeper.engine.hooks import HookRunner
from podkeeper.engine.images import ImageManager
from podkeeper.engine.starter import ContainerStarter
from podkeeper.engine.stopper import PodStopper
from podkeeper.model.k8s.core import (
    LifecycleHandler,
    Pod,
    SleepAction,
)
from podkeeper.model.messages import PodEvent, PodUID
from podkeeper.model.runtime import PodRecord, RecordState
from podkeeper.ports.api import ObjectReader
from podkeeper.rules.backoff.table import BackoffTable
from podkeeper.rules.dns import PodDns
from podkeeper.rules.plan import PodActions, compute_pod_actions
from podkeeper.runtimes.fake import FakeRuntime, Operation
from podkeeper.testing import build
from podkeeper.testing.fakes import FakeProber
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock

UID = PodUID("uid-web")

STARTS = (Operation.RUN_SANDBOX, Operation.CREATE_CONTAINER, Operation.START_CONTAINER)
CHANGES = (*STARTS, Operation.STOP_CONTAINER, Operation.STOP_SANDBOX, Operation.REMOVE_CONTAINER)


container = partial(build.container, image_pull_policy="IfNotPresent")


def sleep(seconds: int) -> LifecycleHandler:
    return LifecycleHandler(sleep=SleepAction(seconds=seconds))


class ExecutionHarness:
    """A plan executor with its starter, stopper and images on a fake runtime."""

    def __init__(
        self,
        objects: ObjectReader | None = None,
        lookup: Callable[[Pod], Awaitable[PodDns]] | None = None,
        calls: PortCalls | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.fake = FakeRuntime(self.clock)
        watched = self.fake if calls is None else calls.watch("runtime", self.fake)
        self.bounded = BoundedRuntime(watched, clock=self.clock)
        self.background = Background()
        self.prober = FakeProber()
        self.restarts, self.pull_backoff = (
            DurableBackoff(table=BackoffTable(), clock=self.clock, checkpoints=Checkpoints(None, "")) for _ in range(2)
        )
        self.recorded: list[PodEvent] = []
        self.ready: list[PodRecord] = []
        self.ended: dict[str, tuple[float, int]] = {}  # set by `note_exits`
        self.claimed: list[tuple[PodUID, str, str]] = []
        self.hooks = HookRunner(commands=self.bounded, prober=self.prober, record_event=self._record, version="1.36")
        hooks, spawn = self.hooks, self.background.spawn
        self.images = ImageManager(
            runtime=self.bounded, clock=self.clock, record_event=self._record, spawn=spawn, backoff=self.pull_backoff
        )
        self.stopper = PodStopper(
            runtime=self.bounded, hooks=hooks, clock=self.clock, record_event=self._record, spawn=spawn
        )
        self.starter = ContainerStarter(
            runtime=self.bounded,
            images=self.images,
            hooks=hooks,
            stopper=self.stopper,
            objects=objects,
            restarts=self.restarts,
            claim=lambda uid, name, container_id: self.claimed.append((uid, name, container_id)),
            clock=self.clock,
            record_event=self._record,
            host_ips=lambda: ("192.0.2.1",),
            allocatable=dict,
        )
        self.executor = PlanExecutor(
            runtime=self.bounded,
            starter=self.starter,
            stopper=self.stopper,
            record_event=self._record,
            host_ips=lambda: ("192.0.2.1",),
            lookup=lookup,
            max_pods_with_failures=2,
        )

    def _record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.recorded.append(event)

    # What a syncer does.

    async def inspect(self, uid: PodUID = UID) -> PodRecord:
        return await self.fake.pod_record(uid)

    async def sync(self, of: Pod, mounts: Mapping[str, str] | None = None) -> None:
        """Run one sync: inspect, plan, execute."""
        record = await self.inspect(PodUID(of.metadata.uid or ""))
        actions = compute_pod_actions(of, record, {}, {})
        await self.executor.execute(
            of,
            record,
            actions,
            mounts=mounts or {},
            cgroup_parent="/pods",
            pull_secrets=(),
            on_sandbox=self.ready.append,
        )

    def plan_is_empty(self, of: Pod, record: PodRecord) -> bool:
        """Return whether a sync would find nothing to do."""
        actions = compute_pod_actions(of, record, {}, {})
        return actions == PodActions(sandbox_id=actions.sandbox_id, attempt=actions.attempt)

    async def try_sync(self, of: Pod) -> Sequence[Exception]:
        """Run one sync and return the errors that it raised."""
        try:
            await self.sync(of)
        except ExceptionGroup as group:
            return group.exceptions
        return ()

    async def kill(self, of: Pod, grace: int | None = None) -> None:
        await self.executor.kill_pod(of, await self.inspect(PodUID(of.metadata.uid or "")), grace)

    # What happened.

    def changes(self, *operations: str) -> list[tuple[str, str]]:
        """Return the mutating calls with their subjects. IDs of sandboxes are omitted."""
        return [
            (call.operation, "" if call.operation == Operation.STOP_SANDBOX else call.subject)
            for call in self.fake.call_log
            if call.operation in (operations or CHANGES)
        ]

    def stops(self) -> list[tuple[str, float, float]]:
        """Return name, time and grace period of each stop of a container."""
        return [
            (call.subject, call.begun, call.given)
            for call in self.fake.call_log
            if call.operation == Operation.STOP_CONTAINER
        ]

    def events(self, *reasons: str) -> list[tuple[str, str]]:
        return [(event.reason, event.message) for event in self.recorded if not reasons or event.reason in reasons]

    async def note_exits(self) -> None:
        """Store the time and the exit code of each exited container in `ended`."""
        record = await self.inspect()
        began = self.clock.now().timestamp() - self.clock.monotonic()
        self.ended = {
            found.name: (round(found.finished_at.timestamp() - began, 3), found.exit_code)
            for found in record.containers
            if found.state is RecordState.EXITED and found.finished_at is not None
        }


@asynccontextmanager
async def running_harness(
    objects: ObjectReader | None = None,
    lookup: Callable[[Pod], Awaitable[PodDns]] | None = None,
    calls: PortCalls | None = None,
) -> AsyncIterator[ExecutionHarness]:
    """A harness whose background tasks run."""
    built = ExecutionHarness(objects, lookup, calls)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(built.bounded.run()), group.create_task(built.background.run())]
        try:
            yield built
        finally:
            for task in tasks:
                task.cancel()
    assert list(built.fake.violations) == []
