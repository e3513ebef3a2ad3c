"""I21: volumes, directory and cgroup of a pod stay while a container runs.

Each call that removes one of them is checked at its start. If a container was created during faults of runtime calls,
it is not checked for some time. Its start may have been slow, or the answer was lost, so the agent may not have it yet.
"""

from podkeeper.testing.sim.ground_truth import ContainerRun
from podkeeper.testing.sim.invariants.causes import CALL_FAULTS, CALL_SECONDS
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.records import CallStarted
from podkeeper.testing.sim.world import World

REMOVALS = {
    ("volumes", "unmount"): "its volumes are unmounted",
    ("volumes", "remove_directory"): "its directory is removed",
    ("cgroups", "remove"): "its cgroup is removed",
}


class ResourcesInUse:
    """Checks every call that removes a resource of a pod."""

    def __init__(self, world: World) -> None:
        self._world = world
        world.bus.subscribe(CallStarted, self._on_call_started)

    def _on_call_started(self, call: CallStarted) -> None:
        what = REMOVALS.get((call.port, call.operation))
        if what is None:
            return
        self._world.checked("I21")
        for run in self._world.truth.running(call.uid):
            if not self._is_unknown(run):
                self._world.violated("I21", call.uid, f"{what} while {run.name} ({run.id}) runs")

    def _is_unknown(self, run: ContainerRun) -> bool:
        """Return whether the agent may not have received the start of a container."""
        faults, is_new = self._world.fault_log, self._world.now() - run.created < CALL_SECONDS
        return is_new and bool(
            faults.any_since(run.created - 1.0, run.uid, FAULT_RATES.keys() - CALL_FAULTS - {"crash"})
        )
