"""Names derived from a pod: messages, log paths, hostnames."""

from functools import partial
from typing import Any

import pytest

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.rules.naming import (
    container_log_name,
    container_log_path,
    container_path,
    format_pod,
    hostname_of,
    log_directory_name,
    pod_log_directory,
    uid_of_log_directory,
)
from podkeeper.testing import build

META = ObjectMeta(name="web", namespace="team", uid="u1")


def test_a_pod_is_formatted_as_name_namespace_and_uid() -> None:
    assert format_pod(Pod(metadata=META)) == "web_team(u1)"
    assert format_pod(Pod()) == "_()"


def test_container_path() -> None:
    spec = PodSpec(
        containers=(Container(name="a"), Container(name="b")),
        init_containers=(Container(name="i"),),
        ephemeral_containers=(EphemeralContainer(name="e"),),
    )
    assert [container_path(Pod(spec=spec), name) for name in "abiex"] == [
        "spec.containers{a}",
        "spec.containers{b}",
        "spec.initContainers{i}",
        "spec.ephemeralContainers{e}",
        "implicitly required container x",
    ]
    assert container_path(Pod(), "a") == "implicitly required container a"
    assert container_path(None, "a") == "implicitly required container a"


def test_log_paths() -> None:
    assert pod_log_directory("/var/log/pods", Pod(metadata=META)) == "/var/log/pods/team_web_u1"
    assert pod_log_directory("/var/log/pods", Pod()) == "/var/log/pods/__"
    assert log_directory_name("team", "web", "u1") == "team_web_u1"
    assert (container_log_name(3), container_log_path("web", 3)) == ("3.log", "web/3.log")
    assert [uid_of_log_directory(name) for name in ("team_web_u1", "u1", "")] == ["u1", "u1", ""]


def hostname(name: str = "web", domain: str = "", **spec: Any) -> str:
    return hostname_of(Pod(metadata=ObjectMeta(name=name, namespace="ns"), spec=PodSpec(**spec)), domain)


def test_hostname() -> None:
    assert hostname() == "web"
    assert hostname(hostname="own") == "own"
    assert hostname(hostname="") == "web"
    assert hostname(host_network=True, hostname="own", hostname_override="over") == ""
    assert hostname(hostname_override="over", hostname="own", set_hostname_as_fqdn=True, subdomain="s") == "over"
    assert hostname(hostname_override="") == ""
    assert hostname_of(Pod()) == ""


def test_a_hostname_is_cut_to_63_characters_without_a_trailing_separator() -> None:
    assert hostname("x" * 63) == "x" * 63
    assert hostname("x" * 64) == "x" * 63
    assert hostname("x" * 62 + "-y") == "x" * 62
    assert hostname("x" * 60 + ".-.y") == "x" * 60
    assert hostname("x" * 62 + "-") == "x" * 62 + "-"
    assert hostname("x" * 62 + "~y") == "x" * 62 + "~"
    assert hostname(hostname="y" * 64) == "y" * 63
    assert hostname(hostname_override="z" * 64) == "z" * 63


def test_the_fqdn_needs_a_subdomain() -> None:
    assert hostname(domain="d", set_hostname_as_fqdn=True) == "web"
    assert hostname(domain="d", subdomain="s") == "web"
    assert hostname(domain="d", set_hostname_as_fqdn=True, subdomain="s") == "web.s.ns.svc.d"


def test_an_fqdn_has_at_most_64_characters() -> None:
    rest = ".s.ns.svc.d"
    fits = "x" * (64 - len(rest))
    assert hostname(fits, "d", set_hostname_as_fqdn=True, subdomain="s") == fits + rest
    with pytest.raises(NotConfigurable) as raised:
        hostname(fits + "x", "d", set_hostname_as_fqdn=True, subdomain="s")
    assert str(raised.value) == (
        f"failed to construct FQDN from pod hostname and cluster domain, FQDN {fits}x{rest} is too long "
        "(64 characters is the max, 65 characters requested)"
    )


shop_pod = partial(
    build.pod,
    namespace="shop",
    uid="uid-1",
    init=(build.container("setup"),),
    debug=(EphemeralContainer(name="shell"),),
)


def test_names_that_other_tools_use() -> None:
    assert format_pod(shop_pod()) == "web_shop(uid-1)"
    assert pod_log_directory("/var/log/pods", shop_pod()) == "/var/log/pods/shop_web_uid-1"
    assert container_log_path("web", 3) == "web/3.log"
    assert [uid_of_log_directory(name) for name in ("shop_web_uid-1", "uid-1")] == ["uid-1", "uid-1"]
    assert [container_path(shop_pod(), name) for name in ("app", "setup", "shell", "gone")] == [
        "spec.containers{app}",
        "spec.initContainers{setup}",
        "spec.ephemeralContainers{shell}",
        "implicitly required container gone",
    ]


LONG = "a" * 60 + "--" + "b" * 10

HOSTNAMES = {
    "the pod's name": (shop_pod(), "web"),
    "the hostname of the spec": (shop_pod(spec={"hostname": "shop-1"}), "shop-1"),
    "hostnameOverride": (shop_pod(spec={"hostname": "shop-1", "hostname_override": "other.example"}), "other.example"),
    "a long one is cut without a trailing separator": (shop_pod(LONG), "a" * 60 + "--b"),
    "a long one cut at a separator": (shop_pod("a" * 62 + "-b"), "a" * 62),
    "the FQDN if the spec requests it": (
        shop_pod(spec={"hostname": "one", "subdomain": "db", "set_hostname_as_fqdn": True}),
        "one.db.shop.svc.cluster.local"),
    "no FQDN without a subdomain": (shop_pod(spec={"set_hostname_as_fqdn": True}), "web"),
    "a subdomain alone changes nothing": (shop_pod(spec={"subdomain": "db"}), "web"),
    "none in the host network": (shop_pod(spec={"host_network": True}), ""),
}  # fmt: skip


@pytest.mark.parametrize("given, expected", HOSTNAMES.values(), ids=HOSTNAMES.keys())
def test_hostname_of_a_pod(given: Pod, expected: str) -> None:
    assert hostname_of(given, "cluster.local") == expected


def test_an_fqdn_that_is_too_long_for_the_kernel_is_rejected() -> None:
    with pytest.raises(NotConfigurable, match="too long"):
        hostname_of(shop_pod("a" * 50, spec={"subdomain": "db", "set_hostname_as_fqdn": True}), "cluster.local")
