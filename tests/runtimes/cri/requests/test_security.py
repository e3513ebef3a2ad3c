"""Security contexts in requests, for cases that the recorded pods do not cover."""

from dataclasses import replace
from typing import Any

import pytest

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import (
    AppArmorProfile,
    Capabilities,
    Container,
    EphemeralContainer,
    PodSecurityContext,
    SeccompProfile,
    SecurityContext,
    SELinuxOptions,
)
from podkeeper.runtimes.cri.requests.security import MASKED_PATHS, READ_ONLY_PATHS
from podkeeper.runtimes.cri.schema import cri
from tests.runtimes.cri.requests.requesting import NODE, annotated, made, pod, sandboxed, secured

Profile = cri.SecurityProfile
RUNTIME_DEFAULT, UNCONFINED, LOCALHOST = Profile.RuntimeDefault, Profile.Unconfined, Profile.Localhost


# ---- everything at once ----

FULL_POD = PodSecurityContext(
    fs_group=3,
    run_as_group=30,
    run_as_user=20,
    se_linux_options=SELinuxOptions(user="u", role="r", type="t", level="l"),
    supplemental_groups=(5, 4),
    supplemental_groups_policy="Strict",
)
FULL_GROUPS: Any = {"supplemental_groups": [3, 5, 4], "supplemental_groups_policy": cri.Strict}
STRICT = replace(NODE, supplemental_groups_policy=True)
OWN_NAMESPACES = cri.NamespaceOption(
    network=cri.POD, ipc=cri.POD, pid=cri.CONTAINER, userns_options=cri.UserNamespace(mode=cri.NODE)
)
MASKED = [
    "/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
    "/sys/devices/virtual/powercap",
]  # fmt: skip
READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]


def test_a_sandbox_gets_all_of_the_security_context_of_its_pod() -> None:
    box = sandboxed(pod(spec={"security_context": FULL_POD}), STRICT)
    assert box.linux.security_context == cri.LinuxSandboxSecurityContext(
        namespace_options=OWN_NAMESPACES,
        selinux_options=cri.SELinuxOption(user="u", role="r", type="t", level="l"),
        run_as_user=cri.Int64Value(value=20),
        run_as_group=cri.Int64Value(value=30),
        seccomp=Profile(profile_type=RUNTIME_DEFAULT),
        **FULL_GROUPS,
    )


def test_a_sandbox_of_a_pod_without_a_security_context_gets_the_defaults() -> None:
    assert sandboxed(pod()).linux.security_context == cri.LinuxSandboxSecurityContext(
        namespace_options=OWN_NAMESPACES,
        supplemental_groups_policy=cri.Merge,
        seccomp=Profile(profile_type=RUNTIME_DEFAULT),
    )


def test_a_container_gets_all_of_its_security_context_and_that_of_its_pod() -> None:
    own = SecurityContext(
        allow_privilege_escalation=False,
        app_armor_profile=AppArmorProfile(type="Localhost", localhost_profile="tight"),
        capabilities=Capabilities(add=("NET_ADMIN", "SYS_TIME"), drop=("ALL",)),
        privileged=True,
        read_only_root_filesystem=True,
        run_as_user=21,
        seccomp_profile=SeccompProfile(type="RuntimeDefault"),
    )
    assert secured(own, FULL_POD, STRICT, image_user="9") == cri.LinuxContainerSecurityContext(
        capabilities=cri.Capability(add_capabilities=["NET_ADMIN", "SYS_TIME"], drop_capabilities=["ALL"]),
        privileged=True,
        namespace_options=OWN_NAMESPACES,
        selinux_options=cri.SELinuxOption(user="u", role="r", type="t", level="l"),
        run_as_user=cri.Int64Value(value=21),
        run_as_group=cri.Int64Value(value=30),
        readonly_rootfs=True,
        no_new_privs=True,
        masked_paths=MASKED,
        readonly_paths=READ_ONLY,
        seccomp=Profile(profile_type=RUNTIME_DEFAULT),
        apparmor=Profile(profile_type=LOCALHOST, localhost_ref="tight"),
        apparmor_profile="localhost/tight",
        **FULL_GROUPS,
    )


def test_a_container_without_a_security_context_gets_the_defaults() -> None:
    assert secured() == cri.LinuxContainerSecurityContext(
        namespace_options=OWN_NAMESPACES,
        run_as_user=cri.Int64Value(value=0),
        supplemental_groups_policy=cri.Merge,
        masked_paths=MASKED,
        readonly_paths=READ_ONLY,
        seccomp=Profile(profile_type=UNCONFINED),
    )


@pytest.mark.parametrize("value", [0, 7])
def test_user_and_group_zero_are_sent_too(value: int) -> None:
    shared = PodSecurityContext(run_as_user=value, run_as_group=value, fs_group=value)
    for found in (secured(None, shared), sandboxed(pod(spec={"security_context": shared})).linux.security_context):
        assert (found.HasField("run_as_user"), found.HasField("run_as_group")) == (True, True)
        assert (found.run_as_user.value, found.run_as_group.value) == (value, value)
        assert list(found.supplemental_groups) == [value]


@pytest.mark.parametrize("privileged", [None, False, True])
def test_a_container_is_privileged_only_if_its_spec_requests_it(privileged: bool | None) -> None:
    own = SecurityContext(privileged=privileged, read_only_root_filesystem=privileged)
    found = secured(own)
    assert (found.privileged, found.readonly_rootfs) == (bool(privileged), bool(privileged))
    box = sandboxed(pod(Container(name="web", security_context=own))).linux.security_context
    assert box.privileged is bool(privileged)


def test_only_unmasked_proc_is_unmasked() -> None:
    found = secured(SecurityContext(proc_mount="Default"))
    assert (list(found.masked_paths), list(found.readonly_paths)) == (MASKED, READ_ONLY)


def test_capabilities_may_be_only_added_or_only_dropped() -> None:
    for given, expected in (
        (Capabilities(add=("A",)), cri.Capability(add_capabilities=["A"])),
        (Capabilities(drop=("B",)), cri.Capability(drop_capabilities=["B"])),
        (Capabilities(), cri.Capability()),
    ):
        found = secured(SecurityContext(capabilities=given))
        assert (found.HasField("capabilities"), found.capabilities) == (True, expected)


# ---- seccomp ----


def seccomp(kind: str, name: str | None = None) -> SeccompProfile:
    return SeccompProfile(type=kind, localhost_profile=name)


SECCOMP = {
    "unconfined by default": (None, None, False, Profile(profile_type=UNCONFINED)),
    "RuntimeDefault with seccompDefault": (None, None, True, Profile(profile_type=RUNTIME_DEFAULT)),
    "profile of the pod": (None, seccomp("RuntimeDefault"), False, Profile(profile_type=RUNTIME_DEFAULT)),
    "the container overrides the pod": (
        seccomp("Unconfined"), seccomp("RuntimeDefault"), True, Profile(profile_type=UNCONFINED)),
    "a profile of the node's": (
        seccomp("Localhost", "deep/strict.json"), None, False,
        Profile(profile_type=LOCALHOST, localhost_ref="/seccomp/deep/strict.json")),
    "an unknown type is unconfined": (seccomp("Sideways"), None, True, Profile(profile_type=UNCONFINED)),
}  # fmt: skip


@pytest.mark.parametrize("own, shared, by_default, expected", SECCOMP.values(), ids=SECCOMP.keys())
def test_seccomp(
    own: SeccompProfile | None, shared: SeccompProfile | None, by_default: bool, expected: cri.SecurityProfile
) -> None:
    node = replace(NODE, default_seccomp=by_default)
    found = secured(SecurityContext(seccomp_profile=own), PodSecurityContext(seccomp_profile=shared), node)
    assert found.seccomp == expected


def test_a_profile_without_a_name_is_refused() -> None:
    with pytest.raises(NotConfigurable, match="localhostProfile must be set if seccompProfile type is Localhost"):
        secured(SecurityContext(seccomp_profile=seccomp("Localhost")))


# ---- AppArmor ----


def apparmor(kind: str, name: str | None = None) -> AppArmorProfile:
    return AppArmorProfile(type=kind, localhost_profile=name)


APPARMOR = {
    "not set by default": (None, None, None, None, ""),
    "the runtime's": (
        apparmor("RuntimeDefault"), None, None, Profile(profile_type=RUNTIME_DEFAULT), "runtime/default"),
    "none": (apparmor("Unconfined"), None, None, Profile(profile_type=UNCONFINED), "unconfined"),
    "the node's": (
        apparmor("Localhost", "tight"), None, None,
        Profile(profile_type=LOCALHOST, localhost_ref="tight"), "localhost/tight"),
    "the pod's": (None, None, apparmor("Unconfined"), Profile(profile_type=UNCONFINED), "unconfined"),
    "an old annotation goes before the pod's": (
        None, "localhost/old", apparmor("Unconfined"),
        Profile(profile_type=LOCALHOST, localhost_ref="old"), "localhost/old"),
    "the container's goes before an old annotation": (
        apparmor("Unconfined"), "runtime/default", None, Profile(profile_type=UNCONFINED), "unconfined"),
    "an old annotation for the runtime's": (
        None, "runtime/default", None, Profile(profile_type=RUNTIME_DEFAULT), "runtime/default"),
    "an old annotation for none": (None, "unconfined", None, Profile(profile_type=UNCONFINED), "unconfined"),
    "an empty annotation is ignored": (None, "sideways", None, None, ""),
}  # fmt: skip


@pytest.mark.parametrize("own, annotation, shared, expected, old", APPARMOR.values(), ids=APPARMOR.keys())
def test_apparmor(
    own: AppArmorProfile | None,
    annotation: str | None,
    shared: AppArmorProfile | None,
    expected: cri.SecurityProfile | None,
    old: str,
) -> None:
    container = Container(name="web", security_context=SecurityContext(app_armor_profile=own))
    given = pod(container, spec={"security_context": PodSecurityContext(app_armor_profile=shared)})
    if annotation is not None:
        key = "container.apparmor.security.beta.kubernetes.io/web"
        given = annotated(given, annotations={key: annotation, f"{key}-other": "localhost/else"})
    found = made(given).linux.security_context
    assert (found.apparmor if found.HasField("apparmor") else None, found.apparmor_profile) == (expected, old)


REFUSED_APPARMOR = {
    "a machine without AppArmor": (apparmor("RuntimeDefault"), False, "AppArmor is not enabled on the host"),
    "a profile without a name": (apparmor("Localhost"), True, "missing localhost apparmor profile name"),
    "a profile with a blank name": (apparmor("Localhost", " "), True, "missing localhost apparmor profile name"),
    "an unknown type": (apparmor("Sideways"), True, 'unknown apparmor profile type: "Sideways"'),
}


@pytest.mark.parametrize("profile, enabled, message", REFUSED_APPARMOR.values(), ids=REFUSED_APPARMOR.keys())
def test_unavailable_apparmor_is_refused(profile: AppArmorProfile, enabled: bool, message: str) -> None:
    with pytest.raises(NotConfigurable, match=message):
        secured(SecurityContext(app_armor_profile=profile), node=replace(NODE, apparmor=enabled))


def test_an_unconfined_profile_needs_no_apparmor() -> None:
    found = secured(SecurityContext(app_armor_profile=apparmor("Unconfined")), node=replace(NODE, apparmor=False))
    assert found.apparmor_profile == "unconfined"


# ---- user ----

USERS = {
    "an image without a user is root": ({}, {}, "", (0, "")),
    "an image's number": ({}, {}, "1000", (1000, "")),
    "an image's number and group": ({}, {}, "1000:2000", (1000, "")),
    "an image's name": ({}, {}, "www-data", (None, "www-data")),
    "an image's name and group": ({}, {}, "www-data:7", (None, "www-data")),
    "a group alone": ({}, {}, ":7", (0, "")),
    "digits of another script are a name": ({}, {}, "\u0661", (None, "\u0661")),
    "the pod overrides the image": ({}, {"run_as_user": 7}, "www-data", (7, "")),
    "the container overrides the pod": ({"run_as_user": 0}, {"run_as_user": 7}, "9", (0, "")),
}


@pytest.mark.parametrize("own, shared, image_user, expected", USERS.values(), ids=USERS.keys())
def test_user(own: Any, shared: Any, image_user: str, expected: tuple[int | None, str]) -> None:
    found = secured(SecurityContext(**own), PodSecurityContext(**shared), image_user=image_user)
    user = found.run_as_user.value if found.HasField("run_as_user") else None
    assert (user, found.run_as_username) == expected


def test_groups_of_pod_and_container() -> None:
    shared = PodSecurityContext(fs_group=3, supplemental_groups=(5, 4), run_as_group=1)
    found = secured(SecurityContext(run_as_group=2), shared)
    assert (found.run_as_group.value, list(found.supplemental_groups)) == (2, [3, 5, 4])
    assert not secured().HasField("run_as_group")


GROUP_POLICIES = {"Merge": (False, cri.Merge), "Strict": (True, cri.Strict)}


@pytest.mark.parametrize("policy", GROUP_POLICIES)
def test_groups_policy(policy: str) -> None:
    able, expected = GROUP_POLICIES[policy]
    node = replace(NODE, supplemental_groups_policy=able)
    shared = PodSecurityContext(supplemental_groups_policy=policy)
    assert secured(shared=shared, node=node).supplemental_groups_policy == expected
    box = sandboxed(pod(spec={"security_context": shared}), node).linux.security_context
    assert box.supplemental_groups_policy == expected


@pytest.mark.parametrize(
    ("policy", "message"),
    [("Strict", 'SupplementalGroupsPolicy "Strict" is not supported'), ("Odd", "unsupported supplementalGroupsPolicy")],
)
def test_an_unsupported_groups_policy_is_refused(policy: str, message: str) -> None:
    shared = PodSecurityContext(supplemental_groups_policy=policy)
    with pytest.raises(NotConfigurable, match=message):
        secured(shared=shared)
    with pytest.raises(NotConfigurable, match=message):
        sandboxed(pod(spec={"security_context": shared}))


# ---- rights ----


def test_capabilities_are_sent_only_if_specified() -> None:
    found = secured(SecurityContext(capabilities=Capabilities(add=("NET_ADMIN",), drop=("ALL",))))
    assert list(found.capabilities.add_capabilities) == ["NET_ADMIN"]
    assert list(found.capabilities.drop_capabilities) == ["ALL"]
    assert not secured().HasField("capabilities")


@pytest.mark.parametrize(("allowed", "expected"), [(None, False), (True, False), (False, True)])
def test_only_an_explicit_false_sets_no_new_privileges(allowed: bool | None, expected: bool) -> None:
    assert secured(SecurityContext(allow_privilege_escalation=allowed)).no_new_privs is expected


def test_a_sandbox_is_privileged_if_any_container_is() -> None:
    privileged = SecurityContext(privileged=True)
    specs = {
        "app": pod(Container(name="a"), Container(name="b", security_context=privileged)),
        "init": pod(init=(Container(name="i", security_context=privileged),)),
        "debug": pod(debug=(EphemeralContainer(name="e", security_context=privileged),)),
        "none": pod(),
    }
    found = {name: sandboxed(given).linux.security_context.privileged for name, given in specs.items()}
    assert found == {"app": True, "init": True, "debug": True, "none": False}


def test_selinux_options_of_the_container_win() -> None:
    shared = PodSecurityContext(se_linux_options=SELinuxOptions(level="s0:c1", type="t"))
    own = SecurityContext(se_linux_options=SELinuxOptions(level="s0:c2", user="u", role="r"))
    assert secured(own, shared).selinux_options == cri.SELinuxOption(level="s0:c2", user="u", role="r")
    assert secured(None, shared).selinux_options == cri.SELinuxOption(level="s0:c1", type="t")
    assert sandboxed(pod(spec={"security_context": shared})).linux.security_context.selinux_options.level == "s0:c1"
    assert not secured().HasField("selinux_options")


def test_masked_paths_of_the_machine() -> None:
    hot = "/sys/devices/system/cpu/cpu0/thermal_throttle"
    node = replace(NODE, hidden_paths=(hot,))
    usual, open_ = secured(node=node), secured(SecurityContext(proc_mount="Unmasked"), node=node)
    assert (tuple(usual.masked_paths), tuple(usual.readonly_paths)) == ((*MASKED_PATHS, hot), READ_ONLY_PATHS)
    assert (list(open_.masked_paths), list(open_.readonly_paths)) == ([], [])


# ---- namespaces ----

NAMESPACES = {
    "the default namespaces": ({}, (cri.POD, cri.POD, cri.CONTAINER)),
    "the node's network": ({"host_network": True}, (cri.NODE, cri.POD, cri.CONTAINER)),
    "the node's IPC": ({"host_ipc": True}, (cri.POD, cri.NODE, cri.CONTAINER)),
    "the node's processes": ({"host_pid": True}, (cri.POD, cri.POD, cri.NODE)),
    "processes seen by all of the pod": ({"share_process_namespace": True}, (cri.POD, cri.POD, cri.POD)),
    "processes not shared": ({"share_process_namespace": False}, (cri.POD, cri.POD, cri.CONTAINER)),
}


@pytest.mark.parametrize("spec, expected", NAMESPACES.values(), ids=NAMESPACES.keys())
def test_namespaces(spec: dict[str, Any], expected: tuple[int, int, int]) -> None:
    for found in (secured(**spec), sandboxed(pod(spec=spec)).linux.security_context):
        options = found.namespace_options
        assert (options.network, options.ipc, options.pid) == expected
        assert options.userns_options == cri.UserNamespace(mode=cri.NODE)


def test_an_ephemeral_container_sees_the_processes_of_its_target() -> None:
    debug = EphemeralContainer(name="shell", target_container_name="web")
    given = pod(debug=(debug,))
    options = made(given, debug, target_id="c-1").linux.security_context.namespace_options
    assert (options.pid, options.target_id) == (cri.TARGET, "c-1")


def test_shared_processes_need_no_target() -> None:
    debug = EphemeralContainer(name="shell", target_container_name="web")
    given = pod(debug=(debug,), spec={"share_process_namespace": True})
    options = made(given, debug, target_id="c-1").linux.security_context.namespace_options
    assert (options.pid, options.target_id) == (cri.POD, "")
