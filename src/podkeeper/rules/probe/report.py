"""What one execution of a probe reported, and what the worker makes of it.

Comes in: a `Report` from whoever executed the probe (HTTP, TCP, gRPC, a command). Goes out: either
`RETRY` (it could not be executed and may be tried again at once), or a `Verdict`: the result to
count and the event to record. A warning is a success; what is neither success nor warning is a
failure; what could not be executed in three tries is no result at all.

The Go ancestor is pkg/kubelet/prober/prober.go.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum

from podkeeper.model.messages import EventType, PodEvent, ProbeKind, ProbeResult

MAX_EXECUTIONS = 3
MAX_OUTPUT_BYTES = 10 * 1024

UNHEALTHY = "Unhealthy"
PROBE_WARNING = "ProbeWarning"


class Outcome(StrEnum):
    """How an execution ended; a word that nobody knows reads as UNKNOWN."""

    SUCCESS = "success"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> "Outcome":
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class Report:
    """What one execution gave; an `error` says that it could not be executed."""

    outcome: Outcome
    output: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What counts in the end; no result: nothing is concluded."""

    result: ProbeResult | None
    event: PodEvent | None = None


class Again(Enum):
    """The probe is to be executed once more, at once."""

    RETRY = "retry"


def judge(kind: ProbeKind, report: Report, executions: int) -> Verdict | Again:
    """What to make of the latest report when the probe was executed so many times in this tick."""
    title = kind.capitalize()
    if report.error is not None:
        if executions < MAX_EXECUTIONS:
            return Again.RETRY
        return Verdict(
            None, _warning(UNHEALTHY, f"{title} probe errored and resulted in {report.outcome} state: {report.error}")
        )
    match report.outcome:
        case Outcome.SUCCESS:
            return Verdict(ProbeResult.SUCCESS)
        case Outcome.WARNING:
            return Verdict(ProbeResult.SUCCESS, _warning(PROBE_WARNING, f"{title} probe warning: {report.output}"))
        case Outcome.FAILURE:
            return Verdict(ProbeResult.FAILURE, _warning(UNHEALTHY, f"{title} probe failed: {report.output}"))
        case Outcome.UNKNOWN:
            return Verdict(ProbeResult.FAILURE)


def shown(output: bytes) -> str:
    """Output as text, cut to what a report may carry."""
    return output[:MAX_OUTPUT_BYTES].decode(errors="replace")


def _warning(reason: str, message: str) -> PodEvent:
    return PodEvent(EventType.WARNING, reason, message)
