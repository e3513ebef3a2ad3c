"""Steps of a pod worker: state and event in, next state and orders out."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from msgspec.structs import replace

from podkeeper.model.errors import InBackoff, NetworkNotReady, TryLater
from podkeeper.model.history import Cause, SyncKind
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState, SandboxRecord
from podkeeper.rules.worker.events import (
    Cancel,
    Complete,
    Enqueue,
    Event,
    HousekeepingRan,
    IllegalStep,
    ReadStatus,
    RecordEvent,
    RequestStart,
    RetryDue,
    StartAllowed,
    StartDeferred,
    StatusRead,
    StatusUnreadable,
    Step,
    Synced,
    SyncFailed,
    SyncPod,
    SyncTerminatedPod,
    SyncTerminatingPod,
    SyncTerminatingRuntimePod,
    Updated,
)
from podkeeper.rules.worker.states import (
    Finished,
    Idle,
    NeverStarted,
    ReadingStatus,
    RunningSync,
    State,
    Syncing,
    Terminated,
    Terminating,
    Termination,
    TerminationRequested,
    Unknown,
    Waiting,
    Work,
)
from podkeeper.rules.worker.step import step
from podkeeper.rules.worker.timing import BackoffRemaining, RetryDelay, SyncTiming, retry_delay_after
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType, kill_request
from podkeeper.testing import build
from tests.rules.worker.signals import NamedSignal

CREATE, UPDATE, SYNC, KILL = UpdateType.CREATE, UpdateType.UPDATE, UpdateType.SYNC, UpdateType.KILL
SYNC_POD, STOP, KILL_RUNTIME, CLEANUP = SyncKind


pod = partial(build.pod, uid="uid", source="api", labels={"version": "1"}, phase="")


def to_failed(status: PodStatus) -> PodStatus:
    return PodStatus(phase="Failed", message=status.message)


WEB, WEB_2, STATIC = pod(), pod(labels={"version": "2"}), pod(source="file")
MIRROR = pod(labels={"version": "mirror"})
DELETING = pod(labels={"version": "2"}, deletion_grace=10, deleted=True)
FAILED = pod(labels={"version": "2"}, phase="Failed")
RECORD = PodRecord(uid="uid", name="web", namespace="default")
STOPPED = replace(RECORD, containers=(ContainerRecord(id="c", name="app", state=RecordState.EXITED),))
RUNNING = replace(RECORD, containers=(ContainerRecord(id="c", name="app", state=RecordState.RUNNING),))
SANDBOX_READY = replace(RECORD, sandboxes=(SandboxRecord(id="s", ready=True),))
SIGNAL_A, SIGNAL_B = NamedSignal("a"), NamedSignal("b")


def updated(
    update_type: UpdateType, subject: Pod | None = WEB, *, runtime: PodRecord | None = RECORD, **kill: object
) -> Updated:
    options = KillOptions(**kill) if kill else None  # type: ignore[arg-type]  # any field
    return Updated(Update(type=update_type, pod=subject, kill=options), runtime)


def work(update_type: UpdateType = SYNC, subject: Pod | PodRecord = WEB, grace: int | None = None) -> Work:
    return Work(update_type=update_type, subject=subject, grace_seconds=grace)


RUNTIME_KILL = Updated(Update(type=KILL, running_pod=RECORD), RECORD)
FAILED_SYNC = RecordEvent(PodEvent(EventType.WARNING, "FailedSync", "error determining status: boom", "uid"))
RESYNC, RETRY, AT_ONCE = Enqueue(60), Enqueue(10), Enqueue(0)

IDLE = Syncing(Idle(work(), 5.0))
READING = Syncing(ReadingStatus(SYNC_POD, work(), 5.0))
SYNCING = Syncing(RunningSync(SYNC_POD, work(), 5.0))
STOP_30 = work(KILL, grace=30)
KILLED_30 = Termination(Cause.KILLED, 30)
STOPPING = Terminating(KILLED_30, RunningSync(STOP, STOP_30, 5.0))
STOP_FAILED = Terminating(KILLED_30, Idle(STOP_30, 5.0))
CLEANING_UP = Terminated(Cause.KILLED, RunningSync(CLEANUP, work(), 5.0))
RUNTIME_POD = Terminating(Termination(Cause.ORPHANED, 1), RunningSync(KILL_RUNTIME, work(KILL, RECORD, 1), None))
RUNTIME_POD_IDLE = replace(RUNTIME_POD, activity=Idle(work(KILL, RECORD, 1), 5.0))
FINISHED = Finished(Cause.KILLED, WEB)


def requested(cause: Cause, pending: Work, *, on: Syncing = SYNCING, **termination: object) -> TerminationRequested:
    """A termination that was requested during a sync."""
    assert isinstance(on.activity, RunningSync | ReadingStatus)
    details = Termination(cause, pending.grace_seconds, **termination)  # type: ignore[arg-type]  # any field
    return TerminationRequested(details, replace(on.activity, pending=pending))


FIRST_UPDATE: dict[str, tuple[State, Event, Step]] = {
    "a new pod requests to start":
        (Unknown(), updated(CREATE), Step(Waiting(work(CREATE)), (RequestStart(),))),
    "a pod that is first seen with a deletion timestamp is stopped":
        (Unknown(), updated(CREATE, DELETING),
         Step(TerminationRequested(Termination(Cause.DELETED, 10), ReadingStatus(STOP, work(CREATE, DELETING, 10))),
              (ReadStatus(None),))),
    "a pod that is first seen failed, with nothing running, is only cleaned up":
        (Unknown(), updated(CREATE, FAILED, runtime=STOPPED),
         Step(Terminated(Cause.COMPLETED, ReadingStatus(CLEANUP, work(CREATE, FAILED))), (ReadStatus(None),))),
    "a pod that is first seen failed, with a running container, is stopped":
        (Unknown(), updated(CREATE, FAILED, runtime=RUNNING),
         Step(TerminationRequested(Termination(Cause.COMPLETED, 30), ReadingStatus(STOP, work(CREATE, FAILED, 30))),
              (ReadStatus(None),))),
    "a pod that is first seen failed, with a ready sandbox, is stopped":
        (Unknown(), updated(CREATE, FAILED, runtime=SANDBOX_READY),
         Step(TerminationRequested(Termination(Cause.COMPLETED, 30), ReadingStatus(STOP, work(CREATE, FAILED, 30))),
              (ReadStatus(None),))),
    "a pod that is first seen failed, without a runtime record, is stopped":
        (Unknown(), updated(CREATE, FAILED, runtime=None),
         Step(TerminationRequested(Termination(Cause.COMPLETED, 30), ReadingStatus(STOP, work(CREATE, FAILED, 30))),
              (ReadStatus(None),))),
    "a pod that only the runtime knows is killed without reading its status":
        (Unknown(), RUNTIME_KILL, Step(RUNTIME_POD, (SyncTerminatingRuntimePod(RECORD),))),
    "a pod that only the runtime knows can only be killed":
        (Unknown(), Updated(Update(type=SYNC, running_pod=RECORD)), Step(Unknown())),
    "a pod takes precedence over a running pod in the same update":
        (Unknown(), Updated(Update(type=SYNC, pod=WEB, running_pod=RECORD)), Step(Waiting(work()), (RequestStart(),))),
    "a static pod that is first seen with a deletion timestamp never starts":
        (Unknown(), updated(CREATE, pod(source="file", deletion_grace=10, deleted=True)),
         Step(NeverStarted(Cause.DELETED))),
    "a static pod that is first seen failed, with nothing running, is finished":
        (Unknown(), updated(CREATE, pod(source="file", phase="Failed"), runtime=STOPPED),
         Step(Finished(Cause.COMPLETED, None))),
}  # fmt: skip

WAITING: dict[str, tuple[State, Event, Step]] = {
    "a waiting pod that may start begins its first sync":
        (Waiting(work(CREATE)), StartAllowed(),
         Step(Syncing(ReadingStatus(SYNC_POD, work(CREATE))), (ReadStatus(None),))),
    "a waiting pod that may not start is retried later":
        (Waiting(work(CREATE)), StartDeferred(), Step(Waiting(work(CREATE)), (RETRY,))),
    "an update of a waiting pod replaces the pending one and requests to start again":
        (Waiting(work(CREATE, STATIC)), updated(SYNC, STATIC), Step(Waiting(work(SYNC, STATIC)), (RequestStart(),))),
    "a pod killed while it waits never starts, and sends no signal":
        (Waiting(work(CREATE, STATIC)), updated(KILL, STATIC, completed=SIGNAL_A), Step(NeverStarted(Cause.KILLED))),
    "a waiting pod that is killed as a runtime pod becomes orphaned":
        (Waiting(work(CREATE, STATIC)), RUNTIME_KILL, Step(NeverStarted(Cause.ORPHANED))),
    "a waiting pod ignores a runtime-only update that is not a kill":
        (Waiting(work(CREATE, STATIC)), Updated(Update(type=UPDATE, running_pod=RECORD)),
         Step(Waiting(work(CREATE, STATIC)))),
    "an orphaned waiting pod is removed":
        (Waiting(work(CREATE, STATIC)), HousekeepingRan(desired=False), Step(Unknown())),
}  # fmt: skip

RUNNING_POD: dict[str, tuple[State, Event, Step]] = {
    "an idle worker syncs an update at once":
        (IDLE, updated(UPDATE, WEB_2),
         Step(Syncing(ReadingStatus(SYNC_POD, work(UPDATE, WEB_2), 5.0)), (ReadStatus(5.0),))),
    "an update of a busy worker is pending":
        (SYNCING, updated(UPDATE, WEB_2), Step(Syncing(RunningSync(SYNC_POD, work(), 5.0, work(UPDATE, WEB_2))))),
    "a later update replaces the pending one":
        (Syncing(RunningSync(SYNC_POD, work(), 5.0, work(UPDATE, WEB_2))), updated(SYNC),
         Step(Syncing(RunningSync(SYNC_POD, work(), 5.0, work(SYNC))))),
    "kill options without a kill are completed at once and dropped":
        (SYNCING, updated(SYNC, completed=SIGNAL_A, grace_override_seconds=0),
         Step(Syncing(RunningSync(SYNC_POD, work(), 5.0, work(SYNC))), (Complete((SIGNAL_A,)),))),
    "after the status is read, the sync function runs":
        (READING, StatusRead(), Step(SYNCING, (SyncPod(SYNC, WEB, None),))),
    "the mirror pod is part of its update":
        (IDLE, Updated(Update(type=UPDATE, pod=WEB, mirror_pod=MIRROR)),
         Step(Syncing(ReadingStatus(SYNC_POD, replace(work(UPDATE), mirror_pod=MIRROR), 5.0)), (ReadStatus(5.0),))),
    "a sync without a status does not count as the last sync":
        (READING, StatusUnreadable("boom"),
         Step(IDLE, (FAILED_SYNC, RETRY))),
    "a sync that is cancelled while it reads the status does not count as the last sync":
        (READING, SyncFailed(9.0), Step(IDLE, (RETRY,))),
    "a successful sync is repeated after a minute":
        (SYNCING, Synced(9.0), Step(Syncing(Idle(work(), 9.0)), (RESYNC,))),
    "a failed sync is retried sooner":
        (SYNCING, SyncFailed(9.0), Step(Syncing(Idle(work(), 9.0)), (RETRY,))),
    "without a network, a sync is retried even sooner":
        (SYNCING, SyncFailed(9.0, RetryDelay.NETWORK_NOT_READY), Step(Syncing(Idle(work(), 9.0)), (Enqueue(1),))),
    "after a failed sync, the pending update is synced at once":
        (Syncing(RunningSync(SYNC_POD, work(), 5.0, work(UPDATE, WEB_2))), SyncFailed(9.0),
         Step(Syncing(ReadingStatus(SYNC_POD, work(UPDATE, WEB_2), 9.0)), (RETRY, ReadStatus(9.0)))),
    "a completed pod terminates at once, without a grace period of its own":
        (SYNCING, Synced(9.0, is_terminal=True),
         Step(Terminating(Termination(Cause.COMPLETED), ReadingStatus(STOP, work(), 9.0)), (AT_ONCE, ReadStatus(9.0)))),
    "a completed pod terminates with the pending update":
        (Syncing(RunningSync(SYNC_POD, work(), 5.0, work(UPDATE, WEB_2))), Synced(9.0, is_terminal=True),
         Step(Terminating(Termination(Cause.COMPLETED), ReadingStatus(STOP, work(UPDATE, WEB_2), 9.0)),
              (AT_ONCE, ReadStatus(9.0)))),
    "housekeeping changes nothing for a desired pod":
        (IDLE, HousekeepingRan(desired=True), Step(IDLE)),
    "a retry has no effect on a pod that is not terminating":
        (IDLE, RetryDue(), Step(IDLE)),
    "an orphaned idle pod is stopped with the grace period of its spec":
        (IDLE, HousekeepingRan(desired=False),
         Step(TerminationRequested(Termination(Cause.ORPHANED, 30), ReadingStatus(STOP, work(), 5.0)),
              (ReadStatus(5.0),))),
    "the sync of an orphaned pod is not cancelled":
        (SYNCING, HousekeepingRan(desired=False),
         Step(TerminationRequested(Termination(Cause.ORPHANED, 30), RunningSync(SYNC_POD, work(), 5.0, work())))),
}  # fmt: skip

TERMINATING: dict[str, tuple[State, Event, Step]] = {
    "a kill cancels the sync":
        (SYNCING, updated(KILL), Step(requested(Cause.KILLED, STOP_30), (Cancel(),))),
    "a kill cancels a sync that reads the status":
        (READING, updated(KILL), Step(requested(Cause.KILLED, STOP_30, on=READING), (Cancel(),))),
    "an eviction sets its own grace period, status function and signal":
        (SYNCING, updated(KILL, evict=True, grace_override_seconds=2, status_function=to_failed, completed=SIGNAL_A),
         Step(requested(Cause.EVICTED, work(KILL, grace=2), status_function=to_failed, signals=(SIGNAL_A,)),
              (Cancel(),))),
    "a deletion takes precedence over an eviction":
        (SYNCING, updated(KILL, DELETING, evict=True),
         Step(requested(Cause.DELETED, work(KILL, DELETING, 10)), (Cancel(),))),
    "a terminal phase terminates the pod":
        (SYNCING, updated(SYNC, FAILED), Step(requested(Cause.COMPLETED, work(SYNC, FAILED, 30)), (Cancel(),))),
    "a runtime kill of a configured pod uses its configuration":
        (SYNCING, RUNTIME_KILL, Step(requested(Cause.ORPHANED, STOP_30), (Cancel(),))),
    "a runtime kill uses the newest configuration, even if it is pending":
        (Syncing(RunningSync(SYNC_POD, work(), 5.0, work(UPDATE, WEB_2))), RUNTIME_KILL,
         Step(requested(Cause.ORPHANED, work(KILL, WEB_2, 30)), (Cancel(),))),
    "a killed idle pod is stopped at once":
        (IDLE, updated(KILL),
         Step(TerminationRequested(KILLED_30, ReadingStatus(STOP, STOP_30, 5.0)), (ReadStatus(5.0),))),
    "after the status is read, no container starts in a pod that must stop":
        (TerminationRequested(KILLED_30, ReadingStatus(STOP, STOP_30, 5.0)), StatusRead(),
         Step(STOPPING, (SyncTerminatingPod(WEB, 30, None),))),
    "a sync that reads the status when a kill comes stays a sync":
        (requested(Cause.KILLED, STOP_30, on=READING), StatusRead(),
         Step(requested(Cause.KILLED, STOP_30), (SyncPod(SYNC, WEB, None),))),
    "after a cancelled sync, the pending kill is synced":
        (requested(Cause.KILLED, STOP_30), SyncFailed(9.0),
         Step(TerminationRequested(KILLED_30, ReadingStatus(STOP, STOP_30, 9.0)), (RETRY, ReadStatus(9.0)))),
    "a sync that succeeds although it was cancelled counts":
        (requested(Cause.KILLED, STOP_30), Synced(9.0),
         Step(TerminationRequested(KILLED_30, ReadingStatus(STOP, STOP_30, 9.0)), (RESYNC, ReadStatus(9.0)))),
    "a pod that completes after a kill keeps the cause of the kill":
        (requested(Cause.KILLED, STOP_30), Synced(9.0, is_terminal=True),
         Step(Terminating(KILLED_30, ReadingStatus(STOP, STOP_30, 9.0)), (AT_ONCE, ReadStatus(9.0)))),
    "a shorter grace period cancels the current stop":
        (STOPPING, updated(KILL, grace_override_seconds=2),
         Step(Terminating(Termination(Cause.KILLED, 2), RunningSync(STOP, STOP_30, 5.0, work(KILL, grace=2))),
              (Cancel(),))),
    "a longer grace period is ignored":
        (STOPPING, updated(KILL, grace_override_seconds=60),
         Step(Terminating(KILLED_30, RunningSync(STOP, STOP_30, 5.0, STOP_30)))),
    "a later eviction does not change the cause, but its signal and status function count":
        (STOPPING, updated(KILL, evict=True, status_function=to_failed, completed=SIGNAL_B),
         Step(Terminating(replace(KILLED_30, status_function=to_failed, signals=(SIGNAL_B,)),
                          RunningSync(STOP, STOP_30, 5.0, STOP_30)))),
    "any update of a terminating pod is a kill":
        (STOP_FAILED, updated(SYNC, WEB_2),
         Step(Terminating(KILLED_30, ReadingStatus(STOP, work(SYNC, WEB_2, 30), 5.0)), (ReadStatus(5.0),))),
    "the first grace period of a completed pod does not preempt":
        (Terminating(Termination(Cause.COMPLETED), RunningSync(STOP, work(), 5.0)), updated(SYNC),
         Step(Terminating(Termination(Cause.COMPLETED, 30), RunningSync(STOP, work(), 5.0, work(grace=30))))),
    "a create update of a terminating pod only requests a restart":
        (STOPPING, updated(CREATE), Step(replace(STOPPING, termination=replace(KILLED_30, restart_requested=True)))),
    "a failed stop is retried":
        (STOPPING, SyncFailed(9.0), Step(Terminating(KILLED_30, Idle(STOP_30, 9.0)), (RETRY,))),
    "after the stop, waiting callers are notified and the cleanup begins":
        (replace(STOPPING, termination=replace(KILLED_30, signals=(SIGNAL_A, SIGNAL_B))), Synced(9.0),
         Step(Terminated(Cause.KILLED, ReadingStatus(CLEANUP, STOP_30.again(), 9.0)),
              (Complete((SIGNAL_A, SIGNAL_B)), AT_ONCE, ReadStatus(9.0)))),
    "after the stop, the cleanup begins and a requested restart is kept":
        (replace(STOPPING, termination=replace(KILLED_30, restart_requested=True)), Synced(9.0),
         Step(Terminated(Cause.KILLED, ReadingStatus(CLEANUP, STOP_30.again(), 9.0), restart_requested=True),
              (AT_ONCE, ReadStatus(9.0)))),
    "a stopping pod becomes orphaned and its stop continues":
        (STOPPING, HousekeepingRan(desired=False),
         Step(Terminating(replace(KILLED_30, cause=Cause.ORPHANED),
                          RunningSync(STOP, STOP_30, 5.0, STOP_30.again())))),
    "the failed stop of an orphaned pod is retried":
        (STOP_FAILED, HousekeepingRan(desired=False),
         Step(Terminating(replace(KILLED_30, cause=Cause.ORPHANED), ReadingStatus(STOP, STOP_30.again(), 5.0)),
              (ReadStatus(5.0),))),
    "a failed stop is repeated when its retry is due, although no source has the pod":
        (STOP_FAILED, RetryDue(),
         Step(Terminating(KILLED_30, ReadingStatus(STOP, STOP_30.again(), 5.0)), (ReadStatus(5.0),))),
    "an evicted pod stays evicted when it is orphaned":
        (replace(STOP_FAILED, termination=Termination(Cause.EVICTED, 30)), HousekeepingRan(desired=False),
         Step(Terminating(Termination(Cause.EVICTED, 30), ReadingStatus(STOP, STOP_30.again(), 5.0)),
              (ReadStatus(5.0),))),
}  # fmt: skip

RUNTIME_ONLY: dict[str, tuple[State, Event, Step]] = {
    "it is removed after the kill":
        (RUNTIME_POD, Synced(9.0), Step(Unknown())),
    "a failed kill is retried":
        (RUNTIME_POD, SyncFailed(9.0), Step(replace(RUNTIME_POD, activity=Idle(work(KILL, RECORD, 1), 9.0)), (RETRY,))),
    "housekeeping repeats the kill":
        (RUNTIME_POD_IDLE, HousekeepingRan(desired=False),
         Step(replace(RUNTIME_POD, activity=RunningSync(KILL_RUNTIME, work(SYNC, RECORD, 1), 5.0)),
              (SyncTerminatingRuntimePod(RECORD),))),
    "it uses a configuration that arrives later":
        (RUNTIME_POD_IDLE, updated(UPDATE),
         Step(Terminating(Termination(Cause.ORPHANED, 1), ReadingStatus(STOP, work(UPDATE, grace=1), 5.0)),
              (ReadStatus(5.0),))),
    "it never starts with a static configuration that arrives later":
        (RUNTIME_POD_IDLE, updated(UPDATE, STATIC), Step(Finished(Cause.ORPHANED, None))),
}  # fmt: skip

STOPPED_POD: dict[str, tuple[State, Event, Step]] = {
    "a kill of a terminated pod is completed at once":
        (CLEANING_UP, updated(KILL, completed=SIGNAL_A),
         Step(replace(CLEANING_UP, activity=RunningSync(CLEANUP, work(), 5.0, work(KILL))), (Complete((SIGNAL_A,)),))),
    "a late runtime kill of a terminated pod is ignored":
        (CLEANING_UP, RUNTIME_KILL, Step(CLEANING_UP)),
    "a create update during the cleanup requests a restart":
        (CLEANING_UP, updated(CREATE), Step(replace(CLEANING_UP, restart_requested=True))),
    "a failed cleanup is retried":
        (CLEANING_UP, SyncFailed(9.0), Step(Terminated(Cause.KILLED, Idle(work(), 9.0)), (RETRY,))),
    "a pod becomes orphaned during its cleanup":
        (Terminated(Cause.COMPLETED, Idle(work(), 5.0)), HousekeepingRan(desired=False),
         Step(Terminated(Cause.ORPHANED, ReadingStatus(CLEANUP, work(), 5.0)), (ReadStatus(5.0),))),
    "a failed cleanup is repeated when its retry is due, and a requested restart is kept":
        (Terminated(Cause.KILLED, Idle(work(), 5.0), restart_requested=True), RetryDue(),
         Step(Terminated(Cause.KILLED, ReadingStatus(CLEANUP, work(), 5.0), restart_requested=True),
              (ReadStatus(5.0),))),
    "after the cleanup, the pod is finished":
        (CLEANING_UP, Synced(9.0), Step(FINISHED)),
    "after the cleanup, a requested restart is kept":
        (replace(CLEANING_UP, restart_requested=True), Synced(9.0), Step(replace(FINISHED, restart_requested=True))),
    "after a failed cleanup, a requested restart is kept":
        (replace(CLEANING_UP, restart_requested=True), SyncFailed(9.0),
         Step(Terminated(Cause.KILLED, Idle(work(), 9.0), restart_requested=True), (RETRY,))),
    "a finished pod has nothing to repeat":
        (FINISHED, RetryDue(), Step(FINISHED)),
    "a finished pod ignores updates":
        (FINISHED, updated(UPDATE, DELETING, completed=SIGNAL_A), Step(FINISHED)),
    "a create update of a finished pod requests a restart":
        (FINISHED, updated(CREATE), Step(Finished(Cause.KILLED, WEB, restart_requested=True))),
    "a finished pod is kept while it is desired":
        (FINISHED, HousekeepingRan(desired=True), Step(FINISHED)),
    "a finished orphaned pod is removed":
        (FINISHED, HousekeepingRan(desired=False), Step(Unknown())),
    "a finished pod with a requested restart is removed":
        (replace(FINISHED, restart_requested=True), HousekeepingRan(desired=True), Step(Unknown())),
    "a pod that never started is removed if a restart was requested":
        (NeverStarted(Cause.KILLED, restart_requested=True), HousekeepingRan(desired=True), Step(Unknown())),
}  # fmt: skip

CASES = {
    **FIRST_UPDATE,
    **WAITING,
    **RUNNING_POD,
    **TERMINATING,
    **{f"a runtime pod: {k}": v for k, v in RUNTIME_ONLY.items()},
    **STOPPED_POD,
}


@pytest.mark.parametrize("state, event, expected", CASES.values(), ids=CASES.keys())
def test_step(state: State, event: Event, expected: Step) -> None:
    assert step(state, event) == expected


ILLEGAL: dict[str, tuple[State, Event]] = {
    "a sync of an unknown pod": (Unknown(), Synced(1.0)),
    "a sync of a waiting pod": (Waiting(work()), StatusRead()),
    "the end of a sync that still reads the status": (READING, Synced(1.0)),
    "the end of a sync that is not running": (IDLE, SyncFailed(1.0)),
    "a status after the sync function has started": (SYNCING, StatusRead()),
    "completion of a pod that is being stopped": (STOPPING, Synced(1.0, is_terminal=True)),
    "a sync of a finished pod": (FINISHED, Synced(1.0)),
    "permission to start for a started pod": (SYNCING, StartAllowed()),
}


@pytest.mark.parametrize("state, event", ILLEGAL.values(), ids=ILLEGAL.keys())
def test_an_impossible_event_raises(state: State, event: Event) -> None:
    with pytest.raises(IllegalStep):
        step(state, event)


def test_an_update_without_a_pod_raises() -> None:
    with pytest.raises(ValueError, match="expected pod or running_pod, both are None"):
        step(Unknown(), Updated(Update(type=SYNC)))


def test_the_last_status_function_is_used_in_every_attempt() -> None:
    state: State = replace(STOP_FAILED, termination=replace(KILLED_30, status_function=to_failed))
    for _ in range(2):
        reading = step(state, updated(SYNC)).state
        called = step(reading, StatusRead())
        assert called.orders == (SyncTerminatingPod(WEB, 30, to_failed),)
        state = step(called.state, SyncFailed(9.0)).state


def test_the_cleanup_uses_the_pending_update() -> None:
    stopping = replace(STOPPING, activity=RunningSync(STOP, STOP_30, 5.0, work(SYNC, DELETING, 10)))
    cleanup = step(step(stopping, Synced(9.0)).state, StatusRead())
    assert cleanup.orders == (SyncTerminatedPod(DELETING),)


START_TIMES = {
    "the older time is pending": (3.0, 7.0, 3.0),
    "the older time comes later": (7.0, 3.0, 3.0),
    "the new update has no time": (3.0, None, 3.0),
    "the pending update has no time": (None, 7.0, 7.0),
    "neither has a time": (None, None, None),
}


@pytest.mark.parametrize("pending, new, expected", START_TIMES.values(), ids=START_TIMES.keys())
def test_the_oldest_start_time_is_kept(pending: float | None, new: float | None, expected: float | None) -> None:
    busy = Syncing(RunningSync(SYNC_POD, work(), pending=replace(work(UPDATE), start_time=pending)))
    state = step(busy, Updated(Update(type=SYNC, pod=WEB_2, start_time=new))).state
    assert isinstance(state, Syncing)
    assert isinstance(state.activity, RunningSync)
    assert state.activity.pending == replace(work(SYNC, WEB_2), start_time=expected)


def test_a_sync_without_a_new_update_has_no_start_time() -> None:
    update = replace(work(CREATE), start_time=3.0, mirror_pod=MIRROR)
    state = step(Syncing(RunningSync(SYNC_POD, update)), Synced(9.0, is_terminal=True)).state
    assert state == Terminating(Termination(Cause.COMPLETED), ReadingStatus(STOP, work(SYNC), 9.0))


NOW = datetime(2026, 1, 1, tzinfo=UTC)
IN_3, IN_25 = (InBackoff("cannot start", NOW + timedelta(seconds=seconds)) for seconds in (3, 25))

RETRY_DELAYS = {
    "an error": (TryLater("cannot"), RetryDelay.AFTER_ERROR, 10),
    "an unexpected error": (KeyError("x"), RetryDelay.AFTER_ERROR, 10),
    "no network": (NetworkNotReady("cannot"), RetryDelay.NETWORK_NOT_READY, 1),
    "a backoff": (IN_3, BackoffRemaining(3), 3),
    "of several backoffs the earliest": (ExceptionGroup("", [IN_25, KeyError("x"), IN_3]), BackoffRemaining(3), 3),
    "a missing network takes precedence over a backoff": (
        ExceptionGroup("", [IN_3, NetworkNotReady("cannot")]),
        RetryDelay.NETWORK_NOT_READY,
        1,
    ),
    "an expired backoff": (InBackoff("cannot", NOW - timedelta(seconds=5)), BackoffRemaining(-5), 0),
    "a backoff beyond the resync interval": (InBackoff("cannot", NOW + timedelta(hours=1)), BackoffRemaining(3600), 60),
}


@pytest.mark.parametrize("error, delay, seconds", RETRY_DELAYS.values(), ids=RETRY_DELAYS.keys())
def test_delay_before_a_failed_sync_is_retried(
    error: Exception, delay: RetryDelay | BackoffRemaining, seconds: float
) -> None:
    assert retry_delay_after(error, NOW) == delay
    assert SyncTiming().after(delay) == seconds


def test_a_retry_never_comes_later_than_the_resync() -> None:
    assert SyncTiming(resync_seconds=5).after(RetryDelay.AFTER_ERROR) == 5


def test_a_kill_request_has_an_update_a_time_limit_and_an_event() -> None:
    request = kill_request(WEB, SIGNAL_A, evict=True, grace_override_seconds=40, status_function=to_failed)
    options = KillOptions(evict=True, grace_override_seconds=40, completed=SIGNAL_A, status_function=to_failed)
    assert request.update == Update(type=KILL, pod=WEB, kill=options)
    assert request.timeout_seconds == 60
    assert (request.on_timeout.reason, request.on_timeout.uid) == ("ExceededGracePeriod", "uid")
