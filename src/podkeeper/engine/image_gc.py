"""Image garbage collection: remove unused images that are old or fill the disk.

    list images -> list pods -> unused images, least recently used first -> remove those that are too old
                                      remove until enough is free <--yes-- is the disk full? <--'

Runs at the start and every five minutes. `rules.images.gc` decides. The only state is when each image was first seen
and last used. It does not survive a restart. If a run cannot free enough space, it records an event about the node. A
failed run is recorded only from the second failure in a row on, because the runtime may just be starting.

Kubelet counterpart: pkg/kubelet/images/image_gc_manager.go.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from podkeeper.engine.image_pull_manager import ImagePullManager
from podkeeper.engine.observer import Observer
from podkeeper.model.errors import TryLater
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.clock import Clock
from podkeeper.ports.runtime import Runtime
from podkeeper.rules.images.gc import (
    GcPolicy,
    TrackedImage,
    bytes_to_free,
    detect_images,
    insufficient_space_message,
    is_old_enough,
    is_too_old,
    removable,
)
from podkeeper.rules.joined import joined_messages

log = logging.getLogger(__name__)

# The kubelet's ImageGCPeriod.
PERIOD_SECONDS: Final = 300.0

GC_FAILED: Final = "ImageGCFailed"
SPACE_SHORT: Final = "FreeDiskSpaceFailed"
NO_CAPACITY: Final = "InvalidDiskCapacity"

FOR_SPACE: Final = "space"
FOR_AGE: Final = "age"


class ImageGCFailed(TryLater):
    """A run did not free enough space or could not remove an image."""


class ImageGCManager:
    def __init__(
        self,
        *,
        runtime: Runtime,
        clock: Clock,
        policy: GcPolicy,
        record_event: Callable[[PodEvent], None],
        pinned: Collection[str] = (),
        pull_manager: ImagePullManager | None = None,
        observer: Observer | None = None,
    ) -> None:
        """`record_event` records events about the node. `pinned` names the images that are never removed.

        `pull_manager` drops its records of images that no longer exist.
        """
        self._runtime = runtime
        self._clock = clock
        self._policy = policy
        self._record_event = record_event
        self._pinned = tuple(pinned)
        self._pull_manager = pull_manager
        self._observer = observer or Observer()
        self._known: dict[str, TrackedImage] = {}
        self._began = clock.monotonic()
        self._lock = asyncio.Lock()  # one run at a time, because a run relies on its own list of images

    async def run(self) -> None:
        """Collect garbage until cancelled."""
        self._began = self._clock.monotonic()
        failed_before = False
        while not self._policy.is_idle:
            failed_before = not await self._run_once(failed_before)
            await asyncio.sleep(PERIOD_SECONDS)

    async def _run_once(self, failed_before: bool) -> bool:
        """Collect garbage and report errors. Return whether it succeeded."""
        try:
            await self.collect()
            return True
        except TryLater as error:
            # The kubelet also records only repeated failures, because the runtime may just be starting.
            if failed_before:
                log.error("image GC failed again: %s", error)
                self._record_event(PodEvent(EventType.WARNING, GC_FAILED, str(error)))
            else:
                log.warning("image GC failed, will retry in %g s: %s", PERIOD_SECONDS, error)
        except Exception:
            log.exception("unexpected error in image GC, will retry in %g s", PERIOD_SECONDS)
        return False

    async def collect(self) -> None:
        """Remove images that are too old, then free space if the disk is too full. Raise TryLater."""
        async with self._lock:
            now, unused = await self._detect_images()
            for each in [each for each in unused if is_too_old(each, self._policy, self._began, now)]:
                await self._remove(each, FOR_AGE)
                unused.remove(each)
            usage = await self._runtime.image_usage()
            if usage is None:
                return
            if usage.capacity_bytes <= 0:
                text = "invalid capacity 0 on image filesystem"
                self._record_event(PodEvent(EventType.WARNING, NO_CAPACITY, text))
                raise ImageGCFailed(text)
            wanted = bytes_to_free(usage, self._policy)
            if wanted <= 0:
                return
            log.info("image filesystem %s is too full: freeing %d bytes", usage.mountpoint, wanted)
            freed = await self._free_space(wanted, unused, now)
            if freed < wanted:
                text = insufficient_space_message(usage, freed)
                self._record_event(PodEvent(EventType.WARNING, SPACE_SHORT, text))
                raise ImageGCFailed(text)

    async def _detect_images(self) -> tuple[float, list[TrackedImage]]:
        """List images and their users. Return the time and the unused images."""
        # Before the list: a pull that ends during it may be missing from it, and its record must be kept.
        listed_at = self._clock.monotonic()
        images = await self._runtime.list_images()
        # List the pods after the images, so that a pod which has begun to use a listed image is seen.
        users = [await self._with_images(pod) for pod in await self._runtime.list_pods()]
        now = self._clock.monotonic()
        self._known = detect_images(self._known, images, users, now)
        if self._pull_manager is not None:
            self._pull_manager.prune_unknown_records(frozenset(self._known), listed_at)
        return now, list(removable(self._known, self._pinned, now))

    async def _with_images(self, pod: PodRecord) -> PodRecord:
        """Return a record with the image of each container. A record from a list may lack it."""
        if all(container.image_id or container.image for container in pod.containers):
            return pod
        return await self._runtime.pod_record(PodUID(pod.uid))

    async def _free_space(self, wanted_bytes: int, unused: Iterable[TrackedImage], now: float) -> int:
        """Remove images, least recently used first, until enough is free. Return the bytes freed."""
        freed = 0
        errors: list[str] = []
        for each in unused:
            if freed >= wanted_bytes:
                break
            if not is_old_enough(each, self._policy, now):
                continue
            try:
                await self._remove(each, FOR_SPACE)
                freed += each.image.size_bytes
            except TryLater as error:
                # Continue with the next image: one that cannot be removed must not keep the disk full.
                errors.append(str(error))
        if errors:
            raise ImageGCFailed(f"cannot remove some unused images, freed {freed} bytes: {joined_messages(errors)}")
        return freed

    async def _remove(self, each: TrackedImage, why: str) -> None:
        image = each.image
        await self._runtime.remove_image(image.id)
        self._known.pop(image.id, None)
        log.info("removed image %s (%s), %d bytes, for %s", image.id, ", ".join(image.tags), image.size_bytes, why)
        self._observer.image_removed(why)
