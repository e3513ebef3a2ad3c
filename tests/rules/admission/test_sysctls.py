"""Sysctls of pods."""

from typing import Any

import pytest

from podkeeper.model.k8s.core import Pod, PodSecurityContext, Sysctl
from podkeeper.rules.admission.sysctls import SAFE, dotted, sysctl_error, sysctls_of, unsafe_sysctl_error
from podkeeper.testing.build import pod


def pod_with(*names: str, **spec: Any) -> Pod:
    """A pod with these sysctls."""
    context = PodSecurityContext(sysctls=tuple(Sysctl(name=name, value="1") for name in names))
    return pod(spec={"security_context": context, **spec})


NAMES = {
    "kernel.msgmax": "kernel.msgmax",
    "kernel/msgmax": "kernel.msgmax",
    "net.ipv4.conf.eno2/100.rp_filter": "net.ipv4.conf.eno2/100.rp_filter",
    "net/ipv4/conf/eno2.100/rp_filter": "net.ipv4.conf.eno2/100.rp_filter",
    "plain": "plain",
    "": "",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_have_dots_between_their_parts(name: str) -> None:
    assert dotted(name) == NAMES[name]


TROUBLES = {
    "the safe ones": (pod_with(*SAFE), (), None),
    "one written with slashes": (pod_with("net/ipv4/tcp_syncookies"), (), None),
    "an unsafe one": (pod_with("kernel.msgmax"), (), 'forbidden sysctl: "kernel.msgmax" not allowlisted'),
    "an unsafe one that is allowed": (pod_with("kernel.msgmax"), ("kernel.msgmax",), None),
    "one that matches an allowed prefix": (pod_with("net.core.somaxconn"), ("net.*",), None),
    "an allowed name written with slashes": (pod_with("net.core.somaxconn"), ("net/core/*",), None),
    "one that only starts like an allowed name": (
        pod_with("kernel.msgmax2"), ("kernel.msgmax",), 'forbidden sysctl: "kernel.msgmax2" not allowlisted'),
    "a network sysctl in the host network": (
        pod_with("net.ipv4.tcp_rmem", host_network=True), (),
        'forbidden sysctl: "net.ipv4.tcp_rmem" not allowed with host Net enabled'),
    "an IPC sysctl with host IPC": (
        pod_with("kernel.shm_rmid_forced", host_ipc=True), (),
        'forbidden sysctl: "kernel.shm_rmid_forced" not allowed with host IPC enabled'),
    "a network sysctl with host IPC": (pod_with("kernel.shm_rmid_forced", host_network=True), (), None),
    "a pod without any": (Pod(), (), None),
}  # fmt: skip


@pytest.mark.parametrize("pod, allowed, expected", TROUBLES.values(), ids=TROUBLES.keys())
def test_sysctl_error(pod: Pod, allowed: tuple[str, ...], expected: str | None) -> None:
    assert sysctl_error(pod, allowed) == expected


def test_sysctls_are_sent_with_dotted_names() -> None:
    assert sysctls_of(pod_with("kernel/shm_rmid_forced")) == {"kernel.shm_rmid_forced": "1"}
    assert sysctls_of(Pod()) == {}


@pytest.mark.parametrize(
    "pattern", ["kernel.shm*", "kernel.msgmax", "kernel/sem", "net.*", "net/core/*", "fs.mqueue.*"]
)
def test_namespaced_sysctls_can_be_allowed(pattern: str) -> None:
    assert unsafe_sysctl_error(pattern) is None


@pytest.mark.parametrize("pattern", ["vm.swappiness", "kernel.*", "kernel.panic", "*", "", "network.x"])
def test_sysctls_of_the_node_cannot_be_allowed(pattern: str) -> None:
    assert (unsafe_sysctl_error(pattern) or "").startswith(f"cannot allow sysctl {pattern!r}")


@pytest.mark.parametrize("namespace", ["IPC", "Net"])
def test_every_sysctl_of_a_namespace_can_be_allowed(namespace: str) -> None:
    ipc = ["sem", "shm", "shmall", "shmmax", "shmmni", "shm_rmid_forced", "msg", "msgmax", "msgmnb", "msgmni"]
    names = [*(f"kernel.{name}" for name in ipc), "fs.mqueue.x"] if namespace == "IPC" else ["net.x", "net.ipv4.y"]
    assert [name for name in names if unsafe_sysctl_error(name) is not None] == []
    for name in names:
        assert sysctl_error(pod_with(name), [name]) is None
        shares = pod_with(name, host_ipc=namespace == "IPC", host_network=namespace == "Net")
        if name in SAFE:
            continue
        assert sysctl_error(pod_with(name)) == f'forbidden sysctl: "{name}" not allowlisted'
        assert sysctl_error(shares, [name]) == (f'forbidden sysctl: "{name}" not allowed with host {namespace} enabled')
        other = pod_with(name, host_ipc=namespace != "IPC", host_network=namespace != "Net")
        assert sysctl_error(other, [name]) is None


def test_a_pattern_allows_exactly_the_names_with_its_prefix() -> None:
    assert sysctl_error(pod_with("kernel.msgmax"), ["kernel.msg*"]) is None
    assert (
        sysctl_error(pod_with("kernel.mszmax"), ["kernel.msg*"]) == 'forbidden sysctl: "kernel.mszmax" not allowlisted'
    )
    assert (
        sysctl_error(pod_with("kernel.msgmax"), ["kernel.msg"]) == 'forbidden sysctl: "kernel.msgmax" not allowlisted'
    )
    message = "cannot allow sysctl 'vm.*': it is not known to be namespaced"
    assert unsafe_sysctl_error("vm.*") == message
