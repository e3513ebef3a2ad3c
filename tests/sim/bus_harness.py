"""Harness for invariants: publish records on the bus of a world without an agent.

A correct agent would not produce the violations, so the tests publish them.
"""

from msgspec.structs import replace

from podkeeper.model.k8s.core import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    PodStatus,
)
from podkeeper.model.messages import API_SOURCE, CONFIG_MIRROR_ANNOTATION, Op, PodUID, PodUpdate
from podkeeper.model.runtime import ContainerRecord, RecordState, SandboxRecord
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEventType
from podkeeper.testing.build import container
from podkeeper.testing.sim.invariants.call_rate import CallRate
from podkeeper.testing.sim.invariants.causes import StopCauses
from podkeeper.testing.sim.invariants.containers import UniqueContainers
from podkeeper.testing.sim.invariants.created_specs import CreatedSpecs
from podkeeper.testing.sim.invariants.exits import ExitStatuses
from podkeeper.testing.sim.invariants.foreign_fields import ForeignFields
from podkeeper.testing.sim.invariants.grace import GracePeriods
from podkeeper.testing.sim.invariants.in_use import ResourcesInUse
from podkeeper.testing.sim.invariants.phases import MonotonicStatus
from podkeeper.testing.sim.invariants.pods import TrackedPods
from podkeeper.testing.sim.invariants.probing import ProbeOverlap
from podkeeper.testing.sim.invariants.running import PublishedRunning
from podkeeper.testing.sim.invariants.starts import AllowedStarts
from podkeeper.testing.sim.records import (
    AgentStarted,
    AgentStopped,
    CallEnded,
    CallStarted,
    ContainerChanged,
    PodChanged,
    ReadEnded,
    SandboxChanged,
    UpdateReceived,
)
from podkeeper.testing.sim.world import World
from tests.sim.sim_node import pod

UID = PodUID("u1")


class BusHarness:
    """A world in which records are published directly."""

    def __init__(self, world: World) -> None:
        self.world = world
        pods = TrackedPods(self.world)
        for room in (MonotonicStatus, ExitStatuses, UniqueContainers, GracePeriods):
            room(self.world, pods)
        makings = CreatedSpecs(self.world)
        AllowedStarts(self.world, pods, makings)
        StopCauses(self.world, pods, makings)
        ForeignFields(self.world)
        PublishedRunning(self.world, pods)
        ProbeOverlap(self.world, pods)
        ResourcesInUse(self.world)
        CallRate(self.world)
        self.agent = 1
        self.at = self.world.now()

    @property
    def violated(self) -> str:
        """The violated invariant, or empty."""
        return "" if self.world.violation is None else self.world.violation.invariant

    # The runtime.

    def sandbox(
        self, id_: str = "s1", uid: PodUID = UID, happened: RuntimeEventType = RuntimeEventType.STARTED
    ) -> None:
        record = SandboxRecord(id=id_, ready=happened is RuntimeEventType.STARTED)
        self.world.bus.publish(SandboxChanged(self.at, uid, record, happened))

    def runs(self, id_: str, name: str = "app", uid: PodUID = UID, **more: object) -> None:
        """A container is created and starts."""
        record = ContainerRecord(id=id_, name=name, state=RecordState.RUNNING, sandbox_id="s1")
        record = replace(record, **more)
        for happened in (RuntimeEventType.CREATED, RuntimeEventType.STARTED):
            self.world.bus.publish(ContainerChanged(self.at, uid, record, happened))

    def ends(self, id_: str, exit_code: int = 0, name: str = "app", uid: PodUID = UID) -> None:
        record = ContainerRecord(id=id_, name=name, state=RecordState.EXITED, exit_code=exit_code)
        self.world.bus.publish(ContainerChanged(self.at, uid, record, RuntimeEventType.STOPPED))

    def is_removed(self, id_: str, name: str = "app", uid: PodUID = UID) -> None:
        record = ContainerRecord(id=id_, name=name, state=RecordState.EXITED)
        self.world.bus.publish(ContainerChanged(self.at, uid, record, RuntimeEventType.DELETED))

    def again(self, spec: Pod, id_: str, attempt: int = 1, *, name: str = "app", sandbox: str = "s1") -> None:
        """The agent creates and starts another attempt of a container."""
        self.creates(spec, attempt, name=name, sandbox=sandbox)
        self.runs(id_, name, restart_count=attempt, sandbox_id=sandbox)

    # The agent.

    def creates(self, spec: Pod, attempt: int, *, name: str = "app", sandbox: str = "s1") -> None:
        config = ContainerConfig(pod=spec, container=container(name), attempt=attempt, image=name, spec_hash="")
        self.calls("create_container", sandbox, config, subject=name)

    def starts(self, id_: str, name: str = "app", uid: PodUID = UID) -> None:
        """A call to start a container returns."""
        call = CallStarted(self.at, self.agent, "runtime", "start_container", uid, name, (id_,))
        self.world.bus.publish(CallEnded(self.at, call, "", None))

    def calls(self, operation: str, *args: object, uid: PodUID = UID, subject: str = "app") -> None:
        self.world.bus.publish(CallStarted(self.at, self.agent, "runtime", operation, uid, subject, args))

    def runs_hook(self, id_: str, command: str, begun: float) -> None:
        """A command in a container, a hook or a probe, has ended."""
        args = (id_, (command,), 30.0)
        record = ReadEnded(self.at, self.agent, "runtime", "exec_sync", UID, "app", args, "", None, begun)
        self.world.bus.publish(record)

    def publishes(self, old: Pod | None, new: Pod | None, by: int = 1) -> None:
        self.world.bus.publish(PodChanged(self.at, old, new, by))

    def receives(self, *pods: Pod, op: Op = Op.SET, source: str = API_SOURCE) -> None:
        self.world.bus.publish(UpdateReceived(self.at, self.agent, PodUpdate(op, pods, source)))

    def removes(self, room: str, operation: str) -> None:
        """The agent removes something that its pod needs: a mount, a cgroup."""
        self.world.bus.publish(CallStarted(self.at, self.agent, room, operation, UID, "", (UID,)))

    def restarts(self) -> None:
        """The agent crashes, and another one starts."""
        self.world.bus.publish(AgentStopped(self.at, self.agent, "killed"))
        self.agent += 1
        self.world.bus.publish(AgentStarted(self.at, self.agent))


def known(spec: Pod | None = None, uid: PodUID = UID, **status: object) -> Pod:
    """A pod of the API."""
    spec = spec or pod("web")
    return replace(spec, metadata=replace(spec.metadata, uid=uid), status=PodStatus(**status))  # type: ignore[arg-type]  # any field


def deleted(spec: Pod, grace: int = 30) -> Pod:
    meta = replace(spec.metadata, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=grace)
    return replace(spec, metadata=meta)


def mirror(uid: str, of: str, **status: object) -> Pod:
    found = known(None, PodUID(uid), **status)
    return replace(found, metadata=replace(found.metadata, annotations={CONFIG_MIRROR_ANNOTATION: of}))


def container_status(
    name: str = "app", *, id_: str = "", exit_code: int | None = None, restarts: int = 0
) -> ContainerStatus:
    """A running container, or one that is published as ended."""
    end = ContainerStateTerminated(exit_code=exit_code or 0, container_id=f"fake://{id_}" if id_ else None)
    state = ContainerState(running=ContainerStateRunning()) if exit_code is None else ContainerState(terminated=end)
    found = ContainerStatus(name=name, image=name, container_id=f"fake://{id_}" if id_ else None, state=state)
    return replace(found, restart_count=restarts)
