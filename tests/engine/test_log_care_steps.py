"""The care for logs step by step, in virtual time: every call about a file, and when the next look comes."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from podkeeper.engine.log_care import LogCare
from podkeeper.model.errors import RuntimeRefused, TryLater
from podkeeper.model.log_tree import ContainerLogs, LogTree
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord
from podkeeper.rules.log_rotation import Policy
from podkeeper.testing.virtual_time import VirtualClock, simulate

RUNNING, EXITED = ContainerState.RUNNING, ContainerState.EXITED
WEB = "ns_web_uid-web"
NOW = "20260101-000000"  # of the virtual clock, as a stamp
OLD, OLDER = "0.log.20251231-100002", "0.log.20251231-100001"
POLICY = Policy(max_bytes=100, max_files=5, interval_seconds=10)


def attempt(number: int = 0, state: ContainerState = RUNNING, name: str = "app") -> ContainerRecord:
    return ContainerRecord(id=f"{name}-{number}", name=name, state=state, restart_count=number)


class Desk:
    """A runtime and a log tree that note all calls. Calls can be made to fail, or to take time."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.calls: list[str] = []
        self.failing: dict[str, Exception] = {}
        self.seconds: dict[str, float] = {}  # that a call takes
        self.directories: list[str] = [WEB]
        self.logs: dict[tuple[str, str], dict[str, int]] = {}
        self.records: list[PodRecord] = []
        self.there: set[str] = set()  # files that came after the survey
        self.gone: set[str] = set()
        self.litter = False
        self.looks: list[float] = []
        self.clock = VirtualClock()
        self.care = LogCare(
            runtime=self, files=self, clock=self.clock, policy=policy, is_gone=lambda uid: uid in self.gone
        )

    def have(self, sizes: dict[str, int], *containers: ContainerRecord) -> None:
        """Let pod web have these files and containers."""
        self.logs = {(WEB, "app"): sizes}
        self.records = [PodRecord(uid="uid-web", name="web", namespace="ns", containers=containers)]

    def taken(self) -> list[str]:
        """The calls since the last time, without those of each look."""
        taken, self.calls = self.calls, []
        return [call for call in taken if call not in ("survey", "list")]

    async def look(self) -> tuple[float, list[str]]:
        """Look once, and wait for all that it began. Returns the pause and the calls."""
        async with asyncio.TaskGroup() as group:
            pause = await self.care.look(group)
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

    async def survey(self) -> LogTree:
        self.looks.append(self.clock.monotonic())
        await self.call("survey")
        logs = (ContainerLogs(pod, container, sizes) for (pod, container), sizes in self.logs.items())
        return LogTree(tuple(self.directories), tuple(logs), has_litter=self.litter)

    def exists(self, logs: ContainerLogs, name: str) -> bool:
        return name in self.there

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


def at_desk(story: Callable[[Desk], Coroutine[Any, Any, None]], policy: Policy = POLICY) -> None:
    async def played() -> None:
        await story(Desk(policy))

    simulate(played())


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    """How many warnings there were since the last time."""
    number = sum(line.levelno == logging.WARNING for line in caplog.records)
    caplog.clear()
    return number


# What a look does.

MOVE = f"move 0.log to 0.log.{NOW}"
LOOKS: dict[str, tuple[dict[str, int], tuple[ContainerRecord, ...], list[str]]] = {
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
    "what is half compressed is removed first": (
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


@pytest.mark.parametrize("sizes, containers, calls", LOOKS.values(), ids=LOOKS.keys())
def test_a_look(sizes: dict[str, int], containers: tuple[ContainerRecord, ...], calls: list[str]) -> None:
    async def story(desk: Desk) -> None:
        desk.have(sizes, *containers)
        assert (await desk.look())[1] == calls

    at_desk(story)


def test_the_tree_is_seen_before_the_runtime_is_listed() -> None:
    async def story(desk: Desk) -> None:
        desk.have({"0.log": 1}, attempt())
        async with asyncio.TaskGroup() as group:
            await desk.care.look(group)
        assert desk.calls == ["survey", "list"]

    at_desk(story)


def test_a_log_that_came_since_the_tree_was_seen_is_not_reopened() -> None:
    async def story(desk: Desk) -> None:
        desk.have({}, attempt())
        desk.there = {"0.log"}
        assert (await desk.look())[1] == []

    at_desk(story)


def test_without_a_limit_nothing_is_rotated() -> None:
    async def story(desk: Desk) -> None:
        desk.have({"0.log": 10**9}, attempt())
        assert await desk.look() == (10, [])

    at_desk(story, replace(POLICY, max_bytes=None))


# Directories of pods that are gone.


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
def test_only_the_directory_of_a_pod_that_is_gone_is_removed(directory: str, gone: bool) -> None:
    async def story(desk: Desk) -> None:
        desk.directories, desk.gone = [directory], {"uid-gone", ""}
        assert (await desk.look())[1] == ([f"put {directory} aside", "clear"] if gone else [])

    at_desk(story)


def test_a_pod_that_the_runtime_has_keeps_its_directory() -> None:
    async def story(desk: Desk) -> None:
        desk.have({"0.log": 1}, attempt())
        desk.gone = {"uid-web"}
        assert (await desk.look())[1] == []

    at_desk(story)


def test_what_was_left_of_a_removal_is_removed() -> None:
    async def story(desk: Desk) -> None:
        desk.litter = True
        assert (await desk.look())[1] == ["clear"]

    at_desk(story)


def test_a_directory_that_cannot_be_removed_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def story(desk: Desk) -> None:
        desk.directories, desk.gone = ["ns_a_a", "ns_b_b"], {"a", "b"}
        desk.failing["put ns_a_a aside"] = TryLater("busy")
        for expected in (1, 0):
            assert (await desk.look())[1] == ["put ns_a_a aside", "put ns_b_b aside", "clear"]
            assert warnings(caplog) == expected

    at_desk(story)


# What fails, and what is slow.


@pytest.mark.parametrize("error", [RuntimeRefused("no"), ZeroDivisionError()], ids=["expected", "unexpected"])
def test_a_log_that_cannot_be_reopened_gets_its_name_back(error: Exception) -> None:
    async def story(desk: Desk) -> None:
        desk.have({"0.log": 100, OLD: 100}, attempt())
        desk.failing["reopen app-0"] = error
        assert (await desk.look())[1] == [MOVE, "reopen app-0", f"move 0.log.{NOW} back to 0.log"]

    at_desk(story)


@pytest.mark.parametrize("seconds, in_time", [(9.9, True), (10.1, False)])
def test_a_runtime_may_take_ten_seconds_to_reopen_a_log(seconds: float, in_time: bool) -> None:
    async def story(desk: Desk) -> None:
        desk.have({"0.log": 100}, attempt())
        desk.seconds["reopen app-0"] = seconds
        calls = (await desk.look())[1]
        assert calls == [MOVE, "reopen app-0"] + [f"move 0.log.{NOW} back to 0.log"] * (not in_time)

    at_desk(story)


def test_a_step_that_fails_ends_the_work_on_its_log_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story(desk: Desk) -> None:
        desk.have({"0.log": 100, f"{OLD}.tmp": 3}, attempt())
        seen = []
        for error in (TryLater("busy"), TryLater("busy"), TryLater("gone"), None, TryLater("gone")):
            desk.failing = {} if error is None else {f"remove {OLD}.tmp": error}
            calls = (await desk.look())[1]
            assert len(calls) == (3 if error is None else 1)
            seen.append(warnings(caplog))
        assert seen == [1, 0, 1, 0, 1]

    at_desk(story)


def test_one_thing_at_a_time_is_done_to_a_log() -> None:
    async def story(desk: Desk) -> None:
        desk.have({"0.log": 100}, attempt())
        desk.seconds[MOVE] = 5.0
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                await desk.care.look(group)
                await asyncio.sleep(1)
            assert desk.taken() == [MOVE]
        assert desk.taken() == ["reopen app-0"]
        assert (await desk.look())[1][0].startswith("move")

    at_desk(story)


def test_a_log_is_rotated_while_an_older_part_is_compressed() -> None:
    async def story(desk: Desk) -> None:
        desk.have({"0.log": 1, OLD: 100, OLDER: 100}, attempt())
        desk.seconds[f"compress {OLDER}"] = 5.0
        async with asyncio.TaskGroup() as group:
            await desk.care.look(group)
            await asyncio.sleep(1)
            assert desk.taken() == [f"compress {OLDER}"]
            desk.have({"0.log": 100, OLD: 100, OLDER: 100, f"{OLDER}.tmp": 1}, attempt())
            await desk.care.look(group)
            await asyncio.sleep(1)
            # What is being compressed is neither removed nor compressed again.
            assert [call.split()[0] for call in desk.taken()] == ["move", "reopen"]
        desk.have({"0.log": 1, OLD: 100, OLDER: 100, f"{OLDER}.tmp": 1}, attempt())
        assert (await desk.look())[1] == [f"remove {OLDER}.tmp", f"compress {OLDER}"]

    at_desk(story)


@pytest.mark.parametrize("workers", [1, 2])
def test_so_many_logs_are_compressed_at_a_time(workers: int) -> None:
    async def story(desk: Desk) -> None:
        desk.records = [
            PodRecord(uid="uid-web", name="web", namespace="ns", containers=(attempt(), attempt(name="db")))
        ]
        desk.logs = {(WEB, name): {"0.log": 1, OLD: 100, OLDER: 100} for name in ("app", "db")}
        desk.seconds[f"compress {OLDER}"] = 5.0
        async with asyncio.TaskGroup() as group:
            await desk.care.look(group)
            await asyncio.sleep(1)
            assert desk.taken() == [f"compress {OLDER}"] * workers
        assert desk.taken() == [f"compress {OLDER}"] * (2 - workers)

    at_desk(story, replace(POLICY, workers=workers))


# When the next look comes.


@pytest.mark.parametrize(
    "first, second, after, pause",
    [
        pytest.param(10, 10, 4, 10, id="a log that does not grow"),
        pytest.param(0, 40, 4, 6, id="a log that grows 10 bytes a second and has 60 left"),
        pytest.param(0, 80, 4, 1, id="a log that is full in a second"),
        pytest.param(0, 99, 4, 1, id="a log that is full before that"),
        pytest.param(0, 4, 4, 10, id="a slow log"),
        pytest.param(100, 20, 4, 10, id="a log that was rotated grew from nothing"),
        pytest.param(100, 40, 4, 6, id="and fast"),
        pytest.param(40, 100, 10, 10, id="a log that is rotated now has all its room again"),
        pytest.param(None, 40, 4, 6, id="a log that is new grew from nothing"),
        pytest.param(0, 40, 0.5, 1, id="a log that grew within half a second"),
        pytest.param(0, 40, 0, 1, id="a log that grew at once"),
    ],
)
def test_the_next_look_comes_before_a_log_is_full(first: int | None, second: int, after: float, pause: float) -> None:
    async def story(desk: Desk) -> None:
        await asyncio.sleep(100)
        desk.have({} if first is None else {"0.log": first}, *([] if first is None else [attempt()]))
        assert (await desk.look())[0] == 1  # the first look knows no pace
        await asyncio.sleep(after)
        desk.have({"0.log": second}, attempt())
        assert (await desk.look())[0] == pytest.approx(pause)

    at_desk(story)


def test_the_pace_of_a_log_is_that_since_the_last_look() -> None:
    async def story(desk: Desk) -> None:
        pauses = []
        for size in (0, 8, 24):
            desk.have({"0.log": size}, attempt())
            pauses.append((await desk.look())[0])
            await asyncio.sleep(2)
        assert pauses == [1, 10, 9.5]

    at_desk(story)


def test_a_log_without_a_writer_needs_no_early_look() -> None:
    async def story(desk: Desk) -> None:
        desk.have({"0.log": 0}, attempt())
        await desk.look()
        await asyncio.sleep(1)
        desk.have({"0.log": 90}, attempt(0, EXITED))
        assert (await desk.look())[0] == 10

    at_desk(story)


def test_the_second_look_does_not_come_later_than_the_interval() -> None:
    async def story(desk: Desk) -> None:
        assert (await desk.look())[0] == 0.5

    at_desk(story, replace(POLICY, interval_seconds=0.5))


def test_looks_follow_each_other_whatever_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def story(desk: Desk) -> None:
        task = asyncio.create_task(desk.care.run())
        for error in (None, TryLater("down"), TryLater("down"), None, TryLater("down"), ZeroDivisionError()):
            desk.failing = {} if error is None else {"list": error}
            await asyncio.sleep(10 if desk.looks else 0.5)
        assert desk.looks == [0, 1, 11, 21, 31, 41]
        assert warnings(caplog) == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    at_desk(story)
