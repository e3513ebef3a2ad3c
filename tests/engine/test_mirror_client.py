"""Mirror pods are created, replaced and deleted without delaying a static pod."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest
from msgspec.structs import replace

from podkeeper.engine.manager import PodManager
from podkeeper.engine.mirror_client import MirrorClient
from podkeeper.model.errors import AlreadyExists, ApiUnavailable, Conflict, NotFound
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import (
    API_SOURCE,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
    FILE_SOURCE,
)
from podkeeper.model.wire import Wire
from podkeeper.rules.static.mirror import mirror_pod_for
from podkeeper.testing import build
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import simulate
from tests.engine.fake_api import FakeApi
from tests.violations import violation

T = TypeVar("T")
K = TypeVar("K", bound=Wire)


class MirrorApi(FakeApi):
    """Pods in the API. `failures` are raised by the next calls, before or (if lost) after they take effect."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.calls: list[tuple[float, str]] = []
        self.failures: list[str] = []
        self._made = 0
        self.seconds = 0.0  # the duration of a create or delete call

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        self._call("get")
        if not self._has(name, namespace):
            raise NotFound(f"cannot get {name}")
        return self.pods[name]  # type: ignore[return-value]  # only pods are here

    async def create(self, what: K) -> K:
        self._call("create")
        await asyncio.sleep(self.seconds)
        if not isinstance(what, Pod):
            raise violation(f"a mirror pod is a pod, not {what}")
        if (what.metadata.name or "") in self.pods:
            raise AlreadyExists(f"cannot create {what.metadata.name}")
        self._made += 1
        made = replace(what, metadata=replace(what.metadata, uid=f"api-{self._made}"))
        self.pods[what.metadata.name or ""] = made
        self._maybe_lose_answer()
        return made

    async def delete(
        self,
        kind: type[K],
        name: str,
        namespace: str = "",
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None:
        self._call("delete")
        await asyncio.sleep(self.seconds)
        if grace_seconds != 0:
            raise violation(f"{name} is deleted with a grace of {grace_seconds}")
        if not self._has(name, namespace):
            raise NotFound(f"cannot delete {name}")
        if uid not in (None, self.pods[name].metadata.uid):
            raise Conflict(f"cannot delete {name}")
        del self.pods[name]
        self._maybe_lose_answer()

    def _has(self, name: str, namespace: str) -> bool:
        return name in self.pods and self.pods[name].metadata.namespace == namespace

    def _call(self, what: str) -> None:
        self.calls.append((asyncio.get_running_loop().time(), what))
        if self.failures[:1] == ["down"]:
            self.failures.pop(0)
            raise ApiUnavailable("cannot reach the API")

    def _maybe_lose_answer(self) -> None:
        if self.failures[:1] == ["lost"]:
            self.failures.pop(0)
            raise ApiUnavailable("cannot read the answer")

    def did(self) -> list[str]:
        return [what for _, what in self.calls]


static = partial(build.pod, "dns", namespace="ns", uid="static", source=FILE_SOURCE, hashed="1")
mirror = partial(build.pod, "dns", namespace="ns", uid="api-0", source=API_SOURCE)


class MirrorHarness:
    """A running mirror client with its API and pod manager."""

    def __init__(self, calls: PortCalls | None = None, api: MirrorApi | None = None) -> None:
        self.api, self.pods = api or MirrorApi(), PodManager()
        self.node_uid: str | None = "node-uid"
        watched = self.api if calls is None else calls.watch("api", self.api)
        self.client = MirrorClient(api=watched, pods=self.pods, node_name="node", node_uid=lambda: self.node_uid)

    def has(self, *pods: Pod) -> None:
        for each in pods:
            self.pods.update(each)
            if CONFIG_MIRROR_ANNOTATION in (each.metadata.annotations or {}):
                self.api.pods["dns"] = each

    def shown_hash(self) -> str | None:
        there = self.api.pods.get("dns")
        return None if there is None else (there.metadata.annotations or {}).get(CONFIG_MIRROR_ANNOTATION)


def run_scenario(scenario: Callable[[MirrorHarness], Awaitable[T]]) -> T:
    async def run() -> T:
        harness = MirrorHarness()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(harness.client.run())
            result = await scenario(harness)
            running.cancel()
        return result

    return simulate(run())[0]


NEEDS = {
    "a static pod without a mirror pod gets one": ((), ["create"]),
    "a mirror pod of this version is kept": ((mirror(mirror="1"),), []),
    "a mirror pod of another version is replaced": ((mirror(mirror="0"),), ["delete", "create"]),
    "a mirror pod that is being deleted is replaced": ((mirror(mirror="1", deleted=True),), ["delete", "create"]),
}


@pytest.mark.parametrize("existing, expected", NEEDS.values(), ids=NEEDS.keys())
def test_ensure(existing: tuple[Pod, ...], expected: list[str]) -> None:
    async def scenario(harness: MirrorHarness) -> tuple[list[str], str | None]:
        harness.has(static(), *existing)
        await harness.client.ensure(static(), existing[0] if existing else None)
        await asyncio.sleep(1)
        return harness.api.did(), harness.shown_hash()

    assert run_scenario(scenario) == (expected, "1")


def test_a_mirror_pod_is_owned_by_the_node() -> None:
    async def scenario(harness: MirrorHarness) -> Pod:
        harness.has(static())
        await harness.client.ensure(static(), None)
        await asyncio.sleep(1)
        return harness.api.pods["dns"]

    wanted = mirror_pod_for(static(), "node", "node-uid")
    assert run_scenario(scenario) == replace(wanted, metadata=replace(wanted.metadata, uid="api-1"))


def test_a_mirror_pod_that_exists_by_now_is_kept() -> None:
    async def scenario(harness: MirrorHarness) -> list[str]:
        harness.has(static(), mirror(mirror="1"))
        await harness.client.ensure(static(), None)  # with the state of an older sync
        await asyncio.sleep(1)
        return harness.api.did()

    assert run_scenario(scenario) == []


def test_a_static_pod_without_a_uid_gets_a_mirror_pod() -> None:
    async def scenario(harness: MirrorHarness) -> list[str]:
        without = replace(static(), metadata=replace(static().metadata, uid=None))
        harness.has(without)
        await harness.client.ensure(without, None)
        await asyncio.sleep(1)
        return harness.api.did()

    assert run_scenario(scenario) == ["create"]


def test_pods_queued_before_the_client_runs_are_processed_when_it_runs() -> None:
    async def scenario() -> list[tuple[float, str]]:
        harness = MirrorHarness()
        harness.has(static())
        await harness.client.ensure(static(), None)
        await asyncio.sleep(5)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(harness.client.run())
            await asyncio.sleep(5)
            running.cancel()
        return harness.api.calls

    assert simulate(scenario())[0] == [(5, "create")]


def test_a_slow_call_delays_no_other_pod_and_each_pod_has_one_call_at_a_time() -> None:
    async def scenario(harness: MirrorHarness) -> list[tuple[float, str]]:
        other = replace(static(), metadata=replace(static().metadata, name="web", uid="static-web"))
        harness.has(static(), other)
        harness.api.seconds = 10
        for _ in range(3):
            await harness.client.ensure(static(), None)
            await asyncio.sleep(1)
        await harness.client.ensure(other, None)
        await asyncio.sleep(10.5)
        harness.pods.update(harness.api.pods["dns"])
        await asyncio.sleep(30)
        return harness.api.calls

    # The first call ends at 10. The pods queued meanwhile are processed then, and find the mirror pod at 20.
    assert run_scenario(scenario) == [(0, "create"), (3, "create"), (10, "create"), (20, "get")]


def test_the_backoff_starts_again_for_the_next_ensure() -> None:
    async def scenario(harness: MirrorHarness) -> list[float]:
        harness.has(static())
        harness.api.failures = ["down"] * 3
        await harness.client.ensure(static(), None)
        await asyncio.sleep(20)  # tried at 0, 1, 3 and 7
        del harness.api.pods["dns"]
        harness.api.failures = ["down"]
        await harness.client.ensure(static(), None)
        await asyncio.sleep(20)
        return [at for at, _ in harness.api.calls]

    assert run_scenario(scenario) == [0, 1, 3, 7, 20, 21]


def test_an_api_pod_gets_no_mirror_pod() -> None:
    async def scenario(harness: MirrorHarness) -> list[str]:
        annotations = {CONFIG_SOURCE_ANNOTATION: "api"}
        web = build.pod("web", namespace="ns", uid="web", annotations=annotations)
        harness.has(web)
        await harness.client.ensure(web, None)
        await asyncio.sleep(1)
        return harness.api.did()

    assert run_scenario(scenario) == []


def test_an_unreachable_api_delays_no_caller_and_is_retried_with_backoff(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(harness: MirrorHarness) -> tuple[float, list[float], str | None]:
        harness.has(static())
        harness.api.failures = ["down"] * 7
        await harness.client.ensure(static(), None)
        returned = asyncio.get_running_loop().time()
        await asyncio.sleep(200)
        return returned, [at for at, _ in harness.api.calls], harness.shown_hash()

    assert run_scenario(scenario) == (0.0, [0, 1, 3, 7, 15, 31, 61, 91], "1")
    assert [record.levelno for record in caplog.records if record.levelno > logging.INFO] == [logging.WARNING] * 7


def test_after_an_outage_the_latest_version_is_created() -> None:
    async def scenario(harness: MirrorHarness) -> str | None:
        harness.has(static(hashed="1"))
        harness.api.failures = ["down"] * 3
        await harness.client.ensure(static(hashed="1"), None)
        await asyncio.sleep(2)
        harness.has(static(hashed="2"))
        await harness.client.ensure(static(hashed="2"), None)
        await asyncio.sleep(60)
        return harness.shown_hash()

    assert run_scenario(scenario) == "2"


def test_a_version_that_arrives_during_the_creation_of_another_replaces_it() -> None:
    async def scenario(harness: MirrorHarness) -> tuple[list[tuple[float, str]], str | None]:
        harness.has(static(hashed="1"))
        harness.api.seconds = 1
        await harness.client.ensure(static(hashed="1"), None)
        await asyncio.sleep(0.5)
        harness.has(static(hashed="2"))
        await harness.client.ensure(static(hashed="2"), None)
        await asyncio.sleep(0.5)
        harness.pods.update(harness.api.pods["dns"])  # the watch delivers the new mirror pod
        await asyncio.sleep(60)
        return harness.api.calls, harness.shown_hash()

    calls, shown = run_scenario(scenario)
    assert shown == "2"
    assert calls[:2] == [(0, "create"), (1, "delete")]  # without waiting for another sync


def test_after_an_outage_the_current_mirror_pod_is_replaced() -> None:
    async def scenario(harness: MirrorHarness) -> str | None:
        harness.has(static(hashed="1"), mirror(mirror="0", uid="old"))
        harness.api.failures = ["down"] * 3
        await harness.client.ensure(static(hashed="1"), mirror(mirror="0", uid="old"))
        await asyncio.sleep(2)
        harness.pods.remove(mirror(mirror="0", uid="old"))
        harness.has(mirror(mirror="0", uid="new"))
        await asyncio.sleep(120)
        return harness.shown_hash()

    assert run_scenario(scenario) == "1"


def test_another_pod_of_the_same_name_is_replaced_once_the_watch_delivers_it() -> None:
    async def scenario(harness: MirrorHarness) -> tuple[str | None, str | None]:
        harness.has(static(hashed="1"))
        harness.api.pods["dns"] = mirror(mirror="0", uid="unseen")
        await harness.client.ensure(static(hashed="1"), None)
        await asyncio.sleep(2)
        before = harness.shown_hash()
        harness.pods.update(harness.api.pods["dns"])
        await asyncio.sleep(60)
        return before, harness.shown_hash()

    assert run_scenario(scenario) == ("0", "1")


def test_after_an_unexpected_error_the_next_ensure_creates_the_mirror_pod() -> None:
    async def scenario(harness: MirrorHarness) -> tuple[str | None, str | None]:
        harness.has(static(hashed="1"))
        broken = [RuntimeError("a bug")]

        def node_uid() -> str | None:
            if broken:
                raise broken.pop()
            return "node-uid"

        harness.client = MirrorClient(api=harness.api, pods=harness.pods, node_name="node", node_uid=node_uid)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(harness.client.run())
            await harness.client.ensure(static(hashed="1"), None)
            await asyncio.sleep(60)
            before = harness.shown_hash()
            await harness.client.ensure(static(hashed="1"), None)
            await asyncio.sleep(1)
            running.cancel()
        return before, harness.shown_hash()

    assert run_scenario(scenario) == (None, "1")


def test_retries_end_with_the_pod() -> None:
    async def scenario(harness: MirrorHarness) -> int:
        harness.has(static())
        harness.api.failures = ["down"] * 1000
        await harness.client.ensure(static(), None)
        await asyncio.sleep(2)
        harness.pods.remove(static())
        await asyncio.sleep(1000)
        return len(harness.api.calls)

    assert run_scenario(scenario) == 2


def test_a_lost_answer_to_a_create_call_makes_no_second_mirror_pod() -> None:
    async def scenario(harness: MirrorHarness) -> tuple[list[str], str | None]:
        harness.has(static())
        harness.api.failures = ["lost"]
        await harness.client.ensure(static(), None)
        await asyncio.sleep(60)
        return harness.api.did(), harness.api.pods["dns"].metadata.uid

    assert run_scenario(scenario) == (["create", "create", "get"], "api-1")


def test_a_lost_answer_to_a_delete_call_leaves_no_pod_without_a_mirror_pod() -> None:
    async def scenario(harness: MirrorHarness) -> tuple[list[str], str | None]:
        harness.has(static(), mirror(mirror="0"))
        harness.api.failures = ["lost"]
        await harness.client.ensure(static(), mirror(mirror="0"))
        await asyncio.sleep(60)
        return harness.api.did(), harness.shown_hash()

    assert run_scenario(scenario) == (["delete", "delete", "create"], "1")


def test_a_mirror_pod_with_another_uid_is_not_deleted() -> None:
    async def scenario(harness: MirrorHarness) -> tuple[bool, str | None]:
        harness.has(static(), mirror(mirror="0", uid="old"))
        harness.api.pods["dns"] = mirror(mirror="1", uid="new")
        await harness.client.ensure(static(), mirror(mirror="0", uid="old"))
        await asyncio.sleep(60)
        return await harness.client.delete("dns_ns", "old"), harness.api.pods["dns"].metadata.uid

    assert run_scenario(scenario) == (False, "new")


def test_a_mirror_pod_is_not_deleted_before_its_replacement_can_be_created() -> None:
    async def scenario(harness: MirrorHarness) -> tuple[list[str], str | None]:
        harness.has(static(), mirror(mirror="0"))
        harness.node_uid = None
        await harness.client.ensure(static(), mirror(mirror="0"))
        await asyncio.sleep(5)
        before = harness.api.did()
        harness.node_uid = "node-uid"
        await asyncio.sleep(10)
        return before, harness.shown_hash()

    assert run_scenario(scenario) == ([], "1")


def test_deleting_a_missing_mirror_pod_returns_false() -> None:
    async def scenario(harness: MirrorHarness) -> list[bool]:
        harness.has(mirror(mirror="1"))
        return [await harness.client.delete("dns_ns") for _ in range(2)]

    assert run_scenario(scenario) == [True, False]


def test_without_an_api_nothing_is_done() -> None:
    async def scenario() -> bool:
        client = MirrorClient(api=None, pods=PodManager(), node_name="node", node_uid=lambda: None)
        await client.ensure(static(), None)
        await client.run()
        return await client.delete("dns_ns")

    assert simulate(scenario()) == (False, 0.0)
