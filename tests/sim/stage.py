"""A stage for invariants: a world in which things happen by being said.

What an agent must never do is not easily had from one that works; so it is told to the bus as if it had happened.
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
from podkeeper.model.runtime import ContainerRecord, SandboxRecord
from podkeeper.model.runtime import ContainerState as RuntimeState
from podkeeper.model.runtime_calls import ContainerConfig, RuntimeEventType
from podkeeper.testing.sim.invariants.causes import Causes
from podkeeper.testing.sim.invariants.containers import Containers
from podkeeper.testing.sim.invariants.exits import Exits
from podkeeper.testing.sim.invariants.grace import Graces
from podkeeper.testing.sim.invariants.makings import Makings
from podkeeper.testing.sim.invariants.phases import Phases
from podkeeper.testing.sim.invariants.pods import Pods
from podkeeper.testing.sim.invariants.probing import Probing
from podkeeper.testing.sim.invariants.running import Running
from podkeeper.testing.sim.invariants.starts import Starts
from podkeeper.testing.sim.invariants.storms import Storms
from podkeeper.testing.sim.invariants.upkeep import Upkeep
from podkeeper.testing.sim.invariants.words import Words
from podkeeper.testing.sim.records import (
    Answered,
    Asked,
    Called,
    ContainerChanged,
    LifeBegan,
    LifeEnded,
    PodChanged,
    SandboxChanged,
    Told,
)
from podkeeper.testing.sim.world import World
from tests.sim.stories import container, pod

UID = PodUID("u1")


class Stage:
    """A world in which things happen by being said."""

    def __init__(self, world: World) -> None:
        self.world = world
        pods = Pods(self.world)
        for room in (Phases, Exits, Containers, Graces):
            room(self.world, pods)
        makings = Makings(self.world)
        Starts(self.world, pods, makings)
        Causes(self.world, pods, makings)
        Words(self.world)
        Running(self.world, pods)
        Probing(self.world, pods)
        Upkeep(self.world)
        Storms(self.world)
        self.life = 1
        self.at = self.world.now()

    @property
    def broken(self) -> str:
        """Which promise was broken, if any."""
        return "" if self.world.violation is None else self.world.violation.invariant

    # The runtime.

    def sandbox(
        self, id_: str = "s1", uid: PodUID = UID, happened: RuntimeEventType = RuntimeEventType.STARTED
    ) -> None:
        record = SandboxRecord(id=id_, ready=happened is RuntimeEventType.STARTED)
        self.world.bus.tell(SandboxChanged(self.at, uid, record, happened))

    def runs(self, id_: str, name: str = "app", uid: PodUID = UID, **more: object) -> None:
        """A container is made and starts."""
        record = ContainerRecord(id=id_, name=name, state=RuntimeState.RUNNING, sandbox_id="s1")
        record = replace(record, **more)
        for happened in (RuntimeEventType.CREATED, RuntimeEventType.STARTED):
            self.world.bus.tell(ContainerChanged(self.at, uid, record, happened))

    def ends(self, id_: str, exit_code: int = 0, name: str = "app", uid: PodUID = UID) -> None:
        record = ContainerRecord(id=id_, name=name, state=RuntimeState.EXITED, exit_code=exit_code)
        self.world.bus.tell(ContainerChanged(self.at, uid, record, RuntimeEventType.STOPPED))

    def is_removed(self, id_: str, name: str = "app", uid: PodUID = UID) -> None:
        record = ContainerRecord(id=id_, name=name, state=RuntimeState.EXITED)
        self.world.bus.tell(ContainerChanged(self.at, uid, record, RuntimeEventType.DELETED))

    def again(self, spec: Pod, id_: str, attempt: int = 1, *, name: str = "app", sandbox: str = "s1") -> None:
        """The agent has another attempt of a container made and started."""
        self.creates(spec, attempt, name=name, sandbox=sandbox)
        self.runs(id_, name, restart_count=attempt, sandbox_id=sandbox)

    # The agent.

    def creates(self, spec: Pod, attempt: int, *, name: str = "app", sandbox: str = "s1") -> None:
        config = ContainerConfig(pod=spec, container=container(name), attempt=attempt, image=name, spec_hash="")
        self.calls("create_container", sandbox, config, subject=name)

    def starts(self, id_: str, name: str = "app", uid: PodUID = UID) -> None:
        """A call to start a container returns."""
        call = Called(self.at, self.life, "runtime", "start_container", uid, name, (id_,))
        self.world.bus.tell(Answered(self.at, call, "", None))

    def calls(self, operation: str, *given: object, uid: PodUID = UID, subject: str = "app") -> None:
        self.world.bus.tell(Called(self.at, self.life, "runtime", operation, uid, subject, given))

    def runs_hook(self, id_: str, command: str, begun: float) -> None:
        """A command in a container, a hook or a probe, has ended."""
        given = (id_, (command,), 30.0)
        asked = Asked(self.at, self.life, "runtime", "exec_sync", UID, "app", given, "", None, begun)
        self.world.bus.tell(asked)

    def publishes(self, old: Pod | None, new: Pod | None, by: int = 1) -> None:
        self.world.bus.tell(PodChanged(self.at, old, new, by))

    def hears(self, *pods: Pod, op: Op = Op.SET, source: str = API_SOURCE) -> None:
        self.world.bus.tell(Told(self.at, self.life, PodUpdate(op, pods, source)))

    def removes(self, room: str, operation: str) -> None:
        """The agent removes something that its pod needs: a mount, a cgroup."""
        self.world.bus.tell(Called(self.at, self.life, room, operation, UID, "", (UID,)))

    def dies(self) -> None:
        """The agent dies, and another one takes its place."""
        self.world.bus.tell(LifeEnded(self.at, self.life, "killed"))
        self.life += 1
        self.world.bus.tell(LifeBegan(self.at, self.life))


def known(spec: Pod | None = None, uid: PodUID = UID, **status: object) -> Pod:
    """A pod of the API."""
    spec = spec or pod("web")
    return replace(spec, metadata=replace(spec.metadata, uid=uid), status=PodStatus(**status))  # type: ignore[arg-type]  # any field


def going(spec: Pod, grace: int = 30) -> Pod:
    meta = replace(spec.metadata, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=grace)
    return replace(spec, metadata=meta)


def mirror(uid: str, of: str, **status: object) -> Pod:
    found = known(None, PodUID(uid), **status)
    return replace(found, metadata=replace(found.metadata, annotations={CONFIG_MIRROR_ANNOTATION: of}))


def said(name: str = "app", *, id_: str = "", exit_code: int | None = None, restarts: int = 0) -> ContainerStatus:
    """A container that runs, or is said to have ended."""
    end = ContainerStateTerminated(exit_code=exit_code or 0, container_id=f"fake://{id_}" if id_ else None)
    state = ContainerState(running=ContainerStateRunning()) if exit_code is None else ContainerState(terminated=end)
    found = ContainerStatus(name=name, image=name, container_id=f"fake://{id_}" if id_ else None, state=state)
    return replace(found, restart_count=restarts)
