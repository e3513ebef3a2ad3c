"""Housekeeping in virtual time: what it may never mistake for an orphan, and what hangs without holding it up."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from podkeeper.engine.housekeeping import PERIOD_SECONDS, RUNTIME_PATIENCE_SECONDS
from podkeeper.model.errors import RuntimeUnavailable, TryLater
from podkeeper.model.k8s.core import PodStatus
from podkeeper.model.messages import API_SOURCE, FILE_SOURCE, Op, PodUID
from tests.engine.loop_house import LoopHouse, never, play, pod, uids

WEB = PodUID("web")
ALL = (API_SOURCE, FILE_SOURCE)


# Who must go, who must come back.


def test_a_running_pod_that_nobody_wants_is_killed() -> None:
    async def story(node: LoopHouse) -> tuple[list[float], set[str]]:
        node.runtime.running.add("stranger")
        node.tell(Op.ADD, pod("web"))
        await asyncio.sleep(3)
        return node.syncer.did("kill orphan", "stranger"), node.runtime.running

    assert play(story)[0] == ([2.0], {"web"})


def test_whoever_waits_for_a_round_may_have_it_at_once_and_the_next_comes_in_its_time() -> None:
    async def story(node: LoopHouse) -> list[float]:
        node.tell(Op.ADD, pod("web"))
        await asyncio.sleep(0.5)
        node.runtime.running.add("stranger")
        node.loop.tidy_soon()
        await asyncio.sleep(0.1)
        node.runtime.running.add("another")
        await asyncio.sleep(3)
        return [*node.syncer.did("kill orphan", "stranger"), *node.syncer.did("kill orphan", "another")]

    assert play(story)[0] == [0.5, 2.5]


def test_what_is_being_taken_from_a_pod_is_known_until_it_is_gone() -> None:
    async def story(node: LoopHouse) -> tuple[bool, bool]:
        node.house.hanging.add("remove cgroup stuck")
        node.house.cgroups |= uids("stuck", "gone")
        node.tell(Op.ADD)
        await asyncio.sleep(5)
        return node.loop.is_tidying(PodUID("stuck")), node.loop.is_tidying(WEB)

    assert play(story)[0] == (True, False)


def test_nothing_is_touched_before_every_source_has_spoken() -> None:
    async def story(node: LoopHouse) -> tuple[set[str], list[str], list[float]]:
        node.runtime.running.add("of-a-file")
        node.tell(Op.ADD, pod("web"))
        await asyncio.sleep(60)
        before = set(node.runtime.running), list(node.house.calls)
        node.tell(Op.ADD, source=FILE_SOURCE)
        await asyncio.sleep(3)
        return *before, node.syncer.did("kill orphan", "of-a-file")

    assert play(story, sources=ALL)[0] == ({"web", "of-a-file"}, [], [62.0])


def test_a_pod_removed_before_every_source_had_spoken_is_ended_afterwards() -> None:
    async def story(node: LoopHouse) -> tuple[set[str], set[str]]:
        node.tell(Op.ADD, pod("web"))
        node.tell(Op.REMOVE, pod("web"))
        await asyncio.sleep(10)
        before = set(node.runtime.running)
        node.tell(Op.ADD, source=FILE_SOURCE)
        await asyncio.sleep(5)
        return before, node.runtime.running

    assert play(story, sources=ALL)[0] == ({"web"}, set())


def test_nothing_is_touched_while_the_runtime_is_not_well() -> None:
    async def story(node: LoopHouse) -> set[str]:
        node.tell(Op.ADD, pod("web"))
        await asyncio.sleep(1)
        node.runtime.ready = False
        await asyncio.sleep(6)
        node.runtime.running.add("stranger")
        await asyncio.sleep(60)
        return node.runtime.running

    assert play(story)[0] == {"web", "stranger"}


def test_a_pod_that_comes_while_the_runtime_is_being_listed_is_no_orphan() -> None:
    async def story(node: LoopHouse) -> tuple[list[float], list[float], set[str]]:
        async def slow() -> None:
            if node.clock.monotonic() < 3:
                node.tell(Op.ADD, pod("young"))
                await asyncio.sleep(0.5)  # it runs before the list is made, and the sweep did not know it

        node.runtime.before_listing = slow
        node.tell(Op.ADD, pod("web"))
        await asyncio.sleep(5)
        return node.syncer.did("sync", "young"), node.syncer.did("kill orphan", "young"), node.runtime.running

    assert play(story)[0] == ([2.0], [], {"web", "young"})


def test_pods_keep_coming_and_going_under_housekeeping_and_none_is_killed_by_mistake() -> None:
    async def story(node: LoopHouse) -> tuple[list[str], set[str]]:
        async def slow() -> None:
            await asyncio.sleep(1.3)

        node.runtime.before_listing = slow
        for n in range(200):
            node.syncer.stop_seconds[f"pod-{n}"] = n % 7 * 0.31
            node.tell(Op.ADD, pod(f"pod-{n}"))
            await asyncio.sleep(0.17)
            if n >= 10:
                node.tell(Op.REMOVE, pod(f"pod-{n - 10}"))
        await asyncio.sleep(20)
        return [who for _, what, who in node.syncer.diary if what == "kill orphan"], node.runtime.running

    assert play(story)[0] == ([], {f"pod-{n}" for n in range(190, 200)})


def test_a_uid_that_is_used_again_starts_again_once_its_first_life_is_over() -> None:
    async def story(node: LoopHouse) -> tuple[list[float], int]:
        node.syncer.stop_seconds["web"] = 4.5
        node.tell(Op.ADD, pod("web"))
        await asyncio.sleep(1)
        node.tell(Op.REMOVE, pod("web"))
        await asyncio.sleep(1)
        node.tell(Op.ADD, pod("web"))
        await asyncio.sleep(10)
        return node.syncer.did("sync", "web"), len(node.admission)

    assert play(story)[0] == ([0.0, 6.0], 1)


def test_a_rejected_pod_is_not_started_and_is_let_go_when_it_is_deleted() -> None:
    async def story(node: LoopHouse) -> tuple[str | None, list[float], list[float]]:
        node.tell(Op.ADD, pod("web", cpu="5"))
        await asyncio.sleep(10)
        published = node.status.statuses[WEB].phase
        node.tell(Op.RECONCILE, pod("web", cpu="5", phase="Failed", deleted=True))
        await asyncio.sleep(3)
        return published, node.syncer.did("sync", "web"), node.syncer.did("clean up", "web")

    published, started, ended = play(story)[0]
    assert (published, started, len(ended)) == ("Failed", [], 1)


def test_probes_and_statuses_of_pods_that_are_gone_go_too() -> None:
    async def story(node: LoopHouse) -> object:
        node.tell(Op.ADD, pod("web"), pod("db"))
        node.tell(Op.ADD, pod("dns", "shadow", mirror=True))
        await asyncio.sleep(1)
        node.tell(Op.REMOVE, pod("db"))
        await asyncio.sleep(4)
        return node.probes.kept, node.status.kept

    assert play(story)[0] == (uids("web"), uids("web", "shadow"))


def test_an_orphaned_mirror_is_deleted_but_not_while_its_static_pod_is_ending() -> None:
    async def story(node: LoopHouse) -> tuple[list[str], list[str]]:
        static = pod("dns", "static", source=FILE_SOURCE)
        node.syncer.stop_seconds["static"] = 5
        node.tell(Op.ADD, static, source=FILE_SOURCE)
        node.tell(Op.ADD, pod("dns", "shadow", mirror=True))
        await asyncio.sleep(1)
        node.tell(Op.REMOVE, static, source=FILE_SOURCE)
        await asyncio.sleep(4.5)
        early = list(node.mirrors.deleted)
        await asyncio.sleep(1.5)
        return early, node.mirrors.deleted

    assert play(story, sources=ALL)[0] == ([], ["dns_ns"])


# What is left behind.


def test_what_a_pod_left_behind_is_taken_down_in_order_and_never_while_mounted() -> None:
    async def story(node: LoopHouse) -> tuple[list[str], object]:
        node.house.dirs |= uids("gone", "web")
        node.house.mounts |= uids("gone", "web")
        node.house.cgroups |= uids("gone", "web")
        node.tell(Op.ADD, pod("web"))
        await asyncio.sleep(7)
        removals = [call for call in node.house.calls if not call.startswith("list")]
        return removals, (node.house.dirs, node.house.mounts, node.house.cgroups, node.house.throttled)

    removals, left = play(story)[0]
    assert removals == ["unmount gone", "remove directory gone", "remove cgroup gone"]
    assert left == ({"web"}, {"web"}, {"web"}, {"gone"})


def test_a_volume_that_is_in_use_is_left_alone_and_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story(node: LoopHouse) -> set[PodUID]:
        node.house.dirs |= uids("gone")
        node.house.mounts |= uids("gone")
        node.house.failing["unmount gone"] = TryLater("cannot unmount: in use")
        node.tell(Op.ADD)
        await asyncio.sleep(60)
        return node.house.dirs

    assert play(story)[0] == {"gone"}
    assert len([line for line in caplog.records if "gone" in line.getMessage()]) == 1


# What hangs.

HANGING = [
    "list cgroups",
    "list directories",
    "remove cgroup stuck",
    "remove directory stuck",
    "unmount stuck-too",
]


@pytest.mark.parametrize("hanging", HANGING)
def test_one_hung_call_delays_neither_a_hundred_pods_nor_the_next_round(hanging: str) -> None:
    async def story(node: LoopHouse) -> tuple[int, list[float], set[PodUID], int]:
        node.house.hanging.add(hanging)
        node.house.cgroups |= uids("stuck", "gone")
        node.house.dirs |= uids("stuck", "gone", "stuck-too")
        node.house.mounts |= uids("stuck-too")
        node.tell(Op.ADD)
        await asyncio.sleep(20)
        node.tell(Op.ADD, *(pod(f"pod-{n}") for n in range(100)))
        await asyncio.sleep(0.01)
        running = len(node.runtime.running)
        node.runtime.running.add("stranger")
        await asyncio.sleep(4)
        return running, node.syncer.did("kill orphan", "stranger"), node.house.dirs, node.house.calls.count(hanging)

    running, killed, directories, calls = play(story)[0]
    assert (running, len(killed)) == (100, 1)
    assert hanging == "list directories" or "gone" not in directories
    assert calls == 1


LISTING_TROUBLES = {"it hangs": never, "it fails": lambda: _fail(RuntimeUnavailable("cannot list"))}


async def _fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("trouble", LISTING_TROUBLES.values(), ids=LISTING_TROUBLES.keys())
def test_while_the_runtime_cannot_be_listed_nothing_is_taken_and_all_else_goes_on(
    trouble: Callable[[], Awaitable[None]],
) -> None:
    async def story(node: LoopHouse) -> tuple[object, list[float], object]:
        node.runtime.before_listing = trouble
        node.house.dirs |= uids("gone")
        node.house.cgroups |= uids("gone")
        node.tell(Op.ADD, pod("web"))
        await asyncio.sleep(1)
        node.tell(Op.REMOVE, pod("web"))
        node.syncer.stop_seconds["web"] = 1
        node.tell(Op.ADD, pod("web"))  # under the same UID: housekeeping must start it again
        await asyncio.sleep(30)
        blind = (set(node.house.dirs), set(node.house.cgroups), node.probes.kept)
        node.runtime.before_listing = None
        await asyncio.sleep(60)
        return blind, node.syncer.did("sync", "web")[:2], (node.house.dirs, node.house.cgroups)

    blind, starts, sighted = play(story)[0]
    assert blind == ({"gone"}, {"gone"}, uids("web"))
    assert len(starts) == 2
    assert starts[1] < 20
    assert sighted == (set(), set())


def test_a_burst_of_leftovers_is_removed_a_few_hundred_at_a_time_and_stuck_ones_take_no_place() -> None:
    async def story(node: LoopHouse) -> tuple[int, int, set[PodUID]]:
        stuck, others = [f"stuck-{n}" for n in range(300)], [f"gone-{n}" for n in range(700)]
        node.house.hanging |= {f"remove directory {name}" for name in stuck}
        node.house.dirs |= uids(*stuck)
        node.tell(Op.ADD)
        await asyncio.sleep(3)
        first = len([call for call in node.house.calls if call.startswith("remove")])
        await asyncio.sleep(40)
        node.house.dirs |= uids(*others)
        await asyncio.sleep(10)
        under_way = len([call for call in node.house.calls if call.startswith("remove directory stuck")])
        return first, under_way, node.house.dirs

    first, under_way, left = play(story)[0]
    assert (first, under_way) == (256, 300)
    assert {name.split("-")[0] for name in left} == {"stuck"}


def test_an_exception_in_one_part_of_a_round_spares_the_others() -> None:
    async def story(node: LoopHouse) -> tuple[object, set[str]]:
        def broken(uids: object) -> None:
            raise ZeroDivisionError

        node.probes.keep_only = broken  # type: ignore[method-assign]  # breaks it on purpose
        node.runtime.running.add("stranger")
        node.status.statuses[WEB] = PodStatus(phase="Running")
        node.tell(Op.ADD)
        await asyncio.sleep(5)
        return node.status.kept, node.runtime.running

    assert play(story)[0] == (frozenset(), set())


class Rounds:
    """Counts the rounds of a house in which nothing happens, unless a test says so."""

    def __init__(self) -> None:
        self.happenings = 0
        self.begun: list[float] = []
        self.seconds = 0.0  # that a listing takes
        self.failures = 0
        self.meanwhile: Callable[[], None] = lambda: None  # in the middle of the next round

    async def listing(self) -> None:
        self.begun.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.seconds)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        if self.failures:
            self.failures -= 1
            raise RuntimeUnavailable("cannot connect")

    def of(self, story: Callable[[LoopHouse], Awaitable[None]]) -> list[float]:
        """When rounds begin while a story is told."""

        async def whole(node: LoopHouse) -> None:
            node.runtime.before_listing = self.listing
            node.tell(Op.ADD)
            await story(node)

        play(whole, happenings=lambda: self.happenings)
        return self.begun


def test_what_happens_during_a_round_brings_another() -> None:
    rounds = Rounds()

    def happen() -> None:
        rounds.happenings += 1

    async def story(node: LoopHouse) -> None:
        rounds.meanwhile = happen
        await asyncio.sleep(9)

    assert rounds.of(story) == [2, 4]


def test_after_a_round_without_the_runtime_another_is_made_though_nothing_happens() -> None:
    rounds = Rounds()

    async def story(node: LoopHouse) -> None:
        rounds.failures = 2
        await asyncio.sleep(11)

    assert rounds.of(story) == [2, 4, 6]


def test_after_a_round_that_failed_another_is_made_though_nothing_happens() -> None:
    rounds = Rounds()

    def fail() -> None:
        raise RuntimeError("a bug")

    async def story(node: LoopHouse) -> None:
        rounds.meanwhile = fail
        await asyncio.sleep(9)

    assert rounds.of(story) == [2, 4]


def test_a_round_that_is_asked_for_during_another_follows_it_at_once() -> None:
    rounds = Rounds()

    async def story(node: LoopHouse) -> None:
        rounds.seconds = 0.5
        await asyncio.sleep(2.2)
        rounds.happenings += 1
        node.loop.tidy_soon()
        await asyncio.sleep(1)

    assert rounds.of(story) == [2, 2.5]


@pytest.mark.parametrize("error", [TryLater("busy"), RuntimeError("a bug")], ids=["trouble", "a bug"])
def test_a_removal_that_fails_is_tried_again_in_the_next_round(error: Exception) -> None:
    async def story(node: LoopHouse) -> tuple[list[str], frozenset[PodUID]]:
        node.house.cgroups |= uids("left")
        node.house.failing["remove cgroup left"] = error
        node.tell(Op.ADD)
        await asyncio.sleep(3)
        node.house.failing.clear()
        await asyncio.sleep(2)
        return [call for call in node.house.calls if "left" in call], frozenset(node.house.cgroups)

    assert play(story)[0] == (["remove cgroup left"] * 2, frozenset())


def test_after_an_outage_of_the_runtime_it_is_waited_for_no_longer_than_before() -> None:
    rounds = Rounds()

    async def story(node: LoopHouse) -> None:
        rounds.seconds = 1e6
        await asyncio.sleep(30)
        assert rounds.begun == [2, 6, 12, 22]  # each round waits longer than the one before, and the pause follows
        rounds.seconds = 0
        rounds.happenings += 1
        await asyncio.sleep(60)
        rounds.begun.clear()
        rounds.seconds, rounds.happenings = 1e6, rounds.happenings + 1
        await asyncio.sleep(2 * RUNTIME_PATIENCE_SECONDS + 2 * PERIOD_SECONDS + 2)

    assert len(rounds.of(story)) >= 2
