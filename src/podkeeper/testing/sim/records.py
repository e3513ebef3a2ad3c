"""Records of what happens in a simulation, and the bus that delivers them.

Every call through a port and every change of the world is published at once and in order. Ground truth, trace and
invariants subscribe to the records. A subscriber must not raise, because it runs inside the operation that publishes.

Records are structs instead of dataclasses: a run creates tens of thousands of them, and a frozen dataclass takes ten
times as long.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID, PodUpdate
from podkeeper.model.runtime import ContainerRecord, SandboxRecord
from podkeeper.model.runtime_calls import RuntimeEventType

R = TypeVar("R", bound="SimRecord")


class SimRecord(Struct, frozen=True, eq=False):
    """Base of all records."""

    at: float  # virtual seconds


class CallStarted(SimRecord, frozen=True, eq=False):
    """The agent starts a call that changes something (a write). It has had no effect yet."""

    agent: int
    port: str  # runtime, api, volumes, cgroups, journal
    operation: str
    uid: PodUID  # the pod, if known; for API calls the UID of the object
    subject: str  # the name of the container or object
    args: tuple[object, ...]


class CallEnded(SimRecord, frozen=True, eq=False):
    """A write has ended. `error` is the class name of its error, or empty."""

    call: CallStarted
    error: str
    result: object


class ReadEnded(SimRecord, frozen=True, eq=False):
    """A call that changes nothing (an inspection, a probe) has ended."""

    agent: int
    port: str
    operation: str
    uid: PodUID
    subject: str
    args: tuple[object, ...]
    error: str
    result: object
    began: float


class SandboxChanged(SimRecord, frozen=True, eq=False):
    """A sandbox was created, started, stopped or removed."""

    uid: PodUID
    record: SandboxRecord
    happened: RuntimeEventType


class ContainerChanged(SimRecord, frozen=True, eq=False):
    """A container was created, started, stopped or removed."""

    uid: PodUID
    record: ContainerRecord
    happened: RuntimeEventType


class PodChanged(SimRecord, frozen=True, eq=False):
    """A pod in the API has changed. `by` is the number of the agent process that changed it. 0: another client."""

    old: Pod | None
    new: Pod | None
    by: int


class UpdateReceived(SimRecord, frozen=True, eq=False):
    """The agent receives an update from a source."""

    agent: int
    update: PodUpdate


class EvictionBegan(SimRecord, frozen=True, eq=False):
    """The agent starts to evict a pod, with a grace period."""

    pod: Pod
    grace_seconds: int


class EvictionEnded(SimRecord, frozen=True, eq=False):
    """The eviction call has returned. `done`: the pod has terminated."""

    uid: PodUID
    done: bool


class AgentStarted(SimRecord, frozen=True, eq=False):
    """An agent process has started."""

    agent: int


class AgentStopped(SimRecord, frozen=True, eq=False):
    """An agent process has ended."""

    agent: int
    how: str


class ActionStarted(SimRecord, frozen=True, eq=False):
    """An action of the schedule runs now."""

    number: int
    text: str


class FaultBegan(SimRecord, frozen=True, eq=False):
    """A fault has begun. `uid` is None if it affects the whole node."""

    kind: str
    uid: PodUID | None


class FaultEnded(SimRecord, frozen=True, eq=False):
    """A fault has ended."""

    kind: str
    uid: PodUID | None


class Bus:
    """Delivers each record to the subscribers of its class, in the order of their subscription."""

    def __init__(self) -> None:
        self._subscribers: defaultdict[type[SimRecord], list[Callable[[SimRecord], None]]] = defaultdict(list)

    def subscribe(self, kind: type[R], subscriber: Callable[[R], None]) -> None:
        """Call `subscriber` with each record of a class."""
        self._subscribers[kind].append(subscriber)  # type: ignore[arg-type]  # it only receives records of that class

    def publish(self, record: SimRecord) -> None:
        for subscriber in self._subscribers[type(record)]:
            subscriber(record)
