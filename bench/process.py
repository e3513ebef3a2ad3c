"""What real pods cost: `python -m bench.process [--json] [--rounds N] [--pods N] [--idle-seconds S]`.

An agent with the process runtime, wired as `podkeeper run` does it, twice, each time in a process of its own:

* the quick figures: pods enter by an API in memory inside the agent's process, one at a time and then all at once.
  Every moment is one that a user of the API could see: from the change there to the change that answers it;
* the node at rest: `podkeeper run` on a folder of manifests, seen from outside through /proc.

Pods have one container and no probe: what is measured is the agent and the runtime, not a server's start. Files lie on
the machine's own disk below a temporary directory; nothing is left behind. The bars are in `docs/performance.md`.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
from msgspec.structs import replace as changed

from podkeeper.app.build import Agent, simple_node
from podkeeper.app.local.client import LocalClient, NobodyAnswers
from podkeeper.app.local.places import SOCKET_NAME
from podkeeper.app.process import tune_garbage_collection
from podkeeper.app.sources import api_source
from podkeeper.app.standalone import Standalone, assembled
from podkeeper.model.k8s.core import Pod
from podkeeper.rules.defaults import default_pod
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.memory_watch import Change

NODE = "bench"
ROUNDS = 20
PODS = 100
IDLE_SECONDS = 120.0
SETTLE_SECONDS = 10.0
GIVE_UP_SECONDS = 120.0

AGENT = (sys.executable, "-c", "from podkeeper.app.cli import main; main()")
TICKS = os.sysconf("SC_CLK_TCK")


def polite(nap_seconds: int = 100_000) -> tuple[str, ...]:
    """A command that does nothing, and ends when asked to: a container's first process hears no TERM unless it asks."""
    return ("sh", "-c", f"trap 'exit 0' TERM; sleep {nap_seconds} & wait")


def manifest(name: str, command: tuple[str, ...] = polite(), restart_policy: str = "Always") -> dict[str, object]:
    """A pod of one container."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": restart_policy,
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "app", "image": "host", "command": list(command)}],
        },
    }


# ---- the quick figures: inside the agent's process ----


class User:
    """Somebody who creates, watches and deletes pods through the API."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api
        self._changed = asyncio.Event()
        api.witness(Pod, self._saw)

    def create(self, *manifests: dict[str, object]) -> None:
        """Create pods, bound to this node."""
        for each in manifests:
            pod = default_pod(msgspec.convert(each, Pod))
            meta = changed(pod.metadata, namespace="default")
            self._api.put(changed(pod, metadata=meta, spec=changed(pod.spec, node_name=NODE)))

    def delete(self, name: str) -> None:
        """Delete a pod, with its own grace."""
        self._api.mark_deleted(Pod, name, "default")

    def find(self, name: str) -> Pod | None:
        """A pod as the API shows it."""
        return self._api.peek(Pod, name, "default")

    def is_ready(self, name: str) -> bool:
        """Whether a pod is Ready."""
        pod = self.find(name)
        conditions = () if pod is None else pod.status.conditions or ()
        return any(each.type == "Ready" and each.status == "True" for each in conditions)

    def restarts(self, name: str) -> int:
        """How often the container of a pod was restarted, once it runs again."""
        pod = self.find(name)
        shown = () if pod is None else pod.status.container_statuses or ()
        return sum(each.restart_count for each in shown if each.state.running is not None)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait, without polling, until the API shows something."""
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            shown = [(pod.metadata.name, msgspec.to_builtins(pod.status)) for pod in self._api.objects(Pod)][:3]
            raise TimeoutError(f"not within {GIVE_UP_SECONDS:g} s: {what}; seen: {shown}") from None

    def _saw(self, change: Change) -> None:
        self._changed.set()


async def quick_figures(root: Path, rounds: int, count: int) -> dict[str, float]:
    """One agent; pods one at a time, then many at once."""
    async with assembled(Standalone(paths=(), root=root, node_name=NODE)) as parts:
        api = MemoryApi(parts.ports.clock)
        source = api_source(api=api, node_name=NODE, clock=parts.ports.clock, journal=parts.ports.journal)
        node = simple_node(NODE, cpu="1000", memory="1Ti", pods=count + 10)
        agent = Agent(replace(parts.ports, api=api, sources=(source,)), replace(parts.settings, node=node))
        tune_garbage_collection()  # as `podkeeper` does for its own process
        async with asyncio.TaskGroup() as group:
            living = [group.create_task(agent.run()), *(group.create_task(room()) for room in parts.rooms)]
            figures = await _figures_of(User(api), rounds, count)
            for task in living:
                task.cancel()
    return figures


async def _figures_of(user: User, rounds: int, count: int) -> dict[str, float]:
    create, delete, crash, job = [], [], [], []
    for number in range(-1, rounds):  # the first one is not counted: the nursery is still starting
        create.append(await _create(user, "web"))
        delete.append(await _delete(user, "web"))
        crash.append(await _crash(user, f"crash-{number}", 200_000 + number))
        job.append(await _job(user, f"job-{number}"))
    names = [f"pod-{number}" for number in range(count)]
    begun = time.monotonic()
    user.create(*map(manifest, names))
    await user.until(lambda: all(map(user.is_ready, names)), f"{count} pods are Ready")
    burst_ready = time.monotonic() - begun
    begun = time.monotonic()
    for name in names:
        user.delete(name)
    await user.until(lambda: not any(map(user.find, names)), f"{count} pods are gone")
    return {
        "create_ready_p50_ms": statistics.median(create[1:]),
        "create_ready_p90_ms": sorted(create[1:])[int(0.9 * (len(create) - 1))],
        "delete_gone_p50_ms": statistics.median(delete[1:]),
        "crash_restart_p50_ms": statistics.median(crash[1:]),
        "job_done_p50_ms": statistics.median(job[1:]),
        f"burst{count}_all_ready_s": burst_ready,
        f"burst{count}_all_gone_s": time.monotonic() - begun,
    }


async def _create(user: User, name: str) -> float:
    begun = time.monotonic()
    user.create(manifest(name))
    await user.until(lambda: user.is_ready(name), "a pod is Ready")
    return _since(begun)


async def _delete(user: User, name: str) -> float:
    begun = time.monotonic()
    user.delete(name)
    await user.until(lambda: user.find(name) is None, "a deleted pod is gone")
    return _since(begun)


async def _crash(user: User, name: str, nap_seconds: int) -> float:
    """A container is killed from outside; the time until it runs again. A first crash waits for no back-off."""
    command = polite(nap_seconds)  # no two alike, so that it is found
    user.create(manifest(name, command))
    await user.until(lambda: user.is_ready(name), "a pod is Ready")
    victim = next(pid for pid in processes() if words_of(pid) == [*command])
    begun = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    await user.until(lambda: user.restarts(name) == 1, "a crashed container runs again")
    taken = _since(begun)
    await _delete(user, name)
    return taken


async def _job(user: User, name: str) -> float:
    def is_done() -> bool:
        pod = user.find(name)
        return pod is not None and pod.status.phase == "Succeeded"

    begun = time.monotonic()
    user.create(manifest(name, ("true",), "Never"))
    await user.until(is_done, "a job is done")
    taken = _since(begun)
    await _delete(user, name)
    return taken


def _since(begun: float) -> float:
    return (time.monotonic() - begun) * 1000


# ---- the node at rest: seen from outside ----


def resting_figures(root: Path, count: int, settle_seconds: float, idle_seconds: float) -> dict[str, float]:
    """`podkeeper run` with quiet pods, watched."""
    folder = root / "manifests"
    folder.mkdir()
    for number in range(count):
        (folder / f"pod-{number}.json").write_text(json.dumps(manifest(f"pod-{number}")))
    begun = time.monotonic()
    with agent_process(folder, root) as (process, client):
        agent = process.pid
        while ready_pods(client) < count:
            if process.poll() is not None or time.monotonic() - begun > GIVE_UP_SECONDS:
                raise TimeoutError(f"not within {GIVE_UP_SECONDS:g} s: {count} pods of manifests are Ready")
            time.sleep(0.1)
        run_ready = time.monotonic() - begun
        time.sleep(settle_seconds)
        keepers = keepers_of(root)
        cpu, keepers_cpu, begun = cpu_seconds(agent), sum(map(cpu_seconds, keepers)), time.monotonic()
        time.sleep(idle_seconds)
        seconds = time.monotonic() - begun
        return {
            f"run{count}_all_ready_s": run_ready,
            f"idle_cpu_percent_{count}": (cpu_seconds(agent) - cpu) / seconds * 100,
            f"keepers_idle_cpu_percent_{count}": (sum(map(cpu_seconds, keepers)) - keepers_cpu) / seconds * 100,
            f"agent_rss_mib_{count}": kib_of(agent, "status", "VmRSS:") / 1024,
            "keeper_pss_kib": statistics.mean(kib_of(pid, "smaps_rollup", "Pss:") for pid in keepers),
        }


@contextmanager
def agent_process(folder: Path, root: Path) -> Iterator[tuple[subprocess.Popen[bytes], LocalClient]]:
    """`podkeeper run`, until the block ends; then its pods are stopped."""
    words = [*AGENT, "run", str(folder), "--root", str(root / "r"), "--node-name", NODE, "--plain"]
    with open(root / "output", "wb") as output:
        agent = subprocess.Popen(words, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        yield agent, LocalClient(root / "r" / SOCKET_NAME)
    except BaseException:
        print((root / "output").read_text()[-4000:], file=sys.stderr)
        raise
    finally:
        agent.send_signal(signal.SIGINT)
        try:
            agent.wait(GIVE_UP_SECONDS)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()


def ready_pods(client: LocalClient) -> int:
    """How many pods are Ready."""
    try:
        pods = client.get("pods")["items"]
    except NobodyAnswers:
        return 0
    conditions = [each for pod in pods for each in pod["status"].get("conditions", ())]
    return sum(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def keepers_of(root: Path) -> list[int]:
    """The processes that keep the pods."""
    return [int(json.loads(path.read_text())["pid"]) for path in root.glob("r/runtime/sandboxes/*/keeper.json")]


# ---- /proc ----


def processes() -> Iterator[int]:
    """All processes there are."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def words_of(pid: int) -> list[str]:
    """The command line of a process; empty: it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of the children it has reaped."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def kib_of(pid: int, file: str, field: str) -> int:
    """One line of a file in /proc."""
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


# ---- the command ----

BARS = {
    "create_ready_p50_ms": 80.0,
    "burst100_all_ready_s": 6.0,
    "idle_cpu_percent_100": 1.0,
    "agent_rss_mib_100": 60.0,
    "keeper_pss_kib": 4096.0,
}


def in_own_process(root: Path, rounds: int, count: int) -> dict[str, float]:
    """The quick figures, measured in a process of their own."""
    words = [sys.executable, "-m", "bench.process", "--quick", str(root), "--rounds", str(rounds), "--pods", str(count)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.process", description="Measure real pods.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"how often for a median [{ROUNDS}]")
    parser.add_argument("--pods", type=int, default=PODS, help=f"how many at once, and at rest [{PODS}]")
    parser.add_argument("--idle-seconds", type=float, default=IDLE_SECONDS, help="how long the node is watched at rest")
    parser.add_argument("--settle-seconds", type=float, default=SETTLE_SECONDS, help=argparse.SUPPRESS)
    parser.add_argument("--quick", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.quick:
        print(json.dumps(asyncio.run(quick_figures(options.quick, options.rounds, options.pods))))
        return 0
    with tempfile.TemporaryDirectory(prefix="podkeeper-bench-", ignore_cleanup_errors=True) as place:
        root = Path(place)
        print(f"{options.rounds} pods of each kind, then {options.pods} at once ...", file=sys.stderr, flush=True)
        figures = in_own_process(root / "quick", options.rounds, options.pods)
        wait = options.settle_seconds + options.idle_seconds
        print(f"{options.pods} quiet pods, watched for {wait:.0f} s ...", file=sys.stderr, flush=True)
        figures |= resting_figures(root, options.pods, options.settle_seconds, options.idle_seconds)
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))
        return 0
    for name, value in figures.items():
        bar = f"   bar {BARS[name]:g}" if name in BARS else ""
        print(f"{name:34} {value:10.3f}{bar}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
