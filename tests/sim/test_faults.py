"""Faults are drawn from a seed, happen, and are undone."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from math import inf, isinf
from random import Random

import pytest

from podkeeper.model.k8s.core import ExecAction, Pod, Probe
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.testing import build
from podkeeper.testing.sim.faults import FAULTS, fault_actions
from podkeeper.testing.sim.faults_agent import BASE_LATE_WAKEUPS, AgentCrash, ClockJump, DiskFault, LateWakeups
from podkeeper.testing.sim.faults_calls import CallFault, CallFaultWindow, pods_on_node, runtime_uid
from podkeeper.testing.sim.faults_services import (
    ApiDown,
    BusyVolumes,
    EventFault,
    EventFaultWindow,
    RuntimeDown,
    StaleLists,
    UnreadableSources,
    WatchStale,
)
from podkeeper.testing.sim.profile import Profile
from podkeeper.testing.sim.records import AgentStopped
from podkeeper.testing.sim.schedule import Action, Segment, segments_of
from podkeeper.testing.sim.world import NODE, World, WorldResult

SEGMENTS = segments_of(12.0)
FREQUENT = Profile(faults_per_hour=5.0)
LATEST_REST_SECONDS = 300.0

pod = partial(build.pod, node=NODE, uid="", policy=None, grace=None)


def drawn(*kinds: str, seed: int = 1, segments: tuple[Segment, ...] = SEGMENTS) -> list[tuple[float, Action]]:
    return fault_actions(Random(seed), segments, FREQUENT, kinds or tuple(FAULTS))


def run_on_node(world: World, scenario: Callable[[], Awaitable[None]]) -> WorldResult:
    """Run a scenario on a node with two running pods from the API and a static one."""

    async def all_of_it() -> None:
        world.api.put(pod("a"))
        world.api.put(pod("b"))
        world.files.write("/manifests/c.yaml", pod("c"))
        await asyncio.sleep(20)
        assert ready_pods(world) == ["a", "b", f"c-{NODE}"]
        await scenario()

    result = world.run(all_of_it)
    assert result.violation is None
    return result


def ready_pods(world: World) -> list[str]:
    pods = sorted(world.api.objects(Pod), key=lambda it: it.metadata.name or "")
    return [
        it.metadata.name or ""
        for it in pods
        if any(condition.type == "Ready" and condition.status == "True" for condition in it.status.conditions or ())
    ]


# Drawing.


def test_the_same_seed_draws_the_same_faults_and_another_one_others() -> None:
    assert drawn() == drawn()
    assert [str(action) for _, action in drawn()] == [str(action) for _, action in drawn()]
    assert drawn() != drawn(seed=2)
    assert len({action for _, action in drawn()}) > 1000  # frozen, and as different as can be


def test_only_the_selected_kinds_are_drawn() -> None:
    assert set(FAULTS) == set(Profile().fault_rates)
    assert {action.kind for _, action in drawn()} == set(FAULTS)
    assert {action.kind for _, action in drawn("stale-lists", "reboot")} == {"stale-lists", "reboot"}
    assert fault_actions(Random(1), SEGMENTS, Profile(faults_per_hour=0), FAULTS) == []


def test_selecting_fewer_kinds_does_not_change_the_others() -> None:
    everything = set(drawn())
    for kind in FAULTS:
        alone = drawn(kind)
        assert len(alone) > 10
        assert everything.issuperset(alone)


def test_all_faults_begin_and_end_before_calm() -> None:
    for at, action in drawn():
        segment = next(segment for segment in reversed(SEGMENTS) if segment.begins <= at)
        waits = action.within_seconds if isinstance(action, AgentCrash) and action.calls else 0.0
        lasts = getattr(action, "seconds", waits)
        assert at < segment.calm_from
        assert isinf(lasts) or at + lasts <= segment.calm_from + 0.001


# Clusters.

DAYS = segments_of(200.0)


def clusters_drawn(share: float, *kinds: str, seconds: float = 8.0) -> list[tuple[float, Action]]:
    """Return the faults that were drawn only as companions."""
    profiles = [Profile(clusters=each, cluster_seconds=seconds) for each in (0.0, share)]
    alone, all_of_them = (fault_actions(Random(1), DAYS, profile, kinds or FAULTS) for profile in profiles)
    assert set(alone) <= set(all_of_them)
    return sorted(set(all_of_them) - set(alone), key=lambda timed: timed[0])


@pytest.mark.parametrize("seconds", [2.0, 20.0])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
def test_the_profile_defines_share_and_delay_of_companions(share: float, seconds: float) -> None:
    kinds = ("hung-calls", "crash", "api-down")  # a hung call brings either of the others
    leaders = [at for at, action in fault_actions(Random(1), DAYS, Profile(), ("hung-calls",))]
    companions = [at for at, _ in clusters_drawn(share, *kinds, seconds=seconds)]
    leading = [at for at in leaders if any(0 <= companion - at <= seconds for companion in companions)]
    assert len(leaders) > 200
    assert len(leading) == pytest.approx(len(leaders) * share, abs=len(leaders) * 0.08)


def test_a_cluster_happens_only_if_all_its_kinds_are_selected() -> None:
    for kind in FAULTS:
        assert clusters_drawn(1.0, kind) == []
    assert {action.kind for _, action in clusters_drawn(1.0, "crash", "unreadable-sources")} == {
        "crash",
        "unreadable-sources",
    }


def test_companions_add_less_than_half_to_the_default_faults() -> None:
    alone = fault_actions(Random(1), DAYS, Profile(clusters=0.0), FAULTS)
    assert len(clusters_drawn(Profile().clusters)) < len(alone) / 2


def test_stale_lists_of_clusters_leave_a_pause_between_them() -> None:
    actions = fault_actions(Random(1), segments_of(60.0), Profile(clusters=1.0), FAULTS)
    moments = sorted(at for at, action in actions if isinstance(action, StaleLists))
    assert all(later - earlier >= 119.0 for earlier, later in pairwise(moments))


# Undoing.


def _variants(kind: str) -> list[Action]:
    """Return different actions of a kind."""
    actions = [action for _, action in drawn(kind, seed=3) if action.kind == kind]
    return actions[:: max(1, len(actions) // 2)][:2]


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_happens_and_is_undone(kind: str) -> None:
    for number, action in enumerate(_variants(kind)):
        world = World(number)
        result = run_on_node(world, lambda action=action, world=world: _run_action(world, action))  # type: ignore[misc]  # bound now
        always = isinstance(action, LateWakeups) and isinf(action.seconds)
        assert result.fault_counts[kind] >= (0 if always else 1), str(action)


async def _run_action(world: World, action: Action) -> None:
    action.run(world)
    await asyncio.sleep(1)
    world.api.put(pod("d"))
    world.files.write("/manifests/e.yaml", pod("e"))
    world.api.mark_deleted(Pod, "b", "default", grace_seconds=2)
    await asyncio.sleep(40)
    world.end_faults()
    await asyncio.sleep(0)
    await _check_all_is_well(world)
    at_rest, latest = ["a", f"c-{NODE}", "d", f"e-{NODE}"], world.now() + LATEST_REST_SECONDS
    while ready_pods(world) != at_rest and world.now() < latest:
        await asyncio.sleep(5)
    assert ready_pods(world) == at_rest, str(action)
    assert world.is_up


async def _check_all_is_well(world: World) -> None:
    uids = [uid for uid, _ in pods_on_node(world)]
    for fake in (world.runtime, world.api, world.volumes, world.cgroups):
        assert fake.faults.hung_calls == 0
        assert fake.faults.policies == ()
    assert world.fault_log.active() == []
    assert world.runtime.event_filters == ()
    assert (world.journal.disk_full, world.journal.sync_seconds, world.api.lists_as_of) == (False, 0.0, None)
    assert not world.volumes.in_use
    watch = world.api.watch(Pod, str(world.api.version))
    world.api.put(pod("far", node="elsewhere"))
    begun = world.now()
    assert (await anext(watch)).object.metadata.name == "far"
    world.api.remove(Pod, "far", "default")
    assert len(await world.runtime.list_pods()) >= len(uids) - 2
    assert (await world.runtime.health()).runtime_ready
    assert world.now() == begun


@pytest.mark.parametrize(
    "one, other, is_over",
    [
        (RuntimeDown(10), RuntimeDown(20), lambda world: not world.runtime._calls.down),
        (ApiDown(10), ApiDown(20), lambda world: not world.api._calls.down),
        (StaleLists(3, 10), StaleLists(9, 20), lambda world: world.api.lists_as_of is None),
        (DiskFault(True, 0.0, 10), DiskFault(True, 1.0, 20), lambda world: not world.journal.disk_full),
        (WatchStale(10, 0.0), WatchStale(20, 0.0), lambda world: not world.api._watch_settings.stalled),
        (UnreadableSources(True, False, 10), UnreadableSources(True, True, 20), lambda world: world.files._readable),
        (BusyVolumes(0, 10), BusyVolumes(0, 20), lambda world: not world.volumes.in_use),
        (BusyVolumes(0, 10), BusyVolumes(1, 20), lambda world: not world.volumes.in_use),
        (LateWakeups(0.1, 0.1, 10), LateWakeups(0.2, 0.1, 20), lambda world: world.loop._share == BASE_LATE_WAKEUPS[0]),
    ],
    ids=lambda value: value.kind if hasattr(value, "kind") else "",
)
@pytest.mark.parametrize("turned", [False, True], ids=["the longer one begins last", "the longer one begins first"])
def test_the_last_of_two_overlapping_windows_restores_the_service(
    one: Action, other: Action, is_over: Callable[[World], bool], turned: bool
) -> None:
    world = World(1)

    async def scenario() -> None:
        for action in (other, one) if turned else (one, other):
            action.run(world)
        await asyncio.sleep(15)
        assert not is_over(world)
        await asyncio.sleep(6)
        assert is_over(world)

    run_on_node(world, scenario)


def test_equal_windows_close_at_their_own_times() -> None:
    world = World(1)

    async def scenario() -> None:
        WatchStale(30.0, 0.0).run(world)
        WatchStale(20.0, 3.2).run(world)
        WatchStale(10.0, 0.0).run(world)
        await asyncio.sleep(5)
        assert world.api._watch_settings.stalled
        await asyncio.sleep(10)  # the last one has closed, so the second one is in force
        assert not world.api._watch_settings.stalled
        await asyncio.sleep(10)
        assert world.api._watch_settings.stalled
        await asyncio.sleep(10)
        assert not world.api._watch_settings.stalled

    world.run(scenario)


# Calls.


def test_a_hung_call_continues_when_its_own_window_closes() -> None:
    world = World(1)

    async def scenario() -> None:
        (first, _), (second, _), (third, _) = pods_on_node(world)
        for victim, seconds in ((0, 60.0), (1, 150.0)):
            _hang("hung-calls", victim, seconds).run(world)
        await asyncio.sleep(1)
        calls = {uid: asyncio.ensure_future(world.runtime.pod_record(uid)) for uid in (first, second, third)}
        done: dict[PodUID, float] = {}
        for uid, call in calls.items():
            call.add_done_callback(lambda _, uid=uid: done.setdefault(uid, world.now()))  # type: ignore[misc]  # bound now
        await asyncio.sleep(200)
        assert done == {third: 21.0, first: 80.0, second: 170.0}
        assert world.runtime.faults.hung_calls == 0
        assert [(it.kind, it.uid, it.ended) for it in world.fault_log._faults] == [
            ("hung-calls", first, 80.0),
            ("hung-calls", second, 170.0),
        ]

    run_on_node(world, scenario)


def _hang(kind: str, victim: int, seconds: float) -> CallFaultWindow:
    operations, ills = ("pod_record",), (CallFault(inf),)
    return CallFaultWindow(
        kind=kind, port="runtime", operations=operations, faults=ills, seconds=seconds, seed=1, victim=victim
    )


def test_a_fault_of_a_mirror_pod_affects_its_static_pod() -> None:
    world = World(1)

    async def scenario() -> None:
        mirror = world.api.peek(Pod, f"c-{NODE}", "default")
        assert mirror is not None
        static = world.files.pods()[0].metadata.uid
        assert mirror.metadata.uid != static
        assert runtime_uid(mirror) == static
        assert [name for _, name in pods_on_node(world)].count(f"c-{NODE}") == 1

    run_on_node(world, scenario)


def test_a_fault_without_a_pod_does_nothing() -> None:
    world = World(1)

    async def scenario() -> None:
        _hang("hung-calls", 5, 60.0).run(world)
        BusyVolumes(5, 60.0).run(world)
        assert world.fault_log.active() == []

    world.run(scenario)


# Events.


def test_watches_are_prompt_after_all_windows_have_closed() -> None:
    """Seed 179: events stayed slow until the last late one had arrived, after the end of the fault."""
    world = World(1)

    async def scenario() -> None:
        stream = world.api.watch(Pod, resource_version="0")
        came: dict[str, float] = {}

        async def listen() -> None:
            async for event in stream:
                came.setdefault(event.object.metadata.name or "", world.now() - start)

        start = world.now()
        listening = asyncio.ensure_future(listen())
        WatchStale(seconds=20.0, delay_seconds=20.0).run(world)
        WatchStale(seconds=23.0, delay_seconds=90.0).run(world)
        await asyncio.sleep(15)
        world.api.put(pod("slow"))
        await asyncio.sleep(15)
        world.api.put(pod("behind-it"))
        await asyncio.sleep(80)
        world.api.put(pod("prompt"))
        await asyncio.sleep(1)
        listening.cancel()
        assert [came[name] for name in ("slow", "behind-it", "prompt")] == [105.0, 105.0, 110.0]

    run_on_node(world, scenario)


def test_late_and_repeated_events_overlap() -> None:
    world = World(1)
    late = EventFaultWindow(EventFault.LATE, 1.0, 30.0, seed=1, latest_seconds=20.0)
    twice = EventFaultWindow(EventFault.REPEATED, 1.0, 60.0, seed=2)

    async def scenario() -> None:
        stream = world.runtime.events()
        uid, _ = pods_on_node(world)[0]
        events: list[tuple[RuntimeEventType, float]] = []

        async def listen() -> None:
            events.extend([(event.type, world.now()) async for event in stream if event.uid == uid])

        listening = asyncio.ensure_future(listen())
        late.run(world)
        twice.run(world)
        world.runtime.end_container(uid, "app", 1)
        await asyncio.sleep(40)
        world.runtime.end_events()
        await listening
        ends = [at for what, at in events if what is RuntimeEventType.STOPPED]
        assert len(ends) == 2
        assert all(20.0 < at <= 50.0 for at in ends)  # late, but no later than the trouble lasts
        assert len(world.runtime.event_filters) == 1

    run_on_node(world, scenario)


# Crashes.


@pytest.mark.parametrize(
    "crash, how, within",
    [
        (AgentCrash(2.0), "killed", 0.0),
        (AgentCrash(2.0, calls=1), "killed before journal sync", 5.0),
        (AgentCrash(2.0, calls=1, after=True), "killed after", 5.0),
        (AgentCrash(2.0, calls=5), "killed before", 5.0),
        (AgentCrash(2.0, calls=10_000), "killed after the time limit", 30.0),
    ],
    ids=["at once", "before the first call", "after the first call", "before the fifth", "after the time limit"],
)
def test_the_agent_is_killed_at_the_chosen_call(crash: AgentCrash, how: str, within: float) -> None:
    world = World(1)
    ends: list[AgentStopped] = []
    world.bus.subscribe(AgentStopped, ends.append)

    async def scenario() -> None:
        begun = world.now()
        crash.run(world)
        world.api.put(pod("d"))
        await asyncio.sleep(31)
        assert [end.how.startswith(how) for end in ends] == [True], ends
        assert ends[0].at - begun <= within
        await asyncio.sleep(60)
        assert len(ready_pods(world)) == 4
        assert world.fault_log.counts["crash"] == 1

    run_on_node(world, scenario)


def test_the_agent_crashes_again_right_after_its_restart() -> None:
    world = World(1)
    ends: list[AgentStopped] = []
    world.bus.subscribe(AgentStopped, ends.append)

    async def scenario() -> None:
        AgentCrash(5.0).run(world)
        AgentCrash(1.0, calls=1).run(world)
        AgentCrash(1.0, calls=2, after=True).run(world)
        world.api.put(pod("d"))
        await asyncio.sleep(60)
        assert len(ends) == 3
        assert ends[1].at - ends[0].at >= 5.0
        assert len(ready_pods(world)) == 4

    run_on_node(world, scenario)


def test_a_corrected_clock_has_the_right_time() -> None:
    world = World(1)

    async def scenario() -> None:
        before = world.clock.now()
        ClockJump(3600.0, 10.0).run(world)
        await asyncio.sleep(5)
        assert (world.clock.now() - before).total_seconds() == 3605.0
        await asyncio.sleep(5)
        assert (world.clock.now() - before).total_seconds() == 10.0
        ClockJump(-60.0, inf).run(world)
        world.end_faults()
        assert (world.clock.now() - before).total_seconds() == -50.0

    run_on_node(world, scenario)


def test_a_container_that_started_while_the_clock_was_ahead_is_probed_by_the_next_agent() -> None:
    world = World(1)
    check = Probe(exec=ExecAction(command=("check",)), period_seconds=10)

    async def scenario() -> None:
        ClockJump(3600.0, 60.0).run(world)
        world.api.put(pod("d", build.container(readiness=check)))
        await asyncio.sleep(61)
        assert "d" in ready_pods(world)
        world.crash()
        await asyncio.sleep(30)  # an hour by the wall clock
        assert "d" in ready_pods(world)

    run_on_node(world, scenario)
