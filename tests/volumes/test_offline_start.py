"""Volumes after a reboot without the API server: real files, the API in memory, objects stored on disk."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from podkeeper.app.sources import stored_objects
from podkeeper.host.clock import SystemClock
from podkeeper.linux.mounts import mounts_below, unmount
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import (
    ConfigMap,
    ConfigMapProjection,
    ConfigMapVolumeSource,
    Pod,
    ProjectedVolumeSource,
    Secret,
    SecretVolumeSource,
    ServiceAccountTokenProjection,
    Volume,
    VolumeProjection,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.sources.stored_objects import StoredObjects
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.volumes.manager import HostVolumes
from tests.volumes.harness import content, pod_with, run, temporary_root

SETTINGS = Volume(name="settings", config_map=ConfigMapVolumeSource(name="settings"))
SECRET = Volume(name="secret", secret=SecretVolumeSource(secret_name="password"))
ACCESS = Volume(
    name="access",
    projected=ProjectedVolumeSource(
        sources=(
            VolumeProjection(service_account_token=ServiceAccountTokenProjection(path="token")),
            VolumeProjection(config_map=ConfigMapProjection(name="settings")),
        )
    ),
)


class TokenProvider:
    """Issues one token for each audience, through the API."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api

    async def token(self, pod: Pod, audience: str, expiration_seconds: int | None) -> str:
        await self._api.get(ConfigMap, "settings", "default")  # the API must answer
        return f"token-for-{pod.metadata.name}"


class Node:
    """A node whose API has a config map and a secret."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = SystemClock()
        self.api = MemoryApi(self.clock)
        self.set_colour("blue")
        meta = ObjectMeta(name="password", namespace="default")
        self.api.put(Secret(metadata=meta, data={"admin": "aHVudGVyMg=="}))

    def set_colour(self, colour: str) -> None:
        self.api.put(ConfigMap(metadata=ObjectMeta(name="settings", namespace="default"), data={"colour": colour}))

    @asynccontextmanager
    async def life(self, *, keep_secrets: bool = True) -> AsyncIterator[tuple[HostVolumes, StoredObjects]]:
        tokens = TokenProvider(self.api)
        kept = stored_objects(api=self.api, root=self.root, clock=self.clock, keep_secrets=keep_secrets, tokens=tokens)
        running = asyncio.create_task(kept.run())
        yield HostVolumes(self.root, kept, tokens=kept), kept
        running.cancel()
        await asyncio.wait([running])

    def stored(self) -> list[Path]:
        """The finished files. A thread may still be writing a file with the suffix .new."""
        return [path for path in (self.root / "objects").glob("*") if path.suffix != ".new"]

    async def until_stored(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.stored()) != count:
                await asyncio.sleep(0.005)

    def reboot(self) -> None:
        """Remove everything in memory, and also the directories of the pods, so that nothing can come from there."""
        for path in reversed(mounts_below(os.path.realpath(self.root))):
            unmount(path)
        shutil.rmtree(self.root / "pods")


def test_after_a_reboot_without_the_api_volumes_have_the_stored_and_later_the_current_content() -> None:
    async def scenario() -> None:
        node = Node(root)
        pod = pod_with(SETTINGS, SECRET, ACCESS)
        async with node.life() as (volumes, _):
            await volumes.mount(pod)
            await node.until_stored(3)
        node.reboot()
        node.api.go_down()
        async with node.life() as (volumes, _):
            paths = await volumes.mount(pod)
            assert content(paths["settings"]) == {"colour": "blue"}
            assert content(paths["secret"]) == {"admin": "hunter2"}
            assert content(paths["access"]) == {"token": "token-for-web", "colour": "blue"}
        node.reboot()
        async with node.life() as (volumes, _):
            node.api.come_up()
            node.set_colour("red")
            assert content((await volumes.mount(pod))["settings"]) == {"colour": "red"}

    with temporary_root() as root:
        run(scenario())


def test_without_permission_no_secret_is_stored_on_disk_and_its_volume_waits_for_the_api() -> None:
    async def scenario() -> None:
        node = Node(root)
        async with node.life(keep_secrets=False) as (volumes, _):
            await volumes.mount(pod_with(SETTINGS, SECRET, ACCESS))
            await node.until_stored(1)
        on_disk = b"".join(path.read_bytes() for path in (node.root / "objects").iterdir())
        assert b"aHVudGVyMg==" not in on_disk
        assert b"token-for" not in on_disk
        node.reboot()
        node.api.go_down()
        async with node.life(keep_secrets=False) as (volumes, _):
            assert content((await volumes.mount(pod_with(SETTINGS)))["settings"]) == {"colour": "blue"}
            for volume in (SECRET, ACCESS):
                with pytest.raises(TryLater):
                    await volumes.mount(pod_with(volume))

    with temporary_root() as root:
        run(scenario())


def test_after_the_last_pod_its_stored_objects_are_removed() -> None:
    async def scenario() -> None:
        node = Node(root)
        pod = pod_with(SETTINGS, SECRET, ACCESS)
        async with node.life() as (volumes, kept):
            await volumes.mount(pod)
            kept.keep_for([pod])
            await node.until_stored(3)
            kept.keep_for([])
            await node.until_stored(0)

    with temporary_root() as root:
        run(scenario())
