"""Start order of static pods: pods with one full name run in sequence.

If the file of a static pod changes, the pod gets another UID and keeps its full name. The new pod starts only
after the old one has finished. Pods start in the order received. A pod that is killed before its turn is skipped.

Kubelet counterpart: `allowStaticPodStart` in pkg/kubelet/pod_workers.go.
"""

from collections.abc import Callable
from itertools import dropwhile

from podkeeper.model.messages import PodUID

MayStart = Callable[[PodUID], bool]
"""Return whether a pod is known and should run."""


class StaticOrder:
    """For each full name, the started pod and the waiting pods. Owned by `WorkerTable`."""

    def __init__(self) -> None:
        self._started: dict[str, PodUID] = {}
        self._waiting: dict[str, list[PodUID]] = {}

    def join(self, full_name: str, uid: PodUID) -> None:
        """Append a pod to the waiting pods of its full name."""
        self._waiting.setdefault(full_name, []).append(uid)

    def leave(self, full_name: str, uid: PodUID) -> None:
        """Remove a started pod that finished. A waiting pod keeps its place and is skipped later."""
        if self._started.get(full_name) == uid:
            del self._started[full_name]

    def started(self, full_name: str) -> PodUID | None:
        """Return the started pod of a full name."""
        return self._started.get(full_name)

    def waiting(self, full_name: str) -> tuple[PodUID, ...]:
        """Return the pods of a full name that have not started. Some of them may have been killed."""
        return tuple(self._waiting.get(full_name, ()))

    def next(self, full_name: str, may_still_start: MayStart) -> PodUID | None:
        """Return the pod that may start now. None if another one has started or no pod waits."""
        waiting = [] if full_name in self._started else self._still_waiting(full_name, may_still_start)
        return waiting[0] if waiting else None

    def start(self, full_name: str, uid: PodUID, may_still_start: MayStart) -> bool:
        """Mark a pod as started if it may start. Return whether it did."""
        if full_name in self._started:
            return False
        waiting = self._still_waiting(full_name, may_still_start)
        if may_start := waiting[:1] == [uid]:
            self._started[full_name] = waiting.pop(0)
        self._waiting[full_name] = waiting
        if not waiting:
            del self._waiting[full_name]
        return may_start

    def _still_waiting(self, full_name: str, may_still_start: MayStart) -> list[PodUID]:
        """Return the waiting pods, beginning with the first one that should still run."""
        return list(dropwhile(lambda uid: not may_still_start(uid), self._waiting.get(full_name, [])))
