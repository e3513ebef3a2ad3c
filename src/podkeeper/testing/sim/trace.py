"""The trace: all that happened, as lines; its hash, which is the same whenever the same seed is played.

Lines are kept for the timeline of a failure, the newest ones only. Looks and probes are hashed and not kept: there are
far too many of them.
"""

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

MOST_KEPT = 200_000


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the trace."""

    at: float
    uid: str  # whom it concerns; empty: the whole node
    text: str

    def __str__(self) -> str:
        return f"{self.at:12.3f}  {self.text}"


class Trace:
    """What happened so far."""

    def __init__(self, most_kept: int = MOST_KEPT) -> None:
        self._lines: deque[Line] = deque(maxlen=most_kept)
        self._hash = hashlib.sha256()
        self.length = 0

    def note(self, at: float, uid: str, text: str) -> None:
        """Note and keep a line."""
        self.digest(at, uid, text)
        self._lines.append(Line(at, uid, text))

    def digest(self, at: float, uid: str, text: str) -> None:
        """Note something without keeping it."""
        self.length += 1
        self._hash.update(f"{at!r} {uid} {text}\n".encode())

    @property
    def hash(self) -> str:
        """The hash of everything noted so far."""
        return self._hash.hexdigest()

    def lines(self) -> Iterable[Line]:
        """What is kept, oldest first."""
        return self._lines

    def timeline(self, uids: Iterable[str], since: float = 0.0) -> list[Line]:
        """What concerned some pods, and the whole node, since a moment."""
        wanted = {"", *uids}
        return [line for line in self._lines if line.uid in wanted and line.at >= since]
