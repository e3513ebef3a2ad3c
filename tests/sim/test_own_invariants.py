"""I15 to I17, which have no kubelet issue behind them: violations are reported, correct behaviour is not."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from podkeeper.model.k8s.core import Pod, PodCondition
from podkeeper.model.messages import Op, PodUID
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime import ContainerRecord, RecordState
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.runtimes.fake import Behaviour, ExecStep
from podkeeper.testing.build import container, probe
from podkeeper.testing.sim.actions import ChangeImage, Evict
from podkeeper.testing.sim.invariants.foreign_fields import SCHEDULED
from podkeeper.testing.sim.invariants.pods import TrackedPods
from podkeeper.testing.sim.invariants.probe_states import ContainerProbeState
from podkeeper.testing.sim.invariants.retries import RestartDelays
from podkeeper.testing.sim.records import CallStarted, ContainerChanged, EvictionBegan, EvictionEnded
from podkeeper.testing.sim.world import World, WorldResult
from tests.sim.bus_harness import UID, BusHarness, deleted, known
from tests.sim.sim_node import pod


def violated_by(result: WorldResult) -> str:
    return "" if result.violation is None else result.violation.invariant


def stop_is_called(world: World, uid: PodUID) -> None:
    (live,) = world.truth.running(uid)
    agent = 0 if world.process is None else world.process.number
    world.bus.publish(CallStarted(world.now(), agent, "runtime", "stop_container", uid, live.name, (live.id, 2)))


# I15: stops.


async def _nothing(world: World) -> None:
    """There is no cause for the stop."""


async def _another_image(world: World) -> None:
    ChangeImage("updates", "web", "app", "app:v2").run(world)
    await asyncio.sleep(0)


async def _a_deletion(world: World) -> None:
    world.api.mark_deleted(Pod, "web", "default")
    await asyncio.sleep(0.1)


async def _an_eviction(world: World) -> None:
    Evict("evictions", "web", None).run(world)
    await asyncio.sleep(0.1)


async def _another_pods_deletion(world: World) -> None:
    world.api.put(pod("other"))
    await asyncio.sleep(1)
    world.api.mark_deleted(Pod, "other", "default")
    await asyncio.sleep(0.1)


async def _a_removal_of_the_past(world: World) -> None:
    """An old list without the pod, soon followed by a newer one."""
    world.api.put(pod("other"))
    world.crash()
    await asyncio.sleep(5)


STOPS = {
    "there is no cause":             (_nothing, "I15"),
    "another pod is deleted":        (_another_pods_deletion, "I15"),
    "an old list lacks the pod":     (_a_removal_of_the_past, "I15"),
    "its image was changed":         (_another_image, ""),
    "its pod is deleted":            (_a_deletion, ""),
    "its pod is evicted":            (_an_eviction, ""),
}  # fmt: skip


@pytest.mark.parametrize(("before", "invariant"), STOPS.values(), ids=STOPS.keys())
def test_a_stop_needs_a_cause(before: Callable[[World], Awaitable[None]], invariant: str) -> None:
    world = World(0)
    BusHarness(world)

    async def scenario() -> None:
        uid = uid_of(world.api.put(pod("web", behaviours={"app": Behaviour(term_seconds=None)})))
        await asyncio.sleep(200)
        await before(world)
        stop_is_called(world, uid)

    assert violated_by(world.run(scenario)) == invariant


def test_a_container_of_a_failed_call_may_be_stopped() -> None:
    world = World(0)
    BusHarness(world)

    async def scenario() -> None:
        uid = uid_of(world.api.put(pod("web")))
        world.fault_log.instant(world.now(), "lost-answers", uid)
        await asyncio.sleep(5)
        stop_is_called(world, uid)
        await asyncio.sleep(200)
        stop_is_called(world, uid)

    result = world.run(scenario)
    assert violated_by(result) == "I15"
    assert result.violation is not None
    assert result.violation.at > 200


# I16: retries.


def run(world: World, id_: str, *, ended: bool = False) -> None:
    happened = RuntimeEventType.STOPPED if ended else RuntimeEventType.STARTED
    state = RecordState.EXITED if ended else RecordState.RUNNING
    record = ContainerRecord(id=id_, name="app", state=state, exit_code=1, sandbox_id="s1")
    world.bus.publish(ContainerChanged(world.now(), UID, record, happened))


RESTS = {
    "no pause":                         (20.0, 0.0, (), "I16"),
    "too short a pause":                (20.0, 8.0, (), "I16"),
    "a pause":                          (20.0, 10.0, (), ""),
    "none after a long run":            (601.0, 0.0, (), ""),
    "none after a stop":                (20.0, 0.0, ("c1", "c2"), ""),
    "none after the first failure since a stop (seed 898)": (20.0, 0.0, ("c1",), ""),
}  # fmt: skip


@pytest.mark.parametrize(("ran", "rest", "stopped", "invariant"), RESTS.values(), ids=RESTS.keys())
def test_a_second_failure_is_retried_after_a_backoff(
    ran: float, rest: float, stopped: tuple[str, ...], invariant: str
) -> None:
    world = World(0)
    RestartDelays(world, TrackedPods(world))

    async def scenario() -> None:
        for id_, seconds in (("c1", 5.0), ("c2", ran)):
            run(world, id_)
            await asyncio.sleep(seconds)
            if id_ in stopped:
                world.bus.publish(CallStarted(world.now(), 1, "runtime", "stop_container", UID, "app", (id_, 2)))
            run(world, id_, ended=True)
        await asyncio.sleep(rest)
        run(world, "c3")

    assert violated_by(world.run(scenario)) == invariant


NEW_AGENTS = {
    "the journal has the backoff": ("", "I16"),
    "the journal could not be written": ("disk-full", ""),
    "the wall clock jumped": ("clock-jump", ""),
    "another fault is no excuse": ("api-down", "I16"),
}


@pytest.mark.parametrize(("fault", "invariant"), NEW_AGENTS.values(), ids=NEW_AGENTS.keys())
def test_a_new_agent_continues_the_backoff(fault: str, invariant: str) -> None:
    world = World(0)
    RestartDelays(world, TrackedPods(world))

    async def scenario() -> None:
        if fault:
            world.fault_log.begin(world.now(), fault)
        for id_ in ("c1", "c2"):
            run(world, id_)
            await asyncio.sleep(5)
            run(world, id_, ended=True)
        world.crash(downtime_seconds=0.5)
        await asyncio.sleep(1)
        run(world, "c3")

    assert violated_by(world.run(scenario)) == invariant


@pytest.mark.parametrize(("failures", "invariant"), [(2, ""), (3, "I16")])
def test_a_liveness_probe_is_not_executed_after_its_failure_threshold(failures: int, invariant: str) -> None:
    world = World(0)
    retries = RestartDelays(world, TrackedPods(world))
    probed = ContainerProbeState(container(liveness=probe(failures=2)))
    probed.begin("c1", 0.0)
    for good in (False, True, *[False] * failures):
        retries.on_liveness_result(UID, probed, good)
    assert ("" if world.violation is None else world.violation.invariant) == invariant
    world.loop.close()


# I17: fields of others.


LATER = "2026-01-01T00:05:00Z"


def condition(type_: str, since: str = "2026-01-01T00:00:00Z") -> PodCondition:
    return PodCondition(type=type_, status="True", last_transition_time=since)


SAID = {
    "a condition of another is removed":   ((condition("example.com/seen"),), (), "I17"),
    "a condition of another stays":        ((condition("example.com/seen"),), (condition("example.com/seen"),), ""),
    "PodScheduled has another time":       ((condition(SCHEDULED),), (condition(SCHEDULED, LATER),), "I17"),
    "PodScheduled keeps its time":         ((condition(SCHEDULED),), (condition(SCHEDULED), condition("Ready")), ""),
    "Ready has another time":              ((condition("Ready"),), (condition("Ready", LATER),), ""),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "invariant"), SAID.values(), ids=SAID.keys())
def test_a_status_removes_no_condition_and_changes_no_time(
    before: tuple[PodCondition, ...], after: tuple[PodCondition, ...], invariant: str
) -> None:
    harness = BusHarness(World(0))
    harness.publishes(known(conditions=before), known(conditions=after))
    harness.world.loop.close()
    assert harness.violated == invariant


LAST_WORDS = {
    "no reason":         (True, known(phase="Failed", conditions=()), "I17"),
    "reason Evicted":    (True, known(phase="Failed", reason="Evicted", conditions=()), ""),
    "succeeded":         (True, known(phase="Succeeded", conditions=()), ""),
    "still running":     (True, known(phase="Running", conditions=()), ""),
    "was not evicted":   (False, known(phase="Failed", conditions=()), ""),
}  # fmt: skip


@pytest.mark.parametrize(("done", "last", "invariant"), LAST_WORDS.values(), ids=LAST_WORDS.keys())
def test_an_evicted_pod_has_a_reason(done: bool, last: Pod, invariant: str) -> None:
    harness = BusHarness(World(0))
    harness.runs("c1")
    harness.ends("c1")
    harness.world.bus.publish(EvictionEnded(0.0, UID, done))
    harness.publishes(known(), last)
    harness.world.loop.close()
    assert harness.violated == invariant


# I5: removals and evictions.


def test_a_running_pod_after_a_forced_removal_is_reported() -> None:
    world = World(0)

    async def scenario() -> None:
        it = BusHarness(world)
        it.runs("c1")
        it.receives(known(pod("web", grace=60)))
        it.receives(deleted(known(pod("web", grace=60))), op=Op.UPDATE)
        it.receives(known(pod("web", grace=60)), op=Op.REMOVE)
        await asyncio.sleep(30)

    result = world.run(scenario)
    assert violated_by(result) == "I5"
    assert result.seconds == 7.0


@pytest.mark.parametrize(("answered_after", "invariant"), [(9.0, ""), (20.0, "I5")])
def test_an_eviction_call_returns_in_time(answered_after: float, invariant: str) -> None:
    world = World(0)

    async def scenario() -> None:
        BusHarness(world)
        world.bus.publish(EvictionBegan(world.now(), known(), 10))
        await asyncio.sleep(answered_after)
        world.bus.publish(EvictionEnded(world.now(), UID, done=True))
        await asyncio.sleep(30)

    assert violated_by(world.run(scenario)) == invariant


def test_an_eviction_of_a_real_agent_returns_and_is_published() -> None:
    world = World(0)

    async def scenario() -> None:
        BusHarness(world)
        slow = Behaviour(term_seconds=8, term_exit_code=143, exec=(ExecStep(),))
        world.api.put(pod("web", behaviours={"app": slow}))
        await asyncio.sleep(5)
        Evict("evictions", "web", 3).run(world)
        await asyncio.sleep(30)

    result = world.run(scenario)
    assert violated_by(result) == ""
    found = world.api.peek(Pod, "web", "default")
    assert found is not None
    assert (found.status.phase, found.status.reason) == ("Failed", "Evicted")
