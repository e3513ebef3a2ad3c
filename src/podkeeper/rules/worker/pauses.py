"""How long a worker leaves its pod alone after a pass.

In: what a failed pass raised. Out: nominal delays for the work queue; the shell adds the jitter. The Go
ancestors are `completeWork` in pkg/kubelet/pod_workers.go and `MinBackoffExpiration`.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from podkeeper.model.errors import InBackoff, NetworkNotReady


class Pause(Enum):
    """How long an ordinary failure is left alone."""

    AFTER_ERROR = auto()
    UNTIL_NETWORK = auto()  # shorter: the network may be ready soon


@dataclass(frozen=True, slots=True)
class Backoff:
    """A failure that says itself when a retry makes sense; negative: since a while."""

    remaining_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long a worker leaves its pod alone, before jitter."""

    resync_seconds: float = 60
    error_seconds: float = 10
    network_seconds: float = 1

    def after(self, pause: Pause | Backoff) -> float:
        """The delay after a failure: never longer than the pod would have been left alone anyway."""
        match pause:
            case Pause.UNTIL_NETWORK:
                return self.network_seconds
            case Pause.AFTER_ERROR:
                return min(self.error_seconds, self.resync_seconds)
            case Backoff(remaining_seconds=seconds):
                return min(max(seconds, 0), self.resync_seconds)


USUAL_TIMING = Timing()


def pause_after(error: Exception, now: datetime) -> Pause | Backoff:
    """How long to leave a pod alone after a pass raised this; of several backoffs the earliest counts."""
    errors = _leaves(error)
    if any(isinstance(each, NetworkNotReady) for each in errors):
        return Pause.UNTIL_NETWORK
    if ends := [each.until for each in errors if isinstance(each, InBackoff)]:
        return Backoff((min(ends) - now).total_seconds())
    return Pause.AFTER_ERROR


def _leaves(error: Exception) -> list[Exception]:
    """The single errors in what may be a group of them."""
    if isinstance(error, ExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]
