"""Exception classes, grouped by how the caller handles them.

* `TryLater`: the pod is valid. The same sync may succeed later.
* `GiveUp`: the pod can never run on this node.
* `BadInput`: an input is invalid. It names the object, the field, the value found and the value expected.

Every other exception is a bug. Messages start with "cannot". Errors about a field are
the exception: they use the wording of Kubernetes field errors ("Invalid value: ..."), because users search for it.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Final

UNDECODABLE: Final = (ValueError, RecursionError)
"""The exceptions of `msgspec.json.decode` for damaged stored bytes.

ValueError: malformed JSON, wrong types, or text that is not UTF-8. RecursionError: deep nesting.
"""

_MAX_SHOWN: Final = 80
_MAX_BITS: Final = 1024


class AgentError(Exception):
    """The base class of all exceptions that podkeeper raises itself."""


class TryLater(AgentError):
    """The pod is valid. The same sync may succeed later."""


class NetworkNotReady(TryLater):
    """The runtime's network is not ready. The retry comes sooner than after other errors."""


class InBackoff(TryLater):
    """A container (or an image pull) may not start again before `until`."""

    def __init__(self, message: str, until: datetime) -> None:
        super().__init__(message)
        self.until = until


class RuntimeUnavailable(TryLater):
    """The runtime does not answer any call."""


class CallTimedOut(TryLater):
    """A call reached its own deadline. It may still have taken effect."""


class RuntimeRefused(TryLater):
    """The runtime answered with an error. The message is the runtime's."""


class ImagePullFailed(TryLater):
    """The runtime could not pull an image. The container's status shows `reason`."""

    def __init__(self, message: str, reason: str = "ErrImagePull") -> None:
        super().__init__(message)
        self.reason = reason


class NotConfigurable(TryLater):
    """A container or sandbox cannot be created from its spec at the moment. Its status shows the message."""


class ApiError(TryLater):
    """The API server refused a request or did not answer it."""


class ApiUnavailable(ApiError):
    """The API server cannot be reached or reports an internal error. The same request may succeed later."""


class NotFound(ApiError):
    """The object does not exist."""


class AlreadyExists(ApiError):
    """An object of that name exists already."""


class Conflict(ApiError):
    """The object has another UID or a newer version than the request names."""


class Gone(ApiError):
    """The resource version is too old to start a watch from. The client must list again."""


class GiveUp(AgentError):
    """The pod can never run on this node. The syncer publishes `reason` and reports the pod as terminal."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in an input: the place, the value found and the value expected."""

    message: str
    field: str = ""  # "spec.containers[0].image"; empty: the whole document
    file: str = ""
    line: int = 0  # starts at 1; 0 if unknown

    def __str__(self) -> str:
        place = ":".join(filter(None, [self.file, str(self.line) if self.line else ""]))
        return ": ".join(filter(None, [place, self.field, self.message]))


class BadInput(AgentError):
    """An input that cannot be used. `problems` holds all errors found in it."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


def quoted(value: object) -> str:
    """Return a value as Kubernetes field errors show it: texts in double quotes, long values cut."""
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to print more than 4300 digits
    # Escape everything in texts with control characters or lone surrogates, because a terminal cannot show those.
    shown = json.dumps(value, ensure_ascii=not str(value).isprintable(), default=str)
    if len(shown) > _MAX_SHOWN:
        shown = shown[:_MAX_SHOWN] + ('…"' if isinstance(value, str) else "…")
    return shown
