"""Pods and their containers, independent of any rule."""

from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod
from podkeeper.model.messages import PodUID

AnyContainer = Container | EphemeralContainer


def uid_of(pod: Pod) -> PodUID:
    """Return the UID of a pod. Empty if it has none."""
    return PodUID(pod.metadata.uid or "")
