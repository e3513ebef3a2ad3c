"""The report of one probe execution, and the conclusion from it.

In: a `Report` of an HTTP, TCP, gRPC or exec probe. Out: `Retry` if the probe could not be executed and may be
repeated at once, otherwise a `ProbeConclusion` with the result to count and the event to record. A warning counts as
a success. Any other outcome is a failure. After three attempts that could not be executed, there is no result.

Kubelet counterpart: pkg/kubelet/prober/prober.go.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum

from podkeeper.model.messages import EventType, PodEvent, ProbeKind, ProbeResult

# The kubelet's maxProbeRetries.
MAX_EXECUTIONS = 3
# The kubelet's limit for HTTP bodies and command output.
MAX_OUTPUT_BYTES = 10 * 1024

UNHEALTHY = "Unhealthy"
PROBE_WARNING = "ProbeWarning"


class ProbeOutcome(StrEnum):
    """The outcome of an execution. Unknown values are read as UNKNOWN."""

    SUCCESS = "success"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> "ProbeOutcome":
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one execution. With an `error`, the probe could not be executed."""

    outcome: ProbeOutcome
    output: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ProbeConclusion:
    """The result to count, and an event. Without a result, nothing is counted."""

    result: ProbeResult | None
    event: PodEvent | None = None


class Retry(Enum):
    """Execute the probe again at once."""

    NOW = "retry"


def conclude(kind: ProbeKind, report: Report, executions: int) -> ProbeConclusion | Retry:
    """Return the conclusion from a report. `executions` is the number of executions in this tick."""
    title = kind.capitalize()
    if report.error is not None:
        if executions < MAX_EXECUTIONS:
            return Retry.NOW
        return ProbeConclusion(
            None, _warning(UNHEALTHY, f"{title} probe errored and resulted in {report.outcome} state: {report.error}")
        )
    match report.outcome:
        case ProbeOutcome.SUCCESS:
            return ProbeConclusion(ProbeResult.SUCCESS)
        case ProbeOutcome.WARNING:
            return ProbeConclusion(
                ProbeResult.SUCCESS, _warning(PROBE_WARNING, f"{title} probe warning: {report.output}")
            )
        case ProbeOutcome.FAILURE:
            return ProbeConclusion(ProbeResult.FAILURE, _warning(UNHEALTHY, f"{title} probe failed: {report.output}"))
        case ProbeOutcome.UNKNOWN:
            return ProbeConclusion(ProbeResult.FAILURE)


def output_text(output: bytes) -> str:
    """Return output as text, truncated to the maximum of a report."""
    return output[:MAX_OUTPUT_BYTES].decode(errors="replace")


def _warning(reason: str, message: str) -> PodEvent:
    return PodEvent(EventType.WARNING, reason, message)
