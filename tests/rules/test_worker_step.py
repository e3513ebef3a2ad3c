"""One step of a pod worker: a state, an event, what comes of it."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from podkeeper.model.errors import InBackoff, NetworkNotReady, TryLater
from podkeeper.model.k8s.core import Pod, PodSpec, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import CONFIG_SOURCE_ANNOTATION, EventType, PodEvent
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord, SandboxRecord
from podkeeper.rules.worker.events import (
    AskForTurn,
    Cancel,
    Complete,
    Enqueue,
    Event,
    Failed,
    IllegalStep,
    MayStart,
    MustWait,
    Passed,
    ReadStatus,
    Record,
    RetryDue,
    StatusRead,
    StatusUnreadable,
    Step,
    Swept,
    SyncPod,
    SyncTerminatedPod,
    SyncTerminatingPod,
    SyncTerminatingRuntimePod,
    Told,
)
from podkeeper.rules.worker.pauses import Backoff, Pause, Timing, pause_after
from podkeeper.rules.worker.states import (
    Calling,
    Cause,
    Ending,
    Finished,
    Idle,
    NeverStarted,
    PassKind,
    Reading,
    State,
    Syncing,
    Terminated,
    Terminating,
    TerminationRequested,
    Unknown,
    Waiting,
    Work,
)
from podkeeper.rules.worker.step import step
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType, kill_request

CREATE, UPDATE, SYNC, KILL = UpdateType.CREATE, UpdateType.UPDATE, UpdateType.SYNC, UpdateType.KILL
SYNCS, STOPS, KILLS, CLEANS = PassKind


def pod(
    version: str = "1", *, source: str = "api", spec_grace: int = 30, deletion_grace: int | None = None, phase: str = ""
) -> Pod:
    return Pod(
        metadata=ObjectMeta(
            uid="uid",
            name="web",
            namespace="default",
            labels={"version": version},
            annotations={CONFIG_SOURCE_ANNOTATION: source},
            deletion_timestamp=None if deletion_grace is None else "2000-01-01T00:00:00Z",
            deletion_grace_period_seconds=deletion_grace,
        ),
        spec=PodSpec(termination_grace_period_seconds=spec_grace),
        status=PodStatus(phase=phase),
    )


@dataclass(frozen=True)
class Waiter:
    """Somebody who waits for a kill to complete."""

    name: str

    def set(self) -> None:
        raise AssertionError("rules order signals, they never fire them")


def to_failed(status: PodStatus) -> PodStatus:
    return PodStatus(phase="Failed", message=status.message)


WEB, WEB_2, STATIC = pod(), pod("2"), pod(source="file")
MIRROR = pod("mirror")
DELETING = pod("2", deletion_grace=10)
FAILED = pod("2", phase="Failed")
RECORD = PodRecord(uid="uid", name="web", namespace="default")
STOPPED = replace(RECORD, containers=(ContainerRecord(id="c", name="app", state=ContainerState.EXITED),))
RUNNING = replace(RECORD, containers=(ContainerRecord(id="c", name="app", state=ContainerState.RUNNING),))
SANDBOX_READY = replace(RECORD, sandboxes=(SandboxRecord(id="s", ready=True),))
ALICE, BOB = Waiter("alice"), Waiter("bob")


def told(
    update_type: UpdateType, about: Pod | None = WEB, *, runtime: PodRecord | None = RECORD, **kill: object
) -> Told:
    options = KillOptions(**kill) if kill else None  # type: ignore[arg-type]  # any field
    return Told(Update(type=update_type, pod=about, kill=options), runtime)


def work(update_type: UpdateType = SYNC, subject: Pod | PodRecord = WEB, grace: int | None = None) -> Work:
    return Work(update_type=update_type, subject=subject, grace_seconds=grace)


RUNTIME_KILL = Told(Update(type=KILL, running_pod=RECORD), RECORD)
FAILED_SYNC = Record(PodEvent(EventType.WARNING, "FailedSync", "error determining status: boom", "uid"))
RESYNC, RETRY, AT_ONCE = Enqueue(60), Enqueue(10), Enqueue(0)

RESTING = Syncing(Idle(work(), 5.0))
READING = Syncing(Reading(SYNCS, work(), 5.0))
SYNCING = Syncing(Calling(SYNCS, work(), 5.0))
STOP_30 = work(KILL, grace=30)
KILLED_30 = Ending(Cause.KILLED, 30)
STOPPING = Terminating(KILLED_30, Calling(STOPS, STOP_30, 5.0))
STOP_FAILED = Terminating(KILLED_30, Idle(STOP_30, 5.0))
CLEANING = Terminated(Cause.KILLED, Calling(CLEANS, work(), 5.0))
STRAY = Terminating(Ending(Cause.ORPHANED, 1), Calling(KILLS, work(KILL, RECORD, 1), None))
STRAY_IDLE = replace(STRAY, activity=Idle(work(KILL, RECORD, 1), 5.0))
FINISHED = Finished(Cause.KILLED, WEB)


def requested(cause: Cause, pending: Work, *, on: Syncing = SYNCING, **ending: object) -> TerminationRequested:
    """Asked to end while a sync pass runs."""
    assert isinstance(on.activity, Calling | Reading)
    agreed = Ending(cause, pending.grace_seconds, **ending)  # type: ignore[arg-type]  # any field
    return TerminationRequested(agreed, replace(on.activity, pending=pending))


FIRST_SIGHT: dict[str, tuple[State, Event, Step]] = {
    "a new pod asks for its turn":
        (Unknown(), told(CREATE), Step(Waiting(work(CREATE)), (AskForTurn(),))),
    "a pod first seen deleting is stopped, whoever started it":
        (Unknown(), told(CREATE, DELETING),
         Step(TerminationRequested(Ending(Cause.DELETED, 10), Reading(STOPS, work(CREATE, DELETING, 10))),
              (ReadStatus(None),))),
    "a pod first seen failed, with nothing running, is only cleaned up":
        (Unknown(), told(CREATE, FAILED, runtime=STOPPED),
         Step(Terminated(Cause.COMPLETED, Reading(CLEANS, work(CREATE, FAILED))), (ReadStatus(None),))),
    "a pod first seen failed, with a container running, is stopped":
        (Unknown(), told(CREATE, FAILED, runtime=RUNNING),
         Step(TerminationRequested(Ending(Cause.COMPLETED, 30), Reading(STOPS, work(CREATE, FAILED, 30))),
              (ReadStatus(None),))),
    "a pod first seen failed, with a sandbox ready, is stopped":
        (Unknown(), told(CREATE, FAILED, runtime=SANDBOX_READY),
         Step(TerminationRequested(Ending(Cause.COMPLETED, 30), Reading(STOPS, work(CREATE, FAILED, 30))),
              (ReadStatus(None),))),
    "a pod first seen failed while the runtime is silent is stopped":
        (Unknown(), told(CREATE, FAILED, runtime=None),
         Step(TerminationRequested(Ending(Cause.COMPLETED, 30), Reading(STOPS, work(CREATE, FAILED, 30))),
              (ReadStatus(None),))),
    "a pod only the runtime knows is killed without looking":
        (Unknown(), RUNTIME_KILL, Step(STRAY, (SyncTerminatingRuntimePod(RECORD),))),
    "a pod only the runtime knows cannot be anything but killed":
        (Unknown(), Told(Update(type=SYNC, running_pod=RECORD)), Step(Unknown())),
    "who gives both a pod and a runtime pod means the pod":
        (Unknown(), Told(Update(type=SYNC, pod=WEB, running_pod=RECORD)), Step(Waiting(work()), (AskForTurn(),))),
    "a static pod first seen deleting never starts":
        (Unknown(), told(CREATE, pod(source="file", deletion_grace=10)), Step(NeverStarted(Cause.DELETED))),
    "a static pod first seen failed, with nothing running, is finished":
        (Unknown(), told(CREATE, pod(source="file", phase="Failed"), runtime=STOPPED),
         Step(Finished(Cause.COMPLETED, None))),
}  # fmt: skip

WAITING: dict[str, tuple[State, Event, Step]] = {
    "its turn: the first pass":
        (Waiting(work(CREATE)), MayStart(), Step(Syncing(Reading(SYNCS, work(CREATE))), (ReadStatus(None),))),
    "not its turn: again later":
        (Waiting(work(CREATE)), MustWait(), Step(Waiting(work(CREATE)), (RETRY,))),
    "the latest update waits, and asks again":
        (Waiting(work(CREATE, STATIC)), told(SYNC, STATIC), Step(Waiting(work(SYNC, STATIC)), (AskForTurn(),))),
    "killed before its turn, it never starts, and nobody is told":
        (Waiting(work(CREATE, STATIC)), told(KILL, STATIC, completed=ALICE), Step(NeverStarted(Cause.KILLED))),
    "killed as a runtime pod before its turn, it counts as gone":
        (Waiting(work(CREATE, STATIC)), RUNTIME_KILL, Step(NeverStarted(Cause.ORPHANED))),
    "an update that only the runtime could have sent changes nothing":
        (Waiting(work(CREATE, STATIC)), Told(Update(type=UPDATE, running_pod=RECORD)),
         Step(Waiting(work(CREATE, STATIC)))),
    "orphaned before its turn, it is forgotten":
        (Waiting(work(CREATE, STATIC)), Swept(desired=False), Step(Unknown())),
}  # fmt: skip

WANTED: dict[str, tuple[State, Event, Step]] = {
    "an idle worker takes an update up at once":
        (RESTING, told(UPDATE, WEB_2),
         Step(Syncing(Reading(SYNCS, work(UPDATE, WEB_2), 5.0)), (ReadStatus(5.0),))),
    "in a busy worker an update waits":
        (SYNCING, told(UPDATE, WEB_2), Step(Syncing(Calling(SYNCS, work(), 5.0, work(UPDATE, WEB_2))))),
    "a later update replaces the one that waits":
        (Syncing(Calling(SYNCS, work(), 5.0, work(UPDATE, WEB_2))), told(SYNC),
         Step(Syncing(Calling(SYNCS, work(), 5.0, work(SYNC))))),
    "kill options without a kill are answered at once and dropped":
        (SYNCING, told(SYNC, completed=ALICE, grace_override_seconds=0),
         Step(Syncing(Calling(SYNCS, work(), 5.0, work(SYNC))), (Complete((ALICE,)),))),
    "with its status read, the pass calls":
        (READING, StatusRead(), Step(SYNCING, (SyncPod(SYNC, WEB, None),))),
    "the mirror pod goes with its own update":
        (RESTING, Told(Update(type=UPDATE, pod=WEB, mirror_pod=MIRROR)),
         Step(Syncing(Reading(SYNCS, replace(work(UPDATE), mirror_pod=MIRROR), 5.0)), (ReadStatus(5.0),))),
    "without a status the pass ends, and the last pass stays the last":
        (READING, StatusUnreadable("boom"),
         Step(RESTING, (FAILED_SYNC, RETRY))),
    "cut short while reading, the last pass stays the last":
        (READING, Failed(9.0), Step(RESTING, (RETRY,))),
    "a sync that went well is repeated in a minute":
        (SYNCING, Passed(9.0), Step(Syncing(Idle(work(), 9.0)), (RESYNC,))),
    "a sync that failed is repeated sooner":
        (SYNCING, Failed(9.0), Step(Syncing(Idle(work(), 9.0)), (RETRY,))),
    "without a network sooner still":
        (SYNCING, Failed(9.0, Pause.UNTIL_NETWORK), Step(Syncing(Idle(work(), 9.0)), (Enqueue(1),))),
    "after a failure the update that waits is taken up at once":
        (Syncing(Calling(SYNCS, work(), 5.0, work(UPDATE, WEB_2))), Failed(9.0),
         Step(Syncing(Reading(SYNCS, work(UPDATE, WEB_2), 9.0)), (RETRY, ReadStatus(9.0)))),
    "a natural end moves on at once, with no grace named":
        (SYNCING, Passed(9.0, ended=True),
         Step(Terminating(Ending(Cause.COMPLETED), Reading(STOPS, work(), 9.0)), (AT_ONCE, ReadStatus(9.0)))),
    "a natural end takes the update that waits along":
        (Syncing(Calling(SYNCS, work(), 5.0, work(UPDATE, WEB_2))), Passed(9.0, ended=True),
         Step(Terminating(Ending(Cause.COMPLETED), Reading(STOPS, work(UPDATE, WEB_2), 9.0)),
              (AT_ONCE, ReadStatus(9.0)))),
    "still desired, it is left alone":
        (RESTING, Swept(desired=True), Step(RESTING)),
    "a retry does not concern a pod that is not terminating":
        (RESTING, RetryDue(), Step(RESTING)),
    "orphaned at rest, it is stopped; the grace is only noted":
        (RESTING, Swept(desired=False),
         Step(TerminationRequested(Ending(Cause.ORPHANED, 30), Reading(STOPS, work(), 5.0)),
              (ReadStatus(5.0),))),
    "orphaned in a pass, the pass goes on in peace":
        (SYNCING, Swept(desired=False),
         Step(TerminationRequested(Ending(Cause.ORPHANED, 30), Calling(SYNCS, work(), 5.0, work())))),
}  # fmt: skip

ENDING: dict[str, tuple[State, Event, Step]] = {
    "a kill cuts the sync short":
        (SYNCING, told(KILL), Step(requested(Cause.KILLED, STOP_30), (Cancel(),))),
    "a kill cuts short even the reading":
        (READING, told(KILL), Step(requested(Cause.KILLED, STOP_30, on=READING), (Cancel(),))),
    "an eviction names its own grace, status and waiter":
        (SYNCING, told(KILL, evict=True, grace_override_seconds=2, status_function=to_failed, completed=ALICE),
         Step(requested(Cause.EVICTED, work(KILL, grace=2), status_function=to_failed, signals=(ALICE,)), (Cancel(),))),
    "a deletion outranks an eviction":
        (SYNCING, told(KILL, DELETING, evict=True),
         Step(requested(Cause.DELETED, work(KILL, DELETING, 10)), (Cancel(),))),
    "a final phase is an end":
        (SYNCING, told(SYNC, FAILED), Step(requested(Cause.COMPLETED, work(SYNC, FAILED, 30)), (Cancel(),))),
    "a runtime kill of a configured pod goes by the configuration":
        (SYNCING, RUNTIME_KILL, Step(requested(Cause.ORPHANED, STOP_30), (Cancel(),))),
    "a runtime kill goes by the newest configuration, even one that waits":
        (Syncing(Calling(SYNCS, work(), 5.0, work(UPDATE, WEB_2))), RUNTIME_KILL,
         Step(requested(Cause.ORPHANED, work(KILL, WEB_2, 30)), (Cancel(),))),
    "an idle pod is stopped at once":
        (RESTING, told(KILL),
         Step(TerminationRequested(KILLED_30, Reading(STOPS, STOP_30, 5.0)), (ReadStatus(5.0),))),
    "once the pass has its status, nothing starts any more":
        (TerminationRequested(KILLED_30, Reading(STOPS, STOP_30, 5.0)), StatusRead(),
         Step(STOPPING, (SyncTerminatingPod(WEB, 30, None),))),
    "a sync that was reading when the kill came is still a sync":
        (requested(Cause.KILLED, STOP_30, on=READING), StatusRead(),
         Step(requested(Cause.KILLED, STOP_30), (SyncPod(SYNC, WEB, None),))),
    "a cancelled sync makes way":
        (requested(Cause.KILLED, STOP_30), Failed(9.0),
         Step(TerminationRequested(KILLED_30, Reading(STOPS, STOP_30, 9.0)), (RETRY, ReadStatus(9.0)))),
    "a sync that ended in spite of the cancel counts":
        (requested(Cause.KILLED, STOP_30), Passed(9.0),
         Step(TerminationRequested(KILLED_30, Reading(STOPS, STOP_30, 9.0)), (RESYNC, ReadStatus(9.0)))),
    "a natural end after the kill keeps the kill's cause":
        (requested(Cause.KILLED, STOP_30), Passed(9.0, ended=True),
         Step(Terminating(KILLED_30, Reading(STOPS, STOP_30, 9.0)), (AT_ONCE, ReadStatus(9.0)))),
    "a shorter grace cuts the stopping short":
        (STOPPING, told(KILL, grace_override_seconds=2),
         Step(Terminating(Ending(Cause.KILLED, 2), Calling(STOPS, STOP_30, 5.0, work(KILL, grace=2))),
              (Cancel(),))),
    "a longer grace is ignored":
        (STOPPING, told(KILL, grace_override_seconds=60),
         Step(Terminating(KILLED_30, Calling(STOPS, STOP_30, 5.0, STOP_30)))),
    "a later eviction does not make it evicted, but has its say":
        (STOPPING, told(KILL, evict=True, status_function=to_failed, completed=BOB),
         Step(Terminating(replace(KILLED_30, status_function=to_failed, signals=(BOB,)),
                          Calling(STOPS, STOP_30, 5.0, STOP_30)))),
    "any update of an ending pod is a kill":
        (STOP_FAILED, told(SYNC, WEB_2),
         Step(Terminating(KILLED_30, Reading(STOPS, work(SYNC, WEB_2, 30), 5.0)), (ReadStatus(5.0),))),
    "after a natural end the first to name a grace does not preempt":
        (Terminating(Ending(Cause.COMPLETED), Calling(STOPS, work(), 5.0)), told(SYNC),
         Step(Terminating(Ending(Cause.COMPLETED, 30), Calling(STOPS, work(), 5.0, work(grace=30))))),
    "a create only asks for a restart":
        (STOPPING, told(CREATE), Step(replace(STOPPING, ending=replace(KILLED_30, restart_requested=True)))),
    "a failed stop is tried again":
        (STOPPING, Failed(9.0), Step(Terminating(KILLED_30, Idle(STOP_30, 9.0)), (RETRY,))),
    "stopped: who waited is told, and the cleaning begins":
        (replace(STOPPING, ending=replace(KILLED_30, signals=(ALICE, BOB))), Passed(9.0),
         Step(Terminated(Cause.KILLED, Reading(CLEANS, STOP_30.again(), 9.0)),
              (Complete((ALICE, BOB)), AT_ONCE, ReadStatus(9.0)))),
    "stopped and wanted again, the cleaning begins and the wish is kept":
        (replace(STOPPING, ending=replace(KILLED_30, restart_requested=True)), Passed(9.0),
         Step(Terminated(Cause.KILLED, Reading(CLEANS, STOP_30.again(), 9.0), restart_requested=True),
              (AT_ONCE, ReadStatus(9.0)))),
    "orphaned meanwhile, it counts as gone and the stopping goes on":
        (STOPPING, Swept(desired=False),
         Step(Terminating(replace(KILLED_30, cause=Cause.ORPHANED),
                          Calling(STOPS, STOP_30, 5.0, STOP_30.again())))),
    "orphaned after a failed stop, it is tried again":
        (STOP_FAILED, Swept(desired=False),
         Step(Terminating(replace(KILLED_30, cause=Cause.ORPHANED), Reading(STOPS, STOP_30.again(), 5.0)),
              (ReadStatus(5.0),))),
    "a failed stop is repeated when its retry is due, although no source names the pod":
        (STOP_FAILED, RetryDue(),
         Step(Terminating(KILLED_30, Reading(STOPS, STOP_30.again(), 5.0)), (ReadStatus(5.0),))),
    "an evicted pod stays evicted when it is orphaned":
        (replace(STOP_FAILED, ending=Ending(Cause.EVICTED, 30)), Swept(desired=False),
         Step(Terminating(Ending(Cause.EVICTED, 30), Reading(STOPS, STOP_30.again(), 5.0)),
              (ReadStatus(5.0),))),
}  # fmt: skip

RUNTIME_ONLY: dict[str, tuple[State, Event, Step]] = {
    "killed, it is forgotten":
        (STRAY, Passed(9.0), Step(Unknown())),
    "killed in vain, it is tried again":
        (STRAY, Failed(9.0), Step(replace(STRAY, activity=Idle(work(KILL, RECORD, 1), 9.0)), (RETRY,))),
    "housekeeping repeats the kill":
        (STRAY_IDLE, Swept(desired=False),
         Step(replace(STRAY, activity=Calling(KILLS, work(SYNC, RECORD, 1), 5.0)),
              (SyncTerminatingRuntimePod(RECORD),))),
    "a configuration that turns up takes over":
        (STRAY_IDLE, told(UPDATE),
         Step(Terminating(Ending(Cause.ORPHANED, 1), Reading(STOPS, work(UPDATE, grace=1), 5.0)),
              (ReadStatus(5.0),))),
    "a static configuration that turns up never starts":
        (STRAY_IDLE, told(UPDATE, STATIC), Step(Finished(Cause.ORPHANED, None))),
}  # fmt: skip

OVER: dict[str, tuple[State, Event, Step]] = {
    "who kills what is stopped is told at once":
        (CLEANING, told(KILL, completed=ALICE),
         Step(replace(CLEANING, activity=Calling(CLEANS, work(), 5.0, work(KILL))), (Complete((ALICE,)),))),
    "a late look at the runtime kills nothing":
        (CLEANING, RUNTIME_KILL, Step(CLEANING)),
    "a create while cleaning asks for a restart":
        (CLEANING, told(CREATE), Step(replace(CLEANING, restart_requested=True))),
    "a failed cleaning is tried again":
        (CLEANING, Failed(9.0), Step(Terminated(Cause.KILLED, Idle(work(), 9.0)), (RETRY,))),
    "orphaned while cleaning, it counts as gone":
        (Terminated(Cause.COMPLETED, Idle(work(), 5.0)), Swept(desired=False),
         Step(Terminated(Cause.ORPHANED, Reading(CLEANS, work(), 5.0)), (ReadStatus(5.0),))),
    "a failed cleaning is repeated when its retry is due, and the wish for a restart is kept":
        (Terminated(Cause.KILLED, Idle(work(), 5.0), restart_requested=True), RetryDue(),
         Step(Terminated(Cause.KILLED, Reading(CLEANS, work(), 5.0), restart_requested=True), (ReadStatus(5.0),))),
    "cleaned, it is finished":
        (CLEANING, Passed(9.0), Step(FINISHED)),
    "cleaned and wanted again, it is finished and wanted again":
        (replace(CLEANING, restart_requested=True), Passed(9.0), Step(replace(FINISHED, restart_requested=True))),
    "a failed cleaning keeps the wish for a restart":
        (replace(CLEANING, restart_requested=True), Failed(9.0),
         Step(Terminated(Cause.KILLED, Idle(work(), 9.0), restart_requested=True), (RETRY,))),
    "finished, it has nothing to repeat":
        (FINISHED, RetryDue(), Step(FINISHED)),
    "finished is finished":
        (FINISHED, told(UPDATE, DELETING, completed=ALICE), Step(FINISHED)),
    "a create of a finished pod asks for a restart":
        (FINISHED, told(CREATE), Step(Finished(Cause.KILLED, WEB, restart_requested=True))),
    "finished and still desired, it is remembered":
        (FINISHED, Swept(desired=True), Step(FINISHED)),
    "finished and orphaned, it is forgotten":
        (FINISHED, Swept(desired=False), Step(Unknown())),
    "finished and wanted again, it is forgotten":
        (replace(FINISHED, restart_requested=True), Swept(desired=True), Step(Unknown())),
    "never started and wanted again, it is forgotten":
        (NeverStarted(Cause.KILLED, restart_requested=True), Swept(desired=True), Step(Unknown())),
}  # fmt: skip

CASES = {
    **FIRST_SIGHT,
    **WAITING,
    **WANTED,
    **ENDING,
    **{f"a runtime pod: {k}": v for k, v in RUNTIME_ONLY.items()},
    **OVER,
}


@pytest.mark.parametrize("state, event, expected", CASES.values(), ids=CASES.keys())
def test_step(state: State, event: Event, expected: Step) -> None:
    assert step(state, event) == expected


ILLEGAL: dict[str, tuple[State, Event]] = {
    "a pass of a pod that nobody knows": (Unknown(), Passed(1.0)),
    "a pass of a pod that waits": (Waiting(work()), StatusRead()),
    "the end of a pass that has not called": (READING, Passed(1.0)),
    "the end of a pass that nobody makes": (RESTING, Failed(1.0)),
    "a status nobody waits for": (SYNCING, StatusRead()),
    "a natural end of a pod that is being stopped": (STOPPING, Passed(1.0, ended=True)),
    "a pass of a finished pod": (FINISHED, Passed(1.0)),
    "a turn for a pod that has started": (SYNCING, MayStart()),
}


@pytest.mark.parametrize("state, event", ILLEGAL.values(), ids=ILLEGAL.keys())
def test_what_cannot_have_happened_raises(state: State, event: Event) -> None:
    with pytest.raises(IllegalStep):
        step(state, event)


def test_an_update_about_nobody_raises() -> None:
    with pytest.raises(ValueError, match="neither pod nor running_pod"):
        step(Unknown(), Told(Update(type=SYNC)))


def test_the_last_status_function_is_used_on_every_try() -> None:
    state: State = replace(STOP_FAILED, ending=replace(KILLED_30, status_function=to_failed))
    for _ in range(2):
        reading = step(state, told(SYNC)).state
        called = step(reading, StatusRead())
        assert called.orders == (SyncTerminatingPod(WEB, 30, to_failed),)
        state = step(called.state, Failed(9.0)).state


def test_cleaning_uses_the_update_that_waited() -> None:
    waiting = replace(STOPPING, activity=Calling(STOPS, STOP_30, 5.0, work(SYNC, DELETING, 10)))
    cleaning = step(step(waiting, Passed(9.0)).state, StatusRead())
    assert cleaning.orders == (SyncTerminatedPod(DELETING),)


START_TIMES = {
    "the older one is kept": (3.0, 7.0, 3.0),
    "whichever came first": (7.0, 3.0, 3.0),
    "a nameless update does not hide it": (3.0, None, 3.0),
    "a nameless one has none to give": (None, 7.0, 7.0),
    "nobody knows": (None, None, None),
}


@pytest.mark.parametrize("waits, comes, expected", START_TIMES.values(), ids=START_TIMES.keys())
def test_the_oldest_start_time_is_kept(waits: float | None, comes: float | None, expected: float | None) -> None:
    busy = Syncing(Calling(SYNCS, work(), pending=replace(work(UPDATE), start_time=waits)))
    state = step(busy, Told(Update(type=SYNC, pod=WEB_2, start_time=comes))).state
    assert isinstance(state, Syncing)
    assert isinstance(state.activity, Calling)
    assert state.activity.pending == replace(work(SYNC, WEB_2), start_time=expected)


def test_a_pass_the_worker_makes_of_its_own_accord_is_nobodys_news() -> None:
    news = replace(work(CREATE), start_time=3.0, mirror_pod=MIRROR)
    state = step(Syncing(Calling(SYNCS, news)), Passed(9.0, ended=True)).state
    assert state == Terminating(Ending(Cause.COMPLETED), Reading(STOPS, work(SYNC), 9.0))


NOW = datetime(2026, 1, 1, tzinfo=UTC)
IN_3, IN_25 = (InBackoff("cannot start", NOW + timedelta(seconds=seconds)) for seconds in (3, 25))

PAUSES = {
    "an error": (TryLater("cannot"), Pause.AFTER_ERROR, 10),
    "an error nobody foresaw": (KeyError("x"), Pause.AFTER_ERROR, 10),
    "no network": (NetworkNotReady("cannot"), Pause.UNTIL_NETWORK, 1),
    "a backoff": (IN_3, Backoff(3), 3),
    "of several backoffs the earliest": (ExceptionGroup("", [IN_25, KeyError("x"), IN_3]), Backoff(3), 3),
    "no network outranks a backoff": (ExceptionGroup("", [IN_3, NetworkNotReady("cannot")]), Pause.UNTIL_NETWORK, 1),
    "a backoff that is over": (InBackoff("cannot", NOW - timedelta(seconds=5)), Backoff(-5), 0),
    "a backoff beyond the next look": (InBackoff("cannot", NOW + timedelta(hours=1)), Backoff(3600), 60),
}


@pytest.mark.parametrize("error, pause, seconds", PAUSES.values(), ids=PAUSES.keys())
def test_how_long_a_failed_pod_is_left_alone(error: Exception, pause: Pause | Backoff, seconds: float) -> None:
    assert pause_after(error, NOW) == pause
    assert Timing().after(pause) == seconds


def test_a_retry_never_comes_later_than_the_next_look() -> None:
    assert Timing(resync_seconds=5).after(Pause.AFTER_ERROR) == 5


def test_a_kill_request_tells_waits_and_records() -> None:
    request = kill_request(WEB, ALICE, evict=True, grace_override_seconds=40, status_function=to_failed)
    options = KillOptions(evict=True, grace_override_seconds=40, completed=ALICE, status_function=to_failed)
    assert request.update == Update(type=KILL, pod=WEB, kill=options)
    assert request.timeout_seconds == 60
    assert (request.on_timeout.reason, request.on_timeout.uid) == ("ExceededGracePeriod", "uid")
