"""What the reference kubelet showed (`golden/`), and when a status or an event of ours says the same.

A recording and a pod of ours go through one `plain`; what is equal then says the same. It leaves out or replaces only
what another machine, another moment or another runtime must say differently:

| what                          | becomes            | why                                                      |
|-------------------------------|--------------------|----------------------------------------------------------|
| a container's id              | `container 1`, ... | numbered as met: which are the same is compared          |
| an image's digest             | `DIGEST`           | our busybox is another one                               |
| a pod's UID and namespace     | `namespace(UID)`   | in texts; the recorded pods had a namespace of their own |
| the node's name               | `NODE`             | static pods are named after it                           |
| a time                        | `TIME`             | but not the epoch, which means "never"                   |
| how long a back-off holds     | `DURATION`         | it doubles with each try, from a beginning that we hurry |
| an address                    | `ADDRESS`          | and who could not look a registry up, and why            |
| the service account's volume  | nothing            | an API server adds it, and here is none                  |
| a pod's memory limit of 8 EiB | nothing            | so cgroup v1 spells "none", and the reference repeats it |

On CRI-O and on processes, these as well:

| what                          | becomes            | why                                                      |
|-------------------------------|--------------------|----------------------------------------------------------|
| an image's id                 | `image id`         | whether there is one is compared                         |
| the words of the runtime      | `RUNTIME`          | wherever they are quoted, also in events                 |
| a container's `user`          | nothing            | runtimes tell it or not; the recorded one did not        |

On processes, these as well:

| what                          | becomes            | why                                                      |
|-------------------------------|--------------------|----------------------------------------------------------|
| the busybox image             | `host`             | the process runtime runs the host's own files            |
| a port                        | `PORT`             | pods have the host's network, where a port must be free  |

Events are compared as a set, without how often each was told: that only says how long somebody watched. But what was
told once is to be told once.
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
"""The situations that last: whoever looks sees them."""

SERVICE_ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
NEVER = "1970-01-01T00:00:00Z"
NO_LIMIT = "9007199254740988Ki"  # whether a pod shows it is a matter of luck: not before the cgroup was read once

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_ADDRESS = re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b")
_PORT = re.compile(r"\bADDRESS:\d+\b")
_LOOKUP = re.compile(r"\blookup (\S+) on [^\n]*")
_HELD = re.compile(r"^back-off [0-9hms.]+ restarting")
_CONTAINER_ID = re.compile(r"(containerd|cri-o)://[0-9a-f]{64}")
_DIGEST = re.compile(r"\bsha256:[0-9a-f]{64}\b")
_PULL_FAILED = re.compile(r'"[^"]*": ErrImagePull: (.*)', re.DOTALL)

Json = Any
Told = tuple[str, str, str, str, str]  # type, reason, message, the container's path, who says so


@dataclass
class Plain:
    """One side's own words, and the plain ones that take their places."""

    uid: str
    namespace: str
    node: str
    real: bool  # the containers are; else they are processes
    alike: bool  # they are containerd's, as the recorded ones
    runtime_words: frozenset[str] = frozenset()
    containers: dict[str, str] = field(default_factory=dict)

    def status(self, wire: Mapping[str, Json]) -> Json:
        """A pod's status."""
        return self._walk("", wire)

    def text(self, text: str) -> str:
        """Any text, message or name."""
        if not self.alike:
            for words in sorted(self.runtime_words, key=len, reverse=True):
                text = text.replace(words, "RUNTIME")
        if not self.real:
            text = text.replace(RECORDED_IMAGE, HOST_IMAGE)
        text = text.replace(f"{self.namespace}({self.uid})", "namespace(UID)").replace(self.uid, "UID")
        text = re.sub(rf"\b{re.escape(self.node)}\b", "NODE", text)
        text = text if text == NEVER else _TIME.sub("TIME", text)
        text = _ADDRESS.sub("ADDRESS", text)
        text = _LOOKUP.sub(r"lookup \1 in vain", text) if self.real else _PORT.sub("ADDRESS:PORT", text)
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
        """Whether a field is left out."""
        match name:
            case "user":
                return not self.alike
            case "volumeMounts":
                return not value
            case "limits":
                return bool(value == {"memory": NO_LIMIT})
        return False


def plain_of(pod: Mapping[str, Json], node: str, words: frozenset[str], *, real: bool, alike: bool) -> Plain:
    """What one side calls things; `real`: it is compared with containers, `alike`: with containerd's."""
    meta = pod["metadata"]
    return Plain(uid=meta["uid"], namespace=meta["namespace"], node=node, real=real, alike=alike, runtime_words=words)


def runtime_words(status: Mapping[str, Json]) -> frozenset[str]:
    """The runtime's words in a status: what stands where only the runtime speaks."""
    return frozenset(filter(None, _spoken(status)))


def _spoken(status: Mapping[str, Json]) -> Iterator[str]:
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        for each in (*container["state"].values(), *container["lastState"].values()):
            reason, message = each.get("reason"), each.get("message", "")
            if reason in ("RunContainerError", "StartError", "ErrImagePull"):
                yield message
            elif reason == "ImagePullBackOff" and (found := _PULL_FAILED.search(message)):
                yield found[1]


def held_back(status: Mapping[str, Json], pod: str) -> Json:
    """A status of a pod whose container ended or would not start, once that container is held back."""
    container = status["containerStatuses"][0]
    message = f"back-off DURATION restarting failed container={container['name']} pod={pod}_namespace(UID)"
    held = container | {
        "lastState": container["state"] if "terminated" in container["state"] else container["lastState"],
        "state": {"waiting": {"message": message, "reason": "CrashLoopBackOff"}},
    }
    return {**status, "containerStatuses": [held]}


def plain_metadata(pod: Mapping[str, Json], node: str) -> Json:
    """What the kubelet writes of a mirror's metadata: names, labels, owners, and which annotations there are."""
    meta = pod["metadata"]
    return {
        "name": meta["name"].replace(node, "NODE"),
        "labels": meta["labels"],
        "annotations": sorted(meta["annotations"]),
        "ownerReferences": [each | {"name": "NODE", "uid": "UID"} for each in meta["ownerReferences"]],
        "source": meta["annotations"]["kubernetes.io/config.source"],
    }


def told(events: Iterable[Mapping[str, Json]], plain: Plain) -> dict[Told, int]:
    """What events say of a pod, and how often (the most, if the pod was there several times)."""
    said: dict[Told, int] = {}
    for event in events:
        about = event["involvedObject"]
        message = replace(plain, uid=about["uid"], namespace=about["namespace"]).text(event["message"])
        source = event["source"]
        who = (
            f"{source['component']} on {source['host']}, {event['reportingComponent']} on {event['reportingInstance']}"
        )
        key = (event["type"], event["reason"], message, about.get("fieldPath", ""), plain.text(who))
        said[key] = max(said.get(key, 0), event["count"])
    return said


def says_the_same(ours: Mapping[Told, int], theirs: Mapping[Told, int]) -> bool:
    """Whether the same was told, and once what was told once."""
    return ours.keys() == theirs.keys() and all(ours[key] == 1 for key, count in theirs.items() if count == 1)


# The recordings.


@cache
def _documents(path: str) -> list[Json]:
    return list(yaml.load_all((GOLDEN / path).read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def recorded(name: str) -> dict[str, Json]:
    """A pod as the reference showed it."""
    found: dict[str, Json] = _documents(f"{name}.yaml")[0]
    return found


def recorded_events(pod: str) -> list[dict[str, Json]]:
    """What the reference told of a pod."""
    every = [*_documents("events.yaml")[0]["items"], *_documents("events-default.yaml")[0]["items"]]
    return [event for event in every if event["involvedObject"]["name"] == pod]


def manifest(name: str, image: str) -> dict[str, Json]:
    """A pod as it was created, with what there is for its image."""
    documents = (*_documents("in/pods.yaml"), *_documents("in/static.yaml"))
    found: dict[str, Json] = deepcopy(next(each for each in documents if each["metadata"]["name"] == name))
    for container in (*found["spec"].get("initContainers", ()), *found["spec"]["containers"]):
        if container["image"] == RECORDED_IMAGE:
            container["image"] = image
    return found
