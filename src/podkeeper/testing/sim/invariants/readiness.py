"""I7, readiness: it is true, and a restart of the agent does not change it.

The agent publishes the Ready condition of pods, and `ready` and `started` of containers. Each time one of them changes,
the probe tracker (`probe_states`) must have a reason since the last change. The reason for false is a container that
ended or a probe that failed. The reason for true is that all containers were ready. The reason may be older by the time
that a status takes to be published. This time may differ between containers. So a pod may be published as ready
although its containers were never ready all at once.

Two cases are excused. A new agent cannot know a status that the disk did not store and the lists do not show (static
pods are in no list). And as in the kubelet, single containers of a deleted or evicted pod are neither inspected nor
probed until all have ended. Until then, ended containers may stay ready, and a container may count as started without
its startup probe.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import CONFIG_MIRROR_ANNOTATION, PodUID
from podkeeper.model.runtime import bare_container_id
from podkeeper.rules.static.mirror import is_mirror_pod
from podkeeper.rules.status.conditions import POD_COMPLETED, POD_FAILED
from podkeeper.rules.status.phase import is_terminal
from podkeeper.testing.sim.invariants.causes import is_evicted
from podkeeper.testing.sim.invariants.pods import is_rejected
from podkeeper.testing.sim.invariants.probe_states import Flag, PodProbeState, ProbeTracker
from podkeeper.testing.sim.pods import lasting_containers
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.records import AgentStarted, PodChanged
from podkeeper.testing.sim.world import World

DELIVERY_SECONDS = 5.0  # from a change to its publication, without faults
DELIVERY_WITH_FAULTS_SECONDS = 150.0  # a call may hang until its deadline


@dataclass(frozen=True, slots=True)
class ReadinessFlag:
    """A published flag of a container, or (without a container) of the pod."""

    name: str  # "ready" or "started"
    container: str = ""

    def __str__(self) -> str:
        return f"container {self.container}" if self.container else "the pod"


READY = ReadinessFlag("ready")


@dataclass(frozen=True, slots=True)
class FlagValue:
    """A published value, and the container ID to which it belongs."""

    value: bool = False
    id: str = ""


UNSET = FlagValue()


@dataclass(slots=True, eq=False)
class _PublishedFlags:
    """The published flags of one API object, and when they changed."""

    flags: dict[ReadinessFlag, FlagValue] = field(default_factory=dict)
    since: dict[ReadinessFlag, float] = field(default_factory=dict)


class Readiness:
    """Checks every change of readiness that the agent publishes."""

    def __init__(self, world: World, probes: ProbeTracker) -> None:
        self._world = world
        self._probes = probes
        self._published: dict[str, _PublishedFlags] = {}  # by the UID of the API object
        self._agent_started_at = 0.0  # start of the current agent process
        world.bus.subscribe(PodChanged, self._on_pod_changed)
        world.bus.subscribe(AgentStarted, self._on_agent_started)

    def _on_agent_started(self, began: AgentStarted) -> None:
        self._agent_started_at = began.at

    def _on_pod_changed(self, change: PodChanged) -> None:
        new = change.new
        if new is None:
            if change.old is not None:
                self._published.pop(change.old.metadata.uid or "", None)
            return
        flags_shown = self._published.setdefault(new.metadata.uid or "", _PublishedFlags())
        before, flags_shown.flags = flags_shown.flags, _flags_of(new)
        for flag, published in flags_shown.flags.items():
            former = before.get(flag, UNSET)
            if published.value is not (former.value and former.id == published.id):
                if change.by and not new.spec.readiness_gates:
                    self._check(new, flag, flags_shown.flags, flags_shown.since.get(flag, 0.0))
                flags_shown.since[flag] = change.at

    def _check(self, pod: Pod, flag: ReadinessFlag, flags: Mapping[ReadinessFlag, FlagValue], since: float) -> None:
        """Check that there is a reason for a value that differs from the one published since a time."""
        published = flags[flag]
        if pod.metadata.deletion_timestamp is not None or (not published.value and _is_over(pod)):
            return
        uid = PodUID((pod.metadata.annotations or {}).get(CONFIG_MIRROR_ANNOTATION) or pod.metadata.uid or "")
        if is_evicted(self._world, uid):
            return
        if not published.value and is_rejected(self._world, uid):
            return  # a restarted agent rejected it in favour of another pod, so it ends soon
        known = self._probes.get(uid)
        self._world.checked("I7")
        if known is not None:
            # After an excused wrong value, the agent may publish the true one again, even if it has just changed.
            if self._was_true(known, flag, published, since) or (
                flag == READY and self._could_all_seem_ready(uid, known, flags)
            ):
                return
            faulty = self._world.fault_log.any_since(since - DELIVERY_WITH_FAULTS_SECONDS, uid)
            since -= DELIVERY_WITH_FAULTS_SECONDS if faulty else DELIVERY_SECONDS
            if self._is_true(known, flag, published, since) or (
                not published.value and self._may_be_unknown(known, flag, pod, since)
            ):
                return
        if published.value:
            text = f"{flag} is published as {flag.name}, but was not {flag.name} since {since:.3f} s"
        else:
            text = f"{flag} is published as not {flag.name}, but nothing of it has ended or failed since {since:.3f} s"
        self._world.violated("I7", uid, text)

    def _is_true(self, known: PodProbeState, flag: ReadinessFlag, published: FlagValue, since: float) -> bool:
        """Whether the value is true, or became true since a time."""
        found = known.containers.get(flag.container)
        if found is not None and found.id == published.id:
            since = max(since, found.since)
        truth = _true_flag(known, flag)
        return truth is not None and truth.is_or_became(published.value, since)

    def _was_true(self, known: PodProbeState, flag: ReadinessFlag, published: FlagValue, since: float) -> bool:
        """Whether the value is true, or was true at a time or since. For a container: of the same attempt."""
        found = known.containers.get(flag.container)
        truth = _true_flag(known, flag)
        return truth is not None and (found is None or found.id == published.id) and truth.was(published.value, since)

    def _could_all_seem_ready(
        self, uid: PodUID, known: PodProbeState, flags: Mapping[ReadinessFlag, FlagValue]
    ) -> bool:
        """Whether each container is published as ready, and was ready when the agent could last inspect it.

        One container may end just before the last one becomes ready. Then each was ready, but never all at once.
        """
        now = self._world.now()
        faulty = self._world.fault_log.any_since(now - DELIVERY_WITH_FAULTS_SECONDS, uid)
        last_seen = now - (DELIVERY_WITH_FAULTS_SECONDS if faulty else DELIVERY_SECONDS)
        return flags[READY].value and all(
            flags.get(ReadinessFlag("ready", name)) == FlagValue(True, each.id) and each.ready.was(True, last_seen)
            for name, each in known.containers.items()
        )

    def _may_be_unknown(self, known: PodProbeState, flag: ReadinessFlag, pod: Pod, since: float) -> bool:
        """Return whether the current agent process may not have the state of a container."""
        concerned = [each for name, each in known.containers.items() if flag.container in ("", name)]
        lists_are_old = is_mirror_pod(pod) or self._had_fault("stale-lists", since)
        ran_before = any(each.since <= self._agent_started_at for each in concerned)
        return self._had_fault("disk-full", since) and lists_are_old and ran_before

    def _had_fault(self, kind: str, since: float) -> bool:
        return bool(self._world.fault_log.any_since(since, None, ignored=FAULT_RATES.keys() - {kind}))


def _true_flag(known: PodProbeState, flag: ReadinessFlag) -> Flag | None:
    """Return the true value of a flag. None: there is no such container."""
    if not flag.container:
        return known.ready
    found = known.containers.get(flag.container)
    if found is None:
        return None
    return found.ready if flag.name == "ready" else found.started


def _is_over(pod: Pod) -> bool:
    """Whether a pod has ended. Its phase waits until all containers have stopped, its Ready condition does not."""
    ends = (POD_FAILED, POD_COMPLETED)
    published = any(each.type == "Ready" and each.reason in ends for each in pod.status.conditions or ())
    return published or is_terminal(pod.status.phase)


def _flags_of(pod: Pod) -> dict[ReadinessFlag, FlagValue]:
    """Return the published flags of a pod and of the containers that count for its readiness."""
    status = pod.status
    flags = {READY: FlagValue(any(each.type == "Ready" and each.status == "True" for each in status.conditions or ()))}
    counted = {each.name for each in lasting_containers(pod)}
    for each in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        if each.name in counted:
            id_ = bare_container_id(each.container_id or "")
            flags[ReadinessFlag("ready", each.name)] = FlagValue(bool(each.ready), id_)
            flags[ReadinessFlag("started", each.name)] = FlagValue(bool(each.started), id_)
    return flags
