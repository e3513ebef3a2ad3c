"""The sync functions step by step: order, repetition after a crash, syncs without work."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
from podkeeper.model.errors import GiveUp, InBackoff, NetworkNotReady, RuntimeRefused, TryLater
from podkeeper.model.k8s.core import (
    EphemeralContainer,
    LocalObjectReference,
    Pod,
    PodStatus,
    Probe,
)
from podkeeper.model.messages import (
    CONFIG_FIRST_SEEN_ANNOTATION,
    FILE_SOURCE,
    EventType,
    PodEvent,
    PodUID,
    ProbeKind,
    ProbeResult,
)
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime import ContainerRecord, NetworkMode, PodRecord, RecordState, SandboxRecord
from podkeeper.rules.container.grace import KillReason
from podkeeper.rules.container.hash import container_hash
from podkeeper.rules.evict import PAST_DEADLINE
from podkeeper.rules.images.keyring import PullSecret
from podkeeper.rules.plan import PodActions
from podkeeper.rules.plan.actions import ContainerToKill
from podkeeper.rules.probe.flags import ProbeView
from podkeeper.rules.status.containers import StartFailure
from podkeeper.rules.status.pod import NodeView
from podkeeper.rules.worker.updates import UpdateType
from podkeeper.testing.build import container
from podkeeper.testing.virtual_time import BEGINNING, VirtualClock, simulate
from tests.doubles import stand_in
from tests.engine.small_node import pod
from tests.violations import violation

MOMENT = 1.0
WEB = pod("web")
STATIC = pod("web", source=FILE_SOURCE)
WITH_SECRET = replace(WEB, spec=replace(WEB.spec, image_pull_secrets=(LocalObjectReference(name="registry"),)))
SANDBOX = SandboxRecord(id="s1", ready=True, network=NetworkMode.POD, ip="10.0.0.1", created_at=BEGINNING)


def record_of(of: Pod, state: RecordState, exit_code: int = 0) -> PodRecord:
    spec = of.spec.containers[0]
    found = ContainerRecord(
        id="c1",
        name=spec.name,
        state=state,
        spec_hash=container_hash(spec),
        sandbox_id="s1",
        created_at=BEGINNING,
        started_at=BEGINNING,
        finished_at=BEGINNING if state is RecordState.EXITED else None,
        exit_code=exit_code,
    )
    return PodRecord(
        uid=uid_of(of), name="web", namespace="ns", ips=("10.0.0.1",), sandboxes=(SANDBOX,), containers=(found,)
    )


NOTHING = PodRecord(uid=uid_of(WEB))
RUNNING = record_of(WEB, RecordState.RUNNING)
STOPPED = record_of(WEB, RecordState.EXITED, 3)


class Crash(BaseException):
    """The agent is killed."""


@dataclass(frozen=True)
class Prepared:
    cgroup_parent: str = "/pods"
    host_paths: Mapping[str, str] = field(default_factory=lambda: {"data": "/volumes/data"})


@dataclass(frozen=True)
class Execution:
    """What the executor is given, besides the pod."""

    record: PodRecord
    actions: PodActions
    mounts: Mapping[str, str]
    cgroup_parent: str
    pull_secrets: Sequence[PullSecret]


class SyncerHarness:
    """A syncer, and all modules that it calls. Records each step, and crashes before a chosen one.

    If `bare`, the syncer has none of its optional modules.
    """

    def __init__(self, *, bare: bool = False) -> None:
        self.steps: list[str] = []
        self.dies_before: int | None = None
        self.failing: dict[str, BaseException] = {}
        self.meanwhile: dict[str, Callable[[], None]] = {}  # happens once, in the middle of a step
        self.published: PodStatus | None = None
        self.refuses = False  # the status manager takes no status
        self.published_statuses: list[PodStatus] = []
        self.events: list[tuple[str, str]] = []
        self.recorded: list[tuple[PodEvent, Pod | PodRecord | None]] = []
        self.seen = RUNNING
        self.after_kill = STOPPED
        self.node = NodeView(runtime_name="fake", host_ips=("192.0.2.1",))
        self.network_error: str | None = None
        self.probe_view = ProbeView(agent_started=BEGINNING)
        self.failures: Mapping[str, StartFailure] = {}
        self.will_fail_with = self.failures
        self.executions: list[Execution] = []
        self.liveness_results: Mapping[str, ProbeResult] = {}
        self.started: Mapping[str, ProbeResult] = {}
        self.secrets: Sequence[PullSecret] = ()
        self.finished = False
        self.restarted: list[PodUID] = []
        self.on_sandbox: Callable[[PodRecord], None]
        self.seconds: list[tuple[str, float]] = []
        self.inspections_requested = 0
        optional: dict[str, Any] = {
            "static_conflicts": self,
            "observer": self,
        }
        self.syncer = PodSyncer(
            statuses=stand_in(StatusManager, self),
            probes=stand_in(ProbeManager, self),
            executor=stand_in(PlanExecutor, self),
            pod_setup=stand_in(PodSetup, self),
            mirrors=stand_in(MirrorClient, self),
            pull_secrets=stand_in(PullSecrets, self),
            cache=stand_in(PodCache, self),
            inspection_clock=lambda: MOMENT,
            node=lambda: self.node,
            runtime_state=stand_in(RuntimeState, self),
            record_event=self.record,
            clock=VirtualClock(),
            **({} if bare else optional),
        )

    def step(self, name: str) -> None:
        if self.dies_before == len(self.steps):
            raise Crash
        self.steps.append(name)
        if name in self.meanwhile:
            self.meanwhile.pop(name)()
        if name in self.failing:
            raise self.failing[name]

    # Statuses.

    def get_pod_status(self, uid: PodUID) -> PodStatus | None:
        return self.published

    def set_pod_status(self, pod: Pod, status: PodStatus) -> bool:
        self.step("status")
        changed = status != self.published and not self.refuses
        if changed:
            self.published = status
            self.published_statuses.append(status)
        return changed

    def start_over(self, uid: PodUID) -> None:
        self.restarted.append(uid)

    def terminate_pod(self, pod: Pod) -> None:
        self.step("terminate")
        self.finished = True

    # Probes.

    def add_pod(self, pod: Pod) -> None:
        self.step("probe")

    def stop_liveness_and_startup(self, pod: Pod) -> None:
        self.step("stop liveness")

    def remove_pod(self, uid: PodUID) -> None:
        self.step("stop probes")

    def wake(self, uid: PodUID, containers: Iterable[str]) -> None:
        self.step(f"wake {' '.join(containers)}")

    def view(self, uid: PodUID) -> ProbeView:
        return self.probe_view

    def liveness(self, uid: PodUID) -> Mapping[str, ProbeResult]:
        return self.liveness_results

    def startup(self, uid: PodUID) -> Mapping[str, ProbeResult]:
        return self.started

    # Executor.

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
        assert on_sandbox is not None
        self.on_sandbox = on_sandbox
        self.executions.append(Execution(record, actions, mounts, cgroup_parent, pull_secrets))
        self.failures = self.will_fail_with
        self.step("execute")

    def failures_of(self, uid: PodUID) -> Mapping[str, StartFailure]:
        return self.failures

    def clear_failures(self, record: PodRecord) -> None:
        assert record.uid == uid_of(WEB)

    async def kill_pod(self, pod: Pod, record: PodRecord, grace_seconds: int | None) -> None:
        self.step(f"kill {grace_seconds}")
        self.seen = self.after_kill

    async def kill_running_pod(self, record: PodRecord, grace_seconds: int) -> None:
        self.step(f"kill running {grace_seconds}")

    async def collect_dead_containers(self, record: PodRecord, *, everything: bool) -> None:
        assert everything
        self.step(f"collect {len(record.containers)} dead")

    def forget(self, uid: PodUID) -> None:
        self.step("forget")

    # PodSetup, mirrors, pull secrets.

    async def prepare(self, pod: Pod) -> Prepared:
        self.step("prepare")
        return Prepared()

    async def unmount(self, uid: PodUID) -> None:
        self.step("unmount")

    async def remove_cgroup(self, uid: PodUID) -> None:
        self.step("remove cgroup")

    async def ensure(self, static: Pod, mirror: Pod | None) -> None:
        self.step("mirror")

    async def pull_secrets(self, pod: Pod) -> Sequence[PullSecret]:
        self.step("pull secrets")
        return self.secrets

    async def resolve(self, static: Pod) -> None:
        self.step("static_conflicts")

    # The rest.

    async def get_newer_than(self, uid: PodUID, since: float | None) -> PodRecord:
        assert since == MOMENT
        self.step("inspect")
        return self.seen

    def request(self, uid: PodUID) -> None:
        if uid != WEB.metadata.uid:
            raise violation(f"an inspection of pod {uid!r}, which no test has")
        self.inspections_requested += 1

    def record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.recorded.append((event, about))
        self.events.append((event.reason, event.message))

    def first_sync_started(self, seconds: float) -> None:
        self.seconds.append(("first sync", seconds))

    def pod_running(self, seconds: float) -> None:
        self.seconds.append(("running", seconds))


async def sync(harness: SyncerHarness, of: Pod = WEB, record: PodRecord = NOTHING, mirror: Pod | None = None) -> bool:
    return await harness.syncer.sync_pod(UpdateType.SYNC, of, mirror, record)


async def start_over(harness: SyncerHarness) -> None:
    harness.syncer.start_over(uid_of(WEB))
    harness.seen = NOTHING
    await sync(harness, record=STOPPED)


async def terminating(harness: SyncerHarness) -> None:
    await harness.syncer.sync_terminating_pod(WEB, RUNNING, 30, None)


async def terminated(harness: SyncerHarness) -> None:
    await harness.syncer.sync_terminated_pod(WEB, STOPPED)


async def orphaned(harness: SyncerHarness) -> None:
    await harness.syncer.sync_terminating_runtime_pod(RUNNING)


def run_scenario(scenario: Callable[[SyncerHarness], Awaitable[object]], *, bare: bool = False) -> SyncerHarness:
    async def run() -> SyncerHarness:
        harness = SyncerHarness(bare=bare)
        await scenario(harness)
        await asyncio.sleep(0)
        return harness

    return simulate(run())[0]


ORDERS: dict[str, tuple[Callable[[SyncerHarness], Awaitable[object]], list[str]]] = {
    "a sync prepares the pod before anything starts": (
        sync,
        ["status", "prepare", "probe", "execute"],
    ),
    "a static pod also gets its mirror pod": (
        lambda harness: sync(harness, STATIC),
        ["status", "mirror", "prepare", "probe", "static_conflicts", "execute"],
    ),
    "a static pod with a sandbox does not wait for a predecessor": (
        lambda harness: sync(harness, STATIC, PodRecord(uid=uid_of(WEB), sandboxes=(SANDBOX,))),
        ["status", "mirror", "prepare", "probe", "execute"],
    ),
    "pull secrets are read before the plan is executed, if the pod names any": (
        lambda harness: sync(harness, WITH_SECRET),
        ["status", "prepare", "probe", "pull secrets", "execute"],
    ),
    "a pod that ended gets nothing more": (
        lambda harness: sync(harness, pod("web", policy="Never"), record_of(WEB, RecordState.EXITED, 1)),
        ["status"],
    ),
    "a pod that starts over has lost its dead containers before anything else": (
        start_over,
        ["collect 1 dead", "inspect", "status", "prepare", "probe", "execute"],
    ),
    "terminating publishes, stops, inspects and publishes": (
        terminating,
        ["status", "stop liveness", "kill 30", "stop probes", "inspect", "status"],
    ),
    "terminated releases volumes and cgroup, then reports": (
        terminated,
        ["status", "unmount", "remove cgroup", "terminate", "forget"],
    ),
    "a runtime-only pod has no status": (orphaned, ["kill running 1"]),
}


@pytest.mark.parametrize("function, steps", ORDERS.values(), ids=ORDERS.keys())
def test_a_sync_function_takes_its_steps_in_order(
    function: Callable[[SyncerHarness], Awaitable[object]], steps: list[str]
) -> None:
    assert run_scenario(function).steps == steps


@pytest.mark.parametrize("function, steps", ORDERS.values(), ids=ORDERS.keys())
def test_a_crash_before_any_step_is_recovered_by_running_the_function_again(
    function: Callable[[SyncerHarness], Awaitable[object]], steps: list[str]
) -> None:
    uninterrupted = run_scenario(function)
    for number in range(len(steps)):

        async def crashing(harness: SyncerHarness, number: int = number) -> None:
            harness.dies_before = number
            with pytest.raises(Crash):
                await function(harness)
            harness.dies_before = None
            await function(harness)

        recovered = run_scenario(crashing)
        assert recovered.steps == steps[:number] + steps
        assert (recovered.published, recovered.finished) == (uninterrupted.published, uninterrupted.finished)


def test_an_error_is_raised_and_ends_the_sync() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        for name, error in (
            ("prepare", TryLater("cannot mount volume data")),
            ("execute", InBackoff("cannot start", BEGINNING)),
        ):
            harness.failing = {name: error}
            with pytest.raises(type(error)):
                await sync(harness)
            assert harness.steps[-1] == name
        assert harness.inspections_requested == 0

    assert run_scenario(scenario).inspections_requested == 1  # the inspection follows the sync


def test_all_failures_of_a_plan_are_raised_and_published_at_once() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        failures = ExceptionGroup("cannot start", [InBackoff("cannot start app", BEGINNING), TryLater("cannot pull")])
        harness.failing = {"execute": failures}
        harness.will_fail_with = {"app": StartFailure("CrashLoopBackOff", "back-off 10s")}
        with pytest.raises(ExceptionGroup) as raised:
            await sync(harness)
        assert raised.value is failures

    statuses = (run_scenario(scenario).published or PodStatus()).container_statuses or ()
    assert [each.state.waiting.reason for each in statuses if each.state.waiting] == ["CrashLoopBackOff"]


ENDS: dict[str, BaseException | None] = {
    "success": None,
    "with a failed start": ExceptionGroup("cannot start", [TryLater("cannot pull")]),
    "cancelled": asyncio.CancelledError(),
    "with an unexpected error": RuntimeError("a bug"),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_a_record_from_one_sync_is_not_used_by_the_next(end: BaseException | None) -> None:
    """The next sync that fails publishes what it was given: a container that runs by then is shown as running."""
    both = pod("web", container("app"), container("proxy"))
    sandbox_only = PodRecord(uid=uid_of(both), name="web", namespace="ns", ips=("10.0.0.1",), sandboxes=(SANDBOX,))
    first, second = {"proxy": StartFailure("ErrImagePull")}, {"proxy": StartFailure("ImagePullBackOff")}

    async def scenario(harness: SyncerHarness) -> None:
        harness.meanwhile["execute"] = lambda: harness.on_sandbox(sandbox_only)
        harness.will_fail_with = first
        if end is None:
            await sync(harness, both)
        else:
            harness.failing = {"execute": end}
            with pytest.raises(type(end)):
                await sync(harness, both)
        harness.failing = {"execute": TryLater("cannot start proxy")}
        harness.will_fail_with = second
        with pytest.raises(TryLater):
            await sync(harness, both, record_of(both, RecordState.RUNNING))

    statuses = {each.name: each for each in (run_scenario(scenario).published or PodStatus()).container_statuses or ()}
    assert statuses["app"].state.running is not None
    assert statuses["proxy"].state.waiting is not None
    assert statuses["proxy"].state.waiting.reason == "ImagePullBackOff"


def test_a_failed_start_is_published_with_the_sandbox_of_the_same_sync() -> None:
    sandbox_only = PodRecord(uid=uid_of(WEB), name="web", namespace="ns", ips=("10.0.0.1",), sandboxes=(SANDBOX,))

    async def scenario(harness: SyncerHarness) -> None:
        harness.meanwhile["execute"] = lambda: harness.on_sandbox(sandbox_only)
        harness.failing = {"execute": TryLater("cannot pull")}
        harness.will_fail_with = {"app": StartFailure("ErrImagePull")}
        with pytest.raises(TryLater):
            await sync(harness)

    status = run_scenario(scenario).published or PodStatus()
    assert status.pod_ip == "10.0.0.1"
    assert [each.state.waiting.reason for each in status.container_statuses or () if each.state.waiting] == [
        "ErrImagePull"
    ]


def test_a_new_sandbox_is_published_before_its_containers_start() -> None:
    sandbox_only = PodRecord(uid=uid_of(WEB), name="web", namespace="ns", ips=("10.0.0.1",), sandboxes=(SANDBOX,))

    async def scenario(harness: SyncerHarness) -> None:
        harness.meanwhile["execute"] = lambda: harness.on_sandbox(sandbox_only)
        await sync(harness)
        assert [status.pod_ip for status in harness.published_statuses] == [None, "10.0.0.1"]

    run_scenario(scenario)


def test_running_containers_have_probes_before_their_first_status() -> None:
    probed = pod("web", container(readiness=Probe()))

    async def scenario(harness: SyncerHarness) -> None:
        await sync(harness, probed, record_of(probed, RecordState.RUNNING))
        assert harness.steps[:2] == ["probe", "status"]
        harness.steps.clear()
        app = RUNNING.containers[0]
        await sync(harness, probed, replace(RUNNING, containers=(app, replace(app, state=RecordState.EXITED))))
        assert harness.steps[:2] == ["probe", "status"]
        harness.steps.clear()
        harness.probe_view = ProbeView(agent_started=BEGINNING, workers=frozenset({("app", ProbeKind.READINESS)}))
        await sync(harness, probed, record_of(probed, RecordState.RUNNING))
        assert harness.steps[0] == "status"

    run_scenario(scenario)


def test_a_container_that_only_waits_for_its_readiness_probe_is_probed_at_once() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        harness.probe_view = ProbeView(agent_started=BEGINNING, workers=frozenset({("app", ProbeKind.READINESS)}))
        await sync(harness, record=RUNNING)
        assert harness.steps[:2] == ["status", "wake app"]

    run_scenario(scenario)


def test_the_start_duration_counts_from_first_seen() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        for seen in ("2025-12-31T23:59:50.000000000Z", "long ago"):
            meta = replace(WEB.metadata, annotations={CONFIG_FIRST_SEEN_ANNOTATION: seen})
            web = replace(WEB, metadata=meta)
            harness.published = None
            await harness.syncer.sync_pod(UpdateType.CREATE, web, None, NOTHING)
            await sync(harness, web, RUNNING)
            await sync(harness, web, RUNNING)
        assert harness.seconds == [("first sync", 10.0), ("running", 10.0)]

    run_scenario(scenario)


def test_without_a_network_nothing_is_prepared() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        harness.network_error = "no plugin"
        with pytest.raises(NetworkNotReady, match="cannot start pod ns/web: network is not ready: no plugin"):
            await sync(harness)
        assert harness.steps == ["status"]
        assert harness.events == [("NetworkNotReady", "network is not ready: no plugin")]

    run_scenario(scenario)


def test_a_mirror_pod_error_does_not_stop_the_sync() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        harness.failing = {"mirror": TryLater("cannot reach the API")}
        assert not await sync(harness, pod("web", source=FILE_SOURCE))
        assert harness.steps[-1] == "execute"

    run_scenario(scenario)


APP = RUNNING.containers[0]
STILL_RUNNING = {
    "app": (APP,),
    "app, web": (replace(APP, name="web"), replace(APP, name="done", state=RecordState.EXITED), APP),
}


@pytest.mark.parametrize("named, containers", STILL_RUNNING.items())
def test_all_containers_that_run_after_a_kill_are_named_in_order(
    named: str, containers: tuple[ContainerRecord, ...]
) -> None:
    async def scenario(harness: SyncerHarness) -> None:
        harness.after_kill = replace(RUNNING, containers=containers)
        with pytest.raises(TryLater, match=rf"containers still running: {named}$"):
            await terminating(harness)
        assert harness.steps[-1] == "inspect"

    run_scenario(scenario)


def test_a_failed_kill_is_recorded_and_probes_continue() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        harness.failing = {"kill 30": ExceptionGroup("cannot kill", [RuntimeRefused("cannot stop app")])}
        with pytest.raises(ExceptionGroup):
            await terminating(harness)
        assert harness.events == [("FailedKillPod", "error killing pod: cannot stop app")]
        assert "stop probes" not in harness.steps

    run_scenario(scenario)


def test_the_last_status_keeps_addresses_and_exit_codes() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        harness.after_kill = PodRecord(uid=STOPPED.uid, containers=STOPPED.containers)
        await terminating(harness)
        await harness.syncer.sync_terminated_pod(WEB, NOTHING)  # and nothing is left of it by now

    status = run_scenario(scenario).published or PodStatus()
    ended = (status.container_statuses or ())[0].state.terminated
    assert ended is not None
    assert (status.phase, ended.exit_code) == ("Failed", 3)
    assert run_scenario(terminating).published_statuses[-1].pod_ip == "10.0.0.1"


@pytest.mark.parametrize("end", [terminating, terminated])
def test_a_failed_start_does_not_hide_the_exit_of_a_container_in_the_last_status(
    end: Callable[[SyncerHarness], Awaitable[None]],
) -> None:
    """The answer of the start was lost, and the container exited before any sync saw it running."""

    async def scenario(harness: SyncerHarness) -> None:
        harness.failures = {"app": StartFailure("RunContainerError", "the answer was lost")}
        await end(harness)
        assert harness.published is not None
        assert [each.state.terminated is not None for each in harness.published.container_statuses or ()] == [True]

    run_scenario(scenario)


def test_the_status_function_sets_the_status_before_the_kill() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        def touched(status: PodStatus) -> PodStatus:
            assert harness.steps == []
            return PodStatus(phase="Failed", reason="Evicted", container_statuses=status.container_statuses)

        await harness.syncer.sync_terminating_pod(WEB, RUNNING, None, touched)

    harness = run_scenario(scenario)
    assert [status.reason for status in harness.published_statuses] == ["Evicted", "Evicted"]


NOT_SKIPPED: dict[str, Callable[[SyncerHarness], Awaitable[object]]] = {
    "another version of the pod": lambda harness: sync(harness, pod("web", grace=1), RUNNING),
    "another mirror": lambda harness: sync(harness, WEB, RUNNING, WEB),
    "another record": lambda harness: sync(harness, WEB, STOPPED),
}
CHANGES: dict[str, Callable[[SyncerHarness], None]] = {
    "a probe's result": lambda harness: setattr(harness, "probe_view", ProbeView(agent_started=BEGINNING)),
    "another status": lambda harness: setattr(harness, "published", PodStatus(phase="Running")),
    "a failed start": lambda harness: setattr(harness, "failures", {"app": StartFailure("ErrImagePull")}),
    "another address of the node": lambda harness: setattr(harness, "node", NodeView(runtime_name="fake")),
}


async def settle(harness: SyncerHarness) -> None:
    """Sync a pod that runs until nothing is left to do."""
    await sync(harness, record=RUNNING)
    await sync(harness, record=RUNNING)
    harness.steps.clear()


def test_a_sync_of_an_unchanged_pod_calls_no_module() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        await settle(harness)
        assert not await sync(harness, record=record_of(WEB, RecordState.RUNNING))  # equal, if not the same
        assert harness.steps == []
        assert harness.inspections_requested == 0

    run_scenario(scenario)


@pytest.mark.parametrize("sync_function", NOT_SKIPPED.values(), ids=NOT_SKIPPED.keys())
def test_a_changed_reason_causes_a_full_sync(sync_function: Callable[[SyncerHarness], Awaitable[object]]) -> None:
    async def scenario(harness: SyncerHarness) -> None:
        await settle(harness)
        await sync_function(harness)
        assert harness.steps[0] == "status"

    run_scenario(scenario)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_causes_a_full_sync(change: Callable[[SyncerHarness], None]) -> None:
    async def scenario(harness: SyncerHarness) -> None:
        await settle(harness)
        change(harness)
        await sync(harness, record=RUNNING)
        assert harness.steps[0] == "status"

    run_scenario(scenario)


@pytest.mark.parametrize("step", ["prepare", "probe"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_during_a_sync_causes_another_sync(change: Callable[[SyncerHarness], None], step: str) -> None:
    async def scenario(harness: SyncerHarness) -> None:
        await sync(harness, record=RUNNING)
        harness.meanwhile[step] = lambda: change(harness)
        await sync(harness, record=RUNNING)
        harness.steps.clear()
        await sync(harness, record=RUNNING)
        assert harness.steps[0] == "status"

    run_scenario(scenario)


def test_a_lost_network_causes_a_full_sync() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        await settle(harness)
        harness.network_error = "gone"
        with pytest.raises(NetworkNotReady):
            await sync(harness, record=RUNNING)
        harness.network_error = None
        harness.steps.clear()
        await sync(harness, record=RUNNING)
        assert harness.steps[0] == "status"  # after a sync that failed, the next one is not skipped

    run_scenario(scenario)


def test_a_sync_of_a_static_pod_without_a_mirror_pod_is_never_skipped() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        static = pod("web", source=FILE_SOURCE)
        for _ in range(3):
            harness.steps.clear()
            await sync(harness, static, RUNNING)
            assert "mirror" in harness.steps

    run_scenario(scenario)


# What is passed on.


def test_the_executor_gets_mounts_cgroup_and_secrets() -> None:
    secrets = (PullSecret("{}"),)

    async def scenario(harness: SyncerHarness) -> None:
        harness.secrets = secrets
        await sync(harness, WITH_SECRET)
        await sync(harness)
        expected = PodActions(kill_pod=True, create_sandbox=True, containers_to_start=(0,))
        mounts = {"data": "/volumes/data"}
        assert harness.executions == [
            Execution(NOTHING, expected, mounts, "/pods", secrets),
            Execution(NOTHING, expected, mounts, "/pods", ()),
        ]

    run_scenario(scenario)


def test_the_executor_gets_the_addresses_that_the_status_shows() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        own = pod("web", host_network=True)
        await sync(harness, own, replace(record_of(own, RecordState.EXITED, 1), ips=()))
        assert [each.record.ips for each in harness.executions] == [("192.0.2.1",)]

    run_scenario(scenario)


INIT = pod("web", init=(container("setup"),))
DEBUGGED = replace(WEB, spec=replace(WEB.spec, ephemeral_containers=(EphemeralContainer(name="debug"),)))
IN_SANDBOX = PodRecord(uid=uid_of(WEB), ips=("10.0.0.1",), sandboxes=(SANDBOX,))


@pytest.mark.parametrize(
    "of, record, expected",
    [
        pytest.param(INIT, IN_SANDBOX, PodActions(sandbox_id="s1", init_containers_to_start=(0,)), id="init"),
        pytest.param(WEB, IN_SANDBOX, PodActions(sandbox_id="s1", containers_to_start=(0,)), id="regular"),
        pytest.param(
            DEBUGGED, RUNNING, PodActions(sandbox_id="s1", ephemeral_containers_to_start=(0,)), id="ephemeral"
        ),
    ],
)
def test_a_container_to_start_causes_a_full_sync(of: Pod, record: PodRecord, expected: PodActions) -> None:
    async def scenario(harness: SyncerHarness) -> None:
        assert not await sync(harness, of, record)
        assert [each.actions for each in harness.executions] == [expected]

    run_scenario(scenario)


@pytest.mark.parametrize("kind", ["liveness_results", "started"])
def test_a_failed_probe_causes_a_full_sync(kind: str) -> None:
    app, other = replace(container(liveness=Probe()), startup_probe=Probe()), container("other")
    probed = pod("web", app, other, policy="Never")
    running = record_of(probed, RecordState.RUNNING)
    second = replace(running.containers[0], id="c2", name="other", spec_hash=container_hash(other))

    async def scenario(harness: SyncerHarness) -> None:
        setattr(harness, kind, {"c1": ProbeResult.FAILURE})
        await sync(harness, probed, replace(running, containers=(*running.containers, second)))
        kills = [kill for each in harness.executions for kill in each.actions.containers_to_kill]
        reason = KillReason.LIVENESS_PROBE if kind == "liveness_results" else KillReason.STARTUP_PROBE
        assert [(kill.id, kill.name, kill.reason) for kill in kills] == [("c1", "app", reason)]
        assert isinstance(kills[0], ContainerToKill)

    run_scenario(scenario)


# Why a pod ends.

LATE = pod("web", deadline=30)
BEGUN = PodStatus(phase="Running", start_time="2025-12-31T23:59:30Z")  # 30 seconds before the virtual clock starts


def test_a_pod_past_its_deadline_is_recorded_once() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        harness.published = BEGUN
        await sync(harness, LATE, RUNNING)
        await harness.syncer.sync_terminating_pod(LATE, RUNNING, None, None)
        expected = PodEvent(EventType.NORMAL, PAST_DEADLINE.reason, PAST_DEADLINE.message, uid_of(LATE))
        assert harness.recorded == [(expected, LATE)]
        assert harness.published.reason == PAST_DEADLINE.reason

    run_scenario(scenario)


def test_the_deadline_of_a_pod_that_this_agent_never_published_is_recorded() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        assert await sync(harness, replace(LATE, status=BEGUN), RUNNING)
        assert [event.reason for event, _ in harness.recorded] == [PAST_DEADLINE.reason]

    run_scenario(scenario)


DEADLINES = {
    "none": (None, None),
    "ahead": (31, None),
    "past": (30, (PAST_DEADLINE.reason, PAST_DEADLINE.message)),
}


@pytest.mark.parametrize("deadline, expected", DEADLINES.values(), ids=DEADLINES.keys())
def test_a_pod_ends_at_its_deadline(deadline: int | None, expected: tuple[str, str] | None) -> None:
    async def scenario(harness: SyncerHarness) -> None:
        harness.published = BEGUN
        assert await sync(harness, pod("web", deadline=deadline), RUNNING) == (expected is not None)
        assert (harness.published.reason, harness.published.message) == (expected or (None, None))

    run_scenario(scenario)


@pytest.mark.parametrize("record", [NOTHING, RUNNING], ids=["new", "running"])
def test_a_pod_that_can_never_run_here_fails_with_the_reason_and_keeps_its_status(record: PodRecord) -> None:
    async def scenario(harness: SyncerHarness) -> None:
        harness.failing = {"prepare": GiveUp("cannot mount volume x: no such driver", "NoSuchDriver")}
        harness.failures = {"app": StartFailure("ErrImagePull", "no such image")}
        assert await sync(harness, record=record)
        before, after = harness.published_statuses
        assert after == replace(
            before, phase="Failed", reason="NoSuchDriver", message="cannot mount volume x: no such driver"
        )

    run_scenario(scenario)


def test_a_pod_that_runs_once_and_lost_its_sandbox_too_early_fails() -> None:
    once = pod("web", container("app"), container("late"), policy="Never")
    lost = replace(record_of(once, RecordState.EXITED), sandboxes=(replace(SANDBOX, ready=False),))

    async def scenario(harness: SyncerHarness) -> None:
        assert await sync(harness, once, lost)
        assert harness.published is not None
        assert (harness.published.phase, harness.published.reason) == ("Failed", "SandboxLost")
        assert harness.steps == ["status", "status"]

    run_scenario(scenario)


# Ends.


def test_a_failed_kill_names_all_errors_and_the_pod() -> None:
    failure = ExceptionGroup("kill", [RuntimeRefused("no app"), ExceptionGroup("stop", [TryLater("no sandbox")])])

    async def scenario(harness: SyncerHarness) -> None:
        harness.failing = {"kill 30": TryLater("no answer"), "kill running 1": failure}
        with pytest.raises(TryLater):
            await terminating(harness)
        with pytest.raises(ExceptionGroup):
            await orphaned(harness)

        def event(message: str) -> PodEvent:
            return PodEvent(EventType.WARNING, "FailedKillPod", f"error killing pod: {message}", uid_of(WEB))

        assert harness.recorded == [(event("no answer"), WEB), (event("no app; no sandbox"), RUNNING)]
        await asyncio.sleep(0)
        assert harness.inspections_requested == 0
        harness.failing = {}
        await orphaned(harness)

    assert run_scenario(scenario).inspections_requested == 1


@pytest.mark.parametrize("end", [terminating, terminated])
def test_the_sync_after_a_termination_is_not_skipped(end: Callable[[SyncerHarness], Awaitable[None]]) -> None:
    async def scenario(harness: SyncerHarness) -> None:
        await settle(harness)
        status = harness.published
        await end(harness)
        harness.published = status
        harness.steps.clear()
        await sync(harness, record=RUNNING)
        assert harness.steps[0] == "status"

    run_scenario(scenario)


def test_the_sync_of_an_unchanged_static_pod_with_a_mirror_pod_is_skipped() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        for _ in range(3):
            harness.steps.clear()
            await sync(harness, STATIC, RUNNING, mirror=WEB)
        assert harness.steps == []

    run_scenario(scenario)


def test_a_lost_network_does_not_stop_a_host_network_pod() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        harness.network_error = "no plugin"
        own = pod("web", host_network=True)
        for _ in range(3):
            harness.steps.clear()
            await sync(harness, own, replace(RUNNING, ips=(), sandboxes=(replace(SANDBOX, network=NetworkMode.NODE),)))
        assert (harness.steps, harness.events) == ([], [])

    run_scenario(scenario)


@pytest.mark.parametrize("phase, measured", [(None, 1), ("Pending", 1), ("Running", 0), ("Unknown", 0)])
def test_the_time_until_a_pod_runs_is_measured_once(phase: str | None, measured: int) -> None:
    meta = replace(WEB.metadata, annotations={CONFIG_FIRST_SEEN_ANNOTATION: "2025-12-31T23:59:50.000000000Z"})

    async def scenario(harness: SyncerHarness) -> None:
        harness.published = None if phase is None else PodStatus(phase=phase)
        await sync(harness, replace(WEB, metadata=meta), RUNNING)
        assert harness.seconds == [("running", 10.0)] * measured

    run_scenario(scenario)


@pytest.mark.parametrize("annotations", [None, {}, {"other": "2025-12-31T23:59:50Z"}])
def test_the_start_duration_of_a_pod_without_first_seen_is_not_measured(annotations: dict[str, str] | None) -> None:
    async def scenario(harness: SyncerHarness) -> None:
        unseen = replace(WEB, metadata=replace(WEB.metadata, annotations=annotations))
        await harness.syncer.sync_pod(UpdateType.CREATE, unseen, None, RUNNING)
        assert harness.seconds == []

    run_scenario(scenario)


def test_a_pod_whose_status_is_refused_is_synced_in_full() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        harness.refuses = True
        for _ in range(3):
            harness.steps.clear()
            await sync(harness, record=RUNNING)
            assert harness.steps[0] == "status"

    run_scenario(scenario)


def test_the_status_before_a_kill_shows_running_containers() -> None:
    first, last = run_scenario(terminating).published_statuses
    assert [each.state.running is not None for each in first.container_statuses or ()] == [True]
    assert [each.state.terminated is not None for each in last.container_statuses or ()] == [True]


def test_optional_modules_may_be_missing() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        await harness.syncer.sync_pod(UpdateType.CREATE, STATIC, None, NOTHING)
        assert len(harness.executions) == 1
        await sync(harness, STATIC, RUNNING)
        await terminated(harness)
        assert harness.finished

    run_scenario(scenario, bare=True)


def test_a_pod_that_starts_over_loses_its_status() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        harness.syncer.start_over(uid_of(WEB))
        assert harness.restarted == [uid_of(WEB)]

    run_scenario(scenario)


def test_a_pod_starts_over_only_after_its_dead_containers_are_removed() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        harness.syncer.start_over(uid_of(WEB))
        harness.seen = STOPPED
        for _ in range(2):
            with pytest.raises(TryLater, match=r"containers of its former run still exist: app$"):
                await sync(harness, record=STOPPED)
        assert harness.published_statuses == []
        harness.seen = NOTHING
        await sync(harness, record=STOPPED)
        assert [each.record.containers for each in harness.executions] == [()]
        await sync(harness, record=RUNNING)
        assert harness.steps.count("collect 1 dead") == 3, "it starts over once"

    run_scenario(scenario)


@pytest.mark.parametrize("state", [each for each in RecordState if each is not RecordState.RUNNING])
def test_a_pod_does_not_start_over_while_a_former_container_exists(state: RecordState) -> None:
    async def scenario(harness: SyncerHarness) -> None:
        harness.syncer.start_over(uid_of(WEB))
        harness.seen = record_of(WEB, state)
        with pytest.raises(TryLater, match=r"containers of its former run still exist: app$"):
            await sync(harness, record=STOPPED)
        assert harness.executions == []

    run_scenario(scenario)


def test_a_pod_that_terminates_before_it_starts_over_keeps_its_later_exits() -> None:
    async def scenario(harness: SyncerHarness) -> None:
        harness.syncer.start_over(uid_of(WEB))
        await terminated(harness)
        await sync(harness, record=STOPPED)
        assert "collect 1 dead" not in harness.steps

    run_scenario(scenario)
