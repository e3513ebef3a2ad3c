"""Compare statuses and events with recordings of the kubelet (`golden/`).

`Plain` normalizes both the recording and our pod. It drops or replaces only values that depend on the machine, the time
or the runtime:

| what                          | becomes            | why                                                      |
|-------------------------------|--------------------|----------------------------------------------------------|
| a container's id              | `container 1`, ... | numbered by first use, so that equality is compared       |
| an image's digest             | `DIGEST`           | our busybox differs                                      |
| a pod's UID and namespace     | `namespace(UID)`   | in texts; the recorded pods had a namespace of their own |
| the node's name               | `NODE`             | static pods are named after it                           |
| a time                        | `TIME`             | but not the epoch, which means "never"                   |
| duration of a back-off        | `DURATION`         | it doubles with each retry, and ours starts shorter      |
| an address                    | `ADDRESS`          | including failed DNS lookups of a registry               |
| the service account's volume  | nothing            | an API server adds it, but there is none here            |
| a pod's memory limit of 8 EiB | nothing            | cgroup v1 has it for "none", and the kubelet shows it    |

On CRI-O and on processes, these as well:

| what                          | becomes            | why                                                      |
|-------------------------------|--------------------|----------------------------------------------------------|
| an image's id                 | `image id`         | only its presence is compared                            |
| messages of the runtime       | `RUNTIME`          | wherever they are quoted, also in events                 |
| a container's `user`          | nothing            | only some runtimes report it; the recorded one did not   |

On processes, these as well:

| what                          | becomes            | why                                                      |
|-------------------------------|--------------------|----------------------------------------------------------|
| the busybox image             | `host`             | the process runtime runs the host's own files            |
| a port                        | `PORT`             | pods have the host's network, where a port must be free  |

Events are compared as a set. Their counts depend on the duration of the recording, so only a count of 1 is compared.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

GOLDEN = Path(__file__).parent / "golden"
RECORDED_NODE = "base-node"
RECORDED_IMAGE = "docker.io/library/busybox:latest"
HOST_IMAGE = "host"

SETTLED = (
    *("running", "succeeded", "failed", "onfailure", "crashloop", "guaranteed", "oomkilled", "notready", "hostnet"),
    *("imagepullbackoff", "errneverpull", "invalidimagename", "createconfigerror", "missingvolume"),
    *("init-sidecar", "init-fail", "init-waiting", "activedeadline"),
)
"""The situations with a stable status."""

SERVICE_ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
NEVER = "1970-01-01T00:00:00Z"
NO_LIMIT = "9007199254740988Ki"  # shown only after the kubelet has read the cgroup

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_ADDRESS = re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b")
_PORT = re.compile(r"\bADDRESS:\d+\b")
_LOOKUP = re.compile(r"\blookup (\S+) on [^\n]*")
_HELD = re.compile(r"^back-off [0-9hms.]+ restarting")
_CONTAINER_ID = re.compile(r"(containerd|cri-o)://[0-9a-f]{64}")
_DIGEST = re.compile(r"\bsha256:[0-9a-f]{64}\b")
_PULL_FAILED = re.compile(r'"[^"]*": ErrImagePull: (.*)', re.DOTALL)

Json = Any
EventKey = tuple[str, str, str, str, str]  # type, reason, message, the container's field path, the reporter


@dataclass
class Plain:
    """The values of one side and their replacements."""

    uid: str
    namespace: str
    node: str
    real: bool  # CRI containers, not processes
    alike: bool  # containerd, as in the recording
    runtime_messages: frozenset[str] = frozenset()
    containers: dict[str, str] = field(default_factory=dict)

    def status(self, wire: Mapping[str, Json]) -> Json:
        """Return a normalized status of a pod."""
        return self._walk("", wire)

    def text(self, text: str) -> str:
        """Return a normalized text, message or name."""
        if not self.alike:
            for messages in sorted(self.runtime_messages, key=len, reverse=True):
                text = text.replace(messages, "RUNTIME")
        if not self.real:
            text = text.replace(RECORDED_IMAGE, HOST_IMAGE)
        text = text.replace(f"{self.namespace}({self.uid})", "namespace(UID)").replace(self.uid, "UID")
        text = re.sub(rf"\b{re.escape(self.node)}\b", "NODE", text)
        text = text if text == NEVER else _TIME.sub("TIME", text)
        text = _ADDRESS.sub("ADDRESS", text)
        text = _LOOKUP.sub(r"lookup \1 failed", text) if self.real else _PORT.sub("ADDRESS:PORT", text)
        return _HELD.sub("back-off DURATION restarting", text)

    def _walk(self, name: str, value: Json) -> Json:
        match name, value:
            case "containerID", str() if not self.real or _CONTAINER_ID.fullmatch(value):
                return self.containers.setdefault(value, f"container {len(self.containers) + 1}")
            case "imageID", str():
                if not self.alike:
                    return "image id" if value else ""
                return _DIGEST.sub("DIGEST", value)
            case "volumeMounts", list():
                value = [each for each in value if each["mountPath"] != SERVICE_ACCOUNT_PATH]
        match value:
            case dict():
                walked = {key: self._walk(key, each) for key, each in sorted(value.items())}
                return {key: each for key, each in walked.items() if not self._is_nothing(key, each)}
            case list():
                return [self._walk("", each) for each in value]
            case str():
                return self.text(value)
        return value

    def _is_nothing(self, name: str, value: Json) -> bool:
        match name:
            case "user":
                return not self.alike
            case "volumeMounts":
                return not value
            case "limits":
                return bool(value == {"memory": NO_LIMIT})
        return False


def plain_of(pod: Mapping[str, Json], node: str, messages: frozenset[str], *, real: bool, alike: bool) -> Plain:
    """Return the values of one side. `real`: compared with containers. `alike`: compared with containerd."""
    meta = pod["metadata"]
    return Plain(
        uid=meta["uid"], namespace=meta["namespace"], node=node, real=real, alike=alike, runtime_messages=messages
    )


def runtime_messages(status: Mapping[str, Json]) -> frozenset[str]:
    """Return the messages in a status that come from the runtime."""
    return frozenset(filter(None, _messages_of_runtime(status)))


def _messages_of_runtime(status: Mapping[str, Json]) -> Iterator[str]:
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        for each in (*container["state"].values(), *container["lastState"].values()):
            reason, message = each.get("reason"), each.get("message", "")
            if reason in ("RunContainerError", "StartError", "ErrImagePull"):
                yield message
            elif reason == "ImagePullBackOff" and (found := _PULL_FAILED.search(message)):
                yield found[1]


def held_back(status: Mapping[str, Json], pod: str) -> Json:
    """Return the status after the exited or failed container has entered its backoff."""
    container = status["containerStatuses"][0]
    message = f"back-off DURATION restarting failed container={container['name']} pod={pod}_namespace(UID)"
    held = container | {
        "lastState": container["state"] if "terminated" in container["state"] else container["lastState"],
        "state": {"waiting": {"message": message, "reason": "CrashLoopBackOff"}},
    }
    return {**status, "containerStatuses": [held]}


def plain_metadata(pod: Mapping[str, Json], node: str) -> Json:
    """Return the metadata of a mirror pod that the kubelet sets: names, labels, owners, annotation keys."""
    meta = pod["metadata"]
    return {
        "name": meta["name"].replace(node, "NODE"),
        "labels": meta["labels"],
        "annotations": sorted(meta["annotations"]),
        "ownerReferences": [each | {"name": "NODE", "uid": "UID"} for each in meta["ownerReferences"]],
        "source": meta["annotations"]["kubernetes.io/config.source"],
    }


def event_counts(events: Iterable[Mapping[str, Json]], plain: Plain) -> dict[EventKey, int]:
    """Return the events of a pod with their counts (the maximum, if the pod existed several times)."""
    counts: dict[EventKey, int] = {}
    for event in events:
        about = event["involvedObject"]
        message = replace(plain, uid=about["uid"], namespace=about["namespace"]).text(event["message"])
        source = event["source"]
        reporter = (
            f"{source['component']} on {source['host']}, {event['reportingComponent']} on {event['reportingInstance']}"
        )
        key = (event["type"], event["reason"], message, about.get("fieldPath", ""), plain.text(reporter))
        counts[key] = max(counts.get(key, 0), event["count"])
    return counts


def same_events(ours: Mapping[EventKey, int], theirs: Mapping[EventKey, int]) -> bool:
    """Return whether both have the same events, and a count of 1 where the recording has 1."""
    return ours.keys() == theirs.keys() and all(ours[key] == 1 for key, count in theirs.items() if count == 1)


# The recordings.


@cache
def _documents(path: str) -> list[Json]:
    return list(yaml.load_all((GOLDEN / path).read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def recorded(name: str) -> dict[str, Json]:
    """Return a recorded pod."""
    found: dict[str, Json] = _documents(f"{name}.yaml")[0]
    return found


def recorded_events(pod: str) -> list[dict[str, Json]]:
    """Return the recorded events of a pod."""
    every = [*_documents("events.yaml")[0]["items"], *_documents("events-default.yaml")[0]["items"]]
    return [event for event in every if event["involvedObject"]["name"] == pod]


def manifest(name: str, image: str) -> dict[str, Json]:
    """Return the recorded manifest of a pod, with our image."""
    documents = (*_documents("in/pods.yaml"), *_documents("in/static.yaml"))
    found: dict[str, Json] = deepcopy(next(each for each in documents if each["metadata"]["name"] == name))
    for container in (*found["spec"].get("initContainers", ()), *found["spec"]["containers"]):
        if container["image"] == RECORDED_IMAGE:
            container["image"] = image
    return found
