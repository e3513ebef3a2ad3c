"""Podkeeper beside the kubelet on one machine: `python -m bench.beside_kubelet [--json] [--quick]`.

Requires everything that `bench.cri` requires, and `kubelet` (1.36) on the path or in KUBEBUILDER_ASSETS. A missing
component is reported. Both agents run alternately, without an API server, on one containerd, with the same manifests
and configuration. All times are measured in the same way for both: in the runtime's lists.

    start    start the agent with a directory of pods ---> all containers run ---> it reports all pods as Ready
    add      add one manifest                         ---> its container runs
    crash    kill the process of a container          ---> it runs again
    remove   remove a manifest                        ---> its sandbox is stopped
    rest     no change for a while                    ---> CPU and memory of the agent
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.agent_usage import cpu_seconds, kib_of, message_of, processes
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.requests.labels import POD_NAME
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.e2e.kubelet_node import NODE, HandoverNode, handover_node, kubelet_program
from tests.runtimes.cri.containerd import BUSYBOX_IMAGE, Containerd, missing, shared_instance

GIVE_UP_SECONDS = 180.0
LOOK_SECONDS = 0.02
FIRST_NAP = 400_000

Figures = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSize:
    """The extent of a measurement."""

    pods: int = 100
    turns: int = 2  # per agent
    changes: int = 10  # pods that are added, crash and are removed in a turn
    settle_seconds: float = 15.0
    rest_seconds: float = 60.0


QUICK = BenchSize(pods=3, turns=1, changes=1, settle_seconds=0.0, rest_seconds=5.0)


class Runtime:
    """The runtime's lists, read by the benchmark and not by one of the agents."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._loop = asyncio.new_event_loop()
        self._transport = GrpcTransport(socket)

    def running(self) -> dict[str, str]:
        """Return the running container of each pod."""
        listed = self._loop.run_until_complete(CriCalls(self._transport).containers())
        return {_pod_of(each.labels): each.id for each in listed if each.state == cri.CONTAINER_RUNNING}

    def ready_sandboxes(self) -> set[str]:
        """Return the pods with a ready sandbox."""
        listed = self._loop.run_until_complete(CriCalls(self._transport).sandboxes())
        return {_pod_of(each.labels) for each in listed if each.state == cri.SANDBOX_READY}

    def close(self) -> None:
        self._loop.run_until_complete(self._transport.close())
        self._loop.close()


def _pod_of(labels: Mapping[str, str]) -> str:
    return labels[POD_NAME].removesuffix(f"-{NODE}")


def seconds_until(holds: Callable[[], bool], pause: float = LOOK_SECONDS) -> float:
    """Return the seconds until a condition holds."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > GIVE_UP_SECONDS:
            raise TimeoutError(f"not within {GIVE_UP_SECONDS:g} s")
        time.sleep(pause)
    return time.monotonic() - begun


class Turn:
    """One run of one agent, with its figures."""

    def __init__(self, node: HandoverNode, runtime: Runtime, wanted: BenchSize) -> None:
        self._node = node
        self._runtime = runtime
        self._wanted = wanted
        self._seen = defaultdict[str, list[float]](list)

    def figures(self, start: Callable[[], None]) -> Figures:
        for number in range(self._wanted.pods):
            self._write(number)
        start()
        pid = self._node.agent_pid
        all_run = seconds_until(lambda: len(self._runtime.running()) >= self._wanted.pods)
        all_ready = all_run + seconds_until(lambda: self._ready() >= self._wanted.pods, 0.1)
        start_cpu = cpu_seconds(pid)
        for change in range(self._wanted.changes):
            self._change(self._wanted.pods + change)
        time.sleep(self._wanted.settle_seconds)
        cpu, begun = cpu_seconds(pid), time.monotonic()
        time.sleep(self._wanted.rest_seconds)
        rest_cpu = (cpu_seconds(pid) - cpu) / (time.monotonic() - begun)
        return {
            "start_all_running_s": all_run,
            "start_all_ready_s": all_ready,
            "start_cpu_s": start_cpu,
            **{name: statistics.median(values) * 1000 for name, values in self._seen.items()},
            "rest_cpu_percent": rest_cpu * 100,
            "rss_mib": kib_of(pid, "status", "VmRSS:") / 1024,
        }

    def _change(self, number: int) -> None:
        """Add a pod, kill its container and remove the pod."""
        name = f"pod-{number}"
        self._write(number)
        self._seen["add_ms"].append(seconds_until(lambda: name in self._runtime.running()))
        before = self._runtime.running()[name]
        seconds_until(lambda: self._ready() > self._wanted.pods, 0.1)  # the agent has processed its change
        os.kill(_asleep(number), signal.SIGKILL)
        self._seen["crash_ms"].append(seconds_until(lambda: self._runtime.running().get(name, before) != before))
        seconds_until(lambda: self._ready() > self._wanted.pods, 0.1)
        self._node.remove_manifest(name)
        self._seen["remove_ms"].append(seconds_until(lambda: name not in self._runtime.ready_sandboxes()))
        seconds_until(lambda: len(self._node.pods()) == self._wanted.pods, 0.1)

    def _write(self, number: int) -> None:
        script = f"trap 'exit 0' TERM; sleep {FIRST_NAP + number} & wait"
        app = {
            "name": "app",
            "image": BUSYBOX_IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script],
        }
        self._node.write(f"pod-{number}", containers=[app], terminationGracePeriodSeconds=5)

    def _ready(self) -> int:
        """Return the number of pods that the agent reports as Ready."""
        conditions = (each for pod in self._node.pods().values() for each in pod["status"].get("conditions", ()))
        return sum(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _asleep(number: int) -> int:
    """Return the sleeping process of a pod."""
    words = ["sleep", str(FIRST_NAP + number)]
    return next(pid for pid in processes() if message_of(pid) == words)


def measured(containerd: Containerd, wanted: BenchSize) -> Figures:
    """Measure both agents alternately. Return medians and the ratios podkeeper / kubelet."""
    seen: dict[str, dict[str, list[float]]] = {"kubelet": defaultdict(list), "podkeeper": defaultdict(list)}
    for turn in range(wanted.turns):
        for agent in ("kubelet", "podkeeper"):
            _log(f"turn {turn + 1} of {wanted.turns}: {agent} with {wanted.pods} pods ...")
            runtime = Runtime(containerd.socket)
            try:
                with handover_node(containerd) as node:
                    start = node.start_kubelet if agent == "kubelet" else node.start_podkeeper
                    figures = Turn(node, runtime, wanted).figures(start)
            finally:
                runtime.close()
            for name, value in figures.items():
                seen[agent][name].append(value)
    result: Figures = {}
    for name in seen["kubelet"]:
        theirs, ours = (statistics.median(seen[agent][name]) for agent in ("kubelet", "podkeeper"))
        result |= {f"kubelet_{name}": theirs, f"podkeeper_{name}": ours, f"{name}_ratio": ours / theirs}
    return result


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.beside_kubelet",
        description="Measure podkeeper and the kubelet alternately on one containerd.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="few pods, one turn [about half a minute]")
    options = parser.parse_args(arguments)
    if (reason := missing()) is not None:
        print(f"cannot measure real containers: {reason}", file=sys.stderr)
        return 1
    if kubelet_program() is None:
        print("cannot find the kubelet: put `kubelet` (1.36) on the path or in KUBEBUILDER_ASSETS", file=sys.stderr)
        return 1
    with shared_instance() as containerd:
        figures = measured(containerd, QUICK if options.quick else BenchSize())
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))
        return 0
    print(f"{'':24} {'kubelet':>10} {'podkeeper':>10} {'ratio':>7}")
    for name in (each.removesuffix("_ratio") for each in figures if each.endswith("_ratio")):
        theirs, ours, ratio = figures[f"kubelet_{name}"], figures[f"podkeeper_{name}"], figures[f"{name}_ratio"]
        print(f"{name:24} {theirs:10.2f} {ours:10.2f} {ratio:7.2f}")
    return 0


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
