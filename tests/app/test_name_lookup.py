"""The DNS settings of pods, with a real resolver file."""

import asyncio
from pathlib import Path

import pytest

from podkeeper.app.name_lookup import NameLookup
from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Pod, PodSpec
from podkeeper.model.runtime_calls import Dns
from podkeeper.rules.dns import ClusterDns

CLUSTER = ClusterDns(servers=("10.0.0.10",), domain="cluster.local")
POD = Pod(spec=PodSpec(dns_policy="Default"))


def dns_of(lookup: NameLookup) -> Dns:
    return asyncio.run(lookup(POD)).dns


def test_the_file_is_read_for_each_pod(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    lookup = NameLookup(CLUSTER, str(file))
    for server in ("192.0.2.1", "192.0.2.2"):
        file.write_text(f"nameserver {server}\n")
        assert dns_of(lookup) == Dns(servers=(server,))


def test_without_a_file_there_are_no_name_servers() -> None:
    assert dns_of(NameLookup(CLUSTER, "", ("2001:db8::1",))) == Dns(servers=("::1",), searches=(".",))


def test_an_unreadable_file_is_not_configurable(tmp_path: Path) -> None:
    with pytest.raises(NotConfigurable, match=r"cannot read the resolver file .*: no such file or directory"):
        dns_of(NameLookup(CLUSTER, str(tmp_path / "nosuch")))
