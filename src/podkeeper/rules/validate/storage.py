"""Validation of volumes that need a storage system.

CSI, ephemeral claims, network and cloud disks.

Most of these volume types appear only in old manifests, because CSI drivers have replaced the in-tree plugins.
Kubelet counterparts: the `validate...VolumeSource` functions in pkg/apis/core/validation.
"""

import re
from typing import Final

import msgspec

from podkeeper.model.errors import Problem
from podkeeper.model.k8s import core, meta
from podkeeper.model.quantity import ZERO
from podkeeper.rules.validate.names import (
    POSITIVE,
    Problems,
    annotations,
    choice,
    descending_path,
    dns_label,
    dns_subdomain,
    label_selector,
    labels,
    missing,
    optional_choice,
    too_long,
    unwanted,
    within,
    wrong,
)
from podkeeper.rules.validate.resources import readable

ACCESS_MODES: Final = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")

_INITIATOR: Final = re.compile(
    r"iqn(?:.*iqn)?\.\d{4}-\d{2}\.([a-zA-Z0-9.-]+)(:[^,;*&$|\s]+)|eui.[a-zA-Z0-9]{16}|naa.[a-zA-Z0-9]{32}", re.ASCII
)
_INITIATOR_DETAIL: Final = "must be valid format (e.g. iqn.2016-04.com.example:disk, or start with eui. or naa.)"


def _required(field: str, **parts: object) -> Problems:
    """Check that each part is set. The keywords are the field names of the API."""
    for name, value in parts.items():
        if not value:
            yield missing(f"{field}.{name}")


def _named_secret(field: str, reference: core.LocalObjectReference | None) -> Problems:
    if reference is not None and not reference.name:
        yield missing(f"{field}.name")


def _csi(field: str, source: core.CSIVolumeSource) -> Problems:
    if len(source.driver) > 63:
        yield too_long(f"{field}.driver", 63, "characters")
    else:
        yield from dns_subdomain(f"{field}.driver", source.driver.lower())
    reference = source.node_publish_secret_ref
    if reference is not None:
        yield from dns_subdomain(f"{field}.nodePublishSecretRef.name", reference.name or "")


def _ephemeral(field: str, source: core.EphemeralVolumeSource) -> Problems:
    template = source.volume_claim_template
    at = f"{field}.volumeClaimTemplate"
    if template is None:
        yield missing(at)
        return
    yield from annotations(f"{at}.metadata.annotations", template.metadata.annotations)
    yield from labels(f"{at}.metadata.labels", template.metadata.labels)
    for part in msgspec.structs.fields(meta.ObjectMeta):
        if part.name not in ("annotations", "labels") and getattr(template.metadata, part.name):
            detail = "cannot be set for an ephemeral volume"
            yield unwanted(f"{at}.metadata.{part.encode_name}", detail)
    yield from _claim_spec(f"{at}.spec", template.spec)


def _claim_spec(field: str, spec: core.PersistentVolumeClaimSpec) -> Problems:
    modes = spec.access_modes or ()
    if not modes:
        yield missing(f"{field}.accessModes", "at least 1 access mode is required")
    for index, mode in enumerate(modes):
        yield from choice(f"{field}.accessModes[{index}]", mode, ACCESS_MODES)
    if "ReadWriteOncePod" in modes and len(set(modes)) > 1:
        yield unwanted(f"{field}.accessModes", "may not use ReadWriteOncePod with other access modes")
    yield from label_selector(f"{field}.selector", spec.selector)
    at = f"{field}.resources.requests[storage]"
    storage = (spec.resources.requests or {}).get("storage")
    if storage is None:
        yield missing(at)
    else:
        amount = readable(at, storage)
        if isinstance(amount, Problem):
            yield amount
        elif amount <= ZERO:
            yield wrong(at, str(amount), POSITIVE)
    if spec.storage_class_name:
        yield from dns_subdomain(f"{field}.storageClassName", spec.storage_class_name)
    if spec.volume_attributes_class_name:
        yield from dns_subdomain(f"{field}.volumeAttributesClassName", spec.volume_attributes_class_name)
    yield from optional_choice(f"{field}.volumeMode", spec.volume_mode, ("Block", "Filesystem"))


def _nfs(field: str, source: core.NFSVolumeSource) -> Problems:
    yield from _required(field, server=source.server)
    if not source.path.startswith("/"):
        yield wrong(f"{field}.path", source.path, "must be an absolute path")


def _iscsi(field: str, source: core.ISCSIVolumeSource) -> Problems:
    yield from _required(field, targetPortal=source.target_portal)
    yield from _initiator(f"{field}.iqn", source.iqn)
    yield from within(f"{field}.lun", source.lun, 0, 255)
    if (source.chap_auth_discovery or source.chap_auth_session) and source.secret_ref is None:
        yield missing(f"{field}.secretRef", "must be set when CHAP authentication is enabled")
    if source.initiator_name is not None:
        yield from _initiator(f"{field}.initiatorName", source.initiator_name)


def _initiator(field: str, name: str) -> Problems:
    if not name:
        yield missing(field)
    elif _INITIATOR.fullmatch(name) is None:
        yield wrong(field, name, _INITIATOR_DETAIL)


def _fc(field: str, source: core.FCVolumeSource) -> Problems:
    if source.target_ww_ns and source.wwids:
        yield wrong(f"{field}", ["targetWWNs", "wwids"], "targetWWNs and wwids can not be specified simultaneously")
    elif not source.target_ww_ns and not source.wwids:
        yield missing(field, "must specify either targetWWNs or wwids")
    if source.target_ww_ns:
        if source.lun is None:
            yield missing(f"{field}.lun", "lun is required if targetWWNs is specified")
        yield from within(f"{field}.lun", source.lun, 0, 255)


def _flocker(field: str, source: core.FlockerVolumeSource) -> Problems:
    if source.dataset_name and source.dataset_uuid:
        yield wrong(
            field, ["datasetName", "datasetUUID"], "datasetName and datasetUUID can not be specified simultaneously"
        )
    elif not source.dataset_name and not source.dataset_uuid:
        yield missing(field, "one of datasetName and datasetUUID is required")
    if "/" in (source.dataset_name or ""):
        yield wrong(f"{field}.datasetName", source.dataset_name, "must not contain '/'")


def _quobyte(field: str, source: core.QuobyteVolumeSource) -> Problems:
    yield from _required(field, registry=source.registry, volume=source.volume)
    for pair in source.registry.split(",") if source.registry else ():
        if ":" not in pair:
            yield wrong(
                f"{field}.registry", source.registry, "must be a host:port pair or multiple pairs separated by commas"
            )
            break
    if len(source.tenant or "") > 64:
        yield too_long(f"{field}.tenant", 64, "characters")


def _flex_volume(field: str, source: core.FlexVolumeSource) -> Problems:
    yield from _required(field, driver=source.driver)
    for key in source.options or {}:
        namespace = f".{key.split('/', 1)[0].lower()}"
        if namespace.endswith((".kubernetes.io", ".k8s.io")):
            detail = "kubernetes.io and k8s.io namespaces are reserved for Kubernetes use"
            yield wrong(f"{field}.options[{key}]", key, detail)


def _azure_disk(field: str, source: core.AzureDiskVolumeSource) -> Problems:
    yield from _required(field, diskName=source.disk_name, diskURI=source.disk_uri)
    yield from optional_choice(f"{field}.cachingMode", source.caching_mode, ("None", "ReadOnly", "ReadWrite"))
    yield from optional_choice(f"{field}.kind", source.kind, ("Shared", "Dedicated", "Managed"))
    start = "/subscriptions/" if source.kind == "Managed" else "https://"
    if source.kind is not None and not source.disk_uri.startswith(start):
        yield wrong(f"{field}.diskURI", source.disk_uri, f"must start with {start} for kind {source.kind}")


def _storage_os(field: str, source: core.StorageOSVolumeSource) -> Problems:
    yield from dns_label(f"{field}.volumeName", source.volume_name or "")
    if source.volume_namespace:
        yield from dns_label(f"{field}.volumeNamespace", source.volume_namespace)
    yield from _named_secret(f"{field}.secretRef", source.secret_ref)


def _git_repo(field: str, source: core.GitRepoVolumeSource) -> Problems:
    yield from _required(field, repository=source.repository)
    yield from descending_path(f"{field}.directory", source.directory or "")


def _cinder(field: str, source: core.CinderVolumeSource) -> Problems:
    yield from _required(field, volumeID=source.volume_id)
    yield from _named_secret(f"{field}.secretRef", source.secret_ref)


def _partitioned(
    field: str, source: core.GCEPersistentDiskVolumeSource | core.AWSElasticBlockStoreVolumeSource
) -> Problems:
    match source:
        case core.GCEPersistentDiskVolumeSource():
            yield from _required(field, pdName=source.pd_name)
        case core.AWSElasticBlockStoreVolumeSource():
            yield from _required(field, volumeID=source.volume_id)
    yield from within(f"{field}.partition", source.partition, 0, 255)


def _ceph_fs(field: str, source: core.CephFSVolumeSource) -> Problems:
    yield from _required(field, monitors=source.monitors)


def _rbd(field: str, source: core.RBDVolumeSource) -> Problems:
    yield from _required(field, monitors=source.monitors, image=source.image)


def _glusterfs(field: str, source: core.GlusterfsVolumeSource) -> Problems:
    yield from _required(field, endpoints=source.endpoints, path=source.path)


def _azure_file(field: str, source: core.AzureFileVolumeSource) -> Problems:
    yield from _required(field, secretName=source.secret_name, shareName=source.share_name)


def _vsphere(field: str, source: core.VsphereVirtualDiskVolumeSource) -> Problems:
    yield from _required(field, volumePath=source.volume_path)


def _photon(field: str, source: core.PhotonPersistentDiskVolumeSource) -> Problems:
    yield from _required(field, pdID=source.pd_id)


def _portworx(field: str, source: core.PortworxVolumeSource) -> Problems:
    yield from _required(field, volumeID=source.volume_id)


def _scale_io(field: str, source: core.ScaleIOVolumeSource) -> Problems:
    yield from _required(field, gateway=source.gateway, system=source.system, volumeName=source.volume_name)


STORAGE_KINDS: Final = {
    core.CSIVolumeSource: _csi,
    core.EphemeralVolumeSource: _ephemeral,
    core.NFSVolumeSource: _nfs,
    core.ISCSIVolumeSource: _iscsi,
    core.FCVolumeSource: _fc,
    core.FlockerVolumeSource: _flocker,
    core.QuobyteVolumeSource: _quobyte,
    core.FlexVolumeSource: _flex_volume,
    core.AzureDiskVolumeSource: _azure_disk,
    core.AzureFileVolumeSource: _azure_file,
    core.StorageOSVolumeSource: _storage_os,
    core.GitRepoVolumeSource: _git_repo,
    core.CinderVolumeSource: _cinder,
    core.GCEPersistentDiskVolumeSource: _partitioned,
    core.AWSElasticBlockStoreVolumeSource: _partitioned,
    core.CephFSVolumeSource: _ceph_fs,
    core.RBDVolumeSource: _rbd,
    core.GlusterfsVolumeSource: _glusterfs,
    core.VsphereVirtualDiskVolumeSource: _vsphere,
    core.PhotonPersistentDiskVolumeSource: _photon,
    core.PortworxVolumeSource: _portworx,
    core.ScaleIOVolumeSource: _scale_io,
}
"""The check of each volume type."""
