"""Whose turn it is: static pods of one full name run one after the other, in the order they came.

A static pod whose file changes comes back under the same full name with another UID. The new one starts
only when the old one has left. Who is to end before its turn is passed over.

The Go ancestor is `allowStaticPodStart` in pkg/kubelet/pod_workers.go.
"""

from collections.abc import Callable
from itertools import dropwhile

from podkeeper.model.messages import PodUID

Wanted = Callable[[PodUID], bool]
"""Whether a pod is known, and nobody has asked it to end."""


class StaticOrder:
    """By full name: who has started, and who waits behind. One owner: the workers."""

    def __init__(self) -> None:
        self._started: dict[str, PodUID] = {}
        self._waiting: dict[str, list[PodUID]] = {}

    def join(self, full_name: str, uid: PodUID) -> None:
        """A pod came; it stands behind those that came before."""
        self._waiting.setdefault(full_name, []).append(uid)

    def leave(self, full_name: str, uid: PodUID) -> None:
        """A pod is finished or forgotten. One that still waits keeps its place: it is passed over in time."""
        if self._started.get(full_name) == uid:
            del self._started[full_name]

    def started(self, full_name: str) -> PodUID | None:
        """Who runs under that name."""
        return self._started.get(full_name)

    def line(self, full_name: str) -> tuple[PodUID, ...]:
        """Who came under that name and has not started; some may not be wanted any more."""
        return tuple(self._waiting.get(full_name, ()))

    def next(self, full_name: str, wanted: Wanted) -> PodUID | None:
        """Whose turn it is now; None while another one runs, or when nobody waits."""
        line = [] if full_name in self._started else self._line(full_name, wanted)
        return line[0] if line else None

    def start(self, full_name: str, uid: PodUID, wanted: Wanted) -> bool:
        """Start this pod if it is its turn."""
        if full_name in self._started:
            return False
        line = self._line(full_name, wanted)
        if its_turn := line[:1] == [uid]:
            self._started[full_name] = line.pop(0)
        self._waiting[full_name] = line
        if not line:
            del self._waiting[full_name]
        return its_turn

    def _line(self, full_name: str, wanted: Wanted) -> list[PodUID]:
        """Who waits, from the first one that is still wanted."""
        return list(dropwhile(lambda uid: not wanted(uid), self._waiting.get(full_name, [])))
