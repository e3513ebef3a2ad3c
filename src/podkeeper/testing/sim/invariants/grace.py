"""I5: a pod stops within its grace period, and a grace period never grows.

Three checks, each within one agent process:

* A deleted pod has stopped after its grace period and a margin. A shorter grace period starts when the agent receives
  it. A forced deletion has no grace period. This time includes preStop hooks, waiting sidecars, TERM and KILL. The same
  holds for an eviction, and the eviction call has returned by then.
* The stop timeout of a container, together with the duration of its preStop hook, is not longer than its grace period.
* The time at which the runtime kills a container is never postponed.

The last two hold during all faults, except that a call may reach the runtime late, after a newer one. The first holds
only if no fault affects the node or the pod.
"""

from dataclasses import dataclass
from math import inf
from typing import cast

from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.messages import API_SOURCE, Op, PodUID
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.rules.container.grace import MIN_STOP_SECONDS
from podkeeper.rules.static.mirror import is_mirror_pod
from podkeeper.testing.sim.invariants.causes import CALL_FAULTS, is_evicted
from podkeeper.testing.sim.invariants.pods import TrackedPods
from podkeeper.testing.sim.profile import FAULT_RATES
from podkeeper.testing.sim.records import (
    AgentStopped,
    CallStarted,
    ContainerChanged,
    EvictionBegan,
    EvictionEnded,
    ReadEnded,
    UpdateReceived,
)
from podkeeper.testing.sim.world import World

MARGIN_SECONDS = 5.0
"""In addition to the grace period: the minimum stop timeout of two seconds, and the time of the agent and runtime."""

AFTERMATH_SECONDS = 150.0
"""Most faults have an effect after their end: a hung call reaches its deadline only after two minutes."""

ROUNDING_SECONDS = 1.0
"""Tolerance, because the agent does not charge a started second of a grace period."""

LATE_WAKEUP_SECONDS = 5.0
"""Each wake-up may be up to two seconds late. So a stop follows its hook later, and updates are handled later."""

DELIVERY_SECONDS = 5.0
"""How long after the arrival of a deletion, or of a shorter grace period, an earlier call may reach the runtime."""


IRRELEVANT_FAULTS = (
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
"""Faults that are no excuse: an agent that received a deletion needs no API, disk or wall clock to stop the pod."""

SHORT_FAULTS = (
    *IRRELEVANT_FAULTS,
    *("crash", "graceful-restart", "late-wakeups"),
    *("lost-events", "late-events", "broken-events", "repeated-events"),
)
"""Faults without effects after their end."""


@dataclass(slots=True, eq=False)
class _Deletion:
    """A deletion that the agent process received."""

    received_at: float
    grace_seconds: int
    previous_seconds: int  # the longest grace period before it


class GracePeriods:
    """Checks how pods stop."""

    def __init__(self, world: World, pods: TrackedPods) -> None:
        self._world = world
        self._pods = pods
        self._deletions: dict[PodUID, _Deletion] = {}
        self._evictions: dict[PodUID, EvictionBegan] = {}  # whose calls have not returned
        self._kills: dict[str, tuple[float, float]] = {}  # by container: the time of its kill, and the time of the call
        self._hooks: dict[str, float] = {}  # by container: when its preStop command began
        world.bus.subscribe(UpdateReceived, self._on_update_received)
        world.bus.subscribe(CallStarted, self._on_call_started)
        world.bus.subscribe(ReadEnded, self._on_read_ended)
        world.bus.subscribe(ContainerChanged, self._on_container_changed)
        world.bus.subscribe(EvictionBegan, self._on_eviction_began)
        world.bus.subscribe(EvictionEnded, self._on_eviction_ended)
        world.bus.subscribe(AgentStopped, self._on_agent_stopped)

    def _on_agent_stopped(self, _: AgentStopped) -> None:
        """Reset: the next agent process starts grace periods from scratch."""
        self._deletions.clear()
        self._evictions.clear()
        self._kills.clear()
        self._hooks.clear()

    # Deletions.

    def _on_update_received(self, received: UpdateReceived) -> None:
        if received.update.source != API_SOURCE:
            return
        by_force = received.update.op is Op.REMOVE
        for pod in received.update.pods:
            if (by_force or pod.metadata.deletion_timestamp is not None) and not is_mirror_pod(pod):
                grace = 0 if by_force else pod.metadata.deletion_grace_period_seconds or 0
                self._add_deletion(received.at, pod, grace)

    def _add_deletion(self, at: float, pod: Pod, grace: int) -> None:
        uid = PodUID(pod.metadata.uid or "")
        known = self._deletions.get(uid)
        # As in the agent, a grace period can only become shorter.
        if known is not None and grace >= known.grace_seconds:
            return
        # Nothing has to stop, so there is nothing to measure.
        if not self._world.truth.running(uid):
            return
        previous = 0 if known is None else max(known.grace_seconds, known.previous_seconds)
        deletion = self._deletions[uid] = _Deletion(at, grace, previous)
        seconds = max(grace, MIN_STOP_SECONDS) + MARGIN_SECONDS
        self._world.loop.call_at(at + seconds, self._check_deletion, uid, deletion)

    def _check_deletion(self, uid: PodUID, deletion: _Deletion) -> None:
        if self._deletions.get(uid) is not deletion:
            return  # the agent process ended, or the grace period was shortened
        running = self._world.truth.running(uid)
        if not running:
            del self._deletions[uid]
        if self._is_disturbed(deletion.received_at, uid):
            return
        self._world.checked("I5")
        if running:
            names = ", ".join(run.name for run in running)
            ago = self._world.now() - deletion.received_at
            text = f"{names} still runs {ago:.1f} s after a deletion with a grace period of {deletion.grace_seconds} s"
            self._world.violated("I5", uid, text)

    def _is_disturbed(self, since: float, uid: PodUID) -> bool:
        any_since = self._world.fault_log.any_since
        return bool(
            any_since(since, uid, ignored=IRRELEVANT_FAULTS)
            or any_since(since - AFTERMATH_SECONDS, uid, ignored=SHORT_FAULTS)
        )

    # Evictions.

    def _on_eviction_began(self, eviction: EvictionBegan) -> None:
        self._evictions[PodUID(eviction.pod.metadata.uid or "")] = eviction
        seconds = max(eviction.grace_seconds, MIN_STOP_SECONDS) + MARGIN_SECONDS
        self._world.loop.call_at(eviction.at + seconds, self._check_eviction, eviction)

    def _on_eviction_ended(self, ended: EvictionEnded) -> None:
        self._evictions.pop(ended.uid, None)

    def _check_eviction(self, eviction: EvictionBegan) -> None:
        uid = PodUID(eviction.pod.metadata.uid or "")
        if self._evictions.get(uid) is not eviction or self._is_disturbed(eviction.at, uid):
            return
        self._world.checked("I5")
        names = ", ".join(run.name for run in self._world.truth.running(uid))
        took = self._world.now() - eviction.at
        text = f"an eviction within {eviction.grace_seconds} s has not returned after {took:.1f} s"
        self._world.violated("I5", uid, f"{text}; {names or 'nothing'} still runs")

    # Hooks and stops.

    def _on_read_ended(self, ended: ReadEnded) -> None:
        if ended.operation != "exec_sync":
            return
        container = self._spec_of(ended.uid, ended.subject)
        hook = None if container is None or container.lifecycle is None else container.lifecycle.pre_stop
        if hook is not None and hook.exec is not None and tuple(hook.exec.command or ()) == tuple(_command(ended)):
            self._hooks.setdefault(str(ended.args[0]), ended.began)

    def _on_call_started(self, call: CallStarted) -> None:
        if call.operation != "stop_container" or call.port != "runtime":
            return
        container_id, seconds = str(call.args[0]), float(cast(float, call.args[1]))
        run = self._world.truth.containers.get(container_id)
        if run is None or not run.running:
            return
        self._world.checked("I5")
        spent = call.at - self._hooks.get(container_id, call.at)
        allowed = self._allowed(call)
        slack = LATE_WAKEUP_SECONDS if self._had_late_wakeups(call.at - spent) else ROUNDING_SECONDS
        if allowed is not None and spent + seconds > max(allowed + slack, spent + MIN_STOP_SECONDS):
            text = f"{call.subject} gets {seconds:g} s to stop after a hook of {spent:g} s; its grace is {allowed:g} s"
            self._world.violated("I5", call.uid, text)
        killed_by = call.at + seconds
        deadline, since = self._kills.get(container_id, (inf, call.at))
        latest = max(deadline + ROUNDING_SECONDS, call.at + MIN_STOP_SECONDS)
        if killed_by > latest and call.at > since + DELIVERY_SECONDS:
            text = f"the kill of {call.subject} was due at {deadline:.1f} s and is postponed to {killed_by:.1f} s"
            self._world.violated("I5", call.uid, text)
        if killed_by < deadline:
            self._kills[container_id] = killed_by, call.at

    def _had_late_wakeups(self, since: float) -> bool:
        return bool(self._world.fault_log.any_since(since, None, FAULT_RATES.keys() - {"late-wakeups"}))

    def _allowed(self, call: CallStarted) -> float | None:
        """Return the longest grace period that can be in force for a container. None: unknown."""
        known = self._pods.get(call.uid)
        if known is None or is_evicted(self._world, call.uid):
            return None  # an eviction has its own grace period, which may be longer than that of the spec
        deletion = self._deletions.get(call.uid)
        if deletion is not None and deletion.grace_seconds > 0:
            # Updates wait while runtime calls fail. Then they are handled one after the other.
            handled = self._world.fault_log.last_end(deletion.received_at, CALL_FAULTS)
            late_seconds = LATE_WAKEUP_SECONDS if self._had_late_wakeups(handled) else 0.0
            if call.at > handled + DELIVERY_SECONDS + late_seconds:
                return deletion.grace_seconds
        meta, spec = known.pod.metadata, known.pod.spec
        previous = 0 if deletion is None else deletion.previous_seconds
        graces = [previous, spec.termination_grace_period_seconds, meta.deletion_grace_period_seconds]
        container = self._spec_of(call.uid, call.subject)
        if container is not None:
            probes = (container.liveness_probe, container.startup_probe)
            graces += [probe.termination_grace_period_seconds for probe in probes if probe is not None]
        return max(MIN_STOP_SECONDS, *(grace or 0 for grace in graces))

    def _on_container_changed(self, change: ContainerChanged) -> None:
        if change.happened in (RuntimeEventType.STOPPED, RuntimeEventType.DELETED):
            self._kills.pop(change.record.id, None)
            self._hooks.pop(change.record.id, None)

    def _spec_of(self, uid: PodUID, name: str) -> Container | None:
        known = self._pods.get(uid)
        if known is None:
            return None
        spec = known.pod.spec
        return next((each for each in (*spec.containers, *(spec.init_containers or ())) if each.name == name), None)


def _command(ended: ReadEnded) -> tuple[str, ...]:
    return tuple(cast("tuple[str, ...]", ended.args[1]))
