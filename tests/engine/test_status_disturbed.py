"""The status manager, its postman and its notebook, with an event at every await and a failure at every call."""

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
from podkeeper.rules.status.publish import CachedStatus
from podkeeper.testing.failures import check_backoff_resets, fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import FixedJitterClock
from tests.engine.test_status import FakeJournal, Node, container, pod, status, uid_of

WEB, DB = pod("web"), pod("db")
STATIC, MIRROR, NEXT_MIRROR = (
    pod("dns", "static", source="file"),
    pod("dns", "m-1", mirror=True),
    pod("dns", "m-2", mirror=True),
)
REJECTED = PodStatus(phase="Failed", reason="OutOfcpu", message="2")
FIRST = replace(status(1), container_statuses=(container(ready=False),))
SOON_SECONDS = 2.0
"""Before the next batch, which would find what was missed."""
BATCHES_SECONDS = 21.0
"""Long enough for two batches: one finds what was missed, one is quiet."""
JOURNAL_SECONDS = 0.02
"""Longer than a sending takes, so that one that does not wait for the journal overtakes it."""


@dataclass
class Stage:
    node: Node
    journal: FakeJournal
    early: list[str] = field(default_factory=list)  # statuses that were sent before they were durable

    def set(self, of: Pod, new: PodStatus) -> None:
        """Publish a status, but none after the last one: a worker that is finished does not sync."""
        cached = self.node.manager.cached.get(uid_of(of))
        if cached is None or not cached.finished:
            self.node.manager.set_pod_status(of, new)

    def call_made(self, verb: str, name: str) -> None:
        """Let the watch show each patch, and compare it with the journal."""
        if verb != "patch":
            return
        shown = self.node.api.pods[name]
        self.node.known.update(shown)
        uid = self.node.known.translate_uid(uid_of(shown))
        note = self.journal.durable.get(f"status/{uid}")
        noted = 0 if note is None else int(msgspec.json.decode(note, type=CachedStatus).status.message or 0)
        if uid in self.node.manager.cached and noted < int(shown.status.message or 0):
            self.early.append(f"{name} {shown.status.message}")

    def overwrite(self, name: str) -> None:
        """Somebody else writes a status, and the watch shows it."""
        if name in self.node.api.pods:
            self.node.api.put(replace(self.node.api.pods[name], status=status(0, phase="Pending")))
            self.node.watch(name)

    def forget(self, of: Pod) -> None:
        """The object is gone, its source removes the pod, and housekeeping finds its status orphaned."""
        self.delete_object(of.metadata.name or "")
        self.node.known.remove(of)
        self.node.manager.remove_orphaned_statuses([uid for uid in self.node.manager.cached if uid != uid_of(of)])

    def delete_object(self, name: str) -> None:
        self.node.api.pods.pop(name, None)

    def show_mirror(self, mirror: Pod) -> None:
        """The mirror was replaced, and the watch shows the new one."""
        if (old := self.node.known.mirror_of_pod(mirror)) is not None:
            self.node.known.remove(old)
        self.node.api.put(mirror)
        self.node.known.update(mirror)
        self.node.manager.mirror_changed(uid_of(STATIC))

    def probe(self, of: Pod) -> None:
        self.node.manager.set_container_readiness(uid_of(of), "fake://app", True)

    def create_again(self) -> None:
        """The pod is deleted and another one has its name. The source shows both."""
        self.node.known.remove(WEB)
        self.node.api.put(pod("web", "another"))
        self.node.watch("web")

    def admit_again(self) -> None:
        """A static pod was rejected, its manifest comes back, and it is admitted. Versions start from 1 again."""
        self.node.manager.ask_anew(STATIC)
        self.set(STATIC, status(4))

    def end_pod(self) -> None:
        """The last of a deleted pod was cleaned up."""
        deleted = pod("web", deleted=True)
        if "web" in self.node.api.pods:
            self.node.api.put(replace(self.node.api.pods["web"], metadata=deleted.metadata))
            self.node.watch("web")
        self.set(deleted, status(5, phase="Succeeded"))
        self.node.manager.terminate_pod(deleted)

    def what_is_known(self) -> object:
        """What the API says of each object, and what we say of its pod.

        If we keep no status of a pod, the API may show any: a sending may have been under way when it was forgotten.
        If the API has no object of a pod, its source removes the pod soon, and housekeeping forgets its status.
        """
        return {name: self._known_of(shown) for name, shown in self.node.api.pods.items()}

    def _cached(self, shown: Pod) -> CachedStatus | None:
        return self.node.manager.cached.get(self.node.known.translate_uid(uid_of(shown)))

    def _known_of(self, shown: Pod) -> object:
        cached = self._cached(shown)
        if cached is None:
            return shown.metadata.uid
        ours, theirs = cached.status, shown.status
        ready = [each.ready for each in theirs.container_statuses or ()]
        return shown.metadata.uid, ours.message, ours.phase, cached.finished, theirs.message, theirs.phase, ready

    def is_sound(self) -> None:
        assert not self.early
        self.is_noted()

    def is_noted(self) -> None:
        """Nothing is left to do, and the journal has what we know."""
        manager = self.node.manager
        assert not manager.has_news
        for shown in self.node.api.pods.values():
            cached = self._cached(shown)
            assert cached is None or cached.changed_at is None
        assert manager.phases() == {uid: each.status.phase for uid, each in manager.cached.items()}
        assert self.journal.notes.keys() == {f"status/{uid}" for uid in manager.cached}
        assert not any(self.node.api.busy.values())

    def is_counted(self) -> None:
        """The lag counts from the change at 0 s to the call that succeeded, whatever failed in between."""
        self.is_noted()
        assert self.journal.durable == self.journal.notes
        if "web" in self.node.api.pods:
            assert self.node.lags[-1] == self.node.api.calls[-1][0]

    async def an_overwritten_status_is_restored(self) -> None:
        """For each pod: what was agreed on before must not hide the difference."""
        agreed = self.what_is_known()
        for name in [*self.node.api.pods]:
            self.overwrite(name)
        await asyncio.sleep(11)
        assert self.what_is_known() == agreed


def stage_with(*pods: Pod) -> Callable[[PortCalls], AbstractAsyncContextManager[Stage]]:
    """A manager that runs. If pod db is there, its status was sent, and the API has agreed since."""

    @asynccontextmanager
    async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
        journal = FakeJournal(seconds=JOURNAL_SECONDS)
        node = Node(*pods, journal=journal, calls=calls, clock=FixedJitterClock())
        it = Stage(node, journal)
        node.api.lost = it.call_made
        async with node.running():
            if DB in pods:
                node.manager.set_pod_status(DB, FIRST)
                await asyncio.sleep(11)
            yield it

    return stage


async def publish(stage: Stage) -> None:
    stage.set(WEB, replace(FIRST, message="2"))
    await asyncio.sleep(0.1)


async def end(stage: Stage) -> None:
    stage.end_pod()
    await asyncio.sleep(0.1)


async def reject_static(stage: Stage) -> None:
    stage.set(STATIC, REJECTED)
    await asyncio.sleep(0.1)


def operation(
    run: Callable[[Stage], Awaitable[None]], *pods: Pod, settle_seconds: float = BATCHES_SECONDS
) -> Operation[Stage]:
    return Operation(
        stage=stage_with(*pods),
        run=run,
        state=Stage.what_is_known,
        check=Stage.is_sound,
        afterwards=Stage.an_overwritten_status_is_restored,
        settle_seconds=settle_seconds,
    )


EVENTS: dict[str, Event[Stage]] = {
    "a newer status": lambda stage: stage.set(WEB, status(3)),
    "the status of another pod": lambda stage: stage.set(DB, status(3)),
    "a probe result": lambda stage: stage.probe(WEB),
    "the pod is forgotten": lambda stage: stage.forget(WEB),
    "the pod ends": Stage.end_pod,
    "a batch": lambda stage: stage.node.manager.sync_batch(every=True),
}
EVENTS_AT_THE_END = {name: EVENTS[name] for name in ("the status of another pod", "the pod is forgotten", "a batch")}
EVENTS_FOR_THE_BATCH: dict[str, Event[Stage]] = {
    "the status is overwritten": lambda stage: stage.overwrite("web"),
    "the object is deleted": lambda stage: stage.delete_object("web"),
    "the object is created again": Stage.create_again,
}
EVENTS_OF_A_STATIC_POD: dict[str, Event[Stage]] = {
    "the pod is admitted again": Stage.admit_again,
    "the mirror is replaced": lambda stage: stage.show_mirror(NEXT_MIRROR),
    "a batch": lambda stage: stage.node.manager.sync_batch(every=True),
}
EVENTS_OF_A_MIRROR: dict[str, Event[Stage]] = {
    "the mirror is overwritten": lambda stage: stage.overwrite("dns"),
    "the mirror is deleted": lambda stage: stage.delete_object("dns"),
}


@pytest.mark.parametrize(
    "run, soon",
    [(publish, EVENTS), (end, EVENTS_AT_THE_END)],  # a worker that is finished publishes nothing
    ids=["publish", "end"],
)
def test_every_event_while_a_status_is_sent(
    run: Callable[[Stage], Awaitable[None]], soon: dict[str, Event[Stage]]
) -> None:
    # Nothing ends the last of a pod twice, so only the publishing is cancelled and repeated.
    sending = operation(run, WEB, DB, settle_seconds=SOON_SECONDS)
    interleave(sending, soon, cancel=run is publish, in_call_order=True)
    interleave(operation(run, WEB, DB), EVENTS_FOR_THE_BATCH, cancel=False, in_call_order=True)


@pytest.mark.parametrize("events", [EVENTS_OF_A_STATIC_POD, EVENTS_OF_A_MIRROR], ids=["soon", "by the batch"])
def test_every_event_while_the_status_of_a_static_pod_is_sent(events: dict[str, Event[Stage]]) -> None:
    settle_seconds = SOON_SECONDS if events is EVENTS_OF_A_STATIC_POD else BATCHES_SECONDS
    sending = operation(reject_static, STATIC, MIRROR, DB, settle_seconds=settle_seconds)
    interleave(sending, events, in_call_order=True)


@pytest.mark.parametrize("run", [publish, end])
def test_every_call_fails_once(run: Callable[[Stage], Awaitable[None]]) -> None:
    undisturbed = operation(run, WEB)
    # A disk that fails does not keep a status from the API, so `is_sound` would say too much.
    checked = dataclasses.replace(undisturbed, check=Stage.is_counted, afterwards=None)
    # A pod that is gone already counts as deleted.
    fail_each_call(checked, leave_out=[("api", "delete", NotFound)])


def test_the_pause_after_a_failure_doubles_and_a_success_resets_it() -> None:
    async def publish_again(stage: Stage) -> None:
        stage.set(WEB, status(3))

    pauses = check_backoff_resets(operation(publish, WEB), "api", "get", ApiUnavailable, publish_again)
    assert pauses == pytest.approx([0.5, 1, 2, 4])
