"""Validation of containers: regular, init, sidecar and ephemeral.

Container names must be unique across all three lists of a spec. Kubelet counterparts: `validateContainers`,
`validateInitContainers` and `validateEphemeralContainers` in pkg/apis/core/validation.
"""

from collections.abc import Mapping
from typing import Final

from podkeeper.model.k8s import core
from podkeeper.model.pods import AnyContainer
from podkeeper.rules.container.restart import is_sidecar
from podkeeper.rules.validate import env, hooks, resources, security
from podkeeper.rules.validate.names import (
    Problems,
    choice,
    descending_path,
    dns_label,
    missing,
    no_backsteps,
    not_found,
    optional_choice,
    port_name,
    repeated,
    unwanted,
    within,
    wrong,
)

PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")

_NOT_EPHEMERAL: Final = "cannot be set for an Ephemeral Container"
_FORBIDDEN_IN_EPHEMERAL: Final = (
    ("ports", "ports"),
    ("liveness_probe", "livenessProbe"),
    ("readiness_probe", "readinessProbe"),
    ("startup_probe", "startupProbe"),
    ("lifecycle", "lifecycle"),
    ("resize_policy", "resizePolicy"),
    ("restart_policy", "restartPolicy"),
    ("restart_policy_rules", "restartPolicyRules"),
)
_HOOKS: Final = (
    ("lifecycle", "lifecycle"),
    ("liveness_probe", "livenessProbe"),
    ("readiness_probe", "readinessProbe"),
    ("startup_probe", "startupProbe"),
)


def containers(spec: core.PodSpec, volumes: Mapping[str, core.Volume]) -> Problems:
    if not spec.containers:
        yield missing("spec.containers", "must have at least one container")
    names: set[str] = set()
    host_ports: set[tuple[str | None, str | None, int]] = set()
    for index, container in enumerate(spec.containers):
        at = f"spec.containers[{index}]"
        yield from _common(at, container, spec, volumes, names)
        if container.lifecycle is not None:
            yield from hooks.lifecycle(f"{at}.lifecycle", container.lifecycle, spec)
        yield from hooks.probes(at, container)
        yield from hooks.restart_policy(at, container)
        yield from _host_ports(at, container, host_ports)
        if spec.host_network:
            yield from _ports_of_host(at, container)
    for index, container in enumerate(spec.init_containers or ()):
        at = f"spec.initContainers[{index}]"
        yield from _common(at, container, spec, volumes, names)
        yield from _init_container(at, container, spec)
    yield from _ephemeral_containers(spec, volumes, names)


def _common(
    field: str, container: AnyContainer, spec: core.PodSpec, volumes: Mapping[str, core.Volume], names: set[str]
) -> Problems:
    yield from dns_label(f"{field}.name", container.name)
    if container.name and container.name in names:
        yield repeated(f"{field}.name", container.name)
    names.add(container.name)
    image = container.image or ""
    if not image:
        yield missing(f"{field}.image")
    elif image != image.strip():
        yield wrong(f"{field}.image", image, "must not have leading or trailing whitespace")
    yield from choice(
        f"{field}.terminationMessagePolicy", container.termination_message_policy, ("File", "FallbackToLogsOnError")
    )
    yield from choice(f"{field}.imagePullPolicy", container.image_pull_policy, PULL_POLICIES)
    yield from _ports(f"{field}.ports", container.ports or ())
    yield from env.variables(f"{field}.env", container.env or (), volumes)
    yield from env.sources(f"{field}.envFrom", container.env_from or ())
    yield from _mounts(f"{field}.volumeMounts", container, volumes)
    yield from _devices(f"{field}.volumeDevices", container, volumes)
    claims = frozenset(claim.name for claim in spec.resource_claims or ())
    yield from resources.container_resources(f"{field}.resources", container.resources, claims)
    yield from _resize_policy(f"{field}.resizePolicy", container.resize_policy or (), spec)
    yield from security.container_security(f"{field}.securityContext", container.security_context, spec)


def _init_container(field: str, container: core.Container, spec: core.PodSpec) -> Problems:
    yield from hooks.restart_policy(field, container)
    yield from _host_ports(field, container, set())
    if is_sidecar(container):
        if container.lifecycle is not None:
            yield from hooks.lifecycle(f"{field}.lifecycle", container.lifecycle, spec)
        yield from hooks.probes(field, container)
        return
    for attribute, name in _HOOKS:
        if getattr(container, attribute) is not None:
            yield unwanted(f"{field}.{name}", "may not be set for init containers without restartPolicy=Always")
    for index, policy in enumerate(container.resize_policy or ()):
        if policy.restart_policy == "RestartContainer":
            at = f"{field}.resizePolicy[{index}].restartPolicy"
            yield wrong(at, policy.restart_policy, "must be NotRequired for init containers that are not sidecars")


def _ephemeral_containers(spec: core.PodSpec, volumes: Mapping[str, core.Volume], names: set[str]) -> Problems:
    others = frozenset(names)
    for index, container in enumerate(spec.ephemeral_containers or ()):
        at = f"spec.ephemeralContainers[{index}]"
        yield from _common(at, container, spec, volumes, names)
        if container.target_container_name and container.target_container_name not in others:
            yield not_found(f"{at}.targetContainerName", container.target_container_name)
        for attribute, name in _FORBIDDEN_IN_EPHEMERAL:
            if getattr(container, attribute):
                yield unwanted(f"{at}.{name}", _NOT_EPHEMERAL)
        if container.resources != core.ResourceRequirements():
            yield unwanted(f"{at}.resources", _NOT_EPHEMERAL)
        for position, mount in enumerate(container.volume_mounts or ()):
            if mount.sub_path:
                yield unwanted(f"{at}.volumeMounts[{position}].subPath", _NOT_EPHEMERAL)
            if mount.sub_path_expr:
                yield unwanted(f"{at}.volumeMounts[{position}].subPathExpr", _NOT_EPHEMERAL)


# ---- ports ---------------------------------------------------------------------------------


def _ports(field: str, ports: tuple[core.ContainerPort, ...]) -> Problems:
    names: set[str] = set()
    for index, port in enumerate(ports):
        at = f"{field}[{index}]"
        if port.name:
            yield from port_name(f"{at}.name", port.name)
            if port.name in names:
                yield repeated(f"{at}.name", port.name)
            names.add(port.name)
        if port.container_port == 0:
            yield missing(f"{at}.containerPort")
        else:
            yield from within(f"{at}.containerPort", port.container_port, 1, 65535)
        yield from within(f"{at}.hostPort", port.host_port or None, 1, 65535)
        yield from choice(f"{at}.protocol", port.protocol, ("TCP", "UDP", "SCTP"))


def _host_ports(field: str, container: core.Container, taken: set[tuple[str | None, str | None, int]]) -> Problems:
    for index, port in enumerate(container.ports or ()):
        if not port.host_port:
            continue
        key = (port.protocol, port.host_ip or None, port.host_port)
        if key in taken:
            yield repeated(f"{field}.ports[{index}].hostPort", port.host_port)
        taken.add(key)


def _ports_of_host(field: str, container: core.Container) -> Problems:
    for index, port in enumerate(container.ports or ()):
        if (port.host_port or 0) != port.container_port:
            at = f"{field}.ports[{index}].hostPort"
            yield wrong(at, port.host_port or 0, "must match `containerPort` when `hostNetwork` is true")


# ---- mounts and devices --------------------------------------------------------------------


def _mounts(field: str, container: AnyContainer, volumes: Mapping[str, core.Volume]) -> Problems:
    devices = {device.name: device.device_path for device in container.volume_devices or ()}
    paths: set[str] = set()
    for index, mount in enumerate(container.volume_mounts or ()):
        at = f"{field}[{index}]"
        if mount.name not in volumes:
            yield not_found(f"{at}.name", mount.name)
        if not mount.mount_path:
            yield missing(f"{at}.mountPath")
        if mount.mount_path in paths:
            yield wrong(f"{at}.mountPath", mount.mount_path, "must be unique")
        paths.add(mount.mount_path)
        if mount.name in devices:
            yield wrong(f"{at}.name", mount.name, "must not already exist in volumeDevices")
        if mount.mount_path in devices.values():
            yield wrong(f"{at}.mountPath", mount.mount_path, "must not already exist as a path in volumeDevices")
        yield from descending_path(f"{at}.subPath", mount.sub_path or "")
        yield from descending_path(f"{at}.subPathExpr", mount.sub_path_expr or "")
        if mount.sub_path and mount.sub_path_expr:
            yield wrong(f"{at}.subPathExpr", mount.sub_path_expr, "subPathExpr and subPath are mutually exclusive")
        yield from _mount_modes(at, mount, container)


def _mount_modes(field: str, mount: core.VolumeMount, container: AnyContainer) -> Problems:
    propagation = mount.mount_propagation
    yield from optional_choice(f"{field}.mountPropagation", propagation, ("Bidirectional", "HostToContainer", "None"))
    context = container.security_context
    if propagation == "Bidirectional" and not (context is not None and context.privileged):
        yield unwanted(f"{field}.mountPropagation", "Bidirectional mount propagation requires a privileged container")
    recursive = mount.recursive_read_only
    at = f"{field}.recursiveReadOnly"
    yield from optional_choice(at, recursive, ("Disabled", "IfPossible", "Enabled"))
    if recursive in ("Enabled", "IfPossible"):
        if not mount.read_only:
            yield unwanted(at, "may only be specified when readOnly is true")
        if propagation not in (None, "None"):
            yield unwanted(at, "may only be specified when mountPropagation is None or not specified")


def _devices(field: str, container: AnyContainer, volumes: Mapping[str, core.Volume]) -> Problems:
    mounts = {mount.name: mount.mount_path for mount in container.volume_mounts or ()}
    names: set[str] = set()
    paths: set[str] = set()
    for index, device in enumerate(container.volume_devices or ()):
        at = f"{field}[{index}]"
        volume = volumes.get(device.name)
        if volume is None:
            yield not_found(f"{at}.name", device.name)
        elif volume.persistent_volume_claim is None and volume.ephemeral is None:
            detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
            yield wrong(f"{at}.name", device.name, detail)
        if device.name in names:
            yield wrong(f"{at}.name", device.name, "must be unique")
        if device.name in mounts:
            yield wrong(f"{at}.name", device.name, "must not already exist in volumeMounts")
        if not device.device_path:
            yield missing(f"{at}.devicePath")
        if device.device_path in paths:
            yield wrong(f"{at}.devicePath", device.device_path, "must be unique")
        elif device.device_path in mounts.values():
            yield wrong(f"{at}.devicePath", device.device_path, "must not already exist as a path in volumeMounts")
        yield from no_backsteps(f"{at}.devicePath", device.device_path)
        names.add(device.name)
        paths.add(device.device_path)


def _resize_policy(field: str, policies: tuple[core.ContainerResizePolicy, ...], spec: core.PodSpec) -> Problems:
    seen: set[str] = set()
    for index, policy in enumerate(policies):
        at = f"{field}[{index}]"
        if policy.resource_name in seen:
            yield repeated(f"{at}.resourceName", policy.resource_name)
        seen.add(policy.resource_name)
        yield from choice(f"{at}.resourceName", policy.resource_name, ("cpu", "memory"))
        yield from choice(f"{at}.restartPolicy", policy.restart_policy, ("NotRequired", "RestartContainer"))
        if spec.restart_policy == "Never" and policy.restart_policy == "RestartContainer":
            detail = "must be NotRequired when the pod's restartPolicy is Never"
            yield wrong(f"{at}.restartPolicy", policy.restart_policy, detail)
