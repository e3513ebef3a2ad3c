"""Create or update config maps and secrets in the API of a node."""

import base64

from podkeeper.model.k8s.core import ConfigMap, Secret
from podkeeper.model.k8s.meta import ObjectMeta
from tests.e2e.node import NAMESPACE, Node


def config_map(node: Node, name: str, **data: str) -> None:
    node.api.put(ConfigMap(metadata=ObjectMeta(name=name, namespace=NAMESPACE), data=data))


def secret(node: Node, name: str, *, kind: str = "Opaque", **data: str) -> None:
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    node.api.put(Secret(metadata=ObjectMeta(name=name, namespace=NAMESPACE), type=kind, data=encoded))
