"""The truth: what every sandbox and container of the simulation really did, for those who judge what the agent says.

Filled from the runtime's own changes, whatever news of them gets lost. Nothing is forgotten when it is removed.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.testing.sim.records import Bus, ContainerChanged, SandboxChanged


@dataclass(slots=True, eq=False)
class ContainerLife:
    """One container from its making to its removal; moments are virtual seconds, None: not (yet)."""

    id: str
    uid: PodUID
    name: str
    attempt: int
    image: str
    spec_hash: str
    sandbox_id: str
    created: float
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    reason: str = ""
    removed: float | None = None

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return self.started is not None and self.ended is None


@dataclass(slots=True, eq=False)
class SandboxLife:
    """One sandbox from its making to its removal."""

    id: str
    uid: PodUID
    attempt: int
    made: float
    stopped: float | None = None
    removed: float | None = None


class Truth:
    """All sandboxes and containers there ever were."""

    def __init__(self, bus: Bus) -> None:
        self.containers: dict[str, ContainerLife] = {}
        self.sandboxes: dict[str, SandboxLife] = {}
        self._by_pod: defaultdict[PodUID, list[ContainerLife]] = defaultdict(list)
        self._running: dict[str, ContainerLife] = {}
        bus.subscribe(ContainerChanged, self._see_container)
        bus.subscribe(SandboxChanged, self._see_sandbox)

    def of_pod(self, uid: PodUID) -> list[ContainerLife]:
        """A pod's containers, oldest first."""
        return self._by_pod.get(uid, [])

    def attempts(self, uid: PodUID, name: str) -> list[ContainerLife]:
        """All there was of one container of a pod, oldest first."""
        return [life for life in self.of_pod(uid) if life.name == name]

    def running(self, uid: PodUID) -> list[ContainerLife]:
        """What of a pod runs now."""
        return [life for life in self.of_pod(uid) if life.running]

    def all_running(self) -> Iterable[ContainerLife]:
        """Everything that runs now."""
        return self._running.values()

    def pod_of(self, thing_id: str) -> PodUID:
        """Whose container or sandbox an id belongs to; empty: there never was one."""
        thing = self.containers.get(thing_id) or self.sandboxes.get(thing_id)
        return PodUID("") if thing is None else thing.uid

    def _see_container(self, change: ContainerChanged) -> None:
        record, at = change.record, change.at
        life = self.containers.get(record.id)
        if life is None:
            life = self.containers[record.id] = ContainerLife(
                id=record.id,
                uid=change.uid,
                name=record.name,
                attempt=record.restart_count,
                image=record.image,
                spec_hash=record.spec_hash,
                sandbox_id=record.sandbox_id,
                created=at,
            )
            self._by_pod[change.uid].append(life)
        match change.happened:
            case RuntimeEventType.STARTED:
                life.started = at
                self._running[life.id] = life
            case RuntimeEventType.STOPPED:
                life.ended, life.exit_code, life.reason = at, record.exit_code, record.reason
                self._running.pop(life.id, None)
            case RuntimeEventType.DELETED:
                life.removed = at

    def _see_sandbox(self, change: SandboxChanged) -> None:
        record, at = change.record, change.at
        life = self.sandboxes.get(record.id)
        if life is None:
            life = self.sandboxes[record.id] = SandboxLife(record.id, change.uid, record.attempt, at)
        match change.happened:
            case RuntimeEventType.STOPPED:
                life.stopped = at
            case RuntimeEventType.DELETED:
                life.removed = at
