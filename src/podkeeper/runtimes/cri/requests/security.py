"""CRI security contexts of sandboxes and containers.

In: a pod, a container, the node. Out: CRI's contexts. Settings of the container win over those of the pod, and a user
in the spec wins over the user of the image. If this node cannot enforce a setting, `NotConfigurable` is raised,
because a container without the required isolation must not run. Kubelet counterparts: security_context.go, helpers.go
and util/ in pkg/kubelet/kuberuntime, pkg/securitycontext and pkg/security/apparmor.
"""

import posixpath
from typing import Final, TypeVar

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import (
    Container,
    EphemeralContainer,
    Pod,
    PodSecurityContext,
    SeccompProfile,
    SecurityContext,
    SELinuxOptions,
)
from podkeeper.model.runtime_calls import ContainerConfig
from podkeeper.rules.admission.apparmor import LOCALHOST, RUNTIME_DEFAULT, UNCONFINED, apparmor_profile_of
from podkeeper.rules.container.of_pod import all_containers
from podkeeper.runtimes.cri.requests.node import IdRange, NodeFacts
from podkeeper.runtimes.cri.requests.users import users_of
from podkeeper.runtimes.cri.schema import cri

T = TypeVar("T")

MASKED_PATHS: Final = (
    *("/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi"),
    *("/sys/firmware", "/sys/devices/virtual/powercap"),
)
READ_ONLY_PATHS: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def sandbox_security(pod: Pod, node: NodeFacts, users: IdRange | None) -> cri.LinuxSandboxSecurityContext:
    """Return the security context of a sandbox. Its own process always has the default seccomp profile."""
    shared = pod.spec.security_context or PodSecurityContext()
    return cri.LinuxSandboxSecurityContext(
        namespace_options=_namespaces(pod, node, users),
        selinux_options=_selinux(shared.se_linux_options),
        run_as_user=_number(shared.run_as_user),
        run_as_group=_number(shared.run_as_group),
        supplemental_groups=_groups(shared),
        supplemental_groups_policy=_groups_policy(shared, node),
        privileged=any(_is_privileged(each) for each in all_containers(pod)),
        seccomp=cri.SecurityProfile(profile_type=cri.SecurityProfile.RuntimeDefault),
    )


def container_security(
    config: ContainerConfig, node: NodeFacts, users: IdRange | None
) -> cri.LinuxContainerSecurityContext:
    own = config.container.security_context or SecurityContext()
    shared = config.pod.spec.security_context or PodSecurityContext()
    unmasked = own.proc_mount == "Unmasked"
    apparmor, old_apparmor = _apparmor(config.pod, config.container, node)
    made = cri.LinuxContainerSecurityContext(
        capabilities=_capabilities(own),
        privileged=bool(own.privileged),
        namespace_options=_namespaces(config.pod, node, users),
        selinux_options=_selinux(_first(own.se_linux_options, shared.se_linux_options)),
        run_as_user=_number(_first(own.run_as_user, shared.run_as_user)),
        run_as_group=_number(_first(own.run_as_group, shared.run_as_group)),
        readonly_rootfs=bool(own.read_only_root_filesystem),
        supplemental_groups=_groups(shared),
        supplemental_groups_policy=_groups_policy(shared, node),
        no_new_privs=own.allow_privilege_escalation is False,
        masked_paths=() if unmasked else (*MASKED_PATHS, *node.hidden_paths),
        readonly_paths=() if unmasked else READ_ONLY_PATHS,
        seccomp=_seccomp(_first(own.seccomp_profile, shared.seccomp_profile), node),
        apparmor=apparmor,
        apparmor_profile=old_apparmor,
    )
    if not made.HasField("run_as_user"):
        _use_image_user(made, config.image_user)
    # With the pod's or the host's PID namespace, the target is visible anyway.
    if config.target_id and made.namespace_options.pid == cri.CONTAINER:
        made.namespace_options.pid = cri.TARGET
        made.namespace_options.target_id = config.target_id
    return made


# ---- namespaces ----


def _namespaces(pod: Pod, node: NodeFacts, users: IdRange | None) -> cri.NamespaceOption:
    spec = pod.spec
    pid = cri.NODE if spec.host_pid else cri.POD if spec.share_process_namespace else cri.CONTAINER
    return cri.NamespaceOption(
        network=cri.NODE if spec.host_network else cri.POD,
        ipc=cri.NODE if spec.host_ipc else cri.POD,
        pid=pid,
        userns_options=users_of(pod, node, users),
    )


# ---- users and privileges ----


def _use_image_user(made: cri.LinuxContainerSecurityContext, image_user: str) -> None:
    """Use the user of the image. None means root. The runtime handles a group in it."""
    name = image_user.partition(":")[0]
    if not name or (name.isascii() and name.isdecimal()):
        made.run_as_user.value = int(name or 0)
        made.run_as_user.SetInParent()  # set the field although its value is 0
    else:
        made.run_as_username = name


def _groups(shared: PodSecurityContext) -> list[int]:
    first = [] if shared.fs_group is None else [shared.fs_group]
    return [*first, *(shared.supplemental_groups or ())]


def _groups_policy(shared: PodSecurityContext, node: NodeFacts) -> cri.SupplementalGroupsPolicy:
    match shared.supplemental_groups_policy:
        case None | "Merge":
            return cri.Merge
        case "Strict" if node.supplemental_groups_policy:
            return cri.Strict
        case "Strict":
            raise NotConfigurable('SupplementalGroupsPolicy "Strict" is not supported in this node')
        case unknown:
            raise NotConfigurable(f"unsupported supplementalGroupsPolicy: {unknown}")


def _capabilities(own: SecurityContext) -> cri.Capability | None:
    wanted = own.capabilities
    if wanted is None:
        return None
    return cri.Capability(add_capabilities=wanted.add or (), drop_capabilities=wanted.drop or ())


def _is_privileged(container: Container | EphemeralContainer) -> bool:
    return container.security_context is not None and bool(container.security_context.privileged)


# ---- profiles ----


def _seccomp(profile: SeccompProfile | None, node: NodeFacts) -> cri.SecurityProfile:
    if profile is None:
        kind = cri.SecurityProfile.RuntimeDefault if node.default_seccomp else cri.SecurityProfile.Unconfined
        return cri.SecurityProfile(profile_type=kind)
    match profile.type:
        case "RuntimeDefault":
            return cri.SecurityProfile(profile_type=cri.SecurityProfile.RuntimeDefault)
        case "Localhost" if profile.localhost_profile:
            path = posixpath.join(node.seccomp_root, profile.localhost_profile)
            return cri.SecurityProfile(profile_type=cri.SecurityProfile.Localhost, localhost_ref=path)
        case "Localhost":
            raise NotConfigurable("localhostProfile must be set if seccompProfile type is Localhost.")
        case _:
            return cri.SecurityProfile(profile_type=cri.SecurityProfile.Unconfined)


def _apparmor(
    pod: Pod, container: Container | EphemeralContainer, node: NodeFacts
) -> tuple[cri.SecurityProfile | None, str]:
    """Return the AppArmor profile and its deprecated spelling. Neither if none is required."""
    profile = apparmor_profile_of(pod, container)
    if profile is None:
        return None, ""
    if profile.type == "Unconfined":
        return cri.SecurityProfile(profile_type=cri.SecurityProfile.Unconfined), UNCONFINED
    if not node.apparmor:
        raise NotConfigurable("Cannot enforce AppArmor: AppArmor is not enabled on the host")
    match profile.type:
        case "RuntimeDefault":
            return cri.SecurityProfile(profile_type=cri.SecurityProfile.RuntimeDefault), RUNTIME_DEFAULT
        case "Localhost" if (profile.localhost_profile or "").strip():
            name = profile.localhost_profile or ""
            made = cri.SecurityProfile(profile_type=cri.SecurityProfile.Localhost, localhost_ref=name)
            return made, f"{LOCALHOST}{name}"
        case "Localhost":
            raise NotConfigurable("missing localhost apparmor profile name")
        case unknown:
            raise NotConfigurable(f'unknown apparmor profile type: "{unknown}"')


def _selinux(options: SELinuxOptions | None) -> cri.SELinuxOption | None:
    if options is None:
        return None
    return cri.SELinuxOption(
        user=options.user or "", role=options.role or "", type=options.type or "", level=options.level or ""
    )


# ---- helpers ----


def _number(value: int | None) -> cri.Int64Value | None:
    return None if value is None else cri.Int64Value(value=value)


def _first(own: T | None, shared: T | None) -> T | None:
    return shared if own is None else own
