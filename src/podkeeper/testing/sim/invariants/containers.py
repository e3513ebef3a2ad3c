"""I3 and I4: nothing lives twice, and nothing lives on when its pod's object is gone.

Pods of the API that bear one name may overlap (the old one still ends when the new one starts); static ones may not:
they are one pod, told twice.
"""

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEventType
from podkeeper.rules.mirror import is_mirror_pod
from podkeeper.testing.sim.invariants.pods import Pods
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.records import Answered, Called, ContainerChanged, PodChanged, SandboxChanged
from podkeeper.testing.sim.world import World


class Containers:
    """Judges every start of a container or sandbox, and every object that goes."""

    def __init__(self, world: World, pods: Pods) -> None:
        self._world = world
        self._pods = pods
        self._ready: dict[PodUID, dict[str, None]] = {}  # ready sandboxes
        self._started_by: dict[str, int] = {}  # running containers, and the life whose start call returned
        self._complaints = 0  # of the runtime, so many were told
        world.bus.subscribe(Called, self._see_call)
        world.bus.subscribe(Answered, self._see_answer)
        world.bus.subscribe(ContainerChanged, self._see_container)
        world.bus.subscribe(SandboxChanged, self._see_sandbox)
        world.bus.subscribe(PodChanged, self._see_pod)

    def _see_call(self, call: Called) -> None:
        """Report an agent that creates an attempt again which it has started itself: its view is outdated.

        The runtime refuses that. A call of a previous agent may be in flight for so long, its successor's may not.
        """
        if call.operation != "create_container" or not isinstance(config := call.given[1], ContainerConfig):
            return
        for life in self._world.truth.of_pod(call.uid):
            same = life.running and (life.name, life.attempt) == (call.subject, config.attempt)
            if same and self._started_by.get(life.id) == call.life:
                text = (
                    f"attempt {life.attempt} of {config.pod.metadata.name}/{life.name} is created again while it runs"
                )
                self._world.broken("I3", call.uid, text)

    def _see_answer(self, answer: Answered) -> None:
        if answer.call.operation == "start_container" and not answer.error:
            self._started_by[str(answer.call.given[0])] = answer.call.life

    def _see_container(self, change: ContainerChanged) -> None:
        if change.happened in (RuntimeEventType.STOPPED, RuntimeEventType.DELETED):
            self._started_by.pop(change.record.id, None)
        if change.happened is not RuntimeEventType.STARTED:
            return
        uid, record, truth = change.uid, change.record, self._world.truth
        self._world.checked("I3")
        if len([life for life in truth.of_pod(uid) if life.running and life.name == record.name]) > 1:
            self._world.broken("I3", uid, f"container {record.name} runs twice")
        known = self._pods.get(uid)
        if known is not None and known.static:
            for other in self._pods.static_namesakes(known.full_name):
                if other != uid and (running := truth.running(other)):
                    names = ", ".join(life.name for life in running)
                    text = f"{record.name} of static pod {known.full_name} starts while {names} of {other} still runs"
                    self._world.broken("I3", uid, text)
        self._hear_runtime(uid)

    def _see_sandbox(self, change: SandboxChanged) -> None:
        uid, id_ = change.uid, change.record.id
        ready = self._ready.setdefault(uid, {})
        if change.happened is RuntimeEventType.STARTED:
            ready[id_] = None
            self._world.checked("I3")
            if len(ready) > 1:
                self._world.broken("I3", uid, f"the pod has more than one ready sandbox: {', '.join(ready)}")
        elif change.happened is not RuntimeEventType.CREATED:
            ready.pop(id_, None)
            if not ready:
                del self._ready[uid]
        self._hear_runtime(uid)

    def _hear_runtime(self, uid: PodUID) -> None:
        """Report what the runtime itself noted that an agent must never do."""
        complaints = self._world.runtime.violations
        if len(complaints) > self._complaints:
            self._world.broken("I3", uid, complaints[self._complaints])
            self._complaints = len(complaints)

    def _see_pod(self, change: PodChanged) -> None:
        # A mirror is no process: it is made anew while its static pod runs.
        if not change.by or change.new is not None or change.old is None or is_mirror_pod(change.old):
            return
        uid = PodUID(change.old.metadata.uid or "")
        self._world.checked("I4")
        if running := self._world.truth.running(uid):
            names = ", ".join(f"{life.name} ({life.id})" for life in running)
            self._world.broken("I4", uid, f"the agent deleted the pod's object while {names} ran")
        # A mount that was given up may still come true later; that one is housekeeping's.
        if uid in self._world.volumes.mounted_pods() and not self._had_trouble_with_volumes(uid):
            self._world.broken("I4", uid, "the agent deleted the pod's object while a volume of it was mounted")

    def _had_trouble_with_volumes(self, uid: PodUID) -> bool:
        others = FAULT_RATES.keys() - {"volume-trouble", "crash"}
        return bool(self._world.troubles.touched(self._world.now() - 600.0, uid, others))
