"""The storage: what each source says, and one ordered stream of updates out of it.

In: `merge(change)`, one message of one source. Out: `PodUpdate`s and warning events, handed to the two callables
given at construction, in strict order and before `merge` returns (hand over a queue's put, not the loop itself).
What a change means is decided in `rules/merge.py`; this shell only remembers.

Pods are frozen, so what is emitted *is* what is stored, and nobody can corrupt it. A refused change (`BadInput`)
changes nothing and emits nothing. The Go ancestor is `podStorage` in pkg/kubelet/config/config.go.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import ALL_SOURCES, Op, PodEvent, PodUID, PodUpdate
from podkeeper.rules.merge import NotificationMode, announcements, duplicate_warning, merge


class PodStorage:
    """Many sources, one truth per source."""

    def __init__(
        self,
        *,
        emit: Callable[[PodUpdate], None],
        record: Callable[[PodEvent], None],
        now: Callable[[], datetime],
        mode: NotificationMode | str = NotificationMode.INCREMENTAL,
    ) -> None:
        try:
            self._mode = NotificationMode(mode)
        except ValueError as error:
            modes = ", ".join(NotificationMode)
            raise BadInput(Problem(f"cannot store pods in mode {mode!r}; right would be one of: {modes}")) from error
        self._emit = emit
        self._record = record
        self._now = now
        self._pods: dict[str, dict[PodUID, Pod]] = {}
        self._seen: set[str] = set()

    @property
    def seen_sources(self) -> frozenset[str]:
        """The sources that have sent at least one SET."""
        return frozenset(self._seen)

    def has_seen(self, sources: Iterable[str]) -> bool:
        """Whether each of these sources has sent at least one SET."""
        return self._seen.issuperset(sources)

    def merge(self, change: PodUpdate) -> None:
        """Take one message of a source and tell what it changes."""
        source = change.source
        merged = merge(self._pods.get(source, {}), change, self._now())
        if merged.whole:
            self._pods[source] = dict(merged.pods)
        else:
            said = self._pods.setdefault(source, {})
            said.update(merged.pods)
            for gone in merged.removed:
                del said[PodUID(gone.metadata.uid or "")]
        first_set = change.op == Op.SET and source not in self._seen
        if first_set:
            self._seen.add(source)
        for pod in merged.duplicates:
            self._record(duplicate_warning(pod, source))
        everything = () if self._mode is NotificationMode.INCREMENTAL else self.merged_state()
        for update in announcements(self._mode, source, merged, first_set, everything):
            self._emit(update)

    def wants(self, uid: PodUID) -> bool:
        """Whether some source wants a pod and has not asked for its end, as of what was merged last."""
        return any(
            (pod := pods.get(uid)) is not None and pod.metadata.deletion_timestamp is None
            for pods in self._pods.values()
        )

    def merged_state(self) -> tuple[Pod, ...]:
        """All pods of all sources."""
        return tuple(pod for pods in self._pods.values() for pod in pods.values())

    def sync(self) -> None:
        """Tell everything once more, as one SET of the pseudo-source `*`."""
        self._emit(PodUpdate(Op.SET, self.merged_state(), ALL_SOURCES))
