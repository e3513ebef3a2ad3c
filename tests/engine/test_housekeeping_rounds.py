"""Single rounds of housekeeping: their input, their calls in order, and their timeouts."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from podkeeper.engine.admission import Admission
from podkeeper.engine.bounded_runtime import SlowCall
from podkeeper.engine.housekeeping import Housekeeping
from podkeeper.engine.inbox import LoopInbox
from podkeeper.engine.manager import PodManager
from podkeeper.engine.mirror_client import MirrorClient
from podkeeper.engine.observer import Observer
from podkeeper.engine.orphans import OrphanCheck
from podkeeper.engine.probes import ProbeManager
from podkeeper.engine.state_gc import StateGC
from podkeeper.engine.status import StatusManager
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import RuntimeUnavailable, TryLater
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import FILE_SOURCE, PodUID
from podkeeper.model.runtime import PodRecord, SandboxRecord
from podkeeper.rules.housekeeping import CleanupInput, CleanupPlan
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType
from podkeeper.rules.worker.workers import PodWorkerState, PodWorkerSync
from podkeeper.testing import build
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in
from tests.engine.loop_harness import pod, uids

Call = tuple[object, ...]
KNOWN = PodWorkerSync(state=PodWorkerState.SYNC, orphan=False, has_config=True, static=False)
STATIC, MIRROR = pod("dns", uid="static", source=FILE_SOURCE), pod("dns", uid="shadow", mirror="hash")

pytestmark = pytest.mark.usefixtures("no_errors")


def running(uid: str) -> PodRecord:
    return PodRecord(uid=uid, name=uid, namespace="ns", sandboxes=(SandboxRecord(id=f"s-{uid}", ready=True),))


def stopped(uid: str) -> PodRecord:
    return replace(running(uid), sandboxes=(SandboxRecord(id=f"s-{uid}", ready=False),))


class Harness:
    """Housekeeping, and all modules that it calls. Calls are recorded, and can fail or take time."""

    def __init__(self, *, with_optional: bool = True, counted: bool = True) -> None:
        self.clock = VirtualClock()
        self.calls: list[Call] = []
        self.at: list[tuple[float, str]] = []
        self.seconds: dict[str, float] = {}  # that a call takes
        self.failing: dict[str, Exception] = {}
        self.desired: list[Pod] = []
        self.mirror_pods: list[Pod] = []
        self.orphaned_mirrors: list[str] = []
        self.known: dict[PodUID, PodWorkerSync] = {}
        self.restartable: frozenset[PodUID] = frozenset()
        self.updated_since: frozenset[PodUID] = frozenset()
        self.could_run: frozenset[PodUID] = frozenset()
        self.held: frozenset[PodUID] = frozenset()
        self.published: dict[PodUID, PodStatus] = {}
        self.runtime_pods: list[PodRecord] = []
        self.cgroups: frozenset[PodUID] = frozenset()
        self.dirs: frozenset[PodUID] = frozenset()
        self.mounted: frozenset[PodUID] = frozenset()
        self.confirmed: frozenset[PodUID] = frozenset()
        self.rounds: list[tuple[CleanupInput, CleanupPlan]] = []
        self.slow_call_counts: list[int] = []
        self.inbox = LoopInbox(clock=self.clock)
        self.moves = 0
        self.housekeeping = Housekeeping(
            pods=stand_in(PodManager, self),
            workers=stand_in(PodWorkers, self),
            runtime=_Runtime(self),
            statuses=stand_in(StatusManager, self),
            probes=stand_in(ProbeManager, _Probes(self)),
            mirrors=stand_in(MirrorClient, _Mirrors(self)),
            admission=stand_in(Admission, self),
            clock=self.clock,
            volumes=self if with_optional else None,
            cgroups=_Cgroups(self) if with_optional else None,
            remove_containers=self.remove_containers if with_optional else None,
            orphans=stand_in(OrphanCheck, self) if with_optional else None,
            held=lambda: self.held,
            state_gc=stand_in(StateGC, self),
            observer=stand_in(Observer, self),
            slow_calls=lambda: (SlowCall("stop_container", "ns/web", 60.0),) * 2,
            inbox=self.inbox if counted else None,
            start_over=self.start_over,
        )

    def call(self, name: str, *arguments: object) -> None:
        self.calls.append((name, *arguments))
        self.at.append((self.clock.monotonic(), name))
        if name in self.failing:
            raise self.failing[name]

    async def slow_call(self, name: str, *arguments: object) -> None:
        self.calls.append((name, *arguments))
        self.at.append((self.clock.monotonic(), name))
        await asyncio.sleep(self.seconds.get(name, 0))
        if name in self.failing:
            raise self.failing[name]

    def take_calls(self) -> list[Call]:
        """Return the calls since the last time."""
        take_calls, self.calls = self.calls, []
        return take_calls

    def times(self, name: str) -> list[float]:
        return [at for at, called in self.at if called == name]

    # Pods.

    def pods(self) -> Sequence[Pod]:
        return self.desired

    def mirrors(self) -> Sequence[Pod]:
        return self.mirror_pods

    def mirror_of_pod(self, pod: Pod) -> Pod | None:
        return next((each for each in self.mirror_pods if each.metadata.name == pod.metadata.name), None)

    def orphaned_mirror_full_names(self) -> Sequence[str]:
        return self.orphaned_mirrors

    # Workers.

    def sync_known_pods(self, desired: Collection[PodUID]) -> Mapping[PodUID, PodWorkerSync]:
        self.call("sweep", frozenset(desired))
        return self.known

    def forget_restartable(self, uids: Collection[PodUID]) -> Collection[PodUID]:
        forgotten = self.restartable.intersection(uids)
        self.restartable -= forgotten
        return forgotten

    def is_restartable(self, uid: PodUID) -> bool:
        return uid in self.restartable

    def start_over(self, uid: PodUID) -> None:
        self.call("start over", uid)
        del self.published[uid]

    def updated_since_housekeeping(self) -> frozenset[PodUID]:
        return self.updated_since

    def update_pod(self, update: Update) -> None:
        self.call("update worker", update)

    def is_pod_known_terminated(self, uid: PodUID) -> bool:
        return False

    def could_have_running_containers(self, uid: PodUID) -> bool:
        return uid in self.could_run

    def is_pod_termination_requested(self, uid: PodUID) -> bool:
        return False

    def is_pod_for_mirror_pod_terminating(self, full_name: str) -> bool:
        return False

    # Statuses, admission, measuring.

    def get_pod_status(self, uid: PodUID) -> PodStatus | None:
        return self.published.get(uid)

    def remove_orphaned_statuses(self, keep: Collection[PodUID]) -> None:
        self.call("keep statuses", frozenset(keep))

    def add(self, pod: Pod) -> None:
        self.call("count", pod.metadata.uid)

    def collect(self) -> None:
        self.call("collect state")

    def pods_cleaned_up(self, cleanup_input: CleanupInput, plan: CleanupPlan) -> None:
        self.rounds.append((cleanup_input, plan))
        self.call("observe")

    def slow_calls(self, count: int) -> None:
        self.slow_call_counts.append(count)

    # Orphans.

    def keep_only(self, uids: Collection[PodUID]) -> None:
        self.call("keep answers", frozenset(uids))

    def check(self, records: Sequence[PodRecord], group: asyncio.TaskGroup, confirmed: Callable[[], None]) -> None:
        self.call("check orphans", *records)
        if records:
            confirmed()

    # Volumes, and remains.

    async def mount(self, pod: Pod) -> dict[str, str]:
        return {}

    async def unmount(self, uid: PodUID) -> None:
        await self.slow_call(f"unmount {uid}")

    def mounted_pods(self) -> frozenset[PodUID]:
        return self.mounted

    async def directories(self) -> frozenset[PodUID]:
        await self.slow_call("list directories")
        return self.dirs

    async def remove_directory(self, uid: PodUID) -> None:
        await self.slow_call(f"remove directory {uid}")

    async def remove_containers(self, record: PodRecord) -> None:
        await self.slow_call(f"remove remains {record.uid}")


class _Runtime:
    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    async def list_pods(self) -> Sequence[PodRecord]:
        await self._harness.slow_call("list runtime")
        return self._harness.runtime_pods


class _Probes:
    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def keep_only(self, uids: Collection[PodUID]) -> None:
        self._harness.call("keep probes", frozenset(uids))


class _Mirrors:
    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    async def delete(self, pod_full_name: str) -> bool:
        await self._harness.slow_call(f"delete mirror {pod_full_name}")
        return True


class _Cgroups:
    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    async def list_pods(self) -> frozenset[PodUID]:
        await self._harness.slow_call("list cgroups")
        return self._harness.cgroups

    async def ensure(self, pod: Pod) -> str:
        return ""

    async def remove(self, uid: PodUID) -> None:
        await self._harness.slow_call(f"remove cgroup {uid}")

    async def throttle(self, uid: PodUID) -> None:
        await self._harness.slow_call(f"throttle {uid}")


Scenario = Callable[[Harness, Callable[[], Awaitable[None]]], Coroutine[Any, Any, None]]


def in_rounds(scenario: Scenario, *, with_optional: bool = True) -> None:
    """Run a scenario with a harness and a function that runs one round. Its removals continue."""

    async def run() -> None:
        harness = Harness(with_optional=with_optional)
        async with asyncio.TaskGroup() as group:

            async def run_round() -> None:
                await harness.housekeeping.clean_up_pods(group)
                await asyncio.sleep(0)

            await scenario(harness, run_round)

    simulate(run())


def while_running(
    scenario: Callable[[Harness], Coroutine[Any, Any, None]],
    is_well: Callable[[], bool] = lambda: True,
    all_sources_ready: Callable[[], bool] = lambda: True,
    *,
    counted: bool = True,
) -> None:
    """Run a scenario while housekeeping runs. If `counted`, housekeeping skips rounds without changes."""

    async def run() -> None:
        harness = Harness(counted=counted)
        task = asyncio.create_task(harness.housekeeping.run(is_well, all_sources_ready))
        await asyncio.sleep(0)
        await scenario(harness)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    simulate(run())


# Input and calls of a round.


def test_a_round_reports_the_number_of_slow_runtime_calls() -> None:
    async def scenario(harness: Harness, run_round: Callable[[], Awaitable[None]]) -> None:
        await run_round()
        assert harness.slow_call_counts == [2]

    in_rounds(scenario)


def test_the_input_of_a_round() -> None:
    async def scenario(harness: Harness, run_round: Callable[[], Awaitable[None]]) -> None:
        web, rejected, new, blank, unseen = (pod(name) for name in ("web", "rejected", "new", "blank", "unseen"))
        harness.desired = [web, STATIC, rejected, new, blank, unseen]
        harness.mirror_pods, harness.orphaned_mirrors = [MIRROR], ["old_ns"]
        harness.known = {PodUID("web"): KNOWN}
        harness.updated_since, harness.held = uids("static"), uids("new")
        harness.published = {
            PodUID("rejected"): PodStatus(phase="Failed"),
            PodUID("web"): PodStatus(phase="Running"),
            PodUID("static"): PodStatus(phase="Running"),
            PodUID("new"): PodStatus(phase="Pending"),
            PodUID("blank"): PodStatus(),
        }
        harness.runtime_pods = [running("web"), stopped("gone")]
        harness.cgroups, harness.dirs, harness.mounted = uids("c"), uids("d"), uids("m")
        harness.confirmed = uids("gone")
        await run_round()
        assert [sight for sight, _ in harness.rounds] == [
            CleanupInput(
                desired=[
                    (web, None),
                    (STATIC, MIRROR),
                    (rejected, None),
                    (new, None),
                    (blank, None),
                    (unseen, None),
                ],
                mirrors=[MIRROR],
                orphaned_mirrors=["old_ns"],
                known=harness.known,
                updated_since=uids("static", "new"),
                runtime_pods=[running("web")],
                stopped_pods=[stopped("gone")],
                phases={PodUID("rejected"): "Failed"},
                cgroups=uids("c"),
                directories=uids("d"),
                with_volumes=uids("m"),
                absent=uids("gone"),
            )
        ]

    in_rounds(scenario)


def test_a_round_runs_its_steps_in_order() -> None:
    async def scenario(harness: Harness, run_round: Callable[[], Awaitable[None]]) -> None:
        again = pod("again")
        deleted = pod("deleted", deleted=True, phase="Failed")
        harness.desired, harness.orphaned_mirrors = [again, deleted], ["old_ns"]
        harness.runtime_pods = [running("orphan"), running("doubtful"), stopped("dead")]
        harness.confirmed = uids("orphan", "dead")
        harness.cgroups, harness.dirs, harness.mounted = uids("c", "m"), uids("d"), uids("m")
        await run_round()
        kill = KillOptions(grace_override_seconds=1)
        assert harness.take_calls() == [
            ("list cgroups",),
            ("list directories",),
            ("sweep", uids("again", "deleted")),
            ("list runtime",),
            ("keep answers", uids("orphan", "doubtful", "dead")),
            ("observe",),
            ("keep probes", frozenset()),
            ("keep statuses", uids("again", "deleted", "doubtful")),
            ("count", "again"),
            ("update worker", build.update(UpdateType.CREATE, again)),
            ("update worker", build.update(UpdateType.KILL, deleted)),
            ("update worker", build.update(UpdateType.KILL, running("orphan"), kill=kill)),
            ("collect state",),
            ("check orphans", running("doubtful")),
            ("delete mirror old_ns",),
            ("remove remains dead",),
            ("unmount m",),
            ("remove directory d",),
            ("throttle m",),
            ("remove cgroup c",),
        ]

    in_rounds(scenario)


def test_only_the_remains_of_a_pod_are_removed_if_it_is_added_again_before_the_removal_begins() -> None:
    async def run() -> None:
        harness = Harness()
        harness.runtime_pods, harness.confirmed = [stopped("dead")], uids("dead")
        harness.cgroups, harness.dirs, harness.mounted = uids("c", "m"), uids("d"), uids("m")
        removals = {"unmount m", "remove directory d", "throttle m", "remove cgroup c"}
        async with asyncio.TaskGroup() as group:
            await harness.housekeeping.clean_up_pods(group)
            harness.could_run = uids("dead", "c", "d", "m")
        names = {name for name, *_ in harness.take_calls()}
        assert removals.isdisjoint(names)
        assert "remove remains dead" in names, "the exits of the former run must not end the new one"
        harness.could_run = frozenset()
        async with asyncio.TaskGroup() as group:
            await harness.housekeeping.clean_up_pods(group)
        assert removals <= {name for name, *_ in harness.take_calls()}

    simulate(run())


def test_a_node_without_volumes_cgroups_and_api_has_nothing_to_list() -> None:
    async def scenario(harness: Harness, run_round: Callable[[], Awaitable[None]]) -> None:
        harness.runtime_pods = [stopped("dead")]
        harness.mounted = uids("m")
        await run_round()
        assert [name for name, *_ in harness.take_calls()] == [
            "sweep",
            "list runtime",
            "observe",
            "keep probes",
            "keep statuses",
            "collect state",
        ]
        (sight, _), *_ = harness.rounds
        assert (sight.cgroups, sight.directories, sight.with_volumes, sight.absent) == (
            frozenset(),
            frozenset(),
            frozenset(),
            None,
        )

    in_rounds(scenario, with_optional=False)


@pytest.mark.parametrize(
    "failing", ["observe", "keep probes", "keep statuses", "count", "update worker", "collect state"]
)
def test_a_failed_part_of_a_round_does_not_affect_the_others(failing: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness, run_round: Callable[[], Awaitable[None]]) -> None:
        harness.failing[failing] = ZeroDivisionError()
        harness.desired, harness.cgroups = [pod("again")], uids("c")
        harness.runtime_pods, harness.confirmed = [running("orphan")], uids("orphan")
        await run_round()
        names = [name for name, *_ in harness.take_calls()]
        expected = [
            "observe",
            "keep probes",
            "keep statuses",
            "count",
            "update worker",
            "update worker",
            "collect state",
            "check orphans",
            "remove cgroup c",
        ]
        if failing == "count":
            expected.remove("update worker")
        assert names[-len(expected) :] == expected

    in_rounds(scenario)
    caplog.clear()


# Slow lists.


def test_the_timeout_of_a_list_is_one_second_and_a_later_round_uses_its_result() -> None:
    async def scenario(harness: Harness, run_round: Callable[[], Awaitable[None]]) -> None:
        harness.seconds = {"list cgroups": 5.0, "list directories": 0.5}
        harness.cgroups, harness.dirs = uids("c"), uids("d")
        for _ in range(2):
            await run_round()
        assert harness.times("sweep") == [1.0, 2.0]
        await asyncio.sleep(3.25)
        harness.cgroups, harness.seconds["list cgroups"] = frozenset(), 0.0
        await run_round()
        await run_round()
        assert [(sight.cgroups, sight.directories) for sight, _ in harness.rounds] == [
            (frozenset(), uids("d")),
            (frozenset(), uids("d")),
            (uids("c"), uids("d")),
            (frozenset(), uids("d")),
        ]
        assert harness.times("list cgroups") == [0.0, 5.75]

    in_rounds(scenario)


@pytest.mark.parametrize("error", [TryLater("busy"), ZeroDivisionError()], ids=["expected", "unexpected"])
def test_a_failed_list_is_retried(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness, run_round: Callable[[], Awaitable[None]]) -> None:
        harness.cgroups = uids("c")
        harness.failing["list cgroups"] = error
        await run_round()
        harness.failing.clear()
        await run_round()
        assert [sight.cgroups for sight, _ in harness.rounds] == [frozenset(), uids("c")]

    in_rounds(scenario)
    caplog.clear()


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    """How many warnings there were since the last time."""
    number = sum(line.levelno == logging.WARNING for line in caplog.records)
    caplog.clear()
    return number


def test_a_list_that_fails_is_logged_once_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness, run_round: Callable[[], Awaitable[None]]) -> None:
        seen = []
        for error in (TryLater("busy"), TryLater("busy"), None, TryLater("busy")):
            harness.failing = {} if error is None else {"list cgroups": error}
            await run_round()
            seen.append(warnings(caplog))
        harness.failing, harness.seconds = {}, {"list directories": 100.0}
        for _ in range(2):
            await run_round()
            seen.append(warnings(caplog))
        assert seen == [1, 0, 0, 1, 1, 0]

    in_rounds(scenario)


def test_the_timeout_of_the_runtime_doubles_until_it_answers() -> None:
    async def scenario(harness: Harness, run_round: Callable[[], Awaitable[None]]) -> None:
        waits = []
        for seconds in (60.0, 60.0, 60.0, 60.0, 60.0, 60.0, 25.0, 60.0):
            harness.seconds["list runtime"] = seconds
            begun = harness.clock.monotonic()
            await run_round()
            waits.append(harness.clock.monotonic() - begun)
        assert waits == [2, 4, 8, 16, 30, 30, 25, 2]
        blind = [sight.runtime_pods is None for sight, _ in harness.rounds]
        assert blind == [True, True, True, True, True, True, False, True]

    in_rounds(scenario)


def test_an_unlisted_runtime_gets_a_longer_timeout() -> None:
    async def scenario(harness: Harness, run_round: Callable[[], Awaitable[None]]) -> None:
        harness.runtime_pods = [stopped("dead")]
        harness.failing["list runtime"] = RuntimeUnavailable("no socket")
        await run_round()
        (sight, _), *_ = harness.rounds
        assert (sight.runtime_pods, sight.stopped_pods) == (None, [])
        assert "keep answers" not in [name for name, *_ in harness.take_calls()]
        harness.failing.clear()
        harness.seconds["list runtime"] = 3.0
        await run_round()
        assert harness.rounds[-1][0].stopped_pods == [stopped("dead")]

    in_rounds(scenario)


# Removals.


def test_at_most_256_removals_run_besides_slow_ones() -> None:
    async def scenario(harness: Harness, run_round: Callable[[], Awaitable[None]]) -> None:
        harness.cgroups = uids(*(f"c-{number:03}" for number in range(600)))
        harness.seconds = {f"remove cgroup {uid}": 10.5 for uid in harness.cgroups}

        def removals() -> int:
            return sum(str(name).startswith("remove cgroup") for name, *_ in harness.take_calls())

        begun = []
        await asyncio.sleep(100)
        for wait in (9.5, 0.5, 0.25, 0.0):
            await run_round()
            begun.append(removals())
            await asyncio.sleep(wait)
        # After 10 s the first ones are slow. After 10.5 s they have ended, and are needed again.
        assert begun == [256, 0, 256, 0]

    in_rounds(scenario)


def test_a_running_removal_is_not_repeated_and_delays_no_other() -> None:
    async def scenario(harness: Harness, run_round: Callable[[], Awaitable[None]]) -> None:
        harness.orphaned_mirrors, harness.seconds = ["stuck_ns"], {"delete mirror stuck_ns": 3.0}
        await run_round()
        assert harness.housekeeping.is_removing(PodUID("stuck_ns"))
        harness.orphaned_mirrors = ["stuck_ns", "other_ns"]
        harness.take_calls()
        await run_round()
        assert [name for name, *_ in harness.take_calls()][-1] == "delete mirror other_ns"
        await asyncio.sleep(3)
        assert not harness.housekeeping.is_removing(PodUID("stuck_ns"))
        await run_round()
        assert ("delete mirror stuck_ns",) in harness.take_calls()

    in_rounds(scenario)


def test_a_failed_removal_is_logged_once_until_it_succeeds_or_is_not_needed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(harness: Harness, run_round: Callable[[], Awaitable[None]]) -> None:
        seen = []
        for fails, wanted in (
            (True, True),
            (True, True),
            (False, True),
            (True, True),
            (True, False),
            (True, True),
        ):
            harness.failing = {"delete mirror a_ns": TryLater("busy")} if fails else {}
            harness.orphaned_mirrors = ["a_ns"] if wanted else []
            await run_round()
            await asyncio.sleep(0.01)
            seen.append(warnings(caplog))
        assert seen == [1, 0, 0, 1, 0, 1]

    in_rounds(scenario)


@pytest.mark.parametrize("still_wanted", [True, False])
def test_a_removal_that_takes_ten_seconds_is_logged_once(still_wanted: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness, run_round: Callable[[], Awaitable[None]]) -> None:
        harness.orphaned_mirrors, harness.seconds = ["slow_ns"], {"delete mirror slow_ns": 30.0}
        seen = []
        await asyncio.sleep(100)
        for wait in (9.75, 0.25, 5.0, 0.0):
            await run_round()
            harness.orphaned_mirrors = ["slow_ns"] if still_wanted else []
            seen.append(warnings(caplog))
            await asyncio.sleep(wait)
        assert seen == [0, 0, 1, 0]

    in_rounds(scenario)


def test_a_removal_that_fails_unexpectedly_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness, run_round: Callable[[], Awaitable[None]]) -> None:
        harness.orphaned_mirrors, harness.failing = ["a_ns"], {"delete mirror a_ns": ZeroDivisionError()}
        for _ in range(2):
            await run_round()
            await asyncio.sleep(0.01)
        assert len(harness.times("delete mirror a_ns")) == 2

    in_rounds(scenario)
    caplog.clear()


# When rounds are made.


def test_without_changes_a_round_runs_every_30_seconds() -> None:
    async def scenario(harness: Harness) -> None:
        await asyncio.sleep(63)
        assert harness.times("sweep") == [2, 32, 62]
        harness.inbox.changes += 1
        await asyncio.sleep(6)
        assert harness.times("sweep") == [2, 32, 62, 64]

    while_running(scenario)


def test_a_round_runs_every_two_seconds_if_changes_are_not_counted() -> None:
    async def scenario(harness: Harness) -> None:
        await asyncio.sleep(7)
        assert harness.times("sweep") == [2, 4, 6]

    while_running(scenario, counted=False)


def test_a_round_follows_every_two_seconds_while_there_is_work() -> None:
    async def scenario(harness: Harness) -> None:
        harness.orphaned_mirrors = ["a_ns"]
        await asyncio.sleep(7)
        assert harness.times("sweep") == [2, 4, 6]
        harness.orphaned_mirrors = []
        await asyncio.sleep(10)
        assert harness.times("sweep") == [2, 4, 6, 8]

    while_running(scenario)


def test_a_round_follows_every_two_seconds_while_a_removal_runs() -> None:
    async def scenario(harness: Harness) -> None:
        harness.orphaned_mirrors, harness.seconds = ["a_ns"], {"delete mirror a_ns": 7.0}
        await asyncio.sleep(3)
        harness.orphaned_mirrors = []
        await asyncio.sleep(17)
        assert harness.times("sweep") == [2, 4, 6, 8]

    while_running(scenario)


@pytest.mark.parametrize("reason", ["the runtime is not well", "a source is not ready"])
def test_no_round_runs_while(reason: str) -> None:
    ready = False

    async def scenario(harness: Harness) -> None:
        nonlocal ready
        harness.desired, harness.restartable = [pod("web")], uids("web")
        await asyncio.sleep(5)
        assert harness.calls == []
        ready = True
        await asyncio.sleep(2)
        assert harness.times("sweep") == [6]

    if reason == "the runtime is not well":
        while_running(scenario, is_well=lambda: ready)
    else:
        while_running(scenario, all_sources_ready=lambda: ready)


def test_a_static_pod_added_again_restarts_before_all_sources_are_ready() -> None:
    async def scenario(harness: Harness) -> None:
        held = pod("held", source=FILE_SOURCE)
        harness.desired, harness.mirror_pods = [STATIC, held, pod("web")], [MIRROR]
        harness.published = {PodUID("static"): PodStatus(phase="Running")}
        harness.restartable, harness.held = uids("static", "held", "web"), uids("held")
        await asyncio.sleep(5)
        restart = build.update(UpdateType.CREATE, STATIC, mirror=MIRROR)
        assert harness.calls == [("count", "static"), ("update worker", restart)]
        assert harness.restartable == uids("held", "web")

    while_running(scenario, all_sources_ready=lambda: False)


def test_a_terminated_static_pod_added_again_starts_over_before_all_sources_are_ready() -> None:
    async def scenario(harness: Harness) -> None:
        over, stays = pod("over", source=FILE_SOURCE), pod("stays", source=FILE_SOURCE)
        harness.desired = [over, stays]
        harness.published = {uid: PodStatus(phase="Succeeded") for uid in uids("over", "stays")}
        harness.restartable = uids("over")
        await asyncio.sleep(5)
        restart = build.update(UpdateType.CREATE, over)
        assert harness.calls == [("start over", "over"), ("count", "over"), ("update worker", restart)]
        assert harness.published.keys() == uids("stays")

    while_running(scenario, all_sources_ready=lambda: False)


def test_a_static_pod_stays_terminated_if_its_former_run_cannot_be_dropped() -> None:
    async def scenario(harness: Harness) -> None:
        over = pod("over", source=FILE_SOURCE)
        harness.desired, harness.published = [over, STATIC], {PodUID("over"): PodStatus(phase="Failed")}
        harness.restartable, harness.failing = uids("over", "static"), {"start over": RuntimeError("broken")}
        await asyncio.sleep(5)
        restart = build.update(UpdateType.CREATE, STATIC)
        assert harness.calls == [("start over", "over"), ("count", "static"), ("update worker", restart)]

    while_running(scenario, all_sources_ready=lambda: False)


def test_a_failed_restart_of_a_static_pod_does_not_affect_the_next() -> None:
    async def scenario(harness: Harness) -> None:
        harness.desired = [STATIC, pod("other", source=FILE_SOURCE)]
        harness.restartable, harness.failing = uids("static", "other"), {"count": RuntimeError("broken")}
        await asyncio.sleep(5)
        assert set(harness.calls) == {("count", "static"), ("count", "other")}

    while_running(scenario, all_sources_ready=lambda: False)


def test_no_static_pod_is_restarted_while_the_runtime_is_unhealthy() -> None:
    async def scenario(harness: Harness) -> None:
        harness.desired, harness.restartable = [STATIC], uids("static")
        await asyncio.sleep(5)
        assert harness.calls == []

    while_running(scenario, is_well=lambda: False, all_sources_ready=lambda: False)


def test_a_requested_round_runs_once_at_once() -> None:
    async def scenario(harness: Harness) -> None:
        await asyncio.sleep(0.5)
        harness.orphaned_mirrors = ["a_ns"]
        harness.housekeeping.request()
        await asyncio.sleep(3)
        assert harness.times("sweep") == [0.5, 2.5]

    while_running(scenario)


def test_a_confirmed_orphan_triggers_a_round() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime_pods, harness.seconds = [running("doubtful")], {"list runtime": 0.25}
        await asyncio.sleep(2.9)
        assert harness.times("sweep") == [2, 2.25, 2.5, 2.75]

    while_running(scenario)


def test_a_round_that_fails_is_followed_by_another(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness) -> None:
        harness.failing["sweep"] = ZeroDivisionError()
        await asyncio.sleep(5)
        assert harness.times("sweep") == [2, 4]

    while_running(scenario)
    caplog.clear()
