"""Mischief is drawn from a chance alone, happens, and is put right again."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from math import inf, isinf
from random import Random

import pytest

from podkeeper.model.k8s.core import Container, ExecAction, Pod, PodSpec, Probe
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.testing.sim.history import Chapter, Deed, chapters_of
from podkeeper.testing.sim.mischief import FAULTS, mischief_deeds
from podkeeper.testing.sim.mischief_agent import BASE_DAWDLE, ClockJump, Crash, Dawdle, DiskTrouble
from podkeeper.testing.sim.mischief_around import (
    ApiDown,
    BusyVolumes,
    EventTrouble,
    News,
    RuntimeDown,
    StaleLists,
    UnreadableSources,
    WatchStale,
)
from podkeeper.testing.sim.mischief_calls import CallTrouble, Ill, pods_there, runtime_uid
from podkeeper.testing.sim.profile import Profile
from podkeeper.testing.sim.records import LifeEnded
from podkeeper.testing.sim.world import NODE, Verdict, World

CHAPTERS = chapters_of(12.0)
FREQUENT = Profile(faults_per_hour=5.0)
LATEST_REST_SECONDS = 300.0


def drawn(*kinds: str, seed: int = 1, chapters: tuple[Chapter, ...] = CHAPTERS) -> list[tuple[float, Deed]]:
    return mischief_deeds(Random(seed), chapters, FREQUENT, kinds or tuple(FAULTS))


def pod(name: str, node: str = NODE) -> Pod:
    spec = PodSpec(node_name=node, containers=(Container(name="app", image="app:v1"),))
    return Pod(metadata=ObjectMeta(name=name, namespace="default"), spec=spec)


def told(world: World, story: Callable[[], Awaitable[None]]) -> Verdict:
    """Tell a story of a node with two pods from the API and a static one; they run when it begins."""

    async def all_of_it() -> None:
        world.api.put(pod("a"))
        world.api.put(pod("b"))
        world.files.write("/manifests/c.yaml", pod("c"))
        await asyncio.sleep(20)
        assert ready_pods(world) == ["a", "b", f"c-{NODE}"]
        await story()

    verdict = world.play(all_of_it)
    assert verdict.violation is None
    return verdict


def ready_pods(world: World) -> list[str]:
    pods = sorted(world.api.objects(Pod), key=lambda it: it.metadata.name or "")
    return [
        it.metadata.name or ""
        for it in pods
        if any(condition.type == "Ready" and condition.status == "True" for condition in it.status.conditions or ())
    ]


# What is drawn.


def test_the_same_chance_draws_the_same_deeds_and_another_one_others() -> None:
    assert drawn() == drawn()
    assert [str(deed) for _, deed in drawn()] == [str(deed) for _, deed in drawn()]
    assert drawn() != drawn(seed=2)
    assert len({deed for _, deed in drawn()}) > 1000  # frozen, and as different as can be


def test_every_kind_that_is_chosen_happens_and_no_other() -> None:
    assert set(FAULTS) == set(Profile().fault_rates)
    assert {deed.kind for _, deed in drawn()} == set(FAULTS)
    assert {deed.kind for _, deed in drawn("stale-lists", "reboot")} == {"stale-lists", "reboot"}
    assert mischief_deeds(Random(1), CHAPTERS, Profile(faults_per_hour=0), FAULTS) == []


def test_choosing_fewer_kinds_changes_nothing_about_those_that_are_left() -> None:
    everything = set(drawn())
    for kind in FAULTS:
        alone = drawn(kind)
        assert len(alone) > 10
        assert everything.issuperset(alone)


def test_all_mischief_begins_and_ends_before_calm() -> None:
    for at, deed in drawn():
        chapter = next(chapter for chapter in reversed(CHAPTERS) if chapter.begins <= at)
        waits = deed.within_seconds if isinstance(deed, Crash) and deed.calls else 0.0
        lasts = getattr(deed, "seconds", waits)
        assert at < chapter.calm_from
        assert isinf(lasts) or at + lasts <= chapter.calm_from + 0.001


# Clusters.

DAYS = chapters_of(200.0)


def clusters_drawn(share: float, *kinds: str, seconds: float = 8.0) -> list[tuple[float, Deed]]:
    """What is drawn only because faults bring companions."""
    profiles = [Profile(clusters=each, cluster_seconds=seconds) for each in (0.0, share)]
    alone, all_of_them = (mischief_deeds(Random(1), DAYS, profile, kinds or FAULTS) for profile in profiles)
    assert set(alone) <= set(all_of_them)
    return sorted(set(all_of_them) - set(alone), key=lambda timed: timed[0])


@pytest.mark.parametrize("seconds", [2.0, 20.0])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
def test_a_fault_brings_companions_as_often_and_as_soon_as_the_profile_says(share: float, seconds: float) -> None:
    kinds = ("hung-calls", "crash", "api-down")  # a hung call brings either of the others
    leaders = [at for at, deed in mischief_deeds(Random(1), DAYS, Profile(), ("hung-calls",))]
    companions = [at for at, _ in clusters_drawn(share, *kinds, seconds=seconds)]
    leading = [at for at in leaders if any(0 <= companion - at <= seconds for companion in companions)]
    assert len(leaders) > 200
    assert len(leading) == pytest.approx(len(leaders) * share, abs=len(leaders) * 0.08)


def test_a_cluster_happens_only_if_all_its_kinds_are_chosen() -> None:
    for kind in FAULTS:
        assert clusters_drawn(1.0, kind) == []
    assert {deed.kind for _, deed in clusters_drawn(1.0, "crash", "unreadable-sources")} == {
        "crash",
        "unreadable-sources",
    }


def test_companions_add_less_than_half_to_the_faults_of_the_usual_profile() -> None:
    alone = mischief_deeds(Random(1), DAYS, Profile(clusters=0.0), FAULTS)
    assert len(clusters_drawn(Profile().clusters)) < len(alone) / 2


def test_stale_lists_of_clusters_leave_a_pause_between_them() -> None:
    deeds = mischief_deeds(Random(1), chapters_of(60.0), Profile(clusters=1.0), FAULTS)
    moments = sorted(at for at, deed in deeds if isinstance(deed, StaleLists))
    assert all(later - earlier >= 119.0 for earlier, later in pairwise(moments))


# What is done, is undone.


def _variants(kind: str) -> list[Deed]:
    """Some different deeds of a kind."""
    deeds = [deed for _, deed in drawn(kind, seed=3) if deed.kind == kind]
    return deeds[:: max(1, len(deeds) // 2)][:2]


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_happens_and_leaves_nothing_behind(kind: str) -> None:
    for number, deed in enumerate(_variants(kind)):
        world = World(number)
        verdict = told(world, lambda deed=deed, world=world: _suffered(world, deed))  # type: ignore[misc]  # bound now
        always = isinstance(deed, Dawdle) and isinf(deed.seconds)
        assert verdict.troubles[kind] >= (0 if always else 1), str(deed)


async def _suffered(world: World, deed: Deed) -> None:
    deed.play(world)
    await asyncio.sleep(1)
    world.api.put(pod("d"))
    world.files.write("/manifests/e.yaml", pod("e"))
    world.api.mark_deleted(Pod, "b", "default", grace_seconds=2)
    await asyncio.sleep(40)
    world.calm()
    await asyncio.sleep(0)
    await _check_all_is_well(world)
    at_rest, latest = ["a", f"c-{NODE}", "d", f"e-{NODE}"], world.now() + LATEST_REST_SECONDS
    while ready_pods(world) != at_rest and world.now() < latest:
        await asyncio.sleep(5)
    assert ready_pods(world) == at_rest, str(deed)
    assert world.is_up


async def _check_all_is_well(world: World) -> None:
    uids = [uid for uid, _ in pods_there(world)]
    for fake in (world.runtime, world.api, world.volumes, world.cgroups):
        assert fake.faults.hung_calls == 0
        assert fake.faults.policies == ()
    assert world.troubles.active() == []
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
        (DiskTrouble(True, 0.0, 10), DiskTrouble(True, 1.0, 20), lambda world: not world.journal.disk_full),
        (WatchStale(10, 0.0), WatchStale(20, 0.0), lambda world: not world.api._pace.stalled),
        (UnreadableSources(True, False, 10), UnreadableSources(True, True, 20), lambda world: world.files._readable),
        (BusyVolumes(0, 10), BusyVolumes(0, 20), lambda world: not world.volumes.in_use),
        (BusyVolumes(0, 10), BusyVolumes(1, 20), lambda world: not world.volumes.in_use),
        (Dawdle(0.1, 0.1, 10), Dawdle(0.2, 0.1, 20), lambda world: world.loop._share == BASE_DAWDLE[0]),
    ],
    ids=lambda value: value.kind if hasattr(value, "kind") else "",
)
@pytest.mark.parametrize("turned", [False, True], ids=["the longer one begins last", "the longer one begins first"])
def test_of_two_windows_that_overlap_the_last_to_close_puts_things_right(
    one: Deed, other: Deed, is_over: Callable[[World], bool], turned: bool
) -> None:
    world = World(1)

    async def story() -> None:
        for deed in (other, one) if turned else (one, other):
            deed.play(world)
        await asyncio.sleep(15)
        assert not is_over(world)
        await asyncio.sleep(6)
        assert is_over(world)

    told(world, story)


def test_of_windows_that_are_alike_the_one_whose_time_is_up_closes() -> None:
    world = World(1)

    async def story() -> None:
        WatchStale(30.0, 0.0).play(world)
        WatchStale(20.0, 3.2).play(world)
        WatchStale(10.0, 0.0).play(world)
        await asyncio.sleep(5)
        assert world.api._pace.stalled
        await asyncio.sleep(10)  # the last one has closed: the second is the newest that is open
        assert not world.api._pace.stalled
        await asyncio.sleep(10)
        assert world.api._pace.stalled
        await asyncio.sleep(10)
        assert not world.api._pace.stalled

    world.play(story)


# Calls.


def test_a_pods_hung_call_goes_on_when_its_own_window_closes() -> None:
    world = World(1)

    async def story() -> None:
        (first, _), (second, _), (third, _) = pods_there(world)
        for victim, seconds in ((0, 60.0), (1, 150.0)):
            _hang("hung-calls", victim, seconds).play(world)
        await asyncio.sleep(1)
        calls = {uid: asyncio.ensure_future(world.runtime.pod_record(uid)) for uid in (first, second, third)}
        done: dict[PodUID, float] = {}
        for uid, call in calls.items():
            call.add_done_callback(lambda _, uid=uid: done.setdefault(uid, world.now()))  # type: ignore[misc]  # bound now
        await asyncio.sleep(200)
        assert done == {third: 21.0, first: 80.0, second: 170.0}
        assert world.runtime.faults.hung_calls == 0
        assert [(it.kind, it.uid, it.ended) for it in world.troubles._book] == [
            ("hung-calls", first, 80.0),
            ("hung-calls", second, 170.0),
        ]

    told(world, story)


def _hang(kind: str, victim: int, seconds: float) -> CallTrouble:
    operations, ills = ("pod_record",), (Ill(inf),)
    return CallTrouble(
        kind=kind, room="runtime", operations=operations, ills=ills, seconds=seconds, seed=1, victim=victim
    )


def test_a_mirrors_trouble_is_its_static_pods() -> None:
    world = World(1)

    async def story() -> None:
        mirror = world.api.peek(Pod, f"c-{NODE}", "default")
        assert mirror is not None
        static = world.files.pods()[0].metadata.uid
        assert mirror.metadata.uid != static
        assert runtime_uid(mirror) == static
        assert [name for _, name in pods_there(world)].count(f"c-{NODE}") == 1

    told(world, story)


def test_a_deed_that_finds_no_pod_does_nothing() -> None:
    world = World(1)

    async def story() -> None:
        _hang("hung-calls", 5, 60.0).play(world)
        BusyVolumes(5, 60.0).play(world)
        assert world.troubles.active() == []

    world.play(story)


# News.


def test_watches_are_prompt_once_all_windows_have_closed_although_late_events_are_on_their_way() -> None:
    """Seed 179: events were slowed until the last late one had come, and then blamed on the agent."""
    world = World(1)

    async def story() -> None:
        stream = world.api.watch(Pod, resource_version="0")
        came: dict[str, float] = {}

        async def listen() -> None:
            async for event in stream:
                came.setdefault(event.object.metadata.name or "", world.now() - start)

        start = world.now()
        listening = asyncio.ensure_future(listen())
        WatchStale(seconds=20.0, delay_seconds=20.0).play(world)
        WatchStale(seconds=23.0, delay_seconds=90.0).play(world)
        await asyncio.sleep(15)
        world.api.put(pod("slow"))
        await asyncio.sleep(15)
        world.api.put(pod("behind-it"))
        await asyncio.sleep(80)
        world.api.put(pod("prompt"))
        await asyncio.sleep(1)
        listening.cancel()
        assert [came[name] for name in ("slow", "behind-it", "prompt")] == [105.0, 105.0, 110.0]

    told(world, story)


def test_late_and_repeated_news_overlap() -> None:
    world = World(1)
    late = EventTrouble(News.LATE, 1.0, 30.0, seed=1, latest_seconds=20.0)
    twice = EventTrouble(News.REPEATED, 1.0, 60.0, seed=2)

    async def story() -> None:
        stream = world.runtime.events()
        uid, _ = pods_there(world)[0]
        heard: list[tuple[RuntimeEventType, float]] = []

        async def listen() -> None:
            heard.extend([(event.type, world.now()) async for event in stream if event.uid == uid])

        listening = asyncio.ensure_future(listen())
        late.play(world)
        twice.play(world)
        world.runtime.end_container(uid, "app", 1)
        await asyncio.sleep(40)
        world.runtime.end_events()
        await listening
        ends = [at for what, at in heard if what is RuntimeEventType.STOPPED]
        assert len(ends) == 2
        assert all(20.0 < at <= 50.0 for at in ends)  # late, but no later than the trouble lasts
        assert len(world.runtime.event_filters) == 1

    told(world, story)


# Death.


@pytest.mark.parametrize(
    "crash, how, within",
    [
        (Crash(2.0), "killed", 0.0),
        (Crash(2.0, calls=1), "killed before journal sync", 5.0),
        (Crash(2.0, calls=1, after=True), "killed after", 5.0),
        (Crash(2.0, calls=5), "killed before", 5.0),
        (Crash(2.0, calls=10_000), "killed: it had nothing to do", 30.0),
    ],
    ids=["at once", "before the first call", "after the first call", "before the fifth", "at no call, anyway"],
)
def test_the_agent_is_killed_where_it_was_to_be(crash: Crash, how: str, within: float) -> None:
    world = World(1)
    ends: list[LifeEnded] = []
    world.bus.subscribe(LifeEnded, ends.append)

    async def story() -> None:
        begun = world.now()
        crash.play(world)
        world.api.put(pod("d"))
        await asyncio.sleep(31)
        assert [end.how.startswith(how) for end in ends] == [True], ends
        assert ends[0].at - begun <= within
        await asyncio.sleep(60)
        assert len(ready_pods(world)) == 4
        assert world.troubles.counts["crash"] == 1

    told(world, story)


def test_the_agent_dies_once_more_as_soon_as_it_is_back() -> None:
    world = World(1)
    ends: list[LifeEnded] = []
    world.bus.subscribe(LifeEnded, ends.append)

    async def story() -> None:
        Crash(5.0).play(world)
        Crash(1.0, calls=1).play(world)
        Crash(1.0, calls=2, after=True).play(world)
        world.api.put(pod("d"))
        await asyncio.sleep(60)
        assert len(ends) == 3
        assert ends[1].at - ends[0].at >= 5.0
        assert len(ready_pods(world)) == 4

    told(world, story)


def test_a_clock_that_is_put_right_is_right() -> None:
    world = World(1)

    async def story() -> None:
        before = world.clock.now()
        ClockJump(3600.0, 10.0).play(world)
        await asyncio.sleep(5)
        assert (world.clock.now() - before).total_seconds() == 3605.0
        await asyncio.sleep(5)
        assert (world.clock.now() - before).total_seconds() == 10.0
        ClockJump(-60.0, inf).play(world)
        world.calm()
        assert (world.clock.now() - before).total_seconds() == -50.0

    told(world, story)


def test_a_container_that_started_while_the_clock_was_ahead_is_probed_by_the_next_agent() -> None:
    world = World(1)
    check = Probe(exec=ExecAction(command=("check",)), period_seconds=10)
    probed = PodSpec(node_name=NODE, containers=(Container(name="app", image="app:v1", readiness_probe=check),))

    async def story() -> None:
        ClockJump(3600.0, 60.0).play(world)
        world.api.put(Pod(metadata=ObjectMeta(name="d", namespace="default"), spec=probed))
        await asyncio.sleep(61)
        assert "d" in ready_pods(world)
        world.crash()
        await asyncio.sleep(30)  # an hour, where the age is reckoned by the wall clock alone
        assert "d" in ready_pods(world)

    told(world, story)
