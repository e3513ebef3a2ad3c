"""How full the disk of images is: what image garbage collection must know.

The runtime says where images lie and how much they take; the kernel says how large and how full that file system is.
The Go ancestor is `ImageFsStats` in pkg/kubelet/stats/cri_stats_provider.go.
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
    """How full the file system is that images lie on; None when the runtime names none. Raises TryLater."""
    answer = await transport.unary(_IMAGE_FS_INFO, cri.ImageFsInfoRequest(), cri.ImageFsInfoResponse, SECONDS)
    for each in answer.image_filesystems:
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
    """Capacity of the file system that a path lies on, and what of it is free for all."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        raise RuntimeRefused(f"cannot tell how full the disk of images is: {path}: {error.strerror}") from error
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
