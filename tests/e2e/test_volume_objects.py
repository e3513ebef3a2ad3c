"""Volumes made from objects, with real processes: what containers find in them, and how that changes."""

import asyncio
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from podkeeper.model.k8s.core import ConfigMap
from tests.e2e.node import NAMESPACE, Node, OnANode
from tests.e2e.objects import config_map, secret
from tests.e2e.volume_pods import at, job, output, server

pytestmark = pytest.mark.slow

# Config maps, secrets, the pod's own fields.


def test_a_config_map_is_files_that_nobody_may_change(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "settings", colour="blue", size="10")
        script = "cd /v; ls; cat colour; echo; stat -L -c %a colour; echo x 2>/dev/null > colour || echo no"
        said = await output(node, job("app", script, {"configMap": {"name": "settings"}}))
        assert said.splitlines() == ["colour", "size", "blue", "644", "no"]

    on_a_node(scenario, tmp_path)


def test_chosen_items_appear_at_their_paths_with_their_modes(on_a_node: OnANode, tmp_path: Path) -> None:
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
def test_a_pod_waits_for(on_a_node: OnANode, source: Mapping[str, Any], why: str, tmp_path: Path) -> None:
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


def test_nobody_waits_for_what_is_optional(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        sources = [
            {"configMap": {"name": "no", "optional": True}},
            {"secret": {"name": "no", "optional": True}},
        ]
        said = await output(node, job("app", "ls /v | wc -l", {"projected": {"sources": sources}}))
        assert said == "0\n"

    on_a_node(scenario, tmp_path)


def test_a_secret_lies_in_memory_and_is_its_owners_alone(on_a_node: OnANode, tmp_path: Path) -> None:
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


def test_the_pods_own_fields_as_files(on_a_node: OnANode, tmp_path: Path) -> None:
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


def test_a_projected_volume_shows_many_objects_in_one_place(on_a_node: OnANode, tmp_path: Path) -> None:
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


def test_a_running_container_sees_a_config_map_change_all_at_once(on_a_node: OnANode, tmp_path: Path) -> None:
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


def test_a_key_that_is_removed_disappears_and_a_map_that_is_removed_leaves_its_files(
    on_a_node: OnANode, tmp_path: Path
) -> None:
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


def test_a_part_of_a_config_map_stays_what_it_was_when_the_container_began(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "settings", colour="blue")
        mounts = (at("/v"), at("/colour", subPath="colour"))
        script = "trap 'exit 0' TERM; while :; do echo $(cat /v/colour) $(cat /colour); sleep 0.02; done"
        node.create(server("app", {"configMap": {"name": "settings"}}, *mounts, script=script))
        await node.until(lambda: "blue blue\n" in node.log("app"))
        config_map(node, "settings", colour="red")
        await node.until(lambda: "red blue\n" in node.log("app"))

    on_a_node(scenario, tmp_path, refresh_seconds=0.2)
