"""I19: a probe of a container is never executed twice at the same time.

Two executions at once would count one state of the container twice towards a threshold. Only commands are checked,
because network probes take no time in the simulation.
"""

from podkeeper.model.k8s.core import Container, Pod
from podkeeper.testing.sim.invariants.pods import TrackedPods
from podkeeper.testing.sim.pods import all_containers
from podkeeper.testing.sim.records import AgentStarted, ReadEnded
from podkeeper.testing.sim.world import World


class ProbeOverlap:
    """Checks every execution of a probe's command."""

    def __init__(self, world: World, pods: TrackedPods) -> None:
        self._world = world
        self._pods = pods
        self._ended: dict[tuple[object, object], float] = {}  # by container and command: the end of the last execution
        world.bus.subscribe(ReadEnded, self._on_read_ended)
        world.bus.subscribe(AgentStarted, lambda _: self._ended.clear())

    def _on_read_ended(self, ended: ReadEnded) -> None:
        if ended.operation != "exec_sync":
            return
        known = self._pods.get(ended.uid)
        if known is None or not _is_probe(known.pod, ended.subject, ended.args[1]):
            return
        key = ended.args[0], ended.args[1]
        last = self._ended.get(key, 0.0)
        self._ended[key] = ended.at
        self._world.checked("I19")
        # Records arrive in the order in which executions end.
        if ended.began < last:
            when = f"one execution began at {ended.began:.3f} s, another one ended at {last:.3f} s"
            self._world.violated("I19", ended.uid, f"a probe of {ended.subject} is executed twice at a time: {when}")


def _is_probe(pod: Pod, container: str, command: object) -> bool:
    found = next((each for each in all_containers(pod) if each.name == container), None)
    return found is not None and command in _commands(found)


def _commands(container: Container) -> list[object]:
    probes = (container.startup_probe, container.liveness_probe, container.readiness_probe)
    return [each.exec.command for each in probes if each is not None and each.exec is not None]
