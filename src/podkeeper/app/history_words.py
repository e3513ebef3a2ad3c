"""Format history events as text.

Input: an `Explanation` of the engine. Output: the same with a formatted timeline, which the agent sends to `podkeeper
explain`. This module must not import rich, because the agent imports it.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from podkeeper.engine.history import Explanation, TimelineEntry
from podkeeper.model.history import (
    EventRecorded,
    HistoryEvent,
    Moved,
    PodHeld,
    PodRejected,
    RetryScheduled,
    StatusChanged,
    SyncEnded,
    SyncError,
    SyncKind,
    SyncResult,
    SyncStarted,
)
from podkeeper.model.messages import PodUID

ARROW: Final = " -> "
MOVED: Final = "moved"
SYNC_STARTED: Final = "sync started"
SYNC_ENDED: Final = "sync ended"
NEXT_SYNC: Final = "next sync"
_KINDS: Final = {
    SyncKind.SYNC: "sync",
    SyncKind.TERMINATING: "terminating",
    SyncKind.TERMINATING_RUNTIME: "terminating runtime",
    SyncKind.TERMINATED: "terminated",
}
_RESULTS: Final = {
    SyncResult.DONE: "done",
    SyncResult.POD_ENDED: "the pod has ended",
    SyncResult.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class PrintedEntry:
    """An entry in words, as `podkeeper explain --json` prints it."""

    at: datetime
    what: str
    detail: str = ""
    times: int = 1
    last_at: datetime | None = None  # None: it occurred once


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedExplanation:
    """An explanation whose timeline is in words, as the agent sends it to the CLI."""

    uid: PodUID
    asked_at: datetime
    state: str
    since: datetime | None = None
    waiting_for: str = ""
    next_retry: datetime | None = None
    timeline: tuple[PrintedEntry, ...] = ()


def printed(explanation: Explanation) -> PrintedExplanation:
    return PrintedExplanation(
        uid=explanation.uid,
        asked_at=explanation.asked_at,
        state=str(explanation.state),
        since=explanation.since,
        waiting_for=explanation.waiting_for,
        next_retry=explanation.next_retry,
        timeline=tuple(map(printed_entry, explanation.timeline)),
    )


def printed_entry(entry: TimelineEntry) -> PrintedEntry:
    what, detail = in_words(entry.event)
    return PrintedEntry(entry.at, what, detail, entry.times, entry.last_at)


def in_words(event: HistoryEvent) -> tuple[str, str]:
    """Return what happened, and the detail."""
    match event:
        case Moved(before=before, after=after):
            return MOVED, f"{before}{ARROW}{after}"
        case SyncStarted(kind=kind, update_type=update_type):
            return SYNC_STARTED, f"{_KINDS[kind]} ({update_type})"
        case SyncEnded(result=result):
            return SYNC_ENDED, _RESULTS[result]
        case SyncError(message=message):
            return SYNC_ENDED, f"failed: {message}"
        case RetryScheduled(delay_seconds=seconds):
            return NEXT_SYNC, f"in {seconds:.1f} s"
        case EventRecorded(reason=reason, message=message):
            return reason, message
        case StatusChanged(phase=phase, ready=ready):
            return f"phase {phase}", "ready" if ready else "not ready"
        case PodRejected(reason=reason, message=message):
            return "rejected", f"{reason}: {message}"
        case PodHeld(victims=victims):
            return "held", f"until {victims} pods have been killed for it"
