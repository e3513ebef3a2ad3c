"""The node's own config maps and secrets: those that lie beside the pods in its manifests.

    documents of a source --replace--> LocalObjects --get--> containers' environments, volumes
                                            `--subscribe--> whoever shows an object live

A node without an API server has no other place for them. Each source owns what it found and replaces it as a whole;
of two sources that have an object of one name, the one that came first in the alphabet (`file` before `http`) counts.
Whoever asks by the `Reader` of ports/api.py need not know that there is no API.

Nothing here awaits: an object is there for every reader before `replace` returns, so a source that replaces its
objects before it tells its pods never lets a pod look for what is not there yet.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from podkeeper.model.errors import NotFound
from podkeeper.model.k8s.core import ConfigMap, Secret
from podkeeper.model.wire import Wire
from podkeeper.rules.static import DEFAULT_NAMESPACE

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Wire)

LocalObject = ConfigMap | Secret


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """Which object: its kind, as `kind` in a manifest says it, and its name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


Listener = Callable[[frozenset[ObjectKey]], None]
"""Is told which objects came, changed or went."""


class LocalObjects:
    """Config maps and secrets of this node."""

    def __init__(self) -> None:
        self._by_owner: dict[str, dict[ObjectKey, LocalObject]] = {}
        self._all: dict[ObjectKey, LocalObject] = {}
        self._listeners: dict[object, Listener] = {}

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        """The object as it is now. Raises NotFound."""
        key = ObjectKey(kind.__name__, namespace or DEFAULT_NAMESPACE, name)
        found = self._all.get(key)
        if not isinstance(found, kind):
            raise NotFound(f"cannot find {key} among this node's manifests; put its document beside the pods")
        return found

    def objects(self) -> tuple[LocalObject, ...]:
        """All of them, in the order of their kinds and names."""
        return tuple(self._all[key] for key in sorted(self._all, key=str))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell somebody of every change from now on. Returns what ends that."""
        ticket = object()  # one listener may come twice
        self._listeners[ticket] = listener
        return lambda: self._listeners.pop(ticket, None) and None

    def replace(self, owner: str, objects: Iterable[LocalObject]) -> frozenset[ObjectKey]:
        """Hold exactly these objects for an owner, instead of those it had. Returns what that changed."""
        self._by_owner[owner] = {key_of(each): each for each in objects}
        before, self._all = self._all, {}
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
            except Exception:  # a listener's trouble is neither the source's nor the other listeners'
                log.exception("cannot tell a listener that %s changed", ", ".join(sorted(map(str, changed))))


def key_of(what: LocalObject) -> ObjectKey:
    """How an object is found again."""
    return ObjectKey(type(what).__name__, what.metadata.namespace or DEFAULT_NAMESPACE, what.metadata.name or "")
