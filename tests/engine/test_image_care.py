"""The care for images, in virtual time: rounds, thresholds, ages, and what is said when it is not enough."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

import pytest

from podkeeper.engine.image_care import PERIOD_SECONDS, GcFailed, ImageCare
from podkeeper.model.errors import RuntimeRefused, TryLater
from podkeeper.model.messages import PodEvent, PodUID
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord
from podkeeper.rules.image_gc import USUAL_POLICY, GcPolicy
from podkeeper.runtimes.fake import FakeRuntime, Operation
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock, simulate

MIB = 2**20
EACH = 10 * MIB  # the size of each image of the fake
NAMES = tuple(f"reg.test/{letter}:v1" for letter in "abcd")
A, B, C, D = NAMES


class Runtime(FakeRuntime):
    """A fake whose pods are said, not run: by the images they use."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock, images=NAMES)
        self.used: set[str] = set()
        self.silent: set[str] = set()  # used too, but a listing does not say so

    def _pod(self, image: str) -> PodRecord:
        made = ContainerRecord(id="c", name="c", state=ContainerState.EXITED, image=image)
        return PodRecord(uid=f"pod-{image}", containers=(made,))

    async def list_pods(self) -> list[PodRecord]:
        bare = ContainerRecord(id="c", name="c", state=ContainerState.RUNNING)
        silent = [PodRecord(uid=f"pod-{image}", containers=(bare,)) for image in self.silent]
        return [*map(self._pod, self.used), *silent]

    async def pod_record(self, uid: PodUID) -> PodRecord:
        return self._pod(uid.removeprefix("pod-"))


class Home:
    """Image care over a fake runtime."""

    def __init__(self, policy: GcPolicy, kept: Collection[str] = (), calls: PortCalls | None = None) -> None:
        self.clock = VirtualClock()
        self.fake = Runtime(self.clock)
        self.told: list[PodEvent] = []
        self.left: list[int] = []
        self.removed: list[str] = []
        self.care = ImageCare(
            runtime=self.fake if calls is None else calls.watch("runtime", self.fake),
            clock=self.clock,
            policy=policy,
            tell=self.told.append,
            kept=kept,
            left=lambda ids, at: self.left.append(len(ids)),
            removed=self.removed.append,
        )

    def fill(self, percent: int) -> None:
        """Let a disk of 200 MiB, with 40 MiB of images, be full so far."""
        self.fake.image_disk_bytes = 200 * MIB
        self.fake.other_disk_bytes = 2 * MIB * percent - 4 * EACH

    async def names(self) -> list[str]:
        return sorted(
            name.removeprefix("reg.test/")[0] for image in await self.fake.list_images() for name in image.tags
        )

    def reasons(self) -> list[str]:
        return [event.reason for event in self.told]


def live(
    scenario: Callable[[Home], Awaitable[None]], *, policy: GcPolicy = USUAL_POLICY, kept: Collection[str] = ()
) -> Home:
    async def life() -> Home:
        home = Home(policy, kept)
        running = asyncio.create_task(home.care.run())
        await scenario(home)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return home

    return simulate(life())[0]


async def aged(home: Home) -> None:
    """Let images be seen, and grow old enough to go."""
    await asyncio.sleep(PERIOD_SECONDS - 1)


def test_nothing_goes_while_there_is_room() -> None:
    async def scenario(home: Home) -> None:
        home.fill(84)
        await asyncio.sleep(3 * PERIOD_SECONDS)
        assert await home.names() == ["a", "b", "c", "d"]

    assert live(scenario).told == []


def test_a_full_disk_is_freed_down_to_the_low_threshold() -> None:
    async def scenario(home: Home) -> None:
        await aged(home)
        home.fill(85)
        await asyncio.sleep(2)
        assert await home.names() == ["b", "c", "d"]
        home.fill(95)  # one is gone already: 90 are used
        await asyncio.sleep(PERIOD_SECONDS)
        assert await home.names() == ["d"]

    home = live(scenario)
    assert (home.told, home.removed) == ([], ["space"] * 3)


def test_what_is_used_stays_even_if_a_listing_does_not_say_so() -> None:
    async def scenario(home: Home) -> None:
        home.fake.used, home.fake.silent = {A}, {C}
        await aged(home)
        home.fill(90)
        await asyncio.sleep(2)
        assert await home.names() == ["a", "c"]

    assert live(scenario).reasons() == []


def test_the_longest_unused_goes_first() -> None:
    async def scenario(home: Home) -> None:
        for used in ({A, B}, {B, A}, {B}):
            home.fake.used = used
            await asyncio.sleep(PERIOD_SECONDS)
        home.fake.used = set()
        await asyncio.sleep(PERIOD_SECONDS)
        home.fill(95)
        await asyncio.sleep(PERIOD_SECONDS)
        assert await home.names() == ["b"]

    live(scenario)


def test_what_was_just_pulled_stays() -> None:
    async def scenario(home: Home) -> None:
        await asyncio.sleep(PERIOD_SECONDS - 60)
        await home.fake.pull_image("reg.test/new:v1")
        home.fill(100)
        home.fake.other_disk_bytes -= EACH
        await asyncio.sleep(61)
        assert await home.names() == ["n"]
        await asyncio.sleep(PERIOD_SECONDS)
        assert await home.names() == ["n"], "no longer full, nothing goes"

    live(scenario)


def test_kept_images_stay_and_the_shortage_is_told() -> None:
    async def scenario(home: Home) -> None:
        home.fake.used = {B, C}
        await aged(home)
        home.fill(100)
        await asyncio.sleep(2)
        assert await home.names() == ["b", "c", "d"]

    home = live(scenario, kept=(D,))
    assert home.reasons() == ["FreeDiskSpaceFailed"]
    assert home.told[0].message.startswith(
        "Insufficient free disk space on the node's image filesystem (100% of 200.0 MiB used). Failed to free "
        f"sufficient space by deleting unused images (freed {EACH} bytes)."
    )


def test_a_shortage_that_stays_is_a_failure_from_the_second_round_on() -> None:
    async def scenario(home: Home) -> None:
        home.fake.used = set(NAMES)
        home.fill(100)
        await asyncio.sleep(PERIOD_SECONDS + 1)
        assert home.reasons() == ["FreeDiskSpaceFailed"] * 2 + ["ImageGCFailed"]
        assert home.told[-1].message == home.told[-2].message
        home.fill(50)
        await asyncio.sleep(PERIOD_SECONDS)
        home.fill(100)
        await asyncio.sleep(PERIOD_SECONDS)
        assert home.reasons()[3:] == ["FreeDiskSpaceFailed"], "what went well in between counts"

    live(scenario)


@pytest.mark.parametrize("operation", [Operation.LIST_IMAGES, Operation.IMAGE_USAGE])
def test_a_runtime_that_does_not_answer_is_told_of_when_it_happens_again(operation: Operation) -> None:
    async def scenario(home: Home) -> None:
        home.fake.faults.fail(operation, times=2)
        await asyncio.sleep(1)
        assert home.reasons() == []
        await asyncio.sleep(PERIOD_SECONDS)
        assert home.reasons() == ["ImageGCFailed"]
        await asyncio.sleep(PERIOD_SECONDS)
        assert home.reasons() == ["ImageGCFailed"]

    live(scenario)


def test_one_image_that_cannot_be_removed_keeps_no_other() -> None:
    async def scenario(home: Home) -> None:
        await aged(home)
        record = await home.fake.image(A)
        assert record is not None
        home.fake.faults.fail(Operation.REMOVE_IMAGE, record.id, times=None, error=RuntimeRefused)
        home.fill(90)
        with pytest.raises(GcFailed, match=f"cannot remove all images that should go, {2 * EACH} bytes are freed"):
            await home.care.collect()
        assert await home.names() == ["a", "d"]

    live(scenario)


def test_a_disk_without_a_size_is_told_of() -> None:
    async def scenario(home: Home) -> None:
        home.fake.image_disk_bytes = 0
        with pytest.raises(TryLater, match="invalid capacity 0 on image filesystem"):
            await home.care.collect()
        assert home.reasons() == ["InvalidDiskCapacity"]

    live(scenario, policy=GcPolicy(high_percent=100))


def test_images_that_take_no_space_are_left_alone() -> None:
    async def scenario(home: Home) -> None:
        await asyncio.sleep(3 * PERIOD_SECONDS)
        assert await home.names() == ["a", "b", "c", "d"]

    assert (live(scenario).told, live(scenario).left) == ([], [4] * 3)


def test_what_nobody_has_used_for_too_long_goes_however_much_room_there_is() -> None:
    async def scenario(home: Home) -> None:
        home.fill(50)
        home.fake.used = {B}
        await asyncio.sleep(2 * PERIOD_SECONDS + 1)
        home.fake.used = set()
        assert await home.names() == ["a", "b", "c", "d"], "nobody has watched for long enough to say so"
        await asyncio.sleep(PERIOD_SECONDS)
        assert await home.names() == ["b"]
        await asyncio.sleep(2 * PERIOD_SECONDS)
        assert await home.names() == []

    home = live(scenario, policy=GcPolicy(high_percent=100, max_age_seconds=700))
    assert home.removed == ["age"] * 4


def test_a_policy_that_never_does_anything_asks_nothing() -> None:
    async def scenario(home: Home) -> None:
        await asyncio.sleep(3 * PERIOD_SECONDS)
        assert not home.fake.ledger

    live(scenario, policy=GcPolicy(high_percent=100))


def test_whoever_needs_space_has_all_that_is_unused_removed() -> None:
    async def scenario(home: Home) -> None:
        home.fake.used = {B}
        await aged(home)
        assert await home.care.delete_unused() == 3 * EACH
        assert await home.names() == ["b"]
        assert await home.care.delete_unused() == 0

    live(scenario)
