"""Pod setup: complete calls, one at a time per pod, and no repeated calls."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from msgspec.structs import replace

from podkeeper.engine.background import Background
from podkeeper.engine.pod_setup import PodSetup
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime import PodRecord
from podkeeper.runtimes.fake.faults import Fault
from podkeeper.testing.fakes import FakeCgroups, FakeVolumes
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.engine.small_node import pod

T = TypeVar("T")
WEB, DB = pod("web", volumes=("data",)), pod("db", volumes=("data",))


class Harness:
    """A pod setup with fake volumes and cgroups."""

    def __init__(self) -> None:
        clock = VirtualClock()
        self.volumes, self.cgroups = FakeVolumes(clock), FakeCgroups(clock)
        self.background = Background()
        self.events: list[tuple[str, str]] = []
        self.recorded: list[tuple[PodEvent, Pod | PodRecord | None]] = []
        self.pod_setup = PodSetup(
            volumes=self.volumes,
            cgroups=self.cgroups,
            record_event=self.record,
            spawn=self.background.spawn,
        )

    def record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.events.append((event.reason, event.message))
        self.recorded.append((event, about))

    @property
    def calls(self) -> list[tuple[str, str]]:
        return [(call.operation, call.about) for call in self.volumes.call_log]


def run_scenario(scenario: Callable[[Harness], Awaitable[T]]) -> T:
    async def main() -> T:
        harness = Harness()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(harness.background.run())
            await asyncio.sleep(0)
            result = await scenario(harness)
            running.cancel()
        return result

    return simulate(main())[0]


def test_a_version_of_a_pod_is_prepared_once() -> None:
    async def scenario(harness: Harness) -> None:
        ready = await harness.pod_setup.prepare(WEB)
        assert (ready.cgroup_parent, dict(ready.host_paths)) == (
            "/kubepods/poduid-web",
            {"data": "/fake/pods/uid-web/volumes/data"},
        )
        assert await harness.pod_setup.prepare(replace(WEB, status=PodStatus(phase="Running"))) is ready
        assert len(harness.calls) == 1
        await harness.pod_setup.prepare(replace(WEB, metadata=replace(WEB.metadata, labels={"a": "b"})))
        assert len(harness.calls) == 2

    run_scenario(scenario)


def test_a_failed_preparation_is_recorded_and_retried() -> None:
    async def scenario(harness: Harness) -> None:
        harness.cgroups.faults.fail("ensure", uid_of(WEB))
        harness.volumes.faults.fail("mount", uid_of(WEB))
        for _ in range(2):
            with pytest.raises(TryLater):
                await harness.pod_setup.prepare(WEB)
        assert [reason for reason, _ in harness.events] == ["FailedToCreatePodContainer", "FailedMount"]
        await harness.pod_setup.prepare(WEB)

    run_scenario(scenario)


def test_a_call_is_completed_after_its_caller_was_cancelled_and_before_the_next_call() -> None:
    async def scenario(harness: Harness) -> None:
        harness.volumes.faults.hang("mount", uid_of(WEB), seconds=10)
        async with asyncio.TaskGroup() as group:
            sync = group.create_task(harness.pod_setup.prepare(WEB))
            await asyncio.sleep(1)
            sync.cancel()
        assert asyncio.get_running_loop().time() == 1  # a cancelled caller does not wait
        await harness.pod_setup.prepare(DB)  # another pod does not wait either
        assert asyncio.get_running_loop().time() == 1
        await harness.pod_setup.unmount(uid_of(WEB))
        assert asyncio.get_running_loop().time() == 10
        assert harness.calls == [("mount", "uid-web"), ("mount", "uid-db"), ("unmount", "uid-web")]
        assert harness.volumes.mounted_pods() == {uid_of(DB)}

    run_scenario(scenario)


def test_tear_down_is_idempotent_and_a_pod_can_be_prepared_again() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.pod_setup.prepare(WEB)
        for _ in range(2):
            await harness.pod_setup.unmount(uid_of(WEB))
            await harness.pod_setup.remove_cgroup(uid_of(WEB))
        assert await harness.cgroups.list_pods() == frozenset()
        await harness.pod_setup.prepare(WEB)
        assert harness.volumes.mounted_pods() == {uid_of(WEB)}

    run_scenario(scenario)


def test_an_unmount_fails_while_volumes_are_in_use() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.pod_setup.prepare(WEB)
        harness.volumes.in_use.add(uid_of(WEB))
        with pytest.raises(TryLater, match="uid-web"):
            await harness.pod_setup.unmount(uid_of(WEB))
        harness.volumes.in_use.clear()
        await harness.pod_setup.unmount(uid_of(WEB))

    run_scenario(scenario)


def test_a_pod_is_prepared_again_after_a_failed_unmount() -> None:
    """The failed call may have unmounted some volumes."""

    async def scenario(harness: Harness) -> None:
        await harness.pod_setup.prepare(WEB)
        harness.volumes.in_use.add(uid_of(WEB))
        with pytest.raises(TryLater):
            await harness.pod_setup.unmount(uid_of(WEB))
        harness.volumes.in_use.clear()
        await harness.pod_setup.prepare(WEB)
        assert harness.calls == [("mount", "uid-web"), ("unmount", "uid-web"), ("mount", "uid-web")]

    run_scenario(scenario)


def test_a_pod_prepared_during_an_unmount_is_mounted_after_it() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.pod_setup.prepare(WEB)
        harness.volumes.faults.hang("unmount", uid_of(WEB), seconds=10)
        async with asyncio.TaskGroup() as group:
            unmount = group.create_task(harness.pod_setup.unmount(uid_of(WEB)))
            await asyncio.sleep(1)
            await harness.pod_setup.prepare(WEB)
            assert unmount.done()
        assert asyncio.get_running_loop().time() == 10
        assert harness.volumes.mounted_pods() == {uid_of(WEB)}

    run_scenario(scenario)


def test_a_pod_is_prepared_again_after_an_unmount_whose_caller_was_cancelled() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.pod_setup.prepare(WEB)
        harness.volumes.faults.hang("unmount", uid_of(WEB), seconds=10)
        async with asyncio.TaskGroup() as group:
            sync = group.create_task(harness.pod_setup.unmount(uid_of(WEB)))
            await asyncio.sleep(1)
            sync.cancel()
        await harness.pod_setup.prepare(WEB)
        assert harness.volumes.mounted_pods() == {uid_of(WEB)}

    run_scenario(scenario)


def test_a_failed_call_does_not_block_the_next() -> None:
    async def scenario(harness: Harness) -> None:
        harness.volumes.faults.add(
            Fault(operation="mount", about=uid_of(WEB), times=1, delay_seconds=5, error=TryLater)
        )
        async with asyncio.TaskGroup() as group:
            first = group.create_task(_expect_failure(harness))
            await asyncio.sleep(1)
            await harness.pod_setup.remove_cgroup(uid_of(WEB))  # waits for the mount and does not get its error
            assert first.done()
        assert asyncio.get_running_loop().time() == 5
        await harness.pod_setup.prepare(WEB)

    run_scenario(scenario)


async def _expect_failure(harness: Harness) -> None:
    with pytest.raises(TryLater):
        await harness.pod_setup.prepare(WEB)


CHANGED = {
    "labels": replace(WEB, metadata=replace(WEB.metadata, labels={"a": "b"})),
    "annotations": replace(WEB, metadata=replace(WEB.metadata, annotations={"a": "b"})),
    "the spec": pod("web", volumes=("data", "more")),
}


@pytest.mark.parametrize("changed", CHANGED.values(), ids=CHANGED.keys())
def test_a_changed_pod_is_prepared_again(changed: Pod) -> None:
    async def scenario(harness: Harness) -> None:
        first = await harness.pod_setup.prepare(WEB)
        second = await harness.pod_setup.prepare(changed)
        assert (second is not first, second.pod) == (True, changed)
        assert await harness.pod_setup.prepare(changed) is second
        third = await harness.pod_setup.prepare(WEB)
        assert third is not second
        assert len(harness.calls) == 3

    run_scenario(scenario)


def test_a_version_with_the_same_setup_replaces_the_stored_pod() -> None:
    async def scenario(harness: Harness) -> None:
        ready = await harness.pod_setup.prepare(WEB)
        later = replace(WEB, status=PodStatus(phase="Running"))
        assert await harness.pod_setup.prepare(later) is ready
        assert ready.pod is later

    run_scenario(scenario)


def test_a_failure_is_recorded_for_the_pod_and_ends_the_preparation() -> None:
    async def scenario(harness: Harness) -> None:
        harness.cgroups.faults.fail("ensure", uid_of(WEB))
        with pytest.raises(TryLater) as no_cgroup:
            await harness.pod_setup.prepare(WEB)
        assert harness.calls == []
        harness.volumes.faults.fail("mount", uid_of(WEB))
        with pytest.raises(TryLater) as no_mount:
            await harness.pod_setup.prepare(WEB)
        text = f"unable to ensure pod container exists: {no_cgroup.value}"
        assert harness.recorded == [
            (PodEvent(EventType.WARNING, "FailedToCreatePodContainer", text, uid_of(WEB)), WEB),
            (PodEvent(EventType.WARNING, "FailedMount", str(no_mount.value), uid_of(WEB)), WEB),
        ]

    run_scenario(scenario)


def test_a_call_that_has_not_begun_is_skipped_if_its_caller_was_cancelled() -> None:
    async def scenario(harness: Harness) -> None:
        harness.volumes.faults.hang("mount", uid_of(WEB), seconds=10)
        async with asyncio.TaskGroup() as group:
            group.create_task(harness.pod_setup.prepare(WEB))
            await asyncio.sleep(1)
            waiting = group.create_task(harness.pod_setup.unmount(uid_of(WEB)))
            last = group.create_task(harness.pod_setup.prepare(WEB))
            await asyncio.sleep(1)
            waiting.cancel()
        assert last.done()
        assert harness.calls == [("mount", "uid-web")] * 2

    run_scenario(scenario)


def test_calls_of_a_pod_run_in_the_order_of_the_requests() -> None:
    async def scenario(harness: Harness) -> None:
        harness.volumes.faults.hang("mount", uid_of(WEB), seconds=10)
        async with asyncio.TaskGroup() as group:
            for call in (
                harness.pod_setup.prepare(WEB),
                harness.pod_setup.unmount(uid_of(WEB)),
                harness.pod_setup.prepare(WEB),
                harness.pod_setup.unmount(uid_of(WEB)),
            ):
                group.create_task(_completed(call))
                await asyncio.sleep(0.1)
        assert [operation for operation, _ in harness.calls] == ["mount", "unmount"] * 2

    run_scenario(scenario)


async def _completed(call: Awaitable[object]) -> None:
    await call
