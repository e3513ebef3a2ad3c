"""Trace of a run: everything that happened, as lines, and a hash.

The hash is the same in each run of a seed.

The newest lines are kept for the timeline of a failure. Inspections and probes are hashed but not kept, because there
are too many of them.
"""

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

MAX_LINES = 200_000


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One line of the trace."""

    at: float
    uid: str  # the pod; empty: the whole node
    text: str

    def __str__(self) -> str:
        return f"{self.at:12.3f}  {self.text}"


class Trace:
    """Everything that happened so far."""

    def __init__(self, max_lines: int = MAX_LINES) -> None:
        self._lines: deque[TraceLine] = deque(maxlen=max_lines)
        self._hash = hashlib.sha256()
        self.length = 0

    def add(self, at: float, uid: str, text: str) -> None:
        """Hash and keep a line."""
        self.hash_only(at, uid, text)
        self._lines.append(TraceLine(at, uid, text))

    def hash_only(self, at: float, uid: str, text: str) -> None:
        """Hash a line without keeping it."""
        self.length += 1
        # `repr` of the time, because a rounded one would hide differences between two runs.
        self._hash.update(f"{at!r} {uid} {text}\n".encode())

    @property
    def hash(self) -> str:
        """The hash of all lines so far."""
        return self._hash.hexdigest()

    def lines(self) -> Iterable[TraceLine]:
        """Return the kept lines, oldest first."""
        return self._lines

    def timeline(self, uids: Iterable[str], since: float = 0.0) -> list[TraceLine]:
        """Return the lines of some pods and of the node, since a time."""
        wanted = {"", *uids}
        return [line for line in self._lines if line.uid in wanted and line.at >= since]
