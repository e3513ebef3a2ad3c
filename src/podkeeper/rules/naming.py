"""Names of a pod's parts: in messages, events, the log tree, the network.

Other tools depend on these names: `kubectl` shows container paths, log collectors walk
`<namespace>_<name>_<uid>/<container>/<attempt>.log`.

Kubelet counterparts: pkg/kubelet/util/format, `GenerateContainerRef`, the log paths in
pkg/kubelet/kuberuntime/helpers.go and `GeneratePodHostNameAndDomain`.
"""

import posixpath
from typing import Final

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Pod

# A DNS label. The kubelet truncates longer pod names in the same way.
_MAX_HOSTNAME_LENGTH: Final = 63
_MAX_KERNEL_HOSTNAME_LENGTH: Final = 64


def format_pod(pod: Pod) -> str:
    """Return a pod's name for messages: `web_default(3f2a...)`."""
    meta = pod.metadata
    return f"{meta.name or ''}_{meta.namespace or ''}({meta.uid or ''})"


def container_path(pod: Pod | None, container_name: str) -> str:
    """Return the field path of a container for events: `spec.containers{web}`."""
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
    """Return the directory of a pod's container logs. The sandbox configuration includes it."""
    meta = pod.metadata
    return posixpath.join(root, log_directory_name(meta.namespace or "", meta.name or "", meta.uid or ""))


def log_directory_name(namespace: str, name: str, uid: str) -> str:
    return f"{namespace}_{name}_{uid}"


def container_log_path(container_name: str, attempt: int) -> str:
    """Return the path of a container's log file, relative to its pod's log directory."""
    return f"{container_name}/{container_log_name(attempt)}"


def container_log_name(attempt: int) -> str:
    return f"{attempt}.log"


def uid_of_log_directory(name: str) -> str:
    """Return the UID in a log directory's name. A directory in the oldest format is named by the UID alone."""
    return name.rpartition("_")[2]


def hostname_of(pod: Pod, cluster_domain: str = "") -> str:
    """Return the hostname that a pod's containers see, or "" for a pod in the host network.

    Raises NotConfigurable if the spec requests the FQDN as hostname and it is longer than the kernel allows.
    """
    spec = pod.spec
    if spec.host_network:
        return ""
    if spec.hostname_override is not None:
        return _shortened(spec.hostname_override)
    hostname = _shortened(spec.hostname or pod.metadata.name or "")
    if not (spec.set_hostname_as_fqdn and spec.subdomain):
        return hostname
    full_name = f"{hostname}.{spec.subdomain}.{pod.metadata.namespace or ''}.svc.{cluster_domain}"
    if len(full_name) > _MAX_KERNEL_HOSTNAME_LENGTH:
        raise NotConfigurable(
            f"failed to construct FQDN from pod hostname and cluster domain, FQDN {full_name} is too long "
            f"({_MAX_KERNEL_HOSTNAME_LENGTH} characters is the max, {len(full_name)} characters requested)"
        )
    return full_name


def _shortened(hostname: str) -> str:
    """Shorten a hostname to the limit. The result does not end in a separator."""
    return hostname if len(hostname) <= _MAX_HOSTNAME_LENGTH else hostname[:_MAX_HOSTNAME_LENGTH].rstrip("-.")
