"""What came of a plan: why a container did not start, and everything that failed, as one.

The starter makes `NotStarted`, the status shows it, and the worker learns from its error when to try again. The Go
ancestor is pkg/kubelet/container/sync_result.go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from podkeeper.model.errors import InBackoff, TryLater
from podkeeper.rules.status.containers import StartFailure


@dataclass(frozen=True, slots=True)
class NotStarted:
    """A container did not start; `until` when it may not before that time."""

    failure: StartFailure
    until: datetime | None = None

    def error(self, container_name: str) -> TryLater:
        """The same, for whoever decides when to try again."""
        text = f"cannot start container {container_name}: {self.failure.reason}: {self.failure.message}"
        return TryLater(text) if self.until is None else InBackoff(text, self.until)


def raise_all(what: str, errors: Sequence[TryLater]) -> None:
    """Raise all that failed, as one; nothing when nothing did. `what` begins with "cannot" and names the pod."""
    if errors:
        raise ExceptionGroup(what, errors)
