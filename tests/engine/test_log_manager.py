"""The log manager with real files and a runtime that only writes: what is rotated, removed and kept."""

import asyncio
import gzip
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from podkeeper.engine.bounded_runtime import BoundedRuntime
from podkeeper.engine.log_manager import ContainerLogManager
from podkeeper.host.clock import SystemClock
from podkeeper.host.log_files import HostLogFiles
from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.rules.logs.rotation import RotationPolicy, parts_of
from tests.doubles import stand_in

RUNNING, EXITED = RecordState.RUNNING, RecordState.EXITED
SMALL = RotationPolicy(max_bytes=100, max_files=3, interval_seconds=0.01)


class Writers:
    """A runtime whose containers keep their log open, as in all runtimes. Pod and container have the same name."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.records: dict[str, tuple[ContainerRecord, ...]] = {}
        self._open: dict[str, int] = {}
        self.reopened: list[str] = []
        self.error_of: Callable[[str], Exception | None] = lambda _: None
        self.late_error: Exception | None = None
        self.is_down = False

    def start(self, name: str, attempt: int = 0) -> Path:
        """Start an attempt of a container. Earlier attempts have exited."""
        before = tuple(self._with(each, EXITED) for each in self.records.get(name, ()))
        record = ContainerRecord(id=f"{name}-{attempt}", name=name, state=RUNNING, restart_count=attempt)
        self.records[name] = (record, *before)
        self._reopen(record.id)
        return self.path(record.id)

    def exit(self, name: str) -> None:
        self.records[name] = tuple(self._with(each, EXITED) for each in self.records[name])

    def write(self, container_id: str, text: bytes) -> None:
        os.write(self._open[container_id], text)

    def path(self, container_id: str) -> Path:
        name, _, attempt = container_id.rpartition("-")
        return self._root / f"default_{name}_uid-{name}" / name / f"{attempt}.log"

    def close(self) -> None:
        for file in self._open.values():
            os.close(file)

    async def list_pods(self) -> list[PodRecord]:
        if self.is_down:
            raise RuntimeUnavailable("cannot list pods: it is down")
        return [
            PodRecord(uid=f"uid-{name}", name=name, namespace="default", containers=containers)
            for name, containers in self.records.items()
        ]

    async def reopen_log(self, container_id: str) -> None:
        self.reopened.append(container_id)
        if (error := self.error_of(container_id)) is not None:
            raise error
        self._reopen(container_id)
        if self.late_error is not None:
            raise self.late_error

    def _reopen(self, container_id: str) -> None:
        path = self.path(container_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        if container_id in self._open:
            os.close(self._open[container_id])
        self._open[container_id] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)

    @staticmethod
    def _with(record: ContainerRecord, state: RecordState) -> ContainerRecord:
        return ContainerRecord(id=record.id, name=record.name, state=state, restart_count=record.restart_count)


class Harness:
    """A log manager, its log tree and its runtime."""

    def __init__(self, root: Path, policy: RotationPolicy) -> None:
        self.root = root
        self.runtime = Writers(root)
        self.gone: set[str] = set()
        self.manager = ContainerLogManager(
            runtime=stand_in(BoundedRuntime, self.runtime),
            files=HostLogFiles(root),
            clock=SystemClock(),
            policy=policy,
            is_removed=lambda uid: uid in self.gone,
        )

    async def run_once(self) -> float:
        """Run once and wait until all work has ended."""
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            return await self.manager.rotate_logs(group)


def run_scenario(scenario: Callable[[Harness], Awaitable[None]], root: Path, policy: RotationPolicy = SMALL) -> None:
    async def main() -> None:
        harness = Harness(root, policy)
        try:
            await scenario(harness)
        finally:
            harness.runtime.close()

    asyncio.run(main())


def content(path: Path) -> bytes:
    """Return the content of a log, oldest part first."""
    parts = parts_of(path.name, os.listdir(path.parent)).values()
    return b"".join(map(_read, [*(path.with_name(name) for name in parts), path]))


def _read(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def suffixes(path: Path) -> list[str]:
    """Return the suffixes of the parts of a log, oldest first, without time stamps."""
    return [
        Path(name).suffix if name.endswith(".gz") else "plain"
        for name in parts_of(path.name, os.listdir(path.parent)).values()
    ]


# ---- rotation ----


def test_a_full_log_is_rotated_without_losing_lines(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        path = harness.runtime.start("web")
        harness.runtime.write("web-0", b"1" * 100)
        await harness.run_once()
        assert (suffixes(path), path.read_bytes()) == (["plain"], b"")
        harness.runtime.write("web-0", b"2" * 99)
        await harness.run_once()
        assert (suffixes(path), path.read_bytes()) == (["plain"], b"2" * 99)
        harness.runtime.write("web-0", b"3")
        await harness.run_once()
        assert suffixes(path) == [".gz", "plain"]
        harness.runtime.write("web-0", b"4" * 100)
        await harness.run_once()
        assert suffixes(path) == [".gz", "plain"]  # three files with the current one, as configured
        assert content(path) == b"2" * 99 + b"3" + b"4" * 100
        assert len(os.listdir(path.parent)) == 3

    run_scenario(scenario, tmp_path)


def test_the_log_of_an_exited_container_is_not_changed(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        path = harness.runtime.start("web")
        harness.runtime.write("web-0", b"1" * 1000)
        for part in ("0.log.20261115-100001.gz", "0.log.20261115-100002"):
            path.with_name(part).write_bytes(b"")
        before = sorted(os.listdir(path.parent))
        harness.runtime.exit("web")
        await harness.run_once()
        assert (sorted(os.listdir(path.parent)), harness.runtime.reopened) == (before, [])

    run_scenario(scenario, tmp_path)


REOPEN_ERRORS = {
    "an older keeper that does not support it": RuntimeRefused("reopen_log is not supported"),
    "a runtime that does not answer": CallTimedOut("cannot reopen_log in pod web: no answer"),
    "a runtime that is down": RuntimeUnavailable("cannot reach the keeper"),
}


@pytest.mark.parametrize("error", REOPEN_ERRORS.values(), ids=REOPEN_ERRORS.keys())
def test_a_log_that_cannot_be_reopened_stays_in_place(tmp_path: Path, error: Exception) -> None:
    async def scenario(harness: Harness) -> None:
        path, other = harness.runtime.start("web"), harness.runtime.start("other")
        harness.runtime.error_of = lambda container: error if container == "web-0" else None
        for container in ("web-0", "other-0"):
            harness.runtime.write(container, b"1" * 100)
        for _ in range(3):
            await harness.run_once()
            assert os.listdir(path.parent) == ["0.log"]
        harness.runtime.write("web-0", b"2")
        assert content(path) == b"1" * 100 + b"2"
        assert suffixes(other) == ["plain"]
        harness.runtime.error_of = lambda _: None
        await harness.run_once()
        assert (suffixes(path), content(path)) == (["plain"], b"1" * 100 + b"2")

    run_scenario(scenario, tmp_path)


def test_no_line_is_lost_if_the_answer_of_reopen_is_lost(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        path = harness.runtime.start("web")
        harness.runtime.write("web-0", b"1" * 100)
        harness.runtime.late_error = CallTimedOut("connection lost")
        await harness.run_once()
        harness.runtime.write("web-0", b"2")
        assert (suffixes(path), path.read_bytes()) == (["plain"], b"2")
        assert content(path) == b"1" * 100 + b"2"

    run_scenario(scenario, tmp_path)


def test_a_rotation_interrupted_by_a_crash_is_continued(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        path = harness.runtime.start("web")
        harness.runtime.write("web-0", b"1" * 100)
        path.rename(path.with_name("0.log.20261115-100001"))  # the agent crashed here
        harness.runtime.write("web-0", b"2")
        path.with_name("0.log.20261115-100000").write_bytes(b"0")
        path.with_name("0.log.20261115-100000.tmp").write_bytes(b"half of it")
        await harness.run_once()
        await harness.run_once()
        harness.runtime.write("web-0", b"3")
        assert (suffixes(path), path.read_bytes()) == ([".gz", "plain"], b"3")
        assert content(path) == b"0" + b"1" * 100 + b"23"
        assert len(os.listdir(path.parent)) == 3

    run_scenario(scenario, tmp_path)


def test_a_deleted_log_is_reopened(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        path = harness.runtime.start("web")
        path.unlink()
        await harness.run_once()
        harness.runtime.write("web-0", b"here")
        assert path.read_bytes() == b"here"

    run_scenario(scenario, tmp_path)


def test_a_fast_growing_log_is_checked_earlier(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.start("web")
        assert await harness.run_once() == 1  # one run does not show how fast a log grows
        assert await harness.run_once() == 100
        harness.runtime.write("web-0", b"1" * 500)
        assert await harness.run_once() == 1
        harness.runtime.write("web-0", b"1" * 10_000)  # it is rotated now and may grow as fast again
        assert await harness.run_once() == 1

    run_scenario(scenario, tmp_path, RotationPolicy(max_bytes=1000, interval_seconds=100))


def test_a_failed_run_is_retried(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        path = harness.runtime.start("web")
        harness.runtime.write("web-0", b"1" * 100)
        harness.runtime.is_down = True
        running = asyncio.create_task(harness.manager.run())
        await asyncio.sleep(0.1)
        assert os.listdir(path.parent) == ["0.log"]
        harness.runtime.is_down = False
        async with asyncio.timeout(10):
            while suffixes(path) != ["plain"]:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})

    run_scenario(scenario, tmp_path)


# ---- removal ----


def test_the_logs_of_removed_attempts_are_removed(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        paths = [harness.runtime.start("web", attempt) for attempt in range(4)]
        paths[0].with_name("0.log.20261115-100000.gz").write_bytes(b"")
        harness.runtime.records["web"] = harness.runtime.records["web"][:2]
        await harness.run_once()
        assert sorted(os.listdir(paths[0].parent)) == ["2.log", "3.log"]

    run_scenario(scenario, tmp_path)


def test_the_log_of_a_container_lost_by_the_runtime_stays(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        path = harness.runtime.start("web", 3)
        harness.runtime.records["web"] = ()
        await harness.run_once()
        assert os.listdir(path.parent) == ["3.log"]

    run_scenario(scenario, tmp_path)


def test_only_the_directory_of_a_removed_pod_is_removed(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        gone, kept, running = (harness.runtime.start(name) for name in ("gone", "kept", "running"))
        del harness.runtime.records["gone"], harness.runtime.records["kept"]
        harness.gone = {"uid-gone", "uid-running", "x", "lost+found", ""}
        for name in ("x", "lost+found", "_", "a_b_c_x", "a_b_"):
            (tmp_path / name).mkdir()
        (tmp_path / ".gone-1").mkdir()  # from an earlier agent
        await harness.run_once()
        assert set(os.listdir(tmp_path)) == {
            *(path.parent.parent.name for path in (kept, running)),
            *("x", "lost+found", "_", "a_b_c_x", "a_b_"),
        }
        assert not gone.exists()

    run_scenario(scenario, tmp_path)


def test_nothing_is_removed_while_the_runtime_is_down(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        path = harness.runtime.start("web")
        harness.gone = {"uid-web"}
        harness.runtime.is_down = True
        with pytest.raises(ExceptionGroup):
            await harness.run_once()
        assert path.exists()
        harness.runtime.is_down = False
        del harness.runtime.records["web"]
        await harness.run_once()
        assert not path.exists()

    run_scenario(scenario, tmp_path)
