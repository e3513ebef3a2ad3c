"""Defaults of the parts of a pod: containers, probes, variables, volumes.

`rules/defaults/pod.py` describes the rules and the kubelet counterparts.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from podkeeper.model.k8s import core
from podkeeper.rules.images.reference import pull_policy_for
from podkeeper.rules.resources import canonical_quantity, canonical_requirements, canonical_resources

T = TypeVar("T")
ContainerT = TypeVar("ContainerT", core.Container, core.EphemeralContainer)
Moded = TypeVar(
    "Moded",
    core.ConfigMapVolumeSource,
    core.SecretVolumeSource,
    core.DownwardAPIVolumeSource,
    core.ProjectedVolumeSource,
)

_FILE_MODE = 0o644  # of Secret, ConfigMap, downward API and projected volumes
_TOKEN_SECONDS = 60 * 60


def each(complete: Callable[[T], T], parts: tuple[T, ...] | None) -> tuple[T, ...] | None:
    """Apply a function to every item of a list that may be absent."""
    return None if parts is None else tuple(map(complete, parts))


def if_given(complete: Callable[[T], T], part: T | None) -> T | None:
    """Apply a function to a value that may be absent."""
    return None if part is None else complete(part)


def default_container(container: ContainerT) -> ContainerT:
    return msgspec.structs.replace(
        container,
        image_pull_policy=container.image_pull_policy or pull_policy_for(container.image or ""),
        termination_message_path=container.termination_message_path or "/dev/termination-log",
        termination_message_policy=container.termination_message_policy or "File",
        ports=each(_default_port, container.ports),
        env=each(_default_env, container.env),
        resources=canonical_requirements(container.resources),
        liveness_probe=if_given(_default_probe, container.liveness_probe),
        readiness_probe=if_given(_default_probe, container.readiness_probe),
        startup_probe=if_given(_default_probe, container.startup_probe),
        lifecycle=if_given(_default_lifecycle, container.lifecycle),
    )


def _default_port(port: core.ContainerPort) -> core.ContainerPort:
    return msgspec.structs.replace(port, protocol=port.protocol or "TCP")


def _default_env(variable: core.EnvVar) -> core.EnvVar:
    source = variable.value_from
    if source is None:
        return variable
    file_key = source.file_key_ref
    if file_key is not None and file_key.optional is None:
        file_key = msgspec.structs.replace(file_key, optional=False)
    source = msgspec.structs.replace(
        source,
        field_ref=if_given(_default_field_ref, source.field_ref),
        file_key_ref=file_key,
        resource_field_ref=if_given(_default_resource_ref, source.resource_field_ref),
    )
    return msgspec.structs.replace(variable, value_from=source)


def _default_probe(probe: core.Probe) -> core.Probe:
    grpc = probe.grpc
    if grpc is not None and grpc.service is None:
        grpc = msgspec.structs.replace(grpc, service="")
    return msgspec.structs.replace(
        probe,
        timeout_seconds=probe.timeout_seconds or 1,
        period_seconds=probe.period_seconds or 10,
        success_threshold=probe.success_threshold or 1,
        failure_threshold=probe.failure_threshold or 3,
        http_get=if_given(_default_http_get, probe.http_get),
        grpc=grpc,
    )


def _default_lifecycle(lifecycle: core.Lifecycle) -> core.Lifecycle:
    return msgspec.structs.replace(
        lifecycle,
        post_start=if_given(_default_hook, lifecycle.post_start),
        pre_stop=if_given(_default_hook, lifecycle.pre_stop),
    )


def _default_hook(hook: core.LifecycleHandler) -> core.LifecycleHandler:
    return msgspec.structs.replace(hook, http_get=if_given(_default_http_get, hook.http_get))


def _default_http_get(action: core.HTTPGetAction) -> core.HTTPGetAction:
    return msgspec.structs.replace(action, path=action.path or "/", scheme=action.scheme or "HTTP")


# ---- volumes -------------------------------------------------------------------------------


def default_volume(volume: core.Volume) -> core.Volume:
    """Set the defaults of a volume. A volume without a source is an emptyDir."""
    if not any(getattr(volume, part.name) is not None for part in _volume_sources()):
        return msgspec.structs.replace(volume, empty_dir=core.EmptyDirVolumeSource())
    return msgspec.structs.replace(
        volume,
        config_map=if_given(_with_mode, volume.config_map),
        secret=if_given(_with_mode, volume.secret),
        downward_api=if_given(_default_downward_api, volume.downward_api),
        projected=if_given(_default_projected, volume.projected),
        host_path=if_given(_default_host_path, volume.host_path),
        empty_dir=if_given(_default_empty_dir, volume.empty_dir),
        image=if_given(_default_image, volume.image),
        ephemeral=if_given(_default_ephemeral, volume.ephemeral),
        iscsi=if_given(_default_iscsi, volume.iscsi),
        rbd=if_given(_default_rbd, volume.rbd),
        azure_disk=if_given(_default_azure_disk, volume.azure_disk),
        scale_io=if_given(_default_scale_io, volume.scale_io),
    )


def _volume_sources() -> Iterable[msgspec.structs.FieldInfo]:
    return (part for part in msgspec.structs.fields(core.Volume) if part.name != "name")


def _with_mode(source: Moded) -> Moded:
    return source if source.default_mode is not None else msgspec.structs.replace(source, default_mode=_FILE_MODE)


def _default_downward_api(source: core.DownwardAPIVolumeSource) -> core.DownwardAPIVolumeSource:
    return msgspec.structs.replace(_with_mode(source), items=each(_default_downward_file, source.items))


def _default_downward_file(file: core.DownwardAPIVolumeFile) -> core.DownwardAPIVolumeFile:
    return msgspec.structs.replace(
        file,
        field_ref=if_given(_default_field_ref, file.field_ref),
        resource_field_ref=if_given(_default_resource_ref, file.resource_field_ref),
    )


def _default_field_ref(selector: core.ObjectFieldSelector) -> core.ObjectFieldSelector:
    return msgspec.structs.replace(selector, api_version=selector.api_version or "v1")


def _default_resource_ref(selector: core.ResourceFieldSelector) -> core.ResourceFieldSelector:
    return msgspec.structs.replace(selector, divisor=canonical_quantity(selector.divisor))


def _default_projected(source: core.ProjectedVolumeSource) -> core.ProjectedVolumeSource:
    return msgspec.structs.replace(_with_mode(source), sources=tuple(map(_default_projection, source.sources)))


def _default_projection(source: core.VolumeProjection) -> core.VolumeProjection:
    downward, token = source.downward_api, source.service_account_token
    if downward is not None:
        downward = msgspec.structs.replace(downward, items=each(_default_downward_file, downward.items))
    if token is not None and token.expiration_seconds is None:
        token = msgspec.structs.replace(token, expiration_seconds=_TOKEN_SECONDS)
    return msgspec.structs.replace(source, downward_api=downward, service_account_token=token)


def _default_host_path(source: core.HostPathVolumeSource) -> core.HostPathVolumeSource:
    return msgspec.structs.replace(source, type=source.type or "")


def _default_empty_dir(source: core.EmptyDirVolumeSource) -> core.EmptyDirVolumeSource:
    return msgspec.structs.replace(source, size_limit=if_given(canonical_quantity, source.size_limit))


def _default_image(source: core.ImageVolumeSource) -> core.ImageVolumeSource:
    return msgspec.structs.replace(source, pull_policy=source.pull_policy or pull_policy_for(source.reference or ""))


def _default_ephemeral(source: core.EphemeralVolumeSource) -> core.EphemeralVolumeSource:
    template = source.volume_claim_template
    if template is None:
        return source
    resources = msgspec.structs.replace(
        template.spec.resources,
        limits=canonical_resources(template.spec.resources.limits),
        requests=canonical_resources(template.spec.resources.requests),
    )
    mode = "Filesystem" if template.spec.volume_mode is None else template.spec.volume_mode
    spec = msgspec.structs.replace(template.spec, volume_mode=mode, resources=resources)
    return msgspec.structs.replace(source, volume_claim_template=msgspec.structs.replace(template, spec=spec))


def _default_iscsi(source: core.ISCSIVolumeSource) -> core.ISCSIVolumeSource:
    return msgspec.structs.replace(source, iscsi_interface=source.iscsi_interface or "default")


def _default_rbd(source: core.RBDVolumeSource) -> core.RBDVolumeSource:
    return msgspec.structs.replace(
        source,
        pool=source.pool or "rbd",
        user=source.user or "admin",
        keyring=source.keyring or "/etc/ceph/keyring",
    )


def _default_azure_disk(source: core.AzureDiskVolumeSource) -> core.AzureDiskVolumeSource:
    return msgspec.structs.replace(
        source,
        caching_mode="ReadWrite" if source.caching_mode is None else source.caching_mode,
        fs_type="ext4" if source.fs_type is None else source.fs_type,
        kind="Shared" if source.kind is None else source.kind,
        read_only=bool(source.read_only),
    )


def _default_scale_io(source: core.ScaleIOVolumeSource) -> core.ScaleIOVolumeSource:
    return msgspec.structs.replace(
        source,
        storage_mode=source.storage_mode or "ThinProvisioned",
        fs_type=source.fs_type or "xfs",
    )
