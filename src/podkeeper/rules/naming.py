"""What things of a pod are called: for people, for events, in the log tree and on the network.

Pods come in, texts go out. Other tools know these names: `kubectl` shows container paths, log collectors
walk `<namespace>_<name>_<uid>/<container>/<attempt>.log`. The Go ancestors are pkg/kubelet/util/format,
`GenerateContainerRef`, the log paths in pkg/kubelet/kuberuntime/helpers.go and `GeneratePodHostNameAndDomain`.
"""

import posixpath
from typing import Final

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Pod

_LONGEST_HOSTNAME: Final = 63
_LONGEST_KERNEL_HOSTNAME: Final = 64


def described(pod: Pod) -> str:
    """A pod as people are told of it: `web_default(3f2a...)`."""
    meta = pod.metadata
    return f"{meta.name or ''}_{meta.namespace or ''}({meta.uid or ''})"


def container_path(pod: Pod | None, container_name: str) -> str:
    """Where an event says a container stands: `spec.containers{web}`."""
    if pod is not None:
        lists = (
            ("containers", pod.spec.containers),
            ("initContainers", pod.spec.init_containers or ()),
            ("ephemeralContainers", pod.spec.ephemeral_containers or ()),
        )
        for field, containers in lists:
            if any(container.name == container_name for container in containers):
                return f"spec.{field}{{{container_name}}}"
    return f"implicitly required container {container_name}"


def pod_log_directory(root: str, pod: Pod) -> str:
    """Where the logs of a pod's containers lie; a sandbox is told of it."""
    meta = pod.metadata
    return posixpath.join(root, log_directory_name(meta.namespace or "", meta.name or "", meta.uid or ""))


def log_directory_name(namespace: str, name: str, uid: str) -> str:
    """What a pod's log directory is called."""
    return f"{namespace}_{name}_{uid}"


def container_log_path(container_name: str, attempt: int) -> str:
    """A container's log file, below the log directory of its pod."""
    return f"{container_name}/{container_log_name(attempt)}"


def container_log_name(attempt: int) -> str:
    """What the log file of an attempt of a container is called."""
    return f"{attempt}.log"


def uid_of_log_directory(name: str) -> str:
    """The UID in a log directory's name; a very old directory is the UID alone."""
    return name.rpartition("_")[2]


def hostname_of(pod: Pod, cluster_domain: str = "") -> str:
    """What a pod's containers see as their host name; nothing in the node's network, which has its own.

    Raises NotConfigurable when the full name, where the spec asks for it, is longer than a kernel can hold.
    """
    spec = pod.spec
    if spec.host_network:
        return ""
    if spec.hostname_override is not None:
        return _cut(spec.hostname_override)
    hostname = _cut(spec.hostname or pod.metadata.name or "")
    if not (spec.set_hostname_as_fqdn and spec.subdomain):
        return hostname
    full_name = f"{hostname}.{spec.subdomain}.{pod.metadata.namespace or ''}.svc.{cluster_domain}"
    if len(full_name) > _LONGEST_KERNEL_HOSTNAME:
        raise NotConfigurable(
            f"failed to construct FQDN from pod hostname and cluster domain, FQDN {full_name} is too long "
            f"({_LONGEST_KERNEL_HOSTNAME} characters is the max, {len(full_name)} characters requested)"
        )
    return full_name


def _cut(hostname: str) -> str:
    """A host name that fits, and does not end in a separator for having been cut."""
    return hostname if len(hostname) <= _LONGEST_HOSTNAME else hostname[:_LONGEST_HOSTNAME].rstrip("-.")
