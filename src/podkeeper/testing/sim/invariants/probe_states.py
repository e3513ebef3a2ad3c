"""The true probe state of all containers: which of them are started and ready.

Input: the true state of containers, and every result of the agent's probes. Output: for each container and each pod,
whether it is ready, and when it last changed. The rules are the kubelet's:

* A container without a readiness probe is ready once it has started. Without a startup probe, it has started once it
  runs.
* A result takes effect after as many equal results in a row as the threshold requires. A probe that could not run has
  no result. The streak continues from one attempt of a container to the next, and ends with the agent process.
* A container that does not run is neither started nor ready.

A restart of the agent changes none of these states.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from podkeeper.model.k8s.core import Container, Pod, Probe
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandExited, Endpoint, HealthAnswer, HttpAnswer, HttpRequest, TimedOut
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.testing.sim.invariants.pods import TrackedPods
from podkeeper.testing.sim.pods import lasting_containers
from podkeeper.testing.sim.records import AgentStarted, ContainerChanged, ReadEnded, SandboxChanged
from podkeeper.testing.sim.world import World

SERVING = 1
_NETWORK = frozenset({"http", "tcp", "grpc"})


@dataclass(slots=True, eq=False)
class Flag:
    """A boolean, and when it changed."""

    value: bool = False
    _became: dict[bool, float] = field(default_factory=dict)  # when it last became true, and when false

    def set(self, value: bool, at: float) -> None:
        if value is not self.value:
            self.value = value
            self._became[value] = at

    def is_or_became(self, value: bool, since: float) -> bool:
        """Whether it has this value, or changed to it since a time."""
        return self.value is value or self._became.get(value, -inf) >= since

    def was(self, value: bool, since: float) -> bool:
        """Whether it has this value, or had it at a time or since."""
        return self.value is value or self._became.get(self.value, -inf) > since

    @property
    def changed(self) -> float:
        """When it last changed."""
        return max(self._became.values(), default=-inf)


@dataclass(slots=True, eq=False)
class ContainerProbeState:
    """One container of a pod, through all its attempts."""

    spec: Container
    id: str = ""  # of the current or last attempt
    since: float = 0.0  # when that attempt started
    started: Flag = field(default_factory=Flag)
    ready: Flag = field(default_factory=Flag)
    streak: tuple[bool, int] = (False, 0)  # the last result of its readiness probe, and how often it came in a row

    def begin(self, id_: str, at: float) -> None:
        self.id, self.since = id_, at
        self.started.set(self.spec.startup_probe is None, at)
        self.ready.set(self.started.value and self.spec.readiness_probe is None, at)

    def end(self, at: float) -> None:
        self.ready.set(False, at)
        self.started.set(False, at)

    def add_startup_result(self, good: bool, at: float) -> None:
        """Add a result of its startup probe. A final failure needs no state, because the container is killed then."""
        if good and not self.started.value:
            self.started.set(True, at)
            self.ready.set(self.spec.readiness_probe is None, at)

    def add_readiness_result(self, probe: Probe, good: bool, at: float) -> None:
        """Add a result of its readiness probe."""
        self.streak = (good, self.streak[1] + 1 if self.streak[0] is good else 1)
        threshold = probe.success_threshold if good else probe.failure_threshold
        if self.streak[1] >= (threshold or 0):
            self.ready.set(good and self.started.value, at)


class PodProbeState:
    """The containers of one pod that count for its readiness."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.containers = {each.name: ContainerProbeState(each) for each in lasting_containers(pod)}
        self.ready = Flag()

    def update(self, pod: Pod) -> None:
        """Take a newer version of the pod. Its probes and container names do not change."""
        self.pod = pod
        for each in lasting_containers(pod):
            known = self.containers.get(each.name)
            if known is None:
                self.containers[each.name] = ContainerProbeState(each)
            else:
                known.spec = each

    def update_ready(self, at: float) -> None:
        """Compute the readiness of the pod from its containers."""
        self.ready.set(all(each.ready.value for each in self.containers.values()), at)


class ProbeTracker:
    """All pods with containers that ever ran."""

    def __init__(self, world: World, pods: TrackedPods) -> None:
        self.liveness_listeners: list[
            Callable[[PodUID, ContainerProbeState, bool], None]
        ] = []  # called with each result of a liveness probe
        self.pods = pods
        self._pods: dict[PodUID, PodProbeState] = {}
        self._at_address: dict[str, PodUID] = {}
        world.bus.subscribe(ContainerChanged, self._on_container_changed)
        world.bus.subscribe(SandboxChanged, self._on_sandbox_changed)
        world.bus.subscribe(ReadEnded, self._on_read_ended)
        world.bus.subscribe(AgentStarted, self._on_agent_started)

    def get(self, uid: PodUID) -> PodProbeState | None:
        """Return the state of a pod. None: none of its containers ever ran."""
        return self._pods.get(uid)

    def _on_container_changed(self, change: ContainerChanged) -> None:
        known = self.pods.get(change.uid)
        if known is None:
            return
        found = self._pods.get(change.uid)
        if found is None:
            found = self._pods[change.uid] = PodProbeState(known.pod)
        elif found.pod is not known.pod:
            found.update(known.pod)
        container = found.containers.get(change.record.name)
        if container is None:
            return
        if change.happened is RuntimeEventType.STARTED:
            container.begin(change.record.id, change.at)
        elif change.happened is RuntimeEventType.STOPPED and container.id == change.record.id:
            container.end(change.at)
        found.update_ready(change.at)

    def _on_sandbox_changed(self, change: SandboxChanged) -> None:
        if change.happened is RuntimeEventType.STARTED and change.record.ip:
            self._at_address[change.record.ip] = change.uid

    def _on_agent_started(self, began: AgentStarted) -> None:
        for found in self._pods.values():
            for container in found.containers.values():
                container.streak = (False, 0)

    # Results.

    def _on_read_ended(self, read: ReadEnded) -> None:
        if read.error:
            return
        if read.operation == "exec_sync":
            good = _command_outcome(read.result)
            found = self._pods.get(read.uid)
            container = None if found is None else found.containers.get(read.subject)
            if found is not None and container is not None and container.id == read.args[0] and good is not None:
                self._add_result(found, container, "exec", read.args[1], good, read.at)
        elif read.operation in _NETWORK:
            self._on_network_probe(read)

    def _on_network_probe(self, read: ReadEnded) -> None:
        host, port = _target_of(read.args[0])
        found = self._pods.get(self._at_address.get(host, PodUID("")))
        if found is not None:
            good = _network_outcome(read.operation, read.result)
            for container in found.containers.values():
                self._add_result(found, container, read.operation, port, good, read.at)

    def _add_result(
        self, found: PodProbeState, container: ContainerProbeState, method: str, target: object, good: bool, at: float
    ) -> None:
        """Add a result to those probes of a container that match it."""
        if _matches(container.spec.startup_probe, method, target):
            container.add_startup_result(good, at)
        if _matches(container.spec.liveness_probe, method, target):
            for listener in self.liveness_listeners:
                listener(PodUID(found.pod.metadata.uid or ""), container, good)
        probe = container.spec.readiness_probe
        if probe is not None and container.started.value and _matches(probe, method, target):
            container.add_readiness_result(probe, good, at)
        found.update_ready(at)


def _matches(probe: Probe | None, method: str, target: object) -> bool:
    """Whether a probe has this method and target: a command or a port."""
    if probe is None:
        return False
    match method:
        case "exec":
            return probe.exec is not None and probe.exec.command == target
        case "http":
            return probe.http_get is not None and probe.http_get.port == target
        case "tcp":
            return probe.tcp_socket is not None and probe.tcp_socket.port == target
        case _:
            return probe.grpc is not None and probe.grpc.port == target


def _target_of(read: object) -> tuple[str, int]:
    """Return host and port of a request."""
    if isinstance(read, Endpoint):
        return read.host, read.port
    assert isinstance(read, HttpRequest)
    host, _, port = read.url.partition("://")[2].partition("/")[0].rpartition(":")
    return host.strip("[]"), int(port)


def _command_outcome(end: object) -> bool | None:
    """Whether a command succeeded. None: it has no result."""
    match end:
        case CommandExited(code=code):
            return code == 0
        case TimedOut():
            return False
        case _:
            return None


def _network_outcome(method: str, end: object) -> bool:
    match end:
        case HttpAnswer(status=status):
            return 200 <= status < 400
        case HealthAnswer(serving_status=status):
            return status == SERVING
        case _:
            return method == "tcp" and end is None
