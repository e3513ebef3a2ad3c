"""Convert a manifest from a file or URL to a static pod of this node.

Input: a document and its origin. Output: a complete, valid pod, or `BadInput` with all problems. No scheduler and no
API server handle a static pod, so this module sets its identity:

* The name ends with the node's name. The namespace defaults to `default`. The pod is bound to this node and pending.
* The UID is a hash of the decoded manifest and its origin, unless the manifest sets a UID. The same file is the same
  pod after a restart, and an edited file is a new pod. The UID is also the config hash that identifies the mirror pod.
* A pod from a file tolerates all NoExecute taints.

A static pod may not refer to API objects, because the API server may be unreachable. The objects of a local store are
an exception. Kubelet counterparts: `applyDefaults` and `tryDecodeSinglePod` in pkg/kubelet/config/common.go, and
`HasAPIObjectReference` in pkg/api/pod.
"""

import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from podkeeper.model.errors import BadInput, Problem, quoted
from podkeeper.model.k8s import core
from podkeeper.model.manifest import Document, decode, type_of
from podkeeper.model.messages import CONFIG_HASH_ANNOTATION
from podkeeper.rules.defaults.pod import default_pod
from podkeeper.rules.static.references import Reference, references_of
from podkeeper.rules.validate.pod import validate_pod

DEFAULT_NAMESPACE: Final = "default"
_TOLERATE_NO_EXECUTE: Final = core.Toleration(operator="Exists", effect="NoExecute")


@dataclass(frozen=True, slots=True)
class FromFile:
    path: str


@dataclass(frozen=True, slots=True)
class FromURL:
    url: str


Origin = FromFile | FromURL


class References(Enum):
    """The resources that a static pod may refer to."""

    NONE = frozenset[str]()
    LOCAL_STORE = frozenset({"configmaps", "secrets", "serviceaccounts"})


class NotAPod(BadInput):
    """The document is not a pod, or it cannot be decoded."""


def static_pod_from(
    document: Document, origin: Origin, node_name: str, allowed: References = References.NONE
) -> core.Pod:
    """Return the pod of a document as this node runs it. Raises `BadInput`, whose problems have file and line."""
    try:
        if type_of(document) is not core.Pod:
            message = f'Unsupported value: {quoted(document.kind)}: supported values: "Pod"'
            raise BadInput(document.problem(message, "kind"))
        pod = decode(document, core.Pod)
    except BadInput as error:
        raise NotAPod(*error.problems) from error
    try:
        return static_pod(pod, origin, node_name, allowed)
    except BadInput as error:
        raise BadInput(*map(document.locate, error.problems)) from error


def static_pod(pod: core.Pod, origin: Origin, node_name: str, allowed: References = References.NONE) -> core.Pod:
    """Default, identify and validate a decoded pod. Raises `BadInput` with all problems."""
    if not pod.metadata.name:
        raise BadInput(Problem("Required value: a static pod needs a name", "metadata.name"))
    pod = identified(default_pod(pod), origin, node_name)
    if problems := (*validate_pod(pod), *refused_references(pod, allowed)):
        raise BadInput(*problems)
    return pod


def identified(pod: core.Pod, origin: Origin, node_name: str) -> core.Pod:
    """Set name, namespace, UID, node and phase of a defaulted pod."""
    uid = pod.metadata.uid or static_pod_uid(pod, origin, node_name)
    metadata = msgspec.structs.replace(
        pod.metadata,
        uid=uid,
        # Lower case, because a pod's name must be valid in the API even if the host name is not.
        name=f"{pod.metadata.name}-{node_name.lower()}",
        namespace=pod.metadata.namespace or DEFAULT_NAMESPACE,
        annotations={**(pod.metadata.annotations or {}), CONFIG_HASH_ANNOTATION: uid},
    )
    tolerations = pod.spec.tolerations
    if isinstance(origin, FromFile):
        # As in the kubelet: a taint must not evict the node's own pods.
        tolerations = _with_no_execute_tolerated(tolerations or ())
    return msgspec.structs.replace(
        pod,
        metadata=metadata,
        spec=msgspec.structs.replace(pod.spec, node_name=node_name, tolerations=tolerations),
        status=msgspec.structs.replace(pod.status, phase="Pending"),
    )


def static_pod_uid(pod: core.Pod, origin: Origin, node_name: str) -> str:
    """Return 32 hex digits that depend on the decoded manifest and its origin."""
    match origin:
        case FromFile(path):
            # Without the node's name for URLs, as in the kubelet: one URL may serve many nodes.
            place = f"host:{node_name}file:{path}"
        case FromURL(url):
            place = f"url:{url}"
    content = msgspec.json.encode(pod, order="deterministic")
    return hashlib.blake2b(content + b"\n" + place.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def refused_references(pod: core.Pod, allowed: References) -> tuple[Problem, ...]:
    return tuple(_refusal(found) for found in references_of(pod.spec) if found.resource not in allowed.value)


def _refusal(found: Reference) -> Problem:
    return Problem(f"Forbidden: static pods may not reference {found.resource}", found.field)


def _with_no_execute_tolerated(tolerations: tuple[core.Toleration, ...]) -> tuple[core.Toleration, ...]:
    """Add the toleration, or replace one that differs only in its seconds."""
    kept = tuple(_TOLERATE_NO_EXECUTE if _tolerates_no_execute(each) else each for each in tolerations)
    return kept if _TOLERATE_NO_EXECUTE in kept else (*kept, _TOLERATE_NO_EXECUTE)


def _tolerates_no_execute(toleration: core.Toleration) -> bool:
    return (
        toleration.operator == "Exists"
        and toleration.effect == "NoExecute"
        and not toleration.key
        and not toleration.value
    )
