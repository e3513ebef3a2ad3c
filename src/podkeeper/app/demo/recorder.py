"""Record the pods of a simulated node as values that `drawing` can format.

A `Snapshot` is the table of pods at one time. For one pod, the recorder keeps the whole timeline. The agent's history
is bounded and is lost with the agent, so the recorder reads it often and joins the parts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum, auto

from msgspec.structs import replace

from podkeeper.app.demo.node import DemoNode
from podkeeper.app.demo.story import NAMES, StoryEvent
from podkeeper.app.history_words import PrintedEntry, in_words, printed_entry
from podkeeper.app.local.pod_table import is_ready
from podkeeper.app.local.reasons import reason_of
from podkeeper.app.timeline import Noted
from podkeeper.engine.history import Explanation, TimelineEntry
from podkeeper.model import engine_metrics
from podkeeper.model.k8s.core import ContainerStatus, Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.rules.container.restart import is_sidecar

_SAME = timedelta(milliseconds=1)  # tolerance, because the wall clock rounds


class RowState(IntEnum):
    """The state of a pod in the overview.

    If a pod had several states in an interval, the lowest value is shown, because short states have low values.
    """

    PENDING = auto()
    TERMINATING = auto()
    RUNNING = auto()
    READY = auto()
    SUCCEEDED = auto()
    FAILED = auto()
    REMOVED = auto()
    NOT_CREATED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    state: RowState
    phase: str
    ready: str = ""
    restarts: int = 0
    age: timedelta | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The pods at one time, and the events since the previous snapshot."""

    at_seconds: float
    rows: tuple[Row, ...]
    states: Mapping[str, RowState]  # the lowest `RowState` since the previous snapshot
    visitors: int
    problems: tuple[str, ...]
    events: tuple[StoryEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTotals:
    pods: int
    containers: int
    statuses: int
    missed: int


class Recorder:
    def __init__(self, node: DemoNode, pod_name: str) -> None:
        self._node = node
        self._pod_name = pod_name
        self._timelines: dict[tuple[int, PodUID], list[TimelineEntry]] = {}  # by agent and pod
        self._events: list[StoryEvent] = []
        self._about_pod: list[Noted] = []
        self._states: dict[str, RowState] = {}
        self._removed_at: dict[str, datetime | None] = {}  # None: the pod exists
        self.snapshots: list[Snapshot] = []
        self.explanation: Explanation | None = None  # the last one of the newest pod with this name

    def record(self, event: StoryEvent) -> None:
        """Record an event before it happens."""
        self._follow()
        if not event.text:
            return
        self._events.append(event)
        if event.about in ("", self._pod_name):
            self._about_pod.append(Noted(PrintedEntry(self._node.clock.now(), event.text), 0))

    def sample(self) -> None:
        """Sample the pods for the next snapshot."""
        for name in NAMES:
            self._states[name] = min(self._state_of(name), self._states.get(name, RowState.NOT_CREATED))

    def take_snapshot(self) -> Snapshot:
        self._follow()
        self.sample()
        node = self._node
        known = frozenset(pod.metadata.name for pod in node.agent.pods())
        snapshot = Snapshot(
            at_seconds=node.clock.monotonic(),
            rows=tuple(self._row(name) for name in NAMES if node.uids(name)),
            states=self._states,
            visitors=len(known.difference(NAMES)),
            problems=node.agent.health() if node.is_running else ("not running",),
            events=tuple(self._events),
        )
        self._events, self._states = [], {}
        self.snapshots.append(snapshot)
        return snapshot

    def timeline(self) -> tuple[Noted, ...]:
        """Return all entries about the pod, oldest first."""
        numbers = {uid: number for number, uid in enumerate(self._node.uids(self._pod_name), 1)}
        entries = [
            Noted(printed_entry(each), numbers[uid])
            for (_, uid), several in self._timelines.items()
            for each in several
        ]
        created_at = self._node.created_at(self._node.uids(self._pod_name)[0])
        events = (noted for noted in self._about_pod if noted.entry.at >= created_at)
        return tuple(sorted([*events, *entries], key=lambda noted: noted.entry.at))

    def totals(self) -> DemoTotals:
        metric_total = self._node.metric_total
        return DemoTotals(
            pods=self._node.pods_seen,
            containers=metric_total(engine_metrics.CONTAINER_STARTS.name),
            statuses=metric_total(f"{engine_metrics.STATUS_SYNCS.name}_count"),
            missed=metric_total(engine_metrics.MISSED_EVENTS.name),
        )

    # ---- helpers ----

    def _follow(self) -> None:
        for uid in self._node.uids(self._pod_name):
            self.explanation = self._node.agent.explain(uid)
            key = self._node.agents, uid
            self._timelines[key] = _continued(self._timelines.get(key, []), self.explanation.timeline)

    def _status(self, name: str) -> tuple[Pod, PodStatus] | None:
        """Return a pod and its status, or None if the agent does not have it."""
        pod = self._node.agent.pod(self._node.uids(name)[-1])
        return None if pod is None else (pod, pod.status)

    def _state_of(self, name: str) -> RowState:
        if not self._node.uids(name):
            return RowState.NOT_CREATED
        known = self._status(name)
        if known is not None:
            self._removed_at[name] = None
            return _state_of(*known)
        if name not in self._removed_at:
            return RowState.PENDING  # the agent has not received it yet
        self._removed_at[name] = self._removed_at[name] or self._node.clock.now()
        return RowState.REMOVED

    def _row(self, name: str) -> Row:
        now, known = self._node.clock.now(), self._status(name)
        if known is None:
            removed_at = self._removed_at.get(name)
            if removed_at is None:
                return Row(name=name, state=RowState.PENDING, phase="Pending", why="not yet received by the agent")
            return Row(name=name, state=RowState.REMOVED, phase="removed", why=f"at {removed_at:%H:%M:%S}")
        pod, status = known
        uid = PodUID(pod.metadata.uid or "")
        containers = [*_sidecar_statuses(pod, status), *(status.container_statuses or ())]
        return Row(
            name=name,
            state=_state_of(pod, status),
            phase=_phase(pod, status),
            ready=f"{sum(each.ready for each in containers)}/{len(containers) or len(pod.spec.containers)}",
            restarts=sum(each.restart_count for each in containers),
            age=now - self._node.created_at(uid),
            why=self._why(pod, status, self._node.agent.explain(uid)),
        )

    def _why(self, pod: Pod, status: PodStatus, explanation: Explanation) -> str:
        agent = self._node.agent
        for call in agent.slow_calls():
            # Only while the pod is pending: a call that timed out was repeated, but may still hang in the runtime.
            if status.phase == "Pending" and call.subject == f"{pod.metadata.namespace}/{pod.metadata.name}":
                return f"the runtime has not answered {call.operation} for {call.seconds:.0f} s"
        if agent.waits_for_predecessor(pod):
            return "waits until its predecessor has terminated"
        return reason_of(replace(pod, status=status), explanation)


def _continued(known: list[TimelineEntry], newer: Sequence[TimelineEntry]) -> list[TimelineEntry]:
    """Join the known timeline with the agent's current one, which overlaps and may have larger counts."""
    if not newer:
        return known
    what, _ = in_words(newer[0].event)
    for index in reversed(range(len(known))):
        if in_words(known[index].event)[0] == what and abs(known[index].at - newer[0].at) < _SAME:
            return [*known[:index], *newer]
    return [*known, *newer]


def _sidecar_statuses(pod: Pod, status: PodStatus) -> Iterable[ContainerStatus]:
    sidecars = {each.name for each in pod.spec.init_containers or () if is_sidecar(each)}
    return (each for each in status.init_container_statuses or () if each.name in sidecars)


def _state_of(pod: Pod, status: PodStatus) -> RowState:
    match status.phase:
        case "Succeeded":
            return RowState.SUCCEEDED
        case "Failed":
            return RowState.FAILED
        case _ if pod.metadata.deletion_timestamp:
            return RowState.TERMINATING
        case "Running":
            return RowState.READY if is_ready(status) else RowState.RUNNING
        case _:
            return RowState.PENDING


def _phase(pod: Pod, status: PodStatus) -> str:
    phase = status.phase or "Pending"
    return "Terminating" if pod.metadata.deletion_timestamp and phase == "Running" else phase
