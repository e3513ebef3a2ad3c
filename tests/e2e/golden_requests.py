"""Recorded CRI requests of the kubelet (`tests/runtimes/cri/golden`) and ours, in a comparable form.

Both are JSON, from the configuration in containerd's verbose status of a sandbox or container. `Plain` replaces values
that depend on the machine or the time:

| what                                                  | becomes         |
|-------------------------------------------------------|-----------------|
| a pod's UID                                           | `UID`           |
| paths of the files, logs and cgroups of pods          | `PODS`, `LOGS`, `CGROUPS` |
| the file of the termination message                   | `WORDS`         |
| an image's digest                                     | `sha256:DIGEST` |
| when a pod was first seen                             | `TIME`          |
| variables of services (`KUBERNETES_...`)              | nothing: we set none |
| sizes of huge pages that this machine does not have   | nothing         |

Variables are sorted, because their order in Go is random.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

from podkeeper.model.k8s.core import Pod
from podkeeper.runtimes.cri.host_facts import machine_facts
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import Transport

GOLDEN = Path(__file__).parent.parent / "runtimes" / "cri" / "golden"
NODE = "base-node"
STATIC = f"st-{NODE}"
FROM_API = ("full", "hostish", "plain")
RESOLVER_FILE = "nameserver 10.255.255.53\n"
SETTINGS = {"k": "v", "file.txt": "hello"}
"""The config map `cm1`, which one of the pods uses."""

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_DIGEST = re.compile(r"\bsha256:[0-9a-f]{64}\b")
_WORDS = re.compile(r"(/containers/[^/]+/)[0-9a-f]{8}$")

Json = Any


@dataclass(frozen=True, slots=True)
class Plain:
    """The UID and the paths of one side."""

    uid: str
    pods: str
    logs: str
    cgroups: str

    def config(self, config: Mapping[str, Json]) -> Json:
        """Return a configuration with replaced values."""
        kept = dict(config)
        if variables := kept.pop("envs", None):
            own = [each for each in variables if not each["key"].startswith("KUBERNETES_")]
            kept |= {"envs": sorted(own, key=lambda each: str(each["key"]))} if own else {}
        return self._walk(kept)

    def _walk(self, value: Json) -> Json:
        match value:
            case {"hugepage_limits": list(limits), **rest}:
                ours = [each for each in limits if each["page_size"] in _hugepage_sizes()]
                return {**self._walk(rest), **({"hugepage_limits": ours} if ours else {})}
            case dict():
                return {key: self._walk(each) for key, each in value.items()}
            case list():
                return [self._walk(each) for each in value]
            case str():
                return self._text(value)
        return value

    def _text(self, text: str) -> str:
        for place, word in ((self.pods, "PODS"), (self.logs, "LOGS"), (self.cgroups, "CGROUPS")):
            if text == place or text.startswith(f"{place}/"):
                text = word + text.removeprefix(place)
        text = text.replace(self.uid, "UID")
        return _DIGEST.sub("sha256:DIGEST", _TIME.sub("TIME", _WORDS.sub(r"\1WORDS", text)))


@cache
def _hugepage_sizes() -> frozenset[str]:
    return frozenset(machine_facts("", "").hugepage_sizes)


def recorded_plain(uid: str) -> Plain:
    """Return the paths of the recording."""
    return Plain(uid=uid, pods="/var/lib/kubelet/pods", logs="/var/log/pods", cgroups="/kubepods")


# The recordings.


@cache
def _objects() -> Mapping[str, Json]:
    read: Mapping[str, Json] = json.loads((GOLDEN / "objects.json").read_text())
    return read


def recorded_sandbox(pod: str) -> dict[str, Json]:
    """Return the recorded sandbox of a pod: `config_sent`, `list`, `status`."""
    found: dict[str, Json] = next(
        each for each in _objects()["sandboxes"] if each["config_sent"]["metadata"]["name"] == pod
    )
    return found


def recorded_containers(pod: str) -> dict[str, dict[str, Json]]:
    """Return the recorded containers of a pod by name."""
    every = _objects()["containers"]
    return {
        each["config_sent"]["metadata"]["name"]: each
        for each in every
        if each["config_sent"]["labels"]["io.kubernetes.pod.name"] == pod
    }


def pod_text(name: str) -> str:
    """Return a recorded pod of the API as JSON, without the service account token, which no server issues here."""
    pod = yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())
    for volume in pod["spec"]["volumes"]:
        if "projected" in volume:
            sources = volume["projected"]["sources"]
            volume["projected"]["sources"] = [each for each in sources if "downwardAPI" in each]
    return json.dumps(pod)


def pod_of(name: str, text: str = "") -> Pod:
    return msgspec.json.decode((text or pod_text(name)).encode(), type=Pod)


def static_text() -> str:
    return (GOLDEN / "static.yaml").read_text()


# Configurations that the runtime reports.


async def sandbox_config(transport: Transport, sandbox_id: str) -> Json:
    """Return the configuration in the verbose status of a sandbox."""
    request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
    method = "/runtime.v1.RuntimeService/PodSandboxStatus"
    answer = await transport.unary(method, request, cri.PodSandboxStatusResponse, 10)
    return json.loads(answer.info["info"])["config"]


async def container_config(transport: Transport, container_id: str) -> Json:
    """Return the configuration in the verbose status of a container."""
    request = cri.ContainerStatusRequest(container_id=container_id, verbose=True)
    method = "/runtime.v1.RuntimeService/ContainerStatus"
    answer = await transport.unary(method, request, cri.ContainerStatusResponse, 10)
    return json.loads(answer.info["info"])["config"]


def differences(one: Json, other: Json, path: str = "") -> Iterator[str]:
    """Yield the differences of two configurations with their paths."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differences(one.get(key), other.get(key), f"{path}.{key}")
    elif one != other:
        yield f"{path}: recorded {one!r}, here {other!r}"
