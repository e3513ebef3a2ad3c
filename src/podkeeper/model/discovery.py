"""Aggregated discovery: all groups and resources (apidiscovery.k8s.io/v2).

The older responses, one per group (`APIGroupList`, `APIResourceList`), are in `k8s.meta`.
"""

from typing import Final

from msgspec import field

from podkeeper.model.k8s import meta
from podkeeper.model.wire import Filled, Wire, empty_list, fill

API_VERSION: Final = "apidiscovery.k8s.io/v2"


class GroupVersionKind(Wire, frozen=True):
    """The full name of a kind. The core group's name is empty."""

    group: Filled[str] = field(default_factory=str)
    version: Filled[str] = field(default_factory=str)
    kind: Filled[str] = field(default_factory=str)

    def __post_init__(self) -> None:
        if None in (self.group, self.version, self.kind):
            fill(self)


class APISubresourceDiscovery(Wire, frozen=True):
    """One subresource (`status`, `log`): the kinds it returns and accepts."""

    subresource: Filled[str] = field(default_factory=str)
    response_kind: GroupVersionKind | None = field(default=None, name="responseKind")
    accepted_types: tuple[GroupVersionKind, ...] | None = field(default=None, name="acceptedTypes")
    verbs: Filled[tuple[str, ...]] = field(default_factory=empty_list)

    def __post_init__(self) -> None:
        if None in (self.subresource, self.verbs):
            fill(self)


class APIResourceDiscovery(Wire, frozen=True):
    """One resource (`pods`): its kind, scope, names, verbs and subresources."""

    resource: Filled[str] = field(default_factory=str)
    response_kind: GroupVersionKind | None = field(default=None, name="responseKind")
    scope: Filled[str] = field(default_factory=str)
    singular_resource: Filled[str] = field(default_factory=str, name="singularResource")
    verbs: Filled[tuple[str, ...]] = field(default_factory=empty_list)
    short_names: tuple[str, ...] | None = field(default=None, name="shortNames")
    categories: tuple[str, ...] | None = None
    subresources: tuple[APISubresourceDiscovery, ...] | None = None

    def __post_init__(self) -> None:
        if None in (self.resource, self.scope, self.singular_resource, self.verbs):
            fill(self)


class APIVersionDiscovery(Wire, frozen=True):
    """One version of a group."""

    version: Filled[str] = field(default_factory=str)
    resources: tuple[APIResourceDiscovery, ...] | None = None
    freshness: str | None = None

    def __post_init__(self) -> None:
        if self.version is None:
            fill(self)


class APIGroupDiscovery(Wire, frozen=True):
    """One group, named by its metadata. The first version is the preferred one."""

    api_version: str | None = field(default=None, name="apiVersion")
    kind: str | None = None
    metadata: Filled[meta.ObjectMeta] = field(default_factory=meta.ObjectMeta)
    versions: tuple[APIVersionDiscovery, ...] | None = None

    def __post_init__(self) -> None:
        if self.metadata is None:
            fill(self)


class APIGroupDiscoveryList(Wire, frozen=True):
    """All groups of the server."""

    api_version: str | None = field(default=None, name="apiVersion")
    kind: str | None = None
    metadata: Filled[meta.ListMeta] = field(default_factory=meta.ListMeta)
    items: Filled[tuple[APIGroupDiscovery, ...]] = field(default_factory=empty_list)

    def __post_init__(self) -> None:
        if None in (self.metadata, self.items):
            fill(self)
