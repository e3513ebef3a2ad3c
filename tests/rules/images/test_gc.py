"""Image garbage collection: which images are removed, in which order, and how many bytes are freed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.runtime import ContainerRecord, ImageFsUsage, ImageRecord, PodRecord, RecordState
from podkeeper.rules.images.gc import (
    GcPolicy,
    TrackedImage,
    bytes_to_free,
    detect_images,
    format_size,
    insufficient_space_message,
    is_old_enough,
    is_too_old,
    percent_used,
    removable,
)

GIB = 2**30


def image(name: str, *, size: int = 10, pinned: bool = False) -> ImageRecord:
    tag, digest = f"docker.io/library/{name}:v1", f"docker.io/library/{name}@sha256:{name}"
    return ImageRecord(id=f"id-{name}", tags=(tag,), digests=(digest,), size_bytes=size, pinned=pinned)


def user_of(name: str, *, state: RecordState = RecordState.RUNNING, image_id: str = "") -> PodRecord:
    made = ContainerRecord(id="c", name="c", state=state, image=name, image_id=image_id)
    return PodRecord(uid=f"pod-{name}", containers=(made,))


def known(name: str, first_seen: float, last_used: float | None = None, *, pinned: bool = False) -> TrackedImage:
    return TrackedImage(image(name, pinned=pinned), first_seen, last_used)


def by_id(*all_known: TrackedImage) -> dict[str, TrackedImage]:
    return {each.image.id: each for each in all_known}


def disk(available: int, capacity: int = 100) -> ImageFsUsage:
    used = max(capacity - available, 0)
    return ImageFsUsage(mountpoint="/images", used_bytes=used, capacity_bytes=capacity, available_bytes=available)


# What is seen.


def test_a_new_image_is_first_seen_now_and_a_removed_one_is_dropped() -> None:
    before = by_id(known("old", 1, 5), known("gone", 1))
    assert detect_images(before, [image("old"), image("new")], [], 9) == by_id(known("old", 1, 5), known("new", 9))


USERS = {
    "by its id":            user_of("x", image_id="id-a"),
    "by its tag":           user_of("docker.io/library/a:v1"),
    "by its digest":        user_of("x", image_id="docker.io/library/a@sha256:a"),
    "by an exited one":     user_of("id-a", state=RecordState.EXITED),
    "by a created one":     user_of("id-a", state=RecordState.CREATED),
}  # fmt: skip


@pytest.mark.parametrize("user", USERS.values(), ids=USERS.keys())
def test_an_image_is_used_by_containers_that_name_it(user: PodRecord) -> None:
    seen = detect_images({}, [image("a"), image("b")], [user], 9)
    assert (seen["id-a"].last_used, seen["id-b"].last_used) == (9, None)
    assert [each.image.id for each in removable(seen, (), 9)] == ["id-b"]


def test_the_newest_record_of_an_image_is_stored() -> None:
    grown = image("a", size=99, pinned=True)
    assert detect_images(by_id(known("a", 1)), [grown], [], 9)["id-a"] == TrackedImage(grown, 1)


# What may go.


def test_never_used_images_are_first_then_the_least_recently_used() -> None:
    all_known = by_id(known("late", 1, 8), known("early", 2, 3), known("never", 5), known("never-older", 4))
    order = ["id-never-older", "id-never", "id-early", "id-late"]
    assert [each.image.id for each in removable(all_known, (), 9)] == order


def test_of_two_last_used_together_the_one_seen_first_is_first() -> None:
    all_known = by_id(known("b", 2, 5), known("a", 1, 5))
    assert [each.image.id for each in removable(all_known, (), 9)] == ["id-a", "id-b"]


def test_pinned_images_are_kept() -> None:
    assert removable(by_id(known("a", 1, pinned=True)), (), 9) == ()


@pytest.mark.parametrize("name", ["pause:v1", "docker.io/library/pause:v1", "index.docker.io/pause:v1", "id-pause"])
def test_images_kept_by_name_are_kept_in_any_spelling(name: str) -> None:
    assert [each.image.id for each in removable(by_id(known("pause", 1), known("a", 1)), (name,), 9)] == ["id-a"]


def test_another_tag_of_a_kept_image_is_not_kept() -> None:
    assert len(removable(by_id(known("pause", 1)), ("pause:v2", "pause"), 9)) == 1


AGES = {
    # last used, watching since, now -> too old
    "used recently":                           (95.0, 0.0, 100.0, False),
    "used long ago":                         (60.0, 0.0, 100.0, True),
    "used just long enough ago":             (70.0, 0.0, 100.0, False),
    "never used":                            (None, 0.0, 100.0, True),
    "the agent has not run for long enough":    (None, 80.0, 100.0, False),
}  # fmt: skip


@pytest.mark.parametrize("last_used, began, now, expected", AGES.values(), ids=AGES.keys())
def test_an_image_is_too_old(last_used: float | None, began: float, now: float, expected: bool) -> None:
    policy = GcPolicy(max_age_seconds=30)
    assert is_too_old(known("a", 0, last_used), policy, began, now) is expected
    assert not is_too_old(known("a", 0, last_used), GcPolicy(), began, now)


def test_a_young_image_is_not_removed_for_space() -> None:
    assert not is_old_enough(known("a", 1), GcPolicy(), 120.9)
    assert is_old_enough(known("a", 1), GcPolicy(), 121)


# How much must go.

SPACES = {
    # available of 100 -> percent used, bytes to free
    "empty":                                (100, 0, 0),
    "below the high threshold":             (16, 84, 0),
    "at the high threshold":                (15, 85, 5),
    "full":                                 (0, 100, 20),
    "more available than there is":         (120, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("available, percent, wanted", SPACES.values(), ids=SPACES.keys())
def test_from_the_high_threshold_on_space_is_freed_down_to_the_low_one(
    available: int, percent: int, wanted: int
) -> None:
    assert (percent_used(disk(available)), bytes_to_free(disk(available), GcPolicy())) == (percent, wanted)


def test_a_policy_of_a_hundred_percent_and_no_age_is_idle() -> None:
    assert GcPolicy(high_percent=100).is_idle
    assert not GcPolicy(high_percent=100, max_age_seconds=1).is_idle
    assert not GcPolicy().is_idle


SIZES = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 5 * GIB: "5.0 GiB", 2048 * GIB: "2.0 TiB"}


@pytest.mark.parametrize("size", SIZES)
def test_format_size(size: int) -> None:
    assert format_size(size) == SIZES[size]


def test_insufficient_space_has_the_kubelets_message() -> None:
    assert insufficient_space_message(disk(5 * GIB, 50 * GIB), 7) == (
        "Insufficient free disk space on the node's image filesystem (90% of 50.0 GiB used). Failed to free sufficient "
        "space by deleting unused images (freed 7 bytes). Investigate disk usage, as it could be used by active "
        "images, logs, volumes, or other data."
    )


# Laws.

PERCENTS = st.tuples(st.integers(0, 100), st.integers(0, 100)).map(sorted)


@given(st.integers(0, 10**6), st.integers(100, 10**6), PERCENTS)
def test_freeing_the_computed_bytes_reaches_the_low_threshold(
    available: int, capacity: int, percents: list[int]
) -> None:
    policy = GcPolicy(low_percent=percents[0], high_percent=percents[1])
    wanted = bytes_to_free(disk(available, capacity), policy)
    assert 0 <= wanted <= capacity
    if percents[0] < percents[1] and wanted:
        after = disk(min(available, capacity) + wanted, capacity)
        # Both are rounded down, and the larger the disk, the less that matters.
        assert percent_used(after) <= policy.low_percent + 1


NAMES = st.sampled_from("abcdef")
LISTINGS = st.lists(st.tuples(st.frozensets(NAMES), st.frozensets(NAMES)), min_size=1, max_size=6)


@given(LISTINGS, NAMES)
def test_used_pinned_and_kept_images_are_never_removable(
    listings: list[tuple[frozenset[str], frozenset[str]]], pinned: str
) -> None:
    seen: dict[str, TrackedImage] = {}
    for now, (present, used) in enumerate(listings):
        images = [replace_pin(image(name), name == pinned) for name in sorted(present)]
        seen = detect_images(seen, images, [user_of(f"id-{name}") for name in used], float(now))
        assert seen.keys() == {f"id-{name}" for name in present}
        going = [each.image.id for each in removable(seen, ("a:v1",), float(now))]
        assert sorted(going) == sorted(f"id-{name}" for name in present - used - {pinned, "a"})
        assert all(each.first_seen <= now for each in seen.values())


def replace_pin(of: ImageRecord, pinned: bool) -> ImageRecord:
    return image(of.id.removeprefix("id-"), pinned=pinned)


@given(st.lists(st.tuples(NAMES, st.floats(0, 9), st.none() | st.floats(0, 9)), unique_by=lambda each: each[0]))
def test_the_order_never_puts_a_later_use_before_an_earlier_one(found: list[tuple[str, float, float | None]]) -> None:
    order = removable(by_id(*(known(*each) for each in found)), (), 10.0)
    uses = [(-1.0 if each.last_used is None else each.last_used, each.first_seen) for each in order]
    assert uses == sorted(uses)
    assert removable(by_id(*(replace(each) for each in reversed(order))), (), 10.0) == order or len(set(uses)) < len(
        uses
    )
