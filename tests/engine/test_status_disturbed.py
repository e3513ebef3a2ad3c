"""The status manager with its sender and checkpoints: an event at every await, a failure of every call."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest
from msgspec.structs import replace

from podkeeper.model.errors import ApiUnavailable, NotFound
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.pods import uid_of
from podkeeper.rules.status.publish import CachedStatus
from podkeeper.testing.failures import check_backoff_resets, fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import FixedJitterClock
from tests.engine.test_status import StatusHarness, StatusJournal, container_status, pod, status

WEB, DB = pod("web"), pod("db")
STATIC, MIRROR, NEXT_MIRROR = (
    pod("dns", uid="static", source="file"),
    pod("dns", uid="m-1", mirror="hash"),
    pod("dns", uid="m-2", mirror="hash"),
)
REJECTED = PodStatus(phase="Failed", reason="OutOfcpu", message="2")
FIRST = replace(status(1), container_statuses=(container_status(ready=False),))
SOON_SECONDS = 2.0
"""Before the next batch, which would hide a missed change."""
BATCHES_SECONDS = 21.0
"""Long enough for two batches: the first finds a missed change, the second finds nothing."""
JOURNAL_SECONDS = 0.02
"""Longer than a call to the API, so that a call that does not wait for the journal is noticed."""


@dataclass
class Harness:
    node: StatusHarness
    journal: StatusJournal
    early: list[str] = field(default_factory=list)  # pods whose status was sent before it was durable

    def set(self, of: Pod, new: PodStatus) -> None:
        """Publish a status, unless the pod is finished."""
        cached = self.node.manager.cached.get(uid_of(of))
        if cached is None or not cached.finished:
            self.node.manager.set_pod_status(of, new)

    def call_made(self, verb: str, name: str) -> None:
        """Let the watch deliver each patch, and compare it with the journal."""
        if verb != "patch":
            return
        shown = self.node.api.pods[name]
        self.node.known.update(shown)
        uid = self.node.known.translate_uid(uid_of(shown))
        data = self.journal.durable.get(f"status/{uid}")
        durable = 0 if data is None else int(msgspec.json.decode(data, type=CachedStatus).status.message or 0)
        if uid in self.node.manager.cached and durable < int(shown.status.message or 0):
            self.early.append(f"{name} {shown.status.message}")

    def overwrite(self, name: str) -> None:
        """Another client writes a status, and the watch delivers it."""
        if name in self.node.api.pods:
            self.node.api.put(replace(self.node.api.pods[name], status=status(0, phase="Pending")))
            self.node.watch(name)

    def forget(self, of: Pod) -> None:
        """The API object is deleted, the source removes the pod, and housekeeping removes its orphaned status."""
        self.delete_object(of.metadata.name or "")
        self.node.known.remove(of)
        self.node.manager.remove_orphaned_statuses([uid for uid in self.node.manager.cached if uid != uid_of(of)])

    def delete_object(self, name: str) -> None:
        self.node.api.pods.pop(name, None)

    def show_mirror(self, mirror: Pod) -> None:
        """The mirror pod was replaced, and the watch delivers the new one."""
        if (old := self.node.known.mirror_of_pod(mirror)) is not None:
            self.node.known.remove(old)
        self.node.api.put(mirror)
        self.node.known.update(mirror)
        self.node.manager.mirror_changed(uid_of(STATIC))

    def probe(self, of: Pod) -> None:
        self.node.manager.set_container_readiness(uid_of(of), "fake://app", True)

    def create_again(self) -> None:
        """The pod is deleted, and another one has its name. The source delivers both."""
        self.node.known.remove(WEB)
        self.node.api.put(pod("web", uid="another"))
        self.node.watch("web")

    def admit_again(self) -> None:
        """Add the manifest of a rejected static pod again. The pod is admitted, and versions start from 1 again."""
        self.node.manager.forget_rejection(STATIC)
        self.set(STATIC, status(4))

    def end_pod(self) -> None:
        """A deleted pod was cleaned up."""
        deleted = pod("web", deleted=True)
        if "web" in self.node.api.pods:
            self.node.api.put(replace(self.node.api.pods["web"], metadata=deleted.metadata))
            self.node.watch("web")
        self.set(deleted, status(5, phase="Succeeded"))
        self.node.manager.terminate_pod(deleted)

    def statuses(self) -> object:
        """Return the status of each API object, and the cached status of its pod.

        If no status is cached, the API may show any, because a call may have been in flight when it was forgotten. Pods
        without an API object are left out, because their source removes them soon.
        """
        return {name: self._status_of(shown) for name, shown in self.node.api.pods.items()}

    def _cached(self, shown: Pod) -> CachedStatus | None:
        return self.node.manager.cached.get(self.node.known.translate_uid(uid_of(shown)))

    def _status_of(self, shown: Pod) -> object:
        cached = self._cached(shown)
        if cached is None:
            return shown.metadata.uid
        ours, theirs = cached.status, shown.status
        ready = [each.ready for each in theirs.container_statuses or ()]
        return shown.metadata.uid, ours.message, ours.phase, cached.finished, theirs.message, theirs.phase, ready

    def check(self) -> None:
        assert not self.early
        self.check_journal()

    def check_journal(self) -> None:
        """Check that nothing is left to do, and that the journal has the cached statuses."""
        manager = self.node.manager
        assert not manager.has_changes
        for shown in self.node.api.pods.values():
            cached = self._cached(shown)
            assert cached is None or cached.changed_at is None
        assert manager.phases() == {uid: each.status.phase for uid, each in manager.cached.items()}
        assert self.journal.values.keys() == {f"status/{uid}" for uid in manager.cached}
        assert not any(self.node.api.busy.values())

    def check_lag(self) -> None:
        """Check that the lag is from the change at 0 s to the successful call."""
        self.check_journal()
        assert self.journal.durable == self.journal.values
        if "web" in self.node.api.pods:
            assert self.node.lags[-1] == self.node.api.calls[-1][0]

    async def an_overwritten_status_is_restored(self) -> None:
        """Check for each pod that a status found equal before does not hide the difference."""
        before = self.statuses()
        for name in [*self.node.api.pods]:
            self.overwrite(name)
        await asyncio.sleep(11)
        assert self.statuses() == before


def stage_with(*pods: Pod) -> Callable[[PortCalls], AbstractAsyncContextManager[Harness]]:
    """A running manager. If pod db exists, its status was sent, and a batch found it equal."""

    @asynccontextmanager
    async def set_up(calls: PortCalls) -> AsyncIterator[Harness]:
        journal = StatusJournal(seconds=JOURNAL_SECONDS)
        node = StatusHarness(*pods, journal=journal, calls=calls, clock=FixedJitterClock())
        harness = Harness(node, journal)
        node.api.fail_after = harness.call_made
        async with node.running():
            if DB in pods:
                node.manager.set_pod_status(DB, FIRST)
                await asyncio.sleep(11)
            yield harness

    return set_up


async def publish(harness: Harness) -> None:
    harness.set(WEB, replace(FIRST, message="2"))
    await asyncio.sleep(0.1)


async def end(harness: Harness) -> None:
    harness.end_pod()
    await asyncio.sleep(0.1)


async def reject_static(harness: Harness) -> None:
    harness.set(STATIC, REJECTED)
    await asyncio.sleep(0.1)


def operation(
    run: Callable[[Harness], Awaitable[None]], *pods: Pod, settle_seconds: float = BATCHES_SECONDS
) -> OperationTest[Harness]:
    return OperationTest(
        setup=stage_with(*pods),
        run=run,
        state=Harness.statuses,
        check=Harness.check,
        afterwards=Harness.an_overwritten_status_is_restored,
        settle_seconds=settle_seconds,
    )


EVENTS: dict[str, Event[Harness]] = {
    "a newer status": lambda harness: harness.set(WEB, status(3)),
    "the status of another pod": lambda harness: harness.set(DB, status(3)),
    "a probe result": lambda harness: harness.probe(WEB),
    "the pod is forgotten": lambda harness: harness.forget(WEB),
    "the pod finishes": Harness.end_pod,
    "a batch": lambda harness: harness.node.manager.sync_batch(every=True),
}
EVENTS_AT_THE_END = {name: EVENTS[name] for name in ("the status of another pod", "the pod is forgotten", "a batch")}
EVENTS_FOR_THE_BATCH: dict[str, Event[Harness]] = {
    "the status is overwritten": lambda harness: harness.overwrite("web"),
    "the object is deleted": lambda harness: harness.delete_object("web"),
    "the object is recreated": Harness.create_again,
}
EVENTS_OF_A_STATIC_POD: dict[str, Event[Harness]] = {
    "the pod is admitted again": Harness.admit_again,
    "the mirror pod is replaced": lambda harness: harness.show_mirror(NEXT_MIRROR),
    "a batch": lambda harness: harness.node.manager.sync_batch(every=True),
}
EVENTS_OF_A_MIRROR: dict[str, Event[Harness]] = {
    "the mirror pod is overwritten": lambda harness: harness.overwrite("dns"),
    "the mirror pod is deleted": lambda harness: harness.delete_object("dns"),
}


@pytest.mark.parametrize(
    "run, soon",
    [(publish, EVENTS), (end, EVENTS_AT_THE_END)],  # a finished worker publishes nothing
    ids=["publish", "end"],
)
def test_every_event_while_a_status_is_sent(
    run: Callable[[Harness], Awaitable[None]], soon: dict[str, Event[Harness]]
) -> None:
    # A pod finishes once, so only `publish` is cancelled and repeated.
    operated = operation(run, WEB, DB, settle_seconds=SOON_SECONDS)
    interleave(operated, soon, cancel=run is publish, in_call_order=True)
    interleave(operation(run, WEB, DB), EVENTS_FOR_THE_BATCH, cancel=False, in_call_order=True)


@pytest.mark.parametrize(
    "events", [EVENTS_OF_A_STATIC_POD, EVENTS_OF_A_MIRROR], ids=["sent at once", "sent by the batch"]
)
def test_every_event_while_the_status_of_a_static_pod_is_sent(events: dict[str, Event[Harness]]) -> None:
    settle_seconds = SOON_SECONDS if events is EVENTS_OF_A_STATIC_POD else BATCHES_SECONDS
    operated = operation(reject_static, STATIC, MIRROR, DB, settle_seconds=settle_seconds)
    interleave(operated, events, in_call_order=True)


@pytest.mark.parametrize("run", [publish, end])
def test_every_call_fails_once(run: Callable[[Harness], Awaitable[None]]) -> None:
    undisturbed = operation(run, WEB)
    # A failed disk does not delay a status, so `check` would be too strict.
    checked = dataclasses.replace(undisturbed, check=Harness.check_lag, afterwards=None)
    # A missing pod counts as deleted.
    fail_each_call(checked, leave_out=[("api", "delete", NotFound)])


def test_the_backoff_after_a_failure_doubles_and_a_success_resets_it() -> None:
    async def publish_again(harness: Harness) -> None:
        harness.set(WEB, status(3))

    pauses = check_backoff_resets(operation(publish, WEB), "api", "get", ApiUnavailable, publish_again)
    assert pauses == pytest.approx([0.5, 1, 2, 4])
