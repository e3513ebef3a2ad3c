"""Of what pod each container was made: the spec that was in force when the agent asked for it.

The runtime knows a hash of it only, and that hash is the agent's own.
"""

from typing import cast

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEventType
from podkeeper.testing.sim.records import Called, ContainerChanged
from podkeeper.testing.sim.world import World


class Makings:
    """Remembers the pod behind every container that is there."""

    def __init__(self, world: World) -> None:
        self._asked_for: dict[tuple[PodUID, str, int], Pod] = {}  # the pod that an attempt is made from
        self._made_from: dict[str, Pod] = {}  # by container
        world.bus.subscribe(Called, self._hear_call)
        world.bus.subscribe(ContainerChanged, self._see_container)

    def pod_of(self, container_id: str) -> Pod | None:
        """The pod that a container was made from; None: there is none, or none any more."""
        return self._made_from.get(container_id)

    def _hear_call(self, call: Called) -> None:
        if call.operation == "create_container":
            config = cast(ContainerConfig, call.given[1])
            self._asked_for[call.uid, call.subject, config.attempt] = config.pod

    def _see_container(self, change: ContainerChanged) -> None:
        record = change.record
        if change.happened is RuntimeEventType.CREATED:
            pod = self._asked_for.pop((change.uid, record.name, record.restart_count), None)
            if pod is not None:
                self._made_from[record.id] = pod
        elif change.happened is RuntimeEventType.DELETED:
            self._made_from.pop(record.id, None)
