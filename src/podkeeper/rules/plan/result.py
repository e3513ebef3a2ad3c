"""Results of a plan: why a container did not start, and a common exception.

The starter returns `NotStarted`. The status shows it, and the worker takes the retry time from its error. Kubelet
counterpart: pkg/kubelet/container/sync_result.go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from podkeeper.model.errors import InBackoff, TryLater
from podkeeper.rules.status.containers import StartFailure


@dataclass(frozen=True, slots=True)
class NotStarted:
    """A container did not start. `until` is the end of its backoff, if any."""

    failure: StartFailure
    until: datetime | None = None

    def error(self, container_name: str) -> TryLater:
        """Return the failure as an exception, with the time of the next attempt if known."""
        text = f"cannot start container {container_name}: {self.failure.reason}: {self.failure.message}"
        return TryLater(text) if self.until is None else InBackoff(text, self.until)


def raise_all(what: str, errors: Sequence[TryLater]) -> None:
    """Raise a group of all errors, if there are any. `what` begins with "cannot" and names the pod."""
    if errors:
        raise ExceptionGroup(what, errors)
