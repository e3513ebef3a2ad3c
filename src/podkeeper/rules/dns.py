"""DNS settings of a pod: policy, cluster DNS and the node's resolv.conf.

    dnsPolicy                 nameservers              searches                                      options
    None                      -                        -                                             -
    ClusterFirst(WithHostNet) the cluster's            namespace.svc, svc, domain, then the node's   ndots:5
    Default, or no cluster    the node's               the node's                                    the node's
    Then `dnsConfig` is added without duplicates. At most 3 nameservers, 32 searches and 2048 characters are kept.

Inputs are a pod, the cluster's settings and the node's parsed resolv.conf. The output is a `PodDns`, with events for
settings that did not fit (`DNSConfigForming`) or a cluster without DNS servers (`MissingClusterDNS`).

Kubelet counterpart: pkg/kubelet/network/dns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Pod, PodDNSConfigOption
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.runtime_calls import Dns
from podkeeper.rules.naming import format_pod

# glibc uses at most three name servers (MAXNS).
MAX_NAMESERVERS: Final = 3
# The limits of the API (MaxDNSSearchPaths, MaxDNSSearchListChars). Older glibc versions use only six.
MAX_SEARCHES: Final = 32
MAX_SEARCH_CHARACTERS: Final = 2048
MAX_SEARCH_LENGTH: Final = 253  # some resolvers abort on more

DNS_CONFIG_FORMING: Final = "DNSConfigForming"
MISSING_CLUSTER_DNS: Final = "MissingClusterDNS"
_CLUSTER_OPTIONS: Final = ("ndots:5",)


@dataclass(frozen=True, slots=True)
class ClusterDns:
    """The cluster's DNS settings. Without servers, pods use the node's resolv.conf."""

    servers: tuple[str, ...] = ()
    domain: str = ""
    joined: bool = True  # False: standalone node, so missing cluster servers are no warning


@dataclass(frozen=True, slots=True)
class PodDns:
    """The DNS settings of a pod, and the events to record about them."""

    dns: Dns
    events: tuple[PodEvent, ...] = ()


def pod_dns(pod: Pod, cluster: ClusterDns, host: Dns | None, host_ips: Sequence[str] = ()) -> PodDns:
    """Return a pod's DNS settings. `host` is the node's resolv.conf, None if the node has none."""
    events: list[PodEvent] = []
    wants_cluster = _wants_cluster(pod)
    if pod.spec.dns_policy == "None":
        dns = Dns()
    elif wants_cluster and cluster.servers:
        searches = _unique((*_cluster_searches(pod, cluster), *(host.searches if host else ())))
        dns = Dns(servers=cluster.servers, searches=searches, options=_CLUSTER_OPTIONS)
    else:
        if wants_cluster and cluster.joined:
            events.append(_warning(pod, MISSING_CLUSTER_DNS, _missing_message(pod)))
        dns = host if host is not None else _loopback_only(host_ips)
    return _within_limits(pod, _with_dns_config(pod, dns), events)


def parse_resolv_conf(text: str) -> Dns:
    """Parse a `resolv.conf`. Servers add up, the last search line wins, and the last option of each name wins.

    Raises NotConfigurable for a `nameserver` line without a server.
    """
    servers: list[str] = []
    searches: tuple[str, ...] = ()
    options: dict[str, str] = {}
    for line in text.split("\n"):
        match line.split():
            case ["nameserver", server, *_]:
                servers.append(server)
            case ["nameserver"]:
                raise NotConfigurable("Encountered error while parsing resolv conf file: nameserver list is empty")
            case ["search", *names]:
                searches = tuple(name.removesuffix(".") for name in names if name != ".")
            case ["options", *words]:
                options.update((word.partition(":")[0], word) for word in words)
    return Dns(servers=tuple(servers), searches=searches, options=tuple(options.values()))


def _wants_cluster(pod: Pod) -> bool:
    """Return whether a pod uses the cluster's DNS first. Unknown policies count as ClusterFirst, as in the kubelet."""
    match pod.spec.dns_policy:
        case "None" | "Default":
            return False
        case "ClusterFirst" | None | "":
            return not pod.spec.host_network
        case _:
            return True


def _cluster_searches(pod: Pod, cluster: ClusterDns) -> tuple[str, ...]:
    if not cluster.domain:
        return ()
    return (f"{pod.metadata.namespace or ''}.svc.{cluster.domain}", f"svc.{cluster.domain}", cluster.domain)


def _loopback_only(host_ips: Sequence[str]) -> Dns:
    """Return settings that resolve nothing: only the loopback address, where no server answers."""
    servers = tuple("::1" if ip_address(ip).version == 6 else "127.0.0.1" for ip in host_ips)
    return Dns(servers=servers or ("127.0.0.1",), searches=(".",))


def _with_dns_config(pod: Pod, dns: Dns) -> Dns:
    own = pod.spec.dns_config
    if own is None:
        return dns
    return Dns(
        servers=_unique((*dns.servers, *(own.nameservers or ()))),
        searches=_unique((*dns.searches, *(own.searches or ()))),
        options=_merged_options(dns.options, own.options or ()),
    )


def _merged_options(given: Iterable[str], own: Iterable[PodDNSConfigOption]) -> tuple[str, ...]:
    """Merge options by name. The pod's value wins."""
    values: dict[str, str] = {}
    for option in given:
        name, _, value = option.partition(":")
        values[name] = value
    values.update((option.name or "", option.value or "") for option in own)
    return tuple(f"{name}:{value}" if value else name for name, value in values.items())


def _within_limits(pod: Pod, dns: Dns, events: list[PodEvent]) -> PodDns:
    """Apply the limits of resolvers, and add an event for each limit that was exceeded."""
    servers, searches = dns.servers[:MAX_NAMESERVERS], _searches_within_limits(dns.searches)
    if servers != dns.servers:
        text = "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: "
        events.append(_warning(pod, DNS_CONFIG_FORMING, text + " ".join(servers)))
    if searches != dns.searches:
        text = "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: "
        events.append(_warning(pod, DNS_CONFIG_FORMING, text + " ".join(searches)))
    return PodDns(Dns(servers=servers, searches=searches, options=dns.options), tuple(events))


def _searches_within_limits(searches: tuple[str, ...]) -> tuple[str, ...]:
    kept = [search for search in searches[:MAX_SEARCHES] if len(search.encode()) <= MAX_SEARCH_LENGTH]
    while len(" ".join(kept).encode()) > MAX_SEARCH_CHARACTERS:
        kept.pop()
    return tuple(kept)


def _unique(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


def _missing_message(pod: Pod) -> str:
    return (
        f'pod: "{format_pod(pod)}". kubelet does not have ClusterDNS IP configured and cannot create Pod using '
        '"ClusterFirst" policy. Falling back to "Default" policy.'
    )


def _warning(pod: Pod, reason: str, text: str) -> PodEvent:
    return PodEvent(EventType.WARNING, reason, text, pod.metadata.uid or "")
