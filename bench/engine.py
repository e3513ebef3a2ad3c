"""Cost of the engine with many pods: `python -m bench.engine [--json] [--pods N]`.

A whole agent, wired as in production, runs on the fake runtime and a real clock. N pods (one container, one readiness
probe every 60 s, a spec of 2 KB) are created, become Ready, stay idle, and are deleted gracefully. Each size runs in a
separate process. The API does not count: its time is measured separately and subtracted, and its objects are stored as
bytes. Ratios compare with the same agent with 100 pods. The bars are in `docs/performance.md`.
"""

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.encoded_api import EncodedApi
from podkeeper.app.agent import Agent
from podkeeper.app.build import Engine, Ports, Settings, simple_node
from podkeeper.app.process import tune_garbage_collection
from podkeeper.host.clock import SystemClock
from podkeeper.model.k8s.core import EnvVar, Pod
from podkeeper.runtimes.fake import FakeRuntime
from podkeeper.sources.apiserver import ApiSource
from podkeeper.testing.build import container, pod, probe
from podkeeper.testing.fakes import FakeCgroups, FakeJournal, FakeProber, FakeVolumes

NODE = "bench"
IDLE_SECONDS = 60.0
REST_SECONDS = 100.0  # before the idle measurement; every pod has then had its next sync
SETTLE_SECONDS = 5.0
GIVE_UP_SECONDS = 600.0


def pod_of(index: int) -> Pod:
    """Return a pod with a spec of about 2 KB."""
    env = tuple(EnvVar(name=f"SETTING_{number:02}", value="x" * 30) for number in range(24))
    return pod(
        f"pod-{index}",
        container(image="registry.example/app:v1", env=env, readiness=probe(period=60)),
        node=NODE,
        uid=f"00000000-0000-4000-8000-{index:012}",
        created="2026-01-01T00:00:00Z",
        labels={"app": "bench", "index": str(index)},
    )


def rss_kib() -> int:
    """Return the resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


async def until(condition: Callable[[], bool]) -> None:
    """Poll in negligible steps until a condition holds."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > GIVE_UP_SECONDS:
            raise TimeoutError("the condition did not hold in time")
        await asyncio.sleep(0.05)


async def measure(count: int, idle_seconds: float) -> dict[str, float]:
    """Run an agent with this number of pods. Return its figures."""
    clock = SystemClock(seed=1)
    api, runtime = EncodedApi(clock), FakeRuntime(clock)
    for index in range(count):
        await api.create(pod_of(index))
    ports = Ports(
        runtime=runtime,
        volumes=FakeVolumes(clock),
        cgroups=FakeCgroups(clock),
        prober=FakeProber(),
        clock=clock,
        sources=(ApiSource(api=api, node_name=NODE, clock=clock),),
        api=api,
        journal=FakeJournal(),
    )
    node = simple_node(NODE, cpu="100000", memory="100Ti", pods=count + 10)
    agent = Agent(Engine(ports, Settings(node=node, host_ips=("192.0.2.1",))))
    tune_garbage_collection()  # like the `podkeeper` process
    before_kib = rss_kib()
    figures: dict[str, float] = {}
    async with asyncio.TaskGroup() as group:
        running = group.create_task(agent.run())
        wall, cpu, away = time.monotonic(), time.process_time(), api.seconds
        await until(lambda: api.ready() == count)
        away = api.seconds - away
        figures["running_seconds"] = time.monotonic() - wall - away
        figures["running_cpu_ms_per_pod"] = (time.process_time() - cpu - away) / count * 1000
        figures["api_seconds_running"] = away
        await asyncio.sleep(SETTLE_SECONDS)
        figures["rss_kib_per_pod"] = (rss_kib() - before_kib) / count
        if idle_seconds:
            await asyncio.sleep(REST_SECONDS)
            cpu, away = time.process_time(), api.seconds
            await asyncio.sleep(idle_seconds)
            figures["idle_cpu_percent"] = (time.process_time() - cpu - (api.seconds - away)) / idle_seconds * 100
        figures["update_to_sync_ms"] = await update_to_sync_ms(api, runtime, count)
        wall, cpu, away = time.monotonic(), time.process_time(), api.seconds
        for index in range(count):
            await api.delete(Pod, f"pod-{index}", "default")
        wall, cpu, away = time.monotonic(), time.process_time(), api.seconds
        await until(lambda: len(api) == 0)
        away = api.seconds - away
        figures["gone_seconds"] = time.monotonic() - wall - away
        figures["gone_cpu_ms_per_pod"] = (time.process_time() - cpu - away) / count * 1000
        figures["api_seconds_gone"] = away
        running.cancel()
    return figures


async def update_to_sync_ms(api: EncodedApi, runtime: FakeRuntime, count: int) -> float:
    """Return the median time from a changed image in the API to the call that stops the old container."""
    times = []
    for round_number in range(min(20, count)):
        index = round_number * (count // min(20, count))
        uid, begun = f"00000000-0000-4000-8000-{index:012}", time.monotonic()
        api.change_image(f"pod-{index}", f"registry.example/app:v{round_number + 2}")
        while not any(
            call.operation == "stop_container" and call.about == uid and call.begun >= begun
            for call in runtime.call_log
        ):
            await asyncio.sleep(0.0005)
        times.append((time.monotonic() - begun) * 1000)
        await asyncio.sleep(0.05)
    return statistics.median(times)


START = """
import asyncio, resource
from podkeeper.app.agent import Agent
from podkeeper.app.build import Engine, Ports, Settings, simple_node
from podkeeper.host.clock import SystemClock
from podkeeper.runtimes.fake import FakeRuntime
from podkeeper.testing.build import container, pod, probe
from podkeeper.testing.fakes import FakeCgroups, FakeJournal, FakeProber, FakeVolumes

async def main():
    clock = SystemClock()
    ports = Ports(runtime=FakeRuntime(clock), volumes=FakeVolumes(clock), cgroups=FakeCgroups(clock),
                  prober=FakeProber(), clock=clock, sources=(), journal=FakeJournal())
    async with asyncio.TaskGroup() as group:
        running = group.create_task(Agent(Engine(ports, Settings(node=simple_node("n")))).run())
        await asyncio.sleep(0.05)
        running.cancel()

asyncio.run(main())
usage = resource.getrusage(resource.RUSAGE_SELF)
print(usage.ru_utime + usage.ru_stime)
"""


def start_cpu_seconds() -> float:
    """Return the CPU time of a process that starts an agent on the fake runtime, the best of five."""
    command = [sys.executable, "-c", START]
    return min(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(5))


def in_own_process(count: int, idle_seconds: float) -> dict[str, float]:
    """Measure in a separate process, so that the memory of other sizes does not count."""
    command = [sys.executable, "-m", "bench.engine", "--one", str(count), "--idle-seconds", str(idle_seconds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


BARS = {
    "running_seconds": 60.0,
    "gone_seconds": 90.0,
    "rss_kib_per_pod": 60.0,
    "cost_ratio_10000_to_100": 1.5,
    "idle_cpu_percent": 10.0,
    "start_cpu_seconds": 0.5,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description="Measure the engine with many pods.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--pods", type=int, default=10_000, help="number of pods [default: 10000]")
    parser.add_argument(
        "--idle-seconds",
        type=float,
        default=IDLE_SECONDS,
        help=f"duration of the idle measurement [default: {IDLE_SECONDS:g}]",
    )
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(asyncio.run(measure(options.one, options.idle_seconds))))
        return 0
    # Measure before and after the large size and take the median, in case the machine's speed changes.
    print("100 pods, three times ...", file=sys.stderr, flush=True)
    small = [in_own_process(100, 0) for _ in range(3)]
    print(f"{options.pods} pods (minutes) ...", file=sys.stderr, flush=True)
    large = in_own_process(options.pods, options.idle_seconds)
    print("100 pods, three times ...", file=sys.stderr, flush=True)
    small += [in_own_process(100, 0) for _ in range(3)]
    figures = {f"{name}_{options.pods}": value for name, value in large.items() if name != "update_to_sync_ms"}
    figures[f"cost_ratio_{options.pods}_to_100"] = _cost(large) / statistics.median(map(_cost, small))
    figures["update_to_sync_ms"] = statistics.median(each["update_to_sync_ms"] for each in small)
    figures[f"update_to_sync_ms_{options.pods}"] = large["update_to_sync_ms"]
    figures["start_cpu_seconds"] = start_cpu_seconds()
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))
        return 0
    for name, value in figures.items():
        bar = next((f"   bar {limit:g}" for known, limit in BARS.items() if name.startswith(known)), "")
        print(f"{name:34} {value:10.3f}{bar}")
    return 0


def _cost(figures: dict[str, float]) -> float:
    """Return the CPU time per pod, from creation to removal."""
    return figures["running_cpu_ms_per_pod"] + figures["gone_cpu_ms_per_pod"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
