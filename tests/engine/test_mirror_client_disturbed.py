"""Mirror pods, with an event at every await and a failure of every call."""

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
from podkeeper.rules.static.mirror import full_name
from podkeeper.testing.failures import check_backoff_resets, fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import InjectedFault, PortCall, PortCalls
from tests.engine.test_mirror_client import MirrorApi, MirrorHarness, mirror, static

K = TypeVar("K", bound=Wire)

UID = PodUID("static")
WATCH_SECONDS = 1.0
"""The delay of the watch."""
SYNC_SECONDS = 20.0
"""The period of syncs and housekeeping."""
SOON_SECONDS = 15.0
"""Before the next sync, which would hide a missed update."""


class SlowMirrorApi(MirrorApi):
    """Create calls take time."""

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
class Disturbed:
    base: MirrorHarness
    api: SlowMirrorApi
    removed_at: float = inf

    def watch(self) -> None:
        """Let the watch deliver the current mirror pod."""
        shown, known = self.base.api.pods.get("dns"), self.base.pods.mirror_of_pod(static())
        if known is not None and (shown is None or shown.metadata.uid != known.metadata.uid):
            self.base.pods.remove(known)
        if shown is not None:
            self.base.pods.update(shown)

    async def sync(self) -> None:
        """Do what a sync of the pod does, or housekeeping after the pod was removed."""
        pod = self.base.pods.pod_by_uid(UID)
        known = self.base.pods.mirror_of_pod(static())
        if pod is not None:
            await self.base.client.ensure(pod, known)
        elif known is not None:
            await self.base.client.delete(full_name(known))

    async def watch_and_sync(self) -> None:
        while True:
            for _ in range(int(SYNC_SECONDS / WATCH_SECONDS)):
                await asyncio.sleep(WATCH_SECONDS)
                self.watch()
            try:
                await self.sync()
            except Exception:  # housekeeping retries
                continue

    async def change(self, version: str) -> None:
        self.base.pods.update(static(hashed=version))
        await self.sync()

    def remove(self) -> None:
        self.base.pods.remove(static())
        self.removed_at = asyncio.get_running_loop().time()

    def delete_mirror(self) -> None:
        """Another client deletes the mirror pod, and the watch delivers it later."""
        self.base.api.pods.pop("dns", None)

    def replace_mirror(self) -> None:
        """Another client creates a mirror pod of another version, and the watch delivers it later."""
        self.base.api.pods["dns"] = mirror(mirror="0", uid="foreign")

    def register_again(self) -> None:
        """Delete the node, and register it again 3 s later."""
        self.base.node_uid = None
        asyncio.get_running_loop().call_later(3, setattr, self.base, "node_uid", "node-uid")

    def shown(self) -> str | None:
        return self.base.shown_hash()

    def check(self) -> None:
        assert self.api.most_creating <= 1
        begun = [at for at, what in self.api.calls if what == "create"]
        assert all(at <= self.removed_at + 0.01 for at in begun), "a mirror pod of a removed pod is created"

    def is_up_to_date(self) -> None:
        """Check that the mirror pod has the version of the desired pod, or that there is neither."""
        self.check()
        pod = self.base.pods.pod_by_uid(UID)
        wanted = None if pod is None else (pod.metadata.annotations or {})["kubernetes.io/config.hash"]
        assert self.base.shown_hash() == wanted

    async def a_new_version_is_shown_soon(self) -> None:
        self.watch()
        await self.change("9")
        await asyncio.sleep(1)
        assert self.base.shown_hash() == "9"


def harness_with(*pods: Pod) -> Callable[[PortCalls], AbstractAsyncContextManager[Disturbed]]:
    @asynccontextmanager
    async def made(calls: PortCalls) -> AsyncIterator[Disturbed]:
        api = SlowMirrorApi()
        harness = Disturbed(MirrorHarness(calls, api), api)
        harness.base.has(*pods)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(harness.base.client.run()), group.create_task(harness.watch_and_sync())]
            yield harness
            for task in tasks:
                task.cancel()

    return made


async def bring_up_to_date(harness: Disturbed) -> None:
    await harness.sync()
    await asyncio.sleep(1)


OPERATIONS = {
    name: OperationTest(
        setup=harness_with(*pods),
        run=bring_up_to_date,
        state=Disturbed.shown,
        check=Disturbed.is_up_to_date,
        afterwards=Disturbed.a_new_version_is_shown_soon,
        settle_seconds=3 * SYNC_SECONDS,
    )
    for name, pods in {
        "no mirror pod": (static(hashed="1"),),
        "an outdated mirror pod": (static(hashed="1"), mirror(mirror="0")),
        "a mirror pod of a removed pod": (mirror(mirror="1"),),
    }.items()
}
EVENTS: dict[str, Event[Disturbed]] = {
    "the manifest changes": lambda harness: harness.change("2"),
    "the pod is synced": Disturbed.sync,
    "the watch delivers the mirror pod": Disturbed.watch,
    "the node is registered again": Disturbed.register_again,
}
EVENTS_FOR_THE_NEXT_SYNC: dict[str, Event[Disturbed]] = {
    "the pod is removed": Disturbed.remove,
    "the mirror pod is deleted": Disturbed.delete_mirror,
    "the mirror pod is replaced": Disturbed.replace_mirror,
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_every_event_while_a_mirror_pod_is_updated(operation: OperationTest[Disturbed]) -> None:
    interleave(dataclasses.replace(operation, settle_seconds=SOON_SECONDS), EVENTS)
    interleave(operation, EVENTS_FOR_THE_NEXT_SYNC, cancel=False)


def test_every_event_while_the_api_is_down() -> None:
    @asynccontextmanager
    async def down(calls: PortCalls) -> AsyncIterator[Disturbed]:
        calls.arm(InjectedFault(PortCall("api", "create", 0), ApiUnavailable, times=2))
        async with harness_with(static(hashed="1"))(calls) as harness:
            yield harness

    async def wait(harness: Disturbed) -> None:
        await harness.sync()
        await asyncio.sleep(2)

    operation = OPERATIONS["no mirror pod"]
    waiting = dataclasses.replace(operation, setup=down, run=wait, settle_seconds=SOON_SECONDS)
    interleave(waiting, EVENTS)
    removing = dataclasses.replace(waiting, check=Disturbed.check, state=lambda _: None, afterwards=None)
    interleave(removing, {"the pod is removed": Disturbed.remove}, cancel=False)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_every_call_fails_once(operation: OperationTest[Disturbed]) -> None:
    fail_each_call(operation)


def test_the_backoff_after_a_failure_doubles_and_a_success_resets_it() -> None:
    operation = OPERATIONS["no mirror pod"]
    pauses = check_backoff_resets(operation, "api", "create", ApiUnavailable, lambda harness: harness.change("2"))
    assert pauses == [1, 2, 4, 8]
