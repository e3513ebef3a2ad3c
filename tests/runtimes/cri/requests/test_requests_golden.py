"""CRI requests equal those that the kubelet sent for the same pods in a recording.

The recorded pods of the API pass through the engine (executor and starter, over a fake runtime). The resulting CRI
messages are compared with `config_sent`, field by field. Allowed differences:

* `user_specified_image`: both send it, but the recording containerd did not have the field;
* variables of services, which we do not set, and the order of variables, which is random in Go;
* values of the recording machine: image id, paths, the time at which a pod was first seen. These are taken from the
  recording, so that everything around them is compared.
"""

import base64
import json
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from msgspec.structs import replace

from podkeeper.model.k8s.core import ConfigMap, Pod, Volume
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.manifest import decode, read_documents
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.model.runtime_calls import ContainerConfig, SandboxConfig
from podkeeper.rules.dns import ClusterDns, PodDns, parse_resolv_conf, pod_dns
from podkeeper.rules.plan.actions import PodActions
from podkeeper.rules.static.pod import FromFile, static_pod
from podkeeper.runtimes.cri.requests.container import ContainerFiles, container_message
from podkeeper.runtimes.cri.requests.node import NodeFacts
from podkeeper.runtimes.cri.requests.sandbox import runtime_handler_of, sandbox_message
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.fake import Operation
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.engine.execution_harness import running_harness

GOLDEN = Path(__file__).parents[1] / "golden"
PODS_ROOT = "/var/lib/kubelet/pods"
NODE = NodeFacts(
    memory_bytes=24 * 2**30,
    hugepage_sizes=("2MB", "1GB"),
    cgroup_v2=False,
    pods_root=PODS_ROOT,
    seccomp_root="/var/lib/kubelet/seccomp",
)
CLUSTER = ClusterDns(servers=("10.96.0.10",), domain="cluster.local")
RESOLVER_FILE = "nameserver 10.255.255.53\n"
KINDS = {
    "empty_dir": "empty-dir",
    "config_map": "configmap",
    "downward_api": "downward-api",
    "projected": "projected",
}


@cache
def recorded() -> Mapping[str, Any]:
    objects: Mapping[str, Any] = json.loads((GOLDEN / "objects.json").read_text())
    return objects


def sandbox_sent(pod: str) -> Mapping[str, Any]:
    sent = (each["config_sent"] for each in recorded()["sandboxes"])
    return next(config for config in sent if config["metadata"]["name"] == pod)


def containers_sent(pod: str) -> Mapping[str, Mapping[str, Any]]:
    sent = (each["config_sent"] for each in recorded()["containers"])
    return {each["metadata"]["name"]: each for each in sent if each["labels"]["io.kubernetes.pod.name"] == pod}


def pod_of(name: str) -> Pod:
    """Return a pod as its source delivered it, with the recorded first-seen time."""
    sent = sandbox_sent(name)
    if name == "st-base-node":
        found = decode(read_documents((GOLDEN / "static.yaml").read_text()).documents[0], Pod)
        found = replace(found, metadata=replace(found.metadata, uid=sent["metadata"]["uid"]))
        pod = static_pod(found, FromFile("static.yaml"), "base-node")
    else:
        pod = decode(read_documents((GOLDEN / f"{name}.yaml").read_text()).documents[0], Pod)
    seen = {key: text for key, text in sent["annotations"].items() if key.endswith(("config.seen", "config.source"))}
    return replace(pod, metadata=replace(pod.metadata, annotations={**(pod.metadata.annotations or {}), **seen}))


def volume_path(pod: Pod, volume: Volume) -> str:
    if volume.host_path is not None:
        return volume.host_path.path
    kind = next(kind for field, kind in KINDS.items() if getattr(volume, field) is not None)
    return f"{PODS_ROOT}/{pod.metadata.uid}/volumes/kubernetes.io~{kind}/{volume.name}"


async def engine_configs(name: str) -> tuple[SandboxConfig, dict[str, ContainerConfig]]:
    """Return the configurations that the engine passes to a runtime for one of the pods."""
    pod = pod_of(name)
    clock = VirtualClock()
    api = MemoryApi(clock)
    data = {"k": "v", "file.txt": "hello"}
    await api.create(ConfigMap(metadata=ObjectMeta(name="cm1", namespace="default"), data=data))

    async def lookup(pod: Pod) -> PodDns:
        return pod_dns(pod, CLUSTER, parse_resolv_conf(RESOLVER_FILE))

    earlier = tuple(
        ContainerRecord(
            id=f"earlier-{container}",
            name=container,
            state=RecordState.EXITED,
            restart_count=sent["metadata"]["attempt"] - 1,
            finished_at=clock.now() - timedelta(hours=1),
        )
        for container, sent in containers_sent(name).items()
        if sent["metadata"].get("attempt")
    )
    async with running_harness(api, lookup) as harness:
        await harness.executor.execute(
            pod,
            PodRecord(uid=pod.metadata.uid or "", containers=earlier),
            PodActions(
                create_sandbox=True,
                init_containers_to_start=tuple(range(len(pod.spec.init_containers or ()))),
                containers_to_start=tuple(range(len(pod.spec.containers))),
            ),
            mounts={volume.name: volume_path(pod, volume) for volume in pod.spec.volumes or ()},
            cgroup_parent=sandbox_sent(name)["linux"]["cgroup_parent"],
            pull_secrets=(),
        )
        configs = [call.given for call in harness.fake.call_log if call.operation == Operation.CREATE_CONTAINER]
        made = next(call.given for call in harness.fake.call_log if call.operation == Operation.RUN_SANDBOX)
        return made, {config.container.name: config for config in configs}


def with_sub_paths(config: ContainerConfig) -> ContainerConfig:
    """A container's configuration once its sub-paths have been prepared, as the runtime has that done."""
    base = f"{PODS_ROOT}/{config.pod.metadata.uid}/volume-subpaths"
    mounts = tuple(
        replace(mount, host_path=f"{base}/{mount.volume}/{config.container.name}/{index}", sub_path="")
        if mount.sub_path
        else mount
        for index, mount in enumerate(config.mounts)
    )
    return replace(config, mounts=mounts)


def files_of(sent: Mapping[str, Any]) -> ContainerFiles:
    paths = {mount["container_path"]: mount["host_path"] for mount in sent["mounts"]}
    return ContainerFiles(termination_log=paths["/dev/termination-log"], etc_hosts=paths["/etc/hosts"])


def comparable(sent: Mapping[str, Any]) -> cri.ContainerConfig:
    """Return a recorded container without the allowed differences."""
    envs = [
        {"key": each["key"], "value": base64.b64encode(each["value"].encode()).decode()}
        for each in sorted(sent.get("envs", []), key=lambda each: str(each["key"]))
        if not each["key"].startswith("KUBERNETES_")
    ]
    return ParseDict({**sent, "envs": envs}, cri.ContainerConfig())


def shown(message: cri.ContainerConfig | cri.PodSandboxConfig) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True)


PODS = ("full", "hostish", "plain", "st-base-node")


@pytest.mark.parametrize("name", PODS)
def test_the_request_of_a_sandbox_equals_the_kubelets(name: str) -> None:
    (config, _), _ = simulate(engine_configs(name))
    expected = ParseDict(dict(sandbox_sent(name)), cri.PodSandboxConfig())
    made = sandbox_message(config, NODE)
    assert shown(made) == shown(expected)
    assert made == expected
    assert runtime_handler_of(config.pod, NODE) == ""


@pytest.mark.parametrize(
    ("pod", "name"), [(pod, name) for pod in PODS for name in containers_sent(pod)], ids=lambda name: str(name)
)
def test_the_request_of_a_container_equals_the_kubelets(pod: str, name: str) -> None:
    (_, configs), _ = simulate(engine_configs(pod))
    sent = containers_sent(pod)[name]
    config = replace(with_sub_paths(configs[name]), image=sent["image"]["image"])
    config = replace(config, env=dict(sorted(config.env.items())))
    made = container_message(config, NODE, files_of(sent))
    assert made.image.user_specified_image == config.container.image
    made.image.user_specified_image = ""
    assert shown(made) == shown(comparable(sent))
    assert made == comparable(sent)


def test_every_recorded_container_is_compared() -> None:
    compared = sum(len(containers_sent(pod)) for pod in PODS)
    assert (len(recorded()["sandboxes"]), len(recorded()["containers"])) == (len(PODS), compared)
