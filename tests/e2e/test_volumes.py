"""Volumes with real processes: empty directories, paths of the host, how they are mounted, what is left at the end."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from podkeeper.volumes.kernel import file_system_of
from tests.e2e.machine import needs_mounts, needs_other_users
from tests.e2e.node import Node, OnANode, pod
from tests.e2e.objects import config_map, secret
from tests.e2e.volume_pods import SERVE, at, container, job, output, server

pytestmark = pytest.mark.slow

# Empty directories.


@pytest.mark.parametrize("source", [{}, {"medium": "Memory"}], ids=["on disk", "in memory"])
def test_containers_of_a_pod_share_an_empty_directory(
    on_a_node: OnANode, source: Mapping[str, Any], tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        node.create(
            pod(
                "pair",
                containers=[
                    container("writer", "echo hello > /out/new && mv /out/new /out/greeting", at("/out")),
                    container("app", "until test -f /in/greeting; do sleep 0.02; done; cat /in/greeting", at("/in")),
                ],
                volumes=[{"name": "v", "emptyDir": source}],
                restartPolicy="Never",
            )
        )
        await node.until_phase("pair", "Succeeded")
        assert node.log("pair") == "hello\n"

    on_a_node(scenario, tmp_path)


def test_what_an_init_container_prepares_is_there_for_the_others(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        prepared = job(
            "app",
            "cat /v/site",
            {"emptyDir": {}},
            initContainers=[container("setup", "echo page > /build/site", at("/build"))],
        )
        assert await output(node, prepared) == "page\n"

    on_a_node(scenario, tmp_path)


def test_an_empty_directory_outlives_a_restart_of_its_container(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = f"if test -f /v/been-here; then echo again; {SERVE}; fi; touch /v/been-here; exit 1"
        node.create(server("app", {"emptyDir": {}}, script=script))
        await node.until(lambda: node.log("app", attempt=1) == "again\n")
        await node.until(lambda: node.status("app").restart_count == 1)

    on_a_node(scenario, tmp_path)


@needs_mounts
def test_a_directory_in_memory_is_no_larger_than_its_limit(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = "stat -f -c %T /v; head -c 2000000 /dev/zero > /v/big 2>/dev/null || echo full; wc -c < /v/big"
        source = {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
        assert await output(node, job("app", script, source)) == f"tmpfs\nfull\n{1 << 20}\n"

    on_a_node(scenario, tmp_path)


@needs_other_users
def test_the_group_of_a_pods_volumes_may_write_in_them(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        who = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000}
        script = "stat -c '%g %a' /v; touch /v/mine; stat -c '%u %g' /v/mine"
        said = await output(node, job("app", script, {"emptyDir": {}}, securityContext=who))
        assert said == "2000 2777\n1000 2000\n"

    on_a_node(scenario, tmp_path)


# Paths of the host.


def _make(path: Path, kind: str) -> None:
    match kind:
        case "directory":
            path.mkdir()
        case "file":
            path.write_text("x")
        case "socket":
            with socket.socket(socket.AF_UNIX) as server_socket:
                server_socket.bind(str(path))


HOST_PATHS = {
    "a directory that must be there": ("Directory", "directory", "test -d /v"),
    "a directory that is made": ("DirectoryOrCreate", "", "test -d /v && touch /v/x"),
    "a file that must be there": ("File", "file", "test -f /v"),
    "a file that is made": ("FileOrCreate", "", "test -f /v && echo hi > /v"),
    "a socket": ("Socket", "socket", "test -S /v"),
    "whatever is there": ("", "file", "test -f /v"),
}


@pytest.mark.parametrize(("kind", "there", "script"), HOST_PATHS.values(), ids=HOST_PATHS.keys())
def test_a_host_path(on_a_node: OnANode, kind: str, there: str, script: str, tmp_path: Path) -> None:
    shown = tmp_path / "h"
    _make(shown, there)

    async def scenario(node: Node) -> None:
        await output(node, job("app", script, {"hostPath": {"path": str(shown), "type": kind}}))

    on_a_node(scenario, tmp_path / "node")
    assert shown.exists()  # what is the host's stays when the pod is gone


def test_a_device_of_the_host(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await output(node, job("app", "test -c /v", {"hostPath": {"path": "/dev/zero", "type": "CharDevice"}}))

    on_a_node(scenario, tmp_path)


def test_a_pod_waits_for_a_host_path_that_is_not_what_it_should_be(on_a_node: OnANode, tmp_path: Path) -> None:
    shown = tmp_path / "h"
    shown.write_text("a file")
    refused = f'MountVolume.SetUp failed for volume "v" : hostPath type check failed: {shown} is not a directory'

    async def scenario(node: Node) -> None:
        node.create(job("app", "cat /v/x", {"hostPath": {"path": str(shown), "type": "Directory"}}))
        await node.until(lambda: ("Warning", "FailedMount", refused) in node.events("app"))
        assert node.phase("app") == "Pending"
        shown.unlink()
        shown.mkdir()
        (shown / "x").write_text("at last")
        await node.until_phase("app", "Succeeded")
        assert node.log("app") == "at last"

    on_a_node(scenario, tmp_path / "node", retry_seconds=0.3)


# Mounts.


def test_a_volume_that_is_mounted_read_only_can_be_read_and_no_more(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = "echo hi > /rw/x; cat /ro/x; touch /ro/y 2>/dev/null || echo no"
        wanted = job("app", script, {"emptyDir": {}}, at("/rw"), at("/ro", readOnly=True))
        assert await output(node, wanted) == "hi\nno\n"

    on_a_node(scenario, tmp_path)


SUB_PATHS = {
    "a directory is made where it is missing": (at("/part", subPath="a/b"), "a/b"),
    "variables name a part": (at("/part", subPathExpr="pods/$(POD)"), "pods/app"),
}


@pytest.mark.parametrize(("part", "place"), SUB_PATHS.values(), ids=SUB_PATHS.keys())
def test_of_a_part_of_a_volume(on_a_node: OnANode, part: Mapping[str, Any], place: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        env = [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
        script = f"echo mine > /part/x; cat /v/{place}/x; ls /part"
        wanted = job("app", script, {"emptyDir": {}}, at("/v"), part, container={"env": env})
        assert await output(node, wanted) == "mine\nx\n"

    on_a_node(scenario, tmp_path)


REFUSALS = ("not within volume path", 'failed to prepare subPath for volumeMount "v" of container "app"')

ATTACKS = {
    "an absolute link": "/",
    "a link that goes up": "../../../../../../../../..",
    "a link into the host": "{outside}",
}


@pytest.mark.parametrize("target", ATTACKS.values(), ids=ATTACKS.keys())
def test_a_link_that_a_container_planted_does_not_lead_out_of_the_volume(
    on_a_node: OnANode, target: str, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    target = target.format(outside=outside)

    async def scenario(node: Node) -> None:
        attacker = container("setup", f"ln -s {target} /v/link", at("/v"))
        node.create(
            job(
                "app",
                "echo here > /part/planted; ls /part",
                {"emptyDir": {}},
                at("/part", subPath="link"),
                initContainers=[attacker],
                restartPolicy="Never",
            )
        )
        await node.until(lambda: any(word in told[2] for told in node.events("app") for word in REFUSALS))
        assert node.log("app") == ""
        assert node.phase("app") != "Succeeded"

    on_a_node(scenario, tmp_path / "node")
    assert list(outside.iterdir()) == []


def test_a_volume_within_a_volume(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "settings", colour="blue")
        wanted = pod(
            "app",
            containers=[
                container("app", "cat /etc/app/colour; touch /etc/app/run/x", at("/etc/app"), at("/etc/app/run", "run"))
            ],
            volumes=[{"name": "v", "configMap": {"name": "settings"}}, {"name": "run", "emptyDir": {}}],
            restartPolicy="Never",
        )
        assert await output(node, wanted) == "blue"

    on_a_node(scenario, tmp_path)


# The end.


def test_nothing_is_left_of_volumes_but_what_was_the_hosts(on_a_node: OnANode, tmp_path: Path) -> None:
    shown = tmp_path / "h"
    shown.mkdir()
    (shown / "precious").write_text("x")

    async def scenario(node: Node) -> None:
        secret(node, "door", key="sesame")
        volumes = [
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "door", "secret": {"secretName": "door"}},
            {"name": "host", "hostPath": {"path": str(shown)}},
        ]
        mounts = [at(f"/{each['name']}", str(each["name"])) for each in volumes]
        script = f"touch /disk/x /memory/x; ln -s /host /disk/link; {SERVE}"
        node.create(pod("app", containers=[container("app", script, *mounts)], volumes=volumes))
        await node.until_ready("app")
        uid = node.uid("app")
        home = node.root / "pods" / uid
        in_memory = [
            (home / "volumes" / f"kubernetes.io~{each}").resolve() for each in ("empty-dir/memory", "secret/door")
        ]
        assert [file_system_of(str(path)) for path in in_memory] == ["tmpfs", "tmpfs"]
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        await node.until(lambda: uid not in node.mounted_pods() and not home.exists())
        assert not any(path.exists() for path in in_memory)

    on_a_node(scenario, tmp_path / "node")
    assert (shown / "precious").read_text() == "x"


def test_a_job_that_is_over_keeps_nothing_in_memory(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await output(node, job("app", "head -c 100000 /dev/zero > /v/x", {"emptyDir": {"medium": "Memory"}}))
        await node.until(lambda: node.uid("app") not in node.mounted_pods())

    on_a_node(scenario, tmp_path)
