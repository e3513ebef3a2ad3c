"""I5: ending takes no longer than the grace, and a grace never grows.

Three ways to look at it, each in one life of the agent:

* A pod whose deletion was told with a grace has stopped within that grace and a margin; a shorter grace that is told
  later counts from then, and one that is removed by force has none left. preStop hooks of any kind, waiting sidecars,
  TERM and KILL are all inside. So it is with an eviction, and who asked for that one has his answer by then.
* What a container is given to stop, together with what its preStop hook took, is not more than its grace.
* The moment at which a container is killed, once agreed with the runtime, is never put off.

The last two hold in any trouble, save that a call may reach the runtime late, behind one that knew better. The first
holds for the undisturbed: trouble of the node or the pod excuses.
"""

from dataclasses import dataclass
from math import inf
from typing import cast

from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.messages import API_SOURCE, Op, PodUID
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.rules.container_grace import MIN_STOP_SECONDS
from podkeeper.rules.mirror import is_mirror_pod
from podkeeper.testing.sim.invariants.causes import CALLS, is_evicted
from podkeeper.testing.sim.invariants.pods import Pods
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.records import (
    Asked,
    Called,
    ContainerChanged,
    EvictionBegan,
    EvictionEnded,
    LifeEnded,
    Told,
)
from podkeeper.testing.sim.world import World

MARGIN_SECONDS = 5.0
"""Beside the grace: the two seconds that a stop always gets, and the agent's and the runtime's own time."""

AFTERMATH_SECONDS = 150.0
"""Most trouble is felt longer than it lasts: a hung call meets its deadline only after two minutes."""

ROUNDING_SECONDS = 1.0
"""A begun second of a grace is not charged."""

DAWDLE_SECONDS = 5.0
"""Wake-ups may be up to two seconds late each. So a stop follows its hook later, and updates are handled later."""

NEWS_SECONDS = 5.0
"""So long after a deletion was told, or a shorter grace, a call begun before may still reach the runtime."""


NOT_IN_THE_WAY = (
    "api-down",
    "api-errors",
    "api-conflicts",
    "api-lost-answers",
    "watch-gone",
    "watch-stale",
    "watch-broken",
    "stale-lists",
    "unreadable-sources",
    "disk-full",
    "clock-jump",
)
"""Trouble that is no excuse: who knows of a deletion needs no API, no disk and no wall clock to stop a pod."""

PASSING = (
    *NOT_IN_THE_WAY,
    *("crash", "graceful-restart", "dawdle"),
    *("lost-events", "late-events", "broken-events", "repeated-events"),
)
"""Trouble that is over when it is over."""


@dataclass(slots=True, eq=False)
class _Deletion:
    """A deletion that a life of the agent was told of."""

    told_at: float
    grace_seconds: int
    former_seconds: int  # what was told before it


class Graces:
    """Judges how pods end."""

    def __init__(self, world: World, pods: Pods) -> None:
        self._world = world
        self._pods = pods
        self._deletions: dict[PodUID, _Deletion] = {}
        self._evictions: dict[PodUID, EvictionBegan] = {}  # that are not answered yet
        self._kills: dict[str, tuple[float, float]] = {}  # by container: when it is killed, and since when that is so
        self._hooks: dict[str, float] = {}  # by container: when its preStop command began
        world.bus.subscribe(Told, self._hear)
        world.bus.subscribe(Called, self._hear_call)
        world.bus.subscribe(Asked, self._hear_command)
        world.bus.subscribe(ContainerChanged, self._see_container)
        world.bus.subscribe(EvictionBegan, self._see_eviction)
        world.bus.subscribe(EvictionEnded, self._see_answer)
        world.bus.subscribe(LifeEnded, self._forget)

    def _forget(self, _: LifeEnded) -> None:
        """The next life begins every grace anew: what the former one spent is not known to it."""
        self._deletions.clear()
        self._evictions.clear()
        self._kills.clear()
        self._hooks.clear()

    # Deletions.

    def _hear(self, told: Told) -> None:
        if told.update.source != API_SOURCE:
            return
        by_force = told.update.op is Op.REMOVE
        for pod in told.update.pods:
            if (by_force or pod.metadata.deletion_timestamp is not None) and not is_mirror_pod(pod):
                grace = 0 if by_force else pod.metadata.deletion_grace_period_seconds or 0
                self._hear_deletion(told.at, pod, grace)

    def _hear_deletion(self, at: float, pod: Pod, grace: int) -> None:
        uid = PodUID(pod.metadata.uid or "")
        known = self._deletions.get(uid)
        if known is not None and grace >= known.grace_seconds:
            return
        if not self._world.truth.running(uid):
            return
        former = 0 if known is None else max(known.grace_seconds, known.former_seconds)
        deletion = self._deletions[uid] = _Deletion(at, grace, former)
        seconds = max(grace, MIN_STOP_SECONDS) + MARGIN_SECONDS
        self._world.loop.call_at(at + seconds, self._judge_deletion, uid, deletion)

    def _judge_deletion(self, uid: PodUID, deletion: _Deletion) -> None:
        if self._deletions.get(uid) is not deletion:
            return  # the agent died meanwhile, or the grace was shortened
        running = self._world.truth.running(uid)
        if not running:
            del self._deletions[uid]
        if self._is_disturbed(deletion.told_at, uid):
            return
        self._world.checked("I5")
        if running:
            names = ", ".join(life.name for life in running)
            ago = self._world.now() - deletion.told_at
            text = (
                f"{names} still runs {ago:.1f} s after a deletion with a grace of {deletion.grace_seconds} s was told"
            )
            self._world.broken("I5", uid, text)

    def _is_disturbed(self, since: float, uid: PodUID) -> bool:
        touched = self._world.troubles.touched
        return bool(touched(since, uid, but=NOT_IN_THE_WAY) or touched(since - AFTERMATH_SECONDS, uid, but=PASSING))

    # Evictions.

    def _see_eviction(self, eviction: EvictionBegan) -> None:
        self._evictions[PodUID(eviction.pod.metadata.uid or "")] = eviction
        seconds = max(eviction.grace_seconds, MIN_STOP_SECONDS) + MARGIN_SECONDS
        self._world.loop.call_at(eviction.at + seconds, self._judge_eviction, eviction)

    def _see_answer(self, answer: EvictionEnded) -> None:
        self._evictions.pop(answer.uid, None)

    def _judge_eviction(self, eviction: EvictionBegan) -> None:
        uid = PodUID(eviction.pod.metadata.uid or "")
        if self._evictions.get(uid) is not eviction or self._is_disturbed(eviction.at, uid):
            return
        self._world.checked("I5")
        names = ", ".join(life.name for life in self._world.truth.running(uid))
        text = f"{self._world.now() - eviction.at:.1f} s ago somebody evicted the pod within {eviction.grace_seconds} s"
        self._world.broken("I5", uid, f"{text}, and has no answer; {names or 'nothing'} still runs")

    # Hooks and stops.

    def _hear_command(self, asked: Asked) -> None:
        if asked.operation != "exec_sync":
            return
        container = self._spec_of(asked.uid, asked.subject)
        hook = None if container is None or container.lifecycle is None else container.lifecycle.pre_stop
        if hook is not None and hook.exec is not None and tuple(hook.exec.command or ()) == tuple(_command(asked)):
            self._hooks.setdefault(str(asked.given[0]), asked.begun)

    def _hear_call(self, call: Called) -> None:
        if call.operation != "stop_container" or call.room != "runtime":
            return
        container_id, seconds = str(call.given[0]), float(cast(float, call.given[1]))
        life = self._world.truth.containers.get(container_id)
        if life is None or not life.running:
            return
        self._world.checked("I5")
        spent = call.at - self._hooks.get(container_id, call.at)
        allowed = self._allowed(call)
        slack = DAWDLE_SECONDS if self._has_dawdled(call.at - spent) else ROUNDING_SECONDS
        if allowed is not None and spent + seconds > max(allowed + slack, spent + MIN_STOP_SECONDS):
            text = (
                f"{call.subject} gets {seconds:g} s to stop after {spent:g} s of its hook; its grace is {allowed:g} s"
            )
            self._world.broken("I5", call.uid, text)
        killed_by = call.at + seconds
        agreed, since = self._kills.get(container_id, (inf, call.at))
        latest = max(agreed + ROUNDING_SECONDS, call.at + MIN_STOP_SECONDS)
        if killed_by > latest and call.at > since + NEWS_SECONDS:
            text = f"the end of {call.subject} was agreed for {agreed:.1f} s and put off to {killed_by:.1f} s"
            self._world.broken("I5", call.uid, text)
        if killed_by < agreed:
            self._kills[container_id] = killed_by, call.at

    def _has_dawdled(self, since: float) -> bool:
        return bool(self._world.troubles.touched(since, None, FAULT_RATES.keys() - {"dawdle"}))

    def _allowed(self, call: Called) -> float | None:
        """The longest grace that can be in force for a container; None: nobody but its killer knows."""
        known = self._pods.get(call.uid)
        if known is None or is_evicted(self._world, call.uid):
            return None  # whoever evicts a pod names a grace of his own, be it longer than the spec's
        deletion = self._deletions.get(call.uid)
        if deletion is not None and deletion.grace_seconds > 0:
            # While the runtime is not well all news wait; then they are taken up one after the other.
            taken_up = self._world.troubles.lasted_until(deletion.told_at, CALLS)
            late_seconds = DAWDLE_SECONDS if self._has_dawdled(taken_up) else 0.0
            if call.at > taken_up + NEWS_SECONDS + late_seconds:
                return deletion.grace_seconds
        meta, spec = known.pod.metadata, known.pod.spec
        former = 0 if deletion is None else deletion.former_seconds
        graces = [former, spec.termination_grace_period_seconds, meta.deletion_grace_period_seconds]
        container = self._spec_of(call.uid, call.subject)
        if container is not None:
            probes = (container.liveness_probe, container.startup_probe)
            graces += [probe.termination_grace_period_seconds for probe in probes if probe is not None]
        return max(MIN_STOP_SECONDS, *(grace or 0 for grace in graces))

    def _see_container(self, change: ContainerChanged) -> None:
        if change.happened in (RuntimeEventType.STOPPED, RuntimeEventType.DELETED):
            self._kills.pop(change.record.id, None)
            self._hooks.pop(change.record.id, None)

    def _spec_of(self, uid: PodUID, name: str) -> Container | None:
        known = self._pods.get(uid)
        if known is None:
            return None
        spec = known.pod.spec
        return next((each for each in (*spec.containers, *(spec.init_containers or ())) if each.name == name), None)


def _command(asked: Asked) -> tuple[str, ...]:
    return tuple(cast("tuple[str, ...]", asked.given[1]))
