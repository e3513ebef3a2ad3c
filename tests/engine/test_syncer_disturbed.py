"""The sync functions, with an event at every await and a failure of every call."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from msgspec.structs import replace

from podkeeper.engine.cache import PodCache
from podkeeper.engine.executor import PlanExecutor
from podkeeper.engine.mirror_client import MirrorClient
from podkeeper.engine.pod_setup import PodSetup
from podkeeper.engine.probes import ProbeManager
from podkeeper.engine.pull_secrets import PullSecrets
from podkeeper.engine.runtime_state import RuntimeState
from podkeeper.engine.status import StatusManager
from podkeeper.engine.syncer import PodSyncer
from podkeeper.model.errors import GiveUp, NotFound, RuntimeUnavailable, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import FILE_SOURCE, ProbeKind, ProbeResult
from podkeeper.model.runtime import PodRecord, RecordState
from podkeeper.rules.images.keyring import PullSecret
from podkeeper.rules.plan import PodActions
from podkeeper.rules.probe.flags import ProbeView
from podkeeper.rules.status.containers import StartFailure
from podkeeper.rules.status.pod import NodeView
from podkeeper.rules.worker.updates import UpdateType
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import BEGINNING, VirtualClock
from tests.doubles import stand_in
from tests.engine.small_node import pod
from tests.engine.test_syncer_steps import MOMENT, RUNNING, SANDBOX, WEB, SyncerHarness

STATIC = pod("web", source=FILE_SOURCE)
MIRROR = pod("web")
ERRORS: Mapping[str, Mapping[str, tuple[type[Exception], ...]]] = {
    "executor": {"execute": (TryLater,), "kill_pod": (RuntimeUnavailable,), "kill_running_pod": (RuntimeUnavailable,)},
    "pod_setup": {"prepare": (TryLater, GiveUp), "unmount": (TryLater,), "remove_cgroup": (TryLater,)},
    "mirrors": {"ensure": (NotFound,)},
    "cache": {"get_newer_than": (RuntimeUnavailable,)},
}


class DisturbedHarness(SyncerHarness):
    """A syncer with watched modules. The pod's containers run after `execute`, and have exited after a kill."""

    def __init__(self, calls: PortCalls) -> None:
        super().__init__()
        self.seen = PodRecord(uid=RUNNING.uid)
        self.calls = calls
        self.syncer = self.new_syncer()
        self.last: tuple[Pod, Pod | None] = (WEB, None)

    def new_syncer(self) -> PodSyncer:
        return PodSyncer(
            statuses=stand_in(StatusManager, self),
            probes=stand_in(ProbeManager, self),
            executor=stand_in(PlanExecutor, self.calls.watch("executor", self, ERRORS["executor"])),
            pod_setup=stand_in(PodSetup, self.calls.watch("pod_setup", self, ERRORS["pod_setup"])),
            mirrors=stand_in(MirrorClient, self.calls.watch("mirrors", self, ERRORS["mirrors"])),
            pull_secrets=stand_in(PullSecrets, self),
            cache=stand_in(PodCache, self.calls.watch("cache", self, ERRORS["cache"])),
            inspection_clock=lambda: MOMENT,
            node=lambda: self.node,
            runtime_state=stand_in(RuntimeState, self),
            record_event=self.record,
            clock=VirtualClock(),
        )

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
        if actions.create_sandbox and on_sandbox is not None:
            on_sandbox(PodRecord(uid=record.uid, sandboxes=(SANDBOX,)))
        self.seen = RUNNING
        self.step("execute")

    # What the workers call.

    async def sync(self, of: Pod = WEB, mirror: Pod | None = None) -> None:
        self.last = of, mirror
        assert not await self.syncer.sync_pod(UpdateType.SYNC, of, mirror, self.seen)

    async def sync_static(self) -> None:
        await self.sync(STATIC, MIRROR)

    async def sync_terminating(self) -> None:
        await self.syncer.sync_terminating_pod(WEB, self.seen, 30, None)
        assert all(found.state is RecordState.EXITED for found in self.seen.containers)

    async def sync_terminated(self) -> None:
        await self.syncer.sync_terminated_pod(WEB, self.seen)

    async def sync_runtime_pod(self) -> None:
        await self.syncer.sync_terminating_runtime_pod(RUNNING)

    # What is judged.

    def outcome(self) -> object:
        phase = None if self.published is None else self.published.phase
        return phase, self.seen == RUNNING, self.finished

    def holds(self) -> None:
        """A pod is only reported as finished after its volumes and its cgroup are removed."""
        if "terminate" in self.steps:
            done = self.steps[: self.steps.index("terminate")]
            assert {"unmount", "remove cgroup"} <= set(done)

    async def the_status_is_up_to_date(self) -> None:
        """A sync that finds nothing to do must not overlook anything: a new syncer publishes nothing else."""
        for _ in range(2):
            await self.sync(*self.last)
        published = self.published
        await self.new_syncer().sync_pod(UpdateType.SYNC, *self.last, self.seen)
        assert self.published == published


Run = Callable[[DisturbedHarness], Awaitable[None]]


async def start(harness: DisturbedHarness) -> None:
    """Two syncs: the second one publishes what the first one has started."""
    await harness.sync()
    await harness.sync()


async def start_static(harness: DisturbedHarness) -> None:
    await harness.sync_static()
    await harness.sync_static()


def set_up_after(*steps: Run) -> Callable[[PortCalls], AbstractAsyncContextManager[DisturbedHarness]]:
    @asynccontextmanager
    async def set_up(calls: PortCalls) -> AsyncIterator[DisturbedHarness]:
        harness = DisturbedHarness(calls)
        for step in steps:
            await step(harness)
        yield harness

    return set_up


def change_node(harness: DisturbedHarness) -> None:
    harness.node = NodeView(runtime_name="fake", host_ips=("192.0.2.9",))


def change_probes(harness: DisturbedHarness) -> None:
    """The container is not ready any more."""
    harness.probe_view = ProbeView(
        agent_started=BEGINNING,
        readiness={"fake://c1": ProbeResult.FAILURE},
        workers=frozenset({("app", ProbeKind.READINESS)}),
    )


def restart_container(harness: DisturbedHarness) -> None:
    """The container was restarted: the next sync sees it."""
    found = replace(RUNNING.containers[0], id="c2", restart_count=1)
    harness.seen = replace(RUNNING, containers=(found,))


def fail_start(harness: DisturbedHarness) -> None:
    harness.failures = {"app": StartFailure("RunContainerError", "cannot start")}


def overwrite_status(harness: DisturbedHarness) -> None:
    """Another module changes the published status, as the status manager does with a readiness flag."""
    if harness.published is not None:
        harness.published = replace(harness.published, host_ip="198.51.100.1")


EVENTS: dict[str, Event[DisturbedHarness]] = {
    "the node's address changes": change_node,
    "a probe has another result": change_probes,
    "the status is changed by another": overwrite_status,
    "a container was restarted": restart_container,
    "a container could not start": fail_start,
}


@pytest.mark.parametrize("run", [DisturbedHarness.sync, DisturbedHarness.sync_static])
def test_a_sync_without_work_misses_no_change(run: Run) -> None:
    for before in ((run,), (run, run)):  # the second sync publishes what the first one started
        operation = OperationTest(
            setup=set_up_after(*before),
            run=run,
            state=lambda _: None,
            afterwards=DisturbedHarness.the_status_is_up_to_date,
        )
        interleave(operation, EVENTS)


@pytest.mark.parametrize("run", [DisturbedHarness.sync, DisturbedHarness.sync_static])
def test_no_change_is_missed_while_a_pod_starts(run: Run) -> None:
    operation = OperationTest(
        setup=set_up_after(), run=run, state=lambda _: None, afterwards=DisturbedHarness.the_status_is_up_to_date
    )
    interleave(operation, EVENTS)


@pytest.mark.parametrize(
    ("before", "run"),
    [
        ((), start),
        ((), start_static),
        ((DisturbedHarness.sync,), DisturbedHarness.sync_terminating),
        ((DisturbedHarness.sync, DisturbedHarness.sync_terminating), DisturbedHarness.sync_terminated),
        ((), DisturbedHarness.sync_runtime_pod),
    ],
)
def test_every_call_fails_once(before: Sequence[Run], run: Run) -> None:
    operation = OperationTest(
        setup=set_up_after(*before), run=run, state=DisturbedHarness.outcome, check=DisturbedHarness.holds
    )
    interleave(operation, {})
    fail_each_call(operation, leave_out=[("pod_setup", "prepare", GiveUp)])
