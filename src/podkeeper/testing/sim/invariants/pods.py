"""Whom the agent was told to run, and when it learned that a pod is over: what the invariants know besides the truth.

A pod is known by the UID its containers carry. A static pod whose source names it again after having dropped it begins
a new *term*: all that was over begins anew. A pod of the API has one term; UIDs of the API are never used twice.

That a pod is over is known from the moment a source tells its deletion, its removal or its terminal phase, or the agent
publishes one. It stays over for all lives of the agent that follow: what one of them saw, the next one must not undo.
"""

from dataclasses import dataclass, field

from podkeeper.engine.notebook import PATIENCE_SECONDS
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import API_SOURCE, Op, PodUID
from podkeeper.rules.mirror import full_name, is_mirror_pod, shown_uid
from podkeeper.rules.phase import is_terminal
from podkeeper.testing.sim.records import PodChanged, Told
from podkeeper.testing.sim.world import World


@dataclass(slots=True, eq=False)
class End:
    """How it became known that a pod is over."""

    why: str
    life: int  # of the agent that learned it
    noted: bool  # it could be written down; what a full or slow disk refuses, the next life cannot know
    acted_upon: bool = False  # the agent is known to have taken it in


@dataclass(slots=True, eq=False)
class KnownPod:
    """A pod that a source told of."""

    uid: PodUID
    full_name: str
    static: bool
    begun: float  # its present term
    pod: Pod  # as told last
    named: bool = True  # its source still names it
    dropped: bool = False  # there was a time when it did not
    end: End | None = None


@dataclass(slots=True, eq=False)
class _Source:
    """What a source named last, in the order it did."""

    uids: dict[PodUID, None] = field(default_factory=dict)


class Pods:
    """All pods the agent was ever told of. Mirrors are not pods: they are what the API shows of static ones."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[PodUID, KnownPod] = {}
        self._static: dict[str, list[PodUID]] = {}  # by full name, in the order they came
        self._sources: dict[str, _Source] = {}
        world.bus.subscribe(Told, self._hear)
        world.bus.subscribe(PodChanged, self._see)

    def get(self, uid: PodUID) -> KnownPod | None:
        """What is known of a pod."""
        return self._known.get(uid)

    def static_namesakes(self, name: str) -> list[PodUID]:
        """All static pods there ever were of a full name."""
        return self._static.get(name, [])

    def shown_by(self, api_pod: Pod) -> list[PodUID]:
        """The pods whose containers an object of the API may show.

        A mirror is found by its name: until it is replaced it may show its pod's successor.
        """
        if is_mirror_pod(api_pod):
            return self.static_namesakes(full_name(api_pod))
        return [PodUID(api_pod.metadata.uid or "")]

    # What sources tell.

    def _hear(self, told: Told) -> None:
        update = told.update
        source = self._sources.setdefault(update.source, _Source())
        pods = [pod for pod in update.pods if not is_mirror_pod(pod)]
        if update.op in (Op.REMOVE, Op.SET):
            uids = {PodUID(pod.metadata.uid or ""): None for pod in pods}
            dropped = uids if update.op is Op.REMOVE else [uid for uid in source.uids if uid not in uids]
            for uid in list(dropped):
                source.uids.pop(uid, None)
                self._dropped(uid, told.life)
            if update.op is Op.REMOVE:
                return
        for pod in pods:
            source.uids[PodUID(pod.metadata.uid or "")] = None
            self._named(pod, told, static=update.source != API_SOURCE)

    def _named(self, pod: Pod, told: Told, *, static: bool) -> None:
        uid = PodUID(pod.metadata.uid or "")
        known = self._known.get(uid)
        if known is None:
            known = self._known[uid] = KnownPod(uid, full_name(pod), static, told.at, pod)
            if static:
                self._static.setdefault(known.full_name, []).append(uid)
        elif static and not known.named:
            known.begun, known.end = told.at, None
        known.pod, known.named = pod, True
        if static:
            return
        if pod.metadata.deletion_timestamp is not None:
            self._over(known, "its deletion was told", told.life)
        elif is_terminal(pod.status.phase):
            self._over(known, f"it was told to have {pod.status.phase}", told.life)

    def _dropped(self, uid: PodUID, life: int) -> None:
        known = self._known.get(uid)
        if known is None:
            return
        known.named, known.dropped = False, True
        # A list that is too old lacks pods that are in the API: who heard it has heard no truth.
        if known.static or not self._is_in_api(known):
            self._over(known, "its source named it no more", life)

    def _is_in_api(self, known: KnownPod) -> bool:
        meta = known.pod.metadata
        found = self._world.api.peek(Pod, meta.name or "", meta.namespace or "")
        return found is not None and found.metadata.uid == known.uid and found.metadata.deletion_timestamp is None

    # What the agent publishes.

    def _see(self, change: PodChanged) -> None:
        if not change.by or change.new is None or not is_terminal(change.new.status.phase):
            return
        known = self._known.get(shown_uid(change.new))
        if known is not None and known.named:
            self._over(known, f"it was published as {change.new.status.phase}", change.by)
            if known.end is not None:
                known.end.acted_upon = True

    def _over(self, known: KnownPod, why: str, life: int) -> None:
        if known.end is None:
            # A note that the disk does not take in time is not waited for.
            journal = self._world.journal
            noted = not journal.disk_full and journal.sync_seconds < PATIENCE_SECONDS
            known.end = End(why, life, noted=noted)


NO_ROOM = ("OutOf", "UnexpectedAdmissionError")
"""How the reasons of pods begin for which there is no room; the second: nobody may be preempted for it."""


def turned_away(world: World, uid: PodUID) -> bool:
    """Whether there is no room for a pod, not even by force.

    Only the agent knows: a static pod has no mirror then, and another one may still run, from a former life in which
    there was room.
    """
    status = status_in_agent(world, uid)
    return is_terminal(status.phase) and (status.reason or "").startswith(NO_ROOM)


def status_in_agent(world: World, uid: PodUID) -> PodStatus:
    """The agent's status of a pod. Empty if no agent runs or it has none."""
    status = None if world.agent is None else world.agent.statuses.get_pod_status(uid)
    return PodStatus() if status is None else status
