"""Mirrors, with an event at every await and a failure at every call."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import TypeVar

import pytest

from podkeeper.model.errors import ApiUnavailable
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.wire import Wire
from podkeeper.rules.mirror import full_name
from podkeeper.testing.failures import check_backoff_resets, fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import Fault, PortCall, PortCalls
from tests.engine.test_mirrors import Api, Desk, mirror, static

K = TypeVar("K", bound=Wire)

UID = PodUID("static")
WATCH_SECONDS = 1.0
"""How late the watch is."""
SYNC_SECONDS = 20.0
"""How often a pod is synced and housekeeping runs."""
SOON_SECONDS = 15.0
"""Before the next sync, which would find what was missed."""


class SlowApi(Api):
    """Creates take a while."""

    def __init__(self) -> None:
        super().__init__()
        self.creating = self.most_creating = 0

    async def create(self, what: K) -> K:
        self.creating += 1
        self.most_creating = max(self.most_creating, self.creating)
        try:
            await asyncio.sleep(0.01)
            return await super().create(what)
        finally:
            self.creating -= 1


@dataclass
class Stage:
    desk: Desk
    api: SlowApi
    removed_at: float = inf

    def watch(self) -> None:
        """Let the watch show what the API has."""
        shown, known = self.desk.api.pods.get("dns"), self.desk.pods.mirror_of_pod(static())
        if known is not None and (shown is None or shown.metadata.uid != known.metadata.uid):
            self.desk.pods.remove(known)
        if shown is not None:
            self.desk.pods.update(shown)

    async def sync(self) -> None:
        """Do what a pass over the pod does, or housekeeping once the pod is removed."""
        pod = self.desk.pods.pod_by_uid(UID)
        known = self.desk.pods.mirror_of_pod(static())
        if pod is not None:
            await self.desk.client.ensure(pod, known)
        elif known is not None:
            await self.desk.client.delete(full_name(known))

    async def live(self) -> None:
        while True:
            for _ in range(int(SYNC_SECONDS / WATCH_SECONDS)):
                await asyncio.sleep(WATCH_SECONDS)
                self.watch()
            try:
                await self.sync()
            except Exception:  # housekeeping tries again
                continue

    async def change(self, version: str) -> None:
        self.desk.pods.update(static(version))
        await self.sync()

    def remove(self) -> None:
        self.desk.pods.remove(static())
        self.removed_at = asyncio.get_running_loop().time()

    def delete_mirror(self) -> None:
        """Somebody deletes the mirror, and the watch shows it later."""
        self.desk.api.pods.pop("dns", None)

    def replace_mirror(self) -> None:
        """Somebody makes a mirror of another version, and the watch shows it later."""
        self.desk.api.pods["dns"] = mirror("0", "foreign")

    def register_again(self) -> None:
        """The node is deleted and registered again, a little later."""
        self.desk.node_uid = None
        asyncio.get_running_loop().call_later(3, setattr, self.desk, "node_uid", "node-uid")

    def what_is_shown(self) -> str | None:
        return self.desk.shown_hash()

    def is_sound(self) -> None:
        assert self.api.most_creating <= 1
        begun = [at for at, what in self.api.calls if what == "create"]
        assert all(at <= self.removed_at + 0.01 for at in begun), "a mirror of a removed pod is made"

    def is_up_to_date(self) -> None:
        """The mirror shows the desired pod. Nothing is shown of a pod that is not desired."""
        self.is_sound()
        pod = self.desk.pods.pod_by_uid(UID)
        wanted = None if pod is None else (pod.metadata.annotations or {})["kubernetes.io/config.hash"]
        assert self.desk.shown_hash() == wanted

    async def a_new_version_is_shown_soon(self) -> None:
        self.watch()
        await self.change("9")
        await asyncio.sleep(1)
        assert self.desk.shown_hash() == "9"


def stage(*pods: Pod) -> Callable[[PortCalls], AbstractAsyncContextManager[Stage]]:
    @asynccontextmanager
    async def made(calls: PortCalls) -> AsyncIterator[Stage]:
        api = SlowApi()
        it = Stage(Desk(calls, api), api)
        it.desk.has(*pods)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(it.desk.client.run()), group.create_task(it.live())]
            yield it
            for task in tasks:
                task.cancel()

    return made


async def bring_up_to_date(stage: Stage) -> None:
    await stage.sync()
    await asyncio.sleep(1)


OPERATIONS = {
    name: Operation(
        stage=stage(*pods),
        run=bring_up_to_date,
        state=Stage.what_is_shown,
        check=Stage.is_up_to_date,
        afterwards=Stage.a_new_version_is_shown_soon,
        settle_seconds=3 * SYNC_SECONDS,
    )
    for name, pods in {
        "no mirror": (static("1"),),
        "an outdated mirror": (static("1"), mirror("0")),
        "a mirror of a removed pod": (mirror("1"),),
    }.items()
}
EVENTS: dict[str, Event[Stage]] = {
    "the manifest changes": lambda stage: stage.change("2"),
    "the pod is synced": Stage.sync,
    "the watch catches up": Stage.watch,
    "the node is registered again": Stage.register_again,
}
EVENTS_FOR_THE_NEXT_SYNC: dict[str, Event[Stage]] = {
    "the pod is removed": Stage.remove,
    "the mirror is deleted": Stage.delete_mirror,
    "the mirror is replaced": Stage.replace_mirror,
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_every_event_while_a_mirror_is_brought_up_to_date(operation: Operation[Stage]) -> None:
    interleave(dataclasses.replace(operation, settle_seconds=SOON_SECONDS), EVENTS)
    interleave(operation, EVENTS_FOR_THE_NEXT_SYNC, cancel=False)


def test_every_event_while_the_api_is_down() -> None:
    @asynccontextmanager
    async def down(calls: PortCalls) -> AsyncIterator[Stage]:
        calls.arm(Fault(PortCall("api", "create", 0), ApiUnavailable, times=2))
        async with stage(static("1"))(calls) as it:
            yield it

    async def wait(it: Stage) -> None:
        await it.sync()
        await asyncio.sleep(2)

    operation = OPERATIONS["no mirror"]
    waiting = dataclasses.replace(operation, stage=down, run=wait, settle_seconds=SOON_SECONDS)
    interleave(waiting, EVENTS)
    removing = dataclasses.replace(waiting, check=Stage.is_sound, state=lambda _: None, afterwards=None)
    interleave(removing, {"the pod is removed": Stage.remove}, cancel=False)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_every_call_fails_once(operation: Operation[Stage]) -> None:
    fail_each_call(operation)


def test_the_pause_after_a_failure_doubles_and_a_success_resets_it() -> None:
    operation = OPERATIONS["no mirror"]
    pauses = check_backoff_resets(operation, "api", "create", ApiUnavailable, lambda stage: stage.change("2"))
    assert pauses == [1, 2, 4, 8]
