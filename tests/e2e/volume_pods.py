"""Pods with one volume `v`: jobs that look at it and end, servers that go on."""

from collections.abc import Mapping
from typing import Any

from podkeeper.model.k8s.core import Pod
from tests.e2e.node import Node, pod

SERVE = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


def at(path: str, volume: str = "v", **more: Any) -> dict[str, Any]:
    """Where a container has a volume."""
    return {"name": volume, "mountPath": path, **more}


def container(name: str, script: str, *mounts: Mapping[str, Any]) -> dict[str, Any]:
    """A container that runs a script."""
    return {"name": name, "image": "host", "command": ["sh", "-c", script], "volumeMounts": list(mounts)}


def job(name: str, script: str, volume: Mapping[str, Any], *mounts: Mapping[str, Any], **spec: Any) -> Pod:
    """A pod that looks at one volume `v` and ends. `container=...` are more fields of its container."""
    spec.setdefault("restartPolicy", "Never")
    more = spec.pop("container", {})
    return pod(
        name,
        containers=[{**container("app", script, *(mounts or (at("/v"),))), **more}],
        volumes=[{"name": "v", **volume}],
        **spec,
    )


def server(name: str, volume: Mapping[str, Any], *mounts: Mapping[str, Any], script: str = SERVE, **spec: Any) -> Pod:
    """A pod that has one volume `v` and goes on."""
    return job(name, script, volume, *mounts, restartPolicy="Always", **spec)


async def output(node: Node, wanted: Pod) -> str:
    """What a job says, which must succeed."""
    name = node.create(wanted).metadata.name or ""
    await node.until(lambda: node.phase(name) in ("Succeeded", "Failed"), f"{name} has ended")
    assert node.phase(name) == "Succeeded", node.log(name)
    return node.log(name)
