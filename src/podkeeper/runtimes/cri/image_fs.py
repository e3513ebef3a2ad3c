"""Usage of the image file system, for image garbage collection.

The runtime reports the mount point and the size of the images, the kernel reports the size of the file system.
Kubelet counterpart: `ImageFsStats` in pkg/kubelet/stats/cri_stats_provider.go.
"""

import asyncio
import os
from typing import Final

from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.runtime import ImageFsUsage
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import Transport

SECONDS: Final = 30.0
_IMAGE_FS_INFO: Final = "/runtime.v1.ImageService/ImageFsInfo"


async def image_usage(transport: Transport) -> ImageFsUsage | None:
    """Return the usage of the image file system. None if the runtime reports none. Raises TryLater."""
    answer = await transport.unary(_IMAGE_FS_INFO, cri.ImageFsInfoRequest(), cri.ImageFsInfoResponse, SECONDS)
    for each in answer.image_filesystems:
        # CRI reports no capacity, so get it from the kernel, as the kubelet does.
        mountpoint = each.fs_id.mountpoint
        if mountpoint:
            capacity, available = await asyncio.to_thread(_space_of, mountpoint)
            return ImageFsUsage(
                mountpoint=mountpoint,
                used_bytes=each.used_bytes.value,
                capacity_bytes=capacity,
                available_bytes=available,
            )
    return None


def _space_of(path: str) -> tuple[int, int]:
    """Return the capacity of a path's file system, and the space available to ordinary users."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        raise RuntimeRefused(f"cannot get the usage of the image file system: {path}: {error.strerror}") from error
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
