"""The fakes of the small ports inject the configured failures. `tests/contracts` checks their ports."""

import asyncio
import math

import pytest

from podkeeper.model.errors import TryLater
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import Endpoint, HealthAnswer, HttpAnswer, HttpRequest, NoHttpAnswer, NotConnected
from podkeeper.testing.build import pod
from podkeeper.testing.fakes import FakeCgroups, FakeJournal, FakeProber, FakeVolumes
from podkeeper.testing.virtual_time import VirtualClock, simulate

WEB = PodUID("uid-web")
POD = pod("web", volumes=("data",))


def test_a_sync_fails_on_a_full_disk_and_loses_no_write() -> None:
    async def scenario() -> None:
        journal = FakeJournal()
        journal.put("a", b"1")
        journal.disk_full = True
        with pytest.raises(TryLater, match="no space left"):
            await journal.sync()
        assert journal.unsynced_writes == 1
        journal.disk_full = False
        await journal.sync()
        assert (journal.unsynced_writes, journal.syncs) == (0, 1)
        journal.crash()
        assert journal.load() == {"a": b"1"}

    simulate(scenario())


def test_a_sync_covers_only_writes_made_before_it() -> None:
    async def scenario() -> None:
        journal = FakeJournal(sync_seconds=1)
        journal.put("before", b"1")
        async with asyncio.TaskGroup() as group:
            group.create_task(journal.sync())
            await asyncio.sleep(0.5)
            journal.put("after", b"2")
            group.create_task(journal.sync())
            await asyncio.sleep(0.75)
            assert journal.unsynced_writes == 1
            journal.crash()
        assert journal.load() == {"before": b"1"}
        assert journal.unsynced_writes == 0

    simulate(scenario())


def test_volumes_hang_fail_and_stay_busy_for_the_configured_pods() -> None:
    async def scenario() -> None:
        volumes = FakeVolumes(VirtualClock(), delays={"mount": 2})
        volumes.faults.fail("mount", WEB)
        with pytest.raises(TryLater, match="mount web"):
            await volumes.mount(POD)
        assert volumes.mounted_pods() == frozenset()
        assert await volumes.mount(POD) == {"data": "/fake/pods/uid-web/volumes/data"}
        volumes.in_use.add(WEB)
        with pytest.raises(TryLater, match="busy"):
            await volumes.unmount(WEB)
        volumes.in_use.clear()
        volumes.faults.hang("unmount", seconds=100)
        await volumes.unmount(WEB)
        assert [call.operation for call in volumes.call_log] == ["mount", "mount", "unmount", "unmount"]
        volumes.delays.clear()
        await volumes.mount(POD)

    assert simulate(scenario())[1] == 104


def test_cgroups_record_throttled_pods_and_fail_as_configured() -> None:
    async def scenario() -> None:
        cgroups = FakeCgroups(VirtualClock())
        await cgroups.throttle(WEB)
        assert cgroups.throttled == set()
        assert await cgroups.ensure(POD) == "/kubepods/poduid-web"
        await cgroups.throttle(WEB)
        assert cgroups.throttled == {WEB}
        cgroups.faults.lose_answer("remove", WEB)
        with pytest.raises(TryLater):
            await cgroups.remove(WEB)
        assert await cgroups.list_pods() == frozenset()
        assert cgroups.throttled == set()
        assert cgroups.call_log[-2].error == "TryLater"

    simulate(scenario())


def test_a_prober_reports_success_by_default() -> None:
    async def scenario() -> None:
        prober = FakeProber()
        endpoint, request = Endpoint("fd00::1", 80), HttpRequest("http://[fd00::1]:80/", {})
        assert await prober.http(request, 1) == HttpAnswer(200)
        assert await prober.tcp(endpoint, 1) is None
        assert await prober.grpc(endpoint, "", 1) == HealthAnswer(1)
        assert prober.requests == [request, endpoint, endpoint]
        prober.latency_seconds["fd00::1"] = math.inf
        assert isinstance(await prober.http(request, 2), NoHttpAnswer)
        assert await prober.tcp(endpoint, 2) == "dial tcp [fd00::1]:80: i/o timeout"
        end = await prober.grpc(endpoint, "", 2)
        assert isinstance(end, NotConnected)
        assert end.timed_out

    assert simulate(scenario())[1] == 6
