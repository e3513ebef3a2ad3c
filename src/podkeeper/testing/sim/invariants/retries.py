"""I16: failures are retried with backoff, and not too often.

* A container that fails after a restart waits at least ten seconds before its next start, or as the node's settings
  define. A long run resets the backoff. (As in the kubelet, a container that the agent stopped starts again in the same
  sync, and this start does not count as a retry. A pod with its own backoff settings is not checked.)
* A liveness probe that has reached its failure threshold is not executed again, because the container must be stopped.

The first holds across restarts of the agent, because the backoff is in the journal. An agent that did not see the start
itself is excused if the journal could not be written or the wall clock jumped. The second is checked within one agent
process.
"""

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.testing.sim.invariants.causes import CALL_FAULTS
from podkeeper.testing.sim.invariants.pods import TrackedPods
from podkeeper.testing.sim.invariants.probe_states import ContainerProbeState
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.records import AgentStarted, CallStarted, ContainerChanged
from podkeeper.testing.sim.world import World

OWN_BACKOFF = "podkeeper.io/restart-backoff-"  # prefix of the annotations with which a pod sets its own backoff
ROUNDING_SECONDS = 1.0  # exit times have whole seconds
BACKOFF_RESET_SECONDS = 600.0  # a run of this length resets the backoff
LOSES_BACKOFF = frozenset({"disk-full", "clock-jump"})  # the next agent may not have the backoff or its start
STORED_SECONDS = 5.0  # the journal is written at most this long before a start


class RestartDelays:
    """Checks every start after the second one, and every result of a liveness probe."""

    def __init__(self, world: World, pods: TrackedPods) -> None:
        self._world = world
        self._pods = pods
        self._agent_started_at = 0.0  # start of the current agent process
        self._failures: dict[str, int] = {}  # by container: how often in a row its liveness probe failed
        self._stopped: set[str] = set()  # containers that the agent stopped
        world.bus.subscribe(CallStarted, self._on_call_started)
        world.bus.subscribe(ContainerChanged, self._on_container_changed)
        world.bus.subscribe(AgentStarted, self._on_agent_started)

    def _on_agent_started(self, began: AgentStarted) -> None:
        self._agent_started_at = began.at
        self._failures.clear()

    def _on_call_started(self, call: CallStarted) -> None:
        if call.operation == "stop_container":
            self._stopped.add(str(call.args[0]))

    def _on_container_changed(self, change: ContainerChanged) -> None:
        if change.happened is RuntimeEventType.STARTED:
            self._check_start(change)
        elif change.happened is RuntimeEventType.DELETED:
            self._failures.pop(change.record.id, None)

    def _check_start(self, change: ContainerChanged) -> None:
        runs = [run for run in self._world.truth.attempts(change.uid, change.record.name) if run.started is not None]
        if len(runs) < 3:
            return
        before, last, this = runs[-3:]
        if last.started is None or last.ended is None:
            return
        alike = before.spec_hash == last.spec_hash == this.spec_hash
        if not alike or last.sandbox_id != this.sandbox_id or before.sandbox_id != last.sandbox_id:
            return  # another spec or another sandbox
        # An agent that did not make the start call, or got an error for it, has no record that the container ran.
        excuses = CALL_FAULTS if last.started >= self._agent_started_at else CALL_FAULTS | LOSES_BACKOFF
        if self._world.fault_log.any_since(last.started - STORED_SECONDS, change.uid, FAULT_RATES.keys() - excuses):
            return
        if last.id in self._stopped or before.id in self._stopped or last.ended - last.started >= BACKOFF_RESET_SECONDS:
            return
        known = self._pods.get(change.uid)
        if known is not None and any(each.startswith(OWN_BACKOFF) for each in known.pod.metadata.annotations or ()):
            return
        self._world.checked("I16")
        pause = change.at - last.ended
        if pause < self._world.settings.restart_curve.initial.total_seconds() - ROUNDING_SECONDS:
            text = f"{this.name} failed again and starts {pause:.1f} s later: {this.id} after {last.id} and {before.id}"
            self._world.violated("I16", change.uid, text)

    def on_liveness_result(self, uid: PodUID, container: ContainerProbeState, good: bool) -> None:
        """Count the failures of a liveness probe."""
        probe = container.spec.liveness_probe
        failures = 0 if good else self._failures.get(container.id, 0) + 1
        self._failures[container.id] = failures
        if probe is None or not failures:
            return
        self._world.checked("I16")
        threshold = probe.failure_threshold or 0
        if failures > threshold:
            text = f"{container.spec.name} failed {failures} liveness probes in a row; its threshold is {threshold}"
            self._world.violated("I16", uid, text)
