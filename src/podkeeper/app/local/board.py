"""The board: what an agent knows of its pods, as whoever asks wants to see it.

In: an agent and its gate. Out: pods with their statuses as the API would show them, tables, events, explanations; and
pods by the names that people use. Three kinds of pods are on it:

    wanted     by a source, and kept by the agent
    leaving    not wanted any more, still being stopped: shown with a deletion timestamp, as in the API
    stopped    by a person: named by a source and held back, with nothing left of it

The Go ancestor is `GetPods` in pkg/kubelet, which shows the first kind only.
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
_TIDYING_SECONDS = 5.0  # for so long what a pod left is waited for; housekeeping may be unable to remove it now
_LOOK_SECONDS = 0.05


class NoSuchPod(AgentError):
    """No pod goes by that name."""


class WhichPod(AgentError):
    """More than one pod goes by that name."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A pod on the board, and why it is as it is."""

    pod: Pod
    why: str


class Board:
    """What is known of the pods of one agent."""

    def __init__(self, agent: Agent, gate: Gate) -> None:
        self._agent = agent
        self._gate = gate
        self._ended: dict[PodUID, float] = {}  # who is leaving and has ended, and when that was seen

    @property
    def node_name(self) -> str:
        """The node's name."""
        return self._agent.settings.node_name

    def now(self) -> datetime:
        """Wall time, as the agent has it."""
        return self._agent.ports.clock.now()

    def health(self) -> tuple[str, ...]:
        """What is wrong with the agent itself."""
        return self._agent.health()

    # ---- pods ----

    def pods(self) -> tuple[Pod, ...]:
        """All pods, in the order of their names."""
        return tuple(sorted(self._all(), key=lambda pod: (pod.metadata.namespace or "", pod.metadata.name or "")))

    def pod_list(self) -> PodList:
        """All pods, as the kubelet lists them."""
        return PodList(api_version="v1", kind="PodList", items=self.pods())

    def shown(self) -> tuple[Shown, ...]:
        """All pods, with the reasons."""
        slow = self._slow()
        return tuple(Shown(pod, self._why(pod, slow)) for pod in self.pods())

    def table(self) -> Table:
        """All pods in lines."""
        return pods_table(((each.pod, each.why) for each in self.shown()), self.now())

    def leaving(self) -> dict[PodUID, Since]:
        """The pods that are being stopped."""
        self._see_who_is_gone()
        return dict(self._gate.leaving())

    async def see_off(self) -> None:
        """See who is gone, until cancelled: who is wanted again comes back then, whether anybody looks or not."""
        while True:
            await self._gate.until_one_leaves()
            self._see_who_is_gone()
            await asyncio.sleep(_LOOK_SECONDS)

    def find(self, name: str, namespace: str = "") -> Pod:
        """The pod that somebody means: by its full name, or by that in its manifest. Raises NoSuchPod, WhichPod."""
        pods = [pod for pod in self.pods() if not namespace or pod.metadata.namespace == namespace]
        found = [pod for pod in pods if pod.metadata.name == name] or [
            pod for pod in pods if pod.metadata.name == f"{name}-{self.node_name.lower()}"
        ]
        asked = f"{namespace}/{name}" if namespace else name
        alive = [pod for pod in found if not pod.metadata.deletion_timestamp]
        if len(found) > 1 and len(alive) == 1:
            return alive[0]  # its predecessor is still on its way out
        if len(found) > 1:
            names = ", ".join(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in found)
            raise WhichPod(f"cannot tell which pod {asked!r} is meant; right would be one of: {names}")
        if not found:
            raise NoSuchPod(f"cannot find a pod {asked!r}{self._hint(name)}")
        return found[0]

    def explain(self, pod: Pod) -> Explanation:
        """Where a pod stands, since when, what it waits for, and how it came there."""
        return self._agent.explain(_uid(pod))

    def events(self, pod: Pod | None = None) -> EventList:
        """The last events of one pod or of all, the latest last."""
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

    # ---- small parts ----

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
        # The loop may not have heard yet that it is unwanted; or, a moment ago, not even that it is wanted.
        unheard = self._agent.manager.pod_by_uid(uid) is not None or abs(self.now() - since.at) < _HEARING
        return not unheard and isinstance(self._agent.workers.state(uid), Unknown | Finished | NeverStarted)

    def _has_remains(self, uid: PodUID) -> bool:
        """Whether a pod that has ended left something that would be taken for a crash, were it started again now."""
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
            message=f"stopped by hand at {format_time(since.at)}; "
            f"'podkeeper start {shown_name(pod)}' or a change of its manifest starts it",
        )
        return replace(pod, status=status, metadata=self._dated(pod.metadata, status))

    def _dated(self, metadata: ObjectMeta, status: PodStatus) -> ObjectMeta:
        """With the time since when a pod is there: one from a manifest was never created in an API that says so."""
        born = instant(status.start_time) or self._gate.seen_since(PodUID(metadata.uid or ""))
        if metadata.creation_timestamp or born is None:
            return metadata
        return replace(metadata, creation_timestamp=format_time(born))

    def _slow(self) -> dict[str, str]:
        """The pods for which the runtime takes too long with something."""
        return {
            call.about: f"the runtime has not answered {call.operation} for {call.seconds:.0f} s"
            for call in self._agent.runtime.slow_calls()
        }

    def _why(self, pod: Pod, slow: dict[str, str]) -> str:
        uid = _uid(pod)
        if uid in self._agent.workers.waiting(full_name(pod)):
            return "waits for its predecessor to end"
        said = why(pod, self._agent.explain(uid), slow.get(f"{pod.metadata.namespace}/{pod.metadata.name}", ""))
        if self._gate.comes_back(uid):
            return f"{said}; then it is started again"
        return f"{said}; {rivals}" if (rivals := self._rivals(pod)) else said

    def _rivals(self, pod: Pod) -> str:
        """Of a pod for which there was no free port: who has what it wants."""
        if pod.status.reason != NO_PORT:
            return ""
        wanted = host_ports(pod)
        others = [each for each in self._agent.manager.pods() if _uid(each) != _uid(pod)]
        held = {port: shown_name(each) for each in others for port in host_ports(each) & wanted}
        return ", ".join(f"host port {port} is taken by {name}" for port, name in sorted(held.items()))

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
            return f"; near matches: {', '.join(near)}"
        some = sorted(plain)[:_NEAR_MATCHES]
        more = f", and {len(plain) - len(some)} more" if len(plain) > len(some) else ""
        return f"; there are: {', '.join(some)}{more}"


def host_ports(pod: Pod) -> frozenset[int]:
    """The ports of this machine that a pod wants for itself."""
    containers = (*(pod.spec.init_containers or ()), *pod.spec.containers)
    return frozenset(port.host_port for each in containers for port in each.ports or () if port.host_port)


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")
