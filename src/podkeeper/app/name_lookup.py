"""DNS settings of pods, from the node's resolver file and the cluster's settings.

    NameLookup(cluster, path of the resolver file, the node's addresses)  ->  called with a pod: its `PodDns`

The resolver file is read for each sandbox, because it changes when the machine moves to another network. "" means no
file: as in the kubelet, pods then use only the cluster's DNS. If the file cannot be read, the sandbox waits.
`rules.dns` computes the settings.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Pod
from podkeeper.rules.dns import ClusterDns, PodDns, parse_resolv_conf, pod_dns

LONGEST_FILE: Final = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class NameLookup:
    cluster: ClusterDns
    resolver_file: str = "/etc/resolv.conf"
    host_ips: tuple[str, ...] = ()

    async def __call__(self, pod: Pod) -> PodDns:
        """Return the DNS settings of a pod. Raises NotConfigurable."""
        host = parse_resolv_conf(await asyncio.to_thread(self._read)) if self.resolver_file else None
        return pod_dns(pod, self.cluster, host, self.host_ips)

    def _read(self) -> str:
        try:
            with open(self.resolver_file, encoding="utf-8", errors="replace") as file:
                return file.read(LONGEST_FILE)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise NotConfigurable(f"cannot read the resolver file {self.resolver_file}: {why}") from error
