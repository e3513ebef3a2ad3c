"""Orphan check: the answer of the API decides, and without an answer nothing changes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from podkeeper.engine.orphans import MAX_CALLS, RECHECK_SECONDS, OrphanCheck
from podkeeper.model.errors import ApiUnavailable, NotFound
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.api import K
from podkeeper.testing import build
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.engine.fake_api import FakeApi
from tests.violations import violation


class OrphanHarness:
    """An API, and the pods of a runtime."""

    def __init__(self) -> None:
        clock = VirtualClock()
        self.api = MemoryApi(clock)
        self.check = OrphanCheck(api=self.api, clock=clock)
        self.rounds_requested = 0

    def records(self, *names: str) -> list[PodRecord]:
        return [PodRecord(uid=f"uid-{name}", name=name, namespace="default") for name in names]

    async def rounds(self, *names: str, seconds: float = 1.0) -> set[str]:
        """Check every two seconds, like housekeeping. Return the names of the confirmed orphans."""
        async with asyncio.TaskGroup() as group:
            for _ in range(int(seconds / 2) + 1):
                candidates = [each for each in self.records(*names) if PodUID(each.uid) not in self.check.confirmed]
                self.check.check(candidates, group, self._on_confirmed)
                await asyncio.sleep(2)
        return {uid.removeprefix("uid-") for uid in self.check.confirmed}

    def _on_confirmed(self) -> None:
        self.rounds_requested += 1

    def put(self, name: str, uid: str = "") -> None:
        self.api.put(build.pod(name, namespace="default", uid=uid or f"uid-{name}"))

    @property
    def gets(self) -> int:
        return sum(1 for call in self.api.call_log if call.operation == "get")


def run_scenario(scenario: Callable[[OrphanHarness], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario(OrphanHarness())

    simulate(run())


def test_only_a_pod_that_the_api_does_not_have_is_confirmed() -> None:
    async def scenario(node: OrphanHarness) -> None:
        node.put("desired")
        assert await node.rounds("desired", "gone") == {"gone"}
        assert node.rounds_requested == 1
        assert node.check.is_unconfirmed(PodUID("uid-desired"))
        assert not node.check.is_unconfirmed(PodUID("uid-gone"))

    run_scenario(scenario)


def test_a_pod_whose_name_belongs_to_another_pod_is_confirmed() -> None:
    async def scenario(node: OrphanHarness) -> None:
        node.put("web", uid="uid-of-the-successor")
        assert await node.rounds("web") == {"web"}

    run_scenario(scenario)


def test_without_an_answer_no_pod_is_confirmed() -> None:
    async def scenario(node: OrphanHarness) -> None:
        node.api.go_down()
        assert await node.rounds("gone", seconds=60) == set()
        node.api.come_up()
        assert await node.rounds("gone") == {"gone"}

    run_scenario(scenario)


def test_a_hung_call_times_out_and_is_repeated() -> None:
    async def scenario(node: OrphanHarness) -> None:
        node.api.faults.hang("get", "gone", seconds=1000)
        assert await node.rounds("gone", "other") == {"other"}
        assert await node.rounds("gone", seconds=12) == {"gone", "other"}

    run_scenario(scenario)


def test_a_pod_that_the_api_has_is_checked_rarely() -> None:
    async def scenario(node: OrphanHarness) -> None:
        node.put("desired")
        await node.rounds("desired", seconds=58)
        assert 58 / RECHECK_SECONDS - 1 <= node.gets <= 58 / RECHECK_SECONDS + 1

    run_scenario(scenario)


def test_a_thousand_orphans_are_checked_in_batches() -> None:
    async def scenario(node: OrphanHarness) -> None:
        node.api.go_down()
        await node.rounds(*map(str, range(1000)))
        assert node.gets == MAX_CALLS

    run_scenario(scenario)


def test_answers_for_pods_that_left_the_runtime_are_dropped() -> None:
    async def scenario(node: OrphanHarness) -> None:
        await node.rounds("gone")
        node.check.keep_only(())
        assert not node.check.confirmed

    run_scenario(scenario)


class OrphanApi(FakeApi):
    """An API with the given pods and a given response time."""

    def __init__(self) -> None:
        self.has: dict[str, str] = {}  # UIDs by name
        self.calls: list[tuple[float, str, str]] = []
        self.seconds = 0.0
        self.error: Exception | None = None

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        if kind is not Pod:
            raise violation(f"got a request for {kind}")
        self.calls.append((asyncio.get_running_loop().time(), namespace, name))
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        if name not in self.has:
            raise NotFound(name)
        return cast("K", build.pod(name, namespace=namespace, uid=self.has[name]))


class Checking:
    """An orphan check with this API."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.api = OrphanApi()
        self.check = OrphanCheck(api=self.api, clock=VirtualClock())
        self.rounds_requested = 0
        self._group = group

    async def round(self, *names: str, seconds: float = 0.0) -> list[float]:
        """Run one round and wait. Return the times of the API calls since the last round."""
        before = len(self.api.calls)
        records = [PodRecord(uid=f"uid-{name}", name=name, namespace="ns") for name in names]
        self.check.check(records, self._group, self._on_confirmed)
        await asyncio.sleep(seconds)
        return [at for at, _, _ in self.api.calls[before:]]

    def _on_confirmed(self) -> None:
        self.rounds_requested += 1


def checking(scenario: Callable[[Checking], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            await scenario(Checking(group))

    simulate(run())


def test_a_check_uses_name_and_namespace() -> None:
    async def scenario(it: Checking) -> None:
        await it.round("web", seconds=1)
        assert it.api.calls == [(0.0, "ns", "web")]
        assert (it.check.confirmed, it.rounds_requested) == ({PodUID("uid-web")}, 1)

    checking(scenario)


def test_a_pod_that_the_api_has_is_checked_again_after_ten_seconds() -> None:
    async def scenario(it: Checking) -> None:
        it.api.has = {"web": "uid-web"}
        seen = [await it.round("web", seconds=seconds) for seconds in (9.75, 0.25, 1, 1)]
        assert seen == [[0.0], [], [10.0], []]
        it.check.keep_only([PodUID("uid-web")])
        assert await it.round("web", seconds=1) == []
        it.check.keep_only([])
        assert await it.round("web", seconds=1) == [13.0]
        assert it.rounds_requested == 0

    checking(scenario)


def test_a_check_has_a_timeout_of_ten_seconds() -> None:
    async def scenario(it: Checking) -> None:
        it.api.seconds = 9.9
        await it.round("quick", seconds=20)
        it.api.seconds = 10.1
        assert await it.round("slow", seconds=5) == [20.0]
        assert await it.round("slow", seconds=15) == []  # one call at a time for each pod
        assert it.check.confirmed == {PodUID("uid-quick")}
        assert await it.round("slow", seconds=20) == [40.0]

    checking(scenario)


def test_at_most_16_calls_are_in_flight_and_the_others_follow() -> None:
    async def scenario(it: Checking) -> None:
        it.api.seconds = 5.0
        names = [str(number) for number in range(20)]
        assert len(await it.round(*names, seconds=1)) == 16
        assert await it.round(*names, seconds=5) == []
        assert all(it.check.is_unconfirmed(PodUID(f"uid-{name}")) for name in names[16:])
        rest = [name for name in names if PodUID(f"uid-{name}") not in it.check.confirmed]
        assert rest == names[16:]
        assert len(await it.round(*rest, seconds=6)) == 4
        assert len(it.check.confirmed) == 20
        assert not it.check.is_unconfirmed(PodUID("uid-19"))

    checking(scenario)


def test_a_pod_that_is_no_longer_a_candidate_is_not_in_doubt() -> None:
    async def scenario(it: Checking) -> None:
        it.api.has = {"web": "uid-web"}
        await it.round("web", seconds=1)
        assert it.check.is_unconfirmed(PodUID("uid-web"))
        await it.round(seconds=1)
        assert not it.check.is_unconfirmed(PodUID("uid-web"))

    checking(scenario)


@pytest.mark.parametrize("error", [ApiUnavailable("down"), ZeroDivisionError()], ids=["expected", "unexpected"])
def test_a_failed_call_is_repeated_in_the_next_round(error: Exception) -> None:
    async def scenario(it: Checking) -> None:
        it.api.error = error
        assert [await it.round("web", seconds=2) for _ in range(2)] == [[0.0], [2.0]]
        assert (it.check.confirmed, it.rounds_requested) == (set(), 0)

    checking(scenario)


def test_a_failed_check_is_logged_once_for_each_pod(caplog: pytest.LogCaptureFixture) -> None:
    def warnings() -> int:
        number = len(caplog.records)
        caplog.clear()
        return number

    async def scenario(it: Checking) -> None:
        seen = []
        it.api.has = {"web": "uid-web"}
        for error in (ApiUnavailable("down"), ApiUnavailable("down"), None, ApiUnavailable("down")):
            it.api.error = error
            await it.round("web", seconds=20)
            seen.append(warnings())
        assert seen == [1, 0, 1, 1]  # the third is about the pod that was missing from the list
        it.api.error = None
        await it.round("web", seconds=20)
        assert warnings() == 0
        it.api.error = ApiUnavailable("down")
        await it.round("web", seconds=20)
        it.check.keep_only([PodUID("uid-web")])
        await it.round("web", seconds=20)
        assert warnings() == 1
        it.check.keep_only([])
        await it.round("web", seconds=20)
        assert warnings() == 1

    checking(scenario)


def test_answers_for_pods_in_the_runtime_are_kept() -> None:
    async def scenario(it: Checking) -> None:
        await it.round("a", "b", seconds=1)
        it.check.keep_only([PodUID("uid-b"), PodUID("uid-c")])
        assert it.check.confirmed == {PodUID("uid-b")}

    checking(scenario)
