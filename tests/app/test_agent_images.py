"""A whole agent that cares for images and dead containers, in virtual time: pull secrets, garbage, events."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from dataclasses import replace

from podkeeper.app.build import Agent
from podkeeper.model.k8s.core import Container, Event, LocalObjectReference, Pod, PodSpec, Secret
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.runtime import ContainerState
from podkeeper.rules.image_gc import USUAL_POLICY
from podkeeper.runtimes.fake import Behaviour, Operation
from podkeeper.testing.virtual_time import simulate
from tests.app.node_house import NODE, NodeHouse

IMAGE = "reg.test/app:v1"
MIB = 2**20


class CaringHouse(NodeHouse):
    """A node whose agent cares for images and dead containers."""

    def _new_agent(self) -> Agent:
        plain = super()._new_agent()
        ports = replace(plain.ports, pull_journal=self.journal)
        return Agent(ports, replace(plain.settings, image_gc=USUAL_POLICY, container_gc_seconds=60.0))

    def dead(self, name: str) -> list[int]:
        """Which tries of a pod's container lie dead."""
        record = self.agent.cache.get(self.uid(name))
        return [found.restart_count for found in record.containers if found.state is ContainerState.EXITED]

    async def events(self, about: str) -> list[tuple[str, str, str]]:
        """Kind, reason and message of the events about an object."""
        found = (await self.api.list(Event)).items
        about_it = [each for each in found if each.involved_object.name == about]
        return [(each.involved_object.kind or "", each.reason or "", each.message or "") for each in about_it]


def play(scenario: Callable[[CaringHouse], Awaitable[None]]) -> None:
    async def played() -> None:
        house = CaringHouse()
        async with asyncio.TaskGroup() as group:
            await house.start_agent(group)
            await scenario(house)
            await house.stop_agent()
        assert list(house.runtime.violations) == []

    simulate(played())


def pod(name: str, *, image: str = IMAGE, secrets: tuple[str, ...] = ()) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=PodSpec(
            node_name=NODE,
            containers=(Container(name="app", image=image, image_pull_policy="IfNotPresent"),),
            image_pull_secrets=tuple(LocalObjectReference(name=each) for each in secrets),
            restart_policy="Always",
            termination_grace_period_seconds=1,
        ),
    )


def pull_secret(name: str, password: str) -> Secret:
    config = json.dumps({"auths": {"reg.test": {"username": "me", "password": password}}})
    return Secret(
        metadata=ObjectMeta(name=name, namespace="default"),
        type="kubernetes.io/dockerconfigjson",
        data={".dockerconfigjson": b64encode(config.encode()).decode()},
    )


def test_a_private_image_is_pulled_with_the_pods_secret_and_kept_from_others() -> None:
    async def scenario(house: CaringHouse) -> None:
        house.runtime.private_images[IMAGE] = frozenset({"right"})
        await house.api.create(pull_secret("mine", "right"))
        await house.create(pod("owner", secrets=("mine",)))
        await house.until(lambda: house.phase("owner") == "Running", within=10)
        await house.create(pod("stranger", secrets=("nosuch",)))
        await asyncio.sleep(5)
        assert house.phase("stranger") == "Pending"
        reasons = [reason for _, reason, _ in await house.events("stranger")]
        assert reasons[:2] == ["FailedToRetrieveImagePullSecret", "Pulling"]
        await house.restart_agent()
        await house.create(pod("owner2", secrets=("mine",)))
        await house.until(lambda: house.phase("owner2") == "Running", within=10)
        pulls = [call for call in house.runtime.ledger if call.operation == Operation.PULL_IMAGE and not call.error]
        assert len(pulls) == 1, "whoever may have it need not pull it again, even after a restart"

    play(scenario)


def test_a_secret_that_comes_later_lets_the_pull_go_on() -> None:
    async def scenario(house: CaringHouse) -> None:
        house.runtime.private_images[IMAGE] = frozenset({"right"})
        await house.create(pod("web", secrets=("mine",)))
        await asyncio.sleep(5)
        await house.api.create(pull_secret("mine", "right"))
        await house.until(lambda: house.phase("web") == "Running", within=30)

    play(scenario)


def test_a_full_disk_is_freed_of_what_no_pod_uses() -> None:
    async def scenario(house: CaringHouse) -> None:
        await house.runtime.pull_image("reg.test/old:v1")
        await house.create(pod("web"))
        await asyncio.sleep(200)
        house.runtime.image_disk_bytes, house.runtime.other_disk_bytes = 200 * MIB, 150 * MIB
        await asyncio.sleep(101)
        assert [image.tags for image in await house.runtime.list_images()] == [(IMAGE,)]
        assert await house.events(NODE) == []
        house.runtime.other_disk_bytes = 190 * MIB
        await asyncio.sleep(300)
        assert [(kind, reason) for kind, reason, _ in await house.events(NODE)] == [("Node", "FreeDiskSpaceFailed")]
        assert [image.tags for image in await house.runtime.list_images()] == [(IMAGE,)]
        assert 'kubelet_image_garbage_collected_total{reason="space"} 1' in house.agent.metrics.exposition().decode()

    play(scenario)


def test_a_crash_loop_leaves_one_dead_container() -> None:
    async def scenario(house: CaringHouse) -> None:
        house.runtime.behave("web", "*", Behaviour(exit_code=1, after_seconds=1))
        await house.create(pod("web"))
        most = 0
        for _ in range(600):
            await asyncio.sleep(1)
            most = max(most, len(house.dead("web")))
        assert max(house.dead("web")) >= 5
        assert most <= 2, "the newest, and for a moment the one before it"
        assert len(house.dead("web")) == 1

    play(scenario)


def test_what_could_not_be_removed_at_once_goes_within_a_minute() -> None:
    async def scenario(house: CaringHouse) -> None:
        house.runtime.behave("web", "*", Behaviour(exit_code=1, after_seconds=1, crashes=3))
        house.runtime.faults.fail(Operation.REMOVE_CONTAINER, times=3)
        await house.create(pod("web"))
        await asyncio.sleep(45)
        assert house.dead("web") == [2, 1, 0]
        await asyncio.sleep(60)
        assert house.dead("web") == [2]

    play(scenario)


def test_what_died_while_no_agent_ran_goes_within_a_minute() -> None:
    async def scenario(house: CaringHouse) -> None:
        house.runtime.behave("web", "*", Behaviour(exit_code=1, after_seconds=1, crashes=3))
        house.runtime.faults.fail(Operation.REMOVE_CONTAINER, times=None)
        await house.create(pod("web"))
        await asyncio.sleep(45)
        assert len(house.dead("web")) == 3
        await house.stop_agent()
        house.runtime.faults.clear()
        await house.restart_agent()
        await asyncio.sleep(61)
        assert house.dead("web") == [2]

    play(scenario)
