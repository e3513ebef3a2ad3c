"""The handlers alone: which modules each message reaches, with which arguments, in which order."""

from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from podkeeper.engine.admission import Admission
from podkeeper.engine.deadlines import ActiveDeadlines
from podkeeper.engine.handlers import SyncHandlers
from podkeeper.engine.history import PodHistory
from podkeeper.engine.manager import PodManager
from podkeeper.engine.observer import Observer
from podkeeper.engine.preemption import Preemption
from podkeeper.engine.status import StatusManager
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import TryLater
from podkeeper.model.history import PodHeld, PodRejected
from podkeeper.model.k8s.core import Pod, PodCondition, PodReadinessGate, PodStatus
from podkeeper.model.messages import (
    API_SOURCE,
    FILE_SOURCE,
    EventType,
    LifecycleEvent,
    LifecycleEventType,
    Op,
    PodEvent,
    PodUID,
    PodUpdate,
    ProbeKind,
    ProbeResult,
    ProbeUpdate,
)
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.admission.admit import Preempt, Rejection
from podkeeper.rules.static.mirror import PodAndMirror
from podkeeper.rules.worker.updates import Update, UpdateType
from podkeeper.testing import build
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in
from tests.engine.loop_harness import pod

Call = tuple[object, ...]

pytestmark = pytest.mark.usefixtures("no_errors")

WEB, DELETED = pod("web"), pod("web", deleted=True)
STATIC, MIRROR = pod("dns", uid="static", source=FILE_SOURCE), pod("dns", uid="shadow", mirror="hash")
UID = PodUID("web")
NOW = 0.0  # of the virtual clock


def update(type_: UpdateType, of: Pod, mirror: Pod | None = None) -> Call:
    """Return the call that sends an update to a worker."""
    return "update worker", build.update(type_, of, mirror=mirror, start_time=NOW)


class Harness:
    """Handlers with a real pod manager. This harness replaces all other modules and records their calls.

    If `bare`, the handlers have none of the optional modules.
    """

    def __init__(self, sources: Iterable[str] = (API_SOURCE,), *, bare: bool = False) -> None:
        self.calls: list[Call] = []
        self.verdict: Rejection | Preempt | None = None
        self.held_pods: set[PodUID] = set()
        self.ending: set[PodUID] = set()
        self.removable: set[PodUID] = set()
        self.rejected: set[PodUID] = set()
        self.waiting: dict[str, PodUID] = {}
        self.failing: dict[str, Exception] = {}
        self.seen_all = True
        self.forgotten_rejections: list[str | None] = []
        self.then: Callable[[], None] | None = None
        self.pods = PodManager()
        optional: dict[str, Any] = {
            "on_removal": self.removal,
            "history": stand_in(PodHistory, SimpleNamespace(add=partial(self.call, "history"))),
            "observer": stand_in(Observer, SimpleNamespace(rejected=partial(self.call, "rejected"))),
        }
        self.handlers = SyncHandlers(
            pods=self.pods,
            workers=stand_in(PodWorkers, self),
            statuses=stand_in(StatusManager, self),
            deadlines=stand_in(ActiveDeadlines, _Deadlines("deadline", self.call)),
            admission=stand_in(Admission, _Admission(self)),
            preemption=stand_in(Preemption, self),
            sources=tuple(sources),
            has_seen=lambda names: self.seen_all and set(names) == set(sources),
            collect_dead=lambda uid, container_id, everything: self.call("collect", uid, container_id, everything),
            record_event=self.record,
            clock=VirtualClock(),
            **({} if bare else optional),
        )

    def call(self, name: str, *arguments: object) -> None:
        self.calls.append((name, *arguments))
        if name in self.failing:
            raise self.failing[name]

    def config(self, op: Op | str, *pods: Pod, source: str = API_SOURCE) -> list[bool]:
        return list(self.handlers.config(PodUpdate(cast(Op, op), pods, source)))

    def have(self, *pods: Pod, source: str = API_SOURCE) -> None:
        """Add pods and drop the recorded calls."""
        for each in pods:
            self.config(Op.ADD, each, source=source)
        self.take_calls()

    def release(self) -> list[Call]:
        """Let the held pod start. Returns the calls."""
        self.held_pods.clear()
        self.take_calls()
        assert self.then is not None
        self.then()
        return self.take_calls()

    def take_calls(self) -> list[Call]:
        """Return the calls since the last time."""
        take_calls, self.calls = self.calls, []
        return take_calls

    # Workers.

    def update_pod(self, update: Update) -> None:
        self.call("update worker", update)

    def is_pod_termination_requested(self, uid: PodUID) -> bool:
        return uid in self.ending

    def should_pod_content_be_removed(self, uid: PodUID) -> bool:
        return uid in self.removable

    def next_in_line(self, full_name: str) -> PodUID | None:
        return self.waiting.get(full_name)

    def retry(self, uid: PodUID) -> None:
        self.call("retry", uid)

    # Statuses.

    def set_pod_status(self, pod: Pod, status: PodStatus) -> None:
        self.call("status", pod.metadata.uid, status)

    def mirror_changed(self, uid: PodUID) -> None:
        self.call("mirror changed", uid)

    def set_container_readiness(self, uid: PodUID, container_id: str, ready: bool) -> None:
        self.call("ready", uid, container_id, ready)

    def set_container_startup(self, uid: PodUID, container_id: str, started: bool) -> None:
        self.call("started", uid, container_id, started)

    def forget_rejection(self, pod: Pod) -> bool:
        self.forgotten_rejections.append(pod.metadata.uid)
        return pod.metadata.uid in self.rejected

    # Preemption, and the rest.

    def hold(self, pod: Pod, preempt: Preempt, then: Callable[[], None]) -> None:
        self.call("hold", pod.metadata.uid, preempt)
        self.held_pods.add(PodUID(pod.metadata.uid or ""))
        self.then = then

    def held(self) -> frozenset[PodUID]:
        return frozenset(self.held_pods)

    def removal(self, pair: PodAndMirror, at: float, *, all_sources_ready: bool) -> Update | None:
        self.call("removal", pair.pod, pair.was_mirror, all_sources_ready)
        if pair.pod is None or not all_sources_ready:
            return None
        return build.update(UpdateType.UPDATE, pair.pod, start_time=at)

    def record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.call("event", event, about)


class _Deadlines:
    """Deadlines that record which pods are followed."""

    def __init__(self, name: str, call: Callable[..., None]) -> None:
        self._name, self._call = name, call

    def follow(self, pod: Pod) -> None:
        self._call(f"follow {self._name}", pod.metadata.uid)

    def forget(self, uid: PodUID) -> None:
        self._call(f"forget {self._name}", uid)


class _Admission:
    """Admission with the verdict of the harness."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def admit(self, pod: Pod) -> Rejection | Preempt | None:
        self._harness.call("admit", pod.metadata.uid)
        return self._harness.verdict

    def add(self, pod: Pod) -> None:
        self._harness.call("count", pod.metadata.uid)

    def update(self, pod: Pod) -> None:
        self._harness.call("count again", pod.metadata.uid)

    def forget(self, uid: PodUID) -> None:
        self._harness.call("stop counting", uid)


def with_harness(
    scenario: Callable[[Harness], None], sources: Iterable[str] = (API_SOURCE,), *, bare: bool = False
) -> None:
    async def run() -> None:
        scenario(Harness(sources, bare=bare))

    simulate(run())


# Sources.


def test_all_sources_are_ready_once_an_update_of_each_was_handled() -> None:
    def scenario(harness: Harness) -> None:
        assert not harness.handlers.all_sources_ready()
        harness.config(Op.ADD, source=FILE_SOURCE)
        assert not harness.handlers.all_sources_ready()
        step = harness.handlers.config(PodUpdate(Op.ADD, (WEB,), API_SOURCE))
        next(step)
        assert not harness.handlers.all_sources_ready()
        assert list(step) == []
        assert harness.handlers.all_sources_ready()
        harness.seen_all = False
        assert not harness.handlers.all_sources_ready()

    with_harness(scenario, sources=(API_SOURCE, FILE_SOURCE))


def test_a_refused_update_makes_its_source_ready(caplog: pytest.LogCaptureFixture) -> None:
    def scenario(harness: Harness) -> None:
        assert harness.config("SHRUG", WEB) == []
        assert harness.calls == []
        assert harness.handlers.all_sources_ready()

    with_harness(scenario)
    caplog.clear()


def test_a_pod_without_a_uid_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    def scenario(harness: Harness) -> None:
        assert harness.config(Op.UPDATE, pod("bad", uid=""), WEB) == [False]
        assert [call for call in harness.calls if call[0] == "update worker"] == [update(UpdateType.UPDATE, WEB)]

    with_harness(scenario)
    caplog.clear()


@pytest.mark.parametrize("error", [TryLater("cannot"), ZeroDivisionError()], ids=["expected", "unexpected"])
def test_an_error_of_one_pod_does_not_affect_the_others(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def scenario(harness: Harness) -> None:
        harness.failing["update worker"] = error
        assert harness.config(Op.UPDATE, pod("a"), pod("b")) == [False, False]
        updates = [call[1] for call in harness.calls if call[0] == "update worker"]
        assert [each.uid for each in updates if isinstance(each, Update)] == ["a", "b"]
        harness.take_calls()
        harness.handlers.sync(PodUID("a"))
        harness.failing["collect"] = error
        harness.handlers.lifecycle(LifecycleEvent(PodUID("a"), LifecycleEventType.CONTAINER_DIED, "c1"))
        harness.handlers.probe(ProbeUpdate(ProbeKind.READINESS, PodUID("a"), "fake://1", ProbeResult.SUCCESS))
        assert [call[0] for call in harness.calls] == [
            "update worker",
            "update worker",
            "collect",
            "ready",
            "update worker",
        ]

    with_harness(scenario)
    caplog.clear()


def test_only_additions_are_handled_by_age() -> None:
    young, old = pod("young", created="2026-01-01T00:00:02Z"), pod("old", created="2026-01-01T00:00:01Z")

    def updates(harness: Harness) -> list[object]:
        return [call[1].uid for call in harness.take_calls() if isinstance(call[1], Update)]

    def scenario(harness: Harness) -> None:
        harness.config(Op.ADD, young, old)
        assert updates(harness) == ["old", "young"]
        harness.config(Op.UPDATE, young, old)
        assert updates(harness) == ["young", "old"]

    with_harness(scenario)


# One pod at a time.


def test_a_pod_that_fits_is_counted_and_started() -> None:
    def scenario(harness: Harness) -> None:
        assert harness.config(Op.ADD, WEB) == [False]
        assert harness.pods.pod_by_uid(UID) is WEB
        assert harness.calls == [
            ("follow deadline", "web"),
            ("admit", "web"),
            ("count", "web"),
            update(UpdateType.CREATE, WEB),
        ]

    with_harness(scenario)


def test_a_pod_that_does_not_fit_fails_with_the_reason() -> None:
    def scenario(harness: Harness) -> None:
        harness.verdict = Rejection("OutOfcpu", "Node didn't have enough resource: cpu")
        assert harness.config(Op.ADD, WEB) == [True]
        failed = PodStatus(
            phase="Failed",
            reason="OutOfcpu",
            message="Pod was rejected: Node didn't have enough resource: cpu",
            qos_class="BestEffort",
        )
        event = PodEvent(EventType.WARNING, "OutOfcpu", "Node didn't have enough resource: cpu", "web")
        assert harness.calls == [
            ("follow deadline", "web"),
            ("admit", "web"),
            ("stop counting", "web"),
            ("status", "web", failed),
            ("event", event, WEB),
            ("history", "web", PodRejected("OutOfcpu", "Node didn't have enough resource: cpu")),
            ("rejected", "OutOfcpu"),
        ]

    with_harness(scenario)


def test_a_terminating_pod_needs_no_admission_unless_it_was_rejected() -> None:
    def scenario(harness: Harness) -> None:
        harness.ending.add(UID)
        assert harness.config(Op.ADD, WEB) == [False]
        assert harness.take_calls() == [("follow deadline", "web"), update(UpdateType.CREATE, WEB)]
        harness.rejected.add(UID)
        harness.config(Op.ADD, WEB)
        assert ("admit", "web") in harness.take_calls()

    with_harness(scenario)


def test_a_mirror_pod_without_a_static_pod_reaches_only_the_manager() -> None:
    def scenario(harness: Harness) -> None:
        harness.rejected.add(PodUID("shadow"))
        for op in (Op.ADD, Op.UPDATE, Op.RECONCILE):
            assert harness.config(op, MIRROR) == [False]
        assert harness.calls == []

    with_harness(scenario)


def test_an_update_of_a_mirror_updates_its_static_pod() -> None:
    def scenario(harness: Harness) -> None:
        harness.have(STATIC, source=FILE_SOURCE)
        harness.config(Op.ADD, MIRROR)
        assert harness.take_calls() == [("mirror changed", "static"), update(UpdateType.UPDATE, STATIC, MIRROR)]
        assert harness.forgotten_rejections == ["static"]
        harness.config(Op.UPDATE, MIRROR)
        assert harness.take_calls() == [update(UpdateType.UPDATE, STATIC, MIRROR)]
        harness.config(Op.REMOVE, MIRROR)
        assert harness.take_calls() == [("removal", STATIC, True, True), update(UpdateType.UPDATE, STATIC)]
        harness.held_pods.add(PodUID("static"))
        harness.config(Op.REMOVE, MIRROR)
        assert harness.take_calls() == [("removal", STATIC, True, True)]

    with_harness(scenario, sources=(FILE_SOURCE, API_SOURCE))


@pytest.mark.parametrize("op", [Op.UPDATE, Op.DELETE])
def test_a_changed_pod_is_counted_again(op: Op) -> None:
    def scenario(harness: Harness) -> None:
        assert harness.config(op, DELETED) == [False]
        assert harness.pods.pod_by_uid(UID) is DELETED
        assert harness.calls == [
            ("count again", "web"),
            ("follow deadline", "web"),
            update(UpdateType.UPDATE, DELETED),
        ]

    with_harness(scenario)


def test_a_removed_held_pod_is_not_counted_and_its_worker_is_updated() -> None:
    def scenario(harness: Harness) -> None:
        harness.have(WEB)
        harness.held_pods.add(UID)
        assert harness.config(Op.REMOVE, WEB) == [False]
        assert harness.pods.pod_by_uid(UID) is None
        assert harness.calls == [
            ("stop counting", "web"),
            ("forget deadline", "web"),
            ("removal", WEB, False, True),
            update(UpdateType.UPDATE, WEB),
        ]

    with_harness(scenario)


def test_a_removal_before_all_sources_are_ready_is_not_sent_to_the_worker() -> None:
    def scenario(harness: Harness) -> None:
        harness.have(WEB)
        harness.seen_all = False
        harness.config(Op.REMOVE, WEB)
        assert harness.calls == [("stop counting", "web"), ("forget deadline", "web"), ("removal", WEB, False, False)]

    with_harness(scenario)


def test_the_removal_of_a_mirror_without_a_static_pod_causes_no_call() -> None:
    def scenario(harness: Harness) -> None:
        harness.config(Op.REMOVE, MIRROR)
        assert harness.calls == [("removal", None, True, False)]

    with_harness(scenario)


def reconciled(phase: str, reason: str | None = None, *, gated: bool = False) -> Pod:
    """A pod whose status in the API was changed. If `gated`, its Ready condition is true though a gate is not."""
    gates = (PodReadinessGate(condition_type="example.com/gate"),) if gated else None
    ready = PodCondition(type="Ready", status="True")
    web = pod("web")
    return replace(
        web,
        spec=replace(web.spec, readiness_gates=gates),
        status=PodStatus(phase=phase, reason=reason, conditions=(ready,)),
    )


RECONCILED = {
    "evicted": (reconciled("Failed", "Evicted"), False, True),
    "failed": (reconciled("Failed", "Error"), False, False),
    "ready though a gate is closed": (reconciled("Running", gated=True), True, False),
}


@pytest.mark.parametrize("shown, syncs, collects", RECONCILED.values(), ids=RECONCILED.keys())
def test_a_reconciled_pod_with_stale_readiness_is_synced_and_an_evicted_one_collected(
    shown: Pod, syncs: bool, collects: bool
) -> None:
    def scenario(harness: Harness) -> None:
        harness.config(Op.RECONCILE, shown)
        expected: list[Call] = [("count again", "web"), ("follow deadline", "web")]
        expected += [update(UpdateType.SYNC, shown)] * syncs
        assert harness.calls == expected + [("collect", "web", "", True)] * collects

    with_harness(scenario)


# Held pods.

PREEMPT = Preempt(victims=(pod("low"), pod("lower")))


def test_a_pod_that_preempts_is_counted_and_held_before_its_worker_starts_it() -> None:
    def scenario(harness: Harness) -> None:
        harness.verdict = PREEMPT
        assert harness.config(Op.ADD, WEB) == [True]
        assert harness.take_calls() == [
            ("follow deadline", "web"),
            ("admit", "web"),
            ("count", "web"),
            ("history", "web", PodHeld(2)),
            ("hold", "web", PREEMPT),
        ]
        assert harness.config(Op.ADD, WEB) == [False]  # admission runs once
        assert harness.take_calls() == [("follow deadline", "web")]
        harness.config(Op.UPDATE, WEB)
        harness.handlers.sync(UID)
        assert [call for call in harness.take_calls() if call[0] == "update worker"] == []
        assert harness.release() == [update(UpdateType.CREATE, WEB)]

    with_harness(scenario)


@pytest.mark.parametrize("now", [None, DELETED], ids=["removed", "deleted"])
def test_an_undesired_held_pod_is_not_started(now: Pod | None) -> None:
    def scenario(harness: Harness) -> None:
        harness.verdict = PREEMPT
        harness.config(Op.ADD, WEB)
        harness.config(Op.REMOVE, WEB) if now is None else harness.config(Op.DELETE, now)
        assert harness.release() == []

    with_harness(scenario)


def test_a_held_pod_that_ended_meanwhile_is_sent_to_its_worker() -> None:
    def scenario(harness: Harness) -> None:
        harness.verdict = PREEMPT
        harness.config(Op.ADD, WEB)
        harness.ending.add(UID)
        assert harness.release() == [update(UpdateType.CREATE, WEB)]

    with_harness(scenario)


def test_the_deletion_of_a_held_pod_is_sent_to_its_worker_at_once() -> None:
    def scenario(harness: Harness) -> None:
        harness.verdict = PREEMPT
        harness.have(WEB)
        harness.config(Op.DELETE, DELETED)
        assert harness.calls[-1] == update(UpdateType.UPDATE, DELETED)

    with_harness(scenario)


@pytest.mark.parametrize("verdict, admitted", [(PREEMPT, True), (Rejection("OutOfcpu", "no"), False)])
def test_no_pod_is_killed_for_one_that_is_being_deleted(verdict: Rejection | Preempt, admitted: bool) -> None:
    def scenario(harness: Harness) -> None:
        harness.verdict = verdict
        assert harness.config(Op.ADD, DELETED) == [not admitted]
        assert (update(UpdateType.CREATE, DELETED) in harness.calls) == admitted
        assert [call for call in harness.calls if call[0] == "hold"] == []

    with_harness(scenario)


# Events, probes, successors.


@pytest.mark.parametrize(
    "type_, container, removable, expected",
    [
        (LifecycleEventType.CONTAINER_STARTED, "c1", False, [update(UpdateType.SYNC, WEB)]),
        (
            LifecycleEventType.CONTAINER_DIED,
            "c1",
            False,
            [update(UpdateType.SYNC, WEB), ("collect", "web", "c1", False)],
        ),
        (LifecycleEventType.CONTAINER_DIED, "c1", True, [update(UpdateType.SYNC, WEB), ("collect", "web", "c1", True)]),
        (LifecycleEventType.CONTAINER_DIED, "", False, [update(UpdateType.SYNC, WEB)]),
        (LifecycleEventType.CONTAINER_REMOVED, "c1", True, []),
    ],
)
def test_lifecycle_events_sync_a_pod_and_collect_dead_containers(
    type_: LifecycleEventType, container: str, removable: bool, expected: list[Call]
) -> None:
    def scenario(harness: Harness) -> None:
        harness.have(WEB)
        harness.removable |= {UID} if removable else set()
        harness.handlers.lifecycle(LifecycleEvent(UID, type_, container))
        assert harness.calls == expected

    with_harness(scenario)


@pytest.mark.parametrize(
    "kind, result, expected",
    [
        (ProbeKind.READINESS, ProbeResult.SUCCESS, [("ready", "web", "fake://1", True), update(UpdateType.SYNC, WEB)]),
        (ProbeKind.READINESS, ProbeResult.FAILURE, [("ready", "web", "fake://1", False), update(UpdateType.SYNC, WEB)]),
        (ProbeKind.STARTUP, ProbeResult.SUCCESS, [("started", "web", "fake://1", True), update(UpdateType.SYNC, WEB)]),
        (ProbeKind.STARTUP, ProbeResult.FAILURE, [("started", "web", "fake://1", False), update(UpdateType.SYNC, WEB)]),
        (ProbeKind.LIVENESS, ProbeResult.SUCCESS, []),
        (ProbeKind.LIVENESS, ProbeResult.FAILURE, [update(UpdateType.SYNC, WEB)]),
    ],
)
def test_probe_results_set_flags_before_the_pod_is_synced(
    kind: ProbeKind, result: ProbeResult, expected: list[Call]
) -> None:
    def scenario(harness: Harness) -> None:
        harness.have(WEB)
        harness.handlers.probe(ProbeUpdate(kind, UID, "fake://1", result))
        assert harness.calls == expected

    with_harness(scenario)


def test_a_sync_includes_the_mirror_and_needs_a_desired_pod() -> None:
    def scenario(harness: Harness) -> None:
        harness.have(STATIC, MIRROR)
        harness.handlers.sync(PodUID("static"))
        harness.handlers.sync(PodUID("unknown"))
        assert harness.calls == [update(UpdateType.SYNC, STATIC, MIRROR)]

    with_harness(scenario)


def test_a_retry_syncs_a_desired_pod_and_repeats_the_end_of_another() -> None:
    def scenario(harness: Harness) -> None:
        harness.have(WEB)
        harness.handlers.retry(UID)
        harness.handlers.retry(PodUID("removed"))
        assert harness.calls == [update(UpdateType.SYNC, WEB), ("retry", "removed")]

    with_harness(scenario)


def test_only_a_successor_that_waits_is_woken() -> None:
    def scenario(harness: Harness) -> None:
        harness.have(STATIC)
        harness.handlers.wake_successor("dns_ns")
        assert harness.calls == []
        harness.waiting["dns_ns"] = PodUID("static")
        harness.handlers.wake_successor("dns_ns")
        assert harness.calls == [update(UpdateType.SYNC, STATIC)]

    with_harness(scenario)


def test_optional_modules_may_be_missing() -> None:
    def scenario(harness: Harness) -> None:
        harness.ending.add(UID)
        harness.config(Op.ADD, WEB)
        assert harness.take_calls() == [("follow deadline", "web"), update(UpdateType.CREATE, WEB)]
        harness.ending.clear()
        harness.verdict = Rejection("OutOfcpu", "no")
        assert harness.config(Op.ADD, WEB) == [True]
        harness.verdict = PREEMPT
        assert harness.config(Op.ADD, WEB) == [True]
        harness.take_calls()
        harness.config(Op.REMOVE, WEB)
        assert harness.calls[-1] == ("update worker", build.update(UpdateType.KILL, WEB))

    with_harness(scenario, bare=True)
