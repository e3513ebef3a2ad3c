"""Validation of security contexts and shared host namespaces.

Windows options are not checked, because this agent runs on Linux and rejects Windows pods at admission. Kubelet
counterparts: `ValidateSecurityContext`, `validatePodSpecSecurityContext` and `validateHostUsers` in
pkg/apis/core/validation.
"""

from collections.abc import Iterator
from typing import Final

from podkeeper.model.k8s import core
from podkeeper.rules.validate.names import (
    Problems,
    choice,
    descending_path,
    missing,
    optional_choice,
    repeated,
    sysctl_name,
    too_long,
    unwanted,
    within,
    wrong,
)

MAX_ID: Final = 2**31 - 1
MAX_PROFILE_BYTES: Final = 4095

_NOT_LINUX: Final = "windows options cannot be set for a linux pod"
_ONLY_LOCALHOST: Final = "can only be set when type is Localhost"
_NEEDED_BY_LOCALHOST: Final = "must be set when type is Localhost"
_PROFILE_TYPES: Final = ("Localhost", "RuntimeDefault", "Unconfined")
_IPC_SYSCTLS: Final = frozenset(
    f"kernel.{name}"
    for name in ["sem", "shmall", "shmmax", "shmmni", "shm_rmid_forced", "shm", "msgmax", "msgmnb", "msgmni", "msg"]
)


def container_security(field: str, context: core.SecurityContext | None, spec: core.PodSpec) -> Problems:
    if context is None:
        return
    yield from within(f"{field}.runAsUser", context.run_as_user, 0, MAX_ID)
    yield from within(f"{field}.runAsGroup", context.run_as_group, 0, MAX_ID)
    yield from optional_choice(f"{field}.procMount", context.proc_mount, ("Default", "Unmasked"))
    if context.proc_mount == "Unmasked" and spec.host_users is not False:
        yield wrong(f"{field}.procMount", context.proc_mount, "`hostUsers` must be false to use `Unmasked`")
    yield from _seccomp(f"{field}.seccompProfile", context.seccomp_profile)
    yield from _app_armor(f"{field}.appArmorProfile", context.app_armor_profile)
    if context.allow_privilege_escalation is False:
        at = f"{field}.allowPrivilegeEscalation"
        if context.privileged:
            yield wrong(at, False, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
        if context.capabilities is not None and "CAP_SYS_ADMIN" in (context.capabilities.add or ()):
            detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
            yield wrong(at, False, detail)


def every_container(spec: core.PodSpec) -> Iterator[tuple[str, core.Container | core.EphemeralContainer]]:
    """Yield all containers of a pod, each with its field."""
    for index, container in enumerate(spec.containers):
        yield f"spec.containers[{index}]", container
    for index, container in enumerate(spec.init_containers or ()):
        yield f"spec.initContainers[{index}]", container
    for index, ephemeral in enumerate(spec.ephemeral_containers or ()):
        yield f"spec.ephemeralContainers[{index}]", ephemeral


def pod_security(spec: core.PodSpec) -> Problems:
    """Check the security context of a pod and the namespaces that it shares with the host."""
    context = spec.security_context or core.PodSecurityContext()
    field = "spec.securityContext"
    yield from within(f"{field}.fsGroup", context.fs_group, 0, MAX_ID)
    yield from within(f"{field}.runAsUser", context.run_as_user, 0, MAX_ID)
    yield from within(f"{field}.runAsGroup", context.run_as_group, 0, MAX_ID)
    for index, group in enumerate(context.supplemental_groups or ()):
        yield from within(f"{field}.supplementalGroups[{index}]", group, 0, MAX_ID)
    if spec.share_process_namespace and spec.host_pid:
        yield wrong("spec.shareProcessNamespace", True, "ShareProcessNamespace and HostPID cannot both be enabled")
    yield from _sysctls(f"{field}.sysctls", spec, context.sysctls or ())
    yield from optional_choice(
        f"{field}.fsGroupChangePolicy", context.fs_group_change_policy, ("OnRootMismatch", "Always")
    )
    yield from _seccomp(f"{field}.seccompProfile", context.seccomp_profile)
    yield from _app_armor(f"{field}.appArmorProfile", context.app_armor_profile)
    yield from optional_choice(
        f"{field}.supplementalGroupsPolicy", context.supplemental_groups_policy, ("Merge", "Strict")
    )
    yield from optional_choice(f"{field}.seLinuxChangePolicy", context.se_linux_change_policy, ("Recursive",))
    yield from _host_users(spec)
    yield from _os(spec, context)


def _host_users(spec: core.PodSpec) -> Problems:
    if spec.host_users is not False:
        return
    for name, given in (("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)):
        if given:
            yield unwanted(f"spec.{name}", "when `hostUsers` is false")
    for field, container in every_container(spec):
        if container.volume_devices:
            yield unwanted(f"{field}.volumeDevices", "when `hostUsers` is false")


def _os(spec: core.PodSpec, context: core.PodSecurityContext) -> Problems:
    if spec.os is None:
        return
    yield from choice("spec.os.name", spec.os.name, ("linux", "windows"))
    if spec.os.name == "linux":
        if context.windows_options is not None:
            yield unwanted("spec.securityContext.windowsOptions", _NOT_LINUX)
        for field, container in every_container(spec):
            if container.security_context is not None and container.security_context.windows_options is not None:
                yield unwanted(f"{field}.securityContext.windowsOptions", _NOT_LINUX)


def _sysctls(field: str, spec: core.PodSpec, sysctls: tuple[core.Sysctl, ...]) -> Problems:
    seen: set[str] = set()
    for index, sysctl in enumerate(sysctls):
        at = f"{field}[{index}].name"
        yield from sysctl_name(at, sysctl.name)
        if sysctl.name in seen:
            yield repeated(at, sysctl.name)
        seen.add(sysctl.name)
        name = _with_dots(sysctl.name)
        if spec.host_network and name.startswith("net."):
            yield wrong(at, sysctl.name, "may not be specified when 'hostNetwork' is true")
        if spec.host_ipc and (name in _IPC_SYSCTLS or name.startswith("fs.mqueue.")):
            yield wrong(at, sysctl.name, "may not be specified when 'hostIPC' is true")


def _with_dots(sysctl: str) -> str:
    """Return a sysctl's name with dots as separators. The other separator may be part of an interface name."""
    first = next((letter for letter in sysctl if letter in "./"), ".")
    return sysctl if first == "." else sysctl.translate(str.maketrans("./", "/."))


def _seccomp(field: str, profile: core.SeccompProfile | None) -> Problems:
    if profile is None:
        return
    yield from choice(f"{field}.type", profile.type, _PROFILE_TYPES)
    if profile.type != "Localhost":
        if profile.localhost_profile is not None:
            yield wrong(f"{field}.localhostProfile", profile.localhost_profile, _ONLY_LOCALHOST)
    elif profile.localhost_profile is None:
        yield missing(f"{field}.localhostProfile", _NEEDED_BY_LOCALHOST)
    else:
        yield from descending_path(f"{field}.localhostProfile", profile.localhost_profile)


def _app_armor(field: str, profile: core.AppArmorProfile | None) -> Problems:
    if profile is None:
        return
    yield from choice(f"{field}.type", profile.type, _PROFILE_TYPES)
    at = f"{field}.localhostProfile"
    name = profile.localhost_profile
    if profile.type != "Localhost":
        if name is not None and profile.type in _PROFILE_TYPES:
            yield wrong(at, name, _ONLY_LOCALHOST)
    elif not name:
        yield missing(at, _NEEDED_BY_LOCALHOST)
    elif name != name.strip():
        yield wrong(at, name, "must not be padded with whitespace")
    elif len(name.encode(errors="surrogatepass")) > MAX_PROFILE_BYTES:
        yield too_long(at, MAX_PROFILE_BYTES)
