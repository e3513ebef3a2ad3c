"""CRI requests of the whole agent on a real containerd, compared with recordings of the kubelet.

The configurations that containerd reports must equal the recorded ones, except for what `golden_requests` lists.
tests/runtimes/cri/requests/test_requests_golden.py compares the requests field by field and takes addresses, attempts,
paths and files from the recording. Here the agent determines them.
"""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import PodStatus
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.backoff.table import DEFAULT_CURVE
from podkeeper.runtimes.cri.transport import GrpcTransport, Transport
from tests.e2e.backends import CriBackend
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
from tests.e2e.node import TIMEOUT_SECONDS, Node, ScenarioRunner
from tests.e2e.objects import config_map
from tests.e2e.runtime_kinds import containerd_only
from tests.host.own_cgroups import HERE, needs_cgroups

pytestmark = [
    pytest.mark.slow,
    containerd_only,
    needs_cgroups,
]  # the verbose status of CRI-O does not contain the configuration

SOON = {"restart_curve": DEFAULT_CURVE.tuned(initial=timedelta(seconds=1))}


def plain_of(node: Node, uid: str) -> Plain:
    """Return the paths of our node."""
    cgroups = f"{HERE.base.rstrip('/')}/{node.cgroup_root}"
    return Plain(uid=uid, pods=str(node.root / "pods"), logs=str(node.root / "logs"), cgroups=cgroups)


def recorded_attempts(pod: str) -> dict[str, int]:
    """Return the recorded attempt of each container."""
    containers = recorded_containers(pod).items()
    return {name: each["config_sent"]["metadata"].get("attempt", 0) for name, each in containers}


async def until_made(node: Node, pod: str) -> PodRecord:
    """Wait until the runtime has all recorded containers of a pod, and return its record."""
    wanted = recorded_attempts(pod).items()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            found = next((each for each in await node.runtime.list_pods() if each.name == pod), None)
            if found is not None and wanted <= {(each.name, each.restart_count) for each in found.containers}:
                return found
            await asyncio.sleep(0.05)


async def request_differences(transport: Transport, node: Node, pod: str) -> list[str]:
    """Return where the requests for a pod differ from the recording."""
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


def test_cri_requests_equal_those_of_the_kubelet(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    assert isinstance(run_on_node.backend, CriBackend)
    cri_node, resolver_file = run_on_node.backend.cri_node, tmp_path / "resolv.conf"
    resolver_file.write_text(RESOLVER_FILE)

    async def scenario(node: Node) -> None:
        config_map(node, "cm1", **SETTINGS)
        node.write("static", static_text())
        for name in FROM_API:
            node.create(replace(pod_of(name), status=PodStatus()))
        transport = GrpcTransport(cri_node.socket)
        try:
            assert [await request_differences(transport, node, name) for name in (*FROM_API, STATIC)] == [
                [],
                [],
                [],
                [],
            ]
        finally:
            await transport.close()
        static = await until_made(node, STATIC)
        node.remove_manifest("static")
        await node.until(lambda: any(event[1] == "Killing" for event in node.events(STATIC)))
        await node.runtime.stop_container(static.containers[0].id, 0)  # it would use its whole grace period

    backend = CriBackend(cri_node, resolver_file=str(resolver_file))
    ScenarioRunner(backend)(scenario, tmp_path / "node", name=NODE, settings=SOON)
