"""What pods stand on: whole calls, one at a time for each pod, and none that was made already."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from msgspec.structs import replace

from podkeeper.engine.background import Background
from podkeeper.engine.ground import Ground
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.runtime import PodRecord
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
        self.recorded: list[tuple[PodEvent, Pod | PodRecord | None]] = []
        self.ground = Ground(
            volumes=self.volumes,
            cgroups=self.cgroups,
            record=self.record,
            spawn=self.background.spawn,
        )

    def record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.events.append((event.reason, event.message))
        self.recorded.append((event, about))

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


CHANGED = {
    "labels": replace(WEB, metadata=replace(WEB.metadata, labels={"a": "b"})),
    "annotations": replace(WEB, metadata=replace(WEB.metadata, annotations={"a": "b"})),
    "the spec": pod("web", volumes=("data", "more")),
}


@pytest.mark.parametrize("changed", CHANGED.values(), ids=CHANGED.keys())
def test_a_changed_pod_is_made_ready_again_and_is_the_version_that_counts(changed: Pod) -> None:
    async def scenario(house: House) -> None:
        first = await house.ground.prepare(WEB)
        second = await house.ground.prepare(changed)
        assert (second is not first, second.pod) == (True, changed)
        assert await house.ground.prepare(changed) is second
        third = await house.ground.prepare(WEB)
        assert third is not second
        assert len(house.calls) == 3

    in_house(scenario)


def test_the_latest_version_that_stands_on_the_same_is_remembered() -> None:
    async def scenario(house: House) -> None:
        ready = await house.ground.prepare(WEB)
        later = replace(WEB, status=PodStatus(phase="Running"))
        assert await house.ground.prepare(later) is ready
        assert ready.pod is later

    in_house(scenario)


def test_a_failure_is_recorded_about_the_pod_and_ends_the_preparation() -> None:
    async def scenario(house: House) -> None:
        house.cgroups.faults.fail("ensure", uid(WEB))
        with pytest.raises(TryLater) as no_cgroup:
            await house.ground.prepare(WEB)
        assert house.calls == []
        house.volumes.faults.fail("mount", uid(WEB))
        with pytest.raises(TryLater) as no_mount:
            await house.ground.prepare(WEB)
        text = f"unable to ensure pod container exists: {no_cgroup.value}"
        assert house.recorded == [
            (PodEvent(EventType.WARNING, "FailedToCreatePodContainer", text, uid(WEB)), WEB),
            (PodEvent(EventType.WARNING, "FailedMount", str(no_mount.value), uid(WEB)), WEB),
        ]

    in_house(scenario)


def test_a_call_that_has_not_begun_is_skipped_if_its_caller_is_cancelled() -> None:
    async def scenario(house: House) -> None:
        house.volumes.faults.hang("mount", uid(WEB), seconds=10)
        async with asyncio.TaskGroup() as group:
            group.create_task(house.ground.prepare(WEB))
            await asyncio.sleep(1)
            waiting = group.create_task(house.ground.unmount(uid(WEB)))
            last = group.create_task(house.ground.prepare(WEB))
            await asyncio.sleep(1)
            waiting.cancel()
        assert last.done()
        assert house.calls == [("mount", "uid-web")] * 2

    in_house(scenario)


def test_calls_of_a_pod_are_made_in_the_order_in_which_they_were_asked_for() -> None:
    async def scenario(house: House) -> None:
        house.volumes.faults.hang("mount", uid(WEB), seconds=10)
        async with asyncio.TaskGroup() as group:
            for call in (
                house.ground.prepare(WEB),
                house.ground.unmount(uid(WEB)),
                house.ground.prepare(WEB),
                house.ground.unmount(uid(WEB)),
            ):
                group.create_task(_made(call))
                await asyncio.sleep(0.1)
        assert [operation for operation, _ in house.calls] == ["mount", "unmount"] * 2

    in_house(scenario)


async def _made(call: Awaitable[object]) -> None:
    await call
