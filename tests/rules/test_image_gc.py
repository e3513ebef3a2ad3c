"""Image garbage: which images go, in which order, and how much must go."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.runtime import ContainerRecord, ContainerState, ImageFsUsage, ImageRecord, PodRecord
from podkeeper.rules.image_gc import (
    USUAL_POLICY,
    GcPolicy,
    Known,
    bytes_to_free,
    may_go_for_space,
    percent_used,
    removable,
    seen_now,
    shortage_text,
    shown_size,
    too_old,
)

GIB = 2**30


def image(name: str, *, size: int = 10, pinned: bool = False) -> ImageRecord:
    tag, digest = f"docker.io/library/{name}:v1", f"docker.io/library/{name}@sha256:{name}"
    return ImageRecord(id=f"id-{name}", tags=(tag,), digests=(digest,), size_bytes=size, pinned=pinned)


def user_of(name: str, *, state: ContainerState = ContainerState.RUNNING, image_id: str = "") -> PodRecord:
    made = ContainerRecord(id="c", name="c", state=state, image=name, image_id=image_id)
    return PodRecord(uid=f"pod-{name}", containers=(made,))


def known(name: str, first_seen: float, last_used: float | None = None, *, pinned: bool = False) -> Known:
    return Known(image(name, pinned=pinned), first_seen, last_used)


def by_id(*all_known: Known) -> dict[str, Known]:
    return {each.image.id: each for each in all_known}


def disk(available: int, capacity: int = 100) -> ImageFsUsage:
    used = max(capacity - available, 0)
    return ImageFsUsage(mountpoint="/images", used_bytes=used, capacity_bytes=capacity, available_bytes=available)


# What is seen.


def test_a_new_image_is_first_seen_now_and_one_that_is_gone_is_forgotten() -> None:
    before = by_id(known("old", 1, 5), known("gone", 1))
    assert seen_now(before, [image("old"), image("new")], [], 9) == by_id(known("old", 1, 5), known("new", 9))


USERS = {
    "by its id":            user_of("x", image_id="id-a"),
    "by its tag":           user_of("docker.io/library/a:v1"),
    "by its digest":        user_of("x", image_id="docker.io/library/a@sha256:a"),
    "by an exited one":     user_of("id-a", state=ContainerState.EXITED),
    "by a created one":     user_of("id-a", state=ContainerState.CREATED),
}  # fmt: skip


@pytest.mark.parametrize("user", USERS.values(), ids=USERS.keys())
def test_an_image_is_used_by_whoever_names_it(user: PodRecord) -> None:
    seen = seen_now({}, [image("a"), image("b")], [user], 9)
    assert (seen["id-a"].last_used, seen["id-b"].last_used) == (9, None)
    assert [each.image.id for each in removable(seen, (), 9)] == ["id-b"]


def test_what_is_new_of_an_image_counts() -> None:
    grown = image("a", size=99, pinned=True)
    assert seen_now(by_id(known("a", 1)), [grown], [], 9)["id-a"] == Known(grown, 1)


# What may go.


def test_the_longest_unused_goes_first_and_before_it_what_nobody_ever_used() -> None:
    all_known = by_id(known("late", 1, 8), known("early", 2, 3), known("never", 5), known("never-older", 4))
    order = ["id-never-older", "id-never", "id-early", "id-late"]
    assert [each.image.id for each in removable(all_known, (), 9)] == order


def test_of_two_last_used_together_the_one_seen_first_goes_first() -> None:
    all_known = by_id(known("b", 2, 5), known("a", 1, 5))
    assert [each.image.id for each in removable(all_known, (), 9)] == ["id-a", "id-b"]


def test_what_is_pinned_stays() -> None:
    assert removable(by_id(known("a", 1, pinned=True)), (), 9) == ()


@pytest.mark.parametrize("name", ["pause:v1", "docker.io/library/pause:v1", "index.docker.io/pause:v1", "id-pause"])
def test_what_is_kept_by_name_stays_however_it_is_spelled(name: str) -> None:
    assert [each.image.id for each in removable(by_id(known("pause", 1), known("a", 1)), (name,), 9)] == ["id-a"]


def test_another_tag_of_a_kept_image_is_not_kept() -> None:
    assert len(removable(by_id(known("pause", 1)), ("pause:v2", "pause"), 9)) == 1


AGES = {
    # last used, watching since, now -> too old
    "used lately":                           (95.0, 0.0, 100.0, False),
    "used long ago":                         (60.0, 0.0, 100.0, True),
    "used just long enough ago":             (70.0, 0.0, 100.0, False),
    "never used":                            (None, 0.0, 100.0, True),
    "nobody has watched for long enough":    (None, 80.0, 100.0, False),
}  # fmt: skip


@pytest.mark.parametrize("last_used, began, now, expected", AGES.values(), ids=AGES.keys())
def test_an_image_is_too_old(last_used: float | None, began: float, now: float, expected: bool) -> None:
    policy = GcPolicy(max_age_seconds=30)
    assert too_old(known("a", 0, last_used), policy, began, now) is expected
    assert not too_old(known("a", 0, last_used), USUAL_POLICY, began, now)


def test_a_young_image_does_not_go_for_space() -> None:
    assert not may_go_for_space(known("a", 1), USUAL_POLICY, 120.9)
    assert may_go_for_space(known("a", 1), USUAL_POLICY, 121)


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
    assert (percent_used(disk(available)), bytes_to_free(disk(available), USUAL_POLICY)) == (percent, wanted)


def test_a_policy_of_a_hundred_percent_and_no_age_never_does_anything() -> None:
    assert GcPolicy(high_percent=100).is_idle
    assert not GcPolicy(high_percent=100, max_age_seconds=1).is_idle
    assert not USUAL_POLICY.is_idle


SIZES = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 5 * GIB: "5.0 GiB", 2048 * GIB: "2.0 TiB"}


@pytest.mark.parametrize("size", SIZES)
def test_sizes_are_shown_for_people(size: int) -> None:
    assert shown_size(size) == SIZES[size]


def test_the_shortage_is_told_in_the_references_words() -> None:
    assert shortage_text(disk(5 * GIB, 50 * GIB), 7) == (
        "Insufficient free disk space on the node's image filesystem (90% of 50.0 GiB used). Failed to free sufficient "
        "space by deleting unused images (freed 7 bytes). Investigate disk usage, as it could be used by active "
        "images, logs, volumes, or other data."
    )


# Laws.

PERCENTS = st.tuples(st.integers(0, 100), st.integers(0, 100)).map(sorted)


@given(st.integers(0, 10**6), st.integers(100, 10**6), PERCENTS)
def test_what_is_freed_ends_the_shortage(available: int, capacity: int, percents: list[int]) -> None:
    policy = GcPolicy(low_percent=percents[0], high_percent=percents[1])
    wanted = bytes_to_free(disk(available, capacity), policy)
    assert 0 <= wanted <= capacity
    if percents[0] < percents[1] and wanted:
        after = disk(min(available, capacity) + wanted, capacity)
        # Both are rounded down, and the larger the disk, the less that matters.
        assert percent_used(after) <= policy.low_percent + 1


NAMES = st.sampled_from("abcdef")
LOOKS = st.lists(st.tuples(st.frozensets(NAMES), st.frozensets(NAMES)), min_size=1, max_size=6)


@given(LOOKS, NAMES)
def test_no_look_lets_go_what_is_used_pinned_or_kept(
    looks: list[tuple[frozenset[str], frozenset[str]]], pinned: str
) -> None:
    seen: dict[str, Known] = {}
    for now, (present, used) in enumerate(looks):
        images = [replace_pin(image(name), name == pinned) for name in sorted(present)]
        seen = seen_now(seen, images, [user_of(f"id-{name}") for name in used], float(now))
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
