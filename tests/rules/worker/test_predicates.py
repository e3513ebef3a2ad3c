"""The complete table of predicates for each state."""

import pytest

from podkeeper.model.history import Cause, SyncKind
from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker import predicates
from podkeeper.rules.worker.states import (
    Finished,
    Idle,
    NeverStarted,
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
from podkeeper.rules.worker.updates import UpdateType

WORK = Work(update_type=UpdateType.SYNC, subject=Pod())
RUNTIME_ONLY = Work(update_type=UpdateType.KILL, subject=PodRecord(uid="uid"))
IDLE = Idle(WORK)

# In this order: known terminated, could have running containers, termination requested, containers should
# be terminating, runtime should be removed, content should be removed, should be finished.
KNOWN: dict[str, tuple[State, str]] = {
    "waiting, it may start at any time": (Waiting(WORK), "0100000"),
    "syncing":                           (Syncing(IDLE), "0100000"),
    "killed, not yet acknowledged":      (TerminationRequested(Termination(Cause.KILLED), IDLE), "0110000"),
    "deleted, not yet acknowledged":     (TerminationRequested(Termination(Cause.DELETED), IDLE), "0110000"),
    "evicted, not yet acknowledged":     (TerminationRequested(Termination(Cause.EVICTED), IDLE), "0110010"),
    "killed, stopping":                  (Terminating(Termination(Cause.KILLED), IDLE), "0111000"),
    "deleted, stopping":                 (Terminating(Termination(Cause.DELETED), IDLE), "0111000"),
    "evicted, stopping":                 (Terminating(Termination(Cause.EVICTED), IDLE), "0111010"),
    "known only to the runtime":
        (Terminating(Termination(Cause.ORPHANED), RunningSync(SyncKind.TERMINATING_RUNTIME, RUNTIME_ONLY)), "0111000"),
    "completed, terminated":  (Terminated(Cause.COMPLETED, IDLE), "1011100"),
    "killed, terminated":     (Terminated(Cause.KILLED, IDLE), "1011100"),
    "deleted, terminated":    (Terminated(Cause.DELETED, IDLE), "1011110"),
    "evicted, terminated":    (Terminated(Cause.EVICTED, IDLE), "1011110"),
    "orphaned, terminated":   (Terminated(Cause.ORPHANED, IDLE), "1011110"),
    "completed, finished":    (Finished(Cause.COMPLETED, Pod()), "1011101"),
    "deleted, finished":      (Finished(Cause.DELETED, Pod()), "1011111"),
    "killed, never started":  (NeverStarted(Cause.KILLED), "1010101"),
    "deleted, never started": (NeverStarted(Cause.DELETED), "1010111"),
}  # fmt: skip


def answers(state: State, *, synced: bool) -> str:
    return "".join(
        str(int(answer))
        for answer in (
            predicates.is_known_terminated(state),
            predicates.could_have_running_containers(state, synced=synced),
            predicates.is_termination_requested(state),
            predicates.should_containers_be_terminating(state, synced=synced),
            predicates.should_runtime_be_removed(state, synced=synced),
            predicates.should_content_be_removed(state, synced=synced),
            predicates.should_be_finished(state, synced=synced),
        )
    )


@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("state, expected", KNOWN.values(), ids=KNOWN.keys())
def test_predicates_of_a_known_pod(state: State, expected: str, synced: bool) -> None:
    assert answers(state, synced=synced) == expected


def test_before_the_first_housekeeping_an_unknown_pod_may_run() -> None:
    assert answers(Unknown(), synced=False) == "0100000"


def test_after_the_first_housekeeping_an_unknown_pod_counts_as_removed() -> None:
    assert answers(Unknown(), synced=True) == "0001111"


def test_only_terminating_pods_that_may_still_run_are_stopping() -> None:
    stopping = {type(state) for state, _ in KNOWN.values() if predicates.is_stopping(state)}
    assert stopping == {TerminationRequested, Terminating}
