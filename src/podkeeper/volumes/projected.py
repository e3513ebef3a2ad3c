"""Projected volumes: several sources in one directory.

For the same path, the last source wins.

Service account tokens need a `TokenProvider`. Without one, the mount fails, and the error gives the reason. Kubelet
counterpart: pkg/volume/projected.
"""

from typing import Final

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import (
    Pod,
    PodSecurityContext,
    ProjectedVolumeSource,
    SecurityContext,
    ServiceAccountTokenProjection,
    VolumeProjection,
)
from podkeeper.ports.api import ObjectReader, TokenProvider
from podkeeper.rules.container.downward import PodContext
from podkeeper.rules.container.of_pod import all_containers
from podkeeper.rules.joined import joined_messages
from podkeeper.volumes.atomic_writer import Files, ProjectedFile
from podkeeper.volumes.config_map import config_map_files
from podkeeper.volumes.downward_api import downward_files
from podkeeper.volumes.payload import FILE_MODE, SECRET_MODE
from podkeeper.volumes.secret import secret_files

KIND: Final = "projected"


def holds_secrets(source: ProjectedVolumeSource) -> bool:
    """Return whether the volume has secret files, which must not be written to disk."""
    return any(part.secret is not None or part.service_account_token is not None for part in source.sources)


async def projected_files(
    source: ProjectedVolumeSource, surroundings: PodContext, objects: ObjectReader, tokens: TokenProvider | None
) -> Files:
    """Return the files of all sources. Raises TryLater with all errors."""
    files: dict[str, ProjectedFile] = {}
    errors = []
    for part in source.sources:
        try:
            files.update(await _part_files(part, source.default_mode, surroundings, objects, tokens))
        except TryLater as error:
            errors.append(error)
    if errors:
        raise TryLater(joined_messages(map(str, errors)))
    return files


async def _part_files(
    part: VolumeProjection,
    mode: int | None,
    surroundings: PodContext,
    objects: ObjectReader,
    tokens: TokenProvider | None,
) -> Files:
    namespace = surroundings.pod.metadata.namespace or ""
    plain = FILE_MODE if mode is None else mode
    secret = SECRET_MODE if mode is None else mode
    if (of_secret := part.secret) is not None:
        optional = bool(of_secret.optional)
        return await secret_files(of_secret.name or "", of_secret.items, optional, namespace, secret, objects)
    if part.config_map is not None:
        return await config_map_files(part.config_map, namespace, plain, objects)
    if part.downward_api is not None:
        return downward_files(part.downward_api.items, surroundings, plain)
    if part.service_account_token is not None:
        return await _token_file(part.service_account_token, surroundings.pod, secret, tokens)
    kind = "clusterTrustBundle" if part.cluster_trust_bundle is not None else "podCertificate"
    raise TryLater(
        f"cannot project {kind}: this node supports configMap, secret, downwardAPI and serviceAccountToken; "
        "remove the source or run the pod on another node"
    )


async def _token_file(
    source: ServiceAccountTokenProjection, pod: Pod, mode: int, tokens: TokenProvider | None
) -> Files:
    if tokens is None:
        raise TryLater(
            "cannot project a service account token: this node is not in a cluster that issues tokens; "
            "set automountServiceAccountToken: false or remove the source"
        )
    token = await tokens.token(pod, source.audience or "", source.expiration_seconds)
    # As in the kubelet: if all containers run as one user, the token belongs to that user and needs no wider mode.
    user = common_user(pod)
    context = pod.spec.security_context
    if user is not None or (context is not None and context.fs_group is not None):
        mode = SECRET_MODE  # the writer adds the read permission of fsGroup
    return {source.path: ProjectedFile(token.encode(), mode, user)}


def common_user(pod: Pod) -> int | None:
    """Return the user that all containers run as, or None if they differ or do not set one."""
    spec = pod.spec
    users = {_user(container.security_context, spec.security_context) for container in all_containers(pod)}
    return users.pop() if len(users) == 1 else None


def _user(own: SecurityContext | None, of_pod: PodSecurityContext | None) -> int | None:
    if own is not None and own.run_as_user is not None:
        return own.run_as_user
    return None if of_pod is None else of_pod.run_as_user
