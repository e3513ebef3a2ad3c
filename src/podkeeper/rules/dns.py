"""How names are looked up in a pod: its policy, the cluster's servers and the node's own, merged and cut to size.

    policy                    servers                  searches                             options
    None                      -                        -                                    -
    ClusterFirst(WithHostNet) the cluster's            namespace, svc, domain, the node's   ndots:5
    Default, or no cluster    the node's               the node's                           the node's
    then `dnsConfig` is added to each, nothing twice; then 3 servers, 32 searches and 2048 characters are kept

A pod, the cluster's settings and the node's resolver file (as text, parsed here) come in; `Lookup` goes out, with what
has to be told: something that did not fit (`DNSConfigForming`), or a cluster whose servers nobody knows
(`MissingClusterDNS`). The Go ancestor is pkg/kubelet/network/dns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Pod, PodDNSConfigOption
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.runtime_calls import Dns
from podkeeper.rules.naming import described

MOST_SERVERS: Final = 3
MOST_SEARCHES: Final = 32
MOST_SEARCH_CHARACTERS: Final = 2048
LONGEST_SEARCH: Final = 253  # some resolvers abort on more

DNS_CONFIG_FORMING: Final = "DNSConfigForming"
MISSING_CLUSTER_DNS: Final = "MissingClusterDNS"
_CLUSTER_OPTIONS: Final = ("ndots:5",)


@dataclass(frozen=True, slots=True)
class ClusterNames:
    """How names are looked up in a cluster; without servers there is none to ask."""

    servers: tuple[str, ...] = ()
    domain: str = ""
    joined: bool = True  # False: the node stands alone, and nobody misses a cluster's servers


@dataclass(frozen=True, slots=True)
class Lookup:
    """How names are looked up in a pod, and what its owner has to know of it."""

    dns: Dns
    events: tuple[PodEvent, ...] = ()


def lookup_for(pod: Pod, cluster: ClusterNames, host: Dns | None, host_ips: Sequence[str] = ()) -> Lookup:
    """How names are looked up in a pod; `host` is the node's resolver file, None when the node shall have none."""
    events: list[PodEvent] = []
    wants_cluster = _wants_cluster(pod)
    if pod.spec.dns_policy == "None":
        dns = Dns()
    elif wants_cluster and cluster.servers:
        searches = _once((*_cluster_searches(pod, cluster), *(host.searches if host else ())))
        dns = Dns(servers=cluster.servers, searches=searches, options=_CLUSTER_OPTIONS)
    else:
        if wants_cluster and cluster.joined:
            events.append(_warning(pod, MISSING_CLUSTER_DNS, _missing(pod)))
        dns = host if host is not None else _nobody(host_ips)
    return _fitting(pod, _with_own(pod, dns), events)


def parsed_resolver_file(text: str) -> Dns:
    """What a `resolv.conf` says: servers add up, of several search lines the last counts, options by name.

    Raises NotConfigurable for a line that names no server.
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
    """Whether a pod asks the cluster first. A policy nobody knows counts as doing so."""
    match pod.spec.dns_policy:
        case "None" | "Default":
            return False
        case "ClusterFirst" | None | "":
            return not pod.spec.host_network
        case _:
            return True


def _cluster_searches(pod: Pod, cluster: ClusterNames) -> tuple[str, ...]:
    if not cluster.domain:
        return ()
    return (f"{pod.metadata.namespace or ''}.svc.{cluster.domain}", f"svc.{cluster.domain}", cluster.domain)


def _nobody(host_ips: Sequence[str]) -> Dns:
    """No lookups at all: the machine itself is asked, as resolvers do when nobody is named, and it does not answer."""
    servers = tuple("::1" if ip_address(ip).version == 6 else "127.0.0.1" for ip in host_ips)
    return Dns(servers=servers or ("127.0.0.1",), searches=(".",))


def _with_own(pod: Pod, dns: Dns) -> Dns:
    """With what the pod's own `dnsConfig` adds."""
    own = pod.spec.dns_config
    if own is None:
        return dns
    return Dns(
        servers=_once((*dns.servers, *(own.nameservers or ()))),
        searches=_once((*dns.searches, *(own.searches or ()))),
        options=_merged_options(dns.options, own.options or ()),
    )


def _merged_options(given: Iterable[str], own: Iterable[PodDNSConfigOption]) -> tuple[str, ...]:
    """Options by name, the pod's own word last."""
    values: dict[str, str] = {}
    for option in given:
        name, _, value = option.partition(":")
        values[name] = value
    values.update((option.name or "", option.value or "") for option in own)
    return tuple(f"{name}:{value}" if value else name for name, value in values.items())


def _fitting(pod: Pod, dns: Dns, events: list[PodEvent]) -> Lookup:
    """What resolvers can take; what is left out is told."""
    servers, searches = dns.servers[:MOST_SERVERS], _fitting_searches(dns.searches)
    if servers != dns.servers:
        text = "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: "
        events.append(_warning(pod, DNS_CONFIG_FORMING, text + " ".join(servers)))
    if searches != dns.searches:
        text = "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: "
        events.append(_warning(pod, DNS_CONFIG_FORMING, text + " ".join(searches)))
    return Lookup(Dns(servers=servers, searches=searches, options=dns.options), tuple(events))


def _fitting_searches(searches: tuple[str, ...]) -> tuple[str, ...]:
    kept = [search for search in searches[:MOST_SEARCHES] if len(search.encode()) <= LONGEST_SEARCH]
    while len(" ".join(kept).encode()) > MOST_SEARCH_CHARACTERS:
        kept.pop()
    return tuple(kept)


def _once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


def _missing(pod: Pod) -> str:
    return (
        f'pod: "{described(pod)}". kubelet does not have ClusterDNS IP configured and cannot create Pod using '
        '"ClusterFirst" policy. Falling back to "Default" policy.'
    )


def _warning(pod: Pod, reason: str, text: str) -> PodEvent:
    return PodEvent(EventType.WARNING, reason, text, pod.metadata.uid or "")
