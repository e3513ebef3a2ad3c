"""Image garbage collection step by step: order of calls, boundaries, reports."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from podkeeper.engine.bounded_runtime import BoundedRuntime
from podkeeper.engine.image_gc import ImageGCFailed, ImageGCManager
from podkeeper.engine.image_pull_manager import ImagePullManager
from podkeeper.engine.observer import Observer
from podkeeper.model.errors import RuntimeUnavailable, TryLater
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import ContainerRecord, ImageFsUsage, ImageRecord, PodRecord, RecordState
from podkeeper.rules.images.gc import GcPolicy
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in

POLICY = GcPolicy(high_percent=85, low_percent=80, min_age_seconds=120, max_age_seconds=1000)


def using(uid: str, *images: str) -> PodRecord:
    """Return a pod with a container for each image. An empty name stands for an image that a list does not show."""
    containers = (
        ContainerRecord(id=f"{uid}-{number}", name="c", state=RecordState.RUNNING, image=image)
        for number, image in enumerate(images)
    )
    return PodRecord(uid=uid, containers=tuple(containers))


class Harness:
    """A runtime that records all calls, and its image garbage collection."""

    def __init__(self, policy: GcPolicy = POLICY) -> None:
        self.calls: list[str] = []
        self.failing: dict[str, Exception] = {}
        self.seconds: dict[str, float] = {}  # duration of a call
        self.images = [ImageRecord(id=name, size_bytes=100) for name in ("a", "b", "c")]
        self.pods: list[PodRecord] = []
        self.records: dict[str, PodRecord] = {}
        self.usage: ImageFsUsage | None = usage(50)
        self.recorded: list[PodEvent] = []
        self.listed: list[tuple[frozenset[str], float]] = []
        self.removed: list[str] = []
        self.clock = VirtualClock()
        self.gc = ImageGCManager(
            runtime=stand_in(BoundedRuntime, self),
            clock=self.clock,
            policy=policy,
            record_event=self.recorded.append,
            pinned=("reg.test/pause:1",),
            pull_manager=stand_in(ImagePullManager, self),
            observer=stand_in(Observer, SimpleNamespace(image_removed=self.removed.append)),
        )

    def prune_unknown_records(self, image_ids: Collection[str], listed_at: float) -> None:
        self.listed.append((frozenset(image_ids), listed_at))

    def taken(self) -> list[str]:
        taken, self.calls = self.calls, []
        return taken

    async def aged(self, seconds: float = 120.0) -> None:
        """Wait until all images have been seen and have this age."""
        self.usage, before = usage(0), self.usage
        await self.gc.collect()
        await asyncio.sleep(seconds)
        self.usage = before
        self.calls.clear()
        self.listed.clear()

    async def _call(self, what: str) -> None:
        self.calls.append(what)
        await asyncio.sleep(self.seconds.get(what, 0))
        if what in self.failing:
            raise self.failing[what]

    async def list_images(self) -> Sequence[ImageRecord]:
        await self._call("images")
        return self.images

    async def remove_image(self, reference: str) -> None:
        await self._call(f"remove {reference}")
        self.images = [image for image in self.images if image.id != reference]

    async def image_usage(self) -> ImageFsUsage | None:
        await self._call("usage")
        return self.usage

    async def list_pods(self) -> Sequence[PodRecord]:
        await self._call("pods")
        return self.pods

    async def pod_record(self, uid: PodUID) -> PodRecord:
        await self._call(f"pod {uid}")
        return self.records[uid]


def usage(percent: int, capacity: int = 1000) -> ImageFsUsage:
    return ImageFsUsage(
        mountpoint="/images",
        used_bytes=0,
        capacity_bytes=capacity,
        available_bytes=capacity - capacity * percent // 100,
    )


def too_full_by(size_bytes: int) -> ImageFsUsage:
    """Return the usage of a disk on which at least 100 and at most 300 bytes must be freed."""
    return usage(80 + size_bytes // 20, 2000)


def run_scenario(scenario: Callable[[Harness], Coroutine[Any, Any, None]], policy: GcPolicy = POLICY) -> None:
    async def main() -> None:
        await scenario(Harness(policy))

    simulate(main())


# One run.


@pytest.mark.parametrize(
    "percent, removed",
    [(84, []), (85, ["remove a"]), (90, ["remove a"]), (91, ["remove a", "remove b"])],
)
def test_a_full_disk_is_freed_down_to_the_low_threshold(percent: int, removed: list[str]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.aged()
        harness.usage = usage(percent)
        await harness.gc.collect()
        assert harness.calls == ["images", "pods", "usage", *removed]
        assert (harness.recorded, harness.removed) == ([], ["space"] * len(removed))

    run_scenario(scenario)


def test_an_image_is_removed_for_space_only_after_its_minimum_age() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.aged(119)
        harness.usage = usage(85)
        with pytest.raises(ImageGCFailed):
            await harness.gc.collect()
        assert harness.removed == []
        await asyncio.sleep(1)
        await harness.gc.collect()
        assert harness.removed == ["space"]

    run_scenario(scenario)


def test_a_young_image_does_not_protect_older_ones() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.aged(60)
        harness.images = [ImageRecord(id="0-young", size_bytes=100), *harness.images]
        harness.pods = [using("p", "b")]
        await harness.gc.collect()
        harness.pods = []
        await asyncio.sleep(60)
        harness.usage = usage(95, 2000)
        harness.calls.clear()
        await harness.gc.collect()
        assert harness.calls[3:] == ["remove a", "remove c", "remove b"]  # b was used last

    run_scenario(scenario)


def test_an_image_in_use_stays_even_if_the_list_does_not_name_it() -> None:
    async def scenario(harness: Harness) -> None:
        harness.pods = [using("listed", "a", "a"), using("unlisted", "a", "")]
        harness.records["unlisted"] = using("unlisted", "a", "b")
        await harness.aged()
        harness.usage = too_full_by(300)
        with pytest.raises(ImageGCFailed, match="freed 100 bytes"):
            await harness.gc.collect()
        assert harness.calls == ["images", "pods", "pod unlisted", "usage", "remove c"]

    run_scenario(scenario)


def test_a_container_can_name_its_image_by_id() -> None:
    async def scenario(harness: Harness) -> None:
        made = ContainerRecord(id="c", name="c", state=RecordState.RUNNING, image_id="a")
        harness.pods = [PodRecord(uid="p", containers=(made,))]
        await harness.aged()
        harness.usage = too_full_by(300)
        with pytest.raises(ImageGCFailed, match="freed 200 bytes"):
            await harness.gc.collect()
        assert harness.calls == ["images", "pods", "usage", "remove b", "remove c"]

    run_scenario(scenario)


def test_pinned_images_stay() -> None:
    async def scenario(harness: Harness) -> None:
        harness.images = [ImageRecord(id="a", tags=("reg.test/pause:1",)), ImageRecord(id="b", tags=("reg.test/b:1",))]
        await harness.aged()
        harness.usage = too_full_by(300)
        with pytest.raises(ImageGCFailed):
            await harness.gc.collect()
        assert [image.id for image in harness.images] == ["a"]

    run_scenario(scenario)


def test_all_image_ids_and_the_time_of_the_list_are_passed_on() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.aged(100)
        harness.seconds = {"images": 2.0, "pods": 3.0}
        await harness.gc.collect()
        assert harness.listed == [(frozenset("abc"), 100.0)]

    run_scenario(scenario)


def test_the_age_of_an_image_counts_from_the_end_of_the_first_list() -> None:
    async def scenario(harness: Harness) -> None:
        harness.seconds = {"images": 2.0, "pods": 3.0}
        await harness.gc.collect()  # the images are first seen after 5 seconds
        harness.seconds, harness.usage = {}, too_full_by(300)
        await asyncio.sleep(119)
        with pytest.raises(ImageGCFailed, match="freed 0 bytes"):
            await harness.gc.collect()
        await asyncio.sleep(1)
        await harness.gc.collect()
        assert harness.images == []

    run_scenario(scenario)


# Age.


@pytest.mark.parametrize("seconds, goes", [(1000, False), (1001, True)])
def test_an_image_unused_for_longer_than_the_maximum_age_is_removed(seconds: float, goes: bool) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.aged(seconds)
        harness.pods = [using("p", "c")]
        await harness.gc.collect()
        assert harness.calls == ["images", "pods", *(["remove a", "remove b"] * goes), "usage"]
        assert harness.removed == ["age", "age"] * goes

    run_scenario(scenario)


def test_an_image_removed_for_its_age_is_not_removed_again_for_space() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.aged(1001)
        harness.pods, harness.usage = [using("p", "c")], usage(100)
        with pytest.raises(ImageGCFailed):
            await harness.gc.collect()
        assert harness.calls == ["images", "pods", "remove a", "remove b", "usage"]

    run_scenario(scenario)


# Reports.


def test_a_shortage_is_reported() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.aged()
        harness.pods, harness.usage = [using("p", "b", "c")], usage(100)
        with pytest.raises(ImageGCFailed) as raised:
            await harness.gc.collect()
        assert harness.recorded == [PodEvent(EventType.WARNING, "FreeDiskSpaceFailed", str(raised.value))]
        assert "(100% of 1000 B used)" in str(raised.value)
        assert "(freed 100 bytes)" in str(raised.value)

    run_scenario(scenario)


def test_freeing_exactly_enough_is_enough() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.aged()
        harness.images, harness.usage = harness.images[:1], usage(90)
        await harness.gc.collect()
        assert (harness.recorded, harness.removed) == ([], ["space"])

    run_scenario(scenario)


@pytest.mark.parametrize("available, removed", [(200, []), (199, ["space"])])
def test_one_byte_too_few_is_a_shortage(available: int, removed: list[str]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.aged()
        harness.usage = ImageFsUsage(mountpoint="/images", used_bytes=0, capacity_bytes=1000, available_bytes=available)
        await harness.gc.collect()
        assert harness.removed == removed

    run_scenario(scenario, GcPolicy(high_percent=80, low_percent=80))


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_filesystem_without_capacity_is_reported(capacity: int) -> None:
    async def scenario(harness: Harness) -> None:
        harness.usage = ImageFsUsage(mountpoint="/images", used_bytes=0, capacity_bytes=capacity, available_bytes=0)
        with pytest.raises(ImageGCFailed, match="invalid capacity 0 on image filesystem"):
            await harness.gc.collect()
        text = "invalid capacity 0 on image filesystem"
        assert harness.recorded == [PodEvent(EventType.WARNING, "InvalidDiskCapacity", text)]

    run_scenario(scenario)


def test_a_filesystem_with_a_capacity_of_one_byte_is_valid() -> None:
    async def scenario(harness: Harness) -> None:
        harness.usage = ImageFsUsage(mountpoint="/images", used_bytes=0, capacity_bytes=1, available_bytes=1)
        await harness.gc.collect()
        assert harness.recorded == []

    run_scenario(scenario)


def test_a_runtime_without_filesystem_usage_frees_no_space() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.aged()
        harness.usage = None
        await harness.gc.collect()
        assert (harness.calls, harness.recorded) == (["images", "pods", "usage"], [])

    run_scenario(scenario)


def test_an_image_that_cannot_be_removed_is_not_counted_as_freed() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.aged()
        harness.failing = {f"remove {name}": RuntimeUnavailable(f"{name} is busy") for name in "ab"}
        text = r"cannot remove some unused images, freed 100 bytes: \[a is busy, b is busy\]"
        harness.usage = too_full_by(300)
        with pytest.raises(ImageGCFailed, match=text):
            await harness.gc.collect()
        harness.failing, harness.usage = {}, too_full_by(200)
        await harness.gc.collect()
        assert (harness.images, harness.removed) == ([], ["space"] * 3)

    run_scenario(scenario)


def test_only_one_collection_runs_at_a_time() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.aged()
        harness.usage, harness.seconds = usage(90), {"remove a": 5.0}
        async with asyncio.TaskGroup() as group:
            group.create_task(harness.gc.collect())
            await asyncio.sleep(1)
            group.create_task(harness.gc.collect())
            await asyncio.sleep(1)
            assert harness.taken() == ["images", "pods", "usage", "remove a"]
        assert harness.taken() == ["images", "pods", "usage", "remove b"]
        async with asyncio.TaskGroup() as group:
            harness.seconds, harness.usage = {"images": 5.0}, None
            group.create_task(harness.gc.collect())
            await asyncio.sleep(1)
            group.create_task(harness.gc.collect())
            await asyncio.sleep(1)
            assert harness.taken() == ["images"]

    run_scenario(scenario)


# Runs.


def test_a_failure_is_reported_from_the_second_in_a_row_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness) -> None:
        task = asyncio.create_task(harness.gc.run())
        seen: list[list[str]] = []
        for error in (
            TryLater("no answer"),
            TryLater("no answer"),
            None,
            TryLater("no answer"),
            ZeroDivisionError(),
            TryLater("late"),
        ):
            harness.failing = {} if error is None else {"usage": error}
            await asyncio.sleep(300 if seen else 1)
            seen.append([event.message for event in harness.recorded])
            harness.recorded.clear()
        assert seen == [[], ["no answer"], [], [], [], ["late"]]
        assert harness.calls.count("images") == 6
        assert sum(line.levelno == logging.ERROR for line in caplog.records) == 3
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_scenario(scenario)


def test_ages_count_from_the_start_of_run() -> None:
    async def scenario(harness: Harness) -> None:
        await asyncio.sleep(500)
        task = asyncio.create_task(harness.gc.run())
        await asyncio.sleep(901)
        assert harness.removed == []
        await asyncio.sleep(300)
        assert harness.removed == ["age"] * 3
        task.cancel()
        await asyncio.wait({task})

    run_scenario(scenario)


def test_run_returns_at_once_with_an_idle_policy() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.gc.run()
        assert harness.calls == []

    run_scenario(scenario, GcPolicy(high_percent=100))
