"""Pods, containers and a node to write requests for."""

from typing import Any

from msgspec.structs import replace

from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod, PodSecurityContext, PodSpec, SecurityContext
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.runtime_calls import ContainerConfig, Mount, SandboxConfig
from podkeeper.runtimes.cri.requests.container import ContainerFiles, container_message
from podkeeper.runtimes.cri.requests.node import Handler, IdRange, NodeFacts
from podkeeper.runtimes.cri.requests.sandbox import sandbox_message
from podkeeper.runtimes.cri.schema import cri

GIB = 2**30
NODE = NodeFacts(memory_bytes=16 * GIB, pods_root="/pods", seccomp_root="/seccomp", cgroup_v2=False)
ABLE = Handler(recursive_read_only=True, user_namespaces=True)
NO_FILES = ContainerFiles()


def pod(*containers: Container, **spec: Any) -> Pod:
    """A pod of one namespace; without containers it has one named `web`."""
    base = PodSpec(containers=containers or (Container(name="web"),))
    return Pod(metadata=ObjectMeta(name="web", namespace="shop", uid="uid-1"), spec=replace(base, **spec))


def annotated(given: Pod, **metadata: Any) -> Pod:
    return replace(given, metadata=replace(given.metadata, **metadata))


def wanted(of: Pod, container: Container | EphemeralContainer | None = None, **fields: Any) -> ContainerConfig:
    """What the engine hands over for a container of a pod; the first one if none is given."""
    base = ContainerConfig(pod=of, container=container or of.spec.containers[0], attempt=0, image="id", spec_hash="h")
    return replace(base, **fields)


def made(
    of: Pod, container: Container | EphemeralContainer | None = None, node: NodeFacts = NODE, **fields: Any
) -> cri.ContainerConfig:
    """The request for a container."""
    return container_message(wanted(of, container, **fields), node, NO_FILES)


def secured(
    own: SecurityContext | None = None,
    shared: PodSecurityContext | None = None,
    node: NodeFacts = NODE,
    *,
    image_user: str = "",
    **spec: Any,
) -> cri.LinuxContainerSecurityContext:
    """The security context of a container with one of its own, in a pod with another."""
    container = Container(name="web", security_context=own)
    message = made(pod(container, security_context=shared, **spec), node=node, image_user=image_user)
    return message.linux.security_context


def sandboxed(of: Pod, node: NodeFacts = NODE, users: IdRange | None = None, **fields: Any) -> cri.PodSandboxConfig:
    """The request for a sandbox."""
    return sandbox_message(replace(SandboxConfig(pod=of, attempt=0), **fields), node, users)


def mount(**fields: Any) -> Mount:
    return replace(Mount(container_path="/data", host_path="/host/data", volume="data"), **fields)
