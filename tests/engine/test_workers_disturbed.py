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
    kill_orphan,
    pod,
    static,
)

V0, V1, DELETED = (
    pod("web", grace=30),
    pod("web", grace=30, labels={"version": "1"}),
    pod("web", grace=30, deleted=True),
)
LOST = PodRecord(uid=WEB, name="web", namespace="ns")
ONE_LIFE = re.compile("r*s*t*e*")  # killed while only the runtime knew it; sync, terminating, terminated
LETTERS = {
    "sync_pod": "s",
    "sync_terminating_pod": "t",
    "sync_terminated_pod": "e",
    "sync_terminating_runtime_pod": "r",
}
RETRIED_SECONDS = 40.0  # a failed sync is retried after 10 s to 15 s


@dataclass(slots=True)
class Node(WorkersHarness):
    """Workers with a small loop: due pods are synced, static pods run in order."""

    wanted: dict[PodUID, Pod] = field(default_factory=dict)
    killed: list[asyncio.Event] = field(default_factory=list)

    def tell(self, update: Update) -> None:
        """Pass an update on, as the loop does."""
        if update.pod is not None:
            self.wanted[update.uid] = update.pod
        self.workers.update_pod(update)

    def kill_with_signal(self, options: KillOptions) -> None:
        """Kill the pod. The signal must be set in the end, unless the pod had finished: see `KillRequest`."""
        finished = self.workers.should_pod_be_finished(WEB)
        completed = asyncio.Event()
        self.workers.update_pod(kill(self.wanted.get(WEB, V0), replace(options, completed=completed)))
        if not finished:
            self.killed.append(completed)

    def sweep(self, *, wanted: bool) -> None:
        """Housekeeping: forget what has finished, create again what is wanted and not known."""
        desired = self.wanted if wanted else {}
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
        if uid in self.wanted and not isinstance(self.workers.state(uid), Unknown):
            with suppress(TryLater):  # the agent stops
                self.workers.update_pod(again(self.wanted[uid]))

    def _left(self, full_name: str) -> None:
        uid = self.workers.next_in_line(full_name)
        if uid is not None:
            self.workers.update_pod(again(self.wanted[uid]))

    # What is judged.

    def holds(self) -> None:
        """No two syncs of a pod at a time, no step backwards, nothing left over."""
        assert self.syncer.overlaps == []
        assert self.syncer.busy == set()
        for name in ("web", "db"):
            life = "".join(LETTERS[function] for function in self.syncer.of(name))
            assert ONE_LIFE.fullmatch(life), f"{name}: {life}"
        assert all(signal.is_set() for signal in self.killed)

    def where(self) -> tuple[str, str, object]:
        """Where the pod stands, and what was last made of it."""
        said = [call.said for call in self.syncer.calls if call.name == "web" and call.function == "sync_pod"]
        state = self.workers.state(WEB)
        synced = str(said[-1]).split()[-1] if said and isinstance(state, Syncing) else ""
        return type(state).__name__, synced, type(self.workers.state(DB)).__name__

    async def can_start_again(self) -> None:
        """Whatever happened, a new pod of the same UID runs after the sweeps of housekeeping."""
        self.wanted.clear()
        self.syncer.ending.clear()
        for _ in range(2):  # the first ends what still runs, the second forgets it
            self.workers.sync_known_pods(())
            await asyncio.sleep(RETRIED_SECONDS)
        assert isinstance(self.workers.state(WEB), Unknown)
        begun = len(self.syncer.calls)
        self.tell(create(V0))
        await calm()
        assert isinstance(self.workers.state(WEB), Syncing)
        assert [call.function for call in self.syncer.calls[begun:]] == ["sync_pod"]


async def a_turn() -> None:
    await asyncio.sleep(0)


@asynccontextmanager
async def stage(calls: PortCalls) -> AsyncIterator[Node]:
    node = Node(calls=calls)
    for name in ("web", "db", "static"):
        for function in LETTERS:
            node.syncer.behave(function, name, a_turn)
    node.start()
    await asyncio.sleep(0)
    try:
        yield node
    finally:
        await node.stop()


@asynccontextmanager
async def with_a_pod(calls: PortCalls) -> AsyncIterator[Node]:
    async with stage(calls) as node:
        node.tell(create(V0))
        await calm()
        yield node


async def start(node: Node) -> None:
    node.tell(create(V0))
    await calm()


async def update(node: Node) -> None:
    node.tell(change(V1))
    await calm()


async def delete(node: Node) -> None:
    node.tell(change(DELETED))
    await calm()


async def kill_and_wait(node: Node) -> None:
    await node.workers.kill_pod(V0, grace_override_seconds=5)
    # Not through `is_pod_known_terminated`: housekeeping may have forgotten the pod by now.
    assert "sync_terminating_pod" in node.syncer.of("web")


async def end(node: Node) -> None:
    """The pod comes to its natural end."""
    node.syncer.ending.add("web")
    node.tell(again(V0))
    await calm()


async def kill_lost(node: Node) -> None:
    """The runtime has a pod without configuration. Housekeeping kills it, and comes by once more."""
    node.workers.update_pod(kill_orphan(LOST))
    await asyncio.sleep(RETRIED_SECONDS)
    node.sweep(wanted=True)
    await calm()


EVENTS: dict[str, Event[Node]] = {
    "an update": lambda node: node.tell(change(V1)),
    "a sync": lambda node: node.workers.update_pod(again(node.wanted.get(WEB, V0))),
    "the deletion": lambda node: node.tell(change(DELETED)),
    "a kill with a short grace period": lambda node: node.kill_with_signal(KillOptions(grace_override_seconds=2)),
    "an eviction": lambda node: node.kill_with_signal(KillOptions(evict=True)),
    "another pod": lambda node: node.tell(create(pod("db"))),
    "a sweep": lambda node: node.sweep(wanted=True),
    "a sweep that does not want the pod": lambda node: node.sweep(wanted=False),
}


def operation(
    run: Callable[[Node], Awaitable[None]],
    on: Callable[[PortCalls], AbstractAsyncContextManager[Node]] = with_a_pod,
    settle: float = RETRIED_SECONDS,
) -> OperationTest[Node]:
    return OperationTest(
        setup=on,
        run=run,
        state=Node.where,
        check=Node.holds,
        afterwards=Node.can_start_again,
        settle_seconds=settle,
    )


def test_every_event_while_a_pod_starts() -> None:
    interleave(operation(start, stage), EVENTS, cancel=False)


@pytest.mark.parametrize("run", [update, delete, end])
def test_every_event_while_a_pod_is_synced(run: Callable[[Node], Awaitable[None]]) -> None:
    interleave(operation(run), EVENTS, cancel=False)


def test_every_event_while_a_kill_is_awaited() -> None:
    interleave(operation(kill_and_wait), EVENTS)


def test_every_event_while_a_pod_without_configuration_is_killed() -> None:
    events: dict[str, Event[Node]] = {
        "the pod's configuration": lambda node: node.tell(create(V0)),
        "the same kill": lambda node: node.workers.update_pod(kill_orphan(LOST)),
        "a sweep": lambda node: node.sweep(wanted=True),
    }
    interleave(operation(kill_lost, stage), events, cancel=False)


def test_a_pod_created_again_while_it_ends_starts_after_the_next_sweep() -> None:
    async def it_runs_if_it_was(node: Node) -> None:
        node.sweep(wanted=True)
        await calm()
        assert isinstance(node.workers.state(WEB), Syncing) == (node.wanted[WEB] is V1)

    deletion = OperationTest(
        setup=with_a_pod,
        run=delete,
        state=lambda node: node.wanted[WEB] is V1,
        check=Node.holds,
        afterwards=it_runs_if_it_was,
        settle_seconds=RETRIED_SECONDS,
    )
    again: dict[str, Event[Node]] = {"the pod is created again": lambda node: node.tell(create(V1))}
    interleave(deletion, again, in_call_order=True, cancel=False)


def test_a_static_pod_starts_when_its_predecessor_has_finished() -> None:
    old, new, third = static(uid="old"), static(uid="new"), static(uid="third")

    @asynccontextmanager
    async def with_a_static_pod(calls: PortCalls) -> AsyncIterator[Node]:
        async with stage(calls) as node:
            node.tell(create(old))
            await calm()
            yield node

    async def replace_it(node: Node) -> None:
        node.tell(create(new))
        node.tell(kill(old))
        await calm()

    def states(node: Node) -> list[str]:
        return [type(node.workers.state(PodUID(name))).__name__ for name in ("old", "new", "third")]

    events: dict[str, Event[Node]] = {
        "the new pod is synced": lambda node: node.tell(again(new)),
        "the new pod is killed": lambda node: node.tell(kill(new)),
        "the old pod is killed": lambda node: node.tell(kill(old)),
        "a third pod of the same name": lambda node: node.tell(create(third)),
        "a sweep": lambda node: node.sweep(wanted=True),
    }
    replacing = OperationTest(
        setup=with_a_static_pod,
        run=replace_it,
        state=states,
        check=Node.holds,
        afterwards=Node.can_start_again,
        settle_seconds=5,  # less than the retry of a pod that waits: its predecessor's end must wake it
    )
    interleave(replacing, events, cancel=False)


@pytest.mark.parametrize("run", [update, delete, kill_and_wait])
def test_workers_that_stop_leave_no_sync_behind(run: Callable[[Node], Awaitable[None]]) -> None:
    async def run_if_possible(node: Node) -> None:
        with suppress(TryLater):
            await run(node)

    def nothing_is_left(node: Node) -> None:
        assert node.syncer.overlaps == []
        assert node.syncer.busy == set()
        # A sync that ends with the agent is not a failed one.
        assert run is not update or (WEB, SyncEnded(SyncResult.CANCELLED)) not in node.history

    stopping = OperationTest(setup=with_a_pod, run=run_if_possible, state=lambda _: None, check=nothing_is_left)
    interleave(stopping, {"the agent stops": Node.stop_now}, cancel=False)


def test_every_call_fails_once() -> None:
    async def live(node: Node) -> None:
        for part in (start, update, delete):
            await part(node)
            await asyncio.sleep(RETRIED_SECONDS)

    fail_each_call(operation(live, stage, settle=4 * RETRIED_SECONDS))
    fail_each_call(operation(kill_lost, stage, settle=4 * RETRIED_SECONDS))
