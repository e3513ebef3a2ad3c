"""The agent's table of sandboxes and containers, the source of all records.

    events of keepers, or the files of dead keepers -> PodTable -> PodRecord, RuntimeEvent

A pod's record is built on the first query after a change. Input times are nanoseconds, output times UTC datetimes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, Final

import msgspec

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import (
    ContainerRecord,
    LinuxUser,
    NetworkMode,
    PodRecord,
    RecordState,
    SandboxRecord,
)
from podkeeper.model.runtime_calls import RuntimeEvent, RuntimeEventType

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class SandboxFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a sandbox: its `config.json`, which its keeper reads too."""

    id: str
    uid: PodUID
    name: str
    namespace: str
    attempt: int
    created_at: int
    hostname: str = ""
    log_directory: str = ""
    cgroup_parent: str = ""
    host_network: bool = False
    host_pid: bool = False
    host_ipc: bool = False
    share_process_namespace: bool = False


class ContainerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a container that the agent stores with its keeper."""

    name: str
    attempt: int
    image: str
    image_id: str
    spec_hash: str
    created_at: int
    user: LinuxUser | None = None


class ReportedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A container as its keeper reports it, see `keeper.containers`."""

    id: str
    facts: ContainerFacts
    state: str
    pid: int = 0
    ticks: int = 0
    code: int = 0
    reason: str = ""
    message: str = ""
    started_at: int = 0
    finished_at: int = 0


class SandboxState(Enum):
    READY = auto()  # its keeper answers
    STOPPING = auto()  # its keeper is shutting down
    UNRESPONSIVE = auto()  # its keeper runs but does not answer
    STOPPED = auto()  # its keeper has ended


@dataclass(slots=True, eq=False)
class Sandbox:
    facts: SandboxFacts
    state: SandboxState
    containers: dict[str, ReportedContainer] = field(default_factory=dict)

    @property
    def pod(self) -> str:
        """The pod's namespace and name, for messages."""
        return f"{self.facts.namespace}/{self.facts.name}"


def decode_container(value: Any) -> ReportedContainer:
    """Decode a container from a keeper's message. Raises msgspec.ValidationError."""
    return msgspec.convert(value, ReportedContainer)


def to_datetime(nanoseconds: int) -> datetime | None:
    """Convert a time. 0 means none."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000) if nanoseconds else None


def container_record(container: ReportedContainer, sandbox_id: str) -> ContainerRecord:
    facts = container.facts
    never_started = container.state == "exited" and not container.started_at
    return ContainerRecord(
        id=container.id,
        name=facts.name,
        state=RecordState(container.state),
        image=facts.image,
        image_id=facts.image_id,
        spec_hash=facts.spec_hash,
        sandbox_id=sandbox_id,
        restart_count=facts.attempt,
        created_at=to_datetime(facts.created_at),
        # CRI runtimes report zero, which is 1970, for a container that could not be started.
        started_at=_EPOCH if never_started else to_datetime(container.started_at),
        finished_at=to_datetime(container.finished_at),
        exit_code=container.code,
        reason=container.reason,
        message=container.message,
        user=facts.user,
    )


class PodTable:
    """All sandboxes and containers of this runtime. Sends an event for each change."""

    def __init__(self, send: Callable[[RuntimeEvent], None], host_ips: Callable[[], Sequence[str]]) -> None:
        self._send = send
        self._host_ips = host_ips
        self.sandboxes: dict[str, Sandbox] = {}
        self._sandbox_by_container: dict[str, Sandbox] = {}
        self._pods: dict[PodUID, list[Sandbox]] = {}
        self._records: dict[PodUID, PodRecord] = {}

    # Queries.

    def sandbox_of(self, container_id: str) -> Sandbox | None:
        return self._sandbox_by_container.get(container_id)

    def sandboxes_of(self, uid: PodUID) -> tuple[Sandbox, ...]:
        """Return a pod's sandboxes, newest first."""
        return tuple(self._pods.get(uid, ()))

    def record(self, uid: PodUID) -> PodRecord:
        """Return the record of a pod. It is empty if the pod is unknown."""
        if uid not in self._pods:
            return PodRecord(uid=uid)
        if (record := self._records.get(uid)) is None:
            record = self._records[uid] = self._build(uid)
        return record

    def records(self) -> tuple[PodRecord, ...]:
        return tuple(map(self.record, self._pods))

    def newest_creation(self, uid: PodUID) -> int:
        """Return the latest creation time in a pod. New objects must have a later time, even after a clock change."""
        sandboxes = self._pods.get(uid, ())
        made = [each.facts.created_at for box in sandboxes for each in box.containers.values()]
        return max((*made, *(box.facts.created_at for box in sandboxes)), default=0)

    # Changes.

    def add(self, sandbox: Sandbox, *, notify: bool = True) -> None:
        self.sandboxes[sandbox.facts.id] = sandbox
        sandboxes = self._pods.setdefault(sandbox.facts.uid, [])
        sandboxes.append(sandbox)
        sandboxes.sort(key=lambda box: (box.facts.attempt, box.facts.created_at), reverse=True)
        self._records.pop(sandbox.facts.uid, None)
        if notify:
            self._emit(sandbox, sandbox.facts.id, RuntimeEventType.CREATED)
            self._emit(sandbox, sandbox.facts.id, RuntimeEventType.STARTED)

    def set_state(self, sandbox: Sandbox, state: SandboxState) -> None:
        was_ready, sandbox.state = sandbox.state is SandboxState.READY, state
        self._records.pop(sandbox.facts.uid, None)
        if was_ready is not (state is SandboxState.READY):
            event_type = RuntimeEventType.STARTED if state is SandboxState.READY else RuntimeEventType.STOPPED
            self._emit(sandbox, sandbox.facts.id, event_type)

    def remove(self, sandbox: Sandbox) -> None:
        """Remove a sandbox and its containers."""
        for container_id in tuple(sandbox.containers):
            self.remove_container(sandbox, container_id)
        if self.sandboxes.pop(sandbox.facts.id, None) is None:
            return
        sandboxes = self._pods[sandbox.facts.uid]
        sandboxes.remove(sandbox)
        if not sandboxes:
            del self._pods[sandbox.facts.uid]
        self._records.pop(sandbox.facts.uid, None)
        self._emit(sandbox, sandbox.facts.id, RuntimeEventType.DELETED)

    def put_container(self, sandbox: Sandbox, container: ReportedContainer, *, notify: bool = True) -> None:
        """Add or update a container."""
        old = sandbox.containers.get(container.id)
        sandbox.containers[container.id] = container
        self._sandbox_by_container[container.id] = sandbox
        self._records.pop(sandbox.facts.uid, None)
        if notify and old != container:
            for event_type, at in _events_between(old, container):
                self._emit(sandbox, container.id, event_type, at)

    def remove_container(self, sandbox: Sandbox, container_id: str) -> None:
        if sandbox.containers.pop(container_id, None) is not None:
            self._sandbox_by_container.pop(container_id, None)
            self._records.pop(sandbox.facts.uid, None)
            self._emit(sandbox, container_id, RuntimeEventType.DELETED)

    def _emit(self, sandbox: Sandbox, object_id: str, event_type: RuntimeEventType, at: int = 0) -> None:
        self._send(RuntimeEvent(sandbox.facts.uid, object_id, event_type, to_datetime(at) or datetime.now(UTC)))

    def _build(self, uid: PodUID) -> PodRecord:
        sandboxes = self._pods[uid]
        ips = tuple(self._host_ips())
        containers = [(each, box.facts.id) for box in sandboxes for each in box.containers.values()]
        containers.sort(key=lambda pair: (pair[0].facts.created_at, pair[0].facts.attempt), reverse=True)
        return PodRecord(
            uid=uid,
            name=sandboxes[0].facts.name,
            namespace=sandboxes[0].facts.namespace,
            ips=ips if sandboxes[0].state is SandboxState.READY else (),
            sandboxes=tuple(_sandbox_record(box, ips) for box in sandboxes),
            containers=tuple(container_record(each, sandbox_id) for each, sandbox_id in containers),
        )


def _sandbox_record(sandbox: Sandbox, ips: tuple[str, ...]) -> SandboxRecord:
    facts, ready = sandbox.facts, sandbox.state is SandboxState.READY
    return SandboxRecord(
        id=facts.id,
        ready=ready,
        attempt=facts.attempt,
        # The network is always the node's. But report the mode that the pod requests, because the engine would replace
        # a sandbox with another mode again and again.
        network=NetworkMode.NODE if facts.host_network else NetworkMode.POD,
        ip=ips[0] if ready and ips else None,
        additional_ips=ips[1:] if ready else (),
        created_at=to_datetime(facts.created_at),
    )


def _events_between(old: ReportedContainer | None, new: ReportedContainer) -> Iterable[tuple[RuntimeEventType, int]]:
    """Return the events, with their times, that lead from the old to the new state of a container."""
    if old is None:
        yield RuntimeEventType.CREATED, new.facts.created_at
    old_state = "created" if old is None else old.state
    if old_state == "created" and new.state != "created" and new.started_at:
        yield RuntimeEventType.STARTED, new.started_at
    if old_state != "exited" and new.state == "exited":
        yield RuntimeEventType.STOPPED, new.finished_at
