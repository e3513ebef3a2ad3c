"""How names are looked up in a pod."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Pod, PodDNSConfig, PodDNSConfigOption, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import EventType
from podkeeper.model.runtime_calls import Dns
from podkeeper.rules.dns import (
    LONGEST_SEARCH,
    MOST_SEARCH_CHARACTERS,
    MOST_SEARCHES,
    MOST_SERVERS,
    ClusterNames,
    lookup_for,
    parsed_resolver_file,
)

CLUSTER = ClusterNames(servers=("10.0.0.10",), domain="cluster.local")
HOST = Dns(servers=("192.0.2.53",), searches=("example.com",), options=("timeout:2", "rotate"))
IN_CLUSTER = ("shop.svc.cluster.local", "svc.cluster.local", "cluster.local")


def pod(policy: str | None = "ClusterFirst", own: PodDNSConfig | None = None, **spec: Any) -> Pod:
    base = PodSpec(dns_policy=policy, dns_config=own)
    return Pod(metadata=ObjectMeta(name="web", namespace="shop", uid="uid-1"), spec=replace(base, **spec))


FROM_CLUSTER = Dns(servers=("10.0.0.10",), searches=(*IN_CLUSTER, "example.com"), options=("ndots:5",))

POLICIES = {
    "the cluster first": (pod(), CLUSTER, HOST, FROM_CLUSTER),
    "that is what silence means": (pod(None), CLUSTER, HOST, FROM_CLUSTER),
    "so does an empty policy": (pod(""), CLUSTER, HOST, FROM_CLUSTER),
    "an empty policy in the node's network": (pod("", host_network=True), CLUSTER, HOST, HOST),
    "silence in the node's network": (pod(None, host_network=True), CLUSTER, HOST, HOST),
    "a policy nobody knows too": (pod("Sideways"), CLUSTER, HOST, FROM_CLUSTER),
    "in the node's network, the node's": (pod(host_network=True), CLUSTER, HOST, HOST),
    "in the node's network, the cluster if it must be": (
        pod("ClusterFirstWithHostNet", host_network=True), CLUSTER, HOST, FROM_CLUSTER),
    "the node's": (pod("Default"), CLUSTER, HOST, HOST),
    "nobody": (pod("None"), CLUSTER, HOST, Dns()),
    "a cluster without a domain": (
        pod(), ClusterNames(servers=("10.0.0.10",)), HOST,
        Dns(servers=("10.0.0.10",), searches=("example.com",), options=("ndots:5",))),
    "nothing is searched twice": (
        pod(), CLUSTER, Dns(searches=("svc.cluster.local", "example.com")), FROM_CLUSTER),
    "a node without a resolver file": (pod(), CLUSTER, None, replace(FROM_CLUSTER, searches=IN_CLUSTER)),
    "a node that stands alone": (pod(), ClusterNames(domain="cluster.local", joined=False), HOST, HOST),
    "a node that shall look up nothing": (
        pod("Default"), CLUSTER, None, Dns(servers=("127.0.0.1", "::1"), searches=(".",))),
}  # fmt: skip


@pytest.mark.parametrize("pod, cluster, host, expected", POLICIES.values(), ids=POLICIES.keys())
def test_policy(pod: Pod, cluster: ClusterNames, host: Dns | None, expected: Dns) -> None:
    found = lookup_for(pod, cluster, host, ("192.0.2.1", "2001:db8::1"))
    assert (found.dns, found.events) == (expected, ())


def test_without_a_cluster_to_ask_it_is_the_nodes_and_the_owner_is_told() -> None:
    found = lookup_for(pod(), ClusterNames(domain="cluster.local"), HOST)
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


def test_what_a_pod_says_itself_is_added_and_its_options_replace() -> None:
    own = PodDNSConfig(
        nameservers=("192.0.2.53", "192.0.2.54"),
        searches=("example.com", "own.example"),
        options=(option("timeout", "5"), option("edns0"), option("ndots", "")),
    )
    assert lookup_for(pod("Default", own), CLUSTER, HOST).dns == Dns(
        servers=("192.0.2.53", "192.0.2.54"),
        searches=("example.com", "own.example"),
        options=("timeout:5", "rotate", "edns0", "ndots"),
    )
    assert lookup_for(pod("None", own), CLUSTER, HOST).dns.options == ("timeout:5", "edns0", "ndots")


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
    assert lookup_for(pod("Default", own), CLUSTER, HOST).dns == expected


def test_what_does_not_fit_is_left_out_and_told() -> None:
    host = Dns(servers=("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"), searches=tuple(f"d{n}" for n in range(33)))
    found = lookup_for(pod("Default"), CLUSTER, host)
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
    found = lookup_for(pod("Default"), CLUSTER, Dns(searches=searches))
    assert (len(found.dns.searches), len(found.events)) == (kept, kept != len(searches))


names = st.lists(st.text("abc.", min_size=1, max_size=300), max_size=50).map(tuple)


@given(st.sampled_from(["ClusterFirst", "Default", "None"]), names, names, names, names)
def test_a_resolver_can_take_what_comes_out(
    policy: str, servers: tuple[str, ...], searches: tuple[str, ...], own: tuple[str, ...], more: tuple[str, ...]
) -> None:
    config = PodDNSConfig(nameservers=own, searches=more)
    found = lookup_for(pod(policy, config), CLUSTER, Dns(servers=servers, searches=searches))
    assert len(found.dns.servers) <= MOST_SERVERS
    assert len(found.dns.searches) <= MOST_SEARCHES
    assert len(" ".join(found.dns.searches)) <= MOST_SEARCH_CHARACTERS
    assert max(map(len, found.dns.searches), default=0) <= LONGEST_SEARCH


# ---- the node's file ----

FILES = {
    "an empty one": ("", Dns()),
    "servers add up": ("nameserver 1.1.1.1\nnameserver 2.2.2.2 # second", Dns(servers=("1.1.1.1", "2.2.2.2"))),
    "of search lines the last counts": ("search a b\nsearch c.\n", Dns(searches=("c",))),
    "the root is not searched": ("search . a.\n", Dns(searches=("a",))),
    "an empty search line searches nothing": ("search a\nsearch\n", Dns()),
    "options by name, the last counts": (
        "options ndots:1 rotate\noptions ndots:2", Dns(options=("ndots:2", "rotate"))),
    "comments and what nobody knows": ("# nameserver 1.1.1.1\n; x\n\t nameserver\t2.2.2.2\ndomain d\n",
        Dns(servers=("2.2.2.2",))),
}  # fmt: skip


@pytest.mark.parametrize("text, expected", FILES.values(), ids=FILES.keys())
def test_resolver_file(text: str, expected: Dns) -> None:
    assert parsed_resolver_file(text) == expected


def test_a_line_without_a_server_is_refused() -> None:
    with pytest.raises(NotConfigurable, match="nameserver list is empty"):
        parsed_resolver_file("nameserver\n")
