"""Pods with one volume `v`: jobs that exit and servers that keep running."""

from collections.abc import Mapping
from typing import Any

from podkeeper.model.k8s.core import Pod
from tests.e2e.node import Node, pod

SERVE = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


def at(path: str, volume: str = "v", **more: Any) -> dict[str, Any]:
    """Return a volume mount."""
    return {"name": volume, "mountPath": path, **more}


def container(name: str, script: str, *mounts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a container that runs a script."""
    return {"name": name, "image": "host", "command": ["sh", "-c", script], "volumeMounts": list(mounts)}


def job(name: str, script: str, volume: Mapping[str, Any], *mounts: Mapping[str, Any], **spec: Any) -> Pod:
    """Return a pod with one volume `v` that runs a script once. `container=...` has more fields of its container."""
    spec.setdefault("restartPolicy", "Never")
    more = spec.pop("container", {})
    return pod(
        name,
        containers=[{**container("app", script, *(mounts or (at("/v"),))), **more}],
        volumes=[{"name": "v", **volume}],
        **spec,
    )


def server(name: str, volume: Mapping[str, Any], *mounts: Mapping[str, Any], script: str = SERVE, **spec: Any) -> Pod:
    """Return a pod with one volume `v` that keeps running."""
    return job(name, script, volume, *mounts, restartPolicy="Always", **spec)


async def run_job(node: Node, wanted: Pod) -> str:
    """Create a job, wait for its success, and return its log."""
    name = node.create(wanted).metadata.name or ""
    await node.until(lambda: node.phase(name) in ("Succeeded", "Failed"), f"{name} has ended")
    assert node.phase(name) == "Succeeded", node.log(name)
    return node.log(name)
