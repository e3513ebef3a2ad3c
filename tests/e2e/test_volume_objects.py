"""Volumes from API objects, with real processes: contents and updates."""

import asyncio
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from podkeeper.model.k8s.core import ConfigMap
from tests.e2e.node import NAMESPACE, Node, ScenarioRunner
from tests.e2e.objects import config_map, secret
from tests.e2e.volume_pods import at, job, run_job, server

pytestmark = pytest.mark.slow

# Config maps, secrets, downward API.


def test_a_config_map_volume_is_read_only(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "settings", colour="blue", size="10")
        script = "cd /v; ls; cat colour; echo; stat -L -c %a colour; echo x 2>/dev/null > colour || echo no"
        output = await run_job(node, job("app", script, {"configMap": {"name": "settings"}}))
        assert output.splitlines() == ["colour", "size", "blue", "644", "no"]

    run_on_node(scenario, tmp_path)


def test_config_map_items_have_their_paths_and_modes(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "settings", colour="blue", size="10")
        items = [{"key": "colour", "path": "deep/paint", "mode": 0o400}]
        script = "cd /v; find -L . -type f ! -path '*/..*' | sort; stat -L -c %a deep/paint"
        output = await run_job(node, job("app", script, {"configMap": {"name": "settings", "items": items}}))
        assert output.splitlines() == ["./deep/paint", "400"]

    run_on_node(scenario, tmp_path)


MISSING = {
    "a missing config map": ({"configMap": {"name": "no"}}, 'configmap "no" not found'),
    "a missing secret": ({"secret": {"secretName": "no"}}, 'secret "no" not found'),
    "a missing key": (
        {"configMap": {"name": "few", "items": [{"key": "no", "path": "x"}]}},
        "configmap references non-existent config key: no",
    ),
}


@pytest.mark.parametrize(("source", "why"), MISSING.values(), ids=MISSING.keys())
def test_a_pod_waits_for_missing_volume_sources(
    run_on_node: ScenarioRunner, source: Mapping[str, Any], why: str, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "few", other="x")
        node.create(job("app", "true", source))
        expected = ("Warning", "FailedMount", f'MountVolume.SetUp failed for volume "v" : {why}')
        await node.until(lambda: expected in node.events("app"), why)
        assert node.phase("app") == "Pending"
        config_map(node, "no", x="1")
        config_map(node, "few", no="1")
        secret(node, "no", x="1")
        await node.until_phase("app", "Succeeded")

    run_on_node(scenario, tmp_path, retry_seconds=0.3)


def test_missing_optional_objects_do_not_delay_a_pod(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        sources = [
            {"configMap": {"name": "no", "optional": True}},
            {"secret": {"name": "no", "optional": True}},
        ]
        output = await run_job(node, job("app", "ls /v | wc -l", {"projected": {"sources": sources}}))
        assert output == "0\n"

    run_on_node(scenario, tmp_path)


def test_a_secret_is_in_memory_with_its_default_mode(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        secret(node, "door", key="sesame")
        script = "cat /v/key; echo; stat -f -c %T /v; stat -L -c %a /v/key"
        output = await run_job(node, job("app", script, {"secret": {"secretName": "door", "defaultMode": 0o600}}))
        assert output.splitlines() == ["sesame", "tmpfs", "600"]
        kept = [path for path in _files_on_disk(node.root) if b"sesame" in path.read_bytes()]
        assert [path for path in kept if not path.is_relative_to(node.root / "logs")] == []

    run_on_node(scenario, tmp_path)


def _files_on_disk(root: Path) -> list[Path]:
    """Return the files on disk, without mounted file systems."""
    device = root.stat().st_dev
    every = (Path(top) / name for top, _, names in os.walk(root) for name in names)
    return [path for path in every if stat.S_ISREG(path.lstat().st_mode) and path.stat().st_dev == device]


def test_downward_api_volume(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
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
        output = await run_job(node, wanted)
        assert output.splitlines() == ["app", 'tier="web"', "2"]

    run_on_node(scenario, tmp_path)


def test_a_projected_volume_combines_several_sources(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "settings", colour="blue")
        secret(node, "door", key="sesame")
        sources = [
            {"configMap": {"name": "settings"}},
            {"secret": {"name": "door", "items": [{"key": "key", "path": "private/key"}]}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ]
        script = "cd /v; for each in colour private/key name; do cat $each; echo; done"
        output = await run_job(node, job("app", script, {"projected": {"sources": sources}}))
        assert output.splitlines() == ["blue", "sesame", "app"]

    run_on_node(scenario, tmp_path)


# Updates.


def test_a_config_map_update_is_atomic(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
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

    run_on_node(scenario, tmp_path, refresh_seconds=0.2)


def test_a_removed_key_disappears_and_a_removed_config_map_keeps_its_files(
    run_on_node: ScenarioRunner, tmp_path: Path
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

    run_on_node(scenario, tmp_path, refresh_seconds=0.1)


def test_a_sub_path_of_a_config_map_is_not_updated(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "settings", colour="blue")
        mounts = (at("/v"), at("/colour", subPath="colour"))
        script = "trap 'exit 0' TERM; while :; do echo $(cat /v/colour) $(cat /colour); sleep 0.02; done"
        node.create(server("app", {"configMap": {"name": "settings"}}, *mounts, script=script))
        await node.until(lambda: "blue blue\n" in node.log("app"))
        config_map(node, "settings", colour="red")
        await node.until(lambda: "red blue\n" in node.log("app"))

    run_on_node(scenario, tmp_path, refresh_seconds=0.2)
