"""History events in words."""

from datetime import timedelta

import pytest

from podkeeper.app.history_words import PrintedEntry, PrintedExplanation, in_words, printed
from podkeeper.engine.history import Explanation, TimelineEntry
from podkeeper.model.history import (
    EventRecorded,
    HistoryEvent,
    Moved,
    PodHeld,
    PodRejected,
    PodState,
    RetryScheduled,
    StatusChanged,
    SyncEnded,
    SyncError,
    SyncKind,
    SyncResult,
    SyncStarted,
    WorkerState,
)
from podkeeper.model.messages import PodUID
from podkeeper.rules.worker.updates import UpdateType
from podkeeper.testing.virtual_time import BEGINNING

WORDS: list[tuple[HistoryEvent, tuple[str, str]]] = [
    (Moved(PodState(WorkerState.UNKNOWN), PodState(WorkerState.SYNCING)), ("moved", "unknown -> syncing")),
    (SyncStarted(SyncKind.SYNC, UpdateType.CREATE), ("sync started", "sync (create)")),
    (SyncEnded(SyncResult.DONE), ("sync ended", "done")),
    (SyncEnded(SyncResult.POD_ENDED), ("sync ended", "the pod has ended")),
    (SyncEnded(SyncResult.CANCELLED), ("sync ended", "cancelled")),
    (SyncError("no image"), ("sync ended", "failed: no image")),
    (RetryScheduled(71.44), ("next sync", "in 71.4 s")),
    (EventRecorded("Pulled", "image web:1"), ("Pulled", "image web:1")),
    (StatusChanged("Running", True), ("phase Running", "ready")),
    (StatusChanged("Pending", False), ("phase Pending", "not ready")),
    (PodRejected("OutOfcpu", "no CPU"), ("rejected", "OutOfcpu: no CPU")),
    (PodHeld(2), ("held", "until 2 pods have been killed for it")),
]


@pytest.mark.parametrize("event, words", WORDS, ids=[words[0] for _, words in WORDS])
def test_the_words_of_each_event(event: HistoryEvent, words: tuple[str, str]) -> None:
    assert in_words(event) == words


def test_a_printed_explanation_keeps_everything_but_the_events() -> None:
    later = BEGINNING + timedelta(seconds=5)
    facts = {
        "uid": PodUID("web"),
        "asked_at": later,
        "state": "syncing",
        "since": BEGINNING,
        "waiting_for": "an image",
        "next_retry": later,
    }
    explanation = Explanation(**facts, timeline=(TimelineEntry(BEGINNING, PodHeld(1), 3, later),))  # type: ignore[arg-type]  # mypy gives all facts one type
    words = PrintedEntry(BEGINNING, "held", "until 1 pods have been killed for it", 3, later)
    assert printed(explanation) == PrintedExplanation(**facts, timeline=(words,))  # type: ignore[arg-type]  # as above
