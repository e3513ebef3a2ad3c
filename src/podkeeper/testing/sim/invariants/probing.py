"""I19: a probe of a container is never executed twice at the same time.

Two executions at once would count one state of the container twice towards a threshold. Only commands are judged:
in the simulation, probes over the network take no time.
"""

from podkeeper.model.k8s.core import Container, Pod
from podkeeper.testing.sim.invariants.pods import Pods
from podkeeper.testing.sim.pods import all_containers
from podkeeper.testing.sim.records import Asked, LifeBegan
from podkeeper.testing.sim.world import World


class Probing:
    """Judges every execution of a probe's command."""

    def __init__(self, world: World, pods: Pods) -> None:
        self._world = world
        self._pods = pods
        self._ended: dict[tuple[object, object], float] = {}  # by container and command: the end of the last execution
        world.bus.subscribe(Asked, self._hear)
        world.bus.subscribe(LifeBegan, lambda _: self._ended.clear())

    def _hear(self, asked: Asked) -> None:
        if asked.operation != "exec_sync":
            return
        known = self._pods.get(asked.uid)
        if known is None or not _is_probe(known.pod, asked.subject, asked.given[1]):
            return
        key = asked.given[0], asked.given[1]
        last = self._ended.get(key, 0.0)
        self._ended[key] = asked.at
        self._world.checked("I19")
        # Executions are seen in the order of their ends.
        if asked.begun < last:
            when = f"one execution began at {asked.begun:.3f} s, another one ended at {last:.3f} s"
            self._world.broken("I19", asked.uid, f"a probe of {asked.subject} is executed twice at a time: {when}")


def _is_probe(pod: Pod, container: str, command: object) -> bool:
    found = next((each for each in all_containers(pod) if each.name == container), None)
    return found is not None and command in _commands(found)


def _commands(container: Container) -> list[object]:
    probes = (container.startup_probe, container.liveness_probe, container.readiness_probe)
    return [each.exec.command for each in probes if each is not None and each.exec is not None]
