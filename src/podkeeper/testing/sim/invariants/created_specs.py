"""The pod from which each container was created.

Its spec was in force at the create call.

The runtime has only a hash of the spec, and the agent computes this hash itself.
"""

from typing import cast

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEventType
from podkeeper.testing.sim.records import CallStarted, ContainerChanged
from podkeeper.testing.sim.world import World


class CreatedSpecs:
    """Stores the pod of every existing container."""

    def __init__(self, world: World) -> None:
        self._requested: dict[tuple[PodUID, str, int], Pod] = {}  # by pod, container and attempt
        self._created_from: dict[str, Pod] = {}  # by container
        world.bus.subscribe(CallStarted, self._on_call_started)
        world.bus.subscribe(ContainerChanged, self._on_container_changed)

    def pod_of(self, container_id: str) -> Pod | None:
        """Return the pod from which a container was created. None: there is no such container."""
        return self._created_from.get(container_id)

    def _on_call_started(self, call: CallStarted) -> None:
        if call.operation == "create_container":
            config = cast(ContainerConfig, call.args[1])
            self._requested[call.uid, call.subject, config.attempt] = config.pod

    def _on_container_changed(self, change: ContainerChanged) -> None:
        record = change.record
        if change.happened is RuntimeEventType.CREATED:
            pod = self._requested.pop((change.uid, record.name, record.restart_count), None)
            if pod is not None:
                self._created_from[record.id] = pod
        elif change.happened is RuntimeEventType.DELETED:
            self._created_from.pop(record.id, None)
