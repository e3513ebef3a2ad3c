"""Drop the state of removed pods: backoff, recorded events, cached objects.

Housekeeping calls `collect` once per round. Kubelet counterparts: the backoff garbage collection in
`HandlePodCleanups`, and the reference counts of its ConfigMap and Secret managers.
"""

from collections.abc import Callable, Iterable, Sequence

from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.events import EventRecorder
from podkeeper.engine.manager import PodManager
from podkeeper.engine.pod_facts import PodFacts
from podkeeper.engine.status import StatusManager
from podkeeper.model.k8s.core import Pod


class StateGC:
    def __init__(
        self,
        *,
        backoffs: Sequence[DurableBackoff],
        events: EventRecorder,
        statuses: StatusManager,
        pods: PodManager,
        facts: PodFacts,
        keep_objects: Callable[[Iterable[Pod]], None] | None = None,
    ) -> None:
        """`keep_objects` receives the pods whose ConfigMaps and Secrets are still needed."""
        self._backoffs = tuple(backoffs)
        self._events = events
        self._statuses = statuses
        self._pods = pods
        self._facts = facts
        self._keep_objects = keep_objects

    def collect(self) -> None:
        for backoff in self._backoffs:
            backoff.collect(self._facts.is_removed)
        # Events stay as long as the status, because `podkeeper describe` shows both.
        self._events.keep_only(self._statuses.phases().keys())
        if self._keep_objects is not None:
            self._keep_objects(self._pods.pods())
