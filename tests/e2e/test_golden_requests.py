"""The pods whose requests were recorded from the reference kubelet, through the whole agent, on a real containerd.

What containerd says it was asked is what the reference asked, but for what `golden_requests` names. The requests
themselves are compared field by field in tests/runtimes/cri/test_requests_golden.py; here the agent has found out by
itself what it took from the recording there: addresses, attempts, paths, files.
"""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import PodStatus
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.backoff import DEFAULT_CURVE
from podkeeper.runtimes.cri.transport import GrpcTransport, Transport
from tests.e2e.golden_requests import (
    FROM_API,
    NODE,
    RESOLVER_FILE,
    SETTINGS,
    STATIC,
    Plain,
    container_config,
    differences,
    pod_of,
    recorded_containers,
    recorded_plain,
    recorded_sandbox,
    sandbox_config,
    static_text,
)
from tests.e2e.homes import Containers
from tests.e2e.kinds import containerd_only
from tests.e2e.node import PATIENCE_SECONDS, Node, OnANode
from tests.e2e.objects import config_map
from tests.host.own_cgroups import HERE, needs_cgroups

pytestmark = [pytest.mark.slow, containerd_only, needs_cgroups]  # CRI-O does not repeat what it was asked

SOON = {"restart_curve": DEFAULT_CURVE.tuned(initial=timedelta(seconds=1))}


def plain_of(node: Node, uid: str) -> Plain:
    """The places of a node of ours."""
    cgroups = f"{HERE.base.rstrip('/')}/{node.cgroup_root}"
    return Plain(uid=uid, pods=str(node.root / "pods"), logs=str(node.root / "logs"), cgroups=cgroups)


def recorded_attempts(pod: str) -> dict[str, int]:
    """Which attempt of each container was recorded."""
    containers = recorded_containers(pod).items()
    return {name: each["config_sent"]["metadata"].get("attempt", 0) for name, each in containers}


async def until_made(node: Node, pod: str) -> PodRecord:
    """What the runtime has of a pod, once that is all that was recorded."""
    wanted = recorded_attempts(pod).items()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = next((each for each in await node.runtime.list_pods() if each.name == pod), None)
            if found is not None and wanted <= {(each.name, each.restart_count) for each in found.containers}:
                return found
            await asyncio.sleep(0.05)


async def asked_otherwise(transport: Transport, node: Node, pod: str) -> list[str]:
    """Where what the runtime was asked for a pod differs from the recording."""
    record = await until_made(node, pod)
    box = recorded_sandbox(pod)["config_sent"]
    theirs, ours = recorded_plain(box["metadata"]["uid"]), plain_of(node, record.uid)
    made = await sandbox_config(transport, record.sandboxes[0].id)
    found = list(differences(theirs.config(box), ours.config(made), f"{pod} sandbox"))
    for name, attempt in recorded_attempts(pod).items():
        sent = recorded_containers(pod)[name]["config_sent"]
        one = next(each for each in record.containers if (each.name, each.restart_count) == (name, attempt))
        made = await container_config(transport, one.id)
        found += differences(theirs.config(sent), ours.config(made), f"{pod} {name}")
    return found


def test_the_agent_asks_for_pods_as_the_reference_does(on_a_node: OnANode, tmp_path: Path) -> None:
    assert isinstance(on_a_node.home, Containers)
    cri_node, resolver_file = on_a_node.home.cri_node, tmp_path / "resolv.conf"
    resolver_file.write_text(RESOLVER_FILE)

    async def scenario(node: Node) -> None:
        config_map(node, "cm1", **SETTINGS)
        node.write("static", static_text())
        for name in FROM_API:
            node.create(replace(pod_of(name), status=PodStatus()))
        transport = GrpcTransport(cri_node.socket)
        try:
            assert [await asked_otherwise(transport, node, name) for name in (*FROM_API, STATIC)] == [[], [], [], []]
        finally:
            await transport.close()
        static = await until_made(node, STATIC)
        node.unwrite("static")
        await node.until(lambda: any(told[1] == "Killing" for told in node.events(STATIC)))
        await node.runtime.stop_container(static.containers[0].id, 0)  # it would take all of its grace

    home = Containers(cri_node, resolver_file=str(resolver_file))
    OnANode(home)(scenario, tmp_path / "node", name=NODE, settings=SOON)
