"""Ground truth: the true history of every sandbox and container.

Invariants compare it with the statuses that the agent publishes.

The data comes from the runtime's own changes, not from its events. Removed containers stay in it.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.testing.sim.records import Bus, ContainerChanged, SandboxChanged


@dataclass(slots=True, eq=False)
class ContainerRun:
    """One container from its creation to its removal. Times are virtual seconds. None: has not happened."""

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
        """Whether it is running now."""
        return self.started is not None and self.ended is None


@dataclass(slots=True, eq=False)
class SandboxRun:
    """One sandbox from its creation to its removal."""

    id: str
    uid: PodUID
    attempt: int
    made: float
    stopped: float | None = None
    removed: float | None = None


class GroundTruth:
    """All sandboxes and containers that ever existed."""

    def __init__(self, bus: Bus) -> None:
        self.containers: dict[str, ContainerRun] = {}
        self.sandboxes: dict[str, SandboxRun] = {}
        self._by_pod: defaultdict[PodUID, list[ContainerRun]] = defaultdict(list)
        self._running: dict[str, ContainerRun] = {}
        bus.subscribe(ContainerChanged, self._on_container_changed)
        bus.subscribe(SandboxChanged, self._on_sandbox_changed)

    def of_pod(self, uid: PodUID) -> list[ContainerRun]:
        """Return the containers of a pod, oldest first."""
        return self._by_pod.get(uid, [])

    def attempts(self, uid: PodUID, name: str) -> list[ContainerRun]:
        """Return all attempts of one container of a pod, oldest first."""
        return [run for run in self.of_pod(uid) if run.name == name]

    def running(self, uid: PodUID) -> list[ContainerRun]:
        """Return the running containers of a pod."""
        return [run for run in self.of_pod(uid) if run.running]

    def all_running(self) -> Iterable[ContainerRun]:
        """Return all running containers."""
        return self._running.values()

    def pod_of(self, object_id: str) -> PodUID:
        """Return the pod of a container or sandbox. Empty: the ID never existed."""
        found = self.containers.get(object_id) or self.sandboxes.get(object_id)
        return PodUID("") if found is None else found.uid

    def _on_container_changed(self, change: ContainerChanged) -> None:
        record, at = change.record, change.at
        run = self.containers.get(record.id)
        if run is None:
            run = self.containers[record.id] = ContainerRun(
                id=record.id,
                uid=change.uid,
                name=record.name,
                attempt=record.restart_count,
                image=record.image,
                spec_hash=record.spec_hash,
                sandbox_id=record.sandbox_id,
                created=at,
            )
            self._by_pod[change.uid].append(run)
        match change.happened:
            case RuntimeEventType.STARTED:
                run.started = at
                self._running[run.id] = run
            case RuntimeEventType.STOPPED:
                run.ended, run.exit_code, run.reason = at, record.exit_code, record.reason
                self._running.pop(run.id, None)
            case RuntimeEventType.DELETED:
                run.removed = at

    def _on_sandbox_changed(self, change: SandboxChanged) -> None:
        record, at = change.record, change.at
        run = self.sandboxes.get(record.id)
        if run is None:
            run = self.sandboxes[record.id] = SandboxRun(record.id, change.uid, record.attempt, at)
        match change.happened:
            case RuntimeEventType.STOPPED:
                run.stopped = at
            case RuntimeEventType.DELETED:
                run.removed = at
