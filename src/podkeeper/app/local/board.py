"""The agent's pods for the local API: with status, as tables, with events and explanations.

Input: an agent and its gate. It also finds pods by the names in their manifests. There are three kinds of pods:

    wanted     a source has the pod, and the agent runs it
    leaving    no longer wanted, but still stopping: shown with a deletion timestamp, as in the API
    stopped    by `podkeeper stop`: a source has the pod, the gate holds it back, and it is cleaned up

Kubelet counterpart: `GetPods` in pkg/kubelet, which returns only the first kind.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches

from msgspec.structs import replace

from podkeeper.app.build import Agent
from podkeeper.app.local.gate import Gate, Since, with_deletion
from podkeeper.app.local.printing import STOPPED, pods_table, shown_name
from podkeeper.app.local.reasons import why
from podkeeper.engine.history import Explanation
from podkeeper.model.errors import AgentError
from podkeeper.model.k8s.core import Event, EventList, EventSource, Pod, PodList, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.model.table import Table
from podkeeper.model.times import format_time, instant
from podkeeper.rules.events import RecordedEvent, api_event, reference_to
from podkeeper.rules.mirror import full_name
from podkeeper.rules.worker.states import Finished, NeverStarted, Unknown

COMPONENT = "kubelet"
_NEAR_MATCHES = 5
NO_PORT = "NodePorts"
_HEARING = timedelta(seconds=0.1)
_TIDYING_SECONDS = 5.0  # wait this long for the cleanup of a pod; housekeeping may be unable to finish it now
_LOOK_SECONDS = 0.05


class NoSuchPod(AgentError):
    """No pod has this name."""


class WhichPod(AgentError):
    """Several pods have this name."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A pod and the reason of its status."""

    pod: Pod
    why: str


class Board:
    def __init__(self, agent: Agent, gate: Gate) -> None:
        self._agent = agent
        self._gate = gate
        self._ended: dict[PodUID, float] = {}  # when leaving pods were first seen as terminated

    @property
    def node_name(self) -> str:
        return self._agent.settings.node_name

    def now(self) -> datetime:
        return self._agent.ports.clock.now()

    def health(self) -> tuple[str, ...]:
        """Return problems of the agent itself."""
        return self._agent.health()

    # ---- pods ----

    def pods(self) -> tuple[Pod, ...]:
        """Return all pods, sorted by namespace and name."""
        return tuple(sorted(self._all(), key=lambda pod: (pod.metadata.namespace or "", pod.metadata.name or "")))

    def pod_list(self) -> PodList:
        return PodList(api_version="v1", kind="PodList", items=self.pods())

    def shown(self) -> tuple[Shown, ...]:
        slow = self._slow()
        return tuple(Shown(pod, self._why(pod, slow)) for pod in self.pods())

    def table(self) -> Table:
        return pods_table(((each.pod, each.why) for each in self.shown()), self.now())

    def leaving(self) -> dict[PodUID, Since]:
        """Return the pods that are stopping."""
        self._see_who_is_gone()
        return dict(self._gate.leaving())

    async def see_off(self) -> None:
        """Check for terminated pods until cancelled, so that the gate starts pods again that are wanted again."""
        while True:
            await self._gate.until_one_leaves()
            self._see_who_is_gone()
            await asyncio.sleep(_LOOK_SECONDS)

    def find(self, name: str, namespace: str = "") -> Pod:
        """Find a pod by its full name or the name in its manifest. Raises NoSuchPod, WhichPod."""
        pods = [pod for pod in self.pods() if not namespace or pod.metadata.namespace == namespace]
        found = [pod for pod in pods if pod.metadata.name == name] or [
            pod for pod in pods if pod.metadata.name == f"{name}-{self.node_name.lower()}"
        ]
        asked = f"{namespace}/{name}" if namespace else name
        alive = [pod for pod in found if not pod.metadata.deletion_timestamp]
        if len(found) > 1 and len(alive) == 1:
            return alive[0]  # the other one is its predecessor, which is still stopping
        if len(found) > 1:
            names = ", ".join(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in found)
            raise WhichPod(f"pod name {asked!r} is ambiguous; use one of: {names}")
        if not found:
            raise NoSuchPod(f"pod {asked!r} not found{self._hint(name)}")
        return found[0]

    def explain(self, pod: Pod) -> Explanation:
        """Return a pod's state, what it waits for, and its timeline."""
        return self._agent.explain(_uid(pod))

    def events(self, pod: Pod | None = None) -> EventList:
        """Return the last events of one pod or of all pods, oldest first."""
        pods = self.pods() if pod is None else (pod,)
        events = [
            (recorded.last_at, self._event(each, recorded))
            for each in pods
            for recorded in self._agent.events.events_of(_uid(each))
        ]
        return EventList(
            api_version="v1",
            kind="EventList",
            items=tuple(event for _, event in sorted(events, key=lambda pair: pair[0])),
        )

    # ---- helpers ----

    def _all(self) -> Iterator[Pod]:
        self._see_who_is_gone()
        leaving, held = self._gate.leaving(), self._gate.held()
        for pod in self._agent.manager.pods():
            if _uid(pod) not in leaving:
                yield self._with_status(pod)
        for since in leaving.values():
            yield self._with_status(with_deletion(since))
        for since in held.values():
            yield self._stopped(since)

    def _see_who_is_gone(self) -> None:
        leaving = self._gate.leaving()
        self._ended = {uid: at for uid, at in self._ended.items() if uid in leaving}
        for uid, since in leaving.items():
            if self._has_ended(uid, since) and not self._has_remains(uid):
                self._gate.gone(uid)

    def _has_ended(self, uid: PodUID, since: Since) -> bool:
        # The loop may not have received the removal yet or, shortly after the creation, not even the pod.
        unheard = self._agent.manager.pod_by_uid(uid) is not None or abs(self.now() - since.at) < _HEARING
        return not unheard and isinstance(self._agent.workers.state(uid), Unknown | Finished | NeverStarted)

    def _has_remains(self, uid: PodUID) -> bool:
        """Return whether a terminated pod has old containers. A new start would take them for a crash."""
        agent, now = self._agent, self._agent.ports.clock.monotonic()
        seen = agent.cache.get(uid)
        is_clean = isinstance(agent.workers.state(uid), Unknown) and not (seen.containers or seen.sandboxes)
        if is_clean and not agent.loop.is_tidying(uid):
            return False
        if uid not in self._ended:
            self._ended[uid] = now
            agent.loop.tidy_soon()
        return now - self._ended[uid] < _TIDYING_SECONDS

    def _with_status(self, pod: Pod) -> Pod:
        status = self._agent.statuses.get_pod_status(_uid(pod)) or pod.status
        return replace(pod, status=status, metadata=self._dated(pod.metadata, status))

    def _stopped(self, since: Since) -> Pod:
        pod = since.pod
        status = PodStatus(
            phase="Pending",
            reason=STOPPED,
            message=f"stopped by 'podkeeper stop' at {format_time(since.at)}; "
            f"to start it again, run 'podkeeper start {shown_name(pod)}' or change its manifest",
        )
        return replace(pod, status=status, metadata=self._dated(pod.metadata, status))

    def _dated(self, metadata: ObjectMeta, status: PodStatus) -> ObjectMeta:
        """Add a creation timestamp, because pods from manifests have none from an API."""
        born = instant(status.start_time) or self._gate.seen_since(PodUID(metadata.uid or ""))
        if metadata.creation_timestamp or born is None:
            return metadata
        return replace(metadata, creation_timestamp=format_time(born))

    def _slow(self) -> dict[str, str]:
        """Return slow calls to the runtime, by pod."""
        return {
            call.about: f"the runtime has not answered {call.operation} for {call.seconds:.0f} s"
            for call in self._agent.runtime.slow_calls()
        }

    def _why(self, pod: Pod, slow: dict[str, str]) -> str:
        uid = _uid(pod)
        if uid in self._agent.workers.waiting(full_name(pod)):
            return "waits until its predecessor has terminated"
        said = why(pod, self._agent.explain(uid), slow.get(f"{pod.metadata.namespace}/{pod.metadata.name}", ""))
        if self._gate.comes_back(uid):
            return f"{said}; then it is started again"  # the pod is stopping, but wanted again
        return f"{said}; {rivals}" if (rivals := self._rivals(pod)) else said

    def _rivals(self, pod: Pod) -> str:
        """Return which pods use the host ports of a pod that was rejected for lack of a free port."""
        if pod.status.reason != NO_PORT:
            return ""
        wanted = host_ports(pod)
        others = [each for each in self._agent.manager.pods() if _uid(each) != _uid(pod)]
        held = {port: shown_name(each) for each in others for port in host_ports(each) & wanted}
        return ", ".join(f"host port {port} is used by {name}" for port, name in sorted(held.items()))

    def _event(self, pod: Pod, recorded: RecordedEvent) -> Event:
        stamp = int(recorded.first_at.timestamp() * 1e9)
        source = EventSource(component=COMPONENT, host=self.node_name)
        subject = reference_to(pod, recorded.event.container_path)
        event = api_event(recorded.event, subject, source, recorded.first_at, stamp)
        last = format_time(recorded.last_at)
        return replace(event, api_version="v1", kind="Event", count=recorded.count, last_timestamp=last)

    def _hint(self, name: str) -> str:
        suffix = f"-{self.node_name.lower()}"
        plain = {(pod.metadata.name or "").removesuffix(suffix): shown_name(pod) for pod in self.pods()}
        if not plain:
            return ": the agent has no pods"
        near = get_close_matches(name.removesuffix(suffix), plain, n=_NEAR_MATCHES, cutoff=0.5)
        if near:
            return f"; did you mean: {', '.join(near)}?"
        some = sorted(plain)[:_NEAR_MATCHES]
        more = f" and {len(plain) - len(some)} more" if len(plain) > len(some) else ""
        return f"; available pods: {', '.join(some)}{more}"


def host_ports(pod: Pod) -> frozenset[int]:
    containers = (*(pod.spec.init_containers or ()), *pod.spec.containers)
    return frozenset(port.host_port for each in containers for port in each.ports or () if port.host_port)


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")
