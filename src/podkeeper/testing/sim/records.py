"""What can be seen happening in a simulation, as values; and who sees it.

Everything that crosses a port and everything that changes in the world is told the moment it happens, in order. The
truth, the trace and the invariants live on it. A witness must not raise (it runs inside whatever happens): it reports.

Records are structs and not dataclasses: a play makes tens of thousands, and a frozen dataclass takes ten times as long.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID, PodUpdate
from podkeeper.model.runtime import ContainerRecord, SandboxRecord
from podkeeper.model.runtime_calls import RuntimeEventType

R = TypeVar("R", bound="Record")


class Record(Struct, frozen=True, eq=False):
    """Something that happened."""

    at: float  # virtual seconds


class Called(Record, frozen=True, eq=False):
    """The agent calls into the world to change something; it has had no effect yet."""

    life: int
    room: str  # runtime, api, volumes, cgroups, journal
    operation: str
    uid: PodUID  # whom it is about, as far as that can be told; for the API the object's UID
    subject: str  # what of it: a container's name, an object's
    given: tuple[object, ...]


class Answered(Record, frozen=True, eq=False):
    """Such a call has ended; `error` is the name of the error's class, empty when it ended well."""

    call: Called
    error: str
    result: object


class Asked(Record, frozen=True, eq=False):
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


class SandboxChanged(Record, frozen=True, eq=False):
    """A sandbox is another one than before."""

    uid: PodUID
    record: SandboxRecord
    happened: RuntimeEventType


class ContainerChanged(Record, frozen=True, eq=False):
    """A container is another one than before."""

    uid: PodUID
    record: ContainerRecord
    happened: RuntimeEventType


class PodChanged(Record, frozen=True, eq=False):
    """A pod in the API is another one than before; `by` is the life of the agent that did it, 0: somebody else."""

    old: Pod | None
    new: Pod | None
    by: int


class Told(Record, frozen=True, eq=False):
    """A source told the agent something."""

    life: int
    update: PodUpdate


class EvictionBegan(Record, frozen=True, eq=False):
    """Somebody has the agent evict a pod, within some seconds."""

    pod: Pod
    grace_seconds: int


class EvictionEnded(Record, frozen=True, eq=False):
    """The agent has answered him; `done`: the pod has ended."""

    uid: PodUID
    done: bool


class LifeBegan(Record, frozen=True, eq=False):
    """An agent was started."""

    life: int


class LifeEnded(Record, frozen=True, eq=False):
    """An agent is no more."""

    life: int
    how: str


class Played(Record, frozen=True, eq=False):
    """An act of the history was played."""

    number: int
    text: str


class TroubleBegan(Record, frozen=True, eq=False):
    """Something goes wrong from now on; `uid` when it concerns one pod only."""

    kind: str
    uid: PodUID | None


class TroubleEnded(Record, frozen=True, eq=False):
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
