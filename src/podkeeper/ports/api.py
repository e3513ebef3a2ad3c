"""The part of the Kubernetes API that a node needs.

Kinds are the structs of `model.k8s`. The implementation maps each kind to its path. Errors are those of `model.errors`:
`NotFound`, `AlreadyExists`, `Conflict`, `Gone`, and `ApiUnavailable` for everything temporary.
"""

from collections.abc import AsyncIterator
from typing import Protocol, TypeVar

from podkeeper.model.api import Listed, ObjectEvent
from podkeeper.model.k8s.core import Pod
from podkeeper.model.wire import JSONObject, Wire

K = TypeVar("K", bound=Wire)


class ObjectReader(Protocol):
    """Reads one object."""

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        """Return the object. Raise NotFound.

        A watch cache may answer if it has the object. NotFound must come from a consistent read of the API server,
        because the agent stops a pod after NotFound.
        """


class TokenProvider(Protocol):
    """Issues service account tokens."""

    async def token(self, pod: Pod, audience: str, expiration_seconds: int | None) -> str:
        """Return a valid token, the same one until it must be renewed. Raise TryLater."""


class Watcher(Protocol):
    """Lists and watches all objects of a kind."""

    async def list(self, kind: type[K], *, namespace: str = "", field_selector: str = "") -> Listed[K]:
        """Return all objects and the resource version for the watch."""

    def watch(
        self, kind: type[K], resource_version: str, *, namespace: str = "", field_selector: str = ""
    ) -> AsyncIterator[ObjectEvent[K]]:
        """Yield the changes after a resource version. End when the server closes the stream.

        Raise Gone if the version is too old: list again. Raise ApiUnavailable if the connection breaks: watch again
        from the last version received.
        """


class Writer(Protocol):
    """Changes objects. A failed call may have taken effect, so retries must handle that."""

    async def create(self, what: K) -> K:
        """Create an object. Raise AlreadyExists."""

    async def patch(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        """Apply a strategic merge patch to the object, but not to its status. Raise NotFound.

        A `metadata.uid` or `metadata.resourceVersion` in the patch is a precondition. Raise Conflict if it differs.
        """

    async def patch_status(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        """Apply a strategic merge patch to the status. Raise NotFound.

        A `metadata.uid` in the patch is a precondition. Raise Conflict if it differs.
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
        """Delete an object, gracefully unless `grace_seconds` is 0. Raise NotFound, or Conflict if the UID differs."""


class ReadWriteApi(ObjectReader, Writer, Protocol):
    """The port without lists and watches."""


class Api(ReadWriteApi, Watcher, Protocol):
    """The whole port."""
