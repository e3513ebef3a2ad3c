"""Volumes with real processes: emptyDir, hostPath, mount options, cleanup."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from podkeeper.linux.mounts import file_system_of
from tests.e2e.machine import needs_mounts, needs_other_users
from tests.e2e.node import Node, ScenarioRunner, pod
from tests.e2e.objects import config_map, secret
from tests.e2e.volume_pods import SERVE, at, container, job, run_job, server

pytestmark = pytest.mark.slow

# emptyDir.


@pytest.mark.parametrize("source", [{}, {"medium": "Memory"}], ids=["on disk", "in memory"])
def test_containers_of_a_pod_share_an_empty_dir(
    run_on_node: ScenarioRunner, source: Mapping[str, Any], tmp_path: Path
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

    run_on_node(scenario, tmp_path)


def test_files_of_an_init_container_are_visible_to_later_containers(
    run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        prepared = job(
            "app",
            "cat /v/site",
            {"emptyDir": {}},
            initContainers=[container("setup", "echo page > /build/site", at("/build"))],
        )
        assert await run_job(node, prepared) == "page\n"

    run_on_node(scenario, tmp_path)


def test_an_empty_dir_survives_a_container_restart(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = f"if test -f /v/been-here; then echo again; {SERVE}; fi; touch /v/been-here; exit 1"
        node.create(server("app", {"emptyDir": {}}, script=script))
        await node.until(lambda: node.log("app", attempt=1) == "again\n")
        await node.until(lambda: node.status("app").restart_count == 1)

    run_on_node(scenario, tmp_path)


@needs_mounts
def test_an_empty_dir_in_memory_has_its_size_limit(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = "stat -f -c %T /v; head -c 2000000 /dev/zero > /v/big 2>/dev/null || echo full; wc -c < /v/big"
        source = {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
        assert await run_job(node, job("app", script, source)) == f"tmpfs\nfull\n{1 << 20}\n"

    run_on_node(scenario, tmp_path)


@needs_other_users
def test_fs_group_can_write_to_volumes(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        users = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000}
        script = "stat -c '%g %a' /v; touch /v/mine; stat -c '%u %g' /v/mine"
        output = await run_job(node, job("app", script, {"emptyDir": {}}, securityContext=users))
        assert output == "2000 2777\n1000 2000\n"

    run_on_node(scenario, tmp_path)


# hostPath.


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
    "an existing directory": ("Directory", "directory", "test -d /v"),
    "a created directory": ("DirectoryOrCreate", "", "test -d /v && touch /v/x"),
    "an existing file": ("File", "file", "test -f /v"),
    "a created file": ("FileOrCreate", "", "test -f /v && echo hi > /v"),
    "a socket": ("Socket", "socket", "test -S /v"),
    "unchecked type": ("", "file", "test -f /v"),
}


@pytest.mark.parametrize(("kind", "there", "script"), HOST_PATHS.values(), ids=HOST_PATHS.keys())
def test_a_host_path(run_on_node: ScenarioRunner, kind: str, there: str, script: str, tmp_path: Path) -> None:
    shown = tmp_path / "h"
    _make(shown, there)

    async def scenario(node: Node) -> None:
        await run_job(node, job("app", script, {"hostPath": {"path": str(shown), "type": kind}}))

    run_on_node(scenario, tmp_path / "node")
    assert shown.exists()  # files of the host survive the pod


def test_a_host_path_device(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await run_job(node, job("app", "test -c /v", {"hostPath": {"path": "/dev/zero", "type": "CharDevice"}}))

    run_on_node(scenario, tmp_path)


def test_a_pod_waits_for_a_host_path_of_the_wrong_type(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
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

    run_on_node(scenario, tmp_path / "node", retry_seconds=0.3)


# Mounts.


def test_a_read_only_mount_cannot_be_written(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = "echo hi > /rw/x; cat /ro/x; touch /ro/y 2>/dev/null || echo no"
        wanted = job("app", script, {"emptyDir": {}}, at("/rw"), at("/ro", readOnly=True))
        assert await run_job(node, wanted) == "hi\nno\n"

    run_on_node(scenario, tmp_path)


SUB_PATHS = {
    "a missing directory is created": (at("/part", subPath="a/b"), "a/b"),
    "subPathExpr expands variables": (at("/part", subPathExpr="pods/$(POD)"), "pods/app"),
}


@pytest.mark.parametrize(("part", "place"), SUB_PATHS.values(), ids=SUB_PATHS.keys())
def test_sub_paths(run_on_node: ScenarioRunner, part: Mapping[str, Any], place: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        env = [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
        script = f"echo mine > /part/x; cat /v/{place}/x; ls /part"
        wanted = job("app", script, {"emptyDir": {}}, at("/v"), part, container={"env": env})
        assert await run_job(node, wanted) == "mine\nx\n"

    run_on_node(scenario, tmp_path)


REFUSALS = ("not within volume path", 'failed to prepare subPath for volumeMount "v" of container "app"')

ATTACKS = {
    "an absolute link": "/",
    "a link that goes up": "../../../../../../../../..",
    "a link into the host": "{outside}",
}


@pytest.mark.parametrize("target", ATTACKS.values(), ids=ATTACKS.keys())
def test_a_sub_path_symlink_cannot_escape_the_volume(run_on_node: ScenarioRunner, target: str, tmp_path: Path) -> None:
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
        await node.until(lambda: any(word in event[2] for event in node.events("app") for word in REFUSALS))
        assert node.log("app") == ""
        assert node.phase("app") != "Succeeded"

    run_on_node(scenario, tmp_path / "node")
    assert list(outside.iterdir()) == []


def test_a_volume_mounted_inside_another_volume(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
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
        assert await run_job(node, wanted) == "blue"

    run_on_node(scenario, tmp_path)


# Cleanup.


def test_only_host_paths_survive_the_removal_of_a_pod(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
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
        directory = node.root / "pods" / uid
        memory_directories = [
            (directory / "volumes" / f"kubernetes.io~{each}").resolve() for each in ("empty-dir/memory", "secret/door")
        ]
        assert [file_system_of(str(path)) for path in memory_directories] == ["tmpfs", "tmpfs"]
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        await node.until(lambda: uid not in node.mounted_pods() and not directory.exists())
        assert not any(path.exists() for path in memory_directories)

    run_on_node(scenario, tmp_path / "node")
    assert (shown / "precious").read_text() == "x"


def test_a_completed_job_keeps_no_memory_volumes(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await run_job(node, job("app", "head -c 100000 /dev/zero > /v/x", {"emptyDir": {"medium": "Memory"}}))
        await node.until(lambda: node.uid("app") not in node.mounted_pods())

    run_on_node(scenario, tmp_path)
