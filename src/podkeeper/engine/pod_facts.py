"""Predicates of pods that combine the state of several modules.

Input: the sources (`storage`, `manager`), the worker states, the cache and the orphan check. The status manager, the
executor, the log manager, backoff and `podkeeper stop` use the answers. Kubelet counterparts:
`PodCouldHaveRunningContainers` in pkg/kubelet/kubelet_pods.go and the providers that pkg/kubelet/kubelet.go passes to
its managers.
"""

from collections.abc import Collection

from podkeeper.engine.cache import PodCache
from podkeeper.engine.inbox import LoopInbox
from podkeeper.engine.manager import PodManager
from podkeeper.engine.orphans import OrphanCheck
from podkeeper.engine.storage import PodStorage
from podkeeper.model.messages import PodUID
from podkeeper.rules.housekeeping import is_running
from podkeeper.rules.worker import predicates
from podkeeper.rules.worker.states import Unknown
from podkeeper.rules.worker.workers import WorkerTable


class PodFacts:
    def __init__(
        self,
        *,
        storage: PodStorage,
        pods: PodManager,
        cache: PodCache,
        states: WorkerTable,
        inbox: LoopInbox,
        sources: Collection[str],
        orphans: OrphanCheck | None = None,
    ) -> None:
        """`states` is shared with `PodWorkers`, which alone changes it."""
        self._storage = storage
        self._pods = pods
        self._cache = cache
        self._states = states
        self._inbox = inbox
        self._sources = tuple(sources)
        self._orphans = orphans

    def may_start(self, uid: PodUID) -> bool:
        """Return whether a source has the pod and has not requested its deletion."""
        # The loop handles no deletion while the runtime is unhealthy. After recovery, a sync may continue before the
        # loop handles the deletion. So query the storage, not the worker.
        return self._storage.is_desired(uid)

    def could_have_running_containers(self, uid: PodUID) -> bool:
        """Return whether a container of the pod may run. `uid` may be the UID of a mirror pod."""
        # Containers never run under the UID of a mirror pod, so use the UID of its static pod.
        uid = self._pods.translate_uid(uid)
        state = self._states.state(uid)
        could_run = predicates.could_have_running_containers(state, synced=self._states.synced)
        if not could_run or not isinstance(state, Unknown) or self._pods.pod_by_uid(uid) is None:
            return could_run
        # Until all sources are ready, workers assume that unknown pods may be running. If a source never became ready,
        # a pod rejected for lack of resources would never be reported as failed. So check the runtime's cache, too.
        seen = self._cache.get_if_sure(uid)
        return seen is None or is_running(seen)

    def needs_status(self, uid: PodUID) -> bool:
        """Return whether the pod's status must be kept: a source has the pod, or it has not finished."""
        # A pod without a status is started. So a rejected or deleted pod needs its status until its source drops it.
        # The status of a terminating pod has its restart counts, in case its source adds it again.
        finished = predicates.should_be_finished(self._states.state(uid), synced=self._states.synced)
        return self._pods.pod_by_uid(uid) is not None or not finished

    def is_removed(self, uid: PodUID) -> bool:
        """Return whether a pod is removed: all sources are ready, and neither they nor the workers have it."""
        if not self._storage.has_seen(self._sources):
            return False
        if self._orphans is not None and self._orphans.is_unconfirmed(uid):
            return False
        removable = predicates.should_content_be_removed(self._states.state(uid), synced=self._states.synced)
        return self._pods.pod_by_uid(uid) is None and removable

    def has_ended(self, uid: PodUID) -> bool:
        """Return whether no source has the pod and its worker has finished."""
        # With an update pending, the loop may not have the removal yet or, shortly after a creation, not even the pod.
        if self._inbox.pending_updates > 0 or self._pods.pod_by_uid(uid) is not None:
            return False
        return predicates.is_over(self._states.state(uid))

    def has_no_containers(self, uid: PodUID) -> bool:
        """Return whether the workers have forgotten the pod and the runtime has nothing of it."""
        record = self._cache.get(uid)
        return isinstance(self._states.state(uid), Unknown) and not (record.containers or record.sandboxes)
