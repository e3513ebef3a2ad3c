"""Resource metrics, the format of `kubectl top` (metrics.k8s.io/v1beta1)."""

from typing import Final

from msgspec import field

from podkeeper.model.k8s import meta
from podkeeper.model.wire import Filled, QuantityLike, Time, Wire, empty_list, empty_map, fill, null

API_VERSION: Final = "metrics.k8s.io/v1beta1"


def zero_duration() -> str:
    """The zero of a duration held by value."""
    return "0s"


class ContainerMetrics(Wire, frozen=True):
    """Usage of one container."""

    name: Filled[str] = field(default_factory=str)
    usage: Filled[dict[str, QuantityLike]] = field(default_factory=empty_map)

    def __post_init__(self) -> None:
        if None in (self.name, self.usage):
            fill(self)


class PodMetrics(Wire, frozen=True):
    """Usage of a pod's containers, measured over `window` until `timestamp`."""

    api_version: str | None = field(default=None, name="apiVersion")
    kind: str | None = None
    metadata: Filled[meta.ObjectMeta] = field(default_factory=meta.ObjectMeta)
    timestamp: Time | None = field(default_factory=null)
    window: Filled[str] = field(default_factory=zero_duration)  # a duration as Go writes it
    containers: Filled[tuple[ContainerMetrics, ...]] = field(default_factory=empty_list)

    def __post_init__(self) -> None:
        if None in (self.metadata, self.window, self.containers):
            fill(self)


class PodMetricsList(Wire, frozen=True):
    api_version: str | None = field(default=None, name="apiVersion")
    kind: str | None = None
    metadata: Filled[meta.ListMeta] = field(default_factory=meta.ListMeta)
    items: Filled[tuple[PodMetrics, ...]] = field(default_factory=empty_list)

    def __post_init__(self) -> None:
        if None in (self.metadata, self.items):
            fill(self)


class NodeMetrics(Wire, frozen=True):
    """Usage of a node, measured over `window` until `timestamp`."""

    api_version: str | None = field(default=None, name="apiVersion")
    kind: str | None = None
    metadata: Filled[meta.ObjectMeta] = field(default_factory=meta.ObjectMeta)
    timestamp: Time | None = field(default_factory=null)
    window: Filled[str] = field(default_factory=zero_duration)  # a duration as Go writes it
    usage: Filled[dict[str, QuantityLike]] = field(default_factory=empty_map)

    def __post_init__(self) -> None:
        if None in (self.metadata, self.window, self.usage):
            fill(self)


class NodeMetricsList(Wire, frozen=True):
    api_version: str | None = field(default=None, name="apiVersion")
    kind: str | None = None
    metadata: Filled[meta.ListMeta] = field(default_factory=meta.ListMeta)
    items: Filled[tuple[NodeMetrics, ...]] = field(default_factory=empty_list)

    def __post_init__(self) -> None:
        if None in (self.metadata, self.items):
            fill(self)
