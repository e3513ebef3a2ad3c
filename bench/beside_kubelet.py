"""Podkeeper beside the reference kubelet, on the same machine: `python -m bench.beside_kubelet [--json] [--quick]`.

It needs what `bench.cri` needs, and the reference's program: `kubelet` (1.36) on the path or in KUBEBUILDER_ASSETS;
what is missing is said. Both run alone, without an API server, on one containerd, from the same folder of manifests and
the same configuration, by turns. Whatever happens is seen in the same way for both: in the runtime's lists.

    start    the agent is started on a folder of pods ---> all containers run ---> it says that all are Ready
    add      one more manifest                        ---> its container runs
    crash    a container's process is killed          ---> it runs again
    remove   a manifest is taken away                 ---> its sandbox is stopped
    rest     nothing happens for a while              ---> what the agent needs for that
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

from bench.watched import cpu_seconds, kib_of, processes, words_of
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.requests.labels import POD_NAME
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.e2e.reference_kubelet import NODE, NodeOfBoth, node_of_both, reference_kubelet
from tests.runtimes.cri.containerd import BUSYBOX_IMAGE, Containerd, borrowed, missing

GIVE_UP_SECONDS = 180.0
LOOK_SECONDS = 0.02
FIRST_NAP = 400_000

Figures = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be measured."""

    pods: int = 100
    turns: int = 2  # of each of the two
    changes: int = 10  # pods that come, crash and go in a turn
    settle_seconds: float = 15.0
    rest_seconds: float = 60.0


QUICK = Wanted(pods=3, turns=1, changes=1, settle_seconds=0.0, rest_seconds=5.0)


class Runtime:
    """What the runtime shows, asked by somebody who is none of the two."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._loop = asyncio.new_event_loop()
        self._transport = GrpcTransport(socket)

    def running(self) -> dict[str, str]:
        """The container that runs of each pod."""
        listed = self._loop.run_until_complete(Calls(self._transport).containers())
        return {_pod_of(each.labels): each.id for each in listed if each.state == cri.CONTAINER_RUNNING}

    def ready_sandboxes(self) -> set[str]:
        """Pods with a sandbox that is ready."""
        listed = self._loop.run_until_complete(Calls(self._transport).sandboxes())
        return {_pod_of(each.labels) for each in listed if each.state == cri.SANDBOX_READY}

    def close(self) -> None:
        """Hang up."""
        self._loop.run_until_complete(self._transport.close())
        self._loop.close()


def _pod_of(labels: Mapping[str, str]) -> str:
    return labels[POD_NAME].removesuffix(f"-{NODE}")


def seconds_until(holds: Callable[[], bool], pause: float = LOOK_SECONDS) -> float:
    """How long it takes from now on until something holds."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > GIVE_UP_SECONDS:
            raise TimeoutError(f"not within {GIVE_UP_SECONDS:g} s")
        time.sleep(pause)
    return time.monotonic() - begun


class Turn:
    """One life of one of the two agents, with all that is measured in it."""

    def __init__(self, node: NodeOfBoth, runtime: Runtime, wanted: Wanted) -> None:
        self._node = node
        self._runtime = runtime
        self._wanted = wanted
        self._seen = defaultdict[str, list[float]](list)

    def figures(self, start: Callable[[], None]) -> Figures:
        """Start the agent, and measure."""
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
        """A pod comes, crashes and goes."""
        name = f"pod-{number}"
        self._write(number)
        self._seen["add_ms"].append(seconds_until(lambda: name in self._runtime.running()))
        before = self._runtime.running()[name]
        seconds_until(lambda: self._ready() > self._wanted.pods, 0.1)  # it knows what it has done
        os.kill(_asleep(number), signal.SIGKILL)
        self._seen["crash_ms"].append(seconds_until(lambda: self._runtime.running().get(name, before) != before))
        seconds_until(lambda: self._ready() > self._wanted.pods, 0.1)
        self._node.unwrite(name)
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
        """How many pods are Ready, as the agent says."""
        conditions = (each for pod in self._node.pods().values() for each in pod["status"].get("conditions", ()))
        return sum(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _asleep(number: int) -> int:
    """The process that sleeps in a pod."""
    words = ["sleep", str(FIRST_NAP + number)]
    return next(pid for pid in processes() if words_of(pid) == words)


def measured(containerd: Containerd, wanted: Wanted) -> Figures:
    """Both by turns; medians, and podkeeper's over the reference's."""
    seen: dict[str, dict[str, list[float]]] = {"kubelet": defaultdict(list), "podkeeper": defaultdict(list)}
    for turn in range(wanted.turns):
        for who in ("kubelet", "podkeeper"):
            _say(f"turn {turn + 1} of {wanted.turns}: {who} with {wanted.pods} pods ...")
            runtime = Runtime(containerd.socket)
            try:
                with node_of_both(containerd) as node:
                    start = node.start_reference if who == "kubelet" else node.start_podkeeper
                    figures = Turn(node, runtime, wanted).figures(start)
            finally:
                runtime.close()
            for name, value in figures.items():
                seen[who][name].append(value)
    result: Figures = {}
    for name in seen["kubelet"]:
        theirs, ours = (statistics.median(seen[who][name]) for who in ("kubelet", "podkeeper"))
        result |= {f"kubelet_{name}": theirs, f"podkeeper_{name}": ours, f"{name}_ratio": ours / theirs}
    return result


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.beside_kubelet", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="a few pods, once: half a minute")
    options = parser.parse_args(arguments)
    if (reason := missing()) is not None:
        print(f"cannot measure real containers: {reason}", file=sys.stderr)
        return 1
    if reference_kubelet() is None:
        print("no reference kubelet: put `kubelet` (1.36) on the path, or in KUBEBUILDER_ASSETS", file=sys.stderr)
        return 1
    with borrowed() as containerd:
        figures = measured(containerd, QUICK if options.quick else Wanted())
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))
        return 0
    print(f"{'':24} {'kubelet':>10} {'podkeeper':>10} {'ratio':>7}")
    for name in (each.removesuffix("_ratio") for each in figures if each.endswith("_ratio")):
        theirs, ours, ratio = figures[f"kubelet_{name}"], figures[f"podkeeper_{name}"], figures[f"{name}_ratio"]
        print(f"{name:24} {theirs:10.2f} {ours:10.2f} {ratio:7.2f}")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
