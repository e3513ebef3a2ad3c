"""I7, the Ready bit: what the agent says about readiness is what could be seen, and its death changes none of it.

Each time the agent changes a pod's Ready condition, or the `ready` or `started` flag of a container, there must be a
reason for it, in truth, since it last said otherwise: to say no, that something was not ready (a container ended, a
probe failed as often as it takes); to say yes, that all was. The book of probes knows (`probe_book`). News travel, so
a reason may be as much older than the word it contradicts as a status takes to be told; and news of one container may
take longer than that of another, so that a pod seems ready whose containers were all ready, but never all at once.

Nobody is blamed for two things. What the disk took no note of, and old lists do not show (a static pod's status is in
none), a new agent cannot know. And of a pod that is being deleted or evicted single containers are not looked at, nor
probed, until all have ended, as in the reference: meanwhile those that have may still be called ready, and those whose
startup probe nobody asks any more are called started.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import CONFIG_MIRROR_ANNOTATION, PodUID
from podkeeper.model.runtime import bare_container_id
from podkeeper.rules.mirror import is_mirror_pod
from podkeeper.rules.phase import is_terminal
from podkeeper.rules.status.conditions import POD_COMPLETED, POD_FAILED
from podkeeper.testing.sim.invariants.causes import is_evicted
from podkeeper.testing.sim.invariants.pods import turned_away
from podkeeper.testing.sim.invariants.probe_book import Flag, PodProbes, ProbeBook
from podkeeper.testing.sim.pods import lasting_containers
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.records import LifeBegan, PodChanged
from podkeeper.testing.sim.world import World

NEWS_SECONDS = 5.0  # from the moment something is so to the moment it is told, when nothing is wrong
TROUBLED_NEWS_SECONDS = 150.0  # otherwise: a call may hang until its deadline


@dataclass(frozen=True, slots=True)
class Bit:
    """Something that is said of a container, or (without one) of its pod."""

    word: str  # "ready" or "started"
    container: str = ""

    def __str__(self) -> str:
        return f"container {self.container}" if self.container else "the pod"


READY = Bit("ready")


@dataclass(frozen=True, slots=True)
class Said:
    """What is said, and of which container: of the next one nothing was said yet."""

    value: bool = False
    id: str = ""


UNSAID = Said()


@dataclass(slots=True, eq=False)
class _Shown:
    """What the API shows of one object, and since when."""

    bits: dict[Bit, Said] = field(default_factory=dict)
    since: dict[Bit, float] = field(default_factory=dict)


class Readiness:
    """Judges every change of a Ready bit that the agent makes."""

    def __init__(self, world: World, book: ProbeBook) -> None:
        self._world = world
        self._book = book
        self._shown: dict[str, _Shown] = {}  # by the UID of the API's object
        self._reborn = 0.0  # when the agent that lives now began
        world.bus.subscribe(PodChanged, self._see)
        world.bus.subscribe(LifeBegan, self._see_life)

    def _see_life(self, began: LifeBegan) -> None:
        self._reborn = began.at

    def _see(self, change: PodChanged) -> None:
        new = change.new
        if new is None:
            if change.old is not None:
                self._shown.pop(change.old.metadata.uid or "", None)
            return
        shown = self._shown.setdefault(new.metadata.uid or "", _Shown())
        before, shown.bits = shown.bits, _bits_of(new)
        for bit, said in shown.bits.items():
            former = before.get(bit, UNSAID)
            if said.value is not (former.value and former.id == said.id):
                if change.by and not new.spec.readiness_gates:
                    self._judge(new, bit, shown.bits, shown.since.get(bit, 0.0))
                shown.since[bit] = change.at

    def _judge(self, pod: Pod, bit: Bit, bits: Mapping[Bit, Said], since: float) -> None:
        """Look for what makes it right to say this, which has not been said since a moment."""
        said = bits[bit]
        if pod.metadata.deletion_timestamp is not None or (not said.value and _is_over(pod)):
            return
        uid = PodUID((pod.metadata.annotations or {}).get(CONFIG_MIRROR_ANNOTATION) or pod.metadata.uid or "")
        if is_evicted(self._world, uid):
            return
        if not said.value and turned_away(self._world, uid):
            return  # another one was there first when the agent began anew: it is over, as soon as it has ended
        known = self._book.get(uid)
        self._world.checked("I7")
        if known is not None:
            # Whoever said otherwise without need, and was not to blame, may say the truth again, even one just past.
            if self._was_so(known, bit, said, since) or (bit == READY and self._could_all_seem_ready(uid, known, bits)):
                return
            troubled = self._world.troubles.touched(since - TROUBLED_NEWS_SECONDS, uid)
            since -= TROUBLED_NEWS_SECONDS if troubled else NEWS_SECONDS
            if self._is_right(known, bit, said, since) or (not said.value and self._may_forget(known, bit, pod, since)):
                return
        if said.value:
            text = f"{bit} is said to be {bit.word}, which it has never been since {since:.3f} s"
        else:
            text = f"{bit} is said to be {bit.word} no more, but nothing of it has ended or failed since {since:.3f} s"
        self._world.broken("I7", uid, text)

    def _is_right(self, known: PodProbes, bit: Bit, said: Said, since: float) -> bool:
        """Whether it is so, or became so for a while since a moment."""
        found = known.containers.get(bit.container)
        if found is not None and found.id == said.id:
            since = max(since, found.since)
        flag = _flag(known, bit)
        return flag is not None and flag.is_or_became(said.value, since)

    def _was_so(self, known: PodProbes, bit: Bit, said: Said, since: float) -> bool:
        """Whether it was so at a moment, or at any since; of a container, this very one."""
        found = known.containers.get(bit.container)
        flag = _flag(known, bit)
        return flag is not None and (found is None or found.id == said.id) and flag.was(said.value, since)

    def _could_all_seem_ready(self, uid: PodUID, known: PodProbes, bits: Mapping[Bit, Said]) -> bool:
        """Whether each container is called ready, and was so when news of it could last be had.

        One may end unseen just before the last one becomes ready: each was, though all never were at one moment.
        """
        now = self._world.now()
        troubled = self._world.troubles.touched(now - TROUBLED_NEWS_SECONDS, uid)
        last_seen = now - (TROUBLED_NEWS_SECONDS if troubled else NEWS_SECONDS)
        return bits[READY].value and all(
            bits.get(Bit("ready", name)) == Said(True, each.id) and each.ready.was(True, last_seen)
            for name, each in known.containers.items()
        )

    def _may_forget(self, known: PodProbes, bit: Bit, pod: Pod, since: float) -> bool:
        """Whether the agent that lives now can know nothing of a container."""
        concerned = [each for name, each in known.containers.items() if bit.container in ("", name)]
        lists_are_old = is_mirror_pod(pod) or self._had("stale-lists", since)
        ran_before = any(each.since <= self._reborn for each in concerned)
        return self._had("disk-full", since) and lists_are_old and ran_before

    def _had(self, kind: str, since: float) -> bool:
        return bool(self._world.troubles.touched(since, None, but=FAULT_RATES.keys() - {kind}))


def _flag(known: PodProbes, bit: Bit) -> Flag | None:
    """What is true of that of which a bit tells; None: there is no such container."""
    if not bit.container:
        return known.ready
    found = known.containers.get(bit.container)
    if found is None:
        return None
    return found.ready if bit.word == "ready" else found.started


def _is_over(pod: Pod) -> bool:
    """Whether a pod has come to its end. Its phase waits until nothing of it runs; that it serves no more does not."""
    ends = (POD_FAILED, POD_COMPLETED)
    told = any(each.type == "Ready" and each.reason in ends for each in pod.status.conditions or ())
    return told or is_terminal(pod.status.phase)


def _bits_of(pod: Pod) -> dict[Bit, Said]:
    """All that is said of a pod's readiness, and of the containers that count for it."""
    status = pod.status
    bits = {READY: Said(any(each.type == "Ready" and each.status == "True" for each in status.conditions or ()))}
    counted = {each.name for each in lasting_containers(pod)}
    for each in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        if each.name in counted:
            id_ = bare_container_id(each.container_id or "")
            bits[Bit("ready", each.name)] = Said(bool(each.ready), id_)
            bits[Bit("started", each.name)] = Said(bool(each.started), id_)
    return bits
