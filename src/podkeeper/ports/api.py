"""The Kubernetes API, as little of it as a node needs.

Kinds are the structs of `model.k8s`; the implementation knows where each lives. Errors are those of
`model.errors`: `NotFound`, `AlreadyExists`, `Conflict`, `Gone`, and `ApiUnavailable` for all that may pass.
"""

from collections.abc import AsyncIterator
from typing import Protocol, TypeVar

from podkeeper.model.api import Listed, WatchEvent
from podkeeper.model.wire import JSONObject, Wire

K = TypeVar("K", bound=Wire)


class Reader(Protocol):
    """Asks for one object."""

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        """The object as the API has it. Raises NotFound.

        A watch cache may answer if it holds the object. That an object does not exist is only answered by the API
        server itself, by a consistent read: pods are stopped because of it.
        """


class Watcher(Protocol):
    """Follows all objects of a kind."""

    async def list(self, kind: type[K], *, namespace: str = "", field_selector: str = "") -> Listed[K]:
        """All objects, and the version from which to watch on."""

    def watch(
        self, kind: type[K], resource_version: str, *, namespace: str = "", field_selector: str = ""
    ) -> AsyncIterator[WatchEvent[K]]:
        """What changes after a version. Ends when the server closes the stream; raises Gone when the version is
        too old (list again), ApiUnavailable when the connection breaks (watch on from the last version seen).
        """


class Writer(Protocol):
    """Changes objects. A call that fails may have taken effect: whoever retries must bear that."""

    async def create(self, what: K) -> K:
        """Create an object. Raises AlreadyExists."""

    async def patch(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        """Strategic merge patch of the object itself; its status, where it has one, stays as it is. Raises NotFound.

        A `metadata.uid` or `metadata.resourceVersion` in it is a precondition: Conflict when it differs.
        """

    async def patch_status(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        """Strategic merge patch of the status. A `metadata.uid` in it is a precondition: Conflict when it differs.

        Raises NotFound.
        """

    async def delete(
        self,
        kind: type[K],
        name: str,
        namespace: str = "",
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None:
        """Delete an object, gracefully unless `grace_seconds` is 0. Raises NotFound; Conflict when the UID differs."""


class Api(Reader, Watcher, Writer, Protocol):
    """All of it."""
