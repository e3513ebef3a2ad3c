"""The volumes of a pod, with an event at every await and a failure at every read and in every thread."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from podkeeper.model.errors import ApiUnavailable, NotFound
from podkeeper.model.k8s.core import ConfigMapVolumeSource, EmptyDirVolumeSource, Volume
from podkeeper.model.pods import uid_of
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from podkeeper.volumes.manager import HostVolumes
from tests.volumes.harness import Store, content, pod_with, temporary_root

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
DISK = Volume(name="disk", empty_dir=EmptyDirVolumeSource())
SETTINGS = Volume(name="settings", config_map=ConfigMapVolumeSource(name="settings"))
POD = pod_with(DISK, SETTINGS)
NEIGHBOUR = pod_with(SETTINGS)
UID = uid_of(POD)


@dataclass
class Stage:
    store: Store
    volumes: HostVolumes
    root: str

    def paint(self, colour: str) -> None:
        self.store.config_map("settings", colour=colour)

    async def mount_newer(self) -> None:
        self.paint("yellow")
        await self.volumes.mount(POD)

    def shown(self) -> tuple[dict[str, str], bool]:
        """Return the files that the containers read, and whether the pod must be unmounted."""
        return content(f"{self.root}/pods/{UID}/volumes"), UID in self.volumes.mounted_pods()


@asynccontextmanager
async def empty(calls: PortCalls) -> AsyncIterator[Stage]:
    calls.errors["threads", "start"] = (RuntimeError,)

    def start(body: Callable[[], None], name: str) -> None:
        if calls.begin("threads", "start") is not None:
            raise RuntimeError("can't start new thread")
        asyncio.get_running_loop().call_soon(body)

    store = Store()
    store.config_map("settings", colour="blue")
    store.config_map("other", shape="round")
    with temporary_root(MEMORY) as root:
        objects = calls.watch("objects", store, {"get": (NotFound, ApiUnavailable)})
        yield Stage(store, HostVolumes(root, objects, start_thread=start), str(root))


@asynccontextmanager
async def mounted(calls: PortCalls) -> AsyncIterator[Stage]:
    async with empty(calls) as stage:
        await stage.volumes.mount(POD)
        await stage.volumes.mount(NEIGHBOUR)
        calls.log.clear()
        yield stage


@asynccontextmanager
async def changed(calls: PortCalls) -> AsyncIterator[Stage]:
    async with mounted(calls) as stage:
        stage.paint("red")
        yield stage


async def volumes_still_work(stage: Stage) -> None:
    """New content is written, and a pod that is mounted again or unmounted is so completely."""
    await stage.volumes.mount(POD)
    stage.paint("green")
    await stage.volumes.refresh()
    files, _ = stage.shown()
    assert files["kubernetes.io~configmap/settings/colour"] == "green"
    await stage.volumes.unmount(UID)
    await stage.volumes.remove_directory(UID)
    assert UID not in stage.volumes.mounted_pods() | await stage.volumes.directories()


async def refresh_twice(stage: Stage) -> None:
    for _ in range(2):  # a refresh that fails leaves the old content, and the next one replaces it
        await stage.volumes.refresh()


MOUNT = OperationTest(
    setup=empty, run=lambda it: it.volumes.mount(POD), state=Stage.shown, afterwards=volumes_still_work
)
UNMOUNT = OperationTest(
    setup=mounted, run=lambda it: it.volumes.unmount(UID), state=Stage.shown, afterwards=volumes_still_work
)
REFRESH = OperationTest(
    setup=changed, run=lambda it: it.volumes.refresh(), state=Stage.shown, afterwards=volumes_still_work
)
REFRESH_TWICE = dataclasses.replace(REFRESH, run=refresh_twice)

EVENTS: dict[str, Event[Stage]] = {
    "the volumes are mounted": lambda it: it.volumes.mount(POD),
    "the volumes are unmounted": lambda it: it.volumes.unmount(UID),
    "the directory is removed": lambda it: it.volumes.remove_directory(UID),
    "another pod is mounted": lambda it: it.volumes.mount(NEIGHBOUR),
    "another pod is unmounted": lambda it: it.volumes.unmount(uid_of(NEIGHBOUR)),
    "all volumes are refreshed": lambda it: it.volumes.refresh(),
}


# Not during another mount: `engine/pod_setup` serialises the calls of one pod. A refresh comes at any time.
NEWER: dict[str, Event[Stage]] = {"the volumes are mounted with newer content": Stage.mount_newer}


def test_a_refresh_does_not_replace_newer_content_of_a_mount() -> None:
    interleave(REFRESH, NEWER)


@pytest.mark.parametrize("operation", [MOUNT, UNMOUNT, REFRESH], ids=["mount", "unmount", "refresh"])
def test_every_event_at_every_await(operation: OperationTest[Stage]) -> None:
    interleave(operation, EVENTS)


@pytest.mark.parametrize("operation", [MOUNT, UNMOUNT, REFRESH_TWICE], ids=["mount", "unmount", "refresh"])
def test_every_read_and_every_thread_fails_once(operation: OperationTest[Stage]) -> None:
    fail_each_call(operation, lost_answers=False)
