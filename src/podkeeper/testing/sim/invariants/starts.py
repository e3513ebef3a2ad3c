"""I12 and a part of I7: no container starts without permission.

I12 is checked when the agent calls the runtime to run a sandbox or to create or start a container. It uses all updates
that this and earlier agent processes received. I7 is checked when a container really starts. The restart policy,
applied to the true results of its former runs, must allow the start, regardless of the agent's records.
"""

from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.rules.worker.predicates import is_termination_requested
from podkeeper.rules.worker.states import TerminationRequested
from podkeeper.testing.sim.ground_truth import ContainerRun
from podkeeper.testing.sim.invariants.created_specs import CreatedSpecs
from podkeeper.testing.sim.invariants.exits import last_run
from podkeeper.testing.sim.invariants.pods import TrackedPod, TrackedPods
from podkeeper.testing.sim.records import AgentStarted, CallStarted, ContainerChanged, PodChanged
from podkeeper.testing.sim.world import World

IN_FLIGHT_SECONDS = 5.0
"""How long a call that started before the termination request may take to reach the runtime: wake-ups may be late."""

ALWAYS, ON_FAILURE, NEVER = "Always", "OnFailure", "Never"

_STARTS = ("run_sandbox", "create_container", "start_container")


class AllowedStarts:
    """Checks every start."""

    def __init__(self, world: World, pods: TrackedPods, created: CreatedSpecs) -> None:
        self._world = world
        self._pods = pods
        self._in_flight: set[PodUID] = set()  # pods whose one late call has arrived
        self._created = created
        self._stopped: dict[PodUID, set[str]] = {}  # containers that the agent stopped
        self._agent = 1  # the number of the current agent process
        world.bus.subscribe(CallStarted, self._on_call_started)
        world.bus.subscribe(ContainerChanged, self._on_container_changed)
        world.bus.subscribe(PodChanged, self._on_pod_changed)
        world.bus.subscribe(AgentStarted, self._on_agent_started)

    def _on_agent_started(self, started: AgentStarted) -> None:
        self._in_flight.clear()
        self._agent = started.agent

    # I12: calls.

    def _on_call_started(self, call: CallStarted) -> None:
        if call.port != "runtime":
            return
        known = self._pods.get(call.uid)
        if call.operation in _STARTS:
            self._check_call(call, known)
        elif call.operation == "stop_container":
            self._stopped.setdefault(call.uid, set()).add(str(call.args[0]))
        self._update_acted_upon(call, known)

    def _check_call(self, call: CallStarted, known: TrackedPod | None) -> None:
        self._world.checked("I12")
        what = f"{call.operation} {call.subject}".strip()
        if known is not None and known.end is not None:
            end = known.end
            if end.acted_upon if end.agent == call.agent else end.stored:
                self._world.violated("I12", call.uid, f"{what} although {end.why} (agent process {end.agent})")
                return
        agent = self._world.agent
        if agent is None:
            return
        state = agent.engine.workers.state(call.uid)
        if not is_termination_requested(state):
            self._in_flight.discard(call.uid)
            return
        if isinstance(state, TerminationRequested) and call.uid not in self._in_flight:
            # The sync is cancelled, but one call that it had started may still reach the runtime a little later.
            self._in_flight.add(call.uid)
            explanation = agent.explain(call.uid)
            since = explanation.since
            if since is None or (explanation.asked_at - since).total_seconds() <= IN_FLIGHT_SECONDS:
                return
        self._world.violated("I12", call.uid, f"{what} although the pod's worker must terminate it")

    def _update_acted_upon(self, call: CallStarted, known: TrackedPod | None) -> None:
        """Record the first call that shows that the agent has received the pod's end.

        After it, no fault is an excuse.
        """
        if known is None or known.end is None or known.end.acted_upon or self._world.agent is None:
            return
        if is_termination_requested(self._world.agent.engine.workers.state(call.uid)) and call.operation not in _STARTS:
            known.end.acted_upon = True

    def _on_pod_changed(self, change: PodChanged) -> None:
        if change.new is not None or change.old is None:
            return
        uid = PodUID(change.old.metadata.uid or "")
        self._in_flight.discard(uid)
        known = self._pods.get(uid)
        if change.by and known is not None and known.end is not None:
            known.end.acted_upon = True

    # I7: starts.

    def _on_container_changed(self, change: ContainerChanged) -> None:
        if change.happened is RuntimeEventType.STARTED:
            self._check_start(change.uid, change.record.id)

    def _check_start(self, uid: PodUID, container_id: str) -> None:
        pod, run = self._created.pod_of(container_id), self._world.truth.containers[container_id]
        known = self._pods.get(uid)
        started = 0.0 if known is None else known.began
        runs = [each for each in self._world.truth.attempts(uid, run.name) if each is not run]
        runs = [each for each in runs if each.started is not None and each.started >= started]
        last = last_run(runs)
        if pod is None or last is None or last.ended is None:
            return  # the first run, or the last one has not ended, which I3 checks
        self._world.checked("I7")
        why = self._forbidden_because(pod, known, run, last, runs)
        if why:
            self._world.violated("I7", uid, f"{run.name} runs again (attempt {run.attempt}): {why}")

    def _left_no_trace(self, known: TrackedPod | None, name: str, runs: list[ContainerRun]) -> bool:
        """Whether neither journal nor runtime nor API shows that an ephemeral container of that name ran."""
        if known is None or known.end is None or known.end.stored or known.end.agent == self._agent:
            return False
        in_api = self._world.api.peek(Pod, known.pod.metadata.name or "", known.pod.metadata.namespace or "")
        shown = () if in_api is None else in_api.status.ephemeral_container_statuses or ()
        return all(former.removed is not None for former in runs) and all(each.name != name for each in shown)

    def _forbidden_because(
        self, pod: Pod, known: TrackedPod | None, run: ContainerRun, last: ContainerRun, runs: list[ContainerRun]
    ) -> str:
        """Return why a container must not run again. Empty: it may."""
        spec = pod.spec
        once = spec.restart_policy == NEVER
        if any(each.restart_policy_rules for each in (*(spec.init_containers or ()), *spec.containers)):
            return ""  # restart policy rules are not checked here
        if once and last.sandbox_id != run.sandbox_id:
            return "the pod has restart policy Never and ran in another sandbox"
        if any(each.name == run.name for each in spec.ephemeral_containers or ()):
            return "" if self._left_no_trace(known, run.name, runs) else "an ephemeral container runs only once"
        stopped = last.id in self._stopped.get(run.uid, ())
        for container in spec.init_containers or ():
            if container.name == run.name:
                return (
                    ""
                    if container.restart_policy == ALWAYS
                    else _init_forbidden_because(pod, container, run, last, runs, stopped)
                )
        for container in spec.containers:
            if container.name == run.name:
                return _app_forbidden_because(pod, container, run, last, stopped)
        return f"the pod has no container {run.name}"


# The policies are written again here, because a check with the engine's own rules would not find a bug in them.


def _policy_of(container: Container, spec: PodSpec) -> str:
    return container.restart_policy or spec.restart_policy or ALWAYS


def _restarts_after(container: Container, spec: PodSpec, exit_code: int) -> bool:
    policy = _policy_of(container, spec)
    return policy == ALWAYS or (policy == ON_FAILURE and exit_code != 0)


def _init_forbidden_because(
    pod: Pod, container: Container, run: ContainerRun, last: ContainerRun, runs: list[ContainerRun], stopped: bool
) -> str:
    """Init containers succeed once in each sandbox."""
    for former in runs:
        if former.sandbox_id == run.sandbox_id and former.exit_code == 0 and former.reason != "OOMKilled":
            return f"it succeeded in this sandbox ({former.id})"
    if last.exit_code == 0 or (stopped and _policy_of(container, pod.spec) != NEVER):
        return ""
    if _restarts_after(container, pod.spec, last.exit_code or 0):
        return ""
    return f"its policy forbids it after exit code {last.exit_code} ({last.id})"


def _app_forbidden_because(pod: Pod, container: Container, run: ContainerRun, last: ContainerRun, stopped: bool) -> str:
    if _restarts_after(container, pod.spec, last.exit_code or 0):
        return ""
    # A container that the agent stopped has not finished, whatever its exit code. Either a probe failed, and the policy
    # for failures applies, or its spec changed, and it runs again even with the policy Never.
    if stopped and (_policy_of(container, pod.spec) != NEVER or last.spec_hash != run.spec_hash):
        return ""
    return f"its policy forbids it after exit code {last.exit_code} ({last.id})"
