"""A node changes hands: podkeeper takes up what the reference kubelet started, and leaves what that could take up.

The pods of the reference are made with its recorded requests (`reference_node`). What podkeeper makes is compared with
them in `test_golden_requests`: who reads one can read the other.
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
from tests.e2e.golden_requests import (
    NODE,
    SETTINGS,
    STATIC,
    container_config,
    recorded_containers,
    static_text,
)
from tests.e2e.homes import Containers
from tests.e2e.kinds import containers_only
from tests.e2e.node import Node, OnANode
from tests.e2e.objects import config_map
from tests.e2e.reference_node import Left, leave
from tests.host.own_cgroups import needs_cgroups
from tests.runtimes.cri.cri_node import CriNode

pytestmark = [pytest.mark.slow, containers_only, needs_cgroups]


def cri_node_of(node: Node) -> CriNode:
    assert isinstance(node.home, Containers)
    return node.home.cri_node


async def taken_over(node: Node, *pods: str) -> dict[str, Left]:
    """Begin anew on a node that the reference has left."""
    await node.end()
    config_map(node, "cm1", **SETTINGS)
    left = await leave(node, cri_node_of(node), *pods)
    await node.begin()
    return left


async def record_of(node: Node, left: Left) -> PodRecord:
    """What the runtime has of a pod now."""
    return await node.runtime.pod_record(PodUID(left.uid))


def ids(record: PodRecord) -> tuple[list[str], set[str]]:
    """Of sandboxes and containers."""
    return [box.id for box in record.sandboxes], {each.id for each in record.containers}


def until_taken_up(node: Node, name: str) -> bool:
    """Whether the agent of now has said something of a pod, and that it is ready."""
    uid = node.uid(name)
    return node.agent.statuses.get_pod_status(uid) is not None and node.is_ready(name)


def shown_ids(node: Node, name: str) -> Mapping[str, str]:
    status = node.see(name).status
    every = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    return {each.name: (each.container_id or "").partition("://")[2] for each in every}


def cgroups_at(path: str) -> list[str]:
    """The directories of a cgroup, in all hierarchies."""
    return [
        found for found in (*glob(f"/sys/fs/cgroup{path}"), *glob(f"/sys/fs/cgroup/*{path}")) if Path(found).is_dir()
    ]


def test_pods_of_the_reference_go_on_as_if_nothing_had_happened(on_a_node: OnANode, tmp_path: Path) -> None:
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

        left = await taken_over(node, "full", "hostish")
        node.api.witness(Pod, note)
        before = {name: ids(await record_of(node, each)) for name, each in left.items()}
        await node.until(lambda: all(until_taken_up(node, name) for name in left), "both are taken up")
        node.create({"metadata": {"name": "mark"}, "spec": {"containers": [{"name": "app", "image": "host"}]}})
        await node.until(lambda: node.phase("mark") != "Pending", "the agent does its work")
        for name, each in left.items():
            assert ids(await record_of(node, each)) == before[name]
            assert shown_ids(node, name) == each.containers
            assert {status.restart_count for status in node.see(name).status.container_statuses or ()} == {0}
        assert [event for name in left for event in node.events(name)] == []
        assert unready == []

    on_a_node(scenario, tmp_path, name=NODE)


def test_a_pod_of_the_reference_is_deleted_with_all_that_it_had(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        left = (await taken_over(node, "full"))["full"]
        await node.until(lambda: until_taken_up(node, "full"))
        assert cgroups_at(left.cgroup) != []
        node.delete("full", grace_seconds=5)
        await node.until(lambda: node.is_gone("full"))
        killed = {message for _, reason, message in node.events("full") if reason == "Killing"}
        assert killed == {"Stopping container main", "Stopping container side"}
        await node.until(lambda: cgroups_at(left.cgroup) == [], "its cgroups are gone")
        await node.until(lambda: not (node.root / "pods" / left.uid).exists(), "its files are gone")
        await node.until(lambda: node.agent.cache.get(PodUID(left.uid)) == PodRecord(uid=left.uid), "no trace is left")

    on_a_node(scenario, tmp_path, name=NODE)


def test_a_container_of_the_reference_is_run_again_where_it_was(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        left = (await taken_over(node, "plain"))["plain"]
        await node.until(lambda: len(node.agent.cache.get(PodUID(left.uid)).containers) == 2, "it is run again")
        record = await record_of(node, left)
        assert [box.id for box in record.sandboxes] == [left.sandbox_id]
        made = max(record.containers, key=lambda each: each.restart_count)
        assert made.restart_count == 3
        if cri_node_of(node).name == "cri-o":  # which does not repeat what it was asked
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

    on_a_node(scenario, tmp_path, name=NODE)


def test_a_static_pod_of_the_reference_gives_way_to_ours(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.write("static", static_text().replace("spec:\n", "spec:\n  terminationGracePeriodSeconds: 1\n"))
        left = (await taken_over(node, STATIC))[STATIC]
        mirrors = [each for each in node.api.objects(Pod) if each.metadata.name == STATIC]
        assert len(mirrors) <= 1

        def is_replaced() -> bool:
            theirs = node.agent.cache.get(PodUID(left.uid))
            return not theirs.containers and any(
                each.metadata.name == STATIC and each.status.phase == "Running" for each in node.api.objects(Pod)
            )

        await node.until(is_replaced, "the reference's copy is gone, and ours runs", within=60)
        running = [each for each in await node.runtime.list_pods() if each.name == STATIC]
        assert len(running) == 1
        assert running[0].uid != left.uid

    on_a_node(scenario, tmp_path, name=NODE)
