"""All containers of a pod, of every kind."""

from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod


def all_containers(pod: Pod) -> tuple[Container | EphemeralContainer, ...]:
    """Return the init containers, the containers and the ephemeral containers, in this order."""
    spec = pod.spec
    return (*(spec.init_containers or ()), *spec.containers, *(spec.ephemeral_containers or ()))
