"""Builders of pods and containers, and of their CRI requests, on a default node."""

from functools import partial
from typing import Any

from msgspec.structs import replace

from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod, PodSecurityContext, SecurityContext
from podkeeper.model.runtime_calls import ContainerConfig, Mount, SandboxConfig
from podkeeper.runtimes.cri.requests.container import ContainerFiles, container_message
from podkeeper.runtimes.cri.requests.node import Handler, IdRange, NodeFacts
from podkeeper.runtimes.cri.requests.sandbox import sandbox_message
from podkeeper.runtimes.cri.schema import cri
from podkeeper.testing import build

GIB = 2**30
NODE = NodeFacts(memory_bytes=16 * GIB, pods_root="/pods", seccomp_root="/seccomp", cgroup_v2=False)
ABLE = Handler(recursive_read_only=True, user_namespaces=True)
NO_FILES = ContainerFiles()

pod = partial(build.pod, "web", namespace="shop", uid="uid-1", policy=None, grace=None)


def annotated(given: Pod, **metadata: Any) -> Pod:
    return replace(given, metadata=replace(given.metadata, **metadata))


def wanted(of: Pod, container: Container | EphemeralContainer | None = None, **fields: Any) -> ContainerConfig:
    """Return the engine's configuration for a container of a pod, by default the first one."""
    base = ContainerConfig(pod=of, container=container or of.spec.containers[0], attempt=0, image="id", spec_hash="h")
    return replace(base, **fields)


def made(
    of: Pod, container: Container | EphemeralContainer | None = None, node: NodeFacts = NODE, **fields: Any
) -> cri.ContainerConfig:
    """Return the CRI configuration of a container."""
    return container_message(wanted(of, container, **fields), node, NO_FILES)


def secured(
    own: SecurityContext | None = None,
    shared: PodSecurityContext | None = None,
    node: NodeFacts = NODE,
    *,
    image_user: str = "",
    **spec: Any,
) -> cri.LinuxContainerSecurityContext:
    """Return the CRI security context of a container with the security contexts `own` and `shared` (of the pod)."""
    container = Container(name="web", security_context=own)
    message = made(pod(container, spec={"security_context": shared, **spec}), node=node, image_user=image_user)
    return message.linux.security_context


def sandboxed(of: Pod, node: NodeFacts = NODE, users: IdRange | None = None, **fields: Any) -> cri.PodSandboxConfig:
    """Return the CRI configuration of a sandbox."""
    return sandbox_message(replace(SandboxConfig(pod=of, attempt=0), **fields), node, users)


def mount(**fields: Any) -> Mount:
    return replace(Mount(container_path="/data", host_path="/host/data", volume="data"), **fields)
