"""Kernel settings of pods."""

from typing import Any

import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod, PodSecurityContext, PodSpec, Sysctl
from podkeeper.rules.sysctls import SAFE, dotted, sysctl_trouble, sysctls_of, unsafe_sysctl_trouble


def pod(*names: str, **spec: Any) -> Pod:
    context = PodSecurityContext(sysctls=tuple(Sysctl(name=name, value="1") for name in names))
    return Pod(spec=replace(PodSpec(security_context=context), **spec))


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
    "the safe ones": (pod(*SAFE), (), None),
    "one written with slashes": (pod("net/ipv4/tcp_syncookies"), (), None),
    "an unsafe one": (pod("kernel.msgmax"), (), 'forbidden sysctl: "kernel.msgmax" not allowlisted'),
    "an unsafe one that is allowed": (pod("kernel.msgmax"), ("kernel.msgmax",), None),
    "one of those that are allowed": (pod("net.core.somaxconn"), ("net.*",), None),
    "an allowance written with slashes": (pod("net.core.somaxconn"), ("net/core/*",), None),
    "one that only begins like an allowed one": (
        pod("kernel.msgmax2"), ("kernel.msgmax",), 'forbidden sysctl: "kernel.msgmax2" not allowlisted'),
    "the node's network has the node's settings": (
        pod("net.ipv4.tcp_rmem", host_network=True), (),
        'forbidden sysctl: "net.ipv4.tcp_rmem" not allowed with host Net enabled'),
    "the node's IPC has the node's settings": (
        pod("kernel.shm_rmid_forced", host_ipc=True), (),
        'forbidden sysctl: "kernel.shm_rmid_forced" not allowed with host IPC enabled'),
    "the one is not the other": (pod("kernel.shm_rmid_forced", host_network=True), (), None),
    "a pod without any": (Pod(), (), None),
}  # fmt: skip


@pytest.mark.parametrize("pod, allowed, expected", TROUBLES.values(), ids=TROUBLES.keys())
def test_trouble(pod: Pod, allowed: tuple[str, ...], expected: str | None) -> None:
    assert sysctl_trouble(pod, allowed) == expected


def test_what_the_runtime_is_told() -> None:
    assert sysctls_of(pod("kernel/shm_rmid_forced")) == {"kernel.shm_rmid_forced": "1"}
    assert sysctls_of(Pod()) == {}


@pytest.mark.parametrize(
    "pattern", ["kernel.shm*", "kernel.msgmax", "kernel/sem", "net.*", "net/core/*", "fs.mqueue.*"]
)
def test_what_each_pod_has_of_its_own_can_be_allowed(pattern: str) -> None:
    assert unsafe_sysctl_trouble(pattern) is None


@pytest.mark.parametrize("pattern", ["vm.swappiness", "kernel.*", "kernel.panic", "*", "", "network.x"])
def test_what_the_whole_node_shares_cannot(pattern: str) -> None:
    assert (unsafe_sysctl_trouble(pattern) or "").startswith(f"cannot allow {pattern!r} to pods")


@pytest.mark.parametrize("namespace", ["IPC", "Net"])
def test_every_setting_of_a_namespace_can_be_allowed(namespace: str) -> None:
    ipc = ["sem", "shm", "shmall", "shmmax", "shmmni", "shm_rmid_forced", "msg", "msgmax", "msgmnb", "msgmni"]
    names = [*(f"kernel.{name}" for name in ipc), "fs.mqueue.x"] if namespace == "IPC" else ["net.x", "net.ipv4.y"]
    assert [name for name in names if unsafe_sysctl_trouble(name) is not None] == []
    for name in names:
        assert sysctl_trouble(pod(name), [name]) is None
        shares = pod(name, host_ipc=namespace == "IPC", host_network=namespace == "Net")
        if name in SAFE:
            continue
        assert sysctl_trouble(pod(name)) == f'forbidden sysctl: "{name}" not allowlisted'
        assert sysctl_trouble(shares, [name]) == (
            f'forbidden sysctl: "{name}" not allowed with host {namespace} enabled'
        )
        other = pod(name, host_ipc=namespace != "IPC", host_network=namespace != "Net")
        assert sysctl_trouble(other, [name]) is None


def test_a_pattern_allows_what_begins_like_it_and_nothing_else() -> None:
    assert sysctl_trouble(pod("kernel.msgmax"), ["kernel.msg*"]) is None
    assert sysctl_trouble(pod("kernel.mszmax"), ["kernel.msg*"]) == 'forbidden sysctl: "kernel.mszmax" not allowlisted'
    assert sysctl_trouble(pod("kernel.msgmax"), ["kernel.msg"]) == 'forbidden sysctl: "kernel.msgmax" not allowlisted'
    message = "cannot allow 'vm.*' to pods: it is not known to be a setting that each pod has of its own"
    assert unsafe_sysctl_trouble("vm.*") == message
