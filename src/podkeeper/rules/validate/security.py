"""Validation of security contexts: who a pod runs as and what it may do to the host.

The Go ancestors are `ValidateSecurityContext`, `validatePodSpecSecurityContext` and
`validateHostUsers` in pkg/apis/core/validation. Options of Windows are not looked into: this agent
runs on Linux and turns such pods away at admission.
"""

from collections.abc import Iterator
from typing import Final

from podkeeper.model.errors import Problem
from podkeeper.model.k8s import core
from podkeeper.rules.validate.names import (
    Problems,
    choice,
    descending_path,
    missing,
    optional_choice,
    repeated,
    sysctl_name,
    unwanted,
    within,
    wrong,
)

MAX_ID: Final = 2**31 - 1
MAX_PROFILE_BYTES: Final = 4095

_PROFILE_TYPES: Final = ("Localhost", "RuntimeDefault", "Unconfined")
_IPC_SYSCTLS: Final = frozenset(
    f"kernel.{name}"
    for name in ["sem", "shmall", "shmmax", "shmmni", "shm_rmid_forced", "shm", "msgmax", "msgmnb", "msgmni", "msg"]
)


def container_security(field: str, context: core.SecurityContext | None, spec: core.PodSpec) -> Problems:
    """Everything wrong with the security context of a container."""
    if context is None:
        return
    yield from within(f"{field}.runAsUser", context.run_as_user, 0, MAX_ID)
    yield from within(f"{field}.runAsGroup", context.run_as_group, 0, MAX_ID)
    yield from optional_choice(f"{field}.procMount", context.proc_mount, ("Default", "Unmasked"))
    if context.proc_mount == "Unmasked" and spec.host_users is not False:
        yield wrong(f"{field}.procMount", context.proc_mount, "Default, or spec.hostUsers false")
    yield from _seccomp(f"{field}.seccompProfile", context.seccomp_profile)
    yield from _app_armor(f"{field}.appArmorProfile", context.app_armor_profile)
    if context.allow_privilege_escalation is False:
        at = f"{field}.allowPrivilegeEscalation"
        if context.privileged:
            yield wrong(at, False, "true, or privileged false")
        if context.capabilities is not None and "CAP_SYS_ADMIN" in (context.capabilities.add or ()):
            yield wrong(at, False, "true, or CAP_SYS_ADMIN not added")


def every_container(spec: core.PodSpec) -> Iterator[tuple[str, core.Container | core.EphemeralContainer]]:
    """All containers of a pod, each with the field it stands in."""
    for index, container in enumerate(spec.containers):
        yield f"spec.containers[{index}]", container
    for index, container in enumerate(spec.init_containers or ()):
        yield f"spec.initContainers[{index}]", container
    for index, ephemeral in enumerate(spec.ephemeral_containers or ()):
        yield f"spec.ephemeralContainers[{index}]", ephemeral


def pod_security(spec: core.PodSpec) -> Problems:
    """Everything wrong with the security context of a pod, and with what it shares with the host."""
    context = spec.security_context or core.PodSecurityContext()
    field = "spec.securityContext"
    yield from within(f"{field}.fsGroup", context.fs_group, 0, MAX_ID)
    yield from within(f"{field}.runAsUser", context.run_as_user, 0, MAX_ID)
    yield from within(f"{field}.runAsGroup", context.run_as_group, 0, MAX_ID)
    for index, group in enumerate(context.supplemental_groups or ()):
        yield from within(f"{field}.supplementalGroups[{index}]", group, 0, MAX_ID)
    if spec.share_process_namespace and spec.host_pid:
        yield wrong("spec.shareProcessNamespace", True, "false, or hostPID false")
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
            yield unwanted(f"spec.{name}", "while hostUsers is false")
    for field, container in every_container(spec):
        if container.volume_devices:
            yield unwanted(f"{field}.volumeDevices", "while hostUsers is false")


def _os(spec: core.PodSpec, context: core.PodSecurityContext) -> Problems:
    if spec.os is None:
        return
    yield from choice("spec.os.name", spec.os.name, ("linux", "windows"))
    if spec.os.name == "linux":
        if context.windows_options is not None:
            yield unwanted("spec.securityContext.windowsOptions", "for a linux pod")
        for field, container in every_container(spec):
            if container.security_context is not None and container.security_context.windows_options is not None:
                yield unwanted(f"{field}.securityContext.windowsOptions", "for a linux pod")


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
            yield unwanted(at, "while hostNetwork is true")
        if spec.host_ipc and (name in _IPC_SYSCTLS or name.startswith("fs.mqueue.")):
            yield unwanted(at, "while hostIPC is true")


def _with_dots(sysctl: str) -> str:
    """A name spelt with slashes, spelt with dots; either separator may stand inside an interface name."""
    first = next((letter for letter in sysctl if letter in "./"), ".")
    return sysctl if first == "." else sysctl.translate(str.maketrans("./", "/."))


def _seccomp(field: str, profile: core.SeccompProfile | None) -> Problems:
    if profile is None:
        return
    yield from choice(f"{field}.type", profile.type, _PROFILE_TYPES)
    if profile.type != "Localhost":
        if profile.localhost_profile is not None:
            yield unwanted(f"{field}.localhostProfile", "unless the type is Localhost")
    elif profile.localhost_profile is None:
        yield missing(f"{field}.localhostProfile", "the profile's path, since the type is Localhost")
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
            yield unwanted(at, "unless the type is Localhost")
    elif not name:
        yield missing(at, "the profile's name, since the type is Localhost")
    elif name != name.strip():
        yield wrong(at, name, "a name without white space around it")
    elif len(name.encode(errors="surrogatepass")) > MAX_PROFILE_BYTES:
        yield Problem(f"cannot be so long; right would be at most {MAX_PROFILE_BYTES} bytes", at)
