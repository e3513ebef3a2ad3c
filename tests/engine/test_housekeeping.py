"""Housekeeping in virtual time: which pods are orphans, and calls that hang without delaying the rest."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from podkeeper.engine.housekeeping import PERIOD_SECONDS, RUNTIME_TIMEOUT
from podkeeper.model.errors import RuntimeUnavailable, TryLater
from podkeeper.model.k8s.core import PodStatus
from podkeeper.model.messages import API_SOURCE, FILE_SOURCE, Op, PodUID
from podkeeper.testing.build import container
from tests.engine.loop_harness import LoopHarness, never, pod, run_scenario, uids

WEB = PodUID("web")
ALL = (API_SOURCE, FILE_SOURCE)


# Orphaned pods and pods without a worker.


def test_a_running_orphaned_pod_is_killed() -> None:
    async def scenario(node: LoopHarness) -> tuple[list[float], set[str]]:
        node.runtime.running.add("orphan")
        node.send_update(Op.ADD, pod("web"))
        await asyncio.sleep(3)
        return node.syncer.did("kill orphan", "orphan"), node.runtime.running

    assert run_scenario(scenario)[0] == ([2.0], {"web"})


def test_a_requested_round_runs_at_once_and_the_next_one_after_the_period() -> None:
    async def scenario(node: LoopHarness) -> list[float]:
        node.send_update(Op.ADD, pod("web"))
        await asyncio.sleep(0.5)
        node.runtime.running.add("orphan")
        node.housekeeping.request()
        await asyncio.sleep(0.1)
        node.runtime.running.add("another")
        await asyncio.sleep(3)
        return [*node.syncer.did("kill orphan", "orphan"), *node.syncer.did("kill orphan", "another")]

    assert run_scenario(scenario)[0] == [0.5, 2.5]


def test_a_running_removal_is_reported_until_it_has_ended() -> None:
    async def scenario(node: LoopHarness) -> tuple[bool, bool]:
        node.host.hanging.add("remove cgroup stuck")
        node.host.cgroups |= uids("stuck", "gone")
        node.send_update(Op.ADD)
        await asyncio.sleep(5)
        return node.housekeeping.is_removing(PodUID("stuck")), node.housekeeping.is_removing(WEB)

    assert run_scenario(scenario)[0] == (True, False)


def test_nothing_is_removed_before_all_sources_are_ready() -> None:
    async def scenario(node: LoopHarness) -> tuple[set[str], list[str], list[float]]:
        node.runtime.running.add("of-a-file")
        node.send_update(Op.ADD, pod("web"))
        await asyncio.sleep(60)
        before = set(node.runtime.running), list(node.host.calls)
        node.send_update(Op.ADD, source=FILE_SOURCE)
        await asyncio.sleep(3)
        return *before, node.syncer.did("kill orphan", "of-a-file")

    assert run_scenario(scenario, sources=ALL)[0] == ({"web", "of-a-file"}, [], [62.0])


def test_a_pod_removed_before_all_sources_are_ready_is_killed_afterwards() -> None:
    async def scenario(node: LoopHarness) -> tuple[set[str], set[str]]:
        node.send_update(Op.ADD, pod("web"))
        node.send_update(Op.REMOVE, pod("web"))
        await asyncio.sleep(10)
        before = set(node.runtime.running)
        node.send_update(Op.ADD, source=FILE_SOURCE)
        await asyncio.sleep(5)
        return before, node.runtime.running

    assert run_scenario(scenario, sources=ALL)[0] == ({"web"}, set())


def test_nothing_is_removed_while_the_runtime_is_unhealthy() -> None:
    async def scenario(node: LoopHarness) -> set[str]:
        node.send_update(Op.ADD, pod("web"))
        await asyncio.sleep(1)
        node.runtime.ready = False
        await asyncio.sleep(6)
        node.runtime.running.add("orphan")
        await asyncio.sleep(60)
        return node.runtime.running

    assert run_scenario(scenario)[0] == {"web", "orphan"}


def test_a_pod_added_during_a_runtime_listing_is_not_an_orphan() -> None:
    async def scenario(node: LoopHarness) -> tuple[list[float], list[float], set[str]]:
        async def slow() -> None:
            if node.clock.monotonic() < 3:
                node.send_update(Op.ADD, pod("young"))
                await asyncio.sleep(0.5)  # it runs before the listing is taken, and the sweep did not include it

        node.runtime.before_listing = slow
        node.send_update(Op.ADD, pod("web"))
        await asyncio.sleep(5)
        return node.syncer.did("sync", "young"), node.syncer.did("kill orphan", "young"), node.runtime.running

    assert run_scenario(scenario)[0] == ([2.0], [], {"web", "young"})


def test_no_pod_added_or_removed_during_housekeeping_is_killed_as_an_orphan() -> None:
    async def scenario(node: LoopHarness) -> tuple[list[str], set[str]]:
        async def slow() -> None:
            await asyncio.sleep(1.3)

        node.runtime.before_listing = slow
        for n in range(200):
            node.syncer.stop_seconds[f"pod-{n}"] = n % 7 * 0.31
            node.send_update(Op.ADD, pod(f"pod-{n}"))
            await asyncio.sleep(0.17)
            if n >= 10:
                node.send_update(Op.REMOVE, pod(f"pod-{n - 10}"))
        await asyncio.sleep(20)
        return [uid for _, what, uid in node.syncer.log if what == "kill orphan"], node.runtime.running

    assert run_scenario(scenario)[0] == ([], {f"pod-{n}" for n in range(190, 200)})


def test_a_reused_uid_starts_again_after_its_first_pod_has_ended() -> None:
    async def scenario(node: LoopHarness) -> tuple[list[float], int]:
        node.syncer.stop_seconds["web"] = 4.5
        node.send_update(Op.ADD, pod("web"))
        await asyncio.sleep(1)
        node.send_update(Op.REMOVE, pod("web"))
        await asyncio.sleep(1)
        node.send_update(Op.ADD, pod("web"))
        await asyncio.sleep(10)
        return node.syncer.did("sync", "web"), len(node.admission)

    assert run_scenario(scenario)[0] == ([0.0, 6.0], 1)


def test_a_rejected_pod_is_not_started_and_is_dropped_after_its_deletion() -> None:
    async def scenario(node: LoopHarness) -> tuple[str | None, list[float], list[float]]:
        node.send_update(Op.ADD, pod("web", container(requests={"cpu": "5"})))
        await asyncio.sleep(10)
        published = node.status.statuses[WEB].phase
        node.send_update(Op.RECONCILE, pod("web", container(requests={"cpu": "5"}), phase="Failed", deleted=True))
        await asyncio.sleep(3)
        return published, node.syncer.did("sync", "web"), node.syncer.did("clean up", "web")

    published, started, ended = run_scenario(scenario)[0]
    assert (published, started, len(ended)) == ("Failed", [], 1)


def test_probes_and_statuses_of_removed_pods_are_dropped() -> None:
    async def scenario(node: LoopHarness) -> object:
        node.send_update(Op.ADD, pod("web"), pod("db"))
        node.send_update(Op.ADD, pod("dns", uid="shadow", mirror="hash"))
        await asyncio.sleep(1)
        node.send_update(Op.REMOVE, pod("db"))
        await asyncio.sleep(4)
        return node.probes.kept, node.status.kept

    assert run_scenario(scenario)[0] == (uids("web"), uids("web", "shadow"))


def test_an_orphaned_mirror_pod_is_deleted_after_its_static_pod_has_terminated() -> None:
    async def scenario(node: LoopHarness) -> tuple[list[str], list[str]]:
        static = pod("dns", uid="static", source=FILE_SOURCE)
        node.syncer.stop_seconds["static"] = 5
        node.send_update(Op.ADD, static, source=FILE_SOURCE)
        node.send_update(Op.ADD, pod("dns", uid="shadow", mirror="hash"))
        await asyncio.sleep(1)
        node.send_update(Op.REMOVE, static, source=FILE_SOURCE)
        await asyncio.sleep(4.5)
        early = list(node.mirrors.deleted)
        await asyncio.sleep(1.5)
        return early, node.mirrors.deleted

    assert run_scenario(scenario, sources=ALL)[0] == ([], ["dns_ns"])


# What is left behind.


def test_leftovers_are_removed_in_order_and_never_while_mounted() -> None:
    async def scenario(node: LoopHarness) -> tuple[list[str], object]:
        node.host.dirs |= uids("gone", "web")
        node.host.mounts |= uids("gone", "web")
        node.host.cgroups |= uids("gone", "web")
        node.send_update(Op.ADD, pod("web"))
        await asyncio.sleep(7)
        removals = [call for call in node.host.calls if not call.startswith("list")]
        return removals, (node.host.dirs, node.host.mounts, node.host.cgroups, node.host.throttled)

    removals, left = run_scenario(scenario)[0]
    assert removals == ["unmount gone", "remove directory gone", "remove cgroup gone"]
    assert left == ({"web"}, {"web"}, {"web"}, {"gone"})


def test_a_volume_in_use_is_kept_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(node: LoopHarness) -> set[PodUID]:
        node.host.dirs |= uids("gone")
        node.host.mounts |= uids("gone")
        node.host.failing["unmount gone"] = TryLater("cannot unmount: in use")
        node.send_update(Op.ADD)
        await asyncio.sleep(60)
        return node.host.dirs

    assert run_scenario(scenario)[0] == {"gone"}
    assert len([line for line in caplog.records if "gone" in (line.args or ())]) == 1


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
    async def scenario(node: LoopHarness) -> tuple[int, list[float], set[PodUID], int]:
        node.host.hanging.add(hanging)
        node.host.cgroups |= uids("stuck", "gone")
        node.host.dirs |= uids("stuck", "gone", "stuck-too")
        node.host.mounts |= uids("stuck-too")
        node.send_update(Op.ADD)
        await asyncio.sleep(20)
        node.send_update(Op.ADD, *(pod(f"pod-{n}") for n in range(100)))
        await asyncio.sleep(0.01)
        running = len(node.runtime.running)
        node.runtime.running.add("orphan")
        await asyncio.sleep(4)
        return running, node.syncer.did("kill orphan", "orphan"), node.host.dirs, node.host.calls.count(hanging)

    running, killed, directories, calls = run_scenario(scenario)[0]
    assert (running, len(killed)) == (100, 1)
    assert hanging == "list directories" or "gone" not in directories
    assert calls == 1


LISTING_TROUBLES = {"it hangs": never, "it fails": lambda: _fail(RuntimeUnavailable("cannot list"))}


async def _fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("trouble", LISTING_TROUBLES.values(), ids=LISTING_TROUBLES.keys())
def test_without_a_runtime_listing_nothing_is_removed_and_all_else_continues(
    trouble: Callable[[], Awaitable[None]],
) -> None:
    async def scenario(node: LoopHarness) -> tuple[object, list[float], object]:
        node.runtime.before_listing = trouble
        node.host.dirs |= uids("gone")
        node.host.cgroups |= uids("gone")
        node.send_update(Op.ADD, pod("web"))
        await asyncio.sleep(1)
        node.send_update(Op.REMOVE, pod("web"))
        node.syncer.stop_seconds["web"] = 1
        node.send_update(Op.ADD, pod("web"))  # under the same UID: housekeeping must start it again
        await asyncio.sleep(30)
        unlisted = (set(node.host.dirs), set(node.host.cgroups), node.probes.kept)
        node.runtime.before_listing = None
        await asyncio.sleep(60)
        return unlisted, node.syncer.did("sync", "web")[:2], (node.host.dirs, node.host.cgroups)

    unlisted, starts, listed = run_scenario(scenario)[0]
    assert unlisted == ({"gone"}, {"gone"}, uids("web"))
    assert len(starts) == 2
    assert starts[1] < 20
    assert listed == (set(), set())


def test_removals_are_bounded_and_hung_ones_do_not_count() -> None:
    async def scenario(node: LoopHarness) -> tuple[int, int, set[PodUID]]:
        stuck, others = [f"stuck-{n}" for n in range(300)], [f"gone-{n}" for n in range(700)]
        node.host.hanging |= {f"remove directory {name}" for name in stuck}
        node.host.dirs |= uids(*stuck)
        node.send_update(Op.ADD)
        await asyncio.sleep(3)
        first = len([call for call in node.host.calls if call.startswith("remove")])
        await asyncio.sleep(40)
        node.host.dirs |= uids(*others)
        await asyncio.sleep(10)
        under_way = len([call for call in node.host.calls if call.startswith("remove directory stuck")])
        return first, under_way, node.host.dirs

    first, under_way, left = run_scenario(scenario)[0]
    assert (first, under_way) == (256, 300)
    assert {name.split("-")[0] for name in left} == {"stuck"}


def test_an_exception_in_one_part_of_a_round_does_not_affect_the_others() -> None:
    async def scenario(node: LoopHarness) -> tuple[object, set[str]]:
        def broken(uids: object) -> None:
            raise ZeroDivisionError

        node.probes.keep_only = broken  # type: ignore[method-assign]  # fails on purpose
        node.runtime.running.add("orphan")
        node.status.statuses[WEB] = PodStatus(phase="Running")
        node.send_update(Op.ADD)
        await asyncio.sleep(5)
        return node.status.kept, node.runtime.running

    assert run_scenario(scenario)[0] == (frozenset(), set())


class Rounds:
    """Count the rounds of a node without changes, unless a test makes one."""

    def __init__(self) -> None:
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

    def of(self, scenario: Callable[[LoopHarness], Awaitable[None]]) -> list[float]:
        """Return when rounds begin during a scenario."""

        async def whole(node: LoopHarness) -> None:
            node.runtime.before_listing = self.listing
            node.send_update(Op.ADD)
            await scenario(node)

        run_scenario(whole, skips_unchanged_rounds=True)
        return self.begun


def test_a_change_during_a_round_causes_another() -> None:
    rounds = Rounds()

    async def scenario(node: LoopHarness) -> None:
        def change() -> None:
            node.inbox.changes += 1

        rounds.meanwhile = change
        await asyncio.sleep(9)

    assert rounds.of(scenario) == [2, 4]


def test_after_a_round_without_the_runtime_another_follows_without_changes() -> None:
    rounds = Rounds()

    async def scenario(node: LoopHarness) -> None:
        rounds.failures = 2
        await asyncio.sleep(11)

    assert rounds.of(scenario) == [2, 4, 6]


def test_after_a_failed_round_another_follows_without_changes() -> None:
    rounds = Rounds()

    def fail() -> None:
        raise RuntimeError("a bug")

    async def scenario(node: LoopHarness) -> None:
        rounds.meanwhile = fail
        await asyncio.sleep(9)

    assert rounds.of(scenario) == [2, 4]


def test_a_round_requested_during_another_follows_at_once() -> None:
    rounds = Rounds()

    async def scenario(node: LoopHarness) -> None:
        rounds.seconds = 0.5
        await asyncio.sleep(2.2)
        node.inbox.changes += 1
        node.housekeeping.request()
        await asyncio.sleep(1)

    assert rounds.of(scenario) == [2, 2.5]


@pytest.mark.parametrize("error", [TryLater("busy"), RuntimeError("a bug")], ids=["trouble", "a bug"])
def test_a_removal_that_fails_is_tried_again_in_the_next_round(error: Exception) -> None:
    async def scenario(node: LoopHarness) -> tuple[list[str], frozenset[PodUID]]:
        node.host.cgroups |= uids("left")
        node.host.failing["remove cgroup left"] = error
        node.send_update(Op.ADD)
        await asyncio.sleep(3)
        node.host.failing.clear()
        await asyncio.sleep(2)
        return [call for call in node.host.calls if "left" in call], frozenset(node.host.cgroups)

    assert run_scenario(scenario)[0] == (["remove cgroup left"] * 2, frozenset())


def test_after_an_outage_the_runtime_timeout_is_the_default_again() -> None:
    rounds = Rounds()

    async def scenario(node: LoopHarness) -> None:
        rounds.seconds = 1e6
        await asyncio.sleep(30)
        assert rounds.begun == [2, 6, 12, 22]  # each round waits longer than the one before, and the pause follows
        rounds.seconds = 0
        node.inbox.changes += 1
        await asyncio.sleep(60)
        rounds.begun.clear()
        rounds.seconds = 1e6
        node.inbox.changes += 1
        await asyncio.sleep(2 * RUNTIME_TIMEOUT.first_seconds + 2 * PERIOD_SECONDS + 2)

    assert len(rounds.of(scenario)) >= 2
