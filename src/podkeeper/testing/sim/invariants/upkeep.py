"""I21: what a running container uses stays: the volumes, the directory and the cgroup of its pod.

Each call that removes one of them is judged when it is made. A young container does not count if calls went wrong when
it was made: the agent may not know of it (its start was slow, or the answer was lost).
"""

from podkeeper.testing.sim.invariants.causes import CALL_SECONDS, CALLS
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.records import Called
from podkeeper.testing.sim.truth import ContainerLife
from podkeeper.testing.sim.world import World

REMOVALS = {
    ("volumes", "unmount"): "its volumes are unmounted",
    ("volumes", "remove_directory"): "its directory is removed",
    ("cgroups", "remove"): "its cgroup is removed",
}


class Upkeep:
    """Judges every call that removes something of a pod."""

    def __init__(self, world: World) -> None:
        self._world = world
        world.bus.subscribe(Called, self._hear)

    def _hear(self, call: Called) -> None:
        what = REMOVALS.get((call.room, call.operation))
        if what is None:
            return
        self._world.checked("I21")
        for life in self._world.truth.running(call.uid):
            if not self._is_unknown(life):
                self._world.broken("I21", call.uid, f"{what} while {life.name} ({life.id}) runs")

    def _is_unknown(self, life: ContainerLife) -> bool:
        """Whether the agent may not know that a container runs."""
        troubles, young = self._world.troubles, self._world.now() - life.created < CALL_SECONDS
        return young and bool(troubles.touched(life.created - 1.0, life.uid, FAULT_RATES.keys() - CALLS - {"crash"}))
