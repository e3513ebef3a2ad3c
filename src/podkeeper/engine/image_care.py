"""The care for the node's images: unused ones go when their disk fills up, or when nobody wants them for long.

    list images -> list pods -> what is unused, the longest first -> those too old go -> is the disk full?
                                                                    as many go as it takes <--yes--'

A look comes at the beginning and every five minutes after. What is decided is in `rules.image_gc`; nothing but when
images were first seen and last used is remembered, and only for as long as the agent lives. A round that cannot free
enough says so by an event about the node; one that fails says so from the second failure in a row on, as the runtime
may have been about to start. `delete_unused` is for whoever needs space now.

The Go ancestor is pkg/kubelet/images/image_gc_manager.go.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf
from typing import Final, Protocol

from podkeeper.model.errors import TryLater
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import ImageFsUsage, ImageRecord, PodRecord
from podkeeper.ports.clock import Clock
from podkeeper.rules.image_gc import (
    GcPolicy,
    Known,
    bytes_to_free,
    may_go_for_space,
    removable,
    seen_now,
    shortage_text,
    too_old,
)
from podkeeper.rules.pull import together

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 300.0

GC_FAILED: Final = "ImageGCFailed"
SPACE_SHORT: Final = "FreeDiskSpaceFailed"
NO_CAPACITY: Final = "InvalidDiskCapacity"

FOR_SPACE: Final = "space"
FOR_AGE: Final = "age"


class Runtime(Protocol):
    """What is asked of the runtime."""

    async def list_images(self) -> Sequence[ImageRecord]:
        """All images of the node."""

    async def remove_image(self, reference: str) -> None:
        """Remove an image."""

    async def image_usage(self) -> ImageFsUsage | None:
        """How full the file system is that images lie on."""

    async def list_pods(self) -> Sequence[PodRecord]:
        """Every pod the runtime has anything of."""

    async def pod_record(self, uid: PodUID) -> PodRecord:
        """All about one pod."""


class GcFailed(TryLater):
    """A round did not do what it should have."""


def _ignore(*_: object) -> None:
    """Nobody wants to know."""


class ImageCare:
    """Keeps the disk of images from filling up."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        clock: Clock,
        policy: GcPolicy,
        tell: Callable[[PodEvent], None],
        kept: Collection[str] = (),
        left: Callable[[Collection[str], float], None] = _ignore,
        removed: Callable[[str], None] = _ignore,
    ) -> None:
        """`tell` records events about the node; `kept` are images that never go, by name.

        `left` hears which images there are, by id, and when they were listed; `removed` why one went.
        """
        self._runtime = runtime
        self._clock = clock
        self._policy = policy
        self._tell = tell
        self._kept = tuple(kept)
        self._left = left
        self._removed = removed
        self._known: dict[str, Known] = {}
        self._began = clock.monotonic()
        self._at_work = asyncio.Lock()  # one at a time: who frees space counts on what it saw

    async def run(self) -> None:
        """Look after images until cancelled."""
        self._began = self._clock.monotonic()
        failed_before = False
        while not self._policy.is_idle:
            failed_before = not await self._round(failed_before)
            await asyncio.sleep(PERIOD_SECONDS)

    async def _round(self, failed_before: bool) -> bool:
        """Make one round. Returns whether it went well."""
        try:
            await self.collect()
            return True
        except TryLater as error:
            if failed_before:
                log.error("images are not collected, and were not before: %s", error)
                self._tell(PodEvent(EventType.WARNING, GC_FAILED, str(error)))
            else:
                log.warning("images are not collected, next round in %g s: %s", PERIOD_SECONDS, error)
        except Exception:
            log.exception("images are not collected, next round in %g s", PERIOD_SECONDS)
        return False

    async def collect(self) -> None:
        """Remove what is too old; and as much as it takes where the disk is too full. Raises TryLater."""
        async with self._at_work:
            now, unused = await self._look()
            for each in [each for each in unused if too_old(each, self._policy, self._began, now)]:
                await self._remove(each, FOR_AGE)
                unused.remove(each)
            usage = await self._runtime.image_usage()
            if usage is None:
                return
            if usage.capacity_bytes <= 0:
                text = "invalid capacity 0 on image filesystem"
                self._tell(PodEvent(EventType.WARNING, NO_CAPACITY, text))
                raise GcFailed(text)
            wanted = bytes_to_free(usage, self._policy)
            if wanted <= 0:
                return
            log.info("the disk of images (%s) is too full: %d bytes must go", usage.mountpoint, wanted)
            freed = await self._free(wanted, unused, now)
            if freed < wanted:
                text = shortage_text(usage, freed)
                self._tell(PodEvent(EventType.WARNING, SPACE_SHORT, text))
                raise GcFailed(text)

    async def delete_unused(self) -> int:
        """Remove all that nobody uses and that is old enough. Returns how many bytes that freed. Raises TryLater."""
        async with self._at_work:
            now, unused = await self._look()
            return await self._free(inf, unused, now)

    async def _look(self) -> tuple[float, list[Known]]:
        """See what there is: the time of the look, and the images that nobody uses."""
        listed_at = self._clock.monotonic()
        images = await self._runtime.list_images()
        # Pods after images: who began to use one since then is seen to do so.
        users = [await self._with_images(pod) for pod in await self._runtime.list_pods()]
        now = self._clock.monotonic()
        self._known = seen_now(self._known, images, users, now)
        self._left(frozenset(self._known), listed_at)
        return now, list(removable(self._known, self._kept, now))

    async def _with_images(self, pod: PodRecord) -> PodRecord:
        """A pod whose containers all say what they are made from; a listing need not say it."""
        if all(container.image_id or container.image for container in pod.containers):
            return pod
        return await self._runtime.pod_record(PodUID(pod.uid))

    async def _free(self, wanted_bytes: float, unused: Iterable[Known], now: float) -> int:
        """Remove images, the longest unused first, until enough is free. Returns how much; raises if one did not go."""
        freed = 0
        errors: list[str] = []
        for each in unused:
            if freed >= wanted_bytes:
                break
            if not may_go_for_space(each, self._policy, now):
                continue
            try:
                await self._remove(each, FOR_SPACE)
                freed += each.image.size_bytes
            except TryLater as error:
                errors.append(str(error))
        if errors:
            raise GcFailed(f"cannot remove all images that should go, {freed} bytes are freed: {together(errors)}")
        return freed

    async def _remove(self, each: Known, why: str) -> None:
        image = each.image
        await self._runtime.remove_image(image.id)
        self._known.pop(image.id, None)
        log.info("removed image %s (%s), %d bytes, for %s", image.id, ", ".join(image.tags), image.size_bytes, why)
        self._removed(why)
