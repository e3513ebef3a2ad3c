"""I15: no container of a desired pod is stopped without a cause.

Each time the agent stops a running container, there must be a cause. The pod has ended (deleted, evicted, past its
deadline, rejected), its spec has changed, its sandbox is unusable, or a probe or hook has failed. If the agent detects
an attempt late, it stops that attempt in favour of the next one. So failed calls during the creation of a container are
an excuse.
"""

from podkeeper.model.history import Cause
from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.status.phase import is_terminal
from podkeeper.rules.worker.states import Stopping
from podkeeper.testing.sim.ground_truth import ContainerRun
from podkeeper.testing.sim.invariants.created_specs import CreatedSpecs
from podkeeper.testing.sim.invariants.pods import TrackedPods
from podkeeper.testing.sim.pods import is_answered_well
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.records import CallStarted
from podkeeper.testing.sim.world import World

CALL_FAULTS = frozenset({"runtime-errors", "slow-calls", "hung-calls", "lost-answers", "runtime-down"})
"""Faults of calls: the effects of a call may be unknown to the agent."""

CALL_SECONDS = 150.0  # how long a call may be in flight, with unknown effects
PROBED_SECONDS = 600.0  # longer than any probe takes to reach its failure threshold


class StopCauses:
    """Checks every stop."""

    def __init__(self, world: World, pods: TrackedPods, created: CreatedSpecs) -> None:
        self._world = world
        self._pods = pods
        self._created = created
        world.bus.subscribe(CallStarted, self._on_call_started)

    def _on_call_started(self, call: CallStarted) -> None:
        if call.operation != "stop_container" or call.port != "runtime":
            return
        run = self._world.truth.containers.get(str(call.args[0]))
        pod = self._desired_pod(call.uid)
        if run is None or not run.running or pod is None:
            return
        container = _lasting_container(pod, run.name)
        if container is None or self._is_unknown(run) or self._has_failed(pod, container):
            return
        self._world.checked("I15")
        if not self._is_replaced(run, container):
            self._world.violated("I15", call.uid, f"{run.name} ({run.id}) is stopped without a cause")

    def _desired_pod(self, uid: PodUID) -> Pod | None:
        """Return a pod that must run, as the agent received it last.

        None: it does not have to run, or it may end by itself.
        """
        known, agent = self._pods.get(uid), self._world.agent
        if known is None or agent is None or not known.named or known.dropped or known.end is not None:
            return None
        if known.pod.spec.active_deadline_seconds is not None or is_evicted(self._world, uid):
            return None
        status = agent.engine.statuses.get_pod_status(uid)
        return None if status is not None and is_terminal(status.phase) else known.pod  # terminal: it was rejected

    def _is_unknown(self, run: ContainerRun) -> bool:
        """Return whether the agent may lack a container or its sandbox, or may report it as unusable."""
        truth, now = self._world.truth, self._world.now()
        if truth.attempts(run.uid, run.name)[-1] is not run:
            return True
        sandboxes = [each for each in truth.sandboxes.values() if each.uid == run.uid]
        if sandboxes[-1].id != run.sandbox_id or sandboxes[-1].stopped is not None:
            return True
        is_new = now - run.created < CALL_SECONDS
        return is_new and bool(
            self._world.fault_log.any_since(run.created - 1.0, run.uid, FAULT_RATES.keys() - CALL_FAULTS)
        )

    def _has_failed(self, pod: Pod, container: Container) -> bool:
        """Whether a probe or hook of a container may have failed."""
        after_start = container.lifecycle.post_start if container.lifecycle is not None else None
        actions = [
            each for each in (container.liveness_probe, container.startup_probe, after_start) if each is not None
        ]
        if not all(is_answered_well(pod, container, each) for each in actions):
            return True
        return bool(actions) and bool(self._world.fault_log.any_since(self._world.now() - PROBED_SECONDS, None))

    def _is_replaced(self, run: ContainerRun, container: Container) -> bool:
        created_from = self._created.pod_of(run.id)
        return created_from is None or _lasting_container(created_from, run.name) != container


def is_evicted(world: World, uid: PodUID) -> bool:
    """Whether a pod is being evicted or preempted. Only the agent's own status has the reason."""
    state = None if world.agent is None else world.agent.engine.workers.state(uid)
    return isinstance(state, Stopping) and state.termination.cause is Cause.EVICTED


def _lasting_container(pod: Pod, name: str) -> Container | None:
    """Return a container that ends only for a cause: a regular one, or a sidecar of a pod that never completes."""
    found = next((each for each in pod.spec.containers if each.name == name), None)
    if found is not None or (pod.spec.restart_policy or "Always") != "Always":
        return found
    sidecars = (each for each in pod.spec.init_containers or () if each.restart_policy == "Always")
    return next((each for each in sidecars if each.name == name), None)
