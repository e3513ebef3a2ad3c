"""Queries about the agent's pods for the local API and `podkeeper run`.

    status manager, stop filter -----------------> subscribers, `wait_for`
    history, cache, loop --> which pods have ended? --> stop filter

Input: an agent and its stop filter. `find` also accepts the names in manifests. There are three kinds of pods:

    wanted       a source has the pod, and the agent runs it
    terminating  no longer wanted, but still stopping: shown with a deletion timestamp, as in the API
    stopped      by `podkeeper stop`: a source has the pod, the stop filter removes it, and it is cleaned up

Nothing here polls. A terminating pod is checked when its state changes. Only a pod whose cleanup is in
progress has a timer. Durations come from the monotonic clock, and wall time is only printed.

Kubelet counterpart: `GetPods` in pkg/kubelet, which returns only the first kind.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches

from msgspec.structs import replace

from podkeeper.app.agent import Agent
from podkeeper.app.local.pod_table import STOPPED, display_name, pods_table
from podkeeper.app.local.reasons import reason_of
from podkeeper.app.local.stop_filter import StopFilter, StoppedPod, TerminatingPod
from podkeeper.engine.history import Explanation
from podkeeper.model.errors import AgentError
from podkeeper.model.k8s.core import Event, EventList, EventSource, Pod, PodList, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.model.table import Table
from podkeeper.model.times import format_time, instant
from podkeeper.rules.events import RecordedEvent, api_event, reference_to

COMPONENT = "kubelet"
NO_PORT = "NodePorts"
CLEANUP_SECONDS = 5.0
"""How long to wait for the cleanup of a terminated pod. A hung call may keep housekeeping from finishing it."""

_CLOSE_MATCHES = 5


class PodNotFound(AgentError):
    """No pod has this name."""


class AmbiguousPodName(AgentError):
    """Several pods have this name."""


@dataclass(frozen=True, slots=True)
class PodRow:
    """A pod and the reason of its status."""

    pod: Pod
    reason: str


class PodQueries:
    def __init__(self, agent: Agent, stop_filter: StopFilter) -> None:
        self._agent = agent
        self._stop_filter = stop_filter
        self._subscribers: set[Callable[[], None]] = set()
        self._cleanup_since: dict[PodUID, float] = {}  # terminated pods, on the monotonic clock
        self._check = asyncio.Event()  # a terminating pod may have ended
        stop_filter.subscribe(self._pods_changed)
        agent.subscribe(
            status_changed=lambda uid, status: self.notify(),
            pod_changed=self._pod_changed,
            pods_changed=self._check.set,
        )

    def now(self) -> datetime:
        """Return the wall time, for printing."""
        return self._agent.clock.now()

    def monotonic(self) -> float:
        return self._agent.clock.monotonic()

    def health(self) -> tuple[str, ...]:
        """Return problems of the agent itself."""
        return self._agent.health()

    # ---- changes ----

    async def run(self) -> None:
        """Report terminated pods to the stop filter, until cancelled. The filter then starts those that are wanted."""
        while True:
            self._check.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._report_terminated()):
                    await self._check.wait()

    def subscribe(self, subscriber: Callable[[], None]) -> None:
        """Call the subscriber when a status changes, and when a pod is added, removed, stopped or started."""
        self._subscribers.add(subscriber)

    def notify(self) -> None:
        """Call all subscribers, and evaluate the conditions of `wait_for` again."""
        for subscriber in tuple(self._subscribers):
            subscriber()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Return when the condition is true. Evaluate it now and after each change."""
        changed = asyncio.Event()
        self._subscribers.add(changed.set)
        try:
            while not condition():
                changed.clear()
                await changed.wait()
        finally:
            self._subscribers.discard(changed.set)

    # ---- pods ----

    def pods(self) -> tuple[Pod, ...]:
        """Return all pods, sorted by namespace and name."""
        return tuple(sorted(self._all(), key=lambda pod: (pod.metadata.namespace or "", pod.metadata.name or "")))

    def pod_list(self) -> PodList:
        return PodList(api_version="v1", kind="PodList", items=self.pods())

    def rows(self) -> tuple[PodRow, ...]:
        slow = self._slow_calls()
        return tuple(PodRow(pod, self._reason(pod, slow)) for pod in self.pods())

    def table(self) -> Table:
        return pods_table(((row.pod, row.reason) for row in self.rows()), self.now())

    def terminating(self) -> Mapping[PodUID, TerminatingPod]:
        return self._stop_filter.terminating()

    def find(self, name: str, namespace: str = "") -> Pod:
        """Find a pod by its full name or the name in its manifest. Raises PodNotFound, AmbiguousPodName."""
        pods = [pod for pod in self.pods() if not namespace or pod.metadata.namespace == namespace]
        found = [pod for pod in pods if pod.metadata.name == name] or [
            pod for pod in pods if pod.metadata.name == f"{name}-{self._agent.node_name.lower()}"
        ]
        requested = f"{namespace}/{name}" if namespace else name
        running = [pod for pod in found if not pod.metadata.deletion_timestamp]
        if len(found) > 1 and len(running) == 1:
            return running[0]  # the other one is its predecessor, which is still stopping
        if len(found) > 1:
            names = ", ".join(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in found)
            raise AmbiguousPodName(f"pod name {requested!r} is ambiguous; use one of: {names}")
        if not found:
            raise PodNotFound(f"pod {requested!r} not found{self._hint(name)}")
        return found[0]

    def explain(self, pod: Pod) -> Explanation:
        """Return a pod's state, what it waits for, and its timeline."""
        return self._agent.explain(uid_of(pod))

    def events(self, pod: Pod | None = None) -> EventList:
        """Return the last events of one pod in order, or those of all pods, sorted by their wall time."""
        if pod is not None:
            return _event_list(self._events_of(pod))
        events = [pair for each in self.pods() for pair in self._events_of(each)]
        return _event_list(sorted(events, key=lambda pair: pair[0]))

    # ---- terminated pods ----

    def _pods_changed(self) -> None:
        self._check.set()
        self.notify()

    def _pod_changed(self, uid: PodUID) -> None:
        if self._stop_filter.is_terminating(uid):
            self._check.set()

    def _report_terminated(self) -> float | None:
        """Report the pods that have ended. Return after how many seconds to check again even without a change."""
        now, terminating = self.monotonic(), self._stop_filter.terminating()
        self._cleanup_since = {uid: since for uid, since in self._cleanup_since.items() if uid in terminating}
        for uid in terminating:
            if self._agent.has_ended(uid) and not self._awaits_cleanup(uid, now):
                self._cleanup_since.pop(uid, None)
                self._stop_filter.mark_terminated(uid)
        first = min(self._cleanup_since.values(), default=None)
        return None if first is None else first + CLEANUP_SECONDS - now

    def _awaits_cleanup(self, uid: PodUID, now: float) -> bool:
        """Return whether to wait for the cleanup of a terminated pod."""
        # Until then the pod must not start again, because the agent would treat its old containers as crashed.
        if self._agent.is_cleaned_up(uid):
            return False
        if uid not in self._cleanup_since:
            self._cleanup_since[uid] = now
            self._agent.request_housekeeping()
        return now - self._cleanup_since[uid] < CLEANUP_SECONDS

    # ---- helpers ----

    def _all(self) -> Iterator[Pod]:
        terminating = self._stop_filter.terminating()
        for pod in self._agent.pods():
            if uid_of(pod) not in terminating:
                yield self._dated(pod)
        for each in terminating.values():
            yield self._dated(self._agent.with_status(each.with_deletion(self._agent.clock)))
        for stopped in self._stop_filter.stopped().values():
            yield self._with_stopped_status(stopped)

    def _with_stopped_status(self, stopped: StoppedPod) -> Pod:
        pod = stopped.pod
        status = PodStatus(
            phase="Pending",
            reason=STOPPED,
            message=f"stopped by 'podkeeper stop' at {format_time(stopped.at)}; "
            f"to start it again, run 'podkeeper start {display_name(pod)}' or change its manifest",
        )
        return self._dated(replace(pod, status=status))

    def _dated(self, pod: Pod) -> Pod:
        """Add a creation timestamp, because pods from manifests have none from an API."""
        created = instant(pod.status.start_time) or self._stop_filter.first_seen(uid_of(pod))
        if pod.metadata.creation_timestamp or created is None:
            return pod
        return replace(pod, metadata=replace(pod.metadata, creation_timestamp=format_time(created)))

    def _slow_calls(self) -> dict[str, str]:
        """Return slow calls to the runtime, by pod."""
        return {
            call.subject: f"the runtime has not answered {call.operation} for {call.seconds:.0f} s"
            for call in self._agent.slow_calls()
        }

    def _reason(self, pod: Pod, slow: dict[str, str]) -> str:
        uid = uid_of(pod)
        if self._agent.waits_for_predecessor(pod):
            return "waits until its predecessor has terminated"
        slow_call = slow.get(f"{pod.metadata.namespace}/{pod.metadata.name}", "")
        reason = reason_of(pod, self._agent.explain(uid), slow_call)
        if self._stop_filter.will_restart(uid):
            return f"{reason}; then it is started again"  # the pod is stopping, but wanted again
        return f"{reason}; {conflicts}" if (conflicts := self._port_conflicts(pod)) else reason

    def _port_conflicts(self, pod: Pod) -> str:
        """Return which pods use the host ports of a pod that was rejected for lack of a free port."""
        if pod.status.reason != NO_PORT:
            return ""
        wanted = host_ports(pod)
        others = [each for each in self._agent.pods() if uid_of(each) != uid_of(pod)]
        used = {port: display_name(each) for each in others for port in host_ports(each) & wanted}
        return ", ".join(f"host port {port} is used by {name}" for port, name in sorted(used.items()))

    def _events_of(self, pod: Pod) -> list[tuple[datetime, Event]]:
        recorded = self._agent.events_of(uid_of(pod))
        return [(each.last_at, self._event(pod, each)) for each in recorded]

    def _event(self, pod: Pod, recorded: RecordedEvent) -> Event:
        stamp = int(recorded.first_at.timestamp() * 1e9)
        source = EventSource(component=COMPONENT, host=self._agent.node_name)
        subject = reference_to(pod, recorded.event.container_path)
        event = api_event(recorded.event, subject, source, recorded.first_at, stamp)
        last = format_time(recorded.last_at)
        return replace(event, api_version="v1", kind="Event", count=recorded.count, last_timestamp=last)

    def _hint(self, name: str) -> str:
        suffix = f"-{self._agent.node_name.lower()}"
        plain = {(pod.metadata.name or "").removesuffix(suffix): display_name(pod) for pod in self.pods()}
        if not plain:
            return ": the agent has no pods"
        close = get_close_matches(name.removesuffix(suffix), plain, n=_CLOSE_MATCHES, cutoff=0.5)
        if close:
            return f"; did you mean: {', '.join(close)}?"
        some = sorted(plain)[:_CLOSE_MATCHES]
        more = f" and {len(plain) - len(some)} more" if len(plain) > len(some) else ""
        return f"; available pods: {', '.join(some)}{more}"


def host_ports(pod: Pod) -> frozenset[int]:
    containers = (*(pod.spec.init_containers or ()), *pod.spec.containers)
    return frozenset(port.host_port for each in containers for port in each.ports or () if port.host_port)


def _event_list(events: Sequence[tuple[datetime, Event]]) -> EventList:
    return EventList(api_version="v1", kind="EventList", items=tuple(event for _, event in events))
