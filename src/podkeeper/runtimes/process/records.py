"""The agent's own picture of what keepers keep: the source of every list and record, so that nobody is asked twice.

    keepers' words, or the files of dead ones -> Mirror -> PodRecord, RuntimeEvent

A pod's record is built when it is first asked for after a change. Times come as nanoseconds and leave as UTC datetimes.
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
    ContainerState,
    LinuxUser,
    NetworkMode,
    PodRecord,
    SandboxRecord,
)
from podkeeper.model.runtime_calls import RuntimeEvent, RuntimeEventType

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class SandboxFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox was made from: its `config.json`, which its keeper reads too."""

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
    """What a keeper keeps for the agent about a container."""

    name: str
    attempt: int
    image: str
    image_id: str
    spec_hash: str
    created_at: int
    user: LinuxUser | None = None


class ToldContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A container as its keeper tells of it: see `keeper.containers`."""

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


class Standing(Enum):
    """How a sandbox is."""

    READY = auto()  # its keeper answers
    LEAVING = auto()  # its keeper was told to go
    SILENT = auto()  # its keeper lives, and does not answer
    STOPPED = auto()  # it has no keeper any more


@dataclass(slots=True, eq=False)
class Sandbox:
    """One sandbox in the picture."""

    facts: SandboxFacts
    standing: Standing
    containers: dict[str, ToldContainer] = field(default_factory=dict)

    @property
    def pod(self) -> str:
        """What people call the pod."""
        return f"{self.facts.namespace}/{self.facts.name}"


def told(value: Any) -> ToldContainer:
    """Read what a keeper says of a container. Raises msgspec.ValidationError."""
    return msgspec.convert(value, ToldContainer)


def moment(nanoseconds: int) -> datetime | None:
    """An instant; 0 is none."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000) if nanoseconds else None


def container_record(container: ToldContainer, sandbox_id: str) -> ContainerRecord:
    """A container as the port shows it."""
    facts = container.facts
    return ContainerRecord(
        id=container.id,
        name=facts.name,
        state=ContainerState(container.state),
        image=facts.image,
        image_id=facts.image_id,
        spec_hash=facts.spec_hash,
        sandbox_id=sandbox_id,
        restart_count=facts.attempt,
        created_at=moment(facts.created_at),
        # One that could not be started has the time that a CRI runtime tells: zero, which is 1970.
        started_at=_EPOCH if container.state == "exited" and not container.started_at else moment(container.started_at),
        finished_at=moment(container.finished_at),
        exit_code=container.code,
        reason=container.reason,
        message=container.message,
        user=facts.user,
    )


class Mirror:
    """Every sandbox and container of this runtime, and who is told when that changes."""

    def __init__(self, tell: Callable[[RuntimeEvent], None], host_ips: Callable[[], Sequence[str]]) -> None:
        self._tell = tell
        self._host_ips = host_ips
        self.sandboxes: dict[str, Sandbox] = {}
        self._homes: dict[str, Sandbox] = {}  # of containers
        self._pods: dict[PodUID, list[Sandbox]] = {}
        self._records: dict[PodUID, PodRecord] = {}

    # Looking.

    def home_of(self, container_id: str) -> Sandbox | None:
        """The sandbox a container is in."""
        return self._homes.get(container_id)

    def of_pod(self, uid: PodUID) -> tuple[Sandbox, ...]:
        """A pod's sandboxes, newest first."""
        return tuple(self._pods.get(uid, ()))

    def record(self, uid: PodUID) -> PodRecord:
        """All about one pod."""
        if uid not in self._pods:
            return PodRecord(uid=uid)
        if (record := self._records.get(uid)) is None:
            record = self._records[uid] = self._build(uid)
        return record

    def records(self) -> tuple[PodRecord, ...]:
        """All about every pod."""
        return tuple(map(self.record, self._pods))

    def newest_instant(self, uid: PodUID) -> int:
        """The latest creation in a pod: what is made next must be younger, whatever the clock says."""
        sandboxes = self._pods.get(uid, ())
        made = [each.facts.created_at for box in sandboxes for each in box.containers.values()]
        return max((*made, *(box.facts.created_at for box in sandboxes)), default=0)

    # Changing.

    def add(self, sandbox: Sandbox, *, tell: bool = True) -> None:
        """There is one more sandbox."""
        self.sandboxes[sandbox.facts.id] = sandbox
        boxes = self._pods.setdefault(sandbox.facts.uid, [])
        boxes.append(sandbox)
        boxes.sort(key=lambda box: (box.facts.attempt, box.facts.created_at), reverse=True)
        self._records.pop(sandbox.facts.uid, None)
        if tell:
            self._news(sandbox, sandbox.facts.id, RuntimeEventType.CREATED)
            self._news(sandbox, sandbox.facts.id, RuntimeEventType.STARTED)

    def stand(self, sandbox: Sandbox, standing: Standing) -> None:
        """A sandbox is not as it was."""
        was_ready, sandbox.standing = sandbox.standing is Standing.READY, standing
        self._records.pop(sandbox.facts.uid, None)
        if was_ready is not (standing is Standing.READY):
            happened = RuntimeEventType.STARTED if standing is Standing.READY else RuntimeEventType.STOPPED
            self._news(sandbox, sandbox.facts.id, happened)

    def remove(self, sandbox: Sandbox) -> None:
        """A sandbox is gone, and all in it."""
        for container_id in tuple(sandbox.containers):
            self.remove_container(sandbox, container_id)
        if self.sandboxes.pop(sandbox.facts.id, None) is None:
            return
        boxes = self._pods[sandbox.facts.uid]
        boxes.remove(sandbox)
        if not boxes:
            del self._pods[sandbox.facts.uid]
        self._records.pop(sandbox.facts.uid, None)
        self._news(sandbox, sandbox.facts.id, RuntimeEventType.DELETED)

    def put(self, sandbox: Sandbox, container: ToldContainer, *, tell: bool = True) -> None:
        """A container is there, or is not as it was."""
        before = sandbox.containers.get(container.id)
        sandbox.containers[container.id] = container
        self._homes[container.id] = sandbox
        self._records.pop(sandbox.facts.uid, None)
        if tell and before != container:
            for happened, at in _between(before, container):
                self._news(sandbox, container.id, happened, at)

    def remove_container(self, sandbox: Sandbox, container_id: str) -> None:
        """A container is gone."""
        if sandbox.containers.pop(container_id, None) is not None:
            self._homes.pop(container_id, None)
            self._records.pop(sandbox.facts.uid, None)
            self._news(sandbox, container_id, RuntimeEventType.DELETED)

    def _news(self, sandbox: Sandbox, thing: str, happened: RuntimeEventType, at: int = 0) -> None:
        self._tell(RuntimeEvent(sandbox.facts.uid, thing, happened, moment(at) or datetime.now(UTC)))

    def _build(self, uid: PodUID) -> PodRecord:
        sandboxes = self._pods[uid]
        ips = tuple(self._host_ips())
        containers = [(each, box.facts.id) for box in sandboxes for each in box.containers.values()]
        containers.sort(key=lambda pair: (pair[0].facts.created_at, pair[0].facts.attempt), reverse=True)
        return PodRecord(
            uid=uid,
            name=sandboxes[0].facts.name,
            namespace=sandboxes[0].facts.namespace,
            ips=ips if sandboxes[0].standing is Standing.READY else (),
            sandboxes=tuple(_sandbox_record(box, ips) for box in sandboxes),
            containers=tuple(container_record(each, home) for each, home in containers),
        )


def _sandbox_record(sandbox: Sandbox, ips: tuple[str, ...]) -> SandboxRecord:
    facts, ready = sandbox.facts, sandbox.standing is Standing.READY
    return SandboxRecord(
        id=facts.id,
        ready=ready,
        attempt=facts.attempt,
        # The network is always the node's. What is told is what the pod asked for: a sandbox whose mode is not what its
        # pod wants is made anew, for ever.
        network=NetworkMode.NODE if facts.host_network else NetworkMode.POD,
        ip=ips[0] if ready and ips else None,
        additional_ips=ips[1:] if ready else (),
        created_at=moment(facts.created_at),
    )


def _between(before: ToldContainer | None, now: ToldContainer) -> Iterable[tuple[RuntimeEventType, int]]:
    """What has happened to a container since it was last told of, and when."""
    if before is None:
        yield RuntimeEventType.CREATED, now.facts.created_at
    known = "created" if before is None else before.state
    if known == "created" and now.state != "created" and now.started_at:
        yield RuntimeEventType.STARTED, now.started_at
    if known != "exited" and now.state == "exited":
        yield RuntimeEventType.STOPPED, now.finished_at
