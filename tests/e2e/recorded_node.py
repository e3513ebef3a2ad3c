"""A node with running pods of the kubelet, created with its recorded CRI requests.

    left = await leave(node, cri_node, "full", "plain")

Only the image and the paths of files, logs and cgroups are ours. The API has the recorded pods, with the ids of the new
containers.
"""

import asyncio
import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict

from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.e2e.golden_requests import FROM_API, pod_of, pod_text, recorded_containers, recorded_sandbox
from tests.e2e.node import TIMEOUT_SECONDS, Node
from tests.host.own_cgroups import HERE
from tests.runtimes.cri.cri_node import BUSYBOX_IMAGE, CriNode

ORDER = ("init1", "side", "main", "c")  # the order of container starts


@dataclass(frozen=True, slots=True)
class Left:
    """The sandbox and the containers of one pod."""

    uid: str
    sandbox_id: str
    containers: Mapping[str, str]  # ids by name
    cgroup: str


async def leave(node: Node, cri_node: CriNode, *pods: str) -> dict[str, Left]:
    """Create pods as the kubelet did, also in the API. No agent may run meanwhile."""
    transport = GrpcTransport(cri_node.socket)
    try:
        calls = CriCalls(transport)
        image = await calls.image(BUSYBOX_IMAGE)
        assert image is not None
        left = {name: await _made(calls, node, name, image.id) for name in pods}
    finally:
        await transport.close()
    for name in FROM_API:
        if name in left:
            _show(node, name, left[name])
    return left


def _show(node: Node, name: str, left: Left) -> None:
    """Put the recorded pod into the API, with the ids of the created containers."""
    text = pod_text(name)
    for container, recorded in recorded_containers(name).items():
        text = text.replace(recorded["list"]["id"], left.containers[container])
    node.api.put(pod_of(name, text))


async def _made(calls: CriCalls, node: Node, name: str, image_id: str) -> Left:
    box = ParseDict(_placed(node, recorded_sandbox(name)["config_sent"], image_id), cri.PodSandboxConfig())
    os.makedirs(box.log_directory)
    sandbox_id = await calls.run_sandbox(box, "")
    recorded = recorded_containers(name)
    made: dict[str, str] = {}
    for each in sorted(recorded, key=ORDER.index):
        config = ParseDict(_placed(node, recorded[each]["config_sent"], image_id), cri.ContainerConfig())
        _make_files(config, Path(box.log_directory))
        made[each] = await calls.create_container(sandbox_id, config, box)
        await calls.start_container(made[each])
        if each == "init1":
            await _ended(calls, made[each])
    return Left(box.metadata.uid, sandbox_id, made, box.linux.cgroup_parent)


def _placed(node: Node, config: Mapping[str, Any], image_id: str) -> dict[str, Any]:
    """Return a recorded configuration with our paths. Bytes are base64, as ParseDict expects."""
    spelled = dict(config)
    if "envs" in spelled:
        spelled["envs"] = [
            {"key": each["key"], "value": base64.b64encode(each["value"].encode()).decode()} for each in config["envs"]
        ]
    if "image" in spelled:
        # The kubelet also sends the name, which CRI-O needs. The recording containerd did not have this field.
        spelled["image"] = {"image": image_id, "user_specified_image": BUSYBOX_IMAGE}
    text = json.dumps(spelled)
    text = text.replace('"/var/lib/kubelet/pods/', f'"{node.root}/pods/')
    text = text.replace('"/var/log/pods/', f'"{node.root}/logs/')
    text = text.replace('"/kubepods/', f'"{HERE.base.rstrip("/")}/{node.cgroup_root}/')
    placed: dict[str, Any] = json.loads(text)
    return placed


def _make_files(config: cri.ContainerConfig, logs: Path) -> None:
    """Create the files that the kubelet creates on the host before CreateContainer."""
    (logs / config.log_path).parent.mkdir(exist_ok=True)
    for mount in config.mounts:
        path = Path(mount.host_path)
        if mount.container_path in ("/etc/hosts", "/dev/termination-log"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            path.chmod(0o666)
        else:
            path.mkdir(parents=True, exist_ok=True)


async def _ended(calls: CriCalls, container_id: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (await calls.container_status(container_id)).state != cri.CONTAINER_EXITED:
            await asyncio.sleep(0.02)
