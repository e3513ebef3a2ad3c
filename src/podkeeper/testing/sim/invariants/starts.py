"""I12, and of I7 the runs: nothing starts that may not start any more.

I12 is judged when the agent asks the runtime for a sandbox or container, by its own knowledge and by that of its former
lives. I7 is judged when a container really starts: the policy, applied to what its former runs really did, must allow
it, whatever the agent remembers of them.
"""

from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.rules.worker.questions import is_termination_requested
from podkeeper.rules.worker.states import TerminationRequested
from podkeeper.testing.sim.invariants.exits import last_run
from podkeeper.testing.sim.invariants.makings import Makings
from podkeeper.testing.sim.invariants.pods import KnownPod, Pods
from podkeeper.testing.sim.records import Called, ContainerChanged, LifeBegan, PodChanged
from podkeeper.testing.sim.truth import ContainerLife
from podkeeper.testing.sim.world import World

IN_FLIGHT_SECONDS = 5.0
"""So long may a call that was begun before the request to end take to reach the runtime: the agent may be dawdling."""

ALWAYS, ON_FAILURE, NEVER = "Always", "OnFailure", "Never"

_STARTS = ("run_sandbox", "create_container", "start_container")


class Starts:
    """Judges every start."""

    def __init__(self, world: World, pods: Pods, makings: Makings) -> None:
        self._world = world
        self._pods = pods
        self._in_flight: set[PodUID] = set()  # whose one call that was under way has been seen
        self._makings = makings
        self._stopped: dict[PodUID, set[str]] = {}  # containers that the agent asked to end
        self._life = 1  # the number of the agent's present life
        world.bus.subscribe(Called, self._hear_call)
        world.bus.subscribe(ContainerChanged, self._see_container)
        world.bus.subscribe(PodChanged, self._see_pod)
        world.bus.subscribe(LifeBegan, self._begin_life)

    def _begin_life(self, begun: LifeBegan) -> None:
        self._in_flight.clear()
        self._life = begun.life

    # I12: what is asked for.

    def _hear_call(self, call: Called) -> None:
        if call.room != "runtime":
            return
        known = self._pods.get(call.uid)
        if call.operation in _STARTS:
            self._judge_call(call, known)
        elif call.operation == "stop_container":
            self._stopped.setdefault(call.uid, set()).add(str(call.given[0]))
        self._note_whether_acted_upon(call, known)

    def _judge_call(self, call: Called, known: KnownPod | None) -> None:
        self._world.checked("I12")
        what = f"{call.operation} {call.subject}".strip()
        if known is not None and known.end is not None:
            end = known.end
            if end.acted_upon if end.life == call.life else end.noted:
                self._world.broken("I12", call.uid, f"{what} although {end.why} in life {end.life} of the agent")
                return
        agent = self._world.agent
        if agent is None:
            return
        state = agent.workers.state(call.uid)
        if not is_termination_requested(state):
            self._in_flight.discard(call.uid)
            return
        if isinstance(state, TerminationRequested) and call.uid not in self._in_flight:
            # The pass is cancelled, but a call it had begun may only now reach the runtime: one, and not much later.
            self._in_flight.add(call.uid)
            explanation = agent.explain(call.uid)
            since = explanation.since
            if since is None or (explanation.asked_at - since).total_seconds() <= IN_FLIGHT_SECONDS:
                return
        self._world.broken("I12", call.uid, f"{what} although the pod's worker knows that it must end")

    def _note_whether_acted_upon(self, call: Called, known: KnownPod | None) -> None:
        """From the first call that shows that the agent has taken in a pod's end, there is no excuse in this life."""
        if known is None or known.end is None or known.end.acted_upon or self._world.agent is None:
            return
        if is_termination_requested(self._world.agent.workers.state(call.uid)) and call.operation not in _STARTS:
            known.end.acted_upon = True

    def _see_pod(self, change: PodChanged) -> None:
        if change.new is not None or change.old is None:
            return
        uid = PodUID(change.old.metadata.uid or "")
        self._in_flight.discard(uid)
        known = self._pods.get(uid)
        if change.by and known is not None and known.end is not None:
            known.end.acted_upon = True

    # I7: what starts.

    def _see_container(self, change: ContainerChanged) -> None:
        if change.happened is RuntimeEventType.STARTED:
            self._judge_start(change.uid, change.record.id)

    def _judge_start(self, uid: PodUID, container_id: str) -> None:
        pod, life = self._makings.pod_of(container_id), self._world.truth.containers[container_id]
        known = self._pods.get(uid)
        begun = 0.0 if known is None else known.begun
        runs = [each for each in self._world.truth.attempts(uid, life.name) if each is not life]
        runs = [each for each in runs if each.started is not None and each.started >= begun]
        last = last_run(runs)
        if pod is None or last is None or last.ended is None:
            return  # its first run; or its last one is not over, which is I3's business
        self._world.checked("I7")
        why = self._against(pod, known, life, last, runs)
        if why:
            self._world.broken("I7", uid, f"{life.name} runs again (attempt {life.attempt}): {why}")

    def _left_no_trace(self, known: KnownPod | None, name: str, runs: list[ContainerLife]) -> bool:
        """Whether neither journal nor runtime nor API shows this agent that an ephemeral container of that name ran."""
        if known is None or known.end is None or known.end.noted or known.end.life == self._life:
            return False
        in_api = self._world.api.peek(Pod, known.pod.metadata.name or "", known.pod.metadata.namespace or "")
        shown = () if in_api is None else in_api.status.ephemeral_container_statuses or ()
        return all(run.removed is not None for run in runs) and all(each.name != name for each in shown)

    def _against(
        self, pod: Pod, known: KnownPod | None, life: ContainerLife, last: ContainerLife, runs: list[ContainerLife]
    ) -> str:
        """Why a container may not run again; empty: it may."""
        spec = pod.spec
        once = spec.restart_policy == NEVER
        if any(each.restart_policy_rules for each in (*(spec.init_containers or ()), *spec.containers)):
            return ""  # what such rules allow is not judged here
        if once and last.sandbox_id != life.sandbox_id:
            return "a pod that runs once had its run in another sandbox"
        if any(each.name == life.name for each in spec.ephemeral_containers or ()):
            return "" if self._left_no_trace(known, life.name, runs) else "an ephemeral container runs once"
        stopped = last.id in self._stopped.get(life.uid, ())
        for container in spec.init_containers or ():
            if container.name == life.name:
                return (
                    ""
                    if container.restart_policy == ALWAYS
                    else _against_init(pod, container, life, last, runs, stopped)
                )
        for container in spec.containers:
            if container.name == life.name:
                return _against_app(pod, container, life, last, stopped)
        return f"the pod has no container {life.name}"


# What the policies mean is said here once more: judged by the engine's own rules, a mistake in them would be right.


def _policy_of(container: Container, spec: PodSpec) -> str:
    return container.restart_policy or spec.restart_policy or ALWAYS


def _restarts_after(container: Container, spec: PodSpec, exit_code: int) -> bool:
    policy = _policy_of(container, spec)
    return policy == ALWAYS or (policy == ON_FAILURE and exit_code != 0)


def _against_init(
    pod: Pod, container: Container, life: ContainerLife, last: ContainerLife, runs: list[ContainerLife], stopped: bool
) -> str:
    """Init containers succeed once for each sandbox."""
    for run in runs:
        if run.sandbox_id == life.sandbox_id and run.exit_code == 0 and run.reason != "OOMKilled":
            return f"it succeeded in this sandbox ({run.id})"
    if last.exit_code == 0 or (stopped and _policy_of(container, pod.spec) != NEVER):
        return ""
    if _restarts_after(container, pod.spec, last.exit_code or 0):
        return ""
    return f"its policy forbids it after exit code {last.exit_code} ({last.id})"


def _against_app(pod: Pod, container: Container, life: ContainerLife, last: ContainerLife, stopped: bool) -> str:
    if _restarts_after(container, pod.spec, last.exit_code or 0):
        return ""
    # What the agent stopped itself has not finished, whatever code it left with: a probe failed (then the policy for
    # failures counts), or its spec changed (then even what runs once is run anew).
    if stopped and (_policy_of(container, pod.spec) != NEVER or last.spec_hash != life.spec_hash):
        return ""
    return f"its policy forbids it after exit code {last.exit_code} ({last.id})"
