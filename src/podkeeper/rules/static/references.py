"""List the API objects that a pod's spec refers to.

Input: a defaulted spec. Output: the resource and the field of each reference. For network volumes, the reference is
the secret with their credentials. Kubelet counterpart: `HasAPIObjectReference` and its visitors in pkg/api/pod/util.go.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from podkeeper.model.k8s import core
from podkeeper.model.pods import AnyContainer


@dataclass(frozen=True, slots=True)
class Reference:
    resource: str  # plural, as in API paths: "configmaps"
    field: str


def references_of(spec: core.PodSpec) -> Iterator[Reference]:
    if spec.service_account_name:
        yield Reference("serviceaccounts", "spec.serviceAccountName")
    for index, secret in enumerate(spec.image_pull_secrets or ()):
        if secret.name:
            yield Reference("secrets", f"spec.imagePullSecrets[{index}]")
    lists: tuple[tuple[str, tuple[AnyContainer, ...]], ...] = (
        ("initContainers", spec.init_containers or ()),
        ("containers", spec.containers),
        ("ephemeralContainers", spec.ephemeral_containers or ()),
    )
    for name, containers in lists:
        for index, container in enumerate(containers):
            yield from _in_container(container, f"spec.{name}[{index}]")
    for index in range(len(spec.resource_claims or ())):
        yield Reference("resourceclaims", f"spec.resourceClaims[{index}]")
    for index, volume in enumerate(spec.volumes or ()):
        yield from _in_volume(volume, f"spec.volumes[{index}]")


def _in_container(container: AnyContainer, field: str) -> Iterator[Reference]:
    for index, source in enumerate(container.env_from or ()):
        if source.secret_ref is not None and source.secret_ref.name:
            yield Reference("secrets", f"{field}.envFrom[{index}].secretRef")
        if source.config_map_ref is not None and source.config_map_ref.name:
            yield Reference("configmaps", f"{field}.envFrom[{index}].configMapRef")
    for index, variable in enumerate(container.env or ()):
        if (origin := variable.value_from) is None:
            continue
        if origin.secret_key_ref is not None and origin.secret_key_ref.name:
            yield Reference("secrets", f"{field}.env[{index}].valueFrom.secretKeyRef")
        if origin.config_map_key_ref is not None and origin.config_map_key_ref.name:
            yield Reference("configmaps", f"{field}.env[{index}].valueFrom.configMapKeyRef")


def _in_volume(volume: core.Volume, field: str) -> Iterator[Reference]:
    match volume:
        case core.Volume(config_map=core.ConfigMapVolumeSource()):
            yield Reference("configmaps", f"{field}.configMap")
        case core.Volume(secret=core.SecretVolumeSource()):
            yield Reference("secrets", f"{field}.secret")
        case core.Volume(csi=core.CSIVolumeSource()):
            yield Reference("csidrivers", f"{field}.csi")
        case core.Volume(glusterfs=core.GlusterfsVolumeSource()):
            yield Reference("endpoints", f"{field}.glusterfs")
        case core.Volume(persistent_volume_claim=core.PersistentVolumeClaimVolumeSource()):
            yield Reference("persistentvolumeclaims", f"{field}.persistentVolumeClaim")
        case core.Volume(ephemeral=core.EphemeralVolumeSource()):
            yield Reference("persistentvolumeclaims", f"{field}.ephemeral")
        case core.Volume(azure_file=core.AzureFileVolumeSource()):
            yield Reference("secrets", f"{field}.azureFile")
        case core.Volume(projected=core.ProjectedVolumeSource(sources=sources)):
            for index, source in enumerate(sources or ()):
                yield from _in_projection(source, f"{field}.projected.sources[{index}]")
        case _:
            yield from _in_remote_volume(volume, field)


def _in_remote_volume(volume: core.Volume, field: str) -> Iterator[Reference]:
    """Yield the secrets with the credentials of network volumes."""
    for name, source in (
        ("cephfs", volume.cephfs),
        ("cinder", volume.cinder),
        ("flexVolume", volume.flex_volume),
        ("iscsi", volume.iscsi),
        ("rbd", volume.rbd),
        ("scaleIO", volume.scale_io),
        ("storageos", volume.storageos),
    ):
        if source is not None and source.secret_ref is not None and source.secret_ref.name:
            yield Reference("secrets", f"{field}.{name}.secretRef")


def _in_projection(source: core.VolumeProjection, field: str) -> Iterator[Reference]:
    for name, resource, part in (
        ("configMap", "configmaps", source.config_map),
        ("secret", "secrets", source.secret),
        ("serviceAccountToken", "serviceaccounts", source.service_account_token),
        ("clusterTrustBundle", "clustertrustbundles", source.cluster_trust_bundle),
        ("podCertificate", "podcertificates", source.pod_certificate),
    ):
        if part is not None:
            yield Reference(resource, f"{field}.{name}")
