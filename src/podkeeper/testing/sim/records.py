"""What can be seen happening in a simulation, as values; and who sees it.

Everything that crosses a port and everything that changes in the world is told the moment it happens, in order. The
truth, the trace and the invariants live on it. A witness must not raise (it runs inside whatever happens): it reports.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID, PodUpdate
from podkeeper.model.runtime import ContainerRecord, SandboxRecord
from podkeeper.model.runtime_calls import RuntimeEventType

R = TypeVar("R", bound="Record")


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """Something that happened."""

    at: float  # virtual seconds


@dataclass(frozen=True, slots=True, eq=False)
class Called(Record):
    """The agent calls into the world to change something; it has had no effect yet."""

    life: int
    room: str  # runtime, api, volumes, cgroups, journal
    operation: str
    uid: PodUID  # whom it is about, as far as that can be told; for the API the object's UID
    subject: str  # what of it: a container's name, an object's
    given: tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Answered(Record):
    """Such a call has ended; `error` is the name of the error's class, empty when it ended well."""

    call: Called
    error: str
    result: object


@dataclass(frozen=True, slots=True, eq=False)
class Asked(Record):
    """The agent asked the world something that changes nothing (a look, a probe), and has its answer."""

    life: int
    room: str
    operation: str
    uid: PodUID
    subject: str
    given: tuple[object, ...]
    error: str
    result: object
    begun: float


@dataclass(frozen=True, slots=True, eq=False)
class SandboxChanged(Record):
    """A sandbox is another one than before."""

    uid: PodUID
    record: SandboxRecord
    happened: RuntimeEventType


@dataclass(frozen=True, slots=True, eq=False)
class ContainerChanged(Record):
    """A container is another one than before."""

    uid: PodUID
    record: ContainerRecord
    happened: RuntimeEventType


@dataclass(frozen=True, slots=True, eq=False)
class PodChanged(Record):
    """A pod in the API is another one than before; `by` is the life of the agent that did it, 0: somebody else."""

    old: Pod | None
    new: Pod | None
    by: int


@dataclass(frozen=True, slots=True, eq=False)
class Told(Record):
    """A source told the agent something."""

    life: int
    update: PodUpdate


@dataclass(frozen=True, slots=True, eq=False)
class EvictionBegan(Record):
    """Somebody has the agent evict a pod, within some seconds."""

    pod: Pod
    grace_seconds: int


@dataclass(frozen=True, slots=True, eq=False)
class EvictionEnded(Record):
    """The agent has answered him; `done`: the pod has ended."""

    uid: PodUID
    done: bool


@dataclass(frozen=True, slots=True, eq=False)
class LifeBegan(Record):
    """An agent was started."""

    life: int


@dataclass(frozen=True, slots=True, eq=False)
class LifeEnded(Record):
    """An agent is no more."""

    life: int
    how: str


@dataclass(frozen=True, slots=True, eq=False)
class Played(Record):
    """An act of the history was played."""

    number: int
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class TroubleBegan(Record):
    """Something goes wrong from now on; `uid` when it concerns one pod only."""

    kind: str
    uid: PodUID | None


@dataclass(frozen=True, slots=True, eq=False)
class TroubleEnded(Record):
    """That trouble is over."""

    kind: str
    uid: PodUID | None


class Bus:
    """Hands every record to those who want to see its kind, in the order they asked."""

    def __init__(self) -> None:
        self._witnesses: defaultdict[type[Record], list[Callable[[Record], None]]] = defaultdict(list)

    def subscribe(self, kind: type[R], witness: Callable[[R], None]) -> None:
        """Show somebody every record of a kind."""
        self._witnesses[kind].append(witness)  # type: ignore[arg-type]  # shown to it are only records of that kind

    def tell(self, record: Record) -> None:
        """Show a record to all who want it."""
        for witness in self._witnesses[type(record)]:
            witness(record)
