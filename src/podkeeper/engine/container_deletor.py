"""Remove the dead containers of one pod in the background.

Input: requests of the handlers, after an exit or for a finished pod. `rules.container_gc` decides which containers are
garbage. This module decides whether all containers of a pod may be removed. `engine.container_gc` removes containers
that this module missed. Kubelet counterpart: pkg/kubelet/pod_container_deletor.go.
"""

from podkeeper.engine.background import Spawn
from podkeeper.engine.cache import PodCache
from podkeeper.engine.executor import PlanExecutor
from podkeeper.engine.status import StatusManager
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.messages import PodUID
from podkeeper.rules.worker.states import Unknown


class PodContainerDeletor:
    def __init__(
        self,
        *,
        executor: PlanExecutor,
        cache: PodCache,
        workers: PodWorkers,
        statuses: StatusManager,
        spawn: Spawn,
    ) -> None:
        self._executor = executor
        self._cache = cache
        self._workers = workers
        self._statuses = statuses
        self._spawn = spawn

    def delete_containers_in_pod(self, uid: PodUID, container_id: str, everything: bool) -> None:
        """Remove older exited containers of the same name.

        If `everything` and the pod has finished, remove all dead containers.
        """
        self._spawn(self._delete(uid, container_id, everything))

    async def _delete(self, uid: PodUID, container_id: str, everything: bool) -> None:
        # Remove all containers only after the pod's last status is saved, because the exit codes are lost with the
        # containers. If a full disk prevents that, housekeeping removes them once no source has the pod.
        everything = everything and self._is_finished(uid) and await self._statuses.is_saved(uid)
        await self._executor.collect_dead_containers(
            self._cache.get(uid), container_id=container_id, everything=everything
        )

    def _is_finished(self, uid: PodUID) -> bool:
        # A pod that is missing in a stale list has no worker, but may still run. Housekeeping queries the API for it.
        return not isinstance(self._workers.state(uid), Unknown) and self._workers.should_pod_be_finished(uid)
