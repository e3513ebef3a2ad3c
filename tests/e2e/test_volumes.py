"""Volumes with real processes: what containers find in them, may do with them, and what is left of them at the end."""

import asyncio
import base64
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from podkeeper.model.k8s.core import ConfigMap, Pod, Secret
from podkeeper.model.k8s.meta import ObjectMeta
from tests.e2e.node import NAMESPACE, Node, on_a_node, pod

pytestmark = pytest.mark.slow

SERVE = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


def config_map(node: Node, name: str, **data: str) -> None:
    node.api.put(ConfigMap(metadata=ObjectMeta(name=name, namespace=NAMESPACE), data=data))


def secret(node: Node, name: str, **data: str) -> None:
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    node.api.put(Secret(metadata=ObjectMeta(name=name, namespace=NAMESPACE), data=encoded))


def at(path: str, volume: str = "v", **more: Any) -> dict[str, Any]:
    return {"name": volume, "mountPath": path, **more}


def container(name: str, script: str, *mounts: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "image": "host", "command": ["sh", "-c", script], "volumeMounts": list(mounts)}


def job(name: str, script: str, volume: Mapping[str, Any], *mounts: Mapping[str, Any], **spec: Any) -> Pod:
    """A pod that looks at one volume `v` and ends. `container=...` are more fields of its container."""
    spec.setdefault("restartPolicy", "Never")
    more = spec.pop("container", {})
    return pod(
        name,
        containers=[{**container("app", script, *(mounts or (at("/v"),))), **more}],
        volumes=[{"name": "v", **volume}],
        **spec,
    )


def server(name: str, volume: Mapping[str, Any], *mounts: Mapping[str, Any], script: str = SERVE, **spec: Any) -> Pod:
    """A pod that has one volume `v` and goes on."""
    return job(name, script, volume, *mounts, restartPolicy="Always", **spec)


async def output(node: Node, wanted: Pod) -> str:
    """What a job says, which must succeed."""
    name = node.create(wanted).metadata.name or ""
    await node.until(lambda: node.phase(name) in ("Succeeded", "Failed"), f"{name} has ended")
    assert node.phase(name) == "Succeeded", node.log(name)
    return node.log(name)


# Empty directories.


@pytest.mark.parametrize("source", [{}, {"medium": "Memory"}], ids=["on disk", "in memory"])
def test_containers_of_a_pod_share_an_empty_directory(source: Mapping[str, Any], tmp_path: Path) -> None:
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


def test_what_an_init_container_prepares_is_there_for_the_others(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        prepared = job(
            "app",
            "cat /v/site",
            {"emptyDir": {}},
            initContainers=[container("setup", "echo page > /build/site", at("/build"))],
        )
        assert await output(node, prepared) == "page\n"

    on_a_node(scenario, tmp_path)


def test_an_empty_directory_outlives_a_restart_of_its_container(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = f"if test -f /v/been-here; then echo again; {SERVE}; fi; touch /v/been-here; exit 1"
        node.create(server("app", {"emptyDir": {}}, script=script))
        await node.until(lambda: node.log("app", attempt=1) == "again\n")
        await node.until(lambda: node.status("app").restart_count == 1)

    on_a_node(scenario, tmp_path)


def test_a_directory_in_memory_is_no_larger_than_its_limit(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = "stat -f -c %T /v; head -c 2000000 /dev/zero > /v/big 2>/dev/null || echo full; wc -c < /v/big"
        source = {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
        assert await output(node, job("app", script, source)) == f"tmpfs\nfull\n{1 << 20}\n"

    on_a_node(scenario, tmp_path)


def test_the_group_of_a_pods_volumes_may_write_in_them(tmp_path: Path) -> None:
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
def test_a_host_path(kind: str, there: str, script: str, tmp_path: Path) -> None:
    shown = tmp_path / "h"
    _make(shown, there)

    async def scenario(node: Node) -> None:
        await output(node, job("app", script, {"hostPath": {"path": str(shown), "type": kind}}))

    on_a_node(scenario, tmp_path / "node")
    assert shown.exists()  # what is the host's stays when the pod is gone


def test_a_device_of_the_host(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await output(node, job("app", "test -c /v", {"hostPath": {"path": "/dev/zero", "type": "CharDevice"}}))

    on_a_node(scenario, tmp_path)


def test_a_pod_waits_for_a_host_path_that_is_not_what_it_should_be(tmp_path: Path) -> None:
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


# Config maps, secrets, the pod's own fields.


def test_a_config_map_is_files_that_nobody_may_change(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "settings", colour="blue", size="10")
        script = "cd /v; ls; cat colour; echo; stat -L -c %a colour; echo x 2>/dev/null > colour || echo no"
        said = await output(node, job("app", script, {"configMap": {"name": "settings"}}))
        assert said.splitlines() == ["colour", "size", "blue", "644", "no"]

    on_a_node(scenario, tmp_path)


def test_chosen_items_appear_at_their_paths_with_their_modes(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "settings", colour="blue", size="10")
        items = [{"key": "colour", "path": "deep/paint", "mode": 0o400}]
        script = "cd /v; find -L . -type f ! -path '*/..*' | sort; stat -L -c %a deep/paint"
        said = await output(node, job("app", script, {"configMap": {"name": "settings", "items": items}}))
        assert said.splitlines() == ["./deep/paint", "400"]

    on_a_node(scenario, tmp_path)


MISSING = {
    "a config map that is not there": ({"configMap": {"name": "no"}}, 'configmap "no" not found'),
    "a secret that is not there": ({"secret": {"secretName": "no"}}, 'secret "no" not found'),
    "a key that is not there": (
        {"configMap": {"name": "few", "items": [{"key": "no", "path": "x"}]}},
        "configmap references non-existent config key: no",
    ),
}


@pytest.mark.parametrize(("source", "why"), MISSING.values(), ids=MISSING.keys())
def test_a_pod_waits_for(source: Mapping[str, Any], why: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "few", other="x")
        node.create(job("app", "true", source))
        told = ("Warning", "FailedMount", f'MountVolume.SetUp failed for volume "v" : {why}')
        await node.until(lambda: told in node.events("app"), why)
        assert node.phase("app") == "Pending"
        config_map(node, "no", x="1")
        config_map(node, "few", no="1")
        secret(node, "no", x="1")
        await node.until_phase("app", "Succeeded")

    on_a_node(scenario, tmp_path, retry_seconds=0.3)


def test_nobody_waits_for_what_is_optional(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        sources = [
            {"configMap": {"name": "no", "optional": True}},
            {"secret": {"name": "no", "optional": True}},
        ]
        said = await output(node, job("app", "ls /v | wc -l", {"projected": {"sources": sources}}))
        assert said == "0\n"

    on_a_node(scenario, tmp_path)


def test_a_secret_lies_in_memory_and_is_its_owners_alone(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        secret(node, "door", key="sesame")
        script = "cat /v/key; echo; stat -f -c %T /v; stat -L -c %a /v/key"
        said = await output(node, job("app", script, {"secret": {"secretName": "door", "defaultMode": 0o600}}))
        assert said.splitlines() == ["sesame", "tmpfs", "600"]
        kept = [path for path in _files_on_disk(node.root) if b"sesame" in path.read_bytes()]
        assert [path for path in kept if not path.is_relative_to(node.root / "logs")] == []

    on_a_node(scenario, tmp_path)


def _files_on_disk(root: Path) -> list[Path]:
    """What would be found on the disk if the machine were switched off: what is mounted below does not count."""
    device = root.stat().st_dev
    every = (Path(top) / name for top, _, names in os.walk(root) for name in names)
    return [path for path in every if stat.S_ISREG(path.lstat().st_mode) and path.stat().st_dev == device]


def test_the_pods_own_fields_as_files(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        items = [
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
            {"path": "cpu", "resourceFieldRef": {"containerName": "app", "resource": "limits.cpu"}},
        ]
        wanted = job(
            "app",
            "cd /v; cat name; echo; cat labels; echo; cat cpu",
            {"downwardAPI": {"items": items}},
            container={"resources": {"limits": {"cpu": "2"}}},
            labels={"tier": "web"},
        )
        said = await output(node, wanted)
        assert said.splitlines() == ["app", 'tier="web"', "2"]

    on_a_node(scenario, tmp_path)


def test_a_projected_volume_shows_many_objects_in_one_place(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "settings", colour="blue")
        secret(node, "door", key="sesame")
        sources = [
            {"configMap": {"name": "settings"}},
            {"secret": {"name": "door", "items": [{"key": "key", "path": "private/key"}]}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ]
        script = "cd /v; for each in colour private/key name; do cat $each; echo; done"
        said = await output(node, job("app", script, {"projected": {"sources": sources}}))
        assert said.splitlines() == ["blue", "sesame", "app"]

    on_a_node(scenario, tmp_path)


# Updates.


def test_a_running_container_sees_a_config_map_change_all_at_once(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "settings", one="1", two="1")
        watch = "cd /v/..data && echo $(cat one)-$(cat two); cd /"
        script = f"trap 'exit 0' TERM; while :; do {watch}; sleep 0.01; done"
        node.create(server("app", {"configMap": {"name": "settings"}}, script=script))
        await node.until(lambda: "1-1\n" in node.log("app"))
        config_map(node, "settings", one="2", two="2")
        await node.until(lambda: "2-2\n" in node.log("app"))
        assert {"1-2", "2-1"}.isdisjoint(node.log("app").splitlines())
        assert node.status("app").restart_count == 0

    on_a_node(scenario, tmp_path, refresh_seconds=0.2)


def test_a_key_that_is_removed_disappears_and_a_map_that_is_removed_leaves_its_files(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "settings", old="1", both="1")
        node.create(server("app", {"configMap": {"name": "settings"}}))
        await node.until_ready("app")
        config_map(node, "settings", new="2", both="2")
        assert await _listing(node, "new") == ["both", "new"]
        await node.api.delete(ConfigMap, "settings", NAMESPACE)
        config_map(node, "other", x="1")
        node.create(job("later", "true", {"configMap": {"name": "other"}}))
        await node.until_phase("later", "Succeeded")
        assert await _listing(node, "new") == ["both", "new"]

    async def _listing(node: Node, name: str) -> list[str]:
        found: list[str] = []
        async with asyncio.timeout(10):
            while name not in found:
                await asyncio.sleep(0.02)
                found = (await node.exec("app", "ls", "/v")).output.decode().split()
        return found

    on_a_node(scenario, tmp_path, refresh_seconds=0.1)


def test_a_part_of_a_config_map_stays_what_it_was_when_the_container_began(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "settings", colour="blue")
        mounts = (at("/v"), at("/colour", subPath="colour"))
        script = "trap 'exit 0' TERM; while :; do echo $(cat /v/colour) $(cat /colour); sleep 0.02; done"
        node.create(server("app", {"configMap": {"name": "settings"}}, *mounts, script=script))
        await node.until(lambda: "blue blue\n" in node.log("app"))
        config_map(node, "settings", colour="red")
        await node.until(lambda: "red blue\n" in node.log("app"))

    on_a_node(scenario, tmp_path, refresh_seconds=0.2)


# Mounts.


def test_a_volume_that_is_mounted_read_only_can_be_read_and_no_more(tmp_path: Path) -> None:
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
def test_of_a_part_of_a_volume(part: Mapping[str, Any], place: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        env = [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
        script = f"echo mine > /part/x; cat /v/{place}/x; ls /part"
        wanted = job("app", script, {"emptyDir": {}}, at("/v"), part, container={"env": env})
        assert await output(node, wanted) == "mine\nx\n"

    on_a_node(scenario, tmp_path)


ATTACKS = {
    "an absolute link": "/",
    "a link that goes up": "../../../../../../../../..",
    "a link into the host": "{outside}",
}


@pytest.mark.parametrize("target", ATTACKS.values(), ids=ATTACKS.keys())
def test_a_link_that_a_container_planted_does_not_lead_out_of_the_volume(target: str, tmp_path: Path) -> None:
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
        await node.until(lambda: any("not within volume path" in message for _, _, message in node.events("app")))
        assert node.log("app") == ""
        assert node.phase("app") != "Succeeded"

    on_a_node(scenario, tmp_path / "node")
    assert list(outside.iterdir()) == []


def test_a_volume_within_a_volume(tmp_path: Path) -> None:
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


def test_nothing_is_left_of_volumes_but_what_was_the_hosts(tmp_path: Path) -> None:
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
        assert uid in _mounts()
        assert (node.root / "pods" / uid).exists()
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        await node.until(lambda: uid not in _mounts() and not (node.root / "pods" / uid).exists())

    on_a_node(scenario, tmp_path / "node")
    assert (shown / "precious").read_text() == "x"


def _mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


def test_a_job_that_is_over_keeps_nothing_in_memory(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await output(node, job("app", "head -c 100000 /dev/zero > /v/x", {"emptyDir": {"medium": "Memory"}}))
        await node.until(lambda: node.uid("app") not in _mounts())

    on_a_node(scenario, tmp_path)
