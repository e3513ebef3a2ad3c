"""What one manifest holds: a text comes in; pods, config maps and secrets go out, and what is wrong with the rest.

    text --documents--> Pod               --rules/static.py-----> a pod of this node
                        ConfigMap, Secret --config_documents.py-> an object of the node's own store
                        something else    ----------------------> passed over, and said
                        broken            ----------------------> problems, and the text is not whole

A text that is not `whole` may have meant more than could be read: whoever keeps what it held before (`shelf.py`) takes
nothing away for it. A Service or a Deployment is no such doubt: it was never a pod. A text without any
document but not without comments is whole, and empty: so a manifest can be commented out. An empty text is
what a full disk leaves behind; it is not believed.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s.core import ConfigMap, Pod, Secret
from podkeeper.model.manifest import Document, read_documents, type_of
from podkeeper.rules.static import FromFile, Origin, References, static_pod_from
from podkeeper.sources.config_documents import config_map_from, secret_from
from podkeeper.sources.local_objects import ObjectKey, key_of

log = logging.getLogger(__name__)

MOST_BYTES: Final = 10 * 1024 * 1024
"""Of one manifest; the reference reads no more either."""

_OURS: Final = {"pod": "Pod", "configmap": "ConfigMap", "secret": "Secret"}
_EMPTY_LISTS: Final = frozenset({"PodList", "ConfigMapList", "SecretList"})  # a list without items says so


@dataclass(frozen=True, slots=True)
class Item:
    """One object of a manifest, and where it stands; a pod's key has its plain name, without the node's behind it."""

    key: ObjectKey
    value: Pod | ConfigMap | Secret
    place: Document  # without its content: only to find a line, should anybody ask

    def problem(self, message: str, field: str) -> Problem:
        """Something wrong with this object, with its place."""
        return self.place.problem(message, field)


@dataclass(frozen=True, slots=True)
class Contents:
    """What a manifest holds."""

    items: tuple[Item, ...] = ()
    problems: tuple[Problem, ...] = ()
    whole: bool = True  # False: it may have meant more than this

    def keys(self) -> frozenset[ObjectKey]:
        """Which objects it holds."""
        return frozenset(item.key for item in self.items)


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads manifests for one node."""

    node_name: str
    has_store: bool  # config maps and secrets have a place here, and pods may refer to them

    def read(self, data: bytes, origin: Origin, shown: str) -> Contents:
        """Read a manifest. `shown` is what problems call it. Never raises: whatever is wrong is in the problems."""
        try:
            return self._read(data, origin, shown)
        except Exception as error:  # a mistake of ours in one manifest must not keep the others from being read
            log.exception("cannot read %s for an unforeseen reason", shown)
            return broken(f"cannot read it for an unforeseen reason: {error!r}; please report this", shown)

    def _read(self, data: bytes, origin: Origin, shown: str) -> Contents:
        if not data.strip():
            gone = "remove it" if isinstance(origin, FromFile) else "serve an empty PodList"
            return broken(f"cannot find anything in it: it is empty; if its pods should go, {gone}", shown)
        reading = read_documents(data, shown)
        items: dict[ObjectKey, Item] = {}
        problems = list(reading.problems)
        whole = not problems
        for document in reading.documents:
            try:
                for item in self._items(document, origin):
                    if item.key in items:
                        raise BadInput(item.problem(f"cannot be used: {item.key} stands here twice", "metadata.name"))
                    items[item.key] = item
            except _PassedOver as error:
                problems += error.problems
            except BadInput as error:
                problems += error.problems
                whole = False
        return Contents(tuple(items.values()), tuple(problems), whole)

    def _items(self, document: Document, origin: Origin) -> Iterator[Item]:
        """What a document describes; nothing when it is a list without items."""
        place = Document({}, document.source, document.prefix)
        match document.api_version, document.kind:
            case "v1", "Pod":
                allowed = References.LOCAL_STORE if self.has_store else References.NONE
                pod = static_pod_from(document, origin, self.node_name, allowed)
                yield pod_item(pod, self.node_name, place)
            case "v1", "ConfigMap" if self.has_store:
                config_map = config_map_from(document)
                yield Item(key_of(config_map), config_map, place)
            case "v1", "Secret" if self.has_store:
                secret = secret_from(document)
                yield Item(key_of(secret), secret, place)
            case "v1", kind if kind in _EMPTY_LISTS:
                return
            case _:
                self._refuse(document)

    def _refuse(self, document: Document) -> None:
        if not document.kind or not document.api_version:
            type_of(document)  # says what is missing
        near = get_close_matches(document.kind.lower(), _OURS, n=1, cutoff=0.8)
        ours = _OURS[near[0]] if near else ""
        if near and document.kind != ours:
            raise BadInput(document.problem(f"cannot use a {document.kind}; did you mean {ours}?", "kind"))
        if near and document.api_version != "v1":
            message = f"cannot use a {document.kind} of {document.api_version}; v1 would be right"
            raise BadInput(document.problem(message, "apiVersion"))
        used = "pods, config maps and secrets" if self.has_store else "pods"
        message = f"cannot use a {document.kind} here, it is passed over; from manifests this node takes {used}"
        raise _PassedOver(document.problem(message, "kind"))


def pod_item(pod: Pod, node_name: str, place: Document) -> Item:
    """A static pod of this node as an item of its manifest."""
    name = (pod.metadata.name or "").removesuffix(f"-{node_name.lower()}")
    return Item(ObjectKey("Pod", pod.metadata.namespace or "", name), pod, place)


class _PassedOver(BadInput):
    """The document is something that was never meant for a node alone."""


def broken(message: str, shown: str) -> Contents:
    """The contents of what cannot be read at all."""
    return Contents(problems=(Problem(message, file=shown),), whole=False)
