"""Image garbage collection: which images to remove.

Images are removed when the disk is full, or when they have been unused for long.

    images, containers --detect_images--> tracked images --removable--> unused ones, least recently used first
    disk usage --bytes_to_free--> how many bytes to free

Images used by a container, running or not, are kept. So are pinned images and those kept by name (the sandbox image).
An image detected less than `min_age_seconds` ago is not removed for space, because the pod that needs it may be about
to start. Times are monotonic.

Kubelet counterpart: pkg/kubelet/images/image_gc_manager.go.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from podkeeper.model.runtime import ImageFsUsage, ImageRecord, PodRecord
from podkeeper.rules.images.reference import repository_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GcPolicy:
    """When to remove images. At `high_percent` disk usage, remove images until it is `low_percent`."""

    # The kubelet's defaults (imageGCHighThresholdPercent, imageGCLowThresholdPercent, imageMinimumGCAge).
    high_percent: int = 85
    low_percent: int = 80
    min_age_seconds: float = 120.0
    max_age_seconds: float = 0.0  # remove images unused for longer, whatever the disk usage; 0: never

    @property
    def is_idle(self) -> bool:
        """Whether the policy never removes an image."""
        return self.high_percent >= 100 and self.max_age_seconds <= 0


@dataclass(frozen=True, slots=True)
class TrackedImage:
    """An image on the node, and when it was used."""

    image: ImageRecord
    first_seen: float
    last_used: float | None = None  # None: not since the agent started


def detect_images(
    known: Mapping[str, TrackedImage], images: Sequence[ImageRecord], users: Iterable[PodRecord], now: float
) -> dict[str, TrackedImage]:
    """Return the tracked images by id, updated from a new list of images and pods."""
    used = frozenset(
        name for pod in users for container in pod.containers for name in (container.image_id, container.image) if name
    )
    seen = {}
    for image in images:
        before = known.get(image.id) or TrackedImage(image, now)
        in_use = not used.isdisjoint(names_of(image))
        seen[image.id] = replace(before, image=image, last_used=now if in_use else before.last_used)
    return seen


def names_of(image: ImageRecord) -> frozenset[str]:
    """Return every name that a container may use for its image."""
    return frozenset((image.id, *image.tags, *image.digests))


def removable(known: Mapping[str, TrackedImage], kept: Collection[str], now: float) -> tuple[TrackedImage, ...]:
    """Return the unused images that may be removed, least recently used first. `now` is the time of detection."""
    kept_names = frozenset(filter(None, map(_full_name, kept)))
    unused = (
        each
        for each in known.values()
        # Detection has just set the time of all images in use.
        if each.last_used != now
        and not each.image.pinned
        and kept_names.isdisjoint(map(_full_name, names_of(each.image)))
    )
    # Images never used come before those used long ago. In the kubelet, their time is the zero time.
    return tuple(
        sorted(unused, key=lambda each: (float("-inf") if each.last_used is None else each.last_used, each.first_seen))
    )


def is_too_old(each: TrackedImage, policy: GcPolicy, began: float, now: float) -> bool:
    """Return whether to remove an image for its age. The agent must have run for at least `max_age_seconds`."""
    # As in the kubelet: a young agent does not know when images were used before it started.
    if policy.max_age_seconds <= 0 or now - began <= policy.max_age_seconds:
        return False
    return each.last_used is None or now - each.last_used > policy.max_age_seconds


def is_old_enough(each: TrackedImage, policy: GcPolicy, now: float) -> bool:
    """Return whether an image is old enough to be removed for space."""
    return now - each.first_seen >= policy.min_age_seconds


def percent_used(usage: ImageFsUsage) -> int:
    """Return the disk usage in percent. Space reserved for root counts as used. The capacity must not be 0."""
    return 100 - min(usage.available_bytes, usage.capacity_bytes) * 100 // usage.capacity_bytes


def bytes_to_free(usage: ImageFsUsage, policy: GcPolicy) -> int:
    if percent_used(usage) < policy.high_percent:
        return 0
    available = min(usage.available_bytes, usage.capacity_bytes)
    return max(usage.capacity_bytes * (100 - policy.low_percent) // 100 - available, 0)


def insufficient_space_message(usage: ImageFsUsage, freed_bytes: int) -> str:
    """Return the message for the case that removing all unused images did not free enough."""
    return (
        f"Insufficient free disk space on the node's image filesystem ({percent_used(usage)}% of "
        f"{format_size(usage.capacity_bytes)} used). Failed to free sufficient space by deleting unused images "
        f"(freed {freed_bytes} bytes). Investigate disk usage, as it could be used by active images, logs, volumes, "
        "or other data."
    )


def format_size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _full_name(name: str) -> str:
    """Return an image's name in full, for comparison. Ids and digests stay as they are."""
    repository = repository_of(name)
    if repository is None or name.startswith("sha256:"):
        return name
    tag = name.rpartition(":")[2] if ":" in name.rpartition("/")[2] else "latest"
    return f"{repository}:{tag}"
