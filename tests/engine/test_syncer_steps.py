"""The sync functions step by step: their order, their repetition after a crash, their quiet passes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from podkeeper.engine.syncer import PodSyncer
from podkeeper.model.errors import GiveUp, InBackoff, NetworkNotReady, RuntimeRefused, TryLater
from podkeeper.model.k8s.core import Pod, PodStatus, Probe
from podkeeper.model.messages import (
    CONFIG_FIRST_SEEN_ANNOTATION,
    FILE_SOURCE,
    EventType,
    PodEvent,
    PodUID,
    ProbeKind,
    ProbeResult,
)
from podkeeper.model.runtime import ContainerRecord, ContainerState, NetworkMode, PodRecord, SandboxRecord
from podkeeper.rules.container_hash import container_hash
from podkeeper.rules.keyring import PullSecret
from podkeeper.rules.plan import PodActions
from podkeeper.rules.probe.flags import ProbeView
from podkeeper.rules.status.containers import StartFailure
from podkeeper.rules.status.pod import NodeView
from podkeeper.rules.worker.updates import UpdateType
from podkeeper.testing.virtual_time import BEGINNING, VirtualClock, simulate
from tests.engine.small_node import container, pod, uid

WEB = pod("web")
SANDBOX = SandboxRecord(id="s1", ready=True, network=NetworkMode.POD, ip="10.0.0.1", created_at=BEGINNING)


def record_of(of: Pod, state: ContainerState, exit_code: int = 0) -> PodRecord:
    spec = of.spec.containers[0]
    found = ContainerRecord(
        id="c1",
        name=spec.name,
        state=state,
        spec_hash=container_hash(spec),
        sandbox_id="s1",
        created_at=BEGINNING,
        started_at=BEGINNING,
        finished_at=BEGINNING if state is ContainerState.EXITED else None,
        exit_code=exit_code,
    )
    return PodRecord(
        uid=uid(of), name="web", namespace="ns", ips=("10.0.0.1",), sandboxes=(SANDBOX,), containers=(found,)
    )


NOTHING = PodRecord(uid=uid(WEB))
RUNNING = record_of(WEB, ContainerState.RUNNING)
STOPPED = record_of(WEB, ContainerState.EXITED, 3)


class Crash(BaseException):
    """The agent is killed."""


@dataclass(frozen=True)
class Prepared:
    cgroup_parent: str = "/pods"
    host_paths: Mapping[str, str] = field(default_factory=dict)


class World:
    """All neighbours of a syncer in one: notes each step, and dies before one on order."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.dies_before: int | None = None
        self.failing: dict[str, BaseException] = {}
        self.meanwhile: dict[str, Callable[[], None]] = {}  # happens once, in the middle of a step
        self.published: PodStatus | None = None
        self.told: list[PodStatus] = []
        self.events: list[tuple[str, str]] = []
        self.seen = RUNNING
        self.after_kill = STOPPED
        self.node = NodeView(runtime_name="fake", host_ips=("192.0.2.1",))
        self.network: str | None = None
        self.probe_view = ProbeView(agent_started=BEGINNING)
        self.failures: Mapping[str, StartFailure] = {}
        self.will_fail_with = self.failures
        self.plans: list[PodActions] = []
        self.finished = False
        self.seconds: list[tuple[str, float]] = []
        self.looks_wanted = 0
        self.syncer = PodSyncer(
            statuses=self,
            probes=self,
            executor=self,
            ground=self,
            mirrors=self,
            references=self,
            look=self.look,
            request_look=self.request_look,
            node=lambda: self.node,
            network_trouble=lambda: self.network,
            record=self.record,
            clock=VirtualClock(),
            observer=self,
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
        changed = status != self.published
        if changed:
            self.published = status
            self.told.append(status)
        return changed

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
        return {}

    def startup(self, uid: PodUID) -> Mapping[str, ProbeResult]:
        return {}

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
    ) -> None:
        assert (mounts, cgroup_parent) == ({}, "/pods")
        self.plans.append(actions)
        self.failures = self.will_fail_with
        self.step("execute")

    def failures_of(self, uid: PodUID) -> Mapping[str, StartFailure]:
        return self.failures

    def clear_failures(self, record: PodRecord) -> None:
        assert record.uid == uid(WEB)

    async def kill_pod(self, pod: Pod, record: PodRecord, grace_seconds: int | None) -> None:
        self.step(f"kill {grace_seconds}")
        self.seen = self.after_kill

    async def kill_running_pod(self, record: PodRecord, grace_seconds: int) -> None:
        self.step(f"kill running {grace_seconds}")

    def forget(self, uid: PodUID) -> None:
        self.step("forget")

    # Ground, mirrors, references.

    async def prepare(self, pod: Pod) -> Prepared:
        self.step("prepare")
        return Prepared()

    async def unmount(self, uid: PodUID) -> None:
        self.step("unmount")

    async def remove_cgroup(self, uid: PodUID) -> None:
        self.step("remove cgroup")

    async def ensure(self, static: Pod, mirror: Pod | None) -> None:
        self.step("mirror")

    def register(self, pod: Pod) -> None:
        self.step("register")

    def unregister(self, uid: PodUID) -> None:
        self.step("unregister")

    async def pull_secrets(self, pod: Pod) -> Sequence[PullSecret]:
        return ()

    # The rest.

    async def look(self, uid: PodUID) -> PodRecord:
        self.step("look")
        return self.seen

    def request_look(self, uid: PodUID) -> None:
        self.looks_wanted += 1

    def record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        assert event.type is EventType.WARNING
        self.events.append((event.reason, event.message))

    def first_pass(self, seconds: float) -> None:
        self.seconds.append(("first pass", seconds))

    def running(self, seconds: float) -> None:
        self.seconds.append(("running", seconds))


async def sync(world: World, of: Pod = WEB, record: PodRecord = NOTHING, mirror: Pod | None = None) -> bool:
    return await world.syncer.sync_pod(UpdateType.SYNC, of, mirror, record)


async def terminating(world: World) -> None:
    await world.syncer.sync_terminating_pod(WEB, RUNNING, 30, None)


async def terminated(world: World) -> None:
    await world.syncer.sync_terminated_pod(WEB, STOPPED)


async def orphaned(world: World) -> None:
    await world.syncer.sync_terminating_runtime_pod(RUNNING)


def play(scenario: Callable[[World], Awaitable[object]]) -> World:
    async def played() -> World:
        world = World()
        await scenario(world)
        await asyncio.sleep(0)
        return world

    return simulate(played())[0]


ORDERS: dict[str, tuple[Callable[[World], Awaitable[object]], list[str]]] = {
    "a sync makes ready what a pod needs before anything starts": (
        sync,
        ["status", "register", "prepare", "probe", "execute"],
    ),
    "a static pod wants its mirror too": (
        lambda world: sync(world, pod("web", source=FILE_SOURCE)),
        ["status", "register", "mirror", "prepare", "probe", "execute"],
    ),
    "a pod that ended gets nothing more": (
        lambda world: sync(world, pod("web", policy="Never"), record_of(WEB, ContainerState.EXITED, 1)),
        ["status"],
    ),
    "terminating tells, stops, looks, and tells": (
        terminating,
        ["status", "stop liveness", "kill 30", "stop probes", "look", "status"],
    ),
    "terminated gives back volumes, references and cgroup, and says so last": (
        terminated,
        ["status", "unmount", "unregister", "remove cgroup", "terminate", "forget"],
    ),
    "what only the runtime knows has no status": (orphaned, ["kill running 1"]),
}


@pytest.mark.parametrize("function, steps", ORDERS.values(), ids=ORDERS.keys())
def test_order(function: Callable[[World], Awaitable[object]], steps: list[str]) -> None:
    assert play(function).steps == steps


@pytest.mark.parametrize("function, steps", ORDERS.values(), ids=ORDERS.keys())
def test_a_crash_before_any_step_is_healed_by_running_the_function_again(
    function: Callable[[World], Awaitable[object]], steps: list[str]
) -> None:
    smooth = play(function)
    for number in range(len(steps)):

        async def crashing(world: World, number: int = number) -> None:
            world.dies_before = number
            with pytest.raises(Crash):
                await function(world)
            world.dies_before = None
            await function(world)

        healed = play(crashing)
        assert healed.steps == steps[:number] + steps
        assert (healed.published, healed.finished) == (smooth.published, smooth.finished)


def test_what_failed_is_raised_and_ends_the_pass_there() -> None:
    async def scenario(world: World) -> None:
        for name, error in (
            ("prepare", TryLater("cannot mount volume data")),
            ("execute", InBackoff("cannot start", BEGINNING)),
        ):
            world.failing = {name: error}
            with pytest.raises(type(error)):
                await sync(world)
            assert world.steps[-1] == name
        assert world.looks_wanted == 0

    assert play(scenario).looks_wanted == 1  # what was done of the plan shall be seen, once the pass is over


def test_all_failures_of_a_plan_arrive_and_are_shown_at_once() -> None:
    async def scenario(world: World) -> None:
        failures = ExceptionGroup("cannot start", [InBackoff("cannot start app", BEGINNING), TryLater("cannot pull")])
        world.failing = {"execute": failures}
        world.will_fail_with = {"app": StartFailure("CrashLoopBackOff", "back-off 10s")}
        with pytest.raises(ExceptionGroup) as raised:
            await sync(world)
        assert raised.value is failures

    statuses = (play(scenario).published or PodStatus()).container_statuses or ()
    assert [each.state.waiting.reason for each in statuses if each.state.waiting] == ["CrashLoopBackOff"]


ENDS: dict[str, BaseException | None] = {
    "well": None,
    "with a failed start": ExceptionGroup("cannot start", [TryLater("cannot pull")]),
    "cancelled": asyncio.CancelledError(),
    "with an unexpected error": RuntimeError("a bug"),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_the_record_from_the_middle_of_a_sync_ends_with_that_sync(end: BaseException | None) -> None:
    """The next sync that fails publishes what it was given: a container that runs by then is shown as running."""
    both = pod("web", container("app"), container("proxy"))
    sandbox_only = PodRecord(uid=uid(both), name="web", namespace="ns", ips=("10.0.0.1",), sandboxes=(SANDBOX,))
    first, second = {"proxy": StartFailure("ErrImagePull")}, {"proxy": StartFailure("ImagePullBackOff")}

    async def scenario(world: World) -> None:
        world.meanwhile["execute"] = lambda: world.syncer.on_sandbox_ready(both, sandbox_only)
        world.will_fail_with = first
        if end is None:
            await sync(world, both)
        else:
            world.failing = {"execute": end}
            with pytest.raises(type(end)):
                await sync(world, both)
        world.failing = {"execute": TryLater("cannot start proxy")}
        world.will_fail_with = second
        with pytest.raises(TryLater):
            await sync(world, both, record_of(both, ContainerState.RUNNING))

    statuses = {each.name: each for each in (play(scenario).published or PodStatus()).container_statuses or ()}
    assert statuses["app"].state.running is not None
    assert statuses["proxy"].state.waiting is not None
    assert statuses["proxy"].state.waiting.reason == "ImagePullBackOff"


def test_a_failed_start_is_shown_with_the_sandbox_that_the_same_sync_made() -> None:
    sandbox_only = PodRecord(uid=uid(WEB), name="web", namespace="ns", ips=("10.0.0.1",), sandboxes=(SANDBOX,))

    async def scenario(world: World) -> None:
        world.meanwhile["execute"] = lambda: world.syncer.on_sandbox_ready(WEB, sandbox_only)
        world.failing = {"execute": TryLater("cannot pull")}
        world.will_fail_with = {"app": StartFailure("ErrImagePull")}
        with pytest.raises(TryLater):
            await sync(world)

    status = play(scenario).published or PodStatus()
    assert status.pod_ip == "10.0.0.1"
    assert [each.state.waiting.reason for each in status.container_statuses or () if each.state.waiting] == [
        "ErrImagePull"
    ]


def test_what_runs_already_has_its_probes_before_anything_is_said_of_it() -> None:
    probed = pod("web", container(readiness=Probe()))

    async def scenario(world: World) -> None:
        await sync(world, probed, record_of(probed, ContainerState.RUNNING))
        assert world.steps[:2] == ["probe", "status"]
        world.steps.clear()
        world.probe_view = ProbeView(agent_started=BEGINNING, workers=frozenset({("app", ProbeKind.READINESS)}))
        await sync(world, probed, record_of(probed, ContainerState.RUNNING))
        assert world.steps[0] == "status"

    play(scenario)


def test_a_container_that_only_waits_for_its_readiness_probe_is_probed_at_once() -> None:
    async def scenario(world: World) -> None:
        world.probe_view = ProbeView(agent_started=BEGINNING, workers=frozenset({("app", ProbeKind.READINESS)}))
        await sync(world, record=RUNNING)
        assert world.steps[:2] == ["status", "wake app"]

    play(scenario)


def test_how_long_a_pod_took_is_measured_from_when_it_was_first_seen() -> None:
    async def scenario(world: World) -> None:
        for seen in ("2025-12-31T23:59:50.000000000Z", "long ago"):
            meta = msgspec.structs.replace(WEB.metadata, annotations={CONFIG_FIRST_SEEN_ANNOTATION: seen})
            web = msgspec.structs.replace(WEB, metadata=meta)
            world.published = None
            await world.syncer.sync_pod(UpdateType.CREATE, web, None, NOTHING)
            await sync(world, web, RUNNING)
            await sync(world, web, RUNNING)
        assert world.seconds == [("first pass", 10.0), ("running", 10.0)]

    play(scenario)


def test_a_pod_that_can_never_run_here_fails_with_the_reason() -> None:
    async def scenario(world: World) -> None:
        world.failing = {"prepare": GiveUp("cannot mount volume x: no such driver", "NoSuchDriver")}
        assert await sync(world)

    status = play(scenario).published or PodStatus()
    assert (status.phase, status.reason) == ("Failed", "NoSuchDriver")


def test_without_network_nothing_is_made_ready() -> None:
    async def scenario(world: World) -> None:
        world.network = "no plugin"
        with pytest.raises(NetworkNotReady):
            await sync(world)
        assert world.steps == ["status"]
        assert world.events == [("NetworkNotReady", "network is not ready: no plugin")]

    play(scenario)


def test_a_mirror_that_cannot_be_made_is_no_reason_to_stop() -> None:
    async def scenario(world: World) -> None:
        world.failing = {"mirror": TryLater("cannot reach the API")}
        assert not await sync(world, pod("web", source=FILE_SOURCE))
        assert world.steps[-1] == "execute"

    play(scenario)


def test_a_container_that_runs_on_after_all_is_named() -> None:
    async def scenario(world: World) -> None:
        world.after_kill = RUNNING
        with pytest.raises(TryLater, match="container app still runs"):
            await terminating(world)
        assert world.steps[-1] == "look"

    play(scenario)


def test_a_kill_that_fails_is_recorded_and_probes_go_on() -> None:
    async def scenario(world: World) -> None:
        world.failing = {"kill 30": ExceptionGroup("cannot kill", [RuntimeRefused("cannot stop app")])}
        with pytest.raises(ExceptionGroup):
            await terminating(world)
        assert world.events == [("FailedKillPod", "error killing pod: cannot stop app")]
        assert "stop probes" not in world.steps

    play(scenario)


def test_the_last_status_keeps_addresses_and_exit_codes() -> None:
    async def scenario(world: World) -> None:
        world.after_kill = PodRecord(uid=STOPPED.uid, containers=STOPPED.containers)
        await terminating(world)
        await world.syncer.sync_terminated_pod(WEB, NOTHING)  # and nothing is left of it by now

    status = play(scenario).published or PodStatus()
    ended = (status.container_statuses or ())[0].state.terminated
    assert ended is not None
    assert (status.phase, ended.exit_code) == ("Failed", 3)
    assert play(terminating).told[-1].pod_ip == "10.0.0.1"


def test_a_failed_start_does_not_hide_the_exit_of_a_container_in_the_last_status() -> None:
    """The answer of the start was lost, and the container exited before any sync saw it running."""

    async def scenario(world: World) -> None:
        world.failures = {"app": StartFailure("RunContainerError", "the answer was lost")}
        await terminating(world)
        assert world.published is not None
        assert [each.state.terminated is not None for each in world.published.container_statuses or ()] == [True]

    play(scenario)


def test_the_status_function_has_the_last_word_before_the_kill() -> None:
    async def scenario(world: World) -> None:
        def touched(status: PodStatus) -> PodStatus:
            assert world.steps == []
            return PodStatus(phase="Failed", reason="Evicted", container_statuses=status.container_statuses)

        await world.syncer.sync_terminating_pod(WEB, RUNNING, None, touched)

    world = play(scenario)
    assert [status.reason for status in world.told] == ["Evicted", "Evicted"]


LOUD: dict[str, Callable[[World], Awaitable[object]]] = {
    "another version of the pod": lambda world: sync(world, pod("web", grace=1), RUNNING),
    "another mirror": lambda world: sync(world, WEB, RUNNING, WEB),
    "another record": lambda world: sync(world, WEB, STOPPED),
}
CHANGES: dict[str, Callable[[World], None]] = {
    "a probe's result": lambda world: setattr(world, "probe_view", ProbeView(agent_started=BEGINNING)),
    "another status": lambda world: setattr(world, "published", PodStatus(phase="Running")),
    "a failed start": lambda world: setattr(world, "failures", {"app": StartFailure("ErrImagePull")}),
    "another address of the node": lambda world: setattr(world, "node", NodeView(runtime_name="fake")),
}


async def settle(world: World) -> None:
    """Sync a pod that runs until nothing is left to do."""
    await sync(world, record=RUNNING)
    await sync(world, record=RUNNING)
    world.steps.clear()


def test_a_pass_over_a_quiet_pod_touches_nobody() -> None:
    async def scenario(world: World) -> None:
        await settle(world)
        assert not await sync(world, record=record_of(WEB, ContainerState.RUNNING))  # equal, if not the same
        assert world.steps == []
        assert world.looks_wanted == 0

    play(scenario)


@pytest.mark.parametrize("pass_", LOUD.values(), ids=LOUD.keys())
def test_other_words_end_the_quiet(pass_: Callable[[World], Awaitable[object]]) -> None:
    async def scenario(world: World) -> None:
        await settle(world)
        await pass_(world)
        assert world.steps[0] == "status"

    play(scenario)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_ends_the_quiet(change: Callable[[World], None]) -> None:
    async def scenario(world: World) -> None:
        await settle(world)
        change(world)
        await sync(world, record=RUNNING)
        assert world.steps[0] == "status"

    play(scenario)


@pytest.mark.parametrize("step", ["register", "prepare"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_in_the_middle_of_a_sync_is_seen_by_the_next(change: Callable[[World], None], step: str) -> None:
    async def scenario(world: World) -> None:
        await sync(world, record=RUNNING)
        world.meanwhile[step] = lambda: change(world)
        await sync(world, record=RUNNING)
        world.steps.clear()
        await sync(world, record=RUNNING)
        assert world.steps[0] == "status"

    play(scenario)


def test_a_lost_network_ends_the_quiet() -> None:
    async def scenario(world: World) -> None:
        await settle(world)
        world.network = "gone"
        with pytest.raises(NetworkNotReady):
            await sync(world, record=RUNNING)

    play(scenario)


def test_a_static_pod_without_a_mirror_is_never_quiet() -> None:
    async def scenario(world: World) -> None:
        static = pod("web", source=FILE_SOURCE)
        for _ in range(3):
            world.steps.clear()
            await sync(world, static, RUNNING)
            assert "mirror" in world.steps

    play(scenario)
