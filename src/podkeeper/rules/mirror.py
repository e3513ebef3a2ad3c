"""Static pods and their shadows in the API: who is who, and when a shadow must be made, kept or replaced.

A *static* pod comes from the node itself (a file, a URL). So that the cluster can see it, the agent
writes a *mirror* of it to the API: same full name, annotated with the static pod's hash, owned by the
node. The mirror starts nothing and deleting it stops nothing.

In: pods, the node's name and UID. Out: the answer, the mirror to create, or the deletion to send; the
API calls themselves are the syncer's and housekeeping's. The Go ancestors are `IsMirrorPodOf` and
`MirrorClient` in pkg/kubelet/pod, `tryReconcileMirrorPods` in kubelet.go, and pkg/kubelet/types.
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
    """What a static pod's mirror needs now."""

    KEEP = auto()
    CREATE = auto()
    RECREATE = auto()  # delete it under its UID; create the new one only once that has succeeded


@dataclass(frozen=True, slots=True)
class MirrorDeletion:
    """A deletion to send to the API. That the mirror is gone, or is another one by now, is no error."""

    namespace: str
    name: str
    options: DeleteOptions


@dataclass(frozen=True, slots=True)
class Couple:
    """A pod and its mirror, as far as each is known; `asked_by_mirror`: the mirror was what we started from."""

    pod: Pod | None
    mirror: Pod | None
    asked_by_mirror: bool


def full_name(pod: Pod) -> str:
    """The name that a static pod and its mirror share: `name_namespace`."""
    return f"{pod.metadata.name or ''}_{pod.metadata.namespace or ''}"


def pod_source(pod: Pod) -> str | None:
    """The source a stored pod came from; None when the storage has not marked it."""
    return (pod.metadata.annotations or {}).get(CONFIG_SOURCE_ANNOTATION)


def is_static_pod(pod: Pod) -> bool:
    """A pod of a known source other than the API."""
    return pod_source(pod) not in (None, API_SOURCE)


def is_mirror_pod(pod: Pod) -> bool:
    """A static pod's shadow."""
    return CONFIG_MIRROR_ANNOTATION in (pod.metadata.annotations or {})


def is_mirror_pod_of(mirror: Pod, pod: Pod) -> bool:
    """A mirror of this pod in the very version we have: same name, same hash."""
    if (mirror.metadata.name, mirror.metadata.namespace) != (pod.metadata.name, pod.metadata.namespace):
        return False
    return (mirror.metadata.annotations or {}).get(CONFIG_MIRROR_ANNOTATION) == _hash_of(pod)


def is_outdated_mirror(mirror: Pod, pod: Pod) -> bool:
    """A mirror of what this pod was before its manifest changed. The reference tells it the new pod's status."""
    return is_mirror_pod(mirror) and not is_mirror_pod_of(mirror, pod)


def shown_uid(api_pod: Pod) -> PodUID:
    """The UID of the pod that an object of the API shows: a mirror names its static pod's."""
    meta = api_pod.metadata
    return PodUID((meta.annotations or {}).get(CONFIG_MIRROR_ANNOTATION) or meta.uid or "")


def mirror_step(static: Pod, mirror: Pod | None) -> MirrorStep:
    """What to do about a static pod's mirror. A mirror somebody deletes is replaced: the pod still runs."""
    if mirror is None:
        return MirrorStep.CREATE
    if mirror.metadata.deletion_timestamp is not None or not is_mirror_pod_of(mirror, static):
        return MirrorStep.RECREATE
    return MirrorStep.KEEP


def mirror_pod_for(static: Pod, node_name: str, node_uid: str | None) -> Pod:
    """The mirror to create for a static pod.

    The API admits a mirror only with its node as owner, so it cannot be made while the node's UID is
    not known (None or empty). A create that meets an existing object, even one of the same hash, is an
    error to retry: the watch will show that object soon, and `mirror_step` judges it then.
    """
    if not node_uid:
        raise TryLater(f"cannot create a mirror of pod {full_name(static)}: the UID of node {node_name} is not known")
    owner = OwnerReference(api_version="v1", kind="Node", name=node_name, uid=node_uid, controller=True)
    annotations = {**(static.metadata.annotations or {}), CONFIG_MIRROR_ANNOTATION: _hash_of(static)}
    return replace(static, metadata=replace(static.metadata, annotations=annotations, owner_references=(owner,)))


def mirror_deletion(pod_full_name: str, uid: str | None) -> MirrorDeletion:
    """The deletion of a mirror, at once; with a UID, of that one only."""
    name, namespace = parse_full_name(pod_full_name)
    return MirrorDeletion(namespace, name, DeleteOptions(grace_period_seconds=0, preconditions=Preconditions(uid=uid)))


def parse_full_name(pod_full_name: str) -> tuple[str, str]:
    """Split `name_namespace` into its two parts."""
    match pod_full_name.split("_"):
        case [name, namespace] if name and namespace:
            return name, namespace
    raise BadInput(Problem(f"cannot read {pod_full_name!r} as a pod's full name; right would be name_namespace"))


def _hash_of(pod: Pod) -> str:
    return (pod.metadata.annotations or {}).get(CONFIG_HASH_ANNOTATION, "")
