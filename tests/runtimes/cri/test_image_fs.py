"""Usage of the image file system, from arbitrary answers and from real runtimes."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf.message import Message

from podkeeper.engine.image_gc import ImageGCFailed, ImageGCManager
from podkeeper.host.clock import SystemClock
from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.messages import PodEvent
from podkeeper.rules.images.gc import GcPolicy
from podkeeper.runtimes.cri.image_fs import image_usage
from podkeeper.runtimes.cri.runtime_info import runtime_info
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import Answer, GrpcTransport
from tests.runtimes.cri.cri_node import PORT, CriNode
from tests.runtimes.cri.cri_pod import CriPod
from tests.violations import violation


class Canned:
    """A transport with one answer."""

    def __init__(self, answer: Message | Exception) -> None:
        self._answer = answer

    async def unary(self, method: str, request: Message, answer: type[Answer], seconds: float) -> Answer:
        if isinstance(self._answer, Exception):
            raise self._answer
        assert isinstance(self._answer, answer)
        return self._answer

    def stream(self, method: str, request: Message, answer: type[Answer]) -> AsyncIterator[Answer]:
        raise violation("unexpected stream")

    async def close(self) -> None:
        pass


def disk(mountpoint: str, used: int) -> cri.FilesystemUsage:
    place = cri.FilesystemIdentifier(mountpoint=mountpoint)
    return cri.FilesystemUsage(fs_id=place, used_bytes=cri.UInt64Value(value=used))


def test_image_file_system_usage_comes_from_the_kernel(tmp_path: Path) -> None:
    answer = cri.ImageFsInfoResponse(image_filesystems=[disk(str(tmp_path), 7)])
    usage = asyncio.run(image_usage(Canned(answer)))
    assert usage is not None
    expected = os.statvfs(tmp_path)
    assert (usage.mountpoint, usage.used_bytes) == (str(tmp_path), 7)
    assert usage.capacity_bytes == expected.f_blocks * expected.f_frsize
    assert 0 < usage.available_bytes <= usage.capacity_bytes


def test_a_runtime_that_reports_no_file_system_has_none() -> None:
    for answer in (cri.ImageFsInfoResponse(), cri.ImageFsInfoResponse(image_filesystems=[disk("", 7)])):
        assert asyncio.run(image_usage(Canned(answer))) is None


def test_a_missing_file_system_is_an_error(tmp_path: Path) -> None:
    answer = cri.ImageFsInfoResponse(image_filesystems=[disk(str(tmp_path / "nosuch"), 7)])
    with pytest.raises(RuntimeRefused, match="cannot get the usage of the image file system"):
        asyncio.run(image_usage(Canned(answer)))


def test_image_gc_removes_unused_images_of_a_real_runtime(cri_node: CriNode) -> None:
    unused = f"localhost:{PORT}/podkeeper/unused:1"
    cri_node.store.add(unused, {"Labels": {"made-for": "image-gc-test"}})
    events: list[PodEvent] = []

    async def scenario() -> None:
        transport = GrpcTransport(cri_node.socket)
        pause = (await runtime_info(transport)).sandbox_image
        await transport.close()
        assert pause
        async with cri_node.opened() as runtime:
            before = {image.id: image for image in await runtime.list_images()}
            assert pause in {tag for image in before.values() for tag in image.tags}
            used = next(image for image in before.values() if pause not in image.tags and image.tags)
            cri_pod = CriPod(runtime, used.id)
            await cri_pod.create(await cri_pod.sandbox(), "true")
            await runtime.pull_image(unused)
            others = [tag for image in before.values() if image is not used for tag in image.tags]
            gc = ImageGCManager(
                runtime=runtime,
                clock=SystemClock(),
                policy=GcPolicy(high_percent=1, low_percent=0, min_age_seconds=0),
                record_event=events.append,
                pinned=others,
            )
            usage = await runtime.image_usage()
            assert usage is not None
            assert usage.mountpoint.startswith(str(cri_node.root))
            assert 0 < usage.available_bytes < usage.capacity_bytes
            await asyncio.sleep(0.01)
            assert await runtime.image(unused) is not None
            # More than all images must be freed, so the collection removes every unused image and then fails.
            with pytest.raises(ImageGCFailed, match=r"freed [1-9]\d* bytes"):
                await gc.collect()
            assert await runtime.image(unused) is None
            assert {image.id for image in await runtime.list_images()} == before.keys()

    cri_node.run(scenario())
    assert [event.reason for event in events] == ["FreeDiskSpaceFailed"]
