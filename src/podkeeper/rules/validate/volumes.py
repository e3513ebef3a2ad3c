"""Validation of volumes: one kind each, complete, with names of their own and paths that stay inside.

The kinds a node agent serves itself are checked here; the kinds that need a storage system of
their own are checked in `storage`. The Go ancestors are `ValidateVolumes` and
`validateVolumeSource` in pkg/apis/core/validation.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import msgspec

from podkeeper.model.errors import Problem
from podkeeper.model.k8s import core
from podkeeper.model.quantity import ZERO
from podkeeper.rules.validate.env import FILE_FIELDS, field_selector, resource_selector
from podkeeper.rules.validate.names import (
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
    """Everything wrong with the volumes of a pod."""
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
                yield wrong(f"{at}.name", volume.name, "short enough to name a claim together with the pod's name")
        claim = volume.persistent_volume_claim
        if claim is not None and claim.claim_name in own_claims:
            right = "a claim that is not made for an ephemeral volume of this pod"
            yield wrong(f"{at}.persistentVolumeClaim.claimName", claim.claim_name, right)
        if volume.projected is not None and not pod.spec.service_account_name:
            for position, source in enumerate(volume.projected.sources):
                if source.service_account_token is not None:
                    place = f"{at}.projected.sources[{position}].serviceAccountToken"
                    yield unwanted(place, "while serviceAccountName is empty")


def _source(field: str, volume: core.Volume) -> Problems:
    given = list(_sources_of(volume))
    if not given:
        yield missing(field, "one kind of volume, such as emptyDir")
        return
    first = given[0][0]
    for name, _ in given[1:]:
        yield unwanted(f"{field}.{name}", f"beside {first}: a volume is of one kind")
    name, source = given[0]
    check = _KINDS.get(type(source))
    if check is not None:
        yield from check(f"{field}.{name}", source)


def _sources_of(volume: core.Volume) -> Iterator[tuple[str, object]]:
    """The kinds a volume claims to be, in wire spelling; the empty directory is asked first, as in Go."""
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
        yield wrong(f"{field}.sizeLimit", str(size), "zero or more")


def _host_path(field: str, source: core.HostPathVolumeSource) -> Problems:
    if not source.path:
        yield missing(f"{field}.path", "a path of the host")
        return
    yield from no_backsteps(f"{field}.path", source.path)
    yield from optional_choice(f"{field}.type", source.type, _HOST_PATH_TYPES)


def _secret(field: str, source: core.SecretVolumeSource) -> Problems:
    if not source.secret_name:
        yield missing(f"{field}.secretName", "the name of a secret")
    yield from _mode(f"{field}.defaultMode", source.default_mode)
    yield from _items(f"{field}.items", source.items)


def _config_map(field: str, source: core.ConfigMapVolumeSource) -> Problems:
    if not source.name:
        yield missing(f"{field}.name", "the name of a config map")
    yield from _mode(f"{field}.defaultMode", source.default_mode)
    yield from _items(f"{field}.items", source.items)


def _items(field: str, items: tuple[core.KeyToPath, ...] | None) -> Problems:
    for index, item in enumerate(items or ()):
        at = f"{field}[{index}]"
        if not item.key:
            yield missing(f"{at}.key", "a key of the data")
        yield from file_path(f"{at}.path", item.path)
        yield from _mode(f"{at}.mode", item.mode)


def _downward_api(field: str, source: core.DownwardAPIVolumeSource) -> Problems:
    yield from _mode(f"{field}.defaultMode", source.default_mode)
    for index, file in enumerate(source.items or ()):
        yield from _downward_file(f"{field}.items[{index}]", file)


def _downward_file(field: str, file: core.DownwardAPIVolumeFile) -> Problems:
    yield from file_path(f"{field}.path", file.path)
    yield from _mode(f"{field}.mode", file.mode)
    if (file.field_ref is None) == (file.resource_field_ref is None):
        yield Problem("cannot have none or both sources; right would be fieldRef or resourceFieldRef", field)
    if file.field_ref is not None:
        yield from field_selector(f"{field}.fieldRef", file.field_ref, FILE_FIELDS)
    elif file.resource_field_ref is not None:
        yield from resource_selector(f"{field}.resourceFieldRef", file.resource_field_ref, in_volume=True)


def _mode(field: str, mode: int | None) -> Problems:
    if mode is not None and not 0 <= mode <= 0o777:
        yield wrong(field, mode, "a file mode from 0 to 0777 (octal; 511 in decimal)")


def _claim(field: str, source: core.PersistentVolumeClaimVolumeSource) -> Problems:
    if not source.claim_name:
        yield missing(f"{field}.claimName", "the name of a claim")


def _image(field: str, source: core.ImageVolumeSource) -> Problems:
    if not source.reference:
        yield missing(f"{field}.reference", "an image reference")
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
            yield unwanted(f"{at}.{name}", f"beside {kinds[0]}: a source is of one kind")
        yield from _projection(at, projection)
        for place, path in _paths_of(at, projection):
            if path in taken:
                yield wrong(place, path, "a path no other source writes")
            taken.add(path)


def _projection(field: str, projection: core.VolumeProjection) -> Problems:
    for name, keyed in (("secret", projection.secret), ("configMap", projection.config_map)):
        if keyed is not None:
            if not keyed.name:
                yield missing(f"{field}.{name}.name", f"the name of a {name}")
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
    if (bundle.name is None) == (bundle.signer_name is None):
        yield Problem("cannot have none or both of name and signerName; right would be one of them", field)
    elif bundle.name is not None:
        if not bundle.name:
            yield missing(f"{field}.name", "the name of a trust bundle")
        if bundle.label_selector is not None:
            yield unwanted(f"{field}.labelSelector", "beside name")
    else:
        if not bundle.signer_name:
            yield missing(f"{field}.signerName", "the name of a signer")
        yield from label_selector(f"{field}.labelSelector", bundle.label_selector)
    yield from file_path(f"{field}.path", bundle.path)


def _certificate(field: str, certificate: core.PodCertificateProjection) -> Problems:
    if not certificate.signer_name:
        yield missing(f"{field}.signerName", "the name of a signer")
    yield from choice(f"{field}.keyType", certificate.key_type, _KEY_TYPES)
    yield from within(f"{field}.maxExpirationSeconds", certificate.max_expiration_seconds, *CERTIFICATE_SECONDS)
    paths = _certificate_paths(field, certificate)
    if not paths:
        yield missing(field, "credentialBundlePath, keyPath or certificateChainPath")
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
    """Where a source writes; the reference does not ask this of tokens."""
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


# Any: each check takes the one kind it is filed under, which a mapping cannot say.
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
