"""Mirrors: made, replaced and deleted in the API without making a static pod wait for it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from msgspec.structs import replace

from podkeeper.engine.manager import PodManager
from podkeeper.engine.mirrors import MirrorClient
from podkeeper.model.errors import AlreadyExists, ApiUnavailable, Conflict, NotFound
from podkeeper.model.k8s.core import Pod
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import (
    CONFIG_HASH_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
    FILE_SOURCE,
)
from podkeeper.model.wire import Wire
from podkeeper.rules.mirror import mirror_pod_for
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import simulate
from tests.violations import violation

T = TypeVar("T")
K = TypeVar("K", bound=Wire)


class Api:
    """One shelf of pods. `troubles` are raised by the next calls, before or (when lost) after they took effect."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.calls: list[tuple[float, str]] = []
        self.troubles: list[str] = []
        self._made = 0
        self.seconds = 0.0  # that a creation or deletion takes

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        self._call("get")
        if not self._has(name, namespace):
            raise NotFound(f"cannot get {name}")
        return self.pods[name]  # type: ignore[return-value]  # only pods are here

    async def create(self, what: K) -> K:
        self._call("create")
        await asyncio.sleep(self.seconds)
        if not isinstance(what, Pod):
            raise violation(f"a mirror is a pod, not {what}")
        if (what.metadata.name or "") in self.pods:
            raise AlreadyExists(f"cannot create {what.metadata.name}")
        self._made += 1
        made = replace(what, metadata=replace(what.metadata, uid=f"api-{self._made}"))
        self.pods[what.metadata.name or ""] = made
        self._maybe_lose_the_answer()
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
        self._maybe_lose_the_answer()

    def _has(self, name: str, namespace: str) -> bool:
        return name in self.pods and self.pods[name].metadata.namespace == namespace

    def _call(self, what: str) -> None:
        self.calls.append((asyncio.get_running_loop().time(), what))
        if self.troubles[:1] == ["down"]:
            self.troubles.pop(0)
            raise ApiUnavailable("cannot reach the API")

    def _maybe_lose_the_answer(self) -> None:
        if self.troubles[:1] == ["lost"]:
            self.troubles.pop(0)
            raise ApiUnavailable("cannot hear the API")

    def did(self) -> list[str]:
        return [what for _, what in self.calls]


def static(version: str = "1") -> Pod:
    annotations = {CONFIG_SOURCE_ANNOTATION: FILE_SOURCE, CONFIG_HASH_ANNOTATION: version}
    return Pod(metadata=ObjectMeta(name="dns", namespace="ns", uid="static", annotations=annotations))


def mirror(version: str, uid: str = "api-0", *, deleted: bool = False) -> Pod:
    annotations = {CONFIG_SOURCE_ANNOTATION: "api", CONFIG_MIRROR_ANNOTATION: version}
    deletion = "2026-01-01T00:00:00Z" if deleted else None
    return Pod(
        metadata=ObjectMeta(name="dns", namespace="ns", uid=uid, annotations=annotations, deletion_timestamp=deletion)
    )


class Desk:
    """A mirror client at work, with its API and its pod manager."""

    def __init__(self, calls: PortCalls | None = None, api: Api | None = None) -> None:
        self.api, self.pods = api or Api(), PodManager()
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


def play(story: Callable[[Desk], Awaitable[T]]) -> T:
    async def life() -> T:
        desk = Desk()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(desk.client.run())
            result = await story(desk)
            running.cancel()
        return result

    return simulate(life())[0]


NEEDS = {
    "a pod without a mirror gets one": ((), ["create"]),
    "a mirror of this very version stays": ((mirror("1"),), []),
    "a mirror of another version is replaced": ((mirror("0"),), ["delete", "create"]),
    "a mirror that somebody deletes is replaced": ((mirror("1", deleted=True),), ["delete", "create"]),
}


@pytest.mark.parametrize("there, expected", NEEDS.values(), ids=NEEDS.keys())
def test_what_a_mirror_needs(there: tuple[Pod, ...], expected: list[str]) -> None:
    async def story(desk: Desk) -> tuple[list[str], str | None]:
        desk.has(static(), *there)
        await desk.client.ensure(static(), there[0] if there else None)
        await asyncio.sleep(1)
        return desk.api.did(), desk.shown_hash()

    assert play(story) == (expected, "1")


def test_a_mirror_is_made_for_this_node() -> None:
    async def story(desk: Desk) -> Pod:
        desk.has(static())
        await desk.client.ensure(static(), None)
        await asyncio.sleep(1)
        return desk.api.pods["dns"]

    wanted = mirror_pod_for(static(), "node", "node-uid")
    assert play(story) == replace(wanted, metadata=replace(wanted.metadata, uid="api-1"))


def test_a_mirror_that_came_in_the_meantime_is_left_alone() -> None:
    async def story(desk: Desk) -> list[str]:
        desk.has(static(), mirror("1"))
        await desk.client.ensure(static(), None)  # as an older sync saw it
        await asyncio.sleep(1)
        return desk.api.did()

    assert play(story) == []


def test_a_static_pod_without_a_uid_has_a_mirror_too() -> None:
    async def story(desk: Desk) -> list[str]:
        without = replace(static(), metadata=replace(static().metadata, uid=None))
        desk.has(without)
        await desk.client.ensure(without, None)
        await asyncio.sleep(1)
        return desk.api.did()

    assert play(story) == ["create"]


def test_what_is_needed_before_the_client_runs_is_done_once_it_does() -> None:
    async def story() -> list[tuple[float, str]]:
        desk = Desk()
        desk.has(static())
        await desk.client.ensure(static(), None)
        await asyncio.sleep(5)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(desk.client.run())
            await asyncio.sleep(5)
            running.cancel()
        return desk.api.calls

    assert simulate(story())[0] == [(5, "create")]


def test_one_slow_mirror_delays_no_other_and_has_one_call_at_a_time() -> None:
    async def story(desk: Desk) -> list[tuple[float, str]]:
        other = replace(static(), metadata=replace(static().metadata, name="web", uid="static-web"))
        desk.has(static(), other)
        desk.api.seconds = 10
        for _ in range(3):
            await desk.client.ensure(static(), None)
            await asyncio.sleep(1)
        await desk.client.ensure(other, None)
        await asyncio.sleep(10.5)
        desk.pods.update(desk.api.pods["dns"])
        await asyncio.sleep(30)
        return desk.api.calls

    # The first ends at 10. What was asked for meanwhile is tried again then, and finds the mirror at 20.
    assert play(story) == [(0, "create"), (3, "create"), (10, "create"), (20, "get")]


def test_the_pauses_after_failures_begin_anew_with_the_next_need() -> None:
    async def story(desk: Desk) -> list[float]:
        desk.has(static())
        desk.api.troubles = ["down"] * 3
        await desk.client.ensure(static(), None)
        await asyncio.sleep(20)  # tried at 0, 1, 3 and 7
        del desk.api.pods["dns"]
        desk.api.troubles = ["down"]
        await desk.client.ensure(static(), None)
        await asyncio.sleep(20)
        return [at for at, _ in desk.api.calls]

    assert play(story) == [0, 1, 3, 7, 20, 21]


def test_a_pod_of_the_api_gets_no_mirror() -> None:
    async def story(desk: Desk) -> list[str]:
        annotations = {CONFIG_SOURCE_ANNOTATION: "api"}
        web = Pod(metadata=ObjectMeta(name="web", namespace="ns", uid="web", annotations=annotations))
        desk.has(web)
        await desk.client.ensure(web, None)
        await asyncio.sleep(1)
        return desk.api.did()

    assert play(story) == []


def test_an_unreachable_api_delays_no_caller_and_is_retried_with_backoff(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(desk: Desk) -> tuple[float, list[float], str | None]:
        desk.has(static())
        desk.api.troubles = ["down"] * 7
        await desk.client.ensure(static(), None)
        returned = asyncio.get_running_loop().time()
        await asyncio.sleep(200)
        return returned, [at for at, _ in desk.api.calls], desk.shown_hash()

    assert play(story) == (0.0, [0, 1, 3, 7, 15, 31, 61, 91], "1")
    assert [record.levelno for record in caplog.records if record.levelno > logging.INFO] == [logging.WARNING] * 7


def test_the_latest_version_is_what_the_api_gets_after_an_outage() -> None:
    async def story(desk: Desk) -> str | None:
        desk.has(static("1"))
        desk.api.troubles = ["down"] * 3
        await desk.client.ensure(static("1"), None)
        await asyncio.sleep(2)
        desk.has(static("2"))
        await desk.client.ensure(static("2"), None)
        await asyncio.sleep(60)
        return desk.shown_hash()

    assert play(story) == "2"


def test_a_version_that_comes_while_another_is_being_created_replaces_it() -> None:
    async def story(desk: Desk) -> tuple[list[tuple[float, str]], str | None]:
        desk.has(static("1"))
        desk.api.seconds = 1
        await desk.client.ensure(static("1"), None)
        await asyncio.sleep(0.5)
        desk.has(static("2"))
        await desk.client.ensure(static("2"), None)
        await asyncio.sleep(0.5)
        desk.pods.update(desk.api.pods["dns"])  # the watch shows what was created
        await asyncio.sleep(60)
        return desk.api.calls, desk.shown_hash()

    calls, shown = play(story)
    assert shown == "2"
    assert calls[:2] == [(0, "create"), (1, "delete")]  # without waiting for another sync


def test_after_an_outage_the_mirror_that_is_there_by_then_is_replaced() -> None:
    async def story(desk: Desk) -> str | None:
        desk.has(static("1"), mirror("0", "old"))
        desk.api.troubles = ["down"] * 3
        await desk.client.ensure(static("1"), mirror("0", "old"))
        await asyncio.sleep(2)
        desk.pods.remove(mirror("0", "old"))
        desk.has(mirror("0", "new"))
        await asyncio.sleep(120)
        return desk.shown_hash()

    assert play(story) == "1"


def test_a_pod_in_the_way_of_a_mirror_is_replaced_once_the_watch_shows_it() -> None:
    async def story(desk: Desk) -> tuple[str | None, str | None]:
        desk.has(static("1"))
        desk.api.pods["dns"] = mirror("0", "unseen")
        await desk.client.ensure(static("1"), None)
        await asyncio.sleep(2)
        before = desk.shown_hash()
        desk.pods.update(desk.api.pods["dns"])
        await asyncio.sleep(60)
        return before, desk.shown_hash()

    assert play(story) == ("0", "1")


def test_after_an_unexpected_error_the_next_sync_has_the_mirror_made() -> None:
    async def story(desk: Desk) -> tuple[str | None, str | None]:
        desk.has(static("1"))
        broken = [RuntimeError("a bug")]

        def node_uid() -> str | None:
            if broken:
                raise broken.pop()
            return "node-uid"

        desk.client = MirrorClient(api=desk.api, pods=desk.pods, node_name="node", node_uid=node_uid)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(desk.client.run())
            await desk.client.ensure(static("1"), None)
            await asyncio.sleep(60)
            before = desk.shown_hash()
            await desk.client.ensure(static("1"), None)
            await asyncio.sleep(1)
            running.cancel()
        return before, desk.shown_hash()

    assert play(story) == (None, "1")


def test_care_ends_with_the_pod() -> None:
    async def story(desk: Desk) -> int:
        desk.has(static())
        desk.api.troubles = ["down"] * 1000
        await desk.client.ensure(static(), None)
        await asyncio.sleep(2)
        desk.pods.remove(static())
        await asyncio.sleep(1000)
        return len(desk.api.calls)

    assert play(story) == 2


def test_a_lost_answer_to_a_creation_makes_no_second_mirror() -> None:
    async def story(desk: Desk) -> tuple[list[str], str | None]:
        desk.has(static())
        desk.api.troubles = ["lost"]
        await desk.client.ensure(static(), None)
        await asyncio.sleep(60)
        return desk.api.did(), desk.api.pods["dns"].metadata.uid

    assert play(story) == (["create", "create", "get"], "api-1")


def test_a_lost_answer_to_a_deletion_leaves_no_pod_without_a_mirror() -> None:
    async def story(desk: Desk) -> tuple[list[str], str | None]:
        desk.has(static(), mirror("0"))
        desk.api.troubles = ["lost"]
        await desk.client.ensure(static(), mirror("0"))
        await asyncio.sleep(60)
        return desk.api.did(), desk.shown_hash()

    assert play(story) == (["delete", "delete", "create"], "1")


def test_a_mirror_that_is_another_one_by_now_is_not_deleted() -> None:
    async def story(desk: Desk) -> tuple[bool, str | None]:
        desk.has(static(), mirror("0", "old"))
        desk.api.pods["dns"] = mirror("1", "new")
        await desk.client.ensure(static(), mirror("0", "old"))
        await asyncio.sleep(60)
        return await desk.client.delete("dns_ns", "old"), desk.api.pods["dns"].metadata.uid

    assert play(story) == (False, "new")


def test_no_mirror_goes_before_the_new_one_can_come() -> None:
    async def story(desk: Desk) -> tuple[list[str], str | None]:
        desk.has(static(), mirror("0"))
        desk.node_uid = None
        await desk.client.ensure(static(), mirror("0"))
        await asyncio.sleep(5)
        before = desk.api.did()
        desk.node_uid = "node-uid"
        await asyncio.sleep(10)
        return before, desk.shown_hash()

    assert play(story) == ([], "1")


def test_deleting_a_mirror_that_is_gone_is_no_trouble() -> None:
    async def story(desk: Desk) -> list[bool]:
        desk.has(mirror("1"))
        return [await desk.client.delete("dns_ns") for _ in range(2)]

    assert play(story) == [True, False]


def test_without_an_api_nothing_happens_and_nobody_waits() -> None:
    async def story() -> bool:
        client = MirrorClient(api=None, pods=PodManager(), node_name="node", node_uid=lambda: None)
        await client.ensure(static(), None)
        await client.run()
        return await client.delete("dns_ns")

    assert simulate(story()) == (False, 0.0)
