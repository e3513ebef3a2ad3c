"""I15 to I17, the promises that we added ourselves: each is shown to bite, and to leave alone what is right."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from podkeeper.model.k8s.core import Pod, PodCondition
from podkeeper.model.messages import Op, PodUID
from podkeeper.model.runtime import ContainerRecord
from podkeeper.model.runtime import ContainerState as RuntimeState
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.runtimes.fake import Behaviour, ExecStep
from podkeeper.testing.sim.deeds import ChangeImage, Evict
from podkeeper.testing.sim.invariants.pods import Pods
from podkeeper.testing.sim.invariants.probe_book import Probed
from podkeeper.testing.sim.invariants.retries import Retries
from podkeeper.testing.sim.invariants.words import SCHEDULED
from podkeeper.testing.sim.records import Called, ContainerChanged, EvictionBegan, EvictionEnded
from podkeeper.testing.sim.world import Verdict, World
from tests.sim.stage import UID, Stage, going, known
from tests.sim.stories import container, exec_probe, pod


def broken(verdict: Verdict) -> str:
    return "" if verdict.violation is None else verdict.violation.invariant


def uid_of(found: Pod) -> PodUID:
    return PodUID(found.metadata.uid or "")


def stop_is_called(world: World, uid: PodUID) -> None:
    (live,) = world.truth.running(uid)
    life = 0 if world.life is None else world.life.number
    world.bus.tell(Called(world.now(), life, "runtime", "stop_container", uid, live.name, (live.id, 2)))


# I15: stops.


async def _nothing(world: World) -> None:
    """Nothing asks for the stop."""


async def _another_image(world: World) -> None:
    ChangeImage("updates", "web", "app", "app:v2").play(world)
    await asyncio.sleep(0)


async def _a_deletion(world: World) -> None:
    world.api.mark_deleted(Pod, "web", "default")
    await asyncio.sleep(0.1)


async def _an_eviction(world: World) -> None:
    Evict("evictions", "web", None).play(world)
    await asyncio.sleep(0.1)


async def _another_pods_deletion(world: World) -> None:
    world.api.put(pod("other"))
    await asyncio.sleep(1)
    world.api.mark_deleted(Pod, "other", "default")
    await asyncio.sleep(0.1)


async def _a_removal_of_the_past(world: World) -> None:
    """A list from before the pod was made: it is told again soon after."""
    world.api.put(pod("other"))
    world.crash()
    await asyncio.sleep(5)


STOPS = {
    "nothing asks for it":           (_nothing, "I15"),
    "another pod is deleted":        (_another_pods_deletion, "I15"),
    "the agent began anew":          (_a_removal_of_the_past, "I15"),
    "its image is another one":      (_another_image, ""),
    "its pod is deleted":            (_a_deletion, ""),
    "its pod is evicted":            (_an_eviction, ""),
}  # fmt: skip


@pytest.mark.parametrize(("before", "invariant"), STOPS.values(), ids=STOPS.keys())
def test_a_stop_needs_a_cause(before: Callable[[World], Awaitable[None]], invariant: str) -> None:
    world = World(0)
    Stage(world)

    async def story() -> None:
        uid = uid_of(world.api.put(pod("web", app=Behaviour(term_seconds=None))))
        await asyncio.sleep(200)
        await before(world)
        stop_is_called(world, uid)

    assert broken(world.play(story)) == invariant


def test_a_container_of_a_call_that_went_wrong_may_be_stopped() -> None:
    world = World(0)
    Stage(world)

    async def story() -> None:
        uid = uid_of(world.api.put(pod("web")))
        world.troubles.moment(world.now(), "lost-answers", uid)
        await asyncio.sleep(5)
        stop_is_called(world, uid)
        await asyncio.sleep(200)
        stop_is_called(world, uid)

    verdict = world.play(story)
    assert broken(verdict) == "I15"
    assert verdict.violation is not None
    assert verdict.violation.at > 200


# I16: tries.


def run(world: World, id_: str, *, ended: bool = False) -> None:
    happened = RuntimeEventType.STOPPED if ended else RuntimeEventType.STARTED
    state = RuntimeState.EXITED if ended else RuntimeState.RUNNING
    record = ContainerRecord(id=id_, name="app", state=state, exit_code=1, sandbox_id="s1")
    world.bus.tell(ContainerChanged(world.now(), UID, record, happened))


RESTS = {
    "no rest":                          (20.0, 0.0, (), "I16"),
    "too short a rest":                 (20.0, 8.0, (), "I16"),
    "a rest":                           (20.0, 10.0, (), ""),
    "after a long run none is needed":  (601.0, 0.0, (), ""),
    "nor after a stop":                 (20.0, 0.0, ("c1", "c2"), ""),
    "nor after the first failure since a stop (seed 898)": (20.0, 0.0, ("c1",), ""),
}  # fmt: skip


@pytest.mark.parametrize(("ran", "rest", "stopped", "invariant"), RESTS.values(), ids=RESTS.keys())
def test_what_fails_twice_rests_before_it_is_tried_again(
    ran: float, rest: float, stopped: tuple[str, ...], invariant: str
) -> None:
    world = World(0)
    Retries(world, Pods(world))

    async def story() -> None:
        for id_, seconds in (("c1", 5.0), ("c2", ran)):
            run(world, id_)
            await asyncio.sleep(seconds)
            if id_ in stopped:
                world.bus.tell(Called(world.now(), 1, "runtime", "stop_container", UID, "app", (id_, 2)))
            run(world, id_, ended=True)
        await asyncio.sleep(rest)
        run(world, "c3")

    assert broken(world.play(story)) == invariant


NEW_AGENTS = {
    "it has the notes of the agent before": ("", "I16"),
    "the notes could not be written": ("disk-full", ""),
    "the wall clock jumped": ("clock-jump", ""),
    "another trouble is no excuse": ("api-down", "I16"),
}


@pytest.mark.parametrize(("trouble", "invariant"), NEW_AGENTS.values(), ids=NEW_AGENTS.keys())
def test_a_new_agent_waits_as_the_agent_before_would_have(trouble: str, invariant: str) -> None:
    world = World(0)
    Retries(world, Pods(world))

    async def story() -> None:
        if trouble:
            world.troubles.begin(world.now(), trouble)
        for id_ in ("c1", "c2"):
            run(world, id_)
            await asyncio.sleep(5)
            run(world, id_, ended=True)
        world.crash(away_seconds=0.5)
        await asyncio.sleep(1)
        run(world, "c3")

    assert broken(world.play(story)) == invariant


@pytest.mark.parametrize(("asked", "invariant"), [(2, ""), (3, "I16")])
def test_a_liveness_probe_that_failed_for_good_is_not_asked_again(asked: int, invariant: str) -> None:
    world = World(0)
    retries = Retries(world, Pods(world))
    probed = Probed(container(live=exec_probe(failures=2)))
    probed.begin("c1", 0.0)
    for good in (False, True, *[False] * asked):
        retries.hear_liveness(UID, probed, good)
    assert ("" if world.violation is None else world.violation.invariant) == invariant
    world.loop.close()


# I17: words.


LATER = "2026-01-01T00:05:00Z"


def condition(type_: str, since: str = "2026-01-01T00:00:00Z") -> PodCondition:
    return PodCondition(type=type_, status="True", last_transition_time=since)


SAID = {
    "what another said is gone":           ((condition("example.com/seen"),), (), "I17"),
    "what another said stays":             ((condition("example.com/seen"),), (condition("example.com/seen"),), ""),
    "it was scheduled later than before":  ((condition(SCHEDULED),), (condition(SCHEDULED, LATER),), "I17"),
    "it was scheduled when it was":        ((condition(SCHEDULED),), (condition(SCHEDULED), condition("Ready")), ""),
    "it was unready for a moment":         ((condition("Ready"),), (condition("Ready", LATER),), ""),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "invariant"), SAID.values(), ids=SAID.keys())
def test_a_status_takes_nothing_away(
    before: tuple[PodCondition, ...], after: tuple[PodCondition, ...], invariant: str
) -> None:
    stage = Stage(World(0))
    stage.publishes(known(conditions=before), known(conditions=after))
    stage.world.loop.close()
    assert stage.broken == invariant


LAST_WORDS = {
    "says nothing":      (True, known(phase="Failed", conditions=()), "I17"),
    "says so":           (True, known(phase="Failed", reason="Evicted", conditions=()), ""),
    "took it well":      (True, known(phase="Succeeded", conditions=()), ""),
    "is not over":       (True, known(phase="Running", conditions=()), ""),
    "was not evicted":   (False, known(phase="Failed", conditions=()), ""),
}  # fmt: skip


@pytest.mark.parametrize(("done", "last", "invariant"), LAST_WORDS.values(), ids=LAST_WORDS.keys())
def test_an_evicted_pod_says_so(done: bool, last: Pod, invariant: str) -> None:
    stage = Stage(World(0))
    stage.runs("c1")
    stage.ends("c1")
    stage.world.bus.tell(EvictionEnded(0.0, UID, done))
    stage.publishes(known(), last)
    stage.world.loop.close()
    assert stage.broken == invariant


# I5, as far as it is new: removals and evictions.


def test_a_pod_removed_by_force_that_lives_on_is_seen() -> None:
    world = World(0)

    async def story() -> None:
        it = Stage(world)
        it.runs("c1")
        it.hears(known(pod("web", grace=60)))
        it.hears(going(known(pod("web", grace=60))), op=Op.UPDATE)
        it.hears(known(pod("web", grace=60)), op=Op.REMOVE)
        await asyncio.sleep(30)

    verdict = world.play(story)
    assert broken(verdict) == "I5"
    assert verdict.seconds == 7.0


@pytest.mark.parametrize(("answered_after", "invariant"), [(9.0, ""), (20.0, "I5")])
def test_who_evicts_a_pod_has_his_answer_in_time(answered_after: float, invariant: str) -> None:
    world = World(0)

    async def story() -> None:
        Stage(world)
        world.bus.tell(EvictionBegan(world.now(), known(), 10))
        await asyncio.sleep(answered_after)
        world.bus.tell(EvictionEnded(world.now(), UID, done=True))
        await asyncio.sleep(30)

    assert broken(world.play(story)) == invariant


def test_an_eviction_of_a_real_agent_is_answered_and_told() -> None:
    world = World(0)

    async def story() -> None:
        Stage(world)
        slow = Behaviour(term_seconds=8, term_exit_code=143, exec=(ExecStep(),))
        world.api.put(pod("web", app=slow))
        await asyncio.sleep(5)
        Evict("evictions", "web", 3).play(world)
        await asyncio.sleep(30)

    verdict = world.play(story)
    assert broken(verdict) == ""
    found = world.api.peek(Pod, "web", "default")
    assert found is not None
    assert (found.status.phase, found.status.reason) == ("Failed", "Evicted")
