"""Pods of the torture tools: manifests, and the facts that must hold for each pod.

Each container appends a line to its file when it starts, and its command line names the pod. The facts are the maximum
number of starts, the exit code, and whether the container runs forever.

    starts/<pod>.<generation>.<container>     one line per start, written by the container itself
    starts/<pod>.<generation>.end             one line per completion of a job

So the checks do not depend on the records of the agent or the runtime.
"""

import os
import random
import socket
import sys
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

Json = dict[str, Any]

KILLED = 137
CRASH_CODE = 3
END = "end"
PYTHON = os.path.realpath(sys.executable)
HOST = "host"

_SERVER = """
import os, signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
with open("/starts/" + ".".join(sys.argv[-2:]), "a") as starts: starts.write("start\\n")
server = socket.create_server(("127.0.0.1", PORT))
while True:
    asking, _ = server.accept()
    with asking:
        asking.settimeout(1)
        try: asking.recv(4096); asking.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n")
        except OSError: pass
"""


class Kind(Enum):
    """The behaviour of a pod."""

    SERVER = "server"  # http and tcp probes
    QUIET = "quiet"  # exec probes
    PAIR = "pair"  # an init container, a sidecar and an app
    JOB = "job"  # ends once
    LOOP = "loop"  # exits repeatedly


@dataclass(slots=True)
class TorturePod:
    """A pod, its observed state and the actions on it."""

    kind: Kind
    name: str
    mark: str  # identifies this run on the command line of every container
    image: str = HOST
    code: int = 0  # exit code of a job
    generation: int = 0
    strikes: Counter[str] = field(default_factory=Counter)  # by container: number of kills
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)  # by container: (PID, start time)
    ready_since: str = ""  # time at which it became Ready; it must stay Ready since then
    ended: bool = False  # the final status of the job was observed
    restarts: int = 0  # of a loop: the highest reported restart count
    unlived: Counter[str] = field(default_factory=Counter)  # by container: created, not started
    undone: Counter[str] = field(default_factory=Counter)  # by container: killed by a restarted runtime
    settled_at: int = 0  # number of kills at the last successful check
    manifest: Json = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Return a name for the pod and its manifest."""
        return f"{self.name}.{self.generation}"

    @property
    def goes_on(self) -> bool:
        """Return whether its containers run forever."""
        return self.kind in (Kind.SERVER, Kind.QUIET, Kind.PAIR)

    @property
    def lasting(self) -> tuple[str, ...]:
        """Return the containers that run forever."""
        return {Kind.PAIR: ("side", "app"), Kind.SERVER: ("app",), Kind.QUIET: ("app",)}.get(self.kind, ())

    def begin(self, chance: random.Random, starts: Path) -> None:
        """Start another generation with a new manifest, and reset the observed state."""
        self.generation += 1
        self.strikes.clear()
        self.seen.clear()
        self.unlived.clear()
        self.undone.clear()
        self.ready_since, self.ended, self.restarts = "", False, 0
        self.code = chance.choice((0, 0, 1, 42))
        self.manifest = _manifest(self, chance, starts)

    def most_starts(self, container: str) -> int:
        """Return the maximum number of starts of a container so far."""
        if self.kind is Kind.LOOP:
            return sys.maxsize
        return 1 + self.strikes[container]


def _manifest(pod: TorturePod, chance: random.Random, starts: Path) -> Json:
    spec: Json = {
        "terminationGracePeriodSeconds": 5,
        "volumes": [
            {"name": "starts", "hostPath": {"path": str(starts), "type": "Directory"}},
            {"name": "scratch", "emptyDir": {}},
        ],
    }
    match pod.kind:
        case Kind.SERVER:
            spec["containers"] = [_server(pod)]
        case Kind.QUIET:
            probe = {"exec": {"command": ["test", "-d", "/scratch"]}, "periodSeconds": 1, "timeoutSeconds": 10}
            spec["containers"] = [{**_shell(pod, "app", _NAP), "readinessProbe": probe, "livenessProbe": probe}]
        case Kind.PAIR:
            side = {**_shell(pod, "side", _NAP), "restartPolicy": "Always"}
            spec["initContainers"] = [_shell(pod, "init", "sleep 0.1"), side]
            spec["containers"] = [_shell(pod, "app", _NAP)]
        case Kind.JOB:
            spec["restartPolicy"] = "Never"
            nap = chance.choice((0.0, 0.1, 0.5, 1.0, 2.0))
            end = f"echo end >> /starts/{pod.version}.{END}; exit {pod.code}"
            spec["containers"] = [_shell(pod, "app", f"sleep {nap} & wait; {end}")]
        case Kind.LOOP:
            spec["containers"] = [_shell(pod, "app", f"sleep 0.2; exit {CRASH_CODE}")]
    annotations = {"podkeeper.io/restart-backoff-initial": "1s", "podkeeper.io/restart-backoff-maximum": "1s"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod.name, "annotations": annotations},
        "spec": spec,
    }


_NAP = "sleep 100000 & wait"


def _shell(pod: TorturePod, container: str, script: str) -> Json:
    begin = f"trap 'exit 0' TERM; echo start >> /starts/{pod.version}.{container}; "
    return _container(pod, container, ["sh", "-c", begin + script])


def _server(pod: TorturePod) -> Json:
    return _host_server(pod) if pod.image == HOST else _contained_server(pod)


def _contained_server(pod: TorturePod) -> Json:
    """Return a server of the busybox image in its own network namespace."""
    begin = "echo ok > /scratch/index.html; httpd -p 8080 -h /scratch; "
    readiness = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 10}
    alive = {"tcpSocket": {"port": 8080}, "periodSeconds": 1, "timeoutSeconds": 10}
    return _probed(_shell(pod, "app", begin + _NAP), readiness, alive)


def _host_server(pod: TorturePod) -> Json:
    port = _free_port()
    readiness = {"httpGet": {"path": "/", "port": port, "host": "127.0.0.1"}, "periodSeconds": 1, "timeoutSeconds": 10}
    alive = {"tcpSocket": {"port": port, "host": "127.0.0.1"}, "periodSeconds": 1, "timeoutSeconds": 10}
    script = _SERVER.replace("PORT", str(port))
    return _probed(_container(pod, "app", [PYTHON, "-I", "-S", "-c", script]), readiness, alive)


def _probed(made: Json, readiness: Json, alive: Json) -> Json:
    return {
        **made,
        "readinessProbe": readiness,
        "livenessProbe": alive,
        "startupProbe": {**alive, "failureThreshold": 60},
    }


def _container(pod: TorturePod, name: str, command: list[str]) -> Json:
    return {
        "name": name,
        "image": pod.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [*command, pod.mark, pod.version, name],
        "volumeMounts": [{"name": "starts", "mountPath": "/starts"}, {"name": "scratch", "mountPath": "/scratch"}],
    }


def _free_port() -> int:
    with socket.socket() as trying:
        trying.bind(("127.0.0.1", 0))
        return int(trying.getsockname()[1])
