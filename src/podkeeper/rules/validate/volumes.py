"""Validation of volumes: unique names, one type each, paths inside the volume.

This module checks the volume types that the agent provides itself. `storage` checks the types that need a storage
system. Kubelet counterparts: `ValidateVolumes` and `validateVolumeSource` in pkg/apis/core/validation.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import msgspec

from podkeeper.model.errors import Problem, quoted
from podkeeper.model.k8s import core
from podkeeper.model.quantity import ZERO
from podkeeper.rules.validate.env import FILE_FIELDS, field_selector, resource_selector
from podkeeper.rules.validate.names import (
    NOT_NEGATIVE,
    Problems,
    choice,
    dns_label,
    dns_subdomain,
    file_path,
    label_selector,
    missing,
    no_backsteps,
    optional_choice,
    repeated,
    unwanted,
    within,
    wrong,
)
from podkeeper.rules.validate.resources import readable
from podkeeper.rules.validate.storage import STORAGE_KINDS

TOKEN_SECONDS: Final = (10 * 60, 2**32)
CERTIFICATE_SECONDS: Final = (60 * 60, 91 * 24 * 60 * 60)

_HOST_PATH_TYPES: Final = (
    "",
    "DirectoryOrCreate",
    "Directory",
    "FileOrCreate",
    "File",
    "Socket",
    "CharDevice",
    "BlockDevice",
)
_KEY_TYPES: Final = ("RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")


def volumes(pod: core.Pod) -> Problems:
    names: set[str] = set()
    name_of_pod = pod.metadata.name or ""
    own_claims = {f"{name_of_pod}-{v.name}" for v in pod.spec.volumes or () if v.ephemeral is not None and name_of_pod}
    for index, volume in enumerate(pod.spec.volumes or ()):
        at = f"spec.volumes[{index}]"
        yield from dns_label(f"{at}.name", volume.name)
        if volume.name and volume.name in names:
            yield repeated(f"{at}.name", volume.name)
        names.add(volume.name)
        yield from _source(at, volume)
        if volume.ephemeral is not None and name_of_pod and volume.name:
            for _ in dns_subdomain(f"{at}.name", f"{name_of_pod}-{volume.name}"):
                # The controller names the claim POD-VOLUME.
                yield wrong(
                    f"{at}.name",
                    volume.name,
                    f"PVC name {quoted(f'{name_of_pod}-{volume.name}')}: {dns_subdomain.detail}",
                )
        claim = volume.persistent_volume_claim
        if claim is not None and claim.claim_name in own_claims:
            detail = "must not reference a PVC that gets created for an ephemeral volume"
            yield wrong(f"{at}.persistentVolumeClaim.claimName", claim.claim_name, detail)
        if volume.projected is not None and not pod.spec.service_account_name:
            for position, source in enumerate(volume.projected.sources):
                if source.service_account_token is not None:
                    place = f"{at}.projected.sources[{position}].serviceAccountToken"
                    yield unwanted(place, "must not be specified when serviceAccountName is not set")


def _source(field: str, volume: core.Volume) -> Problems:
    given = list(_sources_of(volume))
    if not given:
        yield missing(field, "must specify a volume type")
        return
    for name, _ in given[1:]:
        yield unwanted(f"{field}.{name}", "may not specify more than 1 volume type")
    name, source = given[0]
    check = _KINDS.get(type(source))
    if check is not None:
        yield from check(f"{field}.{name}", source)


def _sources_of(volume: core.Volume) -> Iterator[tuple[str, object]]:
    """Yield the types that a volume sets, named as in the API. `emptyDir` comes first, as in the kubelet."""
    parts = sorted(msgspec.structs.fields(volume), key=lambda part: part.name != "empty_dir")
    for part in parts:
        source = getattr(volume, part.name)
        if part.name != "name" and source is not None:
            yield part.encode_name, source


def _empty_dir(field: str, source: core.EmptyDirVolumeSource) -> Problems:
    if source.size_limit is None:
        return
    size = readable(f"{field}.sizeLimit", source.size_limit)
    if isinstance(size, Problem):
        yield size
    elif size < ZERO:
        yield wrong(f"{field}.sizeLimit", str(size), NOT_NEGATIVE)


def _host_path(field: str, source: core.HostPathVolumeSource) -> Problems:
    if not source.path:
        yield missing(f"{field}.path")
        return
    yield from no_backsteps(f"{field}.path", source.path)
    yield from optional_choice(f"{field}.type", source.type, _HOST_PATH_TYPES)


def _secret(field: str, source: core.SecretVolumeSource) -> Problems:
    if not source.secret_name:
        yield missing(f"{field}.secretName")
    yield from _mode(f"{field}.defaultMode", source.default_mode)
    yield from _items(f"{field}.items", source.items)


def _config_map(field: str, source: core.ConfigMapVolumeSource) -> Problems:
    if not source.name:
        yield missing(f"{field}.name")
    yield from _mode(f"{field}.defaultMode", source.default_mode)
    yield from _items(f"{field}.items", source.items)


def _items(field: str, items: tuple[core.KeyToPath, ...] | None) -> Problems:
    for index, item in enumerate(items or ()):
        at = f"{field}[{index}]"
        if not item.key:
            yield missing(f"{at}.key")
        yield from file_path(f"{at}.path", item.path)
        yield from _mode(f"{at}.mode", item.mode)


def _downward_api(field: str, source: core.DownwardAPIVolumeSource) -> Problems:
    yield from _mode(f"{field}.defaultMode", source.default_mode)
    for index, file in enumerate(source.items or ()):
        yield from _downward_file(f"{field}.items[{index}]", file)


def _downward_file(field: str, file: core.DownwardAPIVolumeFile) -> Problems:
    yield from file_path(f"{field}.path", file.path)
    yield from _mode(f"{field}.mode", file.mode)
    if file.field_ref is None and file.resource_field_ref is None:
        yield missing(field, "one of fieldRef and resourceFieldRef is required")
    elif file.field_ref is not None and file.resource_field_ref is not None:
        detail = "fieldRef and resourceFieldRef can not be specified simultaneously"
        yield wrong(field, ["fieldRef", "resourceFieldRef"], detail)
    if file.field_ref is not None:
        yield from field_selector(f"{field}.fieldRef", file.field_ref, FILE_FIELDS)
    elif file.resource_field_ref is not None:
        yield from resource_selector(f"{field}.resourceFieldRef", file.resource_field_ref, in_volume=True)


def _mode(field: str, mode: int | None) -> Problems:
    if mode is not None and not 0 <= mode <= 0o777:
        yield wrong(field, mode, "must be a number between 0 and 0777 (octal), both inclusive")


def _claim(field: str, source: core.PersistentVolumeClaimVolumeSource) -> Problems:
    if not source.claim_name:
        yield missing(f"{field}.claimName")


def _image(field: str, source: core.ImageVolumeSource) -> Problems:
    if not source.reference:
        yield missing(f"{field}.reference")
    yield from choice(f"{field}.pullPolicy", source.pull_policy, ("Always", "IfNotPresent", "Never"))


# ---- projected volumes ---------------------------------------------------------------------


def _projected(field: str, source: core.ProjectedVolumeSource) -> Problems:
    yield from _mode(f"{field}.defaultMode", source.default_mode)
    taken: set[str] = set()
    for index, projection in enumerate(source.sources):
        at = f"{field}.sources[{index}]"
        kinds = [
            part.encode_name
            for part in msgspec.structs.fields(projection)
            if getattr(projection, part.name) is not None
        ]
        for name in kinds[1:]:
            yield unwanted(f"{at}.{name}", "may not specify more than 1 volume type per source")
        yield from _projection(at, projection)
        for place, path in _paths_of(at, projection):
            if path in taken:
                yield wrong(place, path, "conflicting duplicate paths")
            taken.add(path)


def _projection(field: str, projection: core.VolumeProjection) -> Problems:
    for name, keyed in (("secret", projection.secret), ("configMap", projection.config_map)):
        if keyed is not None:
            if not keyed.name:
                yield missing(f"{field}.{name}.name")
            yield from _items(f"{field}.{name}.items", keyed.items)
    if projection.downward_api is not None:
        for index, file in enumerate(projection.downward_api.items or ()):
            yield from _downward_file(f"{field}.downwardAPI.items[{index}]", file)
    token = projection.service_account_token
    if token is not None:
        yield from within(f"{field}.serviceAccountToken.expirationSeconds", token.expiration_seconds, *TOKEN_SECONDS)
        yield from file_path(f"{field}.serviceAccountToken.path", token.path)
    if projection.cluster_trust_bundle is not None:
        yield from _trust_bundle(f"{field}.clusterTrustBundle", projection.cluster_trust_bundle)
    if projection.pod_certificate is not None:
        yield from _certificate(f"{field}.podCertificate", projection.pod_certificate)


def _trust_bundle(field: str, bundle: core.ClusterTrustBundleProjection) -> Problems:
    if bundle.name is not None and bundle.signer_name is not None:
        yield wrong(field, ["name", "signerName"], "only one of name and signerName may be used")
    elif bundle.name is None and bundle.signer_name is None:
        yield missing(field, "either name or signerName must be specified")
    elif bundle.name is not None:
        if not bundle.name:
            yield missing(f"{field}.name")
        if bundle.label_selector is not None:
            yield unwanted(f"{field}.labelSelector", "labelSelector cannot be specified when name is specified")
    else:
        if not bundle.signer_name:
            yield missing(f"{field}.signerName")
        yield from label_selector(f"{field}.labelSelector", bundle.label_selector)
    yield from file_path(f"{field}.path", bundle.path)


def _certificate(field: str, certificate: core.PodCertificateProjection) -> Problems:
    if not certificate.signer_name:
        yield missing(f"{field}.signerName")
    yield from choice(f"{field}.keyType", certificate.key_type, _KEY_TYPES)
    yield from within(f"{field}.maxExpirationSeconds", certificate.max_expiration_seconds, *CERTIFICATE_SECONDS)
    paths = _certificate_paths(field, certificate)
    if not paths:
        yield missing(field, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath")
    for place, path in paths:
        yield from file_path(place, path)


def _certificate_paths(field: str, certificate: core.PodCertificateProjection) -> list[tuple[str, str]]:
    paths = (
        (f"{field}.credentialBundlePath", certificate.credential_bundle_path),
        (f"{field}.keyPath", certificate.key_path),
        (f"{field}.certificateChainPath", certificate.certificate_chain_path),
    )
    return [(place, path) for place, path in paths if path]


def _paths_of(field: str, projection: core.VolumeProjection) -> Iterator[tuple[str, str]]:
    """Yield the paths that a source writes. The kubelet does not check the paths of tokens."""
    for name, keyed in (("secret", projection.secret), ("configMap", projection.config_map)):
        for index, item in enumerate((keyed.items if keyed is not None else None) or ()):
            if item.path:
                yield f"{field}.{name}.items[{index}].path", item.path
    downward = projection.downward_api
    for index, file in enumerate((downward.items if downward is not None else None) or ()):
        if file.path:
            yield f"{field}.downwardAPI.items[{index}].path", file.path
    if projection.cluster_trust_bundle is not None:
        yield f"{field}.clusterTrustBundle.path", projection.cluster_trust_bundle.path
    if projection.pod_certificate is not None:
        yield from _certificate_paths(f"{field}.podCertificate", projection.pod_certificate)


# Any, because each check takes the type of its own key, which a dict type cannot express.
_KINDS: Final = cast(
    dict[type, Callable[[str, Any], Problems]],
    {
        core.EmptyDirVolumeSource: _empty_dir,
        core.HostPathVolumeSource: _host_path,
        core.SecretVolumeSource: _secret,
        core.ConfigMapVolumeSource: _config_map,
        core.DownwardAPIVolumeSource: _downward_api,
        core.ProjectedVolumeSource: _projected,
        core.PersistentVolumeClaimVolumeSource: _claim,
        core.ImageVolumeSource: _image,
        **STORAGE_KINDS,
    },
)
