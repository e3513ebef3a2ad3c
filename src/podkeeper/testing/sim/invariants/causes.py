"""I15: nothing that is wanted is stopped without a cause.

Each time the agent stops a container that runs, there must be something that asks for it: its pod is over (its source
says so, it was evicted, had its time, or found no room), its spec has changed, its sandbox is no good any more, or it
failed its probes or its hook. A container that became known late is stopped to make room for the next attempt: where
calls went wrong when it was made, nobody is blamed.
"""

from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.phase import is_terminal
from podkeeper.rules.worker.states import Cause, Ends
from podkeeper.testing.sim.invariants.makings import Makings
from podkeeper.testing.sim.invariants.pods import Pods
from podkeeper.testing.sim.pods import is_answered_well
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.records import Called
from podkeeper.testing.sim.truth import ContainerLife
from podkeeper.testing.sim.world import World

CALLS = frozenset({"runtime-errors", "slow-calls", "hung-calls", "lost-answers", "runtime-down"})
"""Trouble with calls: what they did may not be known to who made them."""

CALL_SECONDS = 150.0  # so long a call may be under way, and what it did unknown
PROBED_SECONDS = 600.0  # longer than any probe takes to fail for good


class Causes:
    """Judges every stop."""

    def __init__(self, world: World, pods: Pods, makings: Makings) -> None:
        self._world = world
        self._pods = pods
        self._makings = makings
        world.bus.subscribe(Called, self._hear_call)

    def _hear_call(self, call: Called) -> None:
        if call.operation != "stop_container" or call.room != "runtime":
            return
        life = self._world.truth.containers.get(str(call.given[0]))
        pod = self._wanted(call.uid)
        if life is None or not life.running or pod is None:
            return
        container = _lasting(pod, life.name)
        if container is None or self._is_unknown(life) or self._has_failed(pod, container):
            return
        self._world.checked("I15")
        if not self._is_replaced(life, container):
            self._world.broken("I15", call.uid, f"{life.name} ({life.id}) is stopped, and nothing asks for it")

    def _wanted(self, uid: PodUID) -> Pod | None:
        """A pod that is to run, as the agent was told last; None: it is not, or it may end for reasons of its own."""
        known, agent = self._pods.get(uid), self._world.agent
        if known is None or agent is None or not known.named or known.dropped or known.end is not None:
            return None
        if known.pod.spec.active_deadline_seconds is not None or is_evicted(self._world, uid):
            return None
        status = agent.statuses.get_pod_status(uid)
        return None if status is not None and is_terminal(status.phase) else known.pod  # there was no room for it

    def _is_unknown(self, life: ContainerLife) -> bool:
        """Whether the agent may know nothing, or nothing good, of a container or its sandbox."""
        truth, now = self._world.truth, self._world.now()
        if truth.attempts(life.uid, life.name)[-1] is not life:
            return True
        sandboxes = [each for each in truth.sandboxes.values() if each.uid == life.uid]
        if sandboxes[-1].id != life.sandbox_id or sandboxes[-1].stopped is not None:
            return True
        young = now - life.created < CALL_SECONDS
        return young and bool(self._world.troubles.touched(life.created - 1.0, life.uid, FAULT_RATES.keys() - CALLS))

    def _has_failed(self, pod: Pod, container: Container) -> bool:
        """Whether a container may have failed what is asked of it."""
        after_start = container.lifecycle.post_start if container.lifecycle is not None else None
        asked = [each for each in (container.liveness_probe, container.startup_probe, after_start) if each is not None]
        if not all(is_answered_well(pod, container, each) for each in asked):
            return True
        return bool(asked) and bool(self._world.troubles.touched(self._world.now() - PROBED_SECONDS, None))

    def _is_replaced(self, life: ContainerLife, container: Container) -> bool:
        made_from = self._makings.pod_of(life.id)
        return made_from is None or _lasting(made_from, life.name) != container


def is_evicted(world: World, uid: PodUID) -> bool:
    """Whether a pod is being evicted, or preempted: only the agent knows for which need."""
    state = None if world.agent is None else world.agent.workers.state(uid)
    return isinstance(state, Ends) and state.ending.cause is Cause.EVICTED


def _lasting(pod: Pod, name: str) -> Container | None:
    """A container of a pod that nothing but a cause ends: one that works, or a sidecar where nothing ever is done."""
    found = next((each for each in pod.spec.containers if each.name == name), None)
    if found is not None or (pod.spec.restart_policy or "Always") != "Always":
        return found
    sidecars = (each for each in pod.spec.init_containers or () if each.restart_policy == "Always")
    return next((each for each in sidecars if each.name == name), None)
