"""Projected volumes: several sources in one directory; a later one wins a path. The Go ancestor is
pkg/volume/projected.

A service account token needs somebody who makes one; without such a provider the volume says so.
"""

from typing import Final, Protocol

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import (
    Container,
    EphemeralContainer,
    Pod,
    PodSecurityContext,
    ProjectedVolumeSource,
    SecurityContext,
    ServiceAccountTokenProjection,
    VolumeProjection,
)
from podkeeper.ports.api import Reader
from podkeeper.rules.downward import Surroundings
from podkeeper.volumes.atomic_writer import Files, ProjectedFile
from podkeeper.volumes.config_map import config_map_files
from podkeeper.volumes.downward_api import downward_files
from podkeeper.volumes.objects import together
from podkeeper.volumes.payload import FILE_MODE, SECRET_MODE
from podkeeper.volumes.secret import secret_files

KIND: Final = "projected"


class Tokens(Protocol):
    """Makes service account tokens."""

    async def token(self, pod: Pod, audience: str, expiration_seconds: int | None) -> str:
        """A token that is good for a while yet; the same one until it must be renewed. Raises TryLater."""


def holds_secrets(source: ProjectedVolumeSource) -> bool:
    """Whether something in it must not reach a disk."""
    return any(part.secret is not None or part.service_account_token is not None for part in source.sources)


async def projected_files(
    source: ProjectedVolumeSource, seen: Surroundings, objects: Reader, tokens: Tokens | None
) -> Files:
    """The files of all sources. Raises TryLater with everything that is wrong."""
    files: dict[str, ProjectedFile] = {}
    errors = []
    for part in source.sources:
        try:
            files.update(await _part_files(part, source.default_mode, seen, objects, tokens))
        except TryLater as error:
            errors.append(error)
    if errors:
        raise TryLater(together(errors))
    return files


async def _part_files(
    part: VolumeProjection, mode: int | None, seen: Surroundings, objects: Reader, tokens: Tokens | None
) -> Files:
    namespace = seen.pod.metadata.namespace or ""
    plain = FILE_MODE if mode is None else mode
    secret = SECRET_MODE if mode is None else mode
    if (of_secret := part.secret) is not None:
        optional = bool(of_secret.optional)
        return await secret_files(of_secret.name or "", of_secret.items, optional, namespace, secret, objects)
    if part.config_map is not None:
        return await config_map_files(part.config_map, namespace, plain, objects)
    if part.downward_api is not None:
        return downward_files(part.downward_api.items, seen, plain)
    if part.service_account_token is not None:
        return await _token_file(part.service_account_token, seen.pod, secret, tokens)
    kind = "clusterTrustBundle" if part.cluster_trust_bundle is not None else "podCertificate"
    raise TryLater(
        f"cannot project {kind}: this node projects configMap, secret, downwardAPI and serviceAccountToken; "
        "leave it out or run the pod elsewhere"
    )


async def _token_file(source: ServiceAccountTokenProjection, pod: Pod, mode: int, tokens: Tokens | None) -> Files:
    if tokens is None:
        raise TryLater(
            "cannot project a service account token: this node is in no cluster that could issue one; "
            "set automountServiceAccountToken: false or leave the source out"
        )
    token = await tokens.token(pod, source.audience or "", source.expiration_seconds)
    user = common_user(pod)
    context = pod.spec.security_context
    if user is not None or (context is not None and context.fs_group is not None):
        mode = SECRET_MODE  # the group, if there is one, is let in beside the owner
    return {source.path: ProjectedFile(token.encode(), mode, user)}


def common_user(pod: Pod) -> int | None:
    """The user that all containers run as; None when they differ or do not say."""
    spec = pod.spec
    containers: list[Container | EphemeralContainer] = [*(spec.init_containers or ()), *spec.containers]
    containers += spec.ephemeral_containers or ()
    users = {_user(container.security_context, spec.security_context) for container in containers}
    return users.pop() if len(users) == 1 else None


def _user(own: SecurityContext | None, of_pod: PodSecurityContext | None) -> int | None:
    if own is not None and own.run_as_user is not None:
        return own.run_as_user
    return None if of_pod is None else of_pod.run_as_user
