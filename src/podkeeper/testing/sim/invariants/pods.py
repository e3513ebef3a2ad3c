"""All pods that the agent received, and when it was notified of their end.

A pod is identified by the UID of its containers. If a source removes a static pod and adds it again, a new *term* of
the pod begins, as if it were new. A pod of the API has one term, because the API never reuses a UID.

A pod has ended as soon as a source reports its deletion, removal or terminal phase, or the agent publishes a terminal
phase. This holds for all later agent processes, too.
"""

from dataclasses import dataclass, field

from podkeeper.engine.checkpoints import SYNC_TIMEOUT_SECONDS
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import API_SOURCE, Op, PodUID
from podkeeper.rules.static.mirror import full_name, is_mirror_pod, shown_uid
from podkeeper.rules.status.phase import is_terminal
from podkeeper.testing.sim.records import PodChanged, UpdateReceived
from podkeeper.testing.sim.world import World


@dataclass(slots=True, eq=False)
class PodEnd:
    """How the agent was notified that a pod has ended."""

    why: str
    agent: int  # the number of the agent process
    stored: bool  # false if a full or slow disk did not store it, so the next process cannot have it
    acted_upon: bool = False  # a call of the agent shows that it has received the end


@dataclass(slots=True, eq=False)
class TrackedPod:
    """A pod that a source has reported."""

    uid: PodUID
    full_name: str
    static: bool
    began: float  # the start of its current term
    pod: Pod  # as received last
    named: bool = True  # its source reports it
    dropped: bool = False  # its source stopped reporting it at least once
    end: PodEnd | None = None


@dataclass(slots=True, eq=False)
class _SourceState:
    """The pods that a source reported last, in its order."""

    uids: dict[PodUID, None] = field(default_factory=dict)


class TrackedPods:
    """All pods that the agent ever received, without mirror pods."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[PodUID, TrackedPod] = {}
        self._static: dict[str, list[PodUID]] = {}  # by full name, oldest first
        self._sources: dict[str, _SourceState] = {}
        world.bus.subscribe(UpdateReceived, self._on_update_received)
        world.bus.subscribe(PodChanged, self._on_pod_changed)

    def get(self, uid: PodUID) -> TrackedPod | None:
        """Return a pod, if the agent ever received it."""
        return self._known.get(uid)

    def static_namesakes(self, name: str) -> list[PodUID]:
        """Return all static pods that ever had a full name."""
        return self._static.get(name, [])

    def shown_by(self, api_pod: Pod) -> list[PodUID]:
        """Return the pods whose containers an API object may show.

        A mirror pod is looked up by name, because it may show the successor of its pod until it is replaced.
        """
        if is_mirror_pod(api_pod):
            return self.static_namesakes(full_name(api_pod))
        return [PodUID(api_pod.metadata.uid or "")]

    # Updates from sources.

    def _on_update_received(self, received: UpdateReceived) -> None:
        update = received.update
        source = self._sources.setdefault(update.source, _SourceState())
        pods = [pod for pod in update.pods if not is_mirror_pod(pod)]
        if update.op in (Op.REMOVE, Op.SET):
            uids = {PodUID(pod.metadata.uid or ""): None for pod in pods}
            dropped = uids if update.op is Op.REMOVE else [uid for uid in source.uids if uid not in uids]
            for uid in list(dropped):
                source.uids.pop(uid, None)
                self._dropped(uid, received.agent)
            if update.op is Op.REMOVE:
                return
        for pod in pods:
            source.uids[PodUID(pod.metadata.uid or "")] = None
            self._named(pod, received, static=update.source != API_SOURCE)

    def _named(self, pod: Pod, received: UpdateReceived, *, static: bool) -> None:
        uid = PodUID(pod.metadata.uid or "")
        known = self._known.get(uid)
        if known is None:
            known = self._known[uid] = TrackedPod(uid, full_name(pod), static, received.at, pod)
            if static:
                self._static.setdefault(known.full_name, []).append(uid)
        elif static and not known.named:
            known.began, known.end = received.at, None
        known.pod, known.named = pod, True
        if static:
            return
        if pod.metadata.deletion_timestamp is not None:
            self._end(known, "the agent received its deletion", received.agent)
        elif is_terminal(pod.status.phase):
            self._end(known, f"the agent received it as {pod.status.phase}", received.agent)

    def _dropped(self, uid: PodUID, agent: int) -> None:
        known = self._known.get(uid)
        if known is None:
            return
        known.named, known.dropped = False, True
        # An old list lacks pods that are in the API. Such an update does not end them.
        if known.static or not self._is_in_api(known):
            self._end(known, "its source dropped it", agent)

    def _is_in_api(self, known: TrackedPod) -> bool:
        meta = known.pod.metadata
        found = self._world.api.peek(Pod, meta.name or "", meta.namespace or "")
        return found is not None and found.metadata.uid == known.uid and found.metadata.deletion_timestamp is None

    # Statuses that the agent publishes.

    def _on_pod_changed(self, change: PodChanged) -> None:
        if not change.by or change.new is None or not is_terminal(change.new.status.phase):
            return
        known = self._known.get(shown_uid(change.new))
        if known is not None and known.named:
            self._end(known, f"it was published as {change.new.status.phase}", change.by)
            if known.end is not None:
                known.end.acted_upon = True

    def _end(self, known: TrackedPod, why: str, agent: int) -> None:
        if known.end is None:
            # The agent does not wait for a write that the disk does not accept in time.
            journal = self._world.journal
            stored = not journal.disk_full and journal.sync_seconds < SYNC_TIMEOUT_SECONDS
            known.end = PodEnd(why, agent, stored=stored)


NO_ROOM = ("OutOf", "UnexpectedAdmissionError")
"""Prefixes of the reasons of rejected pods. The second one means that no pod can be preempted for it."""


def is_rejected(world: World, uid: PodUID) -> bool:
    """Whether the agent rejected a pod because there is no room for it.

    Only the agent's own status shows this, because a rejected static pod has no mirror pod. A container of the pod may
    still run if an earlier agent process had room for it.
    """
    status = status_in_agent(world, uid)
    return is_terminal(status.phase) and (status.reason or "").startswith(NO_ROOM)


def status_in_agent(world: World, uid: PodUID) -> PodStatus:
    """Return the agent's status of a pod. Empty if no agent runs or it has none."""
    status = None if world.agent is None else world.agent.engine.statuses.get_pod_status(uid)
    return PodStatus() if status is None else status
