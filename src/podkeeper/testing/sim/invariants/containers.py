"""I3 and I4: no container runs twice, and none runs without its API object.

Pods of the API with one name may overlap: the old one may still terminate when the new one starts. Static pods with one
name may not, because they are versions of one pod.
"""

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEventType
from podkeeper.rules.static.mirror import is_mirror_pod
from podkeeper.testing.sim.invariants.pods import TrackedPods
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.records import CallEnded, CallStarted, ContainerChanged, PodChanged, SandboxChanged
from podkeeper.testing.sim.world import World


class UniqueContainers:
    """Checks every start of a container or sandbox, and every deleted API object."""

    def __init__(self, world: World, pods: TrackedPods) -> None:
        self._world = world
        self._pods = pods
        self._ready: dict[PodUID, dict[str, None]] = {}  # ready sandboxes
        self._started_by: dict[str, int] = {}  # by running container: the agent process whose start call returned
        self._violations_reported = 0  # of the runtime's own list
        world.bus.subscribe(CallStarted, self._on_call_started)
        world.bus.subscribe(CallEnded, self._on_call_ended)
        world.bus.subscribe(ContainerChanged, self._on_container_changed)
        world.bus.subscribe(SandboxChanged, self._on_sandbox_changed)
        world.bus.subscribe(PodChanged, self._on_pod_changed)

    def _on_call_started(self, call: CallStarted) -> None:
        """Report an agent that creates an attempt which it has started itself: its view is outdated.

        The runtime refuses this call. It is allowed only for a call of an earlier agent process that is still in
        flight.
        """
        if call.operation != "create_container" or not isinstance(config := call.args[1], ContainerConfig):
            return
        for run in self._world.truth.of_pod(call.uid):
            same = run.running and (run.name, run.attempt) == (call.subject, config.attempt)
            if same and self._started_by.get(run.id) == call.agent:
                text = f"attempt {run.attempt} of {config.pod.metadata.name}/{run.name} is created again while it runs"
                self._world.violated("I3", call.uid, text)

    def _on_call_ended(self, ended: CallEnded) -> None:
        if ended.call.operation == "start_container" and not ended.error:
            self._started_by[str(ended.call.args[0])] = ended.call.agent

    def _on_container_changed(self, change: ContainerChanged) -> None:
        if change.happened in (RuntimeEventType.STOPPED, RuntimeEventType.DELETED):
            self._started_by.pop(change.record.id, None)
        if change.happened is not RuntimeEventType.STARTED:
            return
        uid, record, truth = change.uid, change.record, self._world.truth
        self._world.checked("I3")
        if len([run for run in truth.of_pod(uid) if run.running and run.name == record.name]) > 1:
            self._world.violated("I3", uid, f"container {record.name} runs twice")
        known = self._pods.get(uid)
        if known is not None and known.static:
            for other in self._pods.static_namesakes(known.full_name):
                if other != uid and (running := truth.running(other)):
                    names = ", ".join(run.name for run in running)
                    text = f"{record.name} of static pod {known.full_name} starts while {names} of {other} still runs"
                    self._world.violated("I3", uid, text)
        self._check_runtime_violations(uid)

    def _on_sandbox_changed(self, change: SandboxChanged) -> None:
        uid, id_ = change.uid, change.record.id
        ready = self._ready.setdefault(uid, {})
        if change.happened is RuntimeEventType.STARTED:
            ready[id_] = None
            self._world.checked("I3")
            if len(ready) > 1:
                self._world.violated("I3", uid, f"the pod has more than one ready sandbox: {', '.join(ready)}")
        elif change.happened is not RuntimeEventType.CREATED:
            ready.pop(id_, None)
            if not ready:
                del self._ready[uid]
        self._check_runtime_violations(uid)

    def _check_runtime_violations(self, uid: PodUID) -> None:
        """Report violations that the runtime itself detected."""
        violations = self._world.runtime.violations
        if len(violations) > self._violations_reported:
            self._world.violated("I3", uid, violations[self._violations_reported])
            self._violations_reported = len(violations)

    def _on_pod_changed(self, change: PodChanged) -> None:
        # Mirror pods have no containers. They are recreated while their static pods run.
        if not change.by or change.new is not None or change.old is None or is_mirror_pod(change.old):
            return
        uid = PodUID(change.old.metadata.uid or "")
        self._world.checked("I4")
        if running := self._world.truth.running(uid):
            names = ", ".join(f"{run.name} ({run.id})" for run in running)
            self._world.violated("I4", uid, f"the agent deleted the pod's object while {names} ran")
        # A mount that timed out may still take effect later. Housekeeping removes it.
        if uid in self._world.volumes.mounted_pods() and not self._had_volume_faults(uid):
            self._world.violated("I4", uid, "the agent deleted the pod's object while a volume of it was mounted")

    def _had_volume_faults(self, uid: PodUID) -> bool:
        others = FAULT_RATES.keys() - {"volume-trouble", "crash"}
        return bool(self._world.fault_log.any_since(self._world.now() - 600.0, uid, others))
