"""Adoption: podkeeper continues pods that the kubelet started.

`recorded_node` creates the pods with the recorded requests of the kubelet. `test_golden_requests` shows that podkeeper
sends the same requests, so the kubelet can adopt its pods, too.
"""

from collections.abc import Mapping
from glob import glob
from pathlib import Path

import pytest

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.runtimes.cri.transport import GrpcTransport
from podkeeper.testing.memory_watch import Change
from tests.e2e.backends import CriBackend
from tests.e2e.golden_requests import (
    NODE,
    SETTINGS,
    STATIC,
    container_config,
    recorded_containers,
    static_text,
)
from tests.e2e.node import Node, ScenarioRunner
from tests.e2e.objects import config_map
from tests.e2e.recorded_node import Left, leave
from tests.e2e.runtime_kinds import containers_only
from tests.host.own_cgroups import needs_cgroups
from tests.runtimes.cri.cri_node import CriNode

pytestmark = [pytest.mark.slow, containers_only, needs_cgroups]


def cri_node_of(node: Node) -> CriNode:
    assert isinstance(node.backend, CriBackend)
    return node.backend.cri_node


async def adopt(node: Node, *pods: str) -> dict[str, Left]:
    """Start an agent on a node with pods of the kubelet."""
    await node.end()
    config_map(node, "cm1", **SETTINGS)
    left = await leave(node, cri_node_of(node), *pods)
    await node.start_agent()
    return left


async def record_of(node: Node, left: Left) -> PodRecord:
    return await node.runtime.pod_record(PodUID(left.uid))


def ids(record: PodRecord) -> tuple[list[str], set[str]]:
    """Return the ids of the sandboxes and of the containers."""
    return [box.id for box in record.sandboxes], {each.id for each in record.containers}


def is_adopted(node: Node, name: str) -> bool:
    """Return whether the new agent has a status of the pod, and the pod is Ready."""
    uid = node.uid(name)
    return node.agent.engine.statuses.get_pod_status(uid) is not None and node.is_ready(name)


def shown_ids(node: Node, name: str) -> Mapping[str, str]:
    status = node.see(name).status
    every = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    return {each.name: (each.container_id or "").partition("://")[2] for each in every}


def cgroups_at(path: str) -> list[str]:
    """Return the directories of a cgroup in all hierarchies."""
    return [
        found for found in (*glob(f"/sys/fs/cgroup{path}"), *glob(f"/sys/fs/cgroup/*{path}")) if Path(found).is_dir()
    ]


def test_pods_of_the_kubelet_are_adopted_without_restart(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        unready: list[str] = []

        def note(change: Change) -> None:
            pod = change.new
            if isinstance(pod, Pod) and change.old is not None:
                unready.extend(
                    f"{pod.metadata.name}: {each.reason}"
                    for each in pod.status.conditions or ()
                    if each.type == "Ready" and each.status != "True" and pod.metadata.name != "mark"
                )

        left = await adopt(node, "full", "hostish")
        node.api.on_change(Pod, note)
        before = {name: ids(await record_of(node, each)) for name, each in left.items()}
        await node.until(lambda: all(is_adopted(node, name) for name in left), "both are adopted")
        node.create({"metadata": {"name": "mark"}, "spec": {"containers": [{"name": "app", "image": "host"}]}})
        await node.until(lambda: node.phase("mark") != "Pending", "the agent has synced")
        for name, each in left.items():
            assert ids(await record_of(node, each)) == before[name]
            assert shown_ids(node, name) == each.containers
            assert {status.restart_count for status in node.see(name).status.container_statuses or ()} == {0}
        assert [event for name in left for event in node.events(name)] == []
        assert unready == []

    run_on_node(scenario, tmp_path, name=NODE)


def test_an_adopted_pod_is_deleted_completely(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        left = (await adopt(node, "full"))["full"]
        await node.until(lambda: is_adopted(node, "full"))
        assert cgroups_at(left.cgroup) != []
        node.delete("full", grace_seconds=5)
        await node.until(lambda: node.is_gone("full"))
        killed = {message for _, reason, message in node.events("full") if reason == "Killing"}
        assert killed == {"Stopping container main", "Stopping container side"}
        await node.until(lambda: cgroups_at(left.cgroup) == [], "its cgroups are gone")
        await node.until(lambda: not (node.root / "pods" / left.uid).exists(), "its files are gone")
        await node.until(
            lambda: node.agent.engine.cache.get(PodUID(left.uid)) == PodRecord(uid=left.uid), "its record is empty"
        )

    run_on_node(scenario, tmp_path, name=NODE)


def test_an_adopted_container_is_restarted_in_its_sandbox(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        left = (await adopt(node, "plain"))["plain"]
        await node.until(lambda: len(node.agent.engine.cache.get(PodUID(left.uid)).containers) == 2, "it is restarted")
        record = await record_of(node, left)
        assert [box.id for box in record.sandboxes] == [left.sandbox_id]
        made = max(record.containers, key=lambda each: each.restart_count)
        assert made.restart_count == 3
        if cri_node_of(node).name == "cri-o":  # its verbose status does not contain the configuration
            return
        transport = GrpcTransport(cri_node_of(node).socket)
        try:
            ours = await container_config(transport, made.id)
        finally:
            await transport.close()
        theirs = recorded_containers("plain")["c"]["config_sent"]
        counted = {"io.kubernetes.container.restartCount": "3"}
        assert ours["annotations"] == {**theirs["annotations"], **counted}
        assert (ours["labels"], ours["log_path"]) == (theirs["labels"], "c/3.log")
        assert ours["metadata"] == {"name": "c", "attempt": 3}

    run_on_node(scenario, tmp_path, name=NODE)


def test_a_static_pod_of_the_kubelet_is_replaced(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("static", static_text().replace("spec:\n", "spec:\n  terminationGracePeriodSeconds: 1\n"))
        left = (await adopt(node, STATIC))[STATIC]
        mirrors = [each for each in node.api.objects(Pod) if each.metadata.name == STATIC]
        assert len(mirrors) <= 1

        def is_replaced() -> bool:
            theirs = node.agent.engine.cache.get(PodUID(left.uid))
            return not theirs.containers and any(
                each.metadata.name == STATIC and each.status.phase == "Running" for each in node.api.objects(Pod)
            )

        await node.until(is_replaced, "the kubelet's copy is gone, and ours runs", within=60)
        running = [each for each in await node.runtime.list_pods() if each.name == STATIC]
        assert len(running) == 1
        assert running[0].uid != left.uid

    run_on_node(scenario, tmp_path, name=NODE)
