"""Image garbage collection step by step: calls in order, boundaries, and what is reported."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

import pytest

from podkeeper.engine.image_care import GcFailed, ImageCare
from podkeeper.model.errors import RuntimeUnavailable, TryLater
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import ContainerRecord, ContainerState, ImageFsUsage, ImageRecord, PodRecord
from podkeeper.rules.image_gc import GcPolicy
from podkeeper.testing.virtual_time import VirtualClock, simulate

POLICY = GcPolicy(high_percent=85, low_percent=80, min_age_seconds=120, max_age_seconds=1000)


def using(uid: str, *images: str) -> PodRecord:
    """A pod with a container for each image; an empty name is one that a listing does not give."""
    containers = (
        ContainerRecord(id=f"{uid}-{number}", name="c", state=ContainerState.RUNNING, image=image)
        for number, image in enumerate(images)
    )
    return PodRecord(uid=uid, containers=tuple(containers))


class Desk:
    """A runtime that notes all calls, and the care for its images."""

    def __init__(self, policy: GcPolicy = POLICY) -> None:
        self.calls: list[str] = []
        self.failing: dict[str, Exception] = {}
        self.seconds: dict[str, float] = {}  # that a call takes
        self.images = [ImageRecord(id=name, size_bytes=100) for name in ("a", "b", "c")]
        self.pods: list[PodRecord] = []
        self.records: dict[str, PodRecord] = {}
        self.usage: ImageFsUsage | None = usage(50)
        self.told: list[PodEvent] = []
        self.left: list[tuple[frozenset[str], float]] = []
        self.removed: list[str] = []
        self.clock = VirtualClock()
        self.care = ImageCare(
            runtime=self,
            clock=self.clock,
            policy=policy,
            tell=self.told.append,
            kept=("reg.test/pause:1",),
            left=self.note_left,
            removed=self.removed.append,
        )

    def note_left(self, ids: Collection[str], at: float) -> None:
        self.left.append((frozenset(ids), at))

    def taken(self) -> list[str]:
        taken, self.calls = self.calls, []
        return taken

    async def aged(self, seconds: float = 120.0) -> None:
        """Let all images be seen, and be so old."""
        self.usage, before = usage(0), self.usage
        await self.care.collect()
        await asyncio.sleep(seconds)
        self.usage = before
        self.calls.clear()
        self.left.clear()

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


def at_desk(story: Callable[[Desk], Coroutine[Any, Any, None]], policy: GcPolicy = POLICY) -> None:
    async def played() -> None:
        await story(Desk(policy))

    simulate(played())


# One round.


@pytest.mark.parametrize(
    "percent, removed",
    [(84, []), (85, ["remove a"]), (90, ["remove a"]), (91, ["remove a", "remove b"])],
)
def test_a_full_disk_is_freed_down_to_the_low_threshold(percent: int, removed: list[str]) -> None:
    async def story(desk: Desk) -> None:
        await desk.aged()
        desk.usage = usage(percent)
        await desk.care.collect()
        assert desk.calls == ["images", "pods", "usage", *removed]
        assert (desk.told, desk.removed) == ([], ["space"] * len(removed))

    at_desk(story)


def test_an_image_goes_for_space_only_once_it_is_old_enough() -> None:
    async def story(desk: Desk) -> None:
        await desk.aged(119)
        desk.usage = usage(85)
        with pytest.raises(GcFailed):
            await desk.care.collect()
        assert desk.removed == []
        await asyncio.sleep(1)
        await desk.care.collect()
        assert desk.removed == ["space"]

    at_desk(story)


def test_a_young_image_keeps_no_older_one_from_going() -> None:
    async def story(desk: Desk) -> None:
        await desk.aged(60)
        desk.images = [ImageRecord(id="0-young", size_bytes=100), *desk.images]
        desk.pods = [using("p", "b")]
        await desk.care.collect()
        desk.pods = []
        await asyncio.sleep(60)
        desk.usage = usage(95, 2000)
        desk.calls.clear()
        await desk.care.collect()
        assert desk.calls[3:] == ["remove a", "remove c", "remove b"]  # b was used last

    at_desk(story)


def test_what_a_container_uses_stays_even_if_a_listing_does_not_name_it() -> None:
    async def story(desk: Desk) -> None:
        desk.pods = [using("said", "a", "a"), using("silent", "a", "")]
        desk.records["silent"] = using("silent", "a", "b")
        await desk.aged()
        assert await desk.care.delete_unused() == 100
        assert desk.calls == ["images", "pods", "pod silent", "remove c"]

    at_desk(story)


def test_a_container_may_name_its_image_by_id() -> None:
    async def story(desk: Desk) -> None:
        made = ContainerRecord(id="c", name="c", state=ContainerState.RUNNING, image_id="a")
        desk.pods = [PodRecord(uid="p", containers=(made,))]
        await desk.aged()
        await desk.care.delete_unused()
        assert desk.calls == ["images", "pods", "remove b", "remove c"]

    at_desk(story)


def test_images_that_are_kept_by_name_stay() -> None:
    async def story(desk: Desk) -> None:
        desk.images = [ImageRecord(id="a", tags=("reg.test/pause:1",)), ImageRecord(id="b", tags=("reg.test/b:1",))]
        await desk.aged()
        await desk.care.delete_unused()
        assert [image.id for image in desk.images] == ["a"]

    at_desk(story)


def test_all_images_that_there_are_and_the_time_of_the_list_are_passed_on() -> None:
    async def story(desk: Desk) -> None:
        await desk.aged(100)
        desk.seconds = {"images": 2.0, "pods": 3.0}
        await desk.care.collect()
        assert desk.left == [(frozenset("abc"), 100.0)]

    at_desk(story)


def test_an_image_whose_age_is_known_after_the_pods_are_listed_is_as_old_as_the_list() -> None:
    async def story(desk: Desk) -> None:
        desk.seconds = {"images": 2.0, "pods": 3.0}
        await desk.care.delete_unused()  # the images are first seen after 5 seconds
        desk.seconds = {}
        await asyncio.sleep(119)
        assert await desk.care.delete_unused() == 0
        await asyncio.sleep(1)
        assert await desk.care.delete_unused() == 300

    at_desk(story)


# Age.


@pytest.mark.parametrize("seconds, goes", [(1000, False), (1001, True)])
def test_an_image_that_was_unused_for_too_long_is_removed(seconds: float, goes: bool) -> None:
    async def story(desk: Desk) -> None:
        await desk.aged(seconds)
        desk.pods = [using("p", "c")]
        await desk.care.collect()
        assert desk.calls == ["images", "pods", *(["remove a", "remove b"] * goes), "usage"]
        assert desk.removed == ["age", "age"] * goes

    at_desk(story)


def test_what_goes_for_its_age_is_not_removed_again_for_space() -> None:
    async def story(desk: Desk) -> None:
        await desk.aged(1001)
        desk.pods, desk.usage = [using("p", "c")], usage(100)
        with pytest.raises(GcFailed):
            await desk.care.collect()
        assert desk.calls == ["images", "pods", "remove a", "remove b", "usage"]

    at_desk(story)


# What is reported.


def test_a_shortage_is_reported() -> None:
    async def story(desk: Desk) -> None:
        await desk.aged()
        desk.pods, desk.usage = [using("p", "b", "c")], usage(100)
        with pytest.raises(GcFailed) as raised:
            await desk.care.collect()
        assert desk.told == [PodEvent(EventType.WARNING, "FreeDiskSpaceFailed", str(raised.value))]
        assert "(100% of 1000 B used)" in str(raised.value)
        assert "(freed 100 bytes)" in str(raised.value)

    at_desk(story)


def test_freeing_exactly_enough_is_enough() -> None:
    async def story(desk: Desk) -> None:
        await desk.aged()
        desk.images, desk.usage = desk.images[:1], usage(90)
        await desk.care.collect()
        assert (desk.told, desk.removed) == ([], ["space"])

    at_desk(story)


@pytest.mark.parametrize("available, removed", [(200, []), (199, ["space"])])
def test_one_byte_too_few_is_a_shortage(available: int, removed: list[str]) -> None:
    async def story(desk: Desk) -> None:
        await desk.aged()
        desk.usage = ImageFsUsage(mountpoint="/images", used_bytes=0, capacity_bytes=1000, available_bytes=available)
        await desk.care.collect()
        assert desk.removed == removed

    at_desk(story, GcPolicy(high_percent=80, low_percent=80))


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_disk_without_a_size_is_reported(capacity: int) -> None:
    async def story(desk: Desk) -> None:
        desk.usage = ImageFsUsage(mountpoint="/images", used_bytes=0, capacity_bytes=capacity, available_bytes=0)
        with pytest.raises(GcFailed, match="invalid capacity 0 on image filesystem"):
            await desk.care.collect()
        text = "invalid capacity 0 on image filesystem"
        assert desk.told == [PodEvent(EventType.WARNING, "InvalidDiskCapacity", text)]

    at_desk(story)


def test_a_disk_of_one_byte_has_a_size() -> None:
    async def story(desk: Desk) -> None:
        desk.usage = ImageFsUsage(mountpoint="/images", used_bytes=0, capacity_bytes=1, available_bytes=1)
        await desk.care.collect()
        assert desk.told == []

    at_desk(story)


def test_a_runtime_that_does_not_measure_its_disk_is_left_alone() -> None:
    async def story(desk: Desk) -> None:
        await desk.aged()
        desk.usage = None
        await desk.care.collect()
        assert (desk.calls, desk.told) == (["images", "pods", "usage"], [])

    at_desk(story)


def test_an_image_that_cannot_be_removed_is_named_and_is_not_counted_as_freed() -> None:
    async def story(desk: Desk) -> None:
        await desk.aged()
        desk.failing = {f"remove {name}": RuntimeUnavailable(f"{name} is busy") for name in "ab"}
        text = r"cannot remove all images that should go, 100 bytes are freed: \[a is busy, b is busy\]"
        with pytest.raises(GcFailed, match=text):
            await desk.care.delete_unused()
        desk.failing = {}
        assert await desk.care.delete_unused() == 200

    at_desk(story)


def test_one_collection_at_a_time() -> None:
    async def story(desk: Desk) -> None:
        await desk.aged()
        desk.usage, desk.seconds = usage(90), {"remove a": 5.0}
        async with asyncio.TaskGroup() as group:
            group.create_task(desk.care.collect())
            await asyncio.sleep(1)
            group.create_task(desk.care.delete_unused())
            await asyncio.sleep(1)
            assert desk.taken() == ["images", "pods", "usage", "remove a"]
        assert desk.taken() == ["images", "pods", "remove b", "remove c"]
        async with asyncio.TaskGroup() as group:
            desk.seconds, desk.usage = {"images": 5.0}, None
            group.create_task(desk.care.delete_unused())
            await asyncio.sleep(1)
            group.create_task(desk.care.collect())
            await asyncio.sleep(1)
            assert desk.taken() == ["images"]

    at_desk(story)


# Rounds.


def test_a_failure_is_reported_from_the_second_in_a_row_on(caplog: pytest.LogCaptureFixture) -> None:
    async def story(desk: Desk) -> None:
        task = asyncio.create_task(desk.care.run())
        seen: list[list[str]] = []
        for error in (
            TryLater("no answer"),
            TryLater("no answer"),
            None,
            TryLater("no answer"),
            ZeroDivisionError(),
            TryLater("late"),
        ):
            desk.failing = {} if error is None else {"usage": error}
            await asyncio.sleep(300 if seen else 1)
            seen.append([event.message for event in desk.told])
            desk.told.clear()
        assert seen == [[], ["no answer"], [], [], [], ["late"]]
        assert desk.calls.count("images") == 6
        assert sum(line.levelno == logging.ERROR for line in caplog.records) == 3
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    at_desk(story)


def test_ages_count_from_when_the_care_begins() -> None:
    async def story(desk: Desk) -> None:
        await asyncio.sleep(500)
        task = asyncio.create_task(desk.care.run())
        await asyncio.sleep(901)
        assert desk.removed == []
        await asyncio.sleep(300)
        assert desk.removed == ["age"] * 3
        task.cancel()
        await asyncio.wait({task})

    at_desk(story)


def test_a_policy_that_never_removes_anything_makes_no_rounds() -> None:
    async def story(desk: Desk) -> None:
        await desk.care.run()
        assert desk.calls == []

    at_desk(story, GcPolicy(high_percent=100))
