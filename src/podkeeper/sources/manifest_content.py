"""Read one manifest: pods, config maps, secrets and problems.

    text --documents--> Pod               --rules/static/pod.py-----> a pod of this node
                        ConfigMap, Secret --config_documents.py-> an object of the node's own store
                        other kinds       ----------------------> ignored, with a problem
                        invalid documents ----------------------> problems, and the content is not complete

Content that is not complete may lack objects that could not be read, so `active_objects` keeps the older objects in
use. An ignored kind, such as a Deployment, does not count as missing.

Content with comments only is complete and has no objects, so that users can comment out a manifest. An empty text is
not complete, because a full disk leaves empty files.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from podkeeper.model.errors import BadInput, Problem, quoted
from podkeeper.model.k8s.core import ConfigMap, Pod, Secret
from podkeeper.model.manifest import Document, read_documents, type_of
from podkeeper.rules.static.pod import FromFile, Origin, References, static_pod_from
from podkeeper.sources.config_documents import config_map_from, secret_from
from podkeeper.sources.local_objects import ObjectKey, key_of

log = logging.getLogger(__name__)

MAX_BYTES: Final = 10 * 1024 * 1024
"""The maximum size of a manifest, as in the kubelet."""

_SUPPORTED_KINDS: Final = {"pod": "Pod", "configmap": "ConfigMap", "secret": "Secret"}
_EMPTY_LISTS: Final = frozenset({"PodList", "ConfigMapList", "SecretList"})  # documents only if they have no items


@dataclass(frozen=True, slots=True)
class ManifestItem:
    """One object of a manifest. The key of a pod has the name of the manifest, without the node's name."""

    key: ObjectKey
    value: Pod | ConfigMap | Secret
    location: Document  # without its content, only to find line numbers

    def problem(self, message: str, field: str) -> Problem:
        return self.location.problem(message, field)


@dataclass(frozen=True, slots=True)
class ManifestContent:
    """The objects and problems of a manifest."""

    items: tuple[ManifestItem, ...] = ()
    problems: tuple[Problem, ...] = ()
    is_complete: bool = True  # False: it may contain more objects than `items`

    def keys(self) -> frozenset[ObjectKey]:
        return frozenset(item.key for item in self.items)


@dataclass(frozen=True, slots=True)
class ManifestReader:
    node_name: str
    has_store: bool  # whether the node stores config maps and secrets, so that pods may refer to them

    def read(self, data: bytes, origin: Origin, name: str) -> ManifestContent:
        """Read a manifest. `name` is its name in problems. Never raises."""
        try:
            return self._read(data, origin, name)
        except Exception as error:  # a bug that one manifest triggers must not affect the others
            log.exception("unexpected error while reading %s", name)
            return unreadable(f"unexpected error while reading the manifest: {error!r}; please report this bug", name)

    def _read(self, data: bytes, origin: Origin, name: str) -> ManifestContent:
        if not data.strip():
            hint = "remove the file" if isinstance(origin, FromFile) else "serve an empty PodList"
            return unreadable(f"the manifest is empty; to remove its pods, {hint}", name)
        reading = read_documents(data, name)
        items: dict[ObjectKey, ManifestItem] = {}
        problems = list(reading.problems)
        is_complete = not problems
        for document in reading.documents:
            try:
                for item in self._items(document, origin):
                    if item.key in items:
                        message = f"Duplicate value: {item.key} is defined twice in this manifest"
                        raise BadInput(item.problem(message, "metadata.name"))
                    items[item.key] = item
            except _IgnoredKind as error:
                problems += error.problems
            except BadInput as error:
                problems += error.problems
                is_complete = False
        return ManifestContent(tuple(items.values()), tuple(problems), is_complete)

    def _items(self, document: Document, origin: Origin) -> Iterator[ManifestItem]:
        """Yield the object of a document. Yields nothing for a list without items."""
        location = Document({}, document.source, document.prefix)
        match document.api_version, document.kind:
            case "v1", "Pod":
                allowed = References.LOCAL_STORE if self.has_store else References.NONE
                pod = static_pod_from(document, origin, self.node_name, allowed)
                yield pod_item(pod, self.node_name, location)
            case "v1", "ConfigMap" if self.has_store:
                config_map = config_map_from(document)
                yield ManifestItem(key_of(config_map), config_map, location)
            case "v1", "Secret" if self.has_store:
                secret = secret_from(document)
                yield ManifestItem(key_of(secret), secret, location)
            case "v1", kind if kind in _EMPTY_LISTS:
                return
            case _:
                self._refuse(document)

    def _refuse(self, document: Document) -> None:
        if not document.kind or not document.api_version:
            type_of(document)  # raises with the missing fields
        close = get_close_matches(document.kind.lower(), _SUPPORTED_KINDS, n=1, cutoff=0.8)
        supported = _SUPPORTED_KINDS[close[0]] if close else ""
        if close and document.kind != supported:
            message = f"Unsupported value: {quoted(document.kind)}: did you mean {supported}?"
            raise BadInput(document.problem(message, "kind"))
        if close and document.api_version != "v1":
            message = f'Unsupported value: {quoted(document.api_version)}: supported values: "v1"'
            raise BadInput(document.problem(message, "apiVersion"))
        supported_kinds = '"Pod", "ConfigMap", "Secret"' if self.has_store else '"Pod"'
        message = f"Unsupported value: {quoted(document.kind)}: ignored; supported values: {supported_kinds}"
        raise _IgnoredKind(document.problem(message, "kind"))


def pod_item(pod: Pod, node_name: str, location: Document) -> ManifestItem:
    """Return a static pod of this node as an item of its manifest."""
    name = (pod.metadata.name or "").removesuffix(f"-{node_name.lower()}")
    return ManifestItem(ObjectKey("Pod", pod.metadata.namespace or "", name), pod, location)


class _IgnoredKind(BadInput):
    """The document has a kind that a node does not use. It is ignored."""


def unreadable(message: str, name: str) -> ManifestContent:
    """Return the contents of a manifest that cannot be read at all."""
    return ManifestContent(problems=(Problem(message, file=name),), is_complete=False)
