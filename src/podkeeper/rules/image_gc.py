"""Image garbage: which images go when the disk fills up, or when nobody has used them for long.

    images, containers --seen_now--> what is known of each --removable--> unused ones, the longest unused first
    how full the disk is --bytes_to_free--> how much must go

An image that a container uses, dead or alive, stays; so do pinned ones and those that are kept by name (what sandboxes
are made from). An image that was found less than `min_age_seconds` ago stays too, when space is wanted: it was pulled
for somebody who is about to use it. Times are of the monotonic clock. The Go ancestor is
pkg/kubelet/images/image_gc_manager.go.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from podkeeper.model.runtime import ImageFsUsage, ImageRecord, PodRecord
from podkeeper.rules.image_reference import repository_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GcPolicy:
    """When images go. From `high_percent` on, as many as it takes to come down to `low_percent`."""

    high_percent: int = 85
    low_percent: int = 80
    min_age_seconds: float = 120.0
    max_age_seconds: float = 0.0  # unused for longer, they go however empty the disk is; 0: they do not

    @property
    def is_idle(self) -> bool:
        """Whether nothing can ever have to go."""
        return self.high_percent >= 100 and self.max_age_seconds <= 0


USUAL_POLICY: Final = GcPolicy()


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an image that is on the node."""

    image: ImageRecord
    first_seen: float
    last_used: float | None = None  # None: never, as far as we saw


def seen_now(
    known: Mapping[str, Known], images: Sequence[ImageRecord], users: Iterable[PodRecord], now: float
) -> dict[str, Known]:
    """What is known of each image after a look; by id. What is gone is forgotten."""
    used = frozenset(
        name for pod in users for container in pod.containers for name in (container.image_id, container.image) if name
    )
    seen = {}
    for image in images:
        before = known.get(image.id) or Known(image, now)
        in_use = not used.isdisjoint(names_of(image))
        seen[image.id] = replace(before, image=image, last_used=now if in_use else before.last_used)
    return seen


def names_of(image: ImageRecord) -> frozenset[str]:
    """Everything that a container may call its image."""
    return frozenset((image.id, *image.tags, *image.digests))


def removable(known: Mapping[str, Known], kept: Collection[str], now: float) -> tuple[Known, ...]:
    """The images that nobody uses at the time of the look and that may go at all; the longest unused first."""
    whole = frozenset(filter(None, map(_whole_name, kept)))
    unused = (
        each
        for each in known.values()
        if each.last_used != now and not each.image.pinned and whole.isdisjoint(map(_whole_name, names_of(each.image)))
    )
    # Never used, as far as we saw, comes before used long ago: the reference's times begin in year 1 too.
    return tuple(
        sorted(unused, key=lambda each: (float("-inf") if each.last_used is None else each.last_used, each.first_seen))
    )


def too_old(each: Known, policy: GcPolicy, began: float, now: float) -> bool:
    """Whether an image goes for its age. Nobody who has not watched for that long can say so."""
    if policy.max_age_seconds <= 0 or now - began <= policy.max_age_seconds:
        return False
    return each.last_used is None or now - each.last_used > policy.max_age_seconds


def may_go_for_space(each: Known, policy: GcPolicy, now: float) -> bool:
    """Whether an image is old enough to go for the space it takes."""
    return now - each.first_seen >= policy.min_age_seconds


def percent_used(usage: ImageFsUsage) -> int:
    """How full the disk is; its capacity is not 0. What is reserved for root counts as used."""
    return 100 - min(usage.available_bytes, usage.capacity_bytes) * 100 // usage.capacity_bytes


def bytes_to_free(usage: ImageFsUsage, policy: GcPolicy) -> int:
    """How much must go; 0: nothing."""
    if percent_used(usage) < policy.high_percent:
        return 0
    available = min(usage.available_bytes, usage.capacity_bytes)
    return max(usage.capacity_bytes * (100 - policy.low_percent) // 100 - available, 0)


def shortage_text(usage: ImageFsUsage, freed_bytes: int) -> str:
    """What is said when all that could go was not enough."""
    return (
        f"Insufficient free disk space on the node's image filesystem ({percent_used(usage)}% of "
        f"{shown_size(usage.capacity_bytes)} used). Failed to free sufficient space by deleting unused images "
        f"(freed {freed_bytes} bytes). Investigate disk usage, as it could be used by active images, logs, volumes, "
        "or other data."
    )


def shown_size(size_bytes: int) -> str:
    """A size as people read it."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _whole_name(name: str) -> str:
    """A name as all others of the same image are compared with it; ids and digests stand for themselves."""
    repository = repository_of(name)
    if repository is None or name.startswith("sha256:"):
        return name
    tag = name.rpartition(":")[2] if ":" in name.rpartition("/")[2] else "latest"
    return f"{repository}:{tag}"
