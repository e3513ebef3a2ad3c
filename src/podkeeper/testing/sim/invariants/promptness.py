"""I8 and I14: who is not disturbed is not late, whatever goes wrong with others; and static pods need no API.

Five promises, each with the time it may take while nothing is wrong that concerns it:

* a pod that a living agent is told of has its first container begun within `START_SECONDS`;
* the successor of a changed static pod likewise, from the end of the last container of its predecessor;
* a container that ends and must run again does so within `AGAIN_SECONDS` (after its first end, or after so long a run
  that its past is forgotten: those cost no back-off); where only events were lost, once the slow relist has found out;
* a running container whose image is changed is replaced within `LEAVE_SECONDS` after its grace;
* a deleted pod is out of the API within `LEAVE_SECONDS` after its grace.

Disturbed is who has trouble of his own, or the node has trouble of a kind that matters to the promise. A call that
hangs for one pod is no excuse for another one (I8), nor is any trouble with the API for a static pod (I14). The calls
of eight pods that hang at once take all the slots for starts until their leases end: then nobody is blamed.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.messages import API_SOURCE, Op, PodUID
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.rules.mirror import full_name, is_mirror_pod
from podkeeper.rules.phase import is_terminal
from podkeeper.rules.preempt import is_critical_pod
from podkeeper.testing.sim.invariants.pods import turned_away
from podkeeper.testing.sim.pods import all_containers
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.records import Answered, Called, ContainerChanged, LifeBegan, PodChanged, Told
from podkeeper.testing.sim.truth import ContainerLife
from podkeeper.testing.sim.world import NODE, World

START_SECONDS = 5.0
AGAIN_SECONDS = 3.0
LEAVE_SECONDS = 10.0  # three stops of two seconds at least, one after the other, and the API's part
FORGOTTEN_SECONDS = 610.0  # twice the longest pause between two tries, and a bit
RELIST_SECONDS = 75.0  # the slow relist finds what no event told

SETTLED_SECONDS = 10.0  # an agent that is younger has not heard all its sources
API_AFTERMATH_SECONDS = 65.0  # the longest pause of a source that could not reach the API
AFTERMATH_SECONDS = 35.0  # the longest pause of others
ALL_SLOTS_HANG = 8

API = frozenset({"api-down", "api-errors", "api-conflicts", "api-lost-answers", "stale-lists"}) | frozenset(
    {"watch-gone", "watch-stale", "watch-broken"}
)
OTHERS = frozenset(FAULT_RATES) - API
EVENTS = frozenset({"lost-events", "repeated-events", "late-events", "broken-events"})
ELSEWHERE = frozenset({"disk-full", "clock-jump", "unreadable-sources"})
"""What delays nothing that is promised here: a note that waits for the disk is given up after a second."""
GROUND = frozenset({"volume-trouble", "cgroup-trouble"})


class Promptness:
    """Looks, when a promised time is over, whether the promise was kept."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._born = 0.0  # when the agent that lives now began
        self._named: dict[str, dict[PodUID, Pod]] = {}  # by source of static pods: what it told last
        self._heirs: dict[str, PodUID] = {}  # by full name: static pods that wait for their predecessor's end
        self._names: dict[PodUID, str] = {}  # the full names of static pods
        self._stopping: Counter[PodUID] = Counter()  # calls under way
        self._stopped: dict[PodUID, float] = {}  # when the last of them ended
        world.bus.subscribe(LifeBegan, self._see_life)
        world.bus.subscribe(PodChanged, self._see_pod)
        world.bus.subscribe(Told, self._see_told)
        world.bus.subscribe(ContainerChanged, self._see_container)
        world.bus.subscribe(Called, self._see_call)
        world.bus.subscribe(Answered, self._see_answer)

    def _see_life(self, began: LifeBegan) -> None:
        self._born = began.at

    # Starts and ends of pods of the API.

    def _see_pod(self, change: PodChanged) -> None:
        new = change.new
        if new is None or is_mirror_pod(new) or new.spec.node_name != NODE:
            return
        if change.old is None:
            if new.metadata.deletion_timestamp is None and self._has_image(new):
                self._promise(START_SECONDS, lambda since: self._judge_start(new, since, ELSEWHERE | EVENTS))
        elif change.old.metadata.deletion_timestamp is None and new.metadata.deletion_timestamp is not None:
            within = (new.metadata.deletion_grace_period_seconds or 0) + LEAVE_SECONDS
            self._promise(within, lambda since: self._judge_leaving(new, since))
        elif change.old.spec is not new.spec and new.metadata.deletion_timestamp is None:
            self._see_change(change.old, new)

    def _judge_start(self, pod: Pod, since: float, but: frozenset[str], *others: PodUID) -> None:
        """Whether a pod has begun; `but` are troubles that are no excuse, `others` are pods whose trouble is one."""
        uid = _uid(pod)
        if not self._can_start(pod) or any(self._excuse(since, each, but) for each in (uid, *others)):
            return
        invariant = self._invariant(since, uid)
        self._world.checked(invariant)
        if not any(life.started is not None or life.ended is not None for life in self._world.truth.of_pod(uid)):
            took = self._world.now() - since
            text = f"{full_name(pod)} has not begun after {took:.0f} s, and nothing hinders it"
            self._world.broken(invariant, uid, text)

    def _can_start(self, pod: Pod) -> bool:
        """Whether a pod is still wanted, was let in, and has an image to start with."""
        uid, agent = _uid(pod), self._world.agent
        if agent is None or is_critical_pod(pod) or uid in agent.preemption.held():
            return False  # others may have to be killed for it first
        if uid in self._names:
            wanted = any(uid in named for named in self._named.values()) and not turned_away(self._world, uid)
        else:
            shown = self._world.api.peek(Pod, pod.metadata.name or "", pod.metadata.namespace or "")
            wanted = shown is not None and shown.metadata.uid == uid and not _is_over(shown)
        return wanted and self._has_image(pod)

    def _has_image(self, pod: Pod) -> bool:
        return all_containers(pod)[0].image not in self._world.runtime.missing_images

    def _judge_leaving(self, pod: Pod, since: float) -> None:
        uid, meta = _uid(pod), pod.metadata
        if meta.finalizers or self._excuse(since, uid, ELSEWHERE | EVENTS):
            return
        self._world.checked("I8")
        shown = self._world.api.peek(Pod, meta.name or "", meta.namespace or "")
        if shown is not None and shown.metadata.uid == uid:
            took = self._world.now() - since
            text = f"{full_name(pod)} was deleted {took:.0f} s ago and is still there, though nothing hinders it"
            self._world.broken("I8", uid, text)

    def _see_change(self, old: Pod, new: Pod) -> None:
        """A pod is to be another one: what runs of an image that it no longer wants is replaced."""
        uid, grace = _uid(new), new.spec.termination_grace_period_seconds or 0
        running = {life.name for life in self._world.truth.running(uid)}
        for before, after in zip(old.spec.containers, new.spec.containers, strict=False):
            if before.name == after.name and before.image != after.image and after.name in running:
                # A pass that is under way may have one to stop, and start, that is not wanted any more either.
                self._promise(2 * grace + LEAVE_SECONDS, partial(self._judge_change, new, after))

    def _judge_change(self, pod: Pod, wanted: Container, since: float) -> None:
        uid, image = _uid(pod), wanted.image or ""
        now_wanted = self._wanted(uid)
        if now_wanted is None or now_wanted.spec != pod.spec or image in self._world.runtime.missing_images:
            return
        agent = self._world.agent
        if agent is None or agent.workers.is_pod_termination_requested(uid):
            return
        if self._excuse(since, uid, ELSEWHERE | EVENTS):
            return
        self._world.checked("I8")
        for life in self._world.truth.running(uid):
            if life.name == wanted.name and life.image != image:
                took = self._world.now() - since
                text = f"{life.name} was to run {image} {took:.0f} s ago and still runs {life.image}"
                self._world.broken("I8", uid, text)

    # Static pods.

    def _see_told(self, told: Told) -> None:
        update = told.update
        if update.source == API_SOURCE or update.op is not Op.SET:
            return
        before = self._named.get(update.source, {})
        self._named[update.source] = now = {_uid(pod): pod for pod in update.pods}
        for uid, pod in now.items():
            if uid not in before:
                self._names[uid] = full_name(pod)
                self._see_static(pod, uid)

    def _see_static(self, pod: Pod, uid: PodUID) -> None:
        """A static pod is told of: it starts now, or when the last of its name has ended."""
        name, truth = full_name(pod), self._world.truth
        if truth.of_pod(uid):
            return  # named again, after it had been dropped: first it has to end
        namesakes = [other for other, its in self._names.items() if its == name and other != uid]
        if any(truth.running(other) for other in namesakes):
            self._heirs[name] = uid
        else:
            self._heirs.pop(name, None)
            but = ELSEWHERE | EVENTS | API
            self._promise(START_SECONDS, lambda since: self._judge_start(pod, since, but, *namesakes))

    def _see_end(self, uid: PodUID) -> None:
        """Something of a pod has ended: if that was the last of it, its heir's time begins."""
        name = self._names.get(uid)
        heir = None if name is None else self._heirs.get(name)
        if name is None or heir is None or heir == uid or self._world.truth.running(uid):
            return
        pod = next((named[heir] for named in self._named.values() if heir in named), None)
        if pod is not None:
            but = ELSEWHERE | EVENTS | API
            self._promise(START_SECONDS, lambda since: self._judge_heir(pod, since, but, uid))

    def _judge_heir(self, pod: Pod, since: float, but: frozenset[str], predecessor: PodUID) -> None:
        if not self._world.truth.running(predecessor):
            self._judge_start(pod, since, but, predecessor)

    # Containers that end.

    def _see_container(self, change: ContainerChanged) -> None:
        if change.happened is not RuntimeEventType.STOPPED:
            return
        self._see_end(change.uid)
        pod = self._wanted(change.uid)
        lives = self._world.truth.attempts(change.uid, change.record.name)
        life = lives[-1]
        if pod is None or not (len(lives) == 1 or _ran_long(life)) or not _runs_again(pod, life):
            return
        self._promise(AGAIN_SECONDS, lambda since: self._judge_again(life, since, ELSEWHERE | GROUND | API))
        patience = RELIST_SECONDS + AGAIN_SECONDS
        self._promise(patience, lambda since: self._judge_again(life, since, ELSEWHERE | GROUND | API | EVENTS))

    def _judge_again(self, life: ContainerLife, since: float, but: frozenset[str]) -> None:
        uid, truth = life.uid, self._world.truth
        pod, sandbox = self._wanted(uid), truth.sandboxes.get(life.sandbox_id)
        if pod is None or not _runs_again(pod, life) or sandbox is None or sandbox.stopped is not None:
            return
        if self._world.agent is None or self._world.agent.workers.is_pod_termination_requested(uid):
            return  # it was evicted, preempted, or has had its time: only the agent knows that yet
        settled = self._born + SETTLED_SECONDS
        if self._world.troubles.lasted(settled, since - AFTERMATH_SECONDS, uid, GROUND):
            return  # an agent that started in such trouble has not prepared the pod's cgroup and volumes yet
        # A pass that has another container of the pod to stop does that first.
        if self._stopping[uid] or self._stopped.get(uid, 0.0) > since + 1.0 or self._excuse(since, uid, but):
            return
        invariant = self._invariant(since, uid)
        self._world.checked(invariant)
        if truth.attempts(uid, life.name)[-1] is life:
            took = self._world.now() - since
            text = f"{life.name} ended {took:.0f} s ago, must run again and does not, though nothing hinders it"
            self._world.broken(invariant, uid, text)

    def _wanted(self, uid: PodUID) -> Pod | None:
        """A pod that is to run, as its source has it now."""
        for named in self._named.values():
            if uid in named:
                return named[uid]
        known = self._world.agent.manager.pod_by_uid(uid) if self._world.agent is not None else None
        if known is None or uid in self._names:
            return None
        shown = self._world.api.peek(Pod, known.metadata.name or "", known.metadata.namespace or "")
        return None if shown is None or shown.metadata.uid != uid or _is_over(shown) else shown

    def _see_call(self, call: Called) -> None:
        if call.operation == "stop_container":
            self._stopping[call.uid] += 1

    def _see_answer(self, answer: Answered) -> None:
        if answer.call.operation == "stop_container":
            self._stopping[answer.call.uid] -= 1
            self._stopped[answer.call.uid] = answer.at

    # What all have in common.

    def _promise(self, seconds: float, judge: Callable[[float], None]) -> None:
        """Judge after some time what is promised from now on, if there is an agent who could keep it."""
        since = self._world.now()
        if self._world.is_up and since - self._born >= SETTLED_SECONDS:
            self._world.loop.call_later(seconds, judge, since)

    def _excuse(self, since: float, uid: PodUID, but: frozenset[str]) -> bool:
        """Whether something could have kept a promise about a pod from being kept; what is in `but` could not."""
        troubles = self._world.troubles
        if not self._world.is_up or self._born > since or troubles.touched(since - AFTERMATH_SECONDS, uid, but):
            return True
        if troubles.touched(since - API_AFTERMATH_SECONDS, uid, but | OTHERS):
            return True
        return len([each for each in troubles.active() if each.kind in ("hung-calls", "slow-calls")]) >= ALL_SLOTS_HANG

    def _invariant(self, since: float, uid: PodUID) -> str:
        """What it would break to be late: a static pod's own promise while the API was not well, or everybody's."""
        away = uid in self._names and self._world.troubles.touched(since, uid, OTHERS)
        return "I14" if away else "I8"


def _is_over(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None or is_terminal(pod.status.phase)


def _ran_long(life: ContainerLife) -> bool:
    """Whether a container ran so long that nothing is held against it any more."""
    return life.started is not None and life.ended is not None and life.ended - life.started > FORGOTTEN_SECONDS


def _runs_again(pod: Pod, life: ContainerLife) -> bool:
    """Whether a container that ended must run again, at once: where that is beyond doubt."""
    found: Container | None = next((each for each in pod.spec.containers if each.name == life.name), None)
    if found is None or life.started is None or found.restart_policy is not None:
        return False
    if any(each.lifecycle is not None and each.lifecycle.post_start is not None for each in all_containers(pod)):
        return False  # a hook that takes its time holds up the whole pod
    if any(each.restart_policy == "Always" for each in pod.spec.init_containers or ()):
        return False  # as in the reference, a sidecar that waits for its next try holds up who has to begin again
    policy = pod.spec.restart_policy or "Always"
    return policy == "Always" or (policy == "OnFailure" and life.exit_code != 0)


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")
