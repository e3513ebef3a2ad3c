"""Sandbox requests, for cases that the recorded pods do not cover."""

from dataclasses import replace
from typing import Any

import pytest

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Container, ContainerPort, PodSecurityContext, Sysctl
from podkeeper.model.runtime_calls import Dns
from podkeeper.runtimes.cri.requests.node import Handler, IdRange
from podkeeper.runtimes.cri.requests.sandbox import runtime_handler_of
from podkeeper.runtimes.cri.requests.users import has_own_users
from podkeeper.runtimes.cri.schema import cri
from tests.runtimes.cri.requests.requesting import ABLE, NODE, annotated, made, pod, sandboxed


def test_identity_labels() -> None:
    given = annotated(pod(), labels={"app": "web", "io.kubernetes.pod.name": "liar"}, annotations={"note": "hi"})
    found = sandboxed(given, attempt=3, hostname="web", log_directory="/logs/web", cgroup_parent="/pods/web")
    assert found.metadata == cri.PodSandboxMetadata(name="web", namespace="shop", uid="uid-1", attempt=3)
    assert dict(found.labels) == {
        "app": "web",
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "shop",
        "io.kubernetes.pod.uid": "uid-1",
    }
    assert dict(found.annotations) == {"note": "hi"}
    assert (found.hostname, found.log_directory, found.linux.cgroup_parent) == ("web", "/logs/web", "/pods/web")


def test_dns_settings_are_sent_only_if_specified() -> None:
    assert not sandboxed(pod()).HasField("dns_config")
    found = sandboxed(pod(), dns=Dns(servers=("10.0.0.1",), searches=("a.b",), options=("ndots:5",))).dns_config
    assert found == cri.DNSConfig(servers=["10.0.0.1"], searches=["a.b"], options=["ndots:5"])
    assert sandboxed(pod(), dns=Dns()).HasField("dns_config")


# ---- ports ----


def port(number: int, **fields: Any) -> ContainerPort:
    return ContainerPort(container_port=number, **fields)


PORTS = {
    "a port that is not the node's": ((port(80, protocol="TCP"),), [(cri.TCP, 80, 0, "")]),
    "every protocol": (
        (port(53, protocol="UDP"), port(53, protocol="SCTP"), port(53, protocol="TCP")),
        [(cri.UDP, 53, 0, ""), (cri.SCTP, 53, 0, ""), (cri.TCP, 53, 0, "")]),
    "an unknown protocol becomes TCP": ((port(1, protocol="ODD"), port(2)), [(cri.TCP, 1, 0, ""), (cri.TCP, 2, 0, "")]),
    "the same port twice is one": ((port(80), port(80)), [(cri.TCP, 80, 0, "")]),
    "a name counts once": ((port(80, name="a"), port(81, name="a")), [(cri.TCP, 80, 0, "")]),
    "the same port for each kind of address": (
        (port(80, host_port=8080, host_ip="192.0.2.1"), port(80, host_port=8080, host_ip="2001:db8::1")),
        [(cri.TCP, 80, 8080, "192.0.2.1"), (cri.TCP, 80, 8080, "2001:db8::1")]),
}  # fmt: skip


@pytest.mark.parametrize("ports, expected", PORTS.values(), ids=PORTS.keys())
def test_ports(ports: tuple[ContainerPort, ...], expected: list[tuple[int, int, int, str]]) -> None:
    found = sandboxed(pod(Container(name="web", ports=ports))).port_mappings
    assert [(each.protocol, each.container_port, each.host_port, each.host_ip) for each in found] == expected


def test_ports_of_all_app_containers_are_mapped_and_of_no_other() -> None:
    given = pod(
        Container(name="a", ports=(port(80),)),
        Container(name="b", ports=(port(80), port(81))),
        init=(Container(name="side", ports=(port(99),), restart_policy="Always"),),
    )
    assert [each.container_port for each in sandboxed(given).port_mappings] == [80, 80, 81]


# ---- kernel settings ----


def wanting(*names: str, **spec: Any) -> Any:
    settings = tuple(Sysctl(name=name, value="1") for name in names)
    return pod(spec={"security_context": PodSecurityContext(sysctls=settings), **spec})


def test_safe_sysctls_are_sent_with_dots() -> None:
    found = sandboxed(wanting("kernel/shm_rmid_forced", "net.ipv4.tcp_syncookies"))
    assert dict(found.linux.sysctls) == {"kernel.shm_rmid_forced": "1", "net.ipv4.tcp_syncookies": "1"}


def test_unsafe_sysctls_only_if_the_node_allows_them() -> None:
    with pytest.raises(NotConfigurable, match=r'forbidden sysctl: "net.core.somaxconn" not allowlisted'):
        sandboxed(wanting("net.core.somaxconn"))
    node = replace(NODE, allowed_unsafe_sysctls=("net.core.*",))
    assert dict(sandboxed(wanting("net.core.somaxconn"), node).linux.sysctls) == {"net.core.somaxconn": "1"}


# ---- runtime classes, users ----


def test_the_handler_of_a_runtime_class() -> None:
    node = replace(NODE, runtime_classes={"strong": "kata"})
    given = [pod(spec={"runtime_class_name": name}) for name in (None, "", "strong")]
    assert [runtime_handler_of(each, node) for each in given] == ["", "", "kata"]
    with pytest.raises(NotConfigurable, match=r'runtimeclass.node.k8s.io "odd" not found'):
        runtime_handler_of(pod(spec={"runtime_class_name": "odd"}), node)


RANGE = IdRange(131072)
MAPPING = cri.IDMapping(host_id=131072, container_id=0, length=65536)


def test_a_sandbox_with_its_own_user_namespace_has_an_id_range_of_the_node() -> None:
    node = replace(NODE, handlers={"": ABLE})
    box = sandboxed(pod(spec={"host_users": False}), node, RANGE)
    found = box.linux.security_context.namespace_options.userns_options
    assert found == cri.UserNamespace(mode=cri.POD, uids=[MAPPING], gids=[MAPPING])


@pytest.mark.parametrize("host_users", [None, True])
def test_other_pods_have_the_users_of_the_node(host_users: bool | None) -> None:
    given = pod(spec={"host_users": host_users})
    found = sandboxed(given, users=RANGE).linux.security_context.namespace_options.userns_options
    assert found == cri.UserNamespace(mode=cri.NODE)
    assert (has_own_users(given), has_own_users(pod(spec={"host_users": False}))) == (False, True)


NO_USERS = {
    "a runtime that does not report handlers": ({}, None, RANGE, "runtime does not support user namespaces"),
    "a handler that cannot": ({"": Handler()}, None, RANGE, "runtime does not support user namespaces"),
    "a class whose handler cannot": (
        {"": ABLE, "kata": Handler()}, "strong", RANGE, 'RuntimeClass handler "kata" does not support user namespaces'),
    "no range": ({"": ABLE}, None, None, "create user namespace: cannot find a range"),
}  # fmt: skip


@pytest.mark.parametrize("handlers, class_name, users, message", NO_USERS.values(), ids=NO_USERS.keys())
def test_unavailable_user_namespaces_are_refused(
    handlers: dict[str, Handler], class_name: str | None, users: IdRange | None, message: str
) -> None:
    node = replace(NODE, handlers=handlers, runtime_classes={"strong": "kata"})
    given = pod(spec={"host_users": False, "runtime_class_name": class_name})
    with pytest.raises(NotConfigurable, match=message):
        sandboxed(given, node, users)
    with pytest.raises(NotConfigurable, match=r"support user namespaces|cannot find a range"):
        made(given, node=node)
