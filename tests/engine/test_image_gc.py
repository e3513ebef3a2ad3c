"""Image garbage collection in virtual time: runs, thresholds, ages, and reports of a shortage."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from types import SimpleNamespace

import pytest

from podkeeper.engine.image_gc import PERIOD_SECONDS, ImageGCFailed, ImageGCManager
from podkeeper.engine.image_pull_manager import ImagePullManager
from podkeeper.engine.observer import Observer
from podkeeper.model.errors import RuntimeRefused, TryLater
from podkeeper.model.messages import PodEvent, PodUID
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.rules.images.gc import GcPolicy
from podkeeper.runtimes.fake import FakeRuntime, Operation
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in

MIB = 2**20
EACH = 10 * MIB  # the size of each image of the fake
NAMES = tuple(f"reg.test/{letter}:v1" for letter in "abcd")
A, B, C, D = NAMES


class UsageRuntime(FakeRuntime):
    """A fake whose pods only name the images that they use."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock, images=NAMES)
        self.used: set[str] = set()
        self.unlisted: set[str] = set()  # used, too, but a list of pods does not show it

    def _pod(self, image: str) -> PodRecord:
        made = ContainerRecord(id="c", name="c", state=RecordState.EXITED, image=image)
        return PodRecord(uid=f"pod-{image}", containers=(made,))

    async def list_pods(self) -> list[PodRecord]:
        bare = ContainerRecord(id="c", name="c", state=RecordState.RUNNING)
        unlisted = [PodRecord(uid=f"pod-{image}", containers=(bare,)) for image in self.unlisted]
        return [*map(self._pod, self.used), *unlisted]

    async def pod_record(self, uid: PodUID) -> PodRecord:
        return self._pod(uid.removeprefix("pod-"))


class ImageGCHarness:
    """Image garbage collection on a fake runtime."""

    def __init__(self, policy: GcPolicy, pinned: Collection[str] = (), calls: PortCalls | None = None) -> None:
        self.clock = VirtualClock()
        self.fake = UsageRuntime(self.clock)
        self.recorded: list[PodEvent] = []
        self.listed: list[int] = []
        self.removed: list[str] = []
        self.gc = ImageGCManager(
            runtime=self.fake if calls is None else calls.watch("runtime", self.fake),
            clock=self.clock,
            policy=policy,
            record_event=self.recorded.append,
            pinned=pinned,
            pull_manager=stand_in(ImagePullManager, self),
            observer=stand_in(Observer, SimpleNamespace(image_removed=self.removed.append)),
        )

    def prune_unknown_records(self, image_ids: Collection[str], listed_at: float) -> None:
        self.listed.append(len(image_ids))

    def fill(self, percent: int) -> None:
        """Fill a disk of 200 MiB with 40 MiB of images to this percentage."""
        self.fake.image_disk_bytes = 200 * MIB
        self.fake.other_disk_bytes = 2 * MIB * percent - 4 * EACH

    async def names(self) -> list[str]:
        return sorted(
            name.removeprefix("reg.test/")[0] for image in await self.fake.list_images() for name in image.tags
        )

    def reasons(self) -> list[str]:
        return [event.reason for event in self.recorded]


def run_scenario(
    scenario: Callable[[ImageGCHarness], Awaitable[None]],
    *,
    policy: GcPolicy | None = None,
    pinned: Collection[str] = (),
) -> ImageGCHarness:
    async def main() -> ImageGCHarness:
        harness = ImageGCHarness(policy or GcPolicy(), pinned)
        running = asyncio.create_task(harness.gc.run())
        await scenario(harness)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return harness

    return simulate(main())[0]


async def aged(harness: ImageGCHarness) -> None:
    """Wait until all images have been seen and are old enough to be removed."""
    await asyncio.sleep(PERIOD_SECONDS - 1)


def test_nothing_is_removed_below_the_high_threshold() -> None:
    async def scenario(harness: ImageGCHarness) -> None:
        harness.fill(84)
        await asyncio.sleep(3 * PERIOD_SECONDS)
        assert await harness.names() == ["a", "b", "c", "d"]

    assert run_scenario(scenario).recorded == []


def test_a_full_disk_is_freed_down_to_the_low_threshold() -> None:
    async def scenario(harness: ImageGCHarness) -> None:
        await aged(harness)
        harness.fill(85)
        await asyncio.sleep(2)
        assert await harness.names() == ["b", "c", "d"]
        harness.fill(95)  # one is removed already, so 90 % are used
        await asyncio.sleep(PERIOD_SECONDS)
        assert await harness.names() == ["d"]

    harness = run_scenario(scenario)
    assert (harness.recorded, harness.removed) == ([], ["space"] * 3)


def test_a_used_image_stays_even_if_the_list_does_not_show_it() -> None:
    async def scenario(harness: ImageGCHarness) -> None:
        harness.fake.used, harness.fake.unlisted = {A}, {C}
        await aged(harness)
        harness.fill(90)
        await asyncio.sleep(2)
        assert await harness.names() == ["a", "c"]

    assert run_scenario(scenario).reasons() == []


def test_the_least_recently_used_image_is_removed_first() -> None:
    async def scenario(harness: ImageGCHarness) -> None:
        for used in ({A, B}, {B, A}, {B}):
            harness.fake.used = used
            await asyncio.sleep(PERIOD_SECONDS)
        harness.fake.used = set()
        await asyncio.sleep(PERIOD_SECONDS)
        harness.fill(95)
        await asyncio.sleep(PERIOD_SECONDS)
        assert await harness.names() == ["b"]

    run_scenario(scenario)


def test_a_new_image_stays() -> None:
    async def scenario(harness: ImageGCHarness) -> None:
        await asyncio.sleep(PERIOD_SECONDS - 60)
        await harness.fake.pull_image("reg.test/new:v1")
        harness.fill(100)
        harness.fake.other_disk_bytes -= EACH
        await asyncio.sleep(61)
        assert await harness.names() == ["n"]
        await asyncio.sleep(PERIOD_SECONDS)
        assert await harness.names() == ["n"], "the disk is no longer full"

    run_scenario(scenario)


def test_pinned_images_stay_and_the_shortage_is_recorded() -> None:
    async def scenario(harness: ImageGCHarness) -> None:
        harness.fake.used = {B, C}
        await aged(harness)
        harness.fill(100)
        await asyncio.sleep(2)
        assert await harness.names() == ["b", "c", "d"]

    harness = run_scenario(scenario, pinned=(D,))
    assert harness.reasons() == ["FreeDiskSpaceFailed"]
    assert harness.recorded[0].message.startswith(
        "Insufficient free disk space on the node's image filesystem (100% of 200.0 MiB used). Failed to free "
        f"sufficient space by deleting unused images (freed {EACH} bytes)."
    )


def test_a_lasting_shortage_is_an_image_gc_failure_from_the_second_run_on() -> None:
    async def scenario(harness: ImageGCHarness) -> None:
        harness.fake.used = set(NAMES)
        harness.fill(100)
        await asyncio.sleep(PERIOD_SECONDS + 1)
        assert harness.reasons() == ["FreeDiskSpaceFailed"] * 2 + ["ImageGCFailed"]
        assert harness.recorded[-1].message == harness.recorded[-2].message
        harness.fill(50)
        await asyncio.sleep(PERIOD_SECONDS)
        harness.fill(100)
        await asyncio.sleep(PERIOD_SECONDS)
        assert harness.reasons()[3:] == ["FreeDiskSpaceFailed"], "a successful run in between resets the failure"

    run_scenario(scenario)


@pytest.mark.parametrize("operation", [Operation.LIST_IMAGES, Operation.IMAGE_USAGE])
def test_a_runtime_error_is_recorded_from_the_second_run_on(operation: Operation) -> None:
    async def scenario(harness: ImageGCHarness) -> None:
        harness.fake.faults.fail(operation, times=2)
        await asyncio.sleep(1)
        assert harness.reasons() == []
        await asyncio.sleep(PERIOD_SECONDS)
        assert harness.reasons() == ["ImageGCFailed"]
        await asyncio.sleep(PERIOD_SECONDS)
        assert harness.reasons() == ["ImageGCFailed"]

    run_scenario(scenario)


def test_an_image_that_cannot_be_removed_does_not_block_others() -> None:
    async def scenario(harness: ImageGCHarness) -> None:
        await aged(harness)
        record = await harness.fake.image(A)
        assert record is not None
        harness.fake.faults.fail(Operation.REMOVE_IMAGE, record.id, times=None, error=RuntimeRefused)
        harness.fill(90)
        with pytest.raises(ImageGCFailed, match=f"cannot remove some unused images, freed {2 * EACH} bytes"):
            await harness.gc.collect()
        assert await harness.names() == ["a", "d"]

    run_scenario(scenario)


def test_an_image_filesystem_without_capacity_is_recorded() -> None:
    async def scenario(harness: ImageGCHarness) -> None:
        harness.fake.image_disk_bytes = 0
        with pytest.raises(TryLater, match="invalid capacity 0 on image filesystem"):
            await harness.gc.collect()
        assert harness.reasons() == ["InvalidDiskCapacity"]

    run_scenario(scenario, policy=GcPolicy(high_percent=100))


def test_without_filesystem_usage_nothing_is_removed() -> None:
    async def scenario(harness: ImageGCHarness) -> None:
        await asyncio.sleep(3 * PERIOD_SECONDS)
        assert await harness.names() == ["a", "b", "c", "d"]

    assert (run_scenario(scenario).recorded, run_scenario(scenario).listed) == ([], [4] * 3)


def test_images_unused_for_too_long_are_removed_even_with_free_space() -> None:
    async def scenario(harness: ImageGCHarness) -> None:
        harness.fill(50)
        harness.fake.used = {B}
        await asyncio.sleep(2 * PERIOD_SECONDS + 1)
        harness.fake.used = set()
        assert await harness.names() == ["a", "b", "c", "d"], "the agent has not run for long enough to know the age"
        await asyncio.sleep(PERIOD_SECONDS)
        assert await harness.names() == ["b"]
        await asyncio.sleep(2 * PERIOD_SECONDS)
        assert await harness.names() == []

    harness = run_scenario(scenario, policy=GcPolicy(high_percent=100, max_age_seconds=700))
    assert harness.removed == ["age"] * 4


def test_with_an_idle_policy_the_runtime_is_not_called() -> None:
    async def scenario(harness: ImageGCHarness) -> None:
        await asyncio.sleep(3 * PERIOD_SECONDS)
        assert not harness.fake.call_log

    run_scenario(scenario, policy=GcPolicy(high_percent=100))


def test_a_full_disk_can_need_all_unused_images() -> None:
    async def scenario(harness: ImageGCHarness) -> None:
        harness.fake.used = {B}
        await aged(harness)
        harness.fill(95)
        await harness.gc.collect()
        assert await harness.names() == ["b"]
        harness.fill(95)
        harness.fake.other_disk_bytes += 3 * EACH
        with pytest.raises(ImageGCFailed, match="freed 0 bytes"):
            await harness.gc.collect()
        assert await harness.names() == ["b"]

    run_scenario(scenario)
