"""The workload of the simulation: drawn from chance alone, all of it possible, and played without a fault."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.defaults import default_pod
from podkeeper.rules.validate.pod import validate_pod
from podkeeper.runtimes.fake.behaviour import ExecStep
from podkeeper.testing.sim.deeds import (
    ChangeImage,
    Create,
    Debug,
    Delete,
    EndContainer,
    Erase,
    Evict,
    KillSandbox,
    Label,
    Lose,
    Remark,
    Succeed,
    Write,
    found,
    static_name,
    uid_of,
)
from podkeeper.testing.sim.history import Deed, chapters_of, numbered
from podkeeper.testing.sim.pods import (
    EXEC,
    GRPC,
    HTTP,
    TCP,
    WELL,
    Draw,
    Part,
    Purpose,
    failing_from,
    late,
    never_ends_by_itself,
    part,
    pod_of,
    probed,
    readiness_is_steady,
    with_hook,
)
from podkeeper.testing.sim.profile import FAULT_RATES, Profile
from podkeeper.testing.sim.workload import WORKLOADS, answer_probes, workload_deeds
from podkeeper.testing.sim.world import World

LONG = chapters_of(6)


def drawn(seed: int, hours: float = 6, *kinds: str) -> list[tuple[float, Deed]]:
    return workload_deeds(Random(seed), chapters_of(hours), Profile(), kinds or tuple(WORKLOADS))


def pods_in(deeds: list[tuple[float, Deed]]) -> list[Pod]:
    return [deed.pod for _, deed in deeds if isinstance(deed, Create | Succeed | Write)]


def draw() -> Draw:
    return Draw(Random(1), Profile())


def app(name: str = "app", number: int = 0) -> Part:
    return part(draw(), name, number, term_seconds=0.0, term_exit_code=0)


def ready(pod: Pod | None) -> bool:
    conditions = () if pod is None else pod.status.conditions or ()
    return any(each.type == "Ready" and each.status == "True" for each in conditions)


def in_world(story: Callable[[World], Awaitable[None]]) -> World:
    """Play a story beside a living agent; nothing may go wrong."""
    world = World("workload")
    answer_probes(world)
    verdict = world.play(lambda: story(world))
    assert verdict.violation is None
    assert list(world.runtime.violations) == []
    return world


# What is drawn.


def test_the_same_chance_draws_the_same_deeds() -> None:
    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_every_kind_is_drawn_and_has_a_share_and_a_sentence() -> None:
    assert {deed.kind for _, deed in drawn(1) + drawn(2)} == set(WORKLOADS)
    assert set(Profile().shares) == set(WORKLOADS)
    assert all(WORKLOADS.values())


def test_every_deed_there_is_is_drawn() -> None:
    kinds = (
        Create,
        Delete,
        Succeed,
        ChangeImage,
        Label,
        Remark,
        Debug,
        Write,
        Erase,
        Evict,
        EndContainer,
        KillSandbox,
        Lose,
    )
    assert {type(deed) for _, deed in drawn(1) + drawn(2)} == set(kinds)


@pytest.mark.parametrize("kind", WORKLOADS)
def test_only_what_was_chosen_is_drawn(kind: str) -> None:
    assert {deed.kind for _, deed in drawn(5, 1, kind)} == {kind}


def test_nothing_chosen_nothing_drawn() -> None:
    assert workload_deeds(Random(1), LONG, Profile(), ()) == []
    assert workload_deeds(Random(1), (), Profile(), WORKLOADS) == []


def test_no_deed_is_done_in_calm() -> None:
    for at, deed in drawn(1):
        assert any(chapter.begins <= at < chapter.calm_from for chapter in LONG), deed
        if isinstance(deed, Succeed):  # which may wait
            chapter = next(each for each in LONG if each.begins <= at < each.ends)
            assert at + deed.patience_seconds <= chapter.calm_from + 0.001


def test_every_pod_is_one_that_an_api_server_would_take() -> None:
    pods = pods_in(drawn(1) + drawn(2))
    assert len(pods) > 100
    for pod in pods:
        assert validate_pod(default_pod(pod)) == (), pod.metadata.name
        assert (pod.spec.termination_grace_period_seconds or 0) <= 60


def test_a_profile_says_what_it_is() -> None:
    profile = Profile(pods=3, faults_per_hour=2.0, fault_rates={"crash": 1.5})
    assert profile.fault_rate("crash") == 3.0
    assert profile.fault_rate("reboot") == 0.0
    text = "\n".join(profile.described())
    assert "3 pods" in text
    assert "crash 3" in text
    assert set(Profile().fault_rates) == set(FAULT_RATES)


# What can be told of a pod.

_JOB = part(draw(), after_seconds=5.0)
STEADY: dict[str, tuple[Part, bool, bool]] = {  # the container, steadily ready, runs until stopped
    "nobody asks it anything": (app(), True, True),
    "it answers well": (probed(draw(), app(), Purpose.READINESS, WELL, ways=(EXEC,)), True, True),
    "it answers well, over the network": (probed(draw(), app(), Purpose.READINESS, WELL, ways=(TCP,)), True, True),
    "it is not ready at once": (probed(draw(), app(), Purpose.READINESS, late(draw())), False, True),
    "its startup takes a while": (probed(draw(), app(), Purpose.STARTUP, late(draw())), False, False),
    "it dies of its liveness": (probed(draw(), app(), Purpose.LIVENESS, failing_from(60)), True, False),
    "it is too slow": (
        probed(draw(), app(), Purpose.READINESS, (ExecStep(takes_seconds=9),), ways=(EXEC,)), False, True),
    "it ends": (_JOB, True, False),
    "it never starts": (app().doing(start_error="no"), True, False),
    "its postStart hook fails": (with_hook(app(), "post_start", EXEC, ExecStep(exit_code=1)), True, False),
    "its preStop hook fails": (with_hook(app(), "pre_stop", EXEC, ExecStep(exit_code=1)), True, True),
}  # fmt: skip


@pytest.mark.parametrize("it, steady, lasting", STEADY.values(), ids=STEADY.keys())
def test_a_pods_future_can_be_read(it: Part, steady: bool, lasting: bool) -> None:
    pod = pod_of("web", [it])
    assert (readiness_is_steady(pod), never_ends_by_itself(pod, "app")) == (steady, lasting)


def test_a_container_that_a_pod_does_not_have_does_not_last() -> None:
    assert not never_ends_by_itself(pod_of("web", [app()]), "another")


# What is played.


@pytest.mark.parametrize("way", [EXEC, HTTP, TCP, GRPC])
def test_a_probe_is_answered_as_the_script_says(way: str) -> None:
    steps = (ExecStep(), ExecStep(from_seconds=100, exit_code=1), ExecStep(from_seconds=200))
    settings = {"period_seconds": 5, "failure_threshold": 1, "initial_delay_seconds": None}
    pod = pod_of("web", [probed(draw(), app(), Purpose.READINESS, steps, ways=(way,), **settings)])

    async def story(world: World) -> None:
        Create("servers", pod).play(world)
        for moment, expected in ((50, True), (150, False), (250, True)):
            await asyncio.sleep(moment - world.now())
            assert ready(found(world, "web")) is expected, moment

    in_world(story)


def test_where_nobody_listens_nobody_is_ready() -> None:
    deaf = probed(draw(), app(), Purpose.READINESS, WELL, ways=(TCP,)).doing(exec=())

    async def story(world: World) -> None:
        Create("servers", pod_of("web", [deaf])).play(world)
        await asyncio.sleep(60)
        assert not ready(found(world, "web"))
        assert not readiness_is_steady(pod_of("web", [deaf]))

    in_world(story)


def test_a_successor_comes_as_soon_as_its_predecessor_is_gone() -> None:
    slow = pod_of("web", [app().doing(term_seconds=7.0)])

    async def story(world: World) -> None:
        Create("successors", slow).play(world)
        await asyncio.sleep(30)
        first = uid_of(world, "web")
        Succeed("successors", pod_of("web", [app()]), patience_seconds=60).play(world)
        await asyncio.sleep(6)
        assert uid_of(world, "web") == first
        await asyncio.sleep(3)
        assert uid_of(world, "web") not in (None, first)

    in_world(story)


def test_after_a_forced_deletion_the_successor_is_there_at_once() -> None:
    async def story(world: World) -> None:
        Create("successors", pod_of("web", [app()])).play(world)
        await asyncio.sleep(30)
        first = uid_of(world, "web")
        Succeed("successors", pod_of("web", [app()]), grace_seconds=0).play(world)
        assert uid_of(world, "web") not in (None, first)
        await asyncio.sleep(30)
        assert ready(found(world, "web"))

    in_world(story)


def test_a_successor_is_not_waited_for_in_calm() -> None:
    async def story(world: World) -> None:
        Create("successors", pod_of("web", [app().doing(term_seconds=7.0)])).play(world)
        await asyncio.sleep(30)
        Succeed("successors", pod_of("web", [app()]), patience_seconds=5).play(world)
        await asyncio.sleep(60)
        assert found(world, "web") is None

    in_world(story)


def test_an_evicted_pod_says_so() -> None:
    async def story(world: World) -> None:
        # One that ends well when asked to counts as succeeded, evicted or not: the reference's rule.
        Create("evictions", pod_of("web", [app().doing(term_exit_code=143)])).play(world)
        Write("static-files", pod_of("static", [app()])).play(world)
        await asyncio.sleep(30)
        Evict("evictions", "web", 1).play(world)
        Evict("evictions", static_name("static"), 1).play(world)  # but not a critical one
        await asyncio.sleep(30)
        web, static = found(world, "web"), found(world, static_name("static"))
        assert web is not None
        assert (web.status.phase, web.status.reason) == ("Failed", "Evicted")
        assert ready(static)

    in_world(story)


def test_what_the_agent_was_to_do_ends_with_its_life() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("work")

    async def later() -> None:
        raise TryLater("cannot do it now")

    async def story(world: World) -> None:
        await asyncio.sleep(5)
        world.in_agent(work())
        world.in_agent(later())  # which is no error
        await asyncio.sleep(5)
        assert ended == []
        world.crash(away_seconds=5)
        world.in_agent(later())  # nobody is there to do it
        await asyncio.sleep(1)
        assert ended == ["work"]

    in_world(story)


def test_what_falls_over_in_the_agent_is_reported() -> None:
    async def bug() -> None:
        raise ZeroDivisionError

    world = World("workload")

    async def story() -> None:
        await asyncio.sleep(1)
        world.in_agent(bug())
        await asyncio.sleep(1)

    violation = world.play(story).violation
    assert violation is not None
    assert violation.invariant == "alive"


MISSED = (
    Delete("deletes", "nobody"),
    Succeed("successors", pod_of("nobody", [app()])),
    ChangeImage("updates", "nobody", "app", "app:v2"),
    Remark("updates", "nobody", "example.com/seen"),
    Label("updates", "nobody", "x"),
    Erase("static-files", "nobody"),
    Evict("evictions", "nobody", 1),
    EndContainer("accidents", "nobody", "app", 1),
    KillSandbox("accidents", "nobody"),
)


@pytest.mark.parametrize("deed", MISSED, ids=str)
def test_a_deed_whose_pod_is_gone_does_nothing(deed: Deed) -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(1)
        before = world.api.version
        deed.play(world)
        await asyncio.sleep(1)
        assert world.api.version == before

    in_world(story)


def test_the_default_workload_plays_for_an_hour_and_keeps_the_node_busy() -> None:
    chapters = chapters_of(1)
    acts = numbered(workload_deeds(Random("1/workload"), chapters, Profile(), WORKLOADS))
    alive: list[int] = []
    seen: set[PodUID] = set()

    async def look_on(world: World) -> None:
        while True:
            await asyncio.sleep(60)
            running = {life.uid for life in world.truth.all_running()}
            alive.append(len(running))
            seen.update(running)

    async def story(world: World) -> None:
        onlooker = asyncio.create_task(look_on(world))
        for act in acts:
            await asyncio.sleep(act.at - world.now())
            act.deed.play(world)
        await asyncio.sleep(chapters[-1].ends - world.now())
        onlooker.cancel()

    in_world(story)
    assert sum(alive) / len(alive) >= 8
    assert len(seen) > 20
