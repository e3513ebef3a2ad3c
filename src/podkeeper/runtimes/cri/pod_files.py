"""Files that are mounted into containers: hosts and termination message.

    pods_root/UID/etc-hosts                   the pod's addresses and names; with host network, the node's file
    pods_root/UID/containers/NAME/XXXXXXXX    termination message of one attempt; writable for every user

Created before a container is created, together with the directory of its log. Old logs of a pod with the same UID are
removed there. The files are removed with the pod's directory. Kubelet counterparts: `makeHostsMount` in
pkg/kubelet/kubelet_pods.go and `makeMounts` in pkg/kubelet/kuberuntime/kuberuntime_container.go.
"""

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from podkeeper.linux.container_log import remove_old_logs
from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import HostAlias, Pod
from podkeeper.model.runtime_calls import ContainerConfig
from podkeeper.rules.naming import hostname_of
from podkeeper.runtimes.cri.requests.container import ContainerFiles

NODE_HOSTS: Final = "/etc/hosts"

_HEADER: Final = "# Kubernetes-managed hosts file.\n"
_HEADER_HOST_NETWORK: Final = "# Kubernetes-managed hosts file (host network).\n"
_LOCAL: Final = (
    "127.0.0.1\tlocalhost\n"
    "::1\tlocalhost ip6-localhost ip6-loopback\n"
    "fe00::0\tip6-localnet\n"
    "fe00::0\tip6-mcastprefix\n"
    "fe00::1\tip6-allnodes\n"
    "fe00::2\tip6-allrouters\n"
)


class PodFiles:
    """Creates the files. Calls block."""

    def __init__(self, pods_root: str, cluster_domain: str = "", node_hosts: str = NODE_HOSTS) -> None:
        self._root = pods_root
        self._cluster_domain = cluster_domain
        self._node_hosts = node_hosts

    def create(self, config: ContainerConfig, log_directory: str) -> ContainerFiles:
        """Create the files of one attempt of a container. Raises NotConfigurable."""
        try:
            if log_directory and config.log_path:
                _prepare_log(os.path.join(log_directory, config.log_path))
            return ContainerFiles(termination_log=self._termination_log(config), etc_hosts=self._etc_hosts(config))
        except OSError as error:
            where = error.filename or self._root
            raise NotConfigurable(
                f"cannot create {where} for container {config.container.name}: {error.strerror}"
            ) from error

    def _termination_log(self, config: ContainerConfig) -> str:
        if not config.container.termination_message_path:
            return ""
        directory = os.path.join(self._directory(config.pod), "containers", config.container.name)
        os.makedirs(directory, mode=0o750, exist_ok=True)
        path = os.path.join(directory, secrets.token_hex(4))
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        os.chmod(path, 0o666)  # regardless of the umask, because the container may run as any user
        return path

    def _etc_hosts(self, config: ContainerConfig) -> str:
        """Write the hosts file again, because each sandbox has its own address."""
        pod = config.pod
        if not (config.pod_ips or pod.spec.host_network):
            return ""
        if any(mount.container_path == NODE_HOSTS for mount in config.mounts):
            return ""
        if pod.spec.host_network:
            text = node_hosts_text(_read(self._node_hosts), pod.spec.host_aliases or ())
        else:
            text = pod_hosts_text(pod, config.pod_ips, self._cluster_domain)
        os.makedirs(self._directory(pod), mode=0o750, exist_ok=True)
        path = os.path.join(self._directory(pod), "etc-hosts")
        # In place, because running containers have this inode mounted.
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        os.chmod(path, 0o644)
        return path

    def _directory(self, pod: Pod) -> str:
        uid = pod.metadata.uid or ""
        if not uid or "/" in uid or uid in (".", ".."):
            raise NotConfigurable(
                f"cannot create files for pod {pod.metadata.name}: its UID {uid!r} is not a valid file name"
            )
        return os.path.join(self._root, uid)


def _prepare_log(log_path: str) -> None:
    """Create the directory of a log, and remove old logs of that name, because runtimes append to them."""
    os.makedirs(os.path.dirname(log_path), mode=0o755, exist_ok=True)
    remove_old_logs(log_path)


def pod_hosts_text(pod: Pod, ips: Sequence[str], cluster_domain: str) -> str:
    """Return the hosts file of a pod with its own network."""
    # The short name, even with setHostnameAsFQDN.
    plain = replace(pod, spec=replace(pod.spec, set_hostname_as_fqdn=None))
    hostname = hostname_of(plain)
    names = hostname
    if pod.spec.subdomain and pod.spec.hostname_override is None:
        domain = f"{pod.spec.subdomain}.{pod.metadata.namespace or ''}.svc.{cluster_domain}"
        names = f"{hostname}.{domain}\t{hostname}"
    own = "".join(f"{ip}\t{names}\n" for ip in ips)
    return f"{_HEADER}{_LOCAL}{own}{_aliases_text(pod.spec.host_aliases or ())}"


def node_hosts_text(node_hosts: str, aliases: Sequence[HostAlias]) -> str:
    """Return the hosts file of a pod with host network."""
    return f"{_HEADER_HOST_NETWORK}{node_hosts}{_aliases_text(aliases)}"


def _aliases_text(aliases: Sequence[HostAlias]) -> str:
    if not aliases:
        return ""
    lines = ("\t".join((alias.ip, *(alias.hostnames or ()))) for alias in aliases)
    return "\n# Entries added by HostAliases.\n" + "".join(f"{line}\n" for line in lines)


def _read(path: str) -> str:
    with suppress(FileNotFoundError), open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
    return ""
