"""Facts about the node: the default runtime handler decides about recursive read-only mounts."""

import pytest
from msgspec.structs import replace

from podkeeper.engine.bounded_runtime import BoundedRuntime
from podkeeper.engine.node_info import NodeInfo
from podkeeper.model.k8s.core import Node, NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.quantity import parse_quantity
from podkeeper.rules.status.pod import NodeView
from tests.doubles import stand_in

NODE = Node(metadata=ObjectMeta(name="n1", uid="uid-n1"), status=NodeStatus(allocatable={"cpu": "4"}))
IPS = ("192.0.2.1", "2001:db8::1")


class Runtime:
    name = "fake"


def info(*handlers: NodeRuntimeHandler) -> NodeInfo:
    node = replace(NODE, status=replace(NODE.status, runtime_handlers=handlers or None))
    return NodeInfo(node=node, host_ips=IPS, runtime=stand_in(BoundedRuntime, Runtime()))


def handler(name: str, supported: bool | None) -> NodeRuntimeHandler:
    return NodeRuntimeHandler(name=name, features=NodeRuntimeHandlerFeatures(recursive_read_only_mounts=supported))


HANDLERS: dict[str, tuple[tuple[NodeRuntimeHandler, ...], bool]] = {
    "no handlers": ((), False),
    "the default handler supports them": ((handler("other", False), handler("", True)), True),
    "only another handler supports them": ((handler("", False), handler("other", True)), False),
    "the default handler does not report the feature": ((handler("", None),), False),
    "the default handler has no features": ((NodeRuntimeHandler(name=""),), False),
}


@pytest.mark.parametrize("handlers, expected", HANDLERS.values(), ids=HANDLERS.keys())
def test_the_view_for_statuses(handlers: tuple[NodeRuntimeHandler, ...], expected: bool) -> None:
    assert info(*handlers).view() == NodeView(runtime_name="fake", host_ips=IPS, recursive_read_only=expected)


def test_the_runtime_name_is_read_each_time() -> None:
    runtime = Runtime()
    node = NodeInfo(node=NODE, host_ips=(), runtime=stand_in(BoundedRuntime, runtime))
    runtime.name = "containerd"
    assert node.view().runtime_name == "containerd"


def test_the_node_its_uid_addresses_and_allocatable_resources() -> None:
    node = info()
    assert (node.node().metadata.name, node.uid(), node.host_ips()) == ("n1", "uid-n1", IPS)
    assert node.allocatable() == {"cpu": parse_quantity("4")}
