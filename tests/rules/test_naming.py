"""Names derived from a pod: messages, log paths, hostnames."""

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
