"""Pod storage: merge the messages of all sources into one ordered stream.

Input: `merge(change)` with one message of one source. Output: `PodUpdate`s and warning events. They are passed to the
callables `emit` and `record_event`, in order and before `merge` returns. So `emit` should be the `put` of a queue.
`rules/merge.py` decides what a message changes, and this module stores the result.

Pods are frozen, so the stored and the emitted pods are the same objects. An invalid message (`BadInput`) changes
nothing and emits nothing. Kubelet counterpart: `podStorage` in pkg/kubelet/config/config.go.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import ALL_SOURCES, Op, PodEvent, PodUID, PodUpdate
from podkeeper.rules.merge import NotificationMode, duplicate_warning, merge, notifications
from podkeeper.rules.validate.names import unsupported


class PodStorage:
    """The pods of each source."""

    def __init__(
        self,
        *,
        emit: Callable[[PodUpdate], None],
        record_event: Callable[[PodEvent], None],
        now: Callable[[], datetime],
        mode: NotificationMode | str = NotificationMode.INCREMENTAL,
    ) -> None:
        try:
            self._mode = NotificationMode(mode)
        except ValueError as error:
            raise BadInput(unsupported("mode", mode, NotificationMode)) from error
        self._record_event = record_event
        self._now = now
        self._pods: dict[str, dict[PodUID, Pod]] = {}
        self._seen: set[str] = set()
        self._subscribers: list[Callable[[PodUpdate], None]] = [emit]

    @property
    def seen_sources(self) -> frozenset[str]:
        """Return the sources that have sent at least one SET."""
        return frozenset(self._seen)

    def has_seen(self, sources: Iterable[str]) -> bool:
        """Return whether each of these sources has sent at least one SET."""
        return self._seen.issuperset(sources)

    def merge(self, change: PodUpdate) -> None:
        """Store one message of a source and emit its changes."""
        source = change.source
        merged = merge(self._pods.get(source, {}), change, self._now())
        if merged.whole:
            self._pods[source] = dict(merged.pods)
        else:
            stored = self._pods.setdefault(source, {})
            stored.update(merged.pods)
            for removed in merged.removed:
                del stored[PodUID(removed.metadata.uid or "")]
        # Only a SET makes a source ready: single changes do not show which pods are missing.
        first_set = change.op == Op.SET and source not in self._seen
        if first_set:
            self._seen.add(source)
        for pod in merged.duplicates:
            self._record_event(duplicate_warning(pod, source))
        everything = () if self._mode is NotificationMode.INCREMENTAL else self.merged_state()
        for update in notifications(self._mode, source, merged, first_set, everything):
            self._publish(update)

    def subscribe(self, subscriber: Callable[[PodUpdate], None]) -> None:
        """Call `subscriber` with each emitted update, after `emit`."""
        self._subscribers.append(subscriber)

    def _publish(self, update: PodUpdate) -> None:
        for subscriber in self._subscribers:
            subscriber(update)

    def is_desired(self, uid: PodUID) -> bool:
        """Return whether a source has a pod that is not being deleted."""
        return any(
            (pod := pods.get(uid)) is not None and pod.metadata.deletion_timestamp is None
            for pods in self._pods.values()
        )

    def merged_state(self) -> tuple[Pod, ...]:
        return tuple(pod for pods in self._pods.values() for pod in pods.values())

    def sync(self) -> None:
        """Emit all pods again, as one SET of the pseudo-source `*`."""
        self._publish(PodUpdate(Op.SET, self.merged_state(), ALL_SOURCES))
