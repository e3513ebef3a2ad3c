"""The pod workers, with an event at every await of a sync and a failure of every call."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from podkeeper.model.errors import TryLater
from podkeeper.model.history import SyncEnded, SyncResult
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.states import Syncing, Unknown
from podkeeper.rules.worker.updates import KillOptions, Update
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from tests.engine.worker_harness import (
    DB,
    WEB,
    WorkersHarness,
    again,
    calm,
    change,
    create,
    kill,
    pod,
    static,
)

V0, V1, DELETED = (
    pod("web", grace=30),
    pod("web", grace=30, labels={"version": "1"}),
    pod("web", grace=30, deleted=True),
)
LOST = PodRecord(uid=WEB, name="web", namespace="ns")
CALLS_OF_ONE_RUN = re.compile("r*s*t*e*")  # runtime pod, sync, terminating, terminated
LETTERS = {
    "sync_pod": "s",
    "sync_terminating_pod": "t",
    "sync_terminated_pod": "e",
    "sync_terminating_runtime_pod": "r",
}
RETRIED_SECONDS = 40.0  # a failed sync is retried after 10 s to 15 s


@dataclass(slots=True)
class DisturbedWorkers(WorkersHarness):
    """Workers with a small loop: due pods are synced, static pods run in order."""

    desired: dict[PodUID, Pod] = field(default_factory=dict)
    killed: list[asyncio.Event] = field(default_factory=list)

    def send_update(self, update: Update) -> None:
        """Send an update to the workers, as the loop does."""
        if update.pod is not None:
            self.desired[update.uid] = update.pod
        self.workers.update_pod(update)

    def kill_with_signal(self, options: KillOptions) -> None:
        """Kill the pod. The signal must be set in the end, unless the pod had finished: see `KillRequest`."""
        finished = self.workers.should_pod_be_finished(WEB)
        completed = asyncio.Event()
        self.workers.update_pod(kill(self.desired.get(WEB, V0), replace(options, completed=completed)))
        if not finished:
            self.killed.append(completed)

    def sweep(self, *, is_desired: bool) -> None:
        """Run housekeeping: drop finished pods, and create desired pods without a worker again."""
        desired = self.desired if is_desired else {}
        known = self.workers.sync_known_pods(desired)
        for uid, each in desired.items():
            if uid not in known:
                self.workers.update_pod(create(each))

    def stop_now(self) -> None:
        """Stop the workers, as at the end of the agent."""
        assert self.running is not None
        self.running.cancel()

    def _enqueue(self, uid: PodUID, delay_seconds: float) -> None:
        asyncio.get_running_loop().call_later(delay_seconds, self._due, uid)

    def _due(self, uid: PodUID) -> None:
        if uid in self.desired and not isinstance(self.workers.state(uid), Unknown):
            with suppress(TryLater):  # the agent stops
                self.workers.update_pod(again(self.desired[uid]))

    def _left(self, full_name: str) -> None:
        uid = self.workers.next_in_line(full_name)
        if uid is not None:
            self.workers.update_pod(again(self.desired[uid]))

    # Checks.

    def holds(self) -> None:
        """No two syncs of a pod overlap, its state never moves backwards, and nothing is left."""
        assert self.syncer.overlaps == []
        assert self.syncer.busy == set()
        for name in ("web", "db"):
            calls = "".join(LETTERS[function] for function in self.syncer.of(name))
            assert CALLS_OF_ONE_RUN.fullmatch(calls), f"{name}: {calls}"
        assert all(signal.is_set() for signal in self.killed)

    def where(self) -> tuple[str, str, object]:
        """Return the state of the pod, the version that was synced last, and the state of pod db."""
        arguments = [call.argument for call in self.syncer.calls if call.name == "web" and call.function == "sync_pod"]
        state = self.workers.state(WEB)
        synced = str(arguments[-1]).split()[-1] if arguments and isinstance(state, Syncing) else ""
        return type(state).__name__, synced, type(self.workers.state(DB)).__name__

    async def can_start_again(self) -> None:
        """After two sweeps of housekeeping, a new pod with the same UID runs."""
        self.desired.clear()
        self.syncer.ending.clear()
        for _ in range(2):  # the first stops running pods, the second drops them
            self.workers.sync_known_pods(())
            await asyncio.sleep(RETRIED_SECONDS)
        assert isinstance(self.workers.state(WEB), Unknown)
        begun = len(self.syncer.calls)
        self.send_update(create(V0))
        await calm()
        assert isinstance(self.workers.state(WEB), Syncing)
        assert [call.function for call in self.syncer.calls[begun:]] == ["sync_pod"]


async def yield_once() -> None:
    await asyncio.sleep(0)


@asynccontextmanager
async def set_up(calls: PortCalls) -> AsyncIterator[DisturbedWorkers]:
    node = DisturbedWorkers(calls=calls)
    for name in ("web", "db", "static"):
        for function in LETTERS:
            node.syncer.behave(function, name, yield_once)
    node.start()
    await asyncio.sleep(0)
    try:
        yield node
    finally:
        await node.stop()


@asynccontextmanager
async def with_a_pod(calls: PortCalls) -> AsyncIterator[DisturbedWorkers]:
    async with set_up(calls) as node:
        node.send_update(create(V0))
        await calm()
        yield node


async def start(node: DisturbedWorkers) -> None:
    node.send_update(create(V0))
    await calm()


async def update(node: DisturbedWorkers) -> None:
    node.send_update(change(V1))
    await calm()


async def delete(node: DisturbedWorkers) -> None:
    node.send_update(change(DELETED))
    await calm()


async def kill_and_wait(node: DisturbedWorkers) -> None:
    await node.workers.kill_pod(V0, grace_override_seconds=5)
    # Do not use `is_pod_known_terminated`, because housekeeping may have dropped the pod.
    assert "sync_terminating_pod" in node.syncer.of("web")


async def end(node: DisturbedWorkers) -> None:
    """Let the pod complete."""
    node.syncer.ending.add("web")
    node.send_update(again(V0))
    await calm()


async def kill_lost(node: DisturbedWorkers) -> None:
    """Kill a pod without configuration that the runtime reports. Another sweep of housekeeping follows."""
    node.workers.update_pod(kill(LOST))
    await asyncio.sleep(RETRIED_SECONDS)
    node.sweep(is_desired=True)
    await calm()


EVENTS: dict[str, Event[DisturbedWorkers]] = {
    "an update": lambda node: node.send_update(change(V1)),
    "a sync": lambda node: node.workers.update_pod(again(node.desired.get(WEB, V0))),
    "the deletion": lambda node: node.send_update(change(DELETED)),
    "a kill with a short grace period": lambda node: node.kill_with_signal(KillOptions(grace_override_seconds=2)),
    "an eviction": lambda node: node.kill_with_signal(KillOptions(evict=True)),
    "another pod": lambda node: node.send_update(create(pod("db"))),
    "a sweep": lambda node: node.sweep(is_desired=True),
    "a sweep in which the pod is orphaned": lambda node: node.sweep(is_desired=False),
}


def operation(
    run: Callable[[DisturbedWorkers], Awaitable[None]],
    on: Callable[[PortCalls], AbstractAsyncContextManager[DisturbedWorkers]] = with_a_pod,
    settle: float = RETRIED_SECONDS,
) -> OperationTest[DisturbedWorkers]:
    return OperationTest(
        setup=on,
        run=run,
        state=DisturbedWorkers.where,
        check=DisturbedWorkers.holds,
        afterwards=DisturbedWorkers.can_start_again,
        settle_seconds=settle,
    )


def test_every_event_while_a_pod_starts() -> None:
    interleave(operation(start, set_up), EVENTS, cancel=False)


@pytest.mark.parametrize("run", [update, delete, end])
def test_every_event_while_a_pod_is_synced(run: Callable[[DisturbedWorkers], Awaitable[None]]) -> None:
    interleave(operation(run), EVENTS, cancel=False)


def test_every_event_while_a_kill_is_awaited() -> None:
    interleave(operation(kill_and_wait), EVENTS)


def test_every_event_while_a_pod_without_configuration_is_killed() -> None:
    events: dict[str, Event[DisturbedWorkers]] = {
        "the pod's configuration": lambda node: node.send_update(create(V0)),
        "the same kill": lambda node: node.workers.update_pod(kill(LOST)),
        "a sweep": lambda node: node.sweep(is_desired=True),
    }
    interleave(operation(kill_lost, set_up), events, cancel=False)


def test_a_pod_created_again_while_it_ends_starts_after_the_next_sweep() -> None:
    async def runs_if_created_again(node: DisturbedWorkers) -> None:
        node.sweep(is_desired=True)
        await calm()
        assert isinstance(node.workers.state(WEB), Syncing) == (node.desired[WEB] is V1)

    deletion = OperationTest(
        setup=with_a_pod,
        run=delete,
        state=lambda node: node.desired[WEB] is V1,
        check=DisturbedWorkers.holds,
        afterwards=runs_if_created_again,
        settle_seconds=RETRIED_SECONDS,
    )
    again: dict[str, Event[DisturbedWorkers]] = {"the pod is created again": lambda node: node.send_update(create(V1))}
    interleave(deletion, again, in_call_order=True, cancel=False)


def test_a_static_pod_starts_when_its_predecessor_has_finished() -> None:
    old, new, third = static(uid="old"), static(uid="new"), static(uid="third")

    @asynccontextmanager
    async def with_a_static_pod(calls: PortCalls) -> AsyncIterator[DisturbedWorkers]:
        async with set_up(calls) as node:
            node.send_update(create(old))
            await calm()
            yield node

    async def replace_it(node: DisturbedWorkers) -> None:
        node.send_update(create(new))
        node.send_update(kill(old))
        await calm()

    def states(node: DisturbedWorkers) -> list[str]:
        return [type(node.workers.state(PodUID(name))).__name__ for name in ("old", "new", "third")]

    events: dict[str, Event[DisturbedWorkers]] = {
        "the new pod is synced": lambda node: node.send_update(again(new)),
        "the new pod is killed": lambda node: node.send_update(kill(new)),
        "the old pod is killed": lambda node: node.send_update(kill(old)),
        "a third pod of the same name": lambda node: node.send_update(create(third)),
        "a sweep": lambda node: node.sweep(is_desired=True),
    }
    replacing = OperationTest(
        setup=with_a_static_pod,
        run=replace_it,
        state=states,
        check=DisturbedWorkers.holds,
        afterwards=DisturbedWorkers.can_start_again,
        settle_seconds=5,  # shorter than a retry, so only the end of the predecessor can wake the pod
    )
    interleave(replacing, events, cancel=False)


@pytest.mark.parametrize("run", [update, delete, kill_and_wait])
def test_workers_that_stop_leave_no_sync_behind(run: Callable[[DisturbedWorkers], Awaitable[None]]) -> None:
    async def run_if_possible(node: DisturbedWorkers) -> None:
        with suppress(TryLater):
            await run(node)

    def nothing_is_left(node: DisturbedWorkers) -> None:
        assert node.syncer.overlaps == []
        assert node.syncer.busy == set()
        # A sync that ends with the agent is not a cancelled one.
        assert run is not update or (WEB, SyncEnded(SyncResult.CANCELLED)) not in node.history

    stopping = OperationTest(setup=with_a_pod, run=run_if_possible, state=lambda _: None, check=nothing_is_left)
    interleave(stopping, {"the agent stops": DisturbedWorkers.stop_now}, cancel=False)


def test_every_call_fails_once() -> None:
    async def run_all(node: DisturbedWorkers) -> None:
        for part in (start, update, delete):
            await part(node)
            await asyncio.sleep(RETRIED_SECONDS)

    fail_each_call(operation(run_all, set_up, settle=4 * RETRIED_SECONDS))
    fail_each_call(operation(kill_lost, set_up, settle=4 * RETRIED_SECONDS))
