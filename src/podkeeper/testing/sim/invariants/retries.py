"""I16: what fails is tried again, neither in haste nor too often.

* A container that ends by itself after it had to be started again rests before its next start, for ten seconds at
  least or what the node's settings say; unless it ran so long in between that its past is forgotten. (As in the
  kubelet, a container that the agent stopped starts again in the same sync, and this start does not count as a retry.
  A pod with its own backoff settings is not judged.)
* A liveness probe that has failed as often as its threshold allows is not asked again: the container is to be stopped.

The first holds across restarts of the agent: it keeps its backoff in the journal. Only a journal that could not be
written, or a wall clock that jumped, excuses an agent that did not see the start itself. The second is judged within
one life of the agent.
"""

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.testing.sim.invariants.causes import CALLS
from podkeeper.testing.sim.invariants.pods import Pods
from podkeeper.testing.sim.invariants.probe_book import Probed
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.records import Called, ContainerChanged, LifeBegan
from podkeeper.testing.sim.world import World

OWN_PACE = "podkeeper.io/restart-backoff-"  # how the annotations begin by which a pod asks for it
ROUNDING_SECONDS = 1.0  # ends are told in whole seconds
FORGOTTEN_SECONDS = 600.0  # after so long a run
LOSES_NOTES = frozenset({"disk-full", "clock-jump"})  # what makes the next agent forget a backoff, or its time
NOTED_SECONDS = 5.0  # the journal is written so long before a start, at most


class Retries:
    """Judges every start after the second one, and every answer of a liveness probe."""

    def __init__(self, world: World, pods: Pods) -> None:
        self._world = world
        self._pods = pods
        self._reborn = 0.0  # when the agent that lives now began
        self._failures: dict[str, int] = {}  # by container: how often in a row its liveness probe failed
        self._stopped: set[str] = set()  # containers that the agent asked to end
        world.bus.subscribe(Called, self._hear_call)
        world.bus.subscribe(ContainerChanged, self._see_container)
        world.bus.subscribe(LifeBegan, self._see_life)

    def _see_life(self, began: LifeBegan) -> None:
        self._reborn = began.at
        self._failures.clear()

    def _hear_call(self, call: Called) -> None:
        if call.operation == "stop_container":
            self._stopped.add(str(call.given[0]))

    def _see_container(self, change: ContainerChanged) -> None:
        if change.happened is RuntimeEventType.STARTED:
            self._judge_start(change)
        elif change.happened is RuntimeEventType.DELETED:
            self._failures.pop(change.record.id, None)

    def _judge_start(self, change: ContainerChanged) -> None:
        runs = [life for life in self._world.truth.attempts(change.uid, change.record.name) if life.started is not None]
        if len(runs) < 3:
            return
        before, last, this = runs[-3:]
        if last.started is None or last.ended is None:
            return
        alike = before.spec_hash == last.spec_hash == this.spec_hash
        if not alike or last.sandbox_id != this.sandbox_id or before.sandbox_id != last.sandbox_id:
            return  # another container, or another pod's life
        # Who did not see a start, or saw it fail, does not know that there was one.
        excuses = CALLS if last.started >= self._reborn else CALLS | LOSES_NOTES
        if self._world.troubles.touched(last.started - NOTED_SECONDS, change.uid, FAULT_RATES.keys() - excuses):
            return
        if last.id in self._stopped or before.id in self._stopped or last.ended - last.started >= FORGOTTEN_SECONDS:
            return
        known = self._pods.get(change.uid)
        if known is not None and any(each.startswith(OWN_PACE) for each in known.pod.metadata.annotations or ()):
            return
        self._world.checked("I16")
        rest = change.at - last.ended
        if rest < self._world.settings.restart_curve.initial.total_seconds() - ROUNDING_SECONDS:
            text = f"{this.name} failed again and starts {rest:.1f} s later: {this.id} after {last.id} and {before.id}"
            self._world.broken("I16", change.uid, text)

    def hear_liveness(self, uid: PodUID, container: Probed, good: bool) -> None:
        """Take an answer of a liveness probe."""
        probe = container.spec.liveness_probe
        failures = 0 if good else self._failures.get(container.id, 0) + 1
        self._failures[container.id] = failures
        if probe is None or not failures:
            return
        self._world.checked("I16")
        threshold = probe.failure_threshold or 0
        if failures > threshold:
            text = (
                f"the liveness probe of {container.spec.name} fails {failures} times in a row; {threshold} are enough"
            )
            self._world.broken("I16", uid, text)
