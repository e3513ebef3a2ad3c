"""The volumes section of `kubectl describe pod`."""

from collections.abc import Iterable, Iterator

from podkeeper.model.k8s.core import DownwardAPIVolumeFile, ProjectedVolumeSource, Volume


def volume_lines(volumes: Iterable[Volume]) -> Iterator[str]:
    yield "Volumes:"
    for volume in volumes:
        yield f"  {volume.name}:"
        yield from (f"    {line}" for line in _volume(volume))


def _volume(volume: Volume) -> Iterator[str]:
    if (path := volume.host_path) is not None:
        yield "Type:\tHostPath (bare host directory volume)"
        yield f"Path:\t{path.path}"
        yield f"HostPathType:\t{'<none>' if path.type is None else path.type}"
    elif (empty := volume.empty_dir) is not None:
        yield "Type:\tEmptyDir (a temporary directory that shares a pod's lifetime)"
        yield f"Medium:\t{empty.medium or ''}"
        yield f"SizeLimit:\t{empty.size_limit or '<unset>'}"
    elif (secret := volume.secret) is not None:
        yield "Type:\tSecret (a volume populated by a Secret)"
        yield f"SecretName:\t{secret.secret_name or ''}"
        yield f"Optional:\t{_bool(secret.optional)}"
    elif (config := volume.config_map) is not None:
        yield "Type:\tConfigMap (a volume populated by a ConfigMap)"
        yield f"Name:\t{config.name or ''}"
        yield f"Optional:\t{_bool(config.optional)}"
    elif volume.projected is not None:
        yield "Type:\tProjected (a volume that contains injected data from multiple sources)"
        yield from _projected(volume.projected)
    elif (downward := volume.downward_api) is not None:
        yield "Type:\tDownwardAPI (a volume populated by information about the pod)"
        yield "Items:"
        yield from (f"  {_item(item)}" for item in downward.items or ())
    elif (claim := volume.persistent_volume_claim) is not None:
        yield "Type:\tPersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)"
        yield f"ClaimName:\t{claim.claim_name}"
        yield f"ReadOnly:\t{_bool(claim.read_only)}"
    else:
        yield "Type:\t<unknown>"


def _projected(projected: ProjectedVolumeSource) -> Iterator[str]:
    for source in projected.sources or ():
        if source.secret is not None:
            yield f"SecretName:\t{source.secret.name or ''}"
            yield f"Optional:\t{_bool(source.secret.optional)}"
        elif source.downward_api is not None:
            yield "DownwardAPI:\ttrue"
        elif source.config_map is not None:
            yield f"ConfigMapName:\t{source.config_map.name or ''}"
            yield f"Optional:\t{_bool(source.config_map.optional)}"
        elif source.service_account_token is not None:
            yield f"TokenExpirationSeconds:\t{source.service_account_token.expiration_seconds or 3600}"


def _item(item: DownwardAPIVolumeFile) -> str:
    if item.field_ref is not None:
        return f"{item.field_ref.field_path} -> {item.path}"
    return f"{'' if item.resource_field_ref is None else item.resource_field_ref.resource} -> {item.path}"


def _bool(value: bool | None) -> str:
    return "true" if value else "false"
