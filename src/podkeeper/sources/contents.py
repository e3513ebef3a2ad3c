"""Read one manifest: pods, config maps, secrets and problems.

    text --documents--> Pod               --rules/static.py-----> a pod of this node
                        ConfigMap, Secret --config_documents.py-> an object of the node's own store
                        other kinds       ----------------------> ignored, with a problem
                        invalid documents ----------------------> problems, and the text is not `whole`

A text that is not `whole` may contain more objects than could be read, so `shelf.py` keeps its older objects in use. An
ignored kind, such as a Deployment, does not count as missing.

A text with comments only is whole and holds no objects, so that users can comment out a manifest. An empty text is not
whole, because a full disk leaves empty files.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from podkeeper.model.errors import BadInput, Problem, quoted
from podkeeper.model.k8s.core import ConfigMap, Pod, Secret
from podkeeper.model.manifest import Document, read_documents, type_of
from podkeeper.rules.static import FromFile, Origin, References, static_pod_from
from podkeeper.sources.config_documents import config_map_from, secret_from
from podkeeper.sources.local_objects import ObjectKey, key_of

log = logging.getLogger(__name__)

MOST_BYTES: Final = 10 * 1024 * 1024
"""The maximum size of a manifest, as in the kubelet."""

_OURS: Final = {"pod": "Pod", "configmap": "ConfigMap", "secret": "Secret"}
_EMPTY_LISTS: Final = frozenset({"PodList", "ConfigMapList", "SecretList"})  # documents only if they have no items


@dataclass(frozen=True, slots=True)
class Item:
    """One object of a manifest. The key of a pod has the name of the manifest, without the node's name."""

    key: ObjectKey
    value: Pod | ConfigMap | Secret
    place: Document  # without its content, only to find line numbers

    def problem(self, message: str, field: str) -> Problem:
        return self.place.problem(message, field)


@dataclass(frozen=True, slots=True)
class Contents:
    """The objects and problems of a manifest."""

    items: tuple[Item, ...] = ()
    problems: tuple[Problem, ...] = ()
    whole: bool = True  # False: it may contain more objects than `items`

    def keys(self) -> frozenset[ObjectKey]:
        return frozenset(item.key for item in self.items)


@dataclass(frozen=True, slots=True)
class Reader:
    node_name: str
    has_store: bool  # whether the node stores config maps and secrets, so that pods may refer to them

    def read(self, data: bytes, origin: Origin, shown: str) -> Contents:
        """Read a manifest. Problems call it `shown`. Never raises."""
        try:
            return self._read(data, origin, shown)
        except Exception as error:  # a bug that one manifest triggers must not affect the others
            log.exception("unexpected error while reading %s", shown)
            return broken(f"unexpected error while reading the manifest: {error!r}; please report this bug", shown)

    def _read(self, data: bytes, origin: Origin, shown: str) -> Contents:
        if not data.strip():
            remedy = "remove the file" if isinstance(origin, FromFile) else "serve an empty PodList"
            return broken(f"the manifest is empty; to remove its pods, {remedy}", shown)
        reading = read_documents(data, shown)
        items: dict[ObjectKey, Item] = {}
        problems = list(reading.problems)
        whole = not problems
        for document in reading.documents:
            try:
                for item in self._items(document, origin):
                    if item.key in items:
                        message = f"Duplicate value: {item.key} is defined twice in this manifest"
                        raise BadInput(item.problem(message, "metadata.name"))
                    items[item.key] = item
            except _PassedOver as error:
                problems += error.problems
            except BadInput as error:
                problems += error.problems
                whole = False
        return Contents(tuple(items.values()), tuple(problems), whole)

    def _items(self, document: Document, origin: Origin) -> Iterator[Item]:
        """Yield the object of a document. Yields nothing for a list without items."""
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
            type_of(document)  # raises with the missing fields
        near = get_close_matches(document.kind.lower(), _OURS, n=1, cutoff=0.8)
        ours = _OURS[near[0]] if near else ""
        if near and document.kind != ours:
            message = f"Unsupported value: {quoted(document.kind)}: did you mean {ours}?"
            raise BadInput(document.problem(message, "kind"))
        if near and document.api_version != "v1":
            message = f'Unsupported value: {quoted(document.api_version)}: supported values: "v1"'
            raise BadInput(document.problem(message, "apiVersion"))
        used = '"Pod", "ConfigMap", "Secret"' if self.has_store else '"Pod"'
        message = f"Unsupported value: {quoted(document.kind)}: ignored; supported values: {used}"
        raise _PassedOver(document.problem(message, "kind"))


def pod_item(pod: Pod, node_name: str, place: Document) -> Item:
    """Return a static pod of this node as an item of its manifest."""
    name = (pod.metadata.name or "").removesuffix(f"-{node_name.lower()}")
    return Item(ObjectKey("Pod", pod.metadata.namespace or "", name), pod, place)


class _PassedOver(BadInput):
    """The document has a kind that a node does not use. It is ignored."""


def broken(message: str, shown: str) -> Contents:
    """Return the contents of a manifest that cannot be read at all."""
    return Contents(problems=(Problem(message, file=shown),), whole=False)
