"""Errors, sorted by what the one who catches them does.

`TryLater`: the same pass may succeed later. `GiveUp`: the pod can never run here. `BadInput`:
somebody handed us something wrong; it names the object, the field and what would be right.
Everything else is a bug and is not caught by name. Messages start with "cannot".
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

UNDECODABLE: Final = (ValueError, RecursionError)
"""What `msgspec.json.decode` raises for stored bytes that are not what was written.

ValueError stands for malformed JSON, wrong types and text that is not UTF-8. RecursionError stands for deep nesting.
"""


class AgentError(Exception):
    """The root of what podkeeper itself raises."""


class TryLater(AgentError):
    """Nothing is wrong with the pod; the same pass may succeed later."""


class NetworkNotReady(TryLater):
    """The runtime's network does not work yet; the retry comes sooner than after other errors."""


class InBackoff(TryLater):
    """A container (or an image pull) may not start again before `until`."""

    def __init__(self, message: str, until: datetime) -> None:
        super().__init__(message)
        self.until = until


class RuntimeUnavailable(TryLater):
    """The runtime as a whole does not answer."""


class CallTimedOut(TryLater):
    """A call met its own deadline; it may have taken effect."""


class RuntimeRefused(TryLater):
    """The runtime answered that it cannot; the message is its own."""


class ImagePullFailed(TryLater):
    """An image could not be fetched; `reason` is what the container's status shows (`ErrImagePull`)."""

    def __init__(self, message: str, reason: str = "ErrImagePull") -> None:
        super().__init__(message)
        self.reason = reason


class NotConfigurable(TryLater):
    """A container or sandbox cannot be made from its spec as things are now; the message is for its status."""


class ApiError(TryLater):
    """The API said no, or nothing."""


class ApiUnavailable(ApiError):
    """The API cannot be reached, or is not well; later it may be."""


class NotFound(ApiError):
    """There is no such object."""


class AlreadyExists(ApiError):
    """An object of that name is there."""


class Conflict(ApiError):
    """The object is not what the caller took it for: another UID, or a newer version."""


class Gone(ApiError):
    """The version asked for is too old to be watched from: list again."""


class GiveUp(AgentError):
    """The pod can never run here. The syncer publishes `reason` and reports the pod as ended."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input: where it stands and what would be right."""

    message: str
    field: str = ""  # "spec.containers[0].image"; empty when the whole document is meant
    file: str = ""
    line: int = 0  # from 1; 0 when not known

    def __str__(self) -> str:
        place = ":".join(filter(None, [self.file, str(self.line) if self.line else ""]))
        return ": ".join(filter(None, [place, self.field, self.message]))


class BadInput(AgentError):
    """Input that cannot be used; `problems` holds every one that was found."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems
