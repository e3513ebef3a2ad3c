"""What others may conclude from where a pod stands: the whole table."""

import pytest

from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker import questions
from podkeeper.rules.worker.states import (
    Calling,
    Cause,
    Ending,
    Finished,
    Idle,
    NeverStarted,
    PassKind,
    State,
    Syncing,
    Terminated,
    Terminating,
    TerminationRequested,
    Unknown,
    Waiting,
    Work,
)
from podkeeper.rules.worker.updates import UpdateType

WORK = Work(update_type=UpdateType.SYNC, subject=Pod())
STRAY = Work(update_type=UpdateType.KILL, subject=PodRecord(uid="uid"))
IDLE = Idle(WORK)

# In this order: known terminated, could have running containers, termination requested, containers should
# be terminating, runtime should be removed, content should be removed, should be finished.
KNOWN: dict[str, tuple[State, str]] = {
    "waiting for its turn, it could run at any moment": (Waiting(WORK), "0100000"),
    "it runs":                                          (Syncing(IDLE), "0100000"),
    "killed, but the worker is not there yet":          (TerminationRequested(Ending(Cause.KILLED), IDLE), "0110000"),
    "deleted, but the worker is not there yet":         (TerminationRequested(Ending(Cause.DELETED), IDLE), "0110000"),
    "evicted, but the worker is not there yet":         (TerminationRequested(Ending(Cause.EVICTED), IDLE), "0110010"),
    "killed, it stops":                                 (Terminating(Ending(Cause.KILLED), IDLE), "0111000"),
    "deleted, it stops":                                (Terminating(Ending(Cause.DELETED), IDLE), "0111000"),
    "evicted, it stops":                                (Terminating(Ending(Cause.EVICTED), IDLE), "0111010"),
    "only the runtime knows it":
        (Terminating(Ending(Cause.ORPHANED), Calling(PassKind.TERMINATING_RUNTIME, STRAY)), "0111000"),
    "completed, it has stopped":                        (Terminated(Cause.COMPLETED, IDLE), "1011100"),
    "killed, it has stopped":                           (Terminated(Cause.KILLED, IDLE), "1011100"),
    "deleted, it has stopped":                          (Terminated(Cause.DELETED, IDLE), "1011110"),
    "evicted, it has stopped":                          (Terminated(Cause.EVICTED, IDLE), "1011110"),
    "orphaned, it has stopped":                         (Terminated(Cause.ORPHANED, IDLE), "1011110"),
    "completed, it is finished":                        (Finished(Cause.COMPLETED, Pod()), "1011101"),
    "deleted, it is finished":                          (Finished(Cause.DELETED, Pod()), "1011111"),
    "killed, it has never started":                     (NeverStarted(Cause.KILLED), "1010101"),
    "deleted, it has never started":                    (NeverStarted(Cause.DELETED), "1010111"),
}  # fmt: skip


def answers(state: State, *, synced: bool) -> str:
    return "".join(
        str(int(answer))
        for answer in (
            questions.is_known_terminated(state),
            questions.could_have_running_containers(state, synced=synced),
            questions.is_termination_requested(state),
            questions.should_containers_be_terminating(state, synced=synced),
            questions.should_runtime_be_removed(state, synced=synced),
            questions.should_content_be_removed(state, synced=synced),
            questions.should_be_finished(state, synced=synced),
        )
    )


@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("state, expected", KNOWN.values(), ids=KNOWN.keys())
def test_of_a_known_pod(state: State, expected: str, synced: bool) -> None:
    assert answers(state, synced=synced) == expected


def test_of_an_unknown_pod_before_the_first_sweep_anything_could_be_true() -> None:
    assert answers(Unknown(), synced=False) == "0100000"


def test_an_unknown_pod_after_the_first_sweep_is_gone() -> None:
    assert answers(Unknown(), synced=True) == "0001111"


def test_only_what_ends_and_may_still_run_is_stopping() -> None:
    stopping = {type(state) for state, _ in KNOWN.values() if questions.is_stopping(state)}
    assert stopping == {TerminationRequested, Terminating}
