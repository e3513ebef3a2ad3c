"""Mirrors, with an event at every await and a failure at every call."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from podkeeper.model.errors import ApiUnavailable
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.mirror import full_name
from podkeeper.testing.failures import check_backoff_resets, fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from tests.engine.test_mirrors import Desk, mirror, static

UID = PodUID("static")
SYNC_SECONDS = 20.0
"""How often a pod is synced and housekeeping runs."""


@dataclass
class Stage:
    desk: Desk

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
            await asyncio.sleep(SYNC_SECONDS)
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
        """The mirror shows the desired pod. Nothing is shown of a pod that is not desired."""
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
        it = Stage(Desk(calls))
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
        check=Stage.is_sound,
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
    "the pod is removed": Stage.remove,
    "the mirror is deleted": Stage.delete_mirror,
    "the mirror is replaced": Stage.replace_mirror,
    "the watch catches up": Stage.watch,
    "the node is registered again": Stage.register_again,
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_every_event_while_a_mirror_is_brought_up_to_date(operation: Operation[Stage]) -> None:
    interleave(operation, EVENTS)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_every_call_fails_once(operation: Operation[Stage]) -> None:
    fail_each_call(operation)


def test_the_pause_after_a_failure_doubles_and_a_success_resets_it() -> None:
    operation = OPERATIONS["no mirror"]
    pauses = check_backoff_resets(operation, "api", "create", ApiUnavailable, lambda stage: stage.change("2"))
    assert pauses == [1, 2, 4, 8]
