"""DNS settings of pods."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Pod, PodDNSConfig, PodDNSConfigOption
from podkeeper.model.messages import EventType
from podkeeper.model.runtime_calls import Dns
from podkeeper.rules.dns import (
    MAX_NAMESERVERS,
    MAX_SEARCH_CHARACTERS,
    MAX_SEARCH_LENGTH,
    MAX_SEARCHES,
    ClusterDns,
    parse_resolv_conf,
    pod_dns,
)
from podkeeper.testing.build import pod

CLUSTER = ClusterDns(servers=("10.0.0.10",), domain="cluster.local")
HOST = Dns(servers=("192.0.2.53",), searches=("example.com",), options=("timeout:2", "rotate"))
IN_CLUSTER = ("shop.svc.cluster.local", "svc.cluster.local", "cluster.local")


def pod_with(policy: str | None = "ClusterFirst", own: PodDNSConfig | None = None, **spec: Any) -> Pod:
    """A pod with this DNS policy and configuration."""
    return pod(namespace="shop", uid="uid-1", spec={"dns_policy": policy, "dns_config": own, **spec})


FROM_CLUSTER = Dns(servers=("10.0.0.10",), searches=(*IN_CLUSTER, "example.com"), options=("ndots:5",))

POLICIES = {
    "ClusterFirst": (pod_with(), CLUSTER, HOST, FROM_CLUSTER),
    "no policy is ClusterFirst": (pod_with(None), CLUSTER, HOST, FROM_CLUSTER),
    "an empty policy is ClusterFirst": (pod_with(""), CLUSTER, HOST, FROM_CLUSTER),
    "an empty policy in the host network": (pod_with("", host_network=True), CLUSTER, HOST, HOST),
    "no policy in the host network": (pod_with(None, host_network=True), CLUSTER, HOST, HOST),
    "an unknown policy is ClusterFirst": (pod_with("Sideways"), CLUSTER, HOST, FROM_CLUSTER),
    "ClusterFirst in the host network uses the node's DNS": (pod_with(host_network=True), CLUSTER, HOST, HOST),
    "ClusterFirstWithHostNet in the host network": (
        pod_with("ClusterFirstWithHostNet", host_network=True), CLUSTER, HOST, FROM_CLUSTER),
    "Default": (pod_with("Default"), CLUSTER, HOST, HOST),
    "None": (pod_with("None"), CLUSTER, HOST, Dns()),
    "a cluster without a domain": (
        pod_with(), ClusterDns(servers=("10.0.0.10",)), HOST,
        Dns(servers=("10.0.0.10",), searches=("example.com",), options=("ndots:5",))),
    "duplicate searches are removed": (
        pod_with(), CLUSTER, Dns(searches=("svc.cluster.local", "example.com")), FROM_CLUSTER),
    "a node without a resolver file": (pod_with(), CLUSTER, None, replace(FROM_CLUSTER, searches=IN_CLUSTER)),
    "a standalone node": (pod_with(), ClusterDns(domain="cluster.local", joined=False), HOST, HOST),
    "a node without resolvConf": (
        pod_with("Default"), CLUSTER, None, Dns(servers=("127.0.0.1", "::1"), searches=(".",))),
}  # fmt: skip


@pytest.mark.parametrize("pod, cluster, host, expected", POLICIES.values(), ids=POLICIES.keys())
def test_policy(pod: Pod, cluster: ClusterDns, host: Dns | None, expected: Dns) -> None:
    found = pod_dns(pod, cluster, host, ("192.0.2.1", "2001:db8::1"))
    assert (found.dns, found.events) == (expected, ())


def test_without_cluster_servers_the_nodes_dns_is_used_with_a_warning() -> None:
    found = pod_dns(pod_with(), ClusterDns(domain="cluster.local"), HOST)
    assert found.dns == HOST
    assert [(event.type, event.reason, event.uid) for event in found.events] == [
        (EventType.WARNING, "MissingClusterDNS", "uid-1")
    ]
    assert found.events[0].message == (
        'pod: "web_shop(uid-1)". kubelet does not have ClusterDNS IP configured and cannot create Pod using '
        '"ClusterFirst" policy. Falling back to "Default" policy.'
    )


def option(name: str, value: str | None = None) -> PodDNSConfigOption:
    return PodDNSConfigOption(name=name, value=value)


def test_dns_config_is_added_and_its_options_replace() -> None:
    own = PodDNSConfig(
        nameservers=("192.0.2.53", "192.0.2.54"),
        searches=("example.com", "own.example"),
        options=(option("timeout", "5"), option("edns0"), option("ndots", "")),
    )
    assert pod_dns(pod_with("Default", own), CLUSTER, HOST).dns == Dns(
        servers=("192.0.2.53", "192.0.2.54"),
        searches=("example.com", "own.example"),
        options=("timeout:5", "rotate", "edns0", "ndots"),
    )
    assert pod_dns(pod_with("None", own), CLUSTER, HOST).dns.options == ("timeout:5", "edns0", "ndots")


OWN_PARTS = {
    "nothing": (PodDNSConfig(), HOST),
    "only nameservers": (
        PodDNSConfig(nameservers=("192.0.2.54",)),
        replace(HOST, servers=("192.0.2.53", "192.0.2.54")),
    ),
    "only searches": (
        PodDNSConfig(searches=("own.example",)),
        replace(HOST, searches=("example.com", "own.example")),
    ),
    "only options": (
        PodDNSConfig(options=(option("edns0"),)),
        replace(HOST, options=("timeout:2", "rotate", "edns0")),
    ),
}


@pytest.mark.parametrize("own, expected", OWN_PARTS.values(), ids=OWN_PARTS.keys())
def test_a_dns_config_changes_only_the_parts_that_it_sets(own: PodDNSConfig, expected: Dns) -> None:
    assert pod_dns(pod_with("Default", own), CLUSTER, HOST).dns == expected


def test_entries_beyond_the_limits_are_omitted_with_an_event() -> None:
    host = Dns(servers=("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"), searches=tuple(f"d{n}" for n in range(33)))
    found = pod_dns(pod_with("Default"), CLUSTER, host)
    assert (found.dns.servers, found.dns.searches) == (host.servers[:3], host.searches[:32])
    assert [event.reason for event in found.events] == ["DNSConfigForming", "DNSConfigForming"]
    assert found.events[0].message == (
        "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: "
        "192.0.2.1 192.0.2.2 192.0.2.3"
    )
    assert found.events[1].message.startswith(
        "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: d0 d1 d2 "
    )


SEARCHES = {
    "as many as fit": (("a" * 204,) * 10, 9),  # nothing is searched twice only where something is added
    "2048 characters in all": (("a" * 204,) * 9 + ("a" * 203,), 10),
    "one that is too long": (("a", "b" * 254, "c"), 2),
    "just not too long": (("b" * 253,), 1),
}


@pytest.mark.parametrize("searches, kept", SEARCHES.values(), ids=SEARCHES.keys())
def test_searches_that_fit(searches: tuple[str, ...], kept: int) -> None:
    found = pod_dns(pod_with("Default"), CLUSTER, Dns(searches=searches))
    assert (len(found.dns.searches), len(found.events)) == (kept, kept != len(searches))


names = st.lists(st.text("abc.", min_size=1, max_size=300), max_size=50).map(tuple)


@given(st.sampled_from(["ClusterFirst", "Default", "None"]), names, names, names, names)
def test_the_result_is_within_the_limits(
    policy: str, servers: tuple[str, ...], searches: tuple[str, ...], own: tuple[str, ...], more: tuple[str, ...]
) -> None:
    config = PodDNSConfig(nameservers=own, searches=more)
    found = pod_dns(pod_with(policy, config), CLUSTER, Dns(servers=servers, searches=searches))
    assert len(found.dns.servers) <= MAX_NAMESERVERS
    assert len(found.dns.searches) <= MAX_SEARCHES
    assert len(" ".join(found.dns.searches)) <= MAX_SEARCH_CHARACTERS
    assert max(map(len, found.dns.searches), default=0) <= MAX_SEARCH_LENGTH


# ---- the node's file ----

FILES = {
    "an empty one": ("", Dns()),
    "servers add up": ("nameserver 1.1.1.1\nnameserver 2.2.2.2 # second", Dns(servers=("1.1.1.1", "2.2.2.2"))),
    "the last search line counts": ("search a b\nsearch c.\n", Dns(searches=("c",))),
    "the root is not searched": ("search . a.\n", Dns(searches=("a",))),
    "an empty search line searches nothing": ("search a\nsearch\n", Dns()),
    "the last option of a name counts": (
        "options ndots:1 rotate\noptions ndots:2", Dns(options=("ndots:2", "rotate"))),
    "comments and unknown keywords": ("# nameserver 1.1.1.1\n; x\n\t nameserver\t2.2.2.2\ndomain d\n",
        Dns(servers=("2.2.2.2",))),
}  # fmt: skip


@pytest.mark.parametrize("text, expected", FILES.values(), ids=FILES.keys())
def test_resolver_file(text: str, expected: Dns) -> None:
    assert parse_resolv_conf(text) == expected


def test_a_line_without_a_server_is_refused() -> None:
    with pytest.raises(NotConfigurable, match="nameserver list is empty"):
        parse_resolv_conf("nameserver\n")
