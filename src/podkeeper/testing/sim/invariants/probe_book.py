"""The book of probes: which containers are truly started and ready, as far as anybody could know.

In: what containers really do, and every answer that a probe of the agent really got. Out: for each container, and for
each pod as a whole, whether it is ready now and when it last was not. It follows the reference's rules:

* a container without a readiness probe is ready once it has started, without a startup probe once it runs;
* an answer counts when as many equal ones in a row came as its threshold asks for; one that is no answer (the command
  could not be run) counts for nothing; the row goes on from one container to the next, and ends with the agent;
* what does not run is neither started nor ready.

That nothing changes when an agent dies is the point: the book goes on where it was.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from podkeeper.model.k8s.core import Container, Pod, Probe
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import Answered, Endpoint, Exited, HttpAnswer, HttpRequest, TimedOut
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.testing.sim.invariants.pods import Pods
from podkeeper.testing.sim.pods import lasting_containers
from podkeeper.testing.sim.records import Asked, ContainerChanged, LifeBegan, SandboxChanged
from podkeeper.testing.sim.world import World

SERVING = 1
_NETWORK = frozenset({"http", "tcp", "grpc"})


@dataclass(slots=True, eq=False)
class Flag:
    """Something that is so or not, and since when."""

    value: bool = False
    _became: dict[bool, float] = field(default_factory=dict)  # when it last became so, or not so

    def set(self, value: bool, at: float) -> None:
        """From now on it is so."""
        if value is not self.value:
            self.value = value
            self._became[value] = at

    def is_or_became(self, value: bool, since: float) -> bool:
        """Whether it is so, or became so for a while since a moment."""
        return self.value is value or self._became.get(value, -inf) >= since

    def was(self, value: bool, since: float) -> bool:
        """Whether it is so, or still was at a moment, or at any since."""
        return self.value is value or self._became.get(self.value, -inf) > since

    @property
    def changed(self) -> float:
        """When it last changed."""
        return max(self._became.values(), default=-inf)


@dataclass(slots=True, eq=False)
class Probed:
    """One container of a pod, through all its runs."""

    spec: Container
    id: str = ""  # of the run that is under way, or was the last one
    since: float = 0.0  # when that began
    started: Flag = field(default_factory=Flag)
    ready: Flag = field(default_factory=Flag)
    row: tuple[bool, int] = (False, 0)  # the last answer of its readiness probe, and how often in a row it came

    def begin(self, id_: str, at: float) -> None:
        """A new run."""
        self.id, self.since = id_, at
        self.started.set(self.spec.startup_probe is None, at)
        self.ready.set(self.started.value and self.spec.readiness_probe is None, at)

    def end(self, at: float) -> None:
        """It runs no more."""
        self.ready.set(False, at)
        self.started.set(False, at)

    def hear_startup(self, good: bool, at: float) -> None:
        """Take an answer of its startup probe; one that fails for good has the container killed, and that is seen."""
        if good and not self.started.value:
            self.started.set(True, at)
            self.ready.set(self.spec.readiness_probe is None, at)

    def hear_readiness(self, probe: Probe, good: bool, at: float) -> None:
        """Take an answer of its readiness probe."""
        self.row = (good, self.row[1] + 1 if self.row[0] is good else 1)
        threshold = probe.success_threshold if good else probe.failure_threshold
        if self.row[1] >= (threshold or 0):
            self.ready.set(good and self.started.value, at)


class PodProbes:
    """The containers of one pod that count for its readiness."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.containers = {each.name: Probed(each) for each in lasting_containers(pod)}
        self.ready = Flag()

    def update(self, pod: Pod) -> None:
        """Take a newer version of the pod. What its containers are asked does not change, nor their names."""
        self.pod = pod
        for each in lasting_containers(pod):
            known = self.containers.get(each.name)
            if known is None:
                self.containers[each.name] = Probed(each)
            else:
                known.spec = each

    def settle(self, at: float) -> None:
        """Draw the pod's readiness from that of its containers."""
        self.ready.set(all(each.ready.value for each in self.containers.values()), at)


class ProbeBook:
    """All pods whose containers ever ran."""

    def __init__(self, world: World, pods: Pods) -> None:
        self.liveness: list[Callable[[PodUID, Probed, bool], None]] = []  # who hears of answers of liveness probes
        self.pods = pods
        self._pods: dict[PodUID, PodProbes] = {}
        self._at_address: dict[str, PodUID] = {}
        world.bus.subscribe(ContainerChanged, self._see_container)
        world.bus.subscribe(SandboxChanged, self._see_sandbox)
        world.bus.subscribe(Asked, self._hear)
        world.bus.subscribe(LifeBegan, self._see_life)

    def get(self, uid: PodUID) -> PodProbes | None:
        """What is known of a pod; None: nothing of it ever ran."""
        return self._pods.get(uid)

    def _see_container(self, change: ContainerChanged) -> None:
        known = self.pods.get(change.uid)
        if known is None:
            return
        found = self._pods.get(change.uid)
        if found is None:
            found = self._pods[change.uid] = PodProbes(known.pod)
        elif found.pod is not known.pod:
            found.update(known.pod)
        container = found.containers.get(change.record.name)
        if container is None:
            return
        if change.happened is RuntimeEventType.STARTED:
            container.begin(change.record.id, change.at)
        elif change.happened is RuntimeEventType.STOPPED and container.id == change.record.id:
            container.end(change.at)
        found.settle(change.at)

    def _see_sandbox(self, change: SandboxChanged) -> None:
        if change.happened is RuntimeEventType.STARTED and change.record.ip:
            self._at_address[change.record.ip] = change.uid

    def _see_life(self, began: LifeBegan) -> None:
        for found in self._pods.values():
            for container in found.containers.values():
                container.row = (False, 0)

    # Answers.

    def _hear(self, asked: Asked) -> None:
        if asked.error:
            return
        if asked.operation == "exec_sync":
            good = _command_outcome(asked.result)
            found = self._pods.get(asked.uid)
            container = None if found is None else found.containers.get(asked.subject)
            if found is not None and container is not None and container.id == asked.given[0] and good is not None:
                self._take(found, container, "exec", asked.given[1], good, asked.at)
        elif asked.operation in _NETWORK:
            self._hear_network(asked)

    def _hear_network(self, asked: Asked) -> None:
        host, port = _target_of(asked.given[0])
        found = self._pods.get(self._at_address.get(host, PodUID("")))
        if found is not None:
            good = _network_outcome(asked.operation, asked.result)
            for container in found.containers.values():
                self._take(found, container, asked.operation, port, good, asked.at)

    def _take(self, found: PodProbes, it: Probed, way: str, target: object, good: bool, at: float) -> None:
        """Let a container's probes hear an answer, those of them that asked so."""
        if _asks(it.spec.startup_probe, way, target):
            it.hear_startup(good, at)
        if _asks(it.spec.liveness_probe, way, target):
            for hear in self.liveness:
                hear(PodUID(found.pod.metadata.uid or ""), it, good)
        probe = it.spec.readiness_probe
        if probe is not None and it.started.value and _asks(probe, way, target):
            it.hear_readiness(probe, good, at)
        found.settle(at)


def _asks(probe: Probe | None, way: str, target: object) -> bool:
    """Whether a probe asks this way for this: a command, or a port."""
    if probe is None:
        return False
    match way:
        case "exec":
            return probe.exec is not None and probe.exec.command == target
        case "http":
            return probe.http_get is not None and probe.http_get.port == target
        case "tcp":
            return probe.tcp_socket is not None and probe.tcp_socket.port == target
        case _:
            return probe.grpc is not None and probe.grpc.port == target


def _target_of(asked: object) -> tuple[str, int]:
    """Host and port of a request."""
    if isinstance(asked, Endpoint):
        return asked.host, asked.port
    assert isinstance(asked, HttpRequest)
    host, _, port = asked.url.partition("://")[2].partition("/")[0].rpartition(":")
    return host.strip("[]"), int(port)


def _command_outcome(end: object) -> bool | None:
    """What the end of a command says; None: nothing."""
    match end:
        case Exited(code=code):
            return code == 0
        case TimedOut():
            return False
        case _:
            return None


def _network_outcome(way: str, end: object) -> bool:
    match end:
        case HttpAnswer(status=status):
            return 200 <= status < 400
        case Answered(serving_status=status):
            return status == SERVING
        case _:
            return way == "tcp" and end is None
