"""Static pods and their mirror pods: identify, create and replace them.

A *static pod* comes from the node itself (a file or a URL). The agent creates a *mirror pod* in the API, so that the
cluster can see the static pod. It has the same full name, the hash of the static pod as an annotation, and the node
as owner. A mirror pod starts nothing, and its deletion stops nothing.

In: pods, and the name and UID of the node. Out: the mirror pod to create, or the deletion to send.
`engine.mirror_client` sends the calls. The syncer and housekeeping request them. Kubelet counterpart: `IsMirrorPodOf`
and `MirrorClient` in pkg/kubelet/pod, `tryReconcileMirrorPods` in kubelet.go, and pkg/kubelet/types.
"""

from dataclasses import dataclass
from enum import Enum, auto

from msgspec.structs import replace

from podkeeper.model.errors import BadInput, Problem, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.k8s.meta import DeleteOptions, OwnerReference, Preconditions
from podkeeper.model.messages import (
    API_SOURCE,
    CONFIG_HASH_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
    PodUID,
)


class MirrorStep(Enum):
    """What to do about the mirror pod of a static pod."""

    KEEP = auto()
    CREATE = auto()
    RECREATE = auto()  # delete it by UID, and create the new one only after that succeeded


@dataclass(frozen=True, slots=True)
class MirrorDeletion:
    """A deletion to send to the API. It is no error if the mirror pod is gone or was replaced.

    `options` are for comparison with recorded calls of the kubelet. `Api.delete` takes the same values as arguments.
    """

    namespace: str
    name: str
    options: DeleteOptions


@dataclass(frozen=True, slots=True)
class PodAndMirror:
    """A pod and its mirror pod, None if unknown. `was_mirror`: the lookup began with the mirror pod."""

    pod: Pod | None
    mirror: Pod | None
    was_mirror: bool


def full_name(pod: Pod) -> str:
    """Return the name that a static pod and its mirror pod share: `name_namespace`."""
    return f"{pod.metadata.name or ''}_{pod.metadata.namespace or ''}"


def pod_source(pod: Pod) -> str | None:
    """Return the source of a stored pod. None if the storage has not set it."""
    return (pod.metadata.annotations or {}).get(CONFIG_SOURCE_ANNOTATION)


def is_static_pod(pod: Pod) -> bool:
    """Return whether a pod has a known source other than the API."""
    return pod_source(pod) not in (None, API_SOURCE)


def is_mirror_pod(pod: Pod) -> bool:
    return CONFIG_MIRROR_ANNOTATION in (pod.metadata.annotations or {})


def is_mirror_pod_of(mirror: Pod, pod: Pod) -> bool:
    """Return whether a mirror pod has the name and the hash of this static pod."""
    if (mirror.metadata.name, mirror.metadata.namespace) != (pod.metadata.name, pod.metadata.namespace):
        return False
    return (mirror.metadata.annotations or {}).get(CONFIG_MIRROR_ANNOTATION) == _hash_of(pod)


def is_outdated_mirror(mirror: Pod, pod: Pod) -> bool:
    """Return whether a mirror pod shows a former manifest.

    The kubelet would write the status of the new static pod to it.
    """
    return is_mirror_pod(mirror) and not is_mirror_pod_of(mirror, pod)


def shown_uid(api_pod: Pod) -> PodUID:
    """Return the UID of the pod that an API object represents. For a mirror pod, this is the UID of its static pod."""
    meta = api_pod.metadata
    return PodUID((meta.annotations or {}).get(CONFIG_MIRROR_ANNOTATION) or meta.uid or "")


def mirror_step(static: Pod, mirror: Pod | None) -> MirrorStep:
    """Return what to do about a mirror pod. A deleted one is replaced, because the static pod still runs."""
    if mirror is None:
        return MirrorStep.CREATE
    if mirror.metadata.deletion_timestamp is not None or not is_mirror_pod_of(mirror, static):
        return MirrorStep.RECREATE
    return MirrorStep.KEEP


def mirror_pod_for(static: Pod, node_name: str, node_uid: str | None) -> Pod:
    """Return the mirror pod to create for a static pod.

    The API requires the node as owner, so this raises `TryLater` while the UID of the node is unknown. If the object
    exists already, even with the same hash, the create must be retried. The watch will show the object, and then
    `mirror_step` decides.
    """
    if not node_uid:
        raise TryLater(f"cannot create a mirror pod of {full_name(static)}: the UID of node {node_name} is not known")
    owner = OwnerReference(api_version="v1", kind="Node", name=node_name, uid=node_uid, controller=True)
    annotations = {**(static.metadata.annotations or {}), CONFIG_MIRROR_ANNOTATION: _hash_of(static)}
    return replace(static, metadata=replace(static.metadata, annotations=annotations, owner_references=(owner,)))


def mirror_deletion(pod_full_name: str, uid: str | None) -> MirrorDeletion:
    """Return the deletion of a mirror pod without grace period. With a UID, it applies only to that object."""
    name, namespace = parse_full_name(pod_full_name)
    # No grace period: a mirror pod has no containers of its own that would have to stop first.
    return MirrorDeletion(namespace, name, DeleteOptions(grace_period_seconds=0, preconditions=Preconditions(uid=uid)))


def parse_full_name(pod_full_name: str) -> tuple[str, str]:
    match pod_full_name.split("_"):
        case [name, namespace] if name and namespace:
            return name, namespace
    raise BadInput(Problem(f'Invalid value: "{pod_full_name}": must be the full name of a pod, name_namespace'))


def _hash_of(pod: Pod) -> str:
    return (pod.metadata.annotations or {}).get(CONFIG_HASH_ANNOTATION, "")
