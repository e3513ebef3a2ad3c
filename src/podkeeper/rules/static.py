"""Static pods: a manifest from a file or a URL becomes a pod of this node.

A document comes in, with where it was found; a complete, valid pod goes out, or `BadInput` with
every problem. Nobody schedules a static pod and no API server names it, so this room does:

* its name ends with the node's name, its namespace is `default` unless it says otherwise, and it
  is bound to this node and pending;
* its UID is a hash of what the manifest means and where it was found, unless the manifest sets
  one: the same file is the same pod after a restart, an edited file is a new one. The
  UID is also its config hash, by which its mirror pod is recognised;
* one from a file tolerates every NoExecute taint: it must not be evicted for the node's troubles.

A static pod may not refer to objects of an API server that may never be reached, unless the node
has a store of its own for them. The Go ancestors are pkg/kubelet/config/common.go (`applyDefaults`,
`tryDecodeSinglePod`) and `HasAPIObjectReference` in pkg/api/pod.
"""

import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s import core
from podkeeper.model.manifest import Document, decode, type_of
from podkeeper.model.messages import CONFIG_HASH_ANNOTATION
from podkeeper.rules.defaults import default_pod
from podkeeper.rules.static_references import Reference, references_of
from podkeeper.rules.validate.pod import validate_pod

DEFAULT_NAMESPACE: Final = "default"
_TOLERATE_NO_EXECUTE: Final = core.Toleration(operator="Exists", effect="NoExecute")


@dataclass(frozen=True, slots=True)
class FromFile:
    """The manifest was found in a file."""

    path: str


@dataclass(frozen=True, slots=True)
class FromURL:
    """The manifest was fetched from a URL."""

    url: str


Origin = FromFile | FromURL


class References(Enum):
    """Which API objects a static pod may refer to."""

    NONE = frozenset[str]()
    LOCAL_STORE = frozenset({"configmaps", "secrets", "serviceaccounts"})


class NotAPod(BadInput):
    """The document is something else than a pod, or too broken to tell."""


def static_pod_from(
    document: Document, origin: Origin, node_name: str, allowed: References = References.NONE
) -> core.Pod:
    """The pod that a document describes, as this node runs it. Problems come with file and line."""
    try:
        if type_of(document) is not core.Pod:
            raise BadInput(document.problem(f"cannot run a {document.kind}; a Pod would be right", "kind"))
        pod = decode(document, core.Pod)
    except BadInput as error:
        raise NotAPod(*error.problems) from error
    try:
        return static_pod(pod, origin, node_name, allowed)
    except BadInput as error:
        raise BadInput(*map(document.locate, error.problems)) from error


def static_pod(pod: core.Pod, origin: Origin, node_name: str, allowed: References = References.NONE) -> core.Pod:
    """A decoded pod as this node runs it: defaulted, identified, valid. Raises `BadInput` with every problem."""
    if not pod.metadata.name:
        raise BadInput(Problem("cannot be empty; a static pod needs a name", "metadata.name"))
    pod = identified(default_pod(pod), origin, node_name)
    if problems := (*validate_pod(pod), *refused_references(pod, allowed)):
        raise BadInput(*problems)
    return pod


def identified(pod: core.Pod, origin: Origin, node_name: str) -> core.Pod:
    """A defaulted pod with its identity on this node."""
    uid = pod.metadata.uid or uid_of(pod, origin, node_name)
    metadata = msgspec.structs.replace(
        pod.metadata,
        uid=uid,
        name=f"{pod.metadata.name}-{node_name.lower()}",
        namespace=pod.metadata.namespace or DEFAULT_NAMESPACE,
        annotations={**(pod.metadata.annotations or {}), CONFIG_HASH_ANNOTATION: uid},
    )
    tolerations = pod.spec.tolerations
    if isinstance(origin, FromFile):
        tolerations = _with_no_execute_tolerated(tolerations or ())
    return msgspec.structs.replace(
        pod,
        metadata=metadata,
        spec=msgspec.structs.replace(pod.spec, node_name=node_name, tolerations=tolerations),
        status=msgspec.structs.replace(pod.status, phase="Pending"),
    )


def uid_of(pod: core.Pod, origin: Origin, node_name: str) -> str:
    """A UID that changes with what the manifest means, and with where it was found; 32 hex digits.

    A URL may serve a whole fleet, so only a file's pods differ from node to node.
    """
    match origin:
        case FromFile(path):
            place = f"host:{node_name}file:{path}"
        case FromURL(url):
            place = f"url:{url}"
    content = msgspec.json.encode(pod, order="deterministic")
    return hashlib.blake2b(content + b"\n" + place.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def refused_references(pod: core.Pod, allowed: References) -> tuple[Problem, ...]:
    """What a static pod refers to and may not."""
    return tuple(_refusal(found) for found in references_of(pod.spec) if found.resource not in allowed.value)


def _refusal(found: Reference) -> Problem:
    return Problem(f"cannot refer to {found.resource}: static pods may not depend on the API", found.field)


def _with_no_execute_tolerated(tolerations: tuple[core.Toleration, ...]) -> tuple[core.Toleration, ...]:
    """The toleration added, or put in the place of one that differs only in how long it tolerates."""
    kept = tuple(_TOLERATE_NO_EXECUTE if _tolerates_no_execute(each) else each for each in tolerations)
    return kept if _TOLERATE_NO_EXECUTE in kept else (*kept, _TOLERATE_NO_EXECUTE)


def _tolerates_no_execute(toleration: core.Toleration) -> bool:
    return (
        toleration.operator == "Exists"
        and toleration.effect == "NoExecute"
        and not toleration.key
        and not toleration.value
    )
