"""Files of containers on the host: contents and permissions."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Container, HostAlias, Pod
from podkeeper.model.runtime_calls import ContainerConfig, Mount
from podkeeper.runtimes.cri.pod_files import PodFiles, node_hosts_text, pod_hosts_text
from podkeeper.testing import build

ALIASES = (HostAlias(ip="192.0.2.5", hostnames=("one", "two")), HostAlias(ip="192.0.2.6", hostnames=("three",)))
LOCAL = """# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""
ALIAS_TEXT = "\n# Entries added by HostAliases.\n192.0.2.5\tone\ttwo\n192.0.2.6\tthree\n"

pod = partial(build.pod, "web.1", namespace="ns", uid="uid")


def config(
    of: Pod, *, ips: tuple[str, ...] = ("10.0.0.1",), mounts: tuple[Mount, ...] = (), **spec: Any
) -> ContainerConfig:
    return ContainerConfig(
        pod=of,
        container=Container(name="c", termination_message_path="/dev/termination-log", **spec),
        attempt=0,
        image="i",
        spec_hash="h",
        pod_ips=ips,
        mounts=mounts,
        log_path="c/0.log",
    )


HOSTS = {
    "the pod's name, dots and all": (pod(), ("10.0.0.1",), "10.0.0.1\tweb.1\n"),
    "each address": (pod(), ("10.0.0.1", "2001:db8::1"), "10.0.0.1\tweb.1\n2001:db8::1\tweb.1\n"),
    "its own host name": (pod(spec={"hostname": "h"}), ("10.0.0.1",), "10.0.0.1\th\n"),
    "a subdomain adds the full name": (
        pod(spec={"hostname": "h", "subdomain": "sub"}),
        ("10.0.0.1",),
        "10.0.0.1\th.sub.ns.svc.example\th\n",
    ),
    "with the full name of the pod": (
        pod(spec={"hostname": "h", "subdomain": "sub", "set_hostname_as_fqdn": True}),
        ("10.0.0.1",),
        "10.0.0.1\th.sub.ns.svc.example\th\n",
    ),
    "an override has no domain": (
        pod(spec={"hostname_override": "a.b", "subdomain": "sub"}),
        ("10.0.0.1",),
        "10.0.0.1\ta.b\n",
    ),
    "aliases": (pod(spec={"host_aliases": ALIASES}), ("10.0.0.1",), "10.0.0.1\tweb.1\n" + ALIAS_TEXT),
}


@pytest.mark.parametrize("of, ips, expected", HOSTS.values(), ids=HOSTS.keys())
def test_the_hosts_file_of_a_pod(of: Pod, ips: tuple[str, ...], expected: str) -> None:
    assert pod_hosts_text(of, ips, "example") == LOCAL + expected


def test_the_hosts_file_with_host_network_is_the_nodes() -> None:
    header = "# Kubernetes-managed hosts file (host network).\n"
    assert node_hosts_text("127.0.0.1 here\n", ALIASES) == header + "127.0.0.1 here\n" + ALIAS_TEXT


def test_both_files_are_at_the_kubelets_paths(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        files = PodFiles(str(tmp_path)).create(config(pod()), str(tmp_path / "logs"))
    finally:
        os.umask(umask)
    assert files.etc_hosts == str(tmp_path / "uid" / "etc-hosts")
    assert Path(files.etc_hosts).stat().st_mode & 0o777 == 0o644
    last = Path(files.termination_log)
    assert (last.parent, len(last.name)) == (tmp_path / "uid" / "containers" / "c", 8)
    assert last.stat().st_mode & 0o777 == 0o666
    assert (tmp_path / "logs" / "c").is_dir()


def test_old_logs_of_the_same_uid_are_removed(tmp_path: Path) -> None:
    directory = tmp_path / "logs" / "c"
    directory.mkdir(parents=True)
    for name in ("0.log", "0.log.20261115-100000", "0.log.20261115-090000.gz", "1.log", "10.log"):
        (directory / name).write_text("old content")
    PodFiles(str(tmp_path)).create(config(pod()), str(tmp_path / "logs"))
    assert sorted(os.listdir(directory)) == ["1.log", "10.log"]


def test_each_attempt_has_its_own_file_and_the_hosts_file_keeps_its_inode(tmp_path: Path) -> None:
    files = PodFiles(str(tmp_path))
    first = files.create(config(pod()), "")
    inode = os.stat(first.etc_hosts).st_ino
    second = files.create(config(pod(), ips=("10.0.0.2",)), "")
    assert first.termination_log != second.termination_log
    assert os.stat(second.etc_hosts).st_ino == inode  # containers that mount it see the new address
    assert "10.0.0.2\tweb.1" in Path(second.etc_hosts).read_text()


NO_HOSTS = {
    "no address yet": config(pod(), ips=()),
    "the container brings its own": config(pod(), mounts=(Mount(container_path="/etc/hosts", host_path="/x"),)),
}


@pytest.mark.parametrize("of", NO_HOSTS.values(), ids=NO_HOSTS.keys())
def test_cases_without_a_hosts_file(of: ContainerConfig, tmp_path: Path) -> None:
    assert PodFiles(str(tmp_path)).create(of, "").etc_hosts == ""


def test_the_hosts_file_with_host_network_needs_no_address(tmp_path: Path) -> None:
    node_hosts = tmp_path / "hosts"
    node_hosts.write_text("127.0.0.1 here\n")
    made = PodFiles(str(tmp_path), node_hosts=str(node_hosts)).create(config(pod(host_network=True), ips=()), "")
    assert Path(made.etc_hosts).read_text().endswith("127.0.0.1 here\n")


def test_an_error_names_the_file_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "uid").write_text("in the way")
    with pytest.raises(NotConfigurable, match=r"cannot create .*uid.* for container c: Not a directory"):
        PodFiles(str(tmp_path)).create(config(pod()), "")


def test_a_uid_with_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotConfigurable, match="not a valid file name"):
        PodFiles(str(tmp_path)).create(config(pod(uid="../x")), "")
