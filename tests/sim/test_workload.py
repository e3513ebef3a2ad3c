"""The workload of the simulation: it is drawn from the seed, valid, and runs without violations."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.defaults.pod import default_pod
from podkeeper.rules.validate.pod import validate_pod
from podkeeper.runtimes.fake.behaviour import ExecStep
from podkeeper.testing.sim.actions import (
    AddEphemeralContainer,
    AddLabel,
    ChangeImage,
    Create,
    Delete,
    EndContainer,
    Evict,
    KillSandbox,
    RemoveManifest,
    Replace,
    SetCondition,
    SetImagePullable,
    WriteManifest,
    found,
    static_name,
    uid_by_name,
)
from podkeeper.testing.sim.pods import (
    EXEC,
    GRPC,
    HTTP,
    TCP,
    WELL,
    Draw,
    ProbePurpose,
    ScriptedContainer,
    failing_from,
    late,
    never_ends_by_itself,
    pod_of,
    probed,
    readiness_is_steady,
    scripted_container,
    with_hook,
)
from podkeeper.testing.sim.profile import FAULT_RATES, Profile
from podkeeper.testing.sim.schedule import Action, numbered, segments_of
from podkeeper.testing.sim.workload import WORKLOADS, answer_probes, workload_actions
from podkeeper.testing.sim.world import World

LONG = segments_of(6)


def drawn(seed: int, hours: float = 6, *kinds: str) -> list[tuple[float, Action]]:
    return workload_actions(Random(seed), segments_of(hours), Profile(), kinds or tuple(WORKLOADS))


def pods_in(actions: list[tuple[float, Action]]) -> list[Pod]:
    return [action.pod for _, action in actions if isinstance(action, Create | Replace | WriteManifest)]


def draw() -> Draw:
    return Draw(Random(1), Profile())


def app(name: str = "app", number: int = 0) -> ScriptedContainer:
    return scripted_container(draw(), name, number, term_seconds=0.0, term_exit_code=0)


def ready(pod: Pod | None) -> bool:
    conditions = () if pod is None else pod.status.conditions or ()
    return any(each.type == "Ready" and each.status == "True" for each in conditions)


def in_world(scenario: Callable[[World], Awaitable[None]]) -> World:
    """Run a scenario next to the agent, without any violation."""
    world = World("workload")
    answer_probes(world)
    result = world.run(lambda: scenario(world))
    assert result.violation is None
    assert list(world.runtime.violations) == []
    return world


# Drawing.


def test_the_same_seed_draws_the_same_workload() -> None:
    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_every_kind_is_drawn_and_has_a_share_and_a_description() -> None:
    assert {action.kind for _, action in drawn(1) + drawn(2)} == set(WORKLOADS)
    assert set(Profile().shares) == set(WORKLOADS)
    assert all(WORKLOADS.values())


def test_every_action_is_drawn() -> None:
    kinds = (
        Create,
        Delete,
        Replace,
        ChangeImage,
        AddLabel,
        SetCondition,
        AddEphemeralContainer,
        WriteManifest,
        RemoveManifest,
        Evict,
        EndContainer,
        KillSandbox,
        SetImagePullable,
    )
    assert {type(action) for _, action in drawn(1) + drawn(2)} == set(kinds)


@pytest.mark.parametrize("kind", WORKLOADS)
def test_only_the_selected_kind_is_drawn(kind: str) -> None:
    assert {action.kind for _, action in drawn(5, 1, kind)} == {kind}


def test_an_empty_selection_draws_nothing() -> None:
    assert workload_actions(Random(1), LONG, Profile(), ()) == []
    assert workload_actions(Random(1), (), Profile(), WORKLOADS) == []


def test_no_action_runs_in_calm() -> None:
    for at, action in drawn(1):
        assert any(segment.begins <= at < segment.calm_from for segment in LONG), action
        if isinstance(action, Replace):  # this may wait
            segment = next(each for each in LONG if each.begins <= at < each.ends)
            assert at + action.patience_seconds <= segment.calm_from + 0.001


def test_every_pod_is_valid() -> None:
    pods = pods_in(drawn(1) + drawn(2))
    assert len(pods) > 100
    for pod in pods:
        assert validate_pod(default_pod(pod)) == (), pod.metadata.name
        assert (pod.spec.termination_grace_period_seconds or 0) <= 60


def test_every_profile_has_a_description() -> None:
    profile = Profile(pods=3, faults_per_hour=2.0, fault_rates={"crash": 1.5})
    assert profile.fault_rate("crash") == 3.0
    assert profile.fault_rate("reboot") == 0.0
    text = "\n".join(profile.described())
    assert "3 pods" in text
    assert "crash 3" in text
    assert set(Profile().fault_rates) == set(FAULT_RATES)


# Predictions.

_JOB = scripted_container(draw(), after_seconds=5.0)
STEADY: dict[str, tuple[ScriptedContainer, bool, bool]] = {  # the container, steadily ready, runs until stopped
    "it has no probes": (app(), True, True),
    "its probe succeeds": (probed(draw(), app(), ProbePurpose.READINESS, WELL, methods=(EXEC,)), True, True),
    "its network probe succeeds": (probed(draw(), app(), ProbePurpose.READINESS, WELL, methods=(TCP,)), True, True),
    "it becomes ready late": (probed(draw(), app(), ProbePurpose.READINESS, late(draw())), False, True),
    "it starts slowly": (probed(draw(), app(), ProbePurpose.STARTUP, late(draw())), False, False),
    "its liveness probe fails": (probed(draw(), app(), ProbePurpose.LIVENESS, failing_from(60)), True, False),
    "its probe times out": (
        probed(draw(), app(), ProbePurpose.READINESS, (ExecStep(takes_seconds=9),), methods=(EXEC,)), False, True),
    "it ends": (_JOB, True, False),
    "it never starts": (app().with_behaviour(start_error="no"), True, False),
    "its postStart hook fails": (with_hook(app(), "post_start", EXEC, ExecStep(exit_code=1)), True, False),
    "its preStop hook fails": (with_hook(app(), "pre_stop", EXEC, ExecStep(exit_code=1)), True, True),
}  # fmt: skip


@pytest.mark.parametrize("container, steady, lasting", STEADY.values(), ids=STEADY.keys())
def test_readiness_and_end_of_a_pod_are_predicted(container: ScriptedContainer, steady: bool, lasting: bool) -> None:
    pod = pod_of("web", [container])
    assert (readiness_is_steady(pod), never_ends_by_itself(pod, "app")) == (steady, lasting)


def test_an_unknown_container_does_not_last() -> None:
    assert not never_ends_by_itself(pod_of("web", [app()]), "another")


# Runs.


@pytest.mark.parametrize("method", [EXEC, HTTP, TCP, GRPC])
def test_a_probe_is_answered_by_the_script(method: str) -> None:
    steps = (ExecStep(), ExecStep(from_seconds=100, exit_code=1), ExecStep(from_seconds=200))
    settings = {"period_seconds": 5, "failure_threshold": 1, "initial_delay_seconds": None}
    pod = pod_of("web", [probed(draw(), app(), ProbePurpose.READINESS, steps, methods=(method,), **settings)])

    async def scenario(world: World) -> None:
        Create("servers", pod).run(world)
        for moment, expected in ((50, True), (150, False), (250, True)):
            await asyncio.sleep(moment - world.now())
            assert ready(found(world, "web")) is expected, moment

    in_world(scenario)


def test_a_probe_of_a_closed_port_fails() -> None:
    unreachable = probed(draw(), app(), ProbePurpose.READINESS, WELL, methods=(TCP,)).with_behaviour(exec=())

    async def scenario(world: World) -> None:
        Create("servers", pod_of("web", [unreachable])).run(world)
        await asyncio.sleep(60)
        assert not ready(found(world, "web"))
        assert not readiness_is_steady(pod_of("web", [unreachable]))

    in_world(scenario)


def test_a_successor_is_created_as_soon_as_its_predecessor_is_removed() -> None:
    slow = pod_of("web", [app().with_behaviour(term_seconds=7.0)])

    async def scenario(world: World) -> None:
        Create("successors", slow).run(world)
        await asyncio.sleep(30)
        first = uid_by_name(world, "web")
        Replace("successors", pod_of("web", [app()]), patience_seconds=60).run(world)
        await asyncio.sleep(6)
        assert uid_by_name(world, "web") == first
        await asyncio.sleep(3)
        assert uid_by_name(world, "web") not in (None, first)

    in_world(scenario)


def test_after_a_forced_deletion_the_successor_is_created_at_once() -> None:
    async def scenario(world: World) -> None:
        Create("successors", pod_of("web", [app()])).run(world)
        await asyncio.sleep(30)
        first = uid_by_name(world, "web")
        Replace("successors", pod_of("web", [app()]), grace_seconds=0).run(world)
        assert uid_by_name(world, "web") not in (None, first)
        await asyncio.sleep(30)
        assert ready(found(world, "web"))

    in_world(scenario)


def test_a_replacement_gives_up_when_calm_begins() -> None:
    async def scenario(world: World) -> None:
        Create("successors", pod_of("web", [app().with_behaviour(term_seconds=7.0)])).run(world)
        await asyncio.sleep(30)
        Replace("successors", pod_of("web", [app()]), patience_seconds=5).run(world)
        await asyncio.sleep(60)
        assert found(world, "web") is None

    in_world(scenario)


def test_an_evicted_pod_has_a_reason() -> None:
    async def scenario(world: World) -> None:
        # As in the kubelet, a container that exits with 0 counts as succeeded, even if evicted.
        Create("evictions", pod_of("web", [app().with_behaviour(term_exit_code=143)])).run(world)
        WriteManifest("static-files", pod_of("static", [app()])).run(world)
        await asyncio.sleep(30)
        Evict("evictions", "web", 1).run(world)
        Evict("evictions", static_name("static"), 1).run(world)  # but not a critical one
        await asyncio.sleep(30)
        web, static = found(world, "web"), found(world, static_name("static"))
        assert web is not None
        assert (web.status.phase, web.status.reason) == ("Failed", "Evicted")
        assert ready(static)

    in_world(scenario)


def test_a_task_in_the_agent_ends_with_its_process() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("work")

    async def later() -> None:
        raise TryLater("cannot do it now")

    async def scenario(world: World) -> None:
        await asyncio.sleep(5)
        world.in_agent(work())
        world.in_agent(later())  # not an error
        await asyncio.sleep(5)
        assert ended == []
        world.crash(downtime_seconds=5)
        world.in_agent(later())  # there is no agent
        await asyncio.sleep(1)
        assert ended == ["work"]

    in_world(scenario)


def test_an_error_in_an_agent_task_is_reported() -> None:
    async def bug() -> None:
        raise ZeroDivisionError

    world = World("workload")

    async def scenario() -> None:
        await asyncio.sleep(1)
        world.in_agent(bug())
        await asyncio.sleep(1)

    violation = world.run(scenario).violation
    assert violation is not None
    assert violation.invariant == "alive"


MISSED = (
    Delete("deletes", "missing"),
    Replace("successors", pod_of("missing", [app()])),
    ChangeImage("updates", "missing", "app", "app:v2"),
    SetCondition("updates", "missing", "example.com/seen"),
    AddLabel("updates", "missing", "x"),
    RemoveManifest("static-files", "missing"),
    Evict("evictions", "missing", 1),
    EndContainer("accidents", "missing", "app", 1),
    KillSandbox("accidents", "missing"),
)


@pytest.mark.parametrize("action", MISSED, ids=str)
def test_an_action_without_its_pod_does_nothing(action: Action) -> None:
    async def scenario(world: World) -> None:
        await asyncio.sleep(1)
        before = world.api.version
        action.run(world)
        await asyncio.sleep(1)
        assert world.api.version == before

    in_world(scenario)


def test_the_default_workload_runs_for_an_hour_and_keeps_the_node_busy() -> None:
    segments = segments_of(1)
    actions = numbered(workload_actions(Random("1/workload"), segments, Profile(), WORKLOADS))
    alive: list[int] = []
    seen: set[PodUID] = set()

    async def look_on(world: World) -> None:
        while True:
            await asyncio.sleep(60)
            running = {run.uid for run in world.truth.all_running()}
            alive.append(len(running))
            seen.update(running)

    async def scenario(world: World) -> None:
        onlooker = asyncio.create_task(look_on(world))
        for timed in actions:
            await asyncio.sleep(timed.at - world.now())
            timed.action.run(world)
        await asyncio.sleep(segments[-1].ends - world.now())
        onlooker.cancel()

    in_world(scenario)
    assert sum(alive) / len(alive) >= 8
    assert len(seen) > 20
