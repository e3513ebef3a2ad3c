"""The whole agent with image and container garbage collection, in virtual time: pull secrets, removals, events."""

import asyncio
import json
from base64 import b64encode
from dataclasses import replace
from functools import partial

from podkeeper.app.build import Ports, Settings
from podkeeper.model.k8s.core import Event, Secret
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.runtime import RecordState
from podkeeper.rules.images.gc import GcPolicy
from podkeeper.rules.static.pod import References
from podkeeper.runtimes.fake import Behaviour, Operation
from podkeeper.testing import build
from podkeeper.testing.build import container
from podkeeper.testing.node import NODE, NodeHarness, on_node

IMAGE = "reg.test/app:v1"
MIB = 2**20


class NodeWithGC(NodeHarness):
    """A node whose agent collects images and dead containers."""

    def ports(self) -> Ports:
        return replace(super().ports(), pull_journal=self.journal)

    def settings(self) -> Settings:
        return replace(super().settings(), image_gc=GcPolicy(), container_gc_seconds=60.0)

    def dead(self, name: str) -> list[int]:
        """Return the attempt numbers of a pod's exited containers."""
        record = self.agent.engine.cache.get(self.uid(name))
        return [found.restart_count for found in record.containers if found.state is RecordState.EXITED]

    async def events(self, about: str) -> list[tuple[str, str, str]]:
        """Kind, reason and message of the events about an object."""
        found = (await self.api.list(Event)).items
        about_it = [each for each in found if each.involved_object.name == about]
        return [(each.involved_object.kind or "", each.reason or "", each.message or "") for each in about_it]


pod = partial(build.pod, uid="", node=NODE, grace=1)
APP = container(image=IMAGE, image_pull_policy="IfNotPresent")


def pull_secret(name: str, password: str) -> Secret:
    config = json.dumps({"auths": {"reg.test": {"username": "me", "password": password}}})
    return Secret(
        metadata=ObjectMeta(name=name, namespace="default"),
        type="kubernetes.io/dockerconfigjson",
        data={".dockerconfigjson": b64encode(config.encode()).decode()},
    )


def test_a_private_image_is_pulled_with_a_secret_and_denied_to_other_pods() -> None:
    async def scenario(harness: NodeWithGC) -> None:
        harness.runtime.private_images[IMAGE] = frozenset({"right"})
        await harness.api.create(pull_secret("mine", "right"))
        await harness.create(pod("owner", APP, pull_secrets=("mine",)))
        await harness.until(lambda: harness.phase("owner") == "Running", within=10)
        await harness.create(pod("other", APP, pull_secrets=("nosuch",)))
        await asyncio.sleep(5)
        assert harness.phase("other") == "Pending"
        reasons = [reason for _, reason, _ in await harness.events("other")]
        assert reasons[:2] == ["FailedToRetrieveImagePullSecret", "Pulling"]
        await harness.restart_agent()
        await harness.create(pod("owner2", APP, pull_secrets=("mine",)))
        await harness.until(lambda: harness.phase("owner2") == "Running", within=10)
        pulls = [call for call in harness.runtime.call_log if call.operation == Operation.PULL_IMAGE and not call.error]
        assert len(pulls) == 1, "a pod with the right secret needs no second pull, even after a restart"

    on_node(scenario, NodeWithGC)


def test_a_pull_continues_after_its_secret_is_created() -> None:
    async def scenario(harness: NodeWithGC) -> None:
        harness.runtime.private_images[IMAGE] = frozenset({"right"})
        await harness.create(pod("web", APP, pull_secrets=("mine",)))
        await asyncio.sleep(5)
        assert harness.phase("web") == "Pending"
        await harness.api.create(pull_secret("mine", "right"))
        await harness.until(lambda: harness.phase("web") == "Running", within=30)

    on_node(scenario, NodeWithGC)


def test_unused_images_are_removed_from_a_full_disk() -> None:
    async def scenario(harness: NodeWithGC) -> None:
        await harness.runtime.pull_image("reg.test/old:v1")
        await harness.create(pod("web", APP))
        await asyncio.sleep(200)
        harness.runtime.image_disk_bytes, harness.runtime.other_disk_bytes = 200 * MIB, 150 * MIB
        await asyncio.sleep(101)
        assert [image.tags for image in await harness.runtime.list_images()] == [(IMAGE,)]
        assert await harness.events(NODE) == []
        harness.runtime.other_disk_bytes = 190 * MIB
        await asyncio.sleep(300)
        assert [(kind, reason) for kind, reason, _ in await harness.events(NODE)] == [("Node", "FreeDiskSpaceFailed")]
        assert [image.tags for image in await harness.runtime.list_images()] == [(IMAGE,)]
        assert (
            'kubelet_image_garbage_collected_total{reason="space"} 1'
            in harness.agent.engine.metrics.exposition().decode()
        )

    on_node(scenario, NodeWithGC)


def test_a_crash_loop_leaves_one_dead_container() -> None:
    async def scenario(harness: NodeWithGC) -> None:
        harness.runtime.behave("web", "*", Behaviour(exit_code=1, after_seconds=1))
        await harness.create(pod("web", APP))
        most = 0
        for _ in range(600):
            await asyncio.sleep(1)
            most = max(most, len(harness.dead("web")))
        assert max(harness.dead("web")) >= 5
        assert most <= 2, "the newest, and for a moment the one before it"
        assert len(harness.dead("web")) == 1

    on_node(scenario, NodeWithGC)


def test_a_failed_removal_is_repeated_within_a_minute() -> None:
    async def scenario(harness: NodeWithGC) -> None:
        harness.runtime.behave("web", "*", Behaviour(exit_code=1, after_seconds=1, crashes=3))
        harness.runtime.faults.fail(Operation.REMOVE_CONTAINER, times=3)
        await harness.create(pod("web", APP))
        await asyncio.sleep(45)
        assert harness.dead("web") == [2, 1, 0]
        await asyncio.sleep(60)
        assert harness.dead("web") == [2]

    on_node(scenario, NodeWithGC)


def test_containers_that_exited_while_no_agent_ran_are_removed_within_a_minute() -> None:
    async def scenario(harness: NodeWithGC) -> None:
        harness.runtime.behave("web", "*", Behaviour(exit_code=1, after_seconds=1, crashes=3))
        harness.runtime.faults.fail(Operation.REMOVE_CONTAINER, times=None)
        await harness.create(pod("web", APP))
        await asyncio.sleep(45)
        assert len(harness.dead("web")) == 3
        await harness.stop_agent()
        harness.runtime.faults.clear()
        await harness.restart_agent()
        await asyncio.sleep(61)
        assert harness.dead("web") == [2]

    on_node(scenario, NodeWithGC)


def test_a_kept_image_is_not_removed_from_a_full_disk() -> None:
    class NodeWithKeptImage(NodeWithGC):
        def ports(self) -> Ports:
            return replace(super().ports(), kept_images=("reg.test/kept:v1",))

    async def scenario(harness: NodeWithGC) -> None:
        for name in ("kept", "old"):
            await harness.runtime.pull_image(f"reg.test/{name}:v1")
        await asyncio.sleep(200)
        harness.runtime.image_disk_bytes, harness.runtime.other_disk_bytes = 200 * MIB, 190 * MIB
        await asyncio.sleep(301)
        assert [image.tags for image in await harness.runtime.list_images()] == [("reg.test/kept:v1",)]

    on_node(scenario, NodeWithKeptImage)


def test_the_record_of_a_pull_is_in_the_journal_until_its_image_is_removed() -> None:
    async def scenario(harness: NodeWithGC) -> None:
        def keys() -> list[str]:
            return [key.partition("/")[0] for key in harness.journal.load() if key.startswith("pull")]

        harness.runtime.faults.hang(Operation.PULL_IMAGE, IMAGE, seconds=10)
        await harness.create(pod("web", APP))
        await asyncio.sleep(5)
        assert keys() == ["pull-begun"]
        await harness.until(lambda: harness.phase("web") == "Running", within=20)
        assert keys() == ["pulled"]
        await harness.delete("web")
        await harness.until(lambda: harness.phase("web") == "gone", within=20)
        for image in await harness.runtime.list_images():
            await harness.runtime.remove_image(image.id)
        await asyncio.sleep(700)
        assert keys() == []

    on_node(scenario, NodeWithGC)


def test_pull_secrets_come_from_the_manifests_if_there_is_no_api() -> None:
    class NodeWithoutApi(NodeWithGC):
        def ports(self) -> Ports:
            return replace(super().ports(), api=None, objects=self.api, sources=(self.files,))

    async def scenario(harness: NodeWithGC) -> None:
        harness.runtime.private_images[IMAGE] = frozenset({"right"})
        await harness.api.create(pull_secret("mine", "right"))
        harness.files.write(
            "/manifests/web.yaml", pod("web", APP, pull_secrets=("mine",)), allowed=References.LOCAL_STORE
        )
        await harness.until(lambda: bool(harness.runtime.live_containers()), within=10)

    on_node(scenario, NodeWithoutApi)
