"""The care for logs, with real files and a runtime that only writes: what is rotated, what goes, and what stays."""

import asyncio
import gzip
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from podkeeper.engine.log_care import LogCare
from podkeeper.host.clock import SystemClock
from podkeeper.host.log_files import HostLogFiles
from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord
from podkeeper.rules.log_rotation import Policy, parts_of

RUNNING, EXITED = ContainerState.RUNNING, ContainerState.EXITED
SMALL = Policy(max_bytes=100, max_files=3, interval_seconds=0.01)


class Writers:
    """A runtime whose containers hold their log open, as all runtimes do. Pod and container are named alike."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.records: dict[str, tuple[ContainerRecord, ...]] = {}
        self._open: dict[str, int] = {}
        self.reopened: list[str] = []
        self.trouble: Callable[[str], Exception | None] = lambda _: None
        self.late_trouble: Exception | None = None
        self.is_down = False

    def start(self, name: str, attempt: int = 0) -> Path:
        """Let a container run, after those that ended before it."""
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
        if (error := self.trouble(container_id)) is not None:
            raise error
        self._reopen(container_id)
        if self.late_trouble is not None:
            raise self.late_trouble

    def _reopen(self, container_id: str) -> None:
        path = self.path(container_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        if container_id in self._open:
            os.close(self._open[container_id])
        self._open[container_id] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)

    @staticmethod
    def _with(record: ContainerRecord, state: ContainerState) -> ContainerRecord:
        return ContainerRecord(id=record.id, name=record.name, state=state, restart_count=record.restart_count)


class House:
    """A care, its tree and its runtime."""

    def __init__(self, root: Path, policy: Policy) -> None:
        self.root = root
        self.runtime = Writers(root)
        self.gone: set[str] = set()
        self.care = LogCare(
            runtime=self.runtime,
            files=HostLogFiles(root),
            clock=SystemClock(),
            policy=policy,
            is_gone=lambda uid: uid in self.gone,
        )

    async def look(self) -> float:
        """Look once, and let everything that was begun come to its end."""
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            return await self.care.look(group)


def live(scenario: Callable[[House], Awaitable[None]], root: Path, policy: Policy = SMALL) -> None:
    async def life() -> None:
        house = House(root, policy)
        try:
            await scenario(house)
        finally:
            house.runtime.close()

    asyncio.run(life())


def content(path: Path) -> bytes:
    """A log from its oldest part on."""
    parts = parts_of(path.name, os.listdir(path.parent)).values()
    return b"".join(map(_read, [*(path.with_name(name) for name in parts), path]))


def _read(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def endings(path: Path) -> list[str]:
    """What a log consists of, oldest first, without the stamps."""
    return [
        Path(name).suffix if name.endswith(".gz") else "plain"
        for name in parts_of(path.name, os.listdir(path.parent)).values()
    ]


# ---- rotation ----


def test_a_full_log_is_rotated_and_goes_on(tmp_path: Path) -> None:
    async def scenario(it: House) -> None:
        path = it.runtime.start("web")
        it.runtime.write("web-0", b"1" * 100)
        await it.look()
        assert (endings(path), path.read_bytes()) == (["plain"], b"")
        it.runtime.write("web-0", b"2" * 99)
        await it.look()
        assert (endings(path), path.read_bytes()) == (["plain"], b"2" * 99)
        it.runtime.write("web-0", b"3")
        await it.look()
        assert endings(path) == [".gz", "plain"]
        it.runtime.write("web-0", b"4" * 100)
        await it.look()
        assert endings(path) == [".gz", "plain"]  # with the one that is written now three files, as allowed
        assert content(path) == b"2" * 99 + b"3" + b"4" * 100
        assert len(os.listdir(path.parent)) == 3

    live(scenario, tmp_path)


def test_a_container_that_has_ended_keeps_its_log_as_it_is(tmp_path: Path) -> None:
    async def scenario(it: House) -> None:
        path = it.runtime.start("web")
        it.runtime.write("web-0", b"1" * 1000)
        for part in ("0.log.20261115-100001.gz", "0.log.20261115-100002"):
            path.with_name(part).write_bytes(b"")
        before = sorted(os.listdir(path.parent))
        it.runtime.exit("web")
        await it.look()
        assert (sorted(os.listdir(path.parent)), it.runtime.reopened) == (before, [])

    live(scenario, tmp_path)


TROUBLES = {
    "a keeper of another age that does not know how": RuntimeRefused("nobody here knows how to reopen_log"),
    "one that does not answer": CallTimedOut("cannot reopen_log in pod web: no answer"),
    "one that is gone": RuntimeUnavailable("cannot reach the keeper"),
}


@pytest.mark.parametrize("error", TROUBLES.values(), ids=TROUBLES.keys())
def test_a_runtime_that_cannot_reopen_a_log_is_not_left_without(tmp_path: Path, error: Exception) -> None:
    async def scenario(it: House) -> None:
        path, other = it.runtime.start("web"), it.runtime.start("other")
        it.runtime.trouble = lambda container: error if container == "web-0" else None
        for container in ("web-0", "other-0"):
            it.runtime.write(container, b"1" * 100)
        for _ in range(3):
            await it.look()
            assert os.listdir(path.parent) == ["0.log"]
        it.runtime.write("web-0", b"2")
        assert content(path) == b"1" * 100 + b"2"
        assert endings(other) == ["plain"]
        it.runtime.trouble = lambda _: None
        await it.look()
        assert (endings(path), content(path)) == (["plain"], b"1" * 100 + b"2")

    live(scenario, tmp_path)


def test_a_runtime_that_reopened_a_log_and_did_not_say_so_loses_nothing(tmp_path: Path) -> None:
    async def scenario(it: House) -> None:
        path = it.runtime.start("web")
        it.runtime.write("web-0", b"1" * 100)
        it.runtime.late_trouble = CallTimedOut("cannot tell")
        await it.look()
        it.runtime.write("web-0", b"2")
        assert (endings(path), path.read_bytes()) == (["plain"], b"2")
        assert content(path) == b"1" * 100 + b"2"

    live(scenario, tmp_path)


def test_who_was_killed_between_two_steps_is_gone_on_for(tmp_path: Path) -> None:
    async def scenario(it: House) -> None:
        path = it.runtime.start("web")
        it.runtime.write("web-0", b"1" * 100)
        path.rename(path.with_name("0.log.20261115-100001"))  # and there the agent died
        it.runtime.write("web-0", b"2")
        path.with_name("0.log.20261115-100000").write_bytes(b"0")
        path.with_name("0.log.20261115-100000.tmp").write_bytes(b"half of it")
        await it.look()
        await it.look()
        it.runtime.write("web-0", b"3")
        assert (endings(path), path.read_bytes()) == ([".gz", "plain"], b"3")
        assert content(path) == b"0" + b"1" * 100 + b"23"
        assert len(os.listdir(path.parent)) == 3

    live(scenario, tmp_path)


def test_a_log_that_somebody_deleted_is_begun_anew(tmp_path: Path) -> None:
    async def scenario(it: House) -> None:
        path = it.runtime.start("web")
        path.unlink()
        await it.look()
        it.runtime.write("web-0", b"here")
        assert path.read_bytes() == b"here"

    live(scenario, tmp_path)


def test_a_log_that_grows_fast_is_looked_at_again_in_time(tmp_path: Path) -> None:
    async def scenario(it: House) -> None:
        it.runtime.start("web")
        assert await it.look() == 1  # the first look tells no pace
        assert await it.look() == 100
        it.runtime.write("web-0", b"1" * 500)
        assert await it.look() == 1
        it.runtime.write("web-0", b"1" * 10_000)  # it is rotated now, and may come again as fast
        assert await it.look() == 1

    live(scenario, tmp_path, Policy(max_bytes=1000, interval_seconds=100))


def test_a_round_that_fails_is_made_again(tmp_path: Path) -> None:
    async def scenario(it: House) -> None:
        path = it.runtime.start("web")
        it.runtime.write("web-0", b"1" * 100)
        it.runtime.is_down = True
        running = asyncio.create_task(it.care.run())
        await asyncio.sleep(0.1)
        assert os.listdir(path.parent) == ["0.log"]
        it.runtime.is_down = False
        async with asyncio.timeout(10):
            while endings(path) != ["plain"]:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})

    live(scenario, tmp_path)


# ---- removal ----


def test_with_a_container_its_log_goes(tmp_path: Path) -> None:
    async def scenario(it: House) -> None:
        paths = [it.runtime.start("web", attempt) for attempt in range(4)]
        paths[0].with_name("0.log.20261115-100000.gz").write_bytes(b"")
        it.runtime.records["web"] = it.runtime.records["web"][:2]
        await it.look()
        assert sorted(os.listdir(paths[0].parent)) == ["2.log", "3.log"]

    live(scenario, tmp_path)


def test_a_container_that_the_runtime_has_lost_leaves_its_log(tmp_path: Path) -> None:
    async def scenario(it: House) -> None:
        path = it.runtime.start("web", 3)
        it.runtime.records["web"] = ()
        await it.look()
        assert os.listdir(path.parent) == ["3.log"]

    live(scenario, tmp_path)


def test_with_a_pod_its_directory_goes_and_no_other(tmp_path: Path) -> None:
    async def scenario(it: House) -> None:
        gone, kept, running = (it.runtime.start(name) for name in ("gone", "kept", "running"))
        del it.runtime.records["gone"], it.runtime.records["kept"]
        it.gone = {"uid-gone", "uid-running", "x", "lost+found", ""}
        for name in ("x", "lost+found", "_", "a_b_c_x", "a_b_"):
            (tmp_path / name).mkdir()
        (tmp_path / ".gone-1").mkdir()  # from a former life
        await it.look()
        assert set(os.listdir(tmp_path)) == {
            *(path.parent.parent.name for path in (kept, running)),
            *("x", "lost+found", "_", "a_b_c_x", "a_b_"),
        }
        assert not gone.exists()

    live(scenario, tmp_path)


def test_while_the_runtime_is_silent_nothing_goes(tmp_path: Path) -> None:
    async def scenario(it: House) -> None:
        path = it.runtime.start("web")
        it.gone = {"uid-web"}
        it.runtime.is_down = True
        with pytest.raises(ExceptionGroup):
            await it.look()
        assert path.exists()
        it.runtime.is_down = False
        del it.runtime.records["web"]
        await it.look()
        assert not path.exists()

    live(scenario, tmp_path)
