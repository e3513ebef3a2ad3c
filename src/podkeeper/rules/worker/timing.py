"""Delays between the syncs of a pod worker.

In: the error of a failed sync. Out: delays for the work queue, to which the shell adds jitter. Kubelet counterpart:
`completeWork` in pkg/kubelet/pod_workers.go and `MinBackoffExpiration`.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from podkeeper.model.errors import InBackoff, NetworkNotReady


class RetryDelay(Enum):
    """The delay before a retry, if the error does not determine it."""

    AFTER_ERROR = auto()
    NETWORK_NOT_READY = auto()  # shorter, because the network may be ready soon


@dataclass(frozen=True, slots=True)
class BackoffRemaining:
    """The error has its own backoff. Negative if the backoff has expired."""

    remaining_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTiming:
    """Delays before the next sync, without jitter."""

    # The default of the kubelet's syncFrequency.
    resync_seconds: float = 60
    # The kubelet's backOffPeriod.
    error_seconds: float = 10
    # The kubelet's backOffOnTransientErrorPeriod.
    network_seconds: float = 1

    def after(self, retry_delay: RetryDelay | BackoffRemaining) -> float:
        """Return the delay after a failure. It is never longer than the resync interval."""
        match retry_delay:
            case RetryDelay.NETWORK_NOT_READY:
                return self.network_seconds
            case RetryDelay.AFTER_ERROR:
                return min(self.error_seconds, self.resync_seconds)
            case BackoffRemaining(remaining_seconds=seconds):
                return min(max(seconds, 0), self.resync_seconds)


DEFAULT_TIMING = SyncTiming()


def retry_delay_after(error: Exception, now: datetime) -> RetryDelay | BackoffRemaining:
    """Return the delay before a retry. The earliest of several backoffs counts."""
    errors = _leaves(error)
    # Transient errors come first, as in the kubelet.
    if any(isinstance(each, NetworkNotReady) for each in errors):
        return RetryDelay.NETWORK_NOT_READY
    if ends := [each.until for each in errors if isinstance(each, InBackoff)]:
        return BackoffRemaining((min(ends) - now).total_seconds())
    return RetryDelay.AFTER_ERROR


def _leaves(error: Exception) -> list[Exception]:
    """Return the errors of a group, or the single error."""
    if isinstance(error, ExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]
