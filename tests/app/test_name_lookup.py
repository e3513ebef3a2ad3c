"""How pods of this node look up names, with the node's real file."""

import asyncio
from pathlib import Path

import pytest

from podkeeper.app.name_lookup import NameLookup
from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Pod, PodSpec
from podkeeper.model.runtime_calls import Dns
from podkeeper.rules.dns import ClusterNames

CLUSTER = ClusterNames(servers=("10.0.0.10",), domain="cluster.local")
POD = Pod(spec=PodSpec(dns_policy="Default"))


def asked(lookup: NameLookup) -> Dns:
    return asyncio.run(lookup(POD)).dns


def test_the_file_is_read_anew_each_time(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    lookup = NameLookup(CLUSTER, str(file))
    for server in ("192.0.2.1", "192.0.2.2"):
        file.write_text(f"nameserver {server}\n")
        assert asked(lookup) == Dns(servers=(server,))


def test_no_file_is_no_lookups() -> None:
    assert asked(NameLookup(CLUSTER, "", ("2001:db8::1",))) == Dns(servers=("::1",), searches=(".",))


def test_a_file_that_cannot_be_read_keeps_the_pod_waiting(tmp_path: Path) -> None:
    with pytest.raises(NotConfigurable, match=r"cannot read the resolver file .*: no such file or directory"):
        asked(NameLookup(CLUSTER, str(tmp_path / "nosuch")))
