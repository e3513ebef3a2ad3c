"""I8 and I14: a fault of one pod delays no other pod; static pods need no API.

Five time limits, which hold while no relevant fault is active:

* The first container of a new pod starts within `START_SECONDS`.
* The same holds for the successor of a changed static pod, from the end of its predecessor's last container.
* A container that must restart does so within `RESTART_SECONDS`. This holds after its first run and after runs so long
  that the backoff is reset. If events were lost, the slow relist comes first.
* A running container whose image changes is replaced within `REMOVAL_SECONDS` after its grace period.
* A deleted pod leaves the API within `REMOVAL_SECONDS` after its grace period.

A fault is relevant if it affects the pod itself, or if it affects the node and its kind matters for the limit. A hung
call of one pod is no excuse for another pod (I8), and a fault of the API is none for a static pod (I14). Hung calls of
eight pods at once occupy all slots for starts until their leases end. Then nothing is checked.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.messages import API_SOURCE, Op, PodUID
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.rules.admission.preempt import is_critical_pod
from podkeeper.rules.static.mirror import full_name, is_mirror_pod
from podkeeper.rules.status.phase import is_terminal
from podkeeper.testing.sim.ground_truth import ContainerRun
from podkeeper.testing.sim.invariants.pods import is_rejected
from podkeeper.testing.sim.pods import all_containers
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.records import (
    AgentStarted,
    CallEnded,
    CallStarted,
    ContainerChanged,
    PodChanged,
    UpdateReceived,
)
from podkeeper.testing.sim.world import NODE, World

START_SECONDS = 5.0
RESTART_SECONDS = 3.0
REMOVAL_SECONDS = 10.0  # three stops of at least two seconds, one after the other, and the API calls
BACKOFF_RESET_SECONDS = 610.0  # twice the longest backoff, and a margin
RELIST_SECONDS = 75.0  # until the slow relist has found changes whose events were lost

SETTLED_SECONDS = 10.0  # a younger agent may not have received an update from all sources
API_AFTERMATH_SECONDS = 65.0  # the longest backoff of a source that could not reach the API
AFTERMATH_SECONDS = 35.0  # the longest backoff of others
# As CallLimits.start_slots.
START_SLOTS = 8

API_FAULTS = frozenset({"api-down", "api-errors", "api-conflicts", "api-lost-answers", "stale-lists"}) | frozenset(
    {"watch-gone", "watch-stale", "watch-broken"}
)
NON_API_FAULTS = frozenset(FAULT_RATES) - API_FAULTS
EVENT_FAULTS = frozenset({"lost-events", "repeated-events", "late-events", "broken-events"})
IRRELEVANT_FAULTS = frozenset({"disk-full", "clock-jump", "unreadable-sources"})
"""Faults that delay nothing here. The agent waits for the disk for only a second."""
HOST_FAULTS = frozenset({"volume-trouble", "cgroup-trouble"})


class Promptness:
    """Checks each time limit when it has expired."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._agent_started_at = 0.0  # start of the current agent process
        self._named: dict[str, dict[PodUID, Pod]] = {}  # by source of static pods: its last update
        self._successors: dict[str, PodUID] = {}  # by full name: static pods that wait for the end of another one
        self._names: dict[PodUID, str] = {}  # the full names of static pods
        self._stopping: Counter[PodUID] = Counter()  # stop calls in flight
        self._stopped: dict[PodUID, float] = {}  # when the last stop call ended
        world.bus.subscribe(AgentStarted, self._on_agent_started)
        world.bus.subscribe(PodChanged, self._on_pod_changed)
        world.bus.subscribe(UpdateReceived, self._on_update_received)
        world.bus.subscribe(ContainerChanged, self._on_container_changed)
        world.bus.subscribe(CallStarted, self._on_call_started)
        world.bus.subscribe(CallEnded, self._on_call_ended)

    def _on_agent_started(self, began: AgentStarted) -> None:
        self._agent_started_at = began.at

    # New, deleted and changed pods of the API.

    def _on_pod_changed(self, change: PodChanged) -> None:
        new = change.new
        if new is None or is_mirror_pod(new) or new.spec.node_name != NODE:
            return
        if change.old is None:
            if new.metadata.deletion_timestamp is None and self._has_image(new):
                self._check_after(
                    START_SECONDS, lambda since: self._check_start(new, since, IRRELEVANT_FAULTS | EVENT_FAULTS)
                )
        elif change.old.metadata.deletion_timestamp is None and new.metadata.deletion_timestamp is not None:
            within = (new.metadata.deletion_grace_period_seconds or 0) + REMOVAL_SECONDS
            self._check_after(within, lambda since: self._check_removal(new, since))
        elif change.old.spec is not new.spec and new.metadata.deletion_timestamp is None:
            self._on_spec_changed(change.old, new)

    def _check_start(self, pod: Pod, since: float, ignored: frozenset[str], *others: PodUID) -> None:
        """Check that a pod has started. Faults in `ignored` are no excuse. Faults of the pods in `others` are one."""
        uid = uid_of(pod)
        if not self._can_start(pod) or any(self._is_excused(since, each, ignored) for each in (uid, *others)):
            return
        invariant = self._invariant(since, uid)
        self._world.checked(invariant)
        if not any(run.started is not None or run.ended is not None for run in self._world.truth.of_pod(uid)):
            took = self._world.now() - since
            text = f"{full_name(pod)} has not started after {took:.0f} s, and nothing prevents it"
            self._world.violated(invariant, uid, text)

    def _can_start(self, pod: Pod) -> bool:
        """Whether a pod is still desired, was admitted, and has an image to start with."""
        uid, agent = uid_of(pod), self._world.agent
        if agent is None or is_critical_pod(pod) or uid in agent.engine.preemption.held():
            return False  # other pods may have to be killed for it first
        if uid in self._names:
            desired = any(uid in named for named in self._named.values()) and not is_rejected(self._world, uid)
        else:
            shown = self._world.api.peek(Pod, pod.metadata.name or "", pod.metadata.namespace or "")
            desired = shown is not None and shown.metadata.uid == uid and not _is_over(shown)
        return desired and self._has_image(pod)

    def _has_image(self, pod: Pod) -> bool:
        return all_containers(pod)[0].image not in self._world.runtime.missing_images

    def _check_removal(self, pod: Pod, since: float) -> None:
        uid, meta = uid_of(pod), pod.metadata
        if meta.finalizers or self._is_excused(since, uid, IRRELEVANT_FAULTS | EVENT_FAULTS):
            return
        self._world.checked("I8")
        shown = self._world.api.peek(Pod, meta.name or "", meta.namespace or "")
        if shown is not None and shown.metadata.uid == uid:
            took = self._world.now() - since
            text = f"{full_name(pod)} was deleted {took:.0f} s ago and still exists, and nothing prevents its removal"
            self._world.violated("I8", uid, text)

    def _on_spec_changed(self, old: Pod, new: Pod) -> None:
        """Check later that running containers with an old image were replaced."""
        uid, grace = uid_of(new), new.spec.termination_grace_period_seconds or 0
        running = {run.name for run in self._world.truth.running(uid)}
        for before, after in zip(old.spec.containers, new.spec.containers, strict=False):
            if before.name == after.name and before.image != after.image and after.name in running:
                # A sync in progress may first have to stop and start another container with an old image.
                self._check_after(2 * grace + REMOVAL_SECONDS, partial(self._check_change, new, after))

    def _check_change(self, pod: Pod, container: Container, since: float) -> None:
        uid, image = uid_of(pod), container.image or ""
        desired = self._desired_pod(uid)
        if desired is None or desired.spec != pod.spec or image in self._world.runtime.missing_images:
            return
        agent = self._world.agent
        if agent is None or agent.engine.workers.is_pod_termination_requested(uid):
            return
        if self._is_excused(since, uid, IRRELEVANT_FAULTS | EVENT_FAULTS):
            return
        self._world.checked("I8")
        for run in self._world.truth.running(uid):
            if run.name == container.name and run.image != image:
                took = self._world.now() - since
                text = f"{run.name} was changed to {image} {took:.0f} s ago and still runs {run.image}"
                self._world.violated("I8", uid, text)

    # Static pods.

    def _on_update_received(self, received: UpdateReceived) -> None:
        update = received.update
        if update.source == API_SOURCE or update.op is not Op.SET:
            return
        before = self._named.get(update.source, {})
        self._named[update.source] = now = {uid_of(pod): pod for pod in update.pods}
        for uid, pod in now.items():
            # A pod that stays in the update has been checked already.
            if uid not in before:
                self._names[uid] = full_name(pod)
                self._on_static_pod(pod, uid)

    def _on_static_pod(self, pod: Pod, uid: PodUID) -> None:
        """Expect the start of a static pod, now or after the last pod with its name has ended."""
        name, truth = full_name(pod), self._world.truth
        if truth.of_pod(uid):
            return  # removed and added again: it must end first
        namesakes = [other for other, its in self._names.items() if its == name and other != uid]
        if any(truth.running(other) for other in namesakes):
            self._successors[name] = uid
        else:
            self._successors.pop(name, None)
            ignored = IRRELEVANT_FAULTS | EVENT_FAULTS | API_FAULTS
            self._check_after(START_SECONDS, lambda since: self._check_start(pod, since, ignored, *namesakes))

    def _on_container_ended(self, uid: PodUID) -> None:
        """Expect the start of the successor, if this was the last running container of a static pod."""
        name = self._names.get(uid)
        successor = None if name is None else self._successors.get(name)
        if name is None or successor is None or successor == uid or self._world.truth.running(uid):
            return
        pod = next((named[successor] for named in self._named.values() if successor in named), None)
        if pod is not None:
            ignored = IRRELEVANT_FAULTS | EVENT_FAULTS | API_FAULTS
            self._check_after(START_SECONDS, lambda since: self._check_successor(pod, since, ignored, uid))

    def _check_successor(self, pod: Pod, since: float, ignored: frozenset[str], predecessor: PodUID) -> None:
        if not self._world.truth.running(predecessor):
            self._check_start(pod, since, ignored, predecessor)

    # Restarts of containers.

    def _on_container_changed(self, change: ContainerChanged) -> None:
        if change.happened is not RuntimeEventType.STOPPED:
            return
        self._on_container_ended(change.uid)
        pod = self._desired_pod(change.uid)
        runs = self._world.truth.attempts(change.uid, change.record.name)
        run = runs[-1]
        if pod is None or not (len(runs) == 1 or _ran_long(run)) or not _must_restart(pod, run):
            return
        self._check_after(
            RESTART_SECONDS, lambda since: self._check_restart(run, since, IRRELEVANT_FAULTS | HOST_FAULTS | API_FAULTS)
        )
        limit = RELIST_SECONDS + RESTART_SECONDS
        self._check_after(
            limit,
            lambda since: self._check_restart(run, since, IRRELEVANT_FAULTS | HOST_FAULTS | API_FAULTS | EVENT_FAULTS),
        )

    def _check_restart(self, run: ContainerRun, since: float, ignored: frozenset[str]) -> None:
        uid, truth = run.uid, self._world.truth
        pod, sandbox = self._desired_pod(uid), truth.sandboxes.get(run.sandbox_id)
        if pod is None or not _must_restart(pod, run) or sandbox is None or sandbox.stopped is not None:
            return
        if self._world.agent is None or self._world.agent.engine.workers.is_pod_termination_requested(uid):
            return  # evicted, preempted or past its deadline, which the API does not show yet
        settled = self._agent_started_at + SETTLED_SECONDS
        if self._world.fault_log.any_during(settled, since - AFTERMATH_SECONDS, uid, HOST_FAULTS):
            return  # an agent that started during such a fault has not prepared the pod's cgroup and volumes yet
        # A sync stops other containers of the pod first.
        if self._stopping[uid] or self._stopped.get(uid, 0.0) > since + 1.0 or self._is_excused(since, uid, ignored):
            return
        invariant = self._invariant(since, uid)
        self._world.checked(invariant)
        if truth.attempts(uid, run.name)[-1] is run:
            took = self._world.now() - since
            text = f"{run.name} ended {took:.0f} s ago, must restart and does not run, and nothing prevents it"
            self._world.violated(invariant, uid, text)

    def _desired_pod(self, uid: PodUID) -> Pod | None:
        """Return a pod that must run, as its source has it now."""
        for named in self._named.values():
            if uid in named:
                return named[uid]
        known = self._world.agent.engine.manager.pod_by_uid(uid) if self._world.agent is not None else None
        if known is None or uid in self._names:
            return None
        shown = self._world.api.peek(Pod, known.metadata.name or "", known.metadata.namespace or "")
        return None if shown is None or shown.metadata.uid != uid or _is_over(shown) else shown

    def _on_call_started(self, call: CallStarted) -> None:
        if call.operation == "stop_container":
            self._stopping[call.uid] += 1

    def _on_call_ended(self, ended: CallEnded) -> None:
        if ended.call.operation == "stop_container":
            self._stopping[ended.call.uid] -= 1
            self._stopped[ended.call.uid] = ended.at

    # Common parts.

    def _check_after(self, seconds: float, check: Callable[[float], None]) -> None:
        """Call `check` after some time, if the agent is up and has settled."""
        since = self._world.now()
        if self._world.is_up and since - self._agent_started_at >= SETTLED_SECONDS:
            self._world.loop.call_later(seconds, check, since)

    def _is_excused(self, since: float, uid: PodUID, ignored: frozenset[str]) -> bool:
        """Whether a fault may have delayed a pod. Kinds in `ignored` are no excuse."""
        faults = self._world.fault_log
        if (
            not self._world.is_up
            or self._agent_started_at > since
            or faults.any_since(since - AFTERMATH_SECONDS, uid, ignored)
        ):
            return True
        if faults.any_since(since - API_AFTERMATH_SECONDS, uid, ignored | NON_API_FAULTS):
            return True
        return len([each for each in faults.active() if each.kind in ("hung-calls", "slow-calls")]) >= START_SLOTS

    def _invariant(self, since: float, uid: PodUID) -> str:
        """Return the invariant that a delay violates: I14 for a static pod while the API had faults, else I8."""
        away = uid in self._names and self._world.fault_log.any_since(since, uid, NON_API_FAULTS)
        return "I14" if away else "I8"


def _is_over(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None or is_terminal(pod.status.phase)


def _ran_long(run: ContainerRun) -> bool:
    """Return whether a container ran long enough to reset its backoff."""
    return run.started is not None and run.ended is not None and run.ended - run.started > BACKOFF_RESET_SECONDS


def _must_restart(pod: Pod, run: ContainerRun) -> bool:
    """Whether a container that has ended must certainly restart at once."""
    found: Container | None = next((each for each in pod.spec.containers if each.name == run.name), None)
    if found is None or run.started is None or found.restart_policy is not None:
        return False
    if any(each.lifecycle is not None and each.lifecycle.post_start is not None for each in all_containers(pod)):
        return False  # a slow hook delays the whole pod
    if any(each.restart_policy == "Always" for each in pod.spec.init_containers or ()):
        return False  # as in the kubelet, a sidecar in backoff delays the restart of other containers
    policy = pod.spec.restart_policy or "Always"
    return policy == "Always" or (policy == "OnFailure" and run.exit_code != 0)
