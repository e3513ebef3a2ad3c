"""ConfigMaps, Secrets and tokens that a pod needs before it can start.

`sources.stored_objects` stores them so that the pod can start while the API server is unavailable
(docs/decisions/0010), and removes all others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from podkeeper.model.k8s.core import Pod, VolumeProjection
from podkeeper.rules.container.environment import ObjectKind, env_references_of
from podkeeper.rules.container.of_pod import all_containers

CONFIG_MAP: Final = "ConfigMap"
SECRET: Final = "Secret"
TOKEN: Final = "Token"


@dataclass(frozen=True, slots=True)
class NeededObject:
    """The kind and name of an object. A token's name consists of the pod's UID and the audience."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def token_of(pod: Pod, audience: str) -> NeededObject:
    """Return a pod's token for an audience. "" is the API server."""
    return NeededObject(TOKEN, pod.metadata.namespace or "", f"{pod.metadata.uid}/{audience}")


def needed_objects(pod: Pod) -> frozenset[NeededObject]:
    """Return every object that the pod's volumes, environments and image pulls refer to."""
    return frozenset(each for each in _all(pod) if each.name)


def _all(pod: Pod) -> Iterator[NeededObject]:
    spec, namespace = pod.spec, pod.metadata.namespace or ""
    for secret in spec.image_pull_secrets or ():
        yield NeededObject(SECRET, namespace, secret.name or "")
    for container in all_containers(pod):
        for reference in env_references_of(container):
            kind = CONFIG_MAP if reference.kind is ObjectKind.CONFIG_MAP else SECRET
            yield NeededObject(kind, namespace, reference.name)
    for volume in spec.volumes or ():
        if volume.config_map is not None:
            yield NeededObject(CONFIG_MAP, namespace, volume.config_map.name or "")
        if volume.secret is not None:
            yield NeededObject(SECRET, namespace, volume.secret.secret_name or "")
        for part in volume.projected.sources if volume.projected is not None else ():
            yield from _projected(pod, part)


def _projected(pod: Pod, part: VolumeProjection) -> Iterator[NeededObject]:
    namespace = pod.metadata.namespace or ""
    if part.config_map is not None:
        yield NeededObject(CONFIG_MAP, namespace, part.config_map.name or "")
    if part.secret is not None:
        yield NeededObject(SECRET, namespace, part.secret.name or "")
    if part.service_account_token is not None:
        yield token_of(pod, part.service_account_token.audience or "")
