"""The node's own config maps and secrets, from its manifests.

    documents of a source --replace--> LocalObjects --get--> containers' environments, volumes
                                            `--subscribe--> volumes, which update their files

Each source replaces all its objects at once. If two sources have an object of the same name, the source whose name
comes first (`file` before `http`) has priority. `LocalObjects` implements the `ObjectReader` of ports/api.py for a node
without API server.

`replace` does not await. So a source can replace its objects before it sends its pods, and pods find them at once.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from podkeeper.model.errors import NotFound
from podkeeper.model.k8s.core import ConfigMap, Secret
from podkeeper.model.wire import Wire
from podkeeper.rules.static.pod import DEFAULT_NAMESPACE

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Wire)

LocalObject = ConfigMap | Secret


@dataclass(frozen=True, slots=True)
class ObjectKey:
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


ChangeListener = Callable[[frozenset[ObjectKey]], None]
"""Receives the keys of created, changed and removed objects."""


class LocalObjects:
    def __init__(self) -> None:
        self._by_owner: dict[str, dict[ObjectKey, LocalObject]] = {}
        self._all: dict[ObjectKey, LocalObject] = {}
        self._listeners: dict[object, ChangeListener] = {}

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        """Return an object. Raises NotFound."""
        key = ObjectKey(kind.__name__, namespace or DEFAULT_NAMESPACE, name)
        found = self._all.get(key)
        if not isinstance(found, kind):
            raise NotFound(f"{key} not found in the manifests of this node; add it to a manifest file")
        return found

    def objects(self) -> tuple[LocalObject, ...]:
        """Return all objects, sorted by kind and name."""
        return tuple(self._all[key] for key in sorted(self._all, key=str))

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Call the listener on every change. Returns a function that ends the subscription."""
        ticket = object()  # the same listener may subscribe twice
        self._listeners[ticket] = listener
        return lambda: self._listeners.pop(ticket, None) and None

    def replace(self, owner: str, objects: Iterable[LocalObject]) -> frozenset[ObjectKey]:
        """Replace all objects of an owner. Returns the keys of changed objects."""
        self._by_owner[owner] = {key_of(each): each for each in objects}
        before, self._all = self._all, {}
        # In reverse order, so that the source whose name comes first wins.
        for _, owned in sorted(self._by_owner.items(), reverse=True):
            self._all |= owned
        changed = frozenset(key for key in before.keys() | self._all.keys() if before.get(key) != self._all.get(key))
        if changed:
            self._announce(changed)
        return changed

    def _announce(self, changed: frozenset[ObjectKey]) -> None:
        for listener in tuple(self._listeners.values()):
            try:
                listener(changed)
            except Exception:  # an error in a listener must not affect the source and the other listeners
                log.exception("unexpected error in a listener for changes of %s", ", ".join(sorted(map(str, changed))))


def key_of(what: LocalObject) -> ObjectKey:
    return ObjectKey(type(what).__name__, what.metadata.namespace or DEFAULT_NAMESPACE, what.metadata.name or "")
