"""What pods stand on: whole calls, one at a time for each pod, and none that was made already."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from msgspec.structs import replace

from podkeeper.engine.background import Background
from podkeeper.engine.ground import Ground
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import PodStatus
from podkeeper.runtimes.fake.faults import Fault
from podkeeper.testing.fakes import FakeCgroups, FakeVolumes
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.engine.small_node import pod, uid

T = TypeVar("T")
WEB, DB = pod("web", volumes=("data",)), pod("db", volumes=("data",))


class House:
    """A ground, and what is below it."""

    def __init__(self) -> None:
        clock = VirtualClock()
        self.volumes, self.cgroups = FakeVolumes(clock), FakeCgroups(clock)
        self.background = Background()
        self.events: list[tuple[str, str]] = []
        self.ground = Ground(
            volumes=self.volumes,
            cgroups=self.cgroups,
            record=lambda event, about: self.events.append((event.reason, event.message)),
            spawn=self.background.spawn,
        )

    @property
    def calls(self) -> list[tuple[str, str]]:
        return [(call.operation, call.about) for call in self.volumes.ledger]


def in_house(scenario: Callable[[House], Awaitable[T]]) -> T:
    async def play() -> T:
        house = House()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(house.background.run())
            await asyncio.sleep(0)
            result = await scenario(house)
            running.cancel()
        return result

    return simulate(play())[0]


def test_a_version_of_a_pod_is_made_ready_once() -> None:
    async def scenario(house: House) -> None:
        ready = await house.ground.prepare(WEB)
        assert (ready.cgroup_parent, dict(ready.host_paths)) == (
            "/kubepods/poduid-web",
            {"data": "/fake/pods/uid-web/volumes/data"},
        )
        assert await house.ground.prepare(replace(WEB, status=PodStatus(phase="Running"))) is ready
        assert len(house.calls) == 1
        await house.ground.prepare(replace(WEB, metadata=replace(WEB.metadata, labels={"a": "b"})))
        assert len(house.calls) == 2

    in_house(scenario)


def test_what_cannot_be_made_ready_is_told_and_tried_again() -> None:
    async def scenario(house: House) -> None:
        house.cgroups.faults.fail("ensure", uid(WEB))
        house.volumes.faults.fail("mount", uid(WEB))
        for _ in range(2):
            with pytest.raises(TryLater):
                await house.ground.prepare(WEB)
        assert [reason for reason, _ in house.events] == ["FailedToCreatePodContainer", "FailedMount"]
        await house.ground.prepare(WEB)

    in_house(scenario)


def test_a_call_is_completed_though_nobody_waits_for_it_and_the_next_comes_after_it() -> None:
    async def scenario(house: House) -> None:
        house.volumes.faults.hang("mount", uid(WEB), seconds=10)
        async with asyncio.TaskGroup() as group:
            pass_ = group.create_task(house.ground.prepare(WEB))
            await asyncio.sleep(1)
            pass_.cancel()
        assert asyncio.get_running_loop().time() == 1  # who is cancelled does not wait
        await house.ground.prepare(DB)  # nor does another pod
        assert asyncio.get_running_loop().time() == 1
        await house.ground.unmount(uid(WEB))
        assert asyncio.get_running_loop().time() == 10
        assert house.calls == [("mount", "uid-web"), ("mount", "uid-db"), ("unmount", "uid-web")]
        assert house.volumes.mounted_pods() == {uid(DB)}

    in_house(scenario)


def test_taking_away_bears_being_repeated_and_then_all_is_made_anew() -> None:
    async def scenario(house: House) -> None:
        await house.ground.prepare(WEB)
        for _ in range(2):
            await house.ground.unmount(uid(WEB))
            await house.ground.remove_cgroup(uid(WEB))
        assert await house.cgroups.list_pods() == frozenset()
        await house.ground.prepare(WEB)
        assert house.volumes.mounted_pods() == {uid(WEB)}

    in_house(scenario)


def test_volumes_in_use_keep_a_pod_until_they_are_free() -> None:
    async def scenario(house: House) -> None:
        await house.ground.prepare(WEB)
        house.volumes.in_use.add(uid(WEB))
        with pytest.raises(TryLater, match="uid-web"):
            await house.ground.unmount(uid(WEB))
        house.volumes.in_use.clear()
        await house.ground.unmount(uid(WEB))

    in_house(scenario)


def test_after_an_unmount_that_failed_all_is_made_ready_again() -> None:
    """It may have taken down some of the volumes."""

    async def scenario(house: House) -> None:
        await house.ground.prepare(WEB)
        house.volumes.in_use.add(uid(WEB))
        with pytest.raises(TryLater):
            await house.ground.unmount(uid(WEB))
        house.volumes.in_use.clear()
        await house.ground.prepare(WEB)
        assert house.calls == [("mount", "uid-web"), ("unmount", "uid-web"), ("mount", "uid-web")]

    in_house(scenario)


def test_what_is_prepared_during_an_unmount_is_made_ready_after_it() -> None:
    async def scenario(house: House) -> None:
        await house.ground.prepare(WEB)
        house.volumes.faults.hang("unmount", uid(WEB), seconds=10)
        async with asyncio.TaskGroup() as group:
            unmount = group.create_task(house.ground.unmount(uid(WEB)))
            await asyncio.sleep(1)
            await house.ground.prepare(WEB)
            assert unmount.done()
        assert asyncio.get_running_loop().time() == 10
        assert house.volumes.mounted_pods() == {uid(WEB)}

    in_house(scenario)


def test_after_an_unmount_that_nobody_waited_for_all_is_made_ready_again() -> None:
    async def scenario(house: House) -> None:
        await house.ground.prepare(WEB)
        house.volumes.faults.hang("unmount", uid(WEB), seconds=10)
        async with asyncio.TaskGroup() as group:
            sync = group.create_task(house.ground.unmount(uid(WEB)))
            await asyncio.sleep(1)
            sync.cancel()
        await house.ground.prepare(WEB)
        assert house.volumes.mounted_pods() == {uid(WEB)}

    in_house(scenario)


def test_a_call_that_fails_makes_way_for_the_next() -> None:
    async def scenario(house: House) -> None:
        house.volumes.faults.add(Fault(operation="mount", about=uid(WEB), times=1, delay_seconds=5, error=TryLater))
        async with asyncio.TaskGroup() as group:
            first = group.create_task(_failing(house))
            await asyncio.sleep(1)
            await house.ground.remove_cgroup(uid(WEB))  # waits for the mount, and is not told how it ended
            assert first.done()
        assert asyncio.get_running_loop().time() == 5
        await house.ground.prepare(WEB)

    in_house(scenario)


async def _failing(house: House) -> None:
    with pytest.raises(TryLater):
        await house.ground.prepare(WEB)
