"""The log manager step by step in virtual time: all file calls, and the time of the next run."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from podkeeper.engine.bounded_runtime import BoundedRuntime
from podkeeper.engine.log_manager import ContainerLogManager
from podkeeper.model.errors import RuntimeRefused, TryLater
from podkeeper.model.log_tree import ContainerLogs, LogTree
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.rules.logs.rotation import RotationPolicy
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in

RUNNING, EXITED = RecordState.RUNNING, RecordState.EXITED
WEB = "ns_web_uid-web"
NOW = "20260101-000000"  # of the virtual clock, as a stamp
OLD, OLDER = "0.log.20251231-100002", "0.log.20251231-100001"
POLICY = RotationPolicy(max_bytes=100, max_files=5, interval_seconds=10)


def attempt(number: int = 0, state: RecordState = RUNNING, name: str = "app") -> ContainerRecord:
    return ContainerRecord(id=f"{name}-{number}", name=name, state=state, restart_count=number)


class Harness:
    """A runtime and a log tree that record all calls. Calls can fail or take time."""

    def __init__(self, policy: RotationPolicy = POLICY) -> None:
        self.calls: list[str] = []
        self.failing: dict[str, Exception] = {}
        self.seconds: dict[str, float] = {}  # duration of a call
        self.directories: list[str] = [WEB]
        self.logs: dict[tuple[str, str], dict[str, int]] = {}
        self.records: list[PodRecord] = []
        self.created_later: set[str] = set()  # files created after the listing
        self.gone: set[str] = set()
        self.litter = False
        self.runs: list[float] = []
        self.clock = VirtualClock()
        self.manager = ContainerLogManager(
            runtime=stand_in(BoundedRuntime, self),
            files=self,
            clock=self.clock,
            policy=policy,
            is_removed=lambda uid: uid in self.gone,
        )

    def have(self, sizes: dict[str, int], *containers: ContainerRecord) -> None:
        """Set the files and containers of pod web."""
        self.logs = {(WEB, "app"): sizes}
        self.records = [PodRecord(uid="uid-web", name="web", namespace="ns", containers=containers)]

    def taken(self) -> list[str]:
        """Return and clear the calls, without those of each run."""
        taken, self.calls = self.calls, []
        return [call for call in taken if call not in ("list_logs", "list")]

    async def run_once(self) -> tuple[float, list[str]]:
        """Run once and wait for all work. Return the pause and the calls."""
        async with asyncio.TaskGroup() as group:
            pause = await self.manager.rotate_logs(group)
        return pause, self.taken()

    async def call(self, what: str) -> None:
        self.calls.append(what)
        await asyncio.sleep(self.seconds.get(what, 0))
        if what in self.failing:
            raise self.failing[what]

    async def list_pods(self) -> Sequence[PodRecord]:
        await self.call("list")
        return self.records

    async def reopen_log(self, container_id: str) -> None:
        await self.call(f"reopen {container_id}")

    async def list_logs(self) -> LogTree:
        self.runs.append(self.clock.monotonic())
        await self.call("list_logs")
        logs = (ContainerLogs(pod, container, sizes) for (pod, container), sizes in self.logs.items())
        return LogTree(tuple(self.directories), tuple(logs), has_leftovers=self.litter)

    def exists(self, logs: ContainerLogs, name: str) -> bool:
        return name in self.created_later

    async def remove(self, logs: ContainerLogs, names: Sequence[str]) -> None:
        await self.call(f"remove {' '.join(sorted(names))}")

    async def move(self, logs: ContainerLogs, name: str, to: str) -> None:
        await self.call(f"move {name} to {to}")

    async def move_back(self, logs: ContainerLogs, name: str, moved_to: str) -> None:
        await self.call(f"move {moved_to} back to {name}")

    async def compress(self, logs: ContainerLogs, name: str) -> None:
        await self.call(f"compress {name}")

    def put_aside(self, pod: str) -> None:
        self.calls.append(f"put {pod} aside")
        if f"put {pod} aside" in self.failing:
            raise self.failing[f"put {pod} aside"]

    async def clear(self) -> None:
        await self.call("clear")


def run_scenario(scenario: Callable[[Harness], Coroutine[Any, Any, None]], policy: RotationPolicy = POLICY) -> None:
    async def main() -> None:
        await scenario(Harness(policy))

    simulate(main())


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    """Return the number of warnings since the last call."""
    number = sum(line.levelno == logging.WARNING for line in caplog.records)
    caplog.clear()
    return number


# One run.

MOVE = f"move 0.log to 0.log.{NOW}"
RUNS: dict[str, tuple[dict[str, int], tuple[ContainerRecord, ...], list[str]]] = {
    "a small log stays": ({"0.log": 99}, (attempt(),), []),
    "a full log is rotated": ({"0.log": 100}, (attempt(),), [MOVE, "reopen app-0"]),
    "a full log of a container that exited stays": ({"0.log": 100}, (attempt(0, EXITED),), []),
    "the newest part is not compressed": (
        {"0.log": 1, OLD: 100, OLDER: 100},
        (attempt(),),
        [f"compress {OLDER}"],
    ),
    "parts are compressed after a rotation": (
        {"0.log": 100, OLD: 100, OLDER: 100},
        (attempt(),),
        [MOVE, "reopen app-0", f"compress {OLDER}", f"compress {OLD}"],
    ),
    "an unfinished compression is removed first": (
        {"0.log": 100, f"{OLD}.tmp": 3},
        (attempt(),),
        [f"remove {OLD}.tmp", "move 0.log to 0.log.20260101-000000", "reopen app-0"],
    ),
    "logs of attempts that are gone are removed": (
        {"0.log": 1, "1.log": 1, "2.log": 1},
        (attempt(2), attempt(1, EXITED)),
        ["remove 0.log"],
    ),
    "only the log of the attempt that runs is rotated": (
        {"1.log": 500, "2.log": 500},
        (attempt(2), attempt(1, EXITED)),
        [f"move 2.log to 2.log.{NOW}", "reopen app-2"],
    ),
    "a container that runs without a log gets one": ({}, (attempt(),), ["reopen app-0"]),
    "a container that exited without a log gets none": ({}, (attempt(0, EXITED),), []),
    "the newest attempt lacks its log": ({"0.log": 1}, (attempt(1), attempt(0, EXITED)), ["reopen app-1"]),
    "one container exited and another one lacks its log": (
        {},
        (attempt(0, EXITED), attempt(name="other")),
        ["reopen other-0"],
    ),
    "the newest part of a container that exited is not compressed": (
        {"0.log": 500, OLD: 100},
        (attempt(0, EXITED),),
        [],
    ),
    "files of other names stay": ({"0.log": 1, "notes.txt": 1}, (attempt(),), []),
    "logs of another container stay": ({"0.log": 500}, (attempt(name="other"),), ["reopen other-0"]),
}


@pytest.mark.parametrize("sizes, containers, calls", RUNS.values(), ids=RUNS.keys())
def test_one_run(sizes: dict[str, int], containers: tuple[ContainerRecord, ...], calls: list[str]) -> None:
    async def scenario(harness: Harness) -> None:
        harness.have(sizes, *containers)
        assert (await harness.run_once())[1] == calls

    run_scenario(scenario)


def test_the_log_tree_is_listed_before_the_runtime() -> None:
    async def scenario(harness: Harness) -> None:
        harness.have({"0.log": 1}, attempt())
        async with asyncio.TaskGroup() as group:
            await harness.manager.rotate_logs(group)
        assert harness.calls == ["list_logs", "list"]

    run_scenario(scenario)


def test_a_log_created_since_the_listing_is_not_reopened() -> None:
    async def scenario(harness: Harness) -> None:
        harness.have({}, attempt())
        harness.created_later = {"0.log"}
        assert (await harness.run_once())[1] == []

    run_scenario(scenario)


def test_without_a_size_limit_nothing_is_rotated() -> None:
    async def scenario(harness: Harness) -> None:
        harness.have({"0.log": 10**9}, attempt())
        assert await harness.run_once() == (10, [])

    run_scenario(scenario, replace(POLICY, max_bytes=None))


# Directories of removed pods.


@pytest.mark.parametrize(
    "directory, gone",
    [
        ("ns_gone_uid-gone", True),
        ("ns_kept_uid-kept", False),
        ("uid-gone", False),
        ("ns_uid-gone", False),
        ("a_ns_gone_uid-gone", False),
        ("ns_gone_", False),
    ],
)
def test_directories_that_do_not_belong_to_a_removed_pod_stay(directory: str, gone: bool) -> None:
    async def scenario(harness: Harness) -> None:
        harness.directories, harness.gone = [directory], {"uid-gone", ""}
        assert (await harness.run_once())[1] == ([f"put {directory} aside", "clear"] if gone else [])

    run_scenario(scenario)


def test_the_directory_of_a_pod_known_to_the_runtime_stays() -> None:
    async def scenario(harness: Harness) -> None:
        harness.have({"0.log": 1}, attempt())
        harness.gone = {"uid-web"}
        assert (await harness.run_once())[1] == []

    run_scenario(scenario)


def test_the_rest_of_an_interrupted_removal_is_removed() -> None:
    async def scenario(harness: Harness) -> None:
        harness.litter = True
        assert (await harness.run_once())[1] == ["clear"]

    run_scenario(scenario)


def test_a_directory_that_cannot_be_removed_does_not_block_others(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness) -> None:
        harness.directories, harness.gone = ["ns_a_a", "ns_b_b"], {"a", "b"}
        harness.failing["put ns_a_a aside"] = TryLater("busy")
        for expected in (1, 0):
            assert (await harness.run_once())[1] == ["put ns_a_a aside", "put ns_b_b aside", "clear"]
            assert warnings(caplog) == expected

    run_scenario(scenario)


# Failures and slow calls.


@pytest.mark.parametrize("error", [RuntimeRefused("no"), ZeroDivisionError()], ids=["expected", "unexpected"])
def test_a_log_that_cannot_be_reopened_gets_its_name_back(error: Exception) -> None:
    async def scenario(harness: Harness) -> None:
        harness.have({"0.log": 100, OLD: 100}, attempt())
        harness.failing["reopen app-0"] = error
        assert (await harness.run_once())[1] == [MOVE, "reopen app-0", f"move 0.log.{NOW} back to 0.log"]

    run_scenario(scenario)


@pytest.mark.parametrize("seconds, in_time", [(9.9, True), (10.1, False)])
def test_reopening_a_log_times_out_after_ten_seconds(seconds: float, in_time: bool) -> None:
    async def scenario(harness: Harness) -> None:
        harness.have({"0.log": 100}, attempt())
        harness.seconds["reopen app-0"] = seconds
        calls = (await harness.run_once())[1]
        assert calls == [MOVE, "reopen app-0"] + [f"move 0.log.{NOW} back to 0.log"] * (not in_time)

    run_scenario(scenario)


def test_a_failed_step_ends_the_work_on_its_log_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness) -> None:
        harness.have({"0.log": 100, f"{OLD}.tmp": 3}, attempt())
        seen = []
        for error in (TryLater("busy"), TryLater("busy"), TryLater("gone"), None, TryLater("gone")):
            harness.failing = {} if error is None else {f"remove {OLD}.tmp": error}
            calls = (await harness.run_once())[1]
            assert len(calls) == (3 if error is None else 1)
            seen.append(warnings(caplog))
        assert seen == [1, 0, 1, 0, 1]

    run_scenario(scenario)


def test_only_one_step_at_a_time_runs_on_a_log() -> None:
    async def scenario(harness: Harness) -> None:
        harness.have({"0.log": 100}, attempt())
        harness.seconds[MOVE] = 5.0
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                await harness.manager.rotate_logs(group)
                await asyncio.sleep(1)
            assert harness.taken() == [MOVE]
        assert harness.taken() == ["reopen app-0"]
        assert (await harness.run_once())[1][0].startswith("move")

    run_scenario(scenario)


def test_a_log_is_rotated_while_an_older_part_is_compressed() -> None:
    async def scenario(harness: Harness) -> None:
        harness.have({"0.log": 1, OLD: 100, OLDER: 100}, attempt())
        harness.seconds[f"compress {OLDER}"] = 5.0
        async with asyncio.TaskGroup() as group:
            await harness.manager.rotate_logs(group)
            await asyncio.sleep(1)
            assert harness.taken() == [f"compress {OLDER}"]
            harness.have({"0.log": 100, OLD: 100, OLDER: 100, f"{OLDER}.tmp": 1}, attempt())
            await harness.manager.rotate_logs(group)
            await asyncio.sleep(1)
            # A part that is being compressed is neither removed nor compressed again.
            assert [call.split()[0] for call in harness.taken()] == ["move", "reopen"]
        harness.have({"0.log": 1, OLD: 100, OLDER: 100, f"{OLDER}.tmp": 1}, attempt())
        assert (await harness.run_once())[1] == [f"remove {OLDER}.tmp", f"compress {OLDER}"]

    run_scenario(scenario)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_concurrent_compressions_is_limited(workers: int) -> None:
    async def scenario(harness: Harness) -> None:
        harness.records = [
            PodRecord(uid="uid-web", name="web", namespace="ns", containers=(attempt(), attempt(name="db")))
        ]
        harness.logs = {(WEB, name): {"0.log": 1, OLD: 100, OLDER: 100} for name in ("app", "db")}
        harness.seconds[f"compress {OLDER}"] = 5.0
        async with asyncio.TaskGroup() as group:
            await harness.manager.rotate_logs(group)
            await asyncio.sleep(1)
            assert harness.taken() == [f"compress {OLDER}"] * workers
        assert harness.taken() == [f"compress {OLDER}"] * (2 - workers)

    run_scenario(scenario, replace(POLICY, workers=workers))


# The time of the next run.


@pytest.mark.parametrize(
    "first, second, after, pause",
    [
        pytest.param(10, 10, 4, 10, id="a log that does not grow"),
        pytest.param(0, 40, 4, 6, id="a log that grows 10 bytes a second and has 60 left"),
        pytest.param(0, 80, 4, 1, id="a log that is full in a second"),
        pytest.param(0, 99, 4, 1, id="a log that is full before that"),
        pytest.param(0, 4, 4, 10, id="a slow log"),
        pytest.param(100, 20, 4, 10, id="a log that was rotated grew from nothing"),
        pytest.param(100, 40, 4, 6, id="a log that was rotated grew fast from nothing"),
        pytest.param(40, 100, 10, 10, id="a log that is rotated now has all its room again"),
        pytest.param(None, 40, 4, 6, id="a log that is new grew from nothing"),
        pytest.param(0, 40, 0.5, 1, id="a log that grew within half a second"),
        pytest.param(0, 40, 0, 1, id="a log that grew at once"),
    ],
)
def test_the_next_run_is_before_a_log_is_full(first: int | None, second: int, after: float, pause: float) -> None:
    async def scenario(harness: Harness) -> None:
        await asyncio.sleep(100)
        harness.have({} if first is None else {"0.log": first}, *([] if first is None else [attempt()]))
        assert (await harness.run_once())[0] == 1  # one run does not show how fast a log grows
        await asyncio.sleep(after)
        harness.have({"0.log": second}, attempt())
        assert (await harness.run_once())[0] == pytest.approx(pause)

    run_scenario(scenario)


def test_the_growth_of_a_log_is_measured_since_the_last_run() -> None:
    async def scenario(harness: Harness) -> None:
        pauses = []
        for size in (0, 8, 24):
            harness.have({"0.log": size}, attempt())
            pauses.append((await harness.run_once())[0])
            await asyncio.sleep(2)
        assert pauses == [1, 10, 9.5]

    run_scenario(scenario)


def test_a_log_without_a_writer_needs_no_early_run() -> None:
    async def scenario(harness: Harness) -> None:
        harness.have({"0.log": 0}, attempt())
        await harness.run_once()
        await asyncio.sleep(1)
        harness.have({"0.log": 90}, attempt(0, EXITED))
        assert (await harness.run_once())[0] == 10

    run_scenario(scenario)


def test_the_second_run_is_not_later_than_the_interval() -> None:
    async def scenario(harness: Harness) -> None:
        assert (await harness.run_once())[0] == 0.5

    run_scenario(scenario, replace(POLICY, interval_seconds=0.5))


def test_runs_continue_after_any_error(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness) -> None:
        task = asyncio.create_task(harness.manager.run())
        for error in (None, TryLater("down"), TryLater("down"), None, TryLater("down"), ZeroDivisionError()):
            harness.failing = {} if error is None else {"list": error}
            await asyncio.sleep(10 if harness.runs else 0.5)
        assert harness.runs == [0, 1, 11, 21, 31, 41]
        assert warnings(caplog) == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_scenario(scenario)
