"""Record the pods of a simulated node as values that `drawing` can format.

A `Picture` is the table of pods at one time. For one pod, the recorder keeps the whole timeline. It reads the agent's
history often and joins the parts, because that history is bounded and lost with the agent.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum, auto

from msgspec.structs import replace

from podkeeper.app.demo.node import DemoNode
from podkeeper.app.demo.story import NAMES, Act
from podkeeper.app.local.reasons import why
from podkeeper.app.timeline import Noted
from podkeeper.engine.history import Entry, Explanation
from podkeeper.model import engine_metrics
from podkeeper.model.k8s.core import ContainerStatus, Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.rules.mirror import full_name

_SAME = timedelta(milliseconds=1)  # tolerance, because the wall clock rounds


class Look(IntEnum):
    """The state of a pod in the overview. Of several states in an interval, the lowest (shortest) is shown."""

    WAITING = auto()
    ENDING = auto()
    RUNNING = auto()
    READY = auto()
    SUCCEEDED = auto()
    FAILED = auto()
    GONE = auto()
    ABSENT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    look: Look
    phase: str
    ready: str = ""
    restarts: int = 0
    age: timedelta | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """The pods at one time, and the events since the previous picture."""

    at_seconds: float
    rows: tuple[Row, ...]
    looks: Mapping[str, Look]  # the lowest `Look` since the previous picture
    visitors: int
    troubles: tuple[str, ...]
    news: tuple[Act, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    pods: int
    containers: int
    statuses: int
    missed: int


class Recorder:
    def __init__(self, node: DemoNode, pod_name: str) -> None:
        self._node = node
        self._pod_name = pod_name
        self._timelines: dict[tuple[int, PodUID], list[Entry]] = {}  # by agent and pod
        self._news: list[Act] = []
        self._concerning: list[Noted] = []
        self._looks: dict[str, Look] = {}
        self._gone_at: dict[str, datetime | None] = {}  # None: the pod exists
        self.pictures: list[Picture] = []
        self.explanation: Explanation | None = None  # the last one of the newest pod with this name

    def hear(self, act: Act) -> None:
        """Record an event before it happens."""
        self._follow()
        if not act.news:
            return
        self._news.append(act)
        if act.about in ("", self._pod_name):
            self._concerning.append(Noted(Entry(self._node.clock.now(), act.news), 0))

    def glance(self) -> None:
        """Sample the pods for the next picture."""
        for name in NAMES:
            self._looks[name] = min(self._look(name), self._looks.get(name, Look.ABSENT))

    def look(self) -> Picture:
        self._follow()
        self.glance()
        node = self._node
        known = frozenset(pod.metadata.name for pod in node.agent.manager.pods())
        picture = Picture(
            at_seconds=node.clock.monotonic(),
            rows=tuple(self._row(name) for name in NAMES if node.uids(name)),
            looks=self._looks,
            visitors=len(known.difference(NAMES)),
            troubles=node.agent.health() if node.is_kept else ("not running",),
            news=tuple(self._news),
        )
        self._news, self._looks = [], {}
        self.pictures.append(picture)
        return picture

    def timeline(self) -> tuple[Noted, ...]:
        """Return all entries about the pod, oldest first."""
        numbers = {uid: number for number, uid in enumerate(self._node.uids(self._pod_name), 1)}
        befell = [Noted(entry, numbers[uid]) for (_, uid), entries in self._timelines.items() for entry in entries]
        born = self._node.born(self._node.uids(self._pod_name)[0])
        news = (noted for noted in self._concerning if noted.entry.at >= born)
        return tuple(sorted([*news, *befell], key=lambda noted: noted.entry.at))

    def totals(self) -> Totals:
        counted = self._node.counted
        return Totals(
            pods=self._node.pods_seen,
            containers=counted(engine_metrics.CONTAINER_STARTS.name),
            statuses=counted(f"{engine_metrics.STATUS_SYNCS.name}_count"),
            missed=counted(engine_metrics.MISSED_EVENTS.name),
        )

    # ---- helpers ----

    def _follow(self) -> None:
        for uid in self._node.uids(self._pod_name):
            self.explanation = self._node.agent.explain(uid)
            whose = self._node.agents, uid
            self._timelines[whose] = _continued(self._timelines.get(whose, []), self.explanation.timeline)

    def _status(self, name: str) -> tuple[Pod, PodStatus] | None:
        """Return a pod and its status, or None if the agent does not know it."""
        agent, uid = self._node.agent, self._node.uids(name)[-1]
        pod = agent.manager.pod_by_uid(uid)
        return None if pod is None else (pod, agent.statuses.get_pod_status(uid) or pod.status)

    def _look(self, name: str) -> Look:
        if not self._node.uids(name):
            return Look.ABSENT
        known = self._status(name)
        if known is not None:
            self._gone_at[name] = None
            return _look(*known)
        if name not in self._gone_at:
            return Look.WAITING  # the agent has not received it yet
        self._gone_at[name] = self._gone_at[name] or self._node.clock.now()
        return Look.GONE

    def _row(self, name: str) -> Row:
        now, known = self._node.clock.now(), self._status(name)
        if known is None:
            gone_at = self._gone_at.get(name)
            if gone_at is None:
                return Row(name=name, look=Look.WAITING, phase="Pending", why="not yet received by the agent")
            return Row(name=name, look=Look.GONE, phase="removed", why=f"at {gone_at:%H:%M:%S}")
        pod, status = known
        uid = PodUID(pod.metadata.uid or "")
        containers = [*_sidecar_statuses(pod, status), *(status.container_statuses or ())]
        return Row(
            name=name,
            look=_look(pod, status),
            phase=_phase(pod, status),
            ready=f"{sum(each.ready for each in containers)}/{len(containers) or len(pod.spec.containers)}",
            restarts=sum(each.restart_count for each in containers),
            age=now - self._node.born(uid),
            why=self._why(pod, status, self._node.agent.explain(uid)),
        )

    def _why(self, pod: Pod, status: PodStatus, explanation: Explanation) -> str:
        agent = self._node.agent
        for call in agent.runtime.slow_calls():
            # Only while the pod is pending: a call that timed out was repeated, but may still hang in the runtime.
            if status.phase == "Pending" and call.about == f"{pod.metadata.namespace}/{pod.metadata.name}":
                return f"the runtime has not answered {call.operation} for {call.seconds:.0f} s"
        if explanation.uid in agent.workers.waiting(full_name(pod)):
            return "waits until its predecessor has terminated"
        return why(replace(pod, status=status), explanation)


def _continued(known: list[Entry], newer: Sequence[Entry]) -> list[Entry]:
    """Join the known timeline with the agent's current one, which overlaps and may have larger counts."""
    if not newer:
        return known
    for index in reversed(range(len(known))):
        if known[index].what == newer[0].what and abs(known[index].at - newer[0].at) < _SAME:
            return [*known[:index], *newer]
    return [*known, *newer]


def _sidecar_statuses(pod: Pod, status: PodStatus) -> Iterable[ContainerStatus]:
    sidecars = {each.name for each in pod.spec.init_containers or () if each.restart_policy == "Always"}
    return (each for each in status.init_container_statuses or () if each.name in sidecars)


def _is_ready(status: PodStatus) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in status.conditions or ())


def _look(pod: Pod, status: PodStatus) -> Look:
    match status.phase:
        case "Succeeded":
            return Look.SUCCEEDED
        case "Failed":
            return Look.FAILED
        case _ if pod.metadata.deletion_timestamp:
            return Look.ENDING
        case "Running":
            return Look.READY if _is_ready(status) else Look.RUNNING
        case _:
            return Look.WAITING


def _phase(pod: Pod, status: PodStatus) -> str:
    phase = status.phase or "Pending"
    return "Terminating" if pod.metadata.deletion_timestamp and phase == "Running" else phase
