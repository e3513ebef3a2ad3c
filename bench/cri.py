"""Cost of real containers beside the bare CRI calls: `python -m bench.cri [--json] [--quick]`.

The benchmark starts its own containerd. It requires root and Debian's containerd, runc, containernetworking-plugins and
busybox-static. A missing component is reported. It measures alternately in one run, so that other load on the machine
affects both sides:

* the floor: the bare CRI calls with the same messages (`bench.cri_floor`), with the best concurrency,
* podkeeper: an agent in this process, wired like `podkeeper run --runtime cri`, with an API in memory,
* the idle node: a real `podkeeper run --runtime cri` on a directory of manifests, measured from outside through /proc.

Pods have one container in their own network namespace and no probe. Compare ratios, because machines are shared. Each
burst is compared with the mean of the floors before and after it. The median of three bursts counts. The bars are in
`docs/performance.md`.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.agent_usage import cpu_seconds, kib_of, quiet_node
from bench.cri_floor import Floor
from bench.user import NODE, Shape, User, burst_gone, burst_ready, crashed, created, deleted, done, running_agent
from podkeeper.app.standalone import Standalone
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.runtimes.cri.containerd import BUSYBOX_IMAGE, Containerd, missing

ROUNDS = 20
BLOCK = 4  # rounds of the floor, then as many of podkeeper, and so on
BURSTS = (30, 100)
BURST_TIMES = 3
LIMITS = (4, 6, 8)
LIMITS_TRIED_WITH = 30
IDLE_SECONDS = 120.0
SETTLE_SECONDS = 30.0
GIVE_UP_SECONDS = 120.0
SHAPE = Shape(BUSYBOX_IMAGE)

Figures = dict[str, float]

BARS: Mapping[str, float] = {
    "create_ratio": 1.5,
    "delete_ratio": 2.0,
    "burst100_all_ready_ratio": 1.2,
    "burst100_median_pod_ratio": 1.3,
    "burst100_all_gone_ratio": 1.2,
    "job_done_p50_ms": 500.0,
    "crash_restart_p50_ms": 300.0,
    "agent_cpu_ms_per_started_pod": 40.0,
    "idle_cpu_percent_100": 1.0,
    "agent_rss_mib_100": 90.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSize:
    """The extent of a measurement."""

    rounds: int = ROUNDS
    bursts: tuple[int, ...] = BURSTS
    times: int = BURST_TIMES  # repetitions of each burst
    limits: tuple[int, ...] = LIMITS
    idle_pods: int = 100  # 0: no idle node
    idle_seconds: float = IDLE_SECONDS
    settle_seconds: float = SETTLE_SECONDS


QUICK = BenchSize(rounds=5, bursts=(10,), times=1, limits=(4,), idle_pods=0)

FloorTimes = tuple[list[float], list[float]]  # seconds until each pod was ready, and until each was gone


@dataclass(frozen=True, slots=True)
class Burst:
    """The times and CPU of one burst."""

    times: Mapping[str, float]  # seconds
    start_cpu_ms: float  # per pod
    delete_cpu_ms: float


def _floor_of(what: str) -> Callable[[FloorTimes], float]:
    """Return the figures of a floor burst to compare with."""
    if what == "all_ready":
        return lambda floored: floored[0][-1]
    if what == "median_pod":
        return lambda floored: statistics.median(floored[0])
    return lambda floored: floored[1][-1]


class Bench:
    """Floor and podkeeper, alternately on one containerd."""

    def __init__(self, node: Containerd, root: Path) -> None:
        self._node = node
        self._root = root
        self._lives = 0

    async def figures(self, wanted: BenchSize) -> Figures:
        """Return all figures that are measured inside this process."""
        async with self._floor() as floor:
            figures = await self._one_at_a_time(floor, wanted.rounds)
            limit = await _best_limit(floor, wanted.limits)
            for count in wanted.bursts:
                _log(f"{count} pods at once, {wanted.times} times: floor ({limit} at a time), podkeeper, floor ...")
                figures |= await self._at_once(floor, count, limit, wanted.times)
            return figures | {"floor_at_a_time": limit}

    async def _one_at_a_time(self, floor: Floor, rounds: int) -> Figures:
        _log(f"{rounds} pods of each kind, one at a time ...")
        seen = defaultdict[str, list[float]](list)
        await floor.one()  # not counted, because all caches are empty
        for first in range(0, rounds, BLOCK):
            block = range(first, min(first + BLOCK, rounds))
            for _ in block:
                create, remove = await floor.one()
                seen["floor_create"].append(create)
                seen["floor_delete"].append(remove)
            async with self._podkeeper(10) as user:
                await created(user, "first")  # not counted, because the agent has just started
                await deleted(user, "first")
                for number in block:
                    seen["create"].append(await created(user, f"web-{number}"))
                    seen["delete"].append(await deleted(user, f"web-{number}"))
                    seen["crash"].append(await crashed(user, f"crash-{number}", 200_000 + number))
                    seen["job"].append(await done(user, f"job-{number}"))
        middle = {name: statistics.median(values) for name, values in seen.items()}
        return {
            "create_ready_p50_ms": middle["create"],
            "floor_create_p50_ms": middle["floor_create"],
            "create_ratio": middle["create"] / middle["floor_create"],
            "delete_gone_p50_ms": middle["delete"],
            "floor_delete_p50_ms": middle["floor_delete"],
            "delete_ratio": middle["delete"] / middle["floor_delete"],
            "job_done_p50_ms": middle["job"],
            "crash_restart_p50_ms": middle["crash"],
        }

    async def _at_once(self, floor: Floor, count: int, limit: int, times: int) -> Figures:
        """Return medians of bursts. Each burst is compared with the floors before and after it."""
        seen = defaultdict[str, list[float]](list)
        before = await floor.many(count, limit)
        for _ in range(times):
            burst = await self._burst(count)
            after = await floor.many(count, limit)
            for what, ours in burst.times.items():
                lowest = statistics.mean(map(_floor_of(what), (before, after)))
                seen[f"burst{count}_{what}_s"].append(ours)
                seen[f"floor_burst{count}_{what}_s"].append(lowest)
                seen[f"burst{count}_{what}_ratio"].append(ours / lowest)
            # The largest burst comes last.
            seen["agent_cpu_ms_per_started_pod"].append(burst.start_cpu_ms)
            seen["agent_cpu_ms_per_deleted_pod"].append(burst.delete_cpu_ms)
            before = after
        return {name: statistics.median(values) for name, values in seen.items()}

    async def _burst(self, count: int) -> Burst:
        names = [f"pod-{number}" for number in range(count)]
        async with self._podkeeper(count) as user:
            await created(user, "first")
            await deleted(user, "first")
            await self._nothing_left()
            cpu = time.process_time()
            ready = await burst_ready(user, names)
            start_cpu, cpu = time.process_time() - cpu, time.process_time()
            begun = time.monotonic()
            gone = await burst_gone(user, names)
            await self._nothing_left()
            removed = time.monotonic() - begun
            delete_cpu = time.process_time() - cpu
        times = {
            "all_ready": ready[-1],
            "median_pod": statistics.median(ready),
            "all_gone": gone[-1],
            "all_removed": removed,
        }
        return Burst(times, start_cpu / count * 1000, delete_cpu / count * 1000)

    def resting_figures(self, count: int, settle_seconds: float, idle_seconds: float) -> Figures:
        """Return the figures of a real `podkeeper run` with quiet pods."""
        _log(f"{count} quiet pods, measured for {settle_seconds + idle_seconds:.0f} s ...")
        pods = {f"pod-{number}": SHAPE.manifest(f"pod-{number}") for number in range(count)}
        words = ("--node-name", NODE, "--runtime", "cri", "--runtime-endpoint", self._node.socket)
        with quiet_node(self._root, pods, *words) as quiet:
            time.sleep(settle_seconds)
            cpu, begun = cpu_seconds(quiet.agent), time.monotonic()
            time.sleep(idle_seconds)
            return {
                f"run{count}_all_ready_s": quiet.ready_seconds,
                f"idle_cpu_percent_{count}": (cpu_seconds(quiet.agent) - cpu) / (time.monotonic() - begun) * 100,
                f"agent_rss_mib_{count}": kib_of(quiet.agent, "status", "VmRSS:") / 1024,
            }

    @asynccontextmanager
    async def _floor(self) -> AsyncIterator[Floor]:
        node = self._node
        floor = Floor(node.socket, node.facts, node.cgroup_root, str(node.logs), SHAPE)
        try:
            yield floor
        finally:
            await floor.close()

    @asynccontextmanager
    async def _podkeeper(self, pods: int) -> AsyncIterator[User]:
        """Run an agent during a measurement only, because it would remove the floor's pods as orphaned."""
        self._lives += 1  # a new root each time, because a new API does not know the objects of the old one
        root = self._root / f"agent-{self._lives}"
        wanted = Standalone(paths=(), root=root, node_name=NODE, runtime="cri", runtime_endpoint=self._node.socket)
        async with running_agent(wanted, SHAPE, pods) as user:
            yield user
            await self._nothing_left()

    async def _nothing_left(self) -> None:
        """Wait until the runtime has no pods."""
        transport = GrpcTransport(self._node.socket)
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                while await CriCalls(transport).sandboxes():
                    await asyncio.sleep(0.05)
        finally:
            await transport.close()


async def _best_limit(floor: Floor, limits: tuple[int, ...]) -> int:
    """Return the concurrency at which the floor is fastest."""
    if len(limits) == 1:
        return limits[0]
    _log(f"the floor with {', '.join(map(str, limits))} at a time ...")
    taken = dict.fromkeys(limits, 0.0)
    for limit in (*limits, *reversed(limits)):
        ready, gone = await floor.many(LIMITS_TRIED_WITH, limit)
        taken[limit] += ready[-1] + gone[-1]
    return min(limits, key=lambda limit: taken[limit])


@contextmanager
def own_containerd() -> Iterator[tuple[Containerd, Path]]:
    """Start a containerd and create a directory. Remove both at the end."""
    with tempfile.TemporaryDirectory(prefix="podkeeper-bench-", ignore_cleanup_errors=True) as place:
        home, root = Path(place, "c"), Path(place, "p")
        home.mkdir()
        root.mkdir()
        node = Containerd(home)
        try:
            node.start()
            with node.in_network():
                yield node, root
        finally:
            node.stop()


# ---- Command ----


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cri", description="Measure real containers.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="few pods, bursts of ten, no idle node [under a minute]")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measurements per median [default: {ROUNDS}]")
    parser.add_argument(
        "--idle-seconds",
        type=float,
        default=IDLE_SECONDS,
        help=f"duration of the idle measurement [default: {IDLE_SECONDS:g}]",
    )
    options = parser.parse_args(arguments)
    if (reason := missing()) is not None:
        print(f"cannot measure real containers: {reason}", file=sys.stderr)
        return 1
    wanted = QUICK if options.quick else BenchSize(rounds=options.rounds, idle_seconds=options.idle_seconds)
    with own_containerd() as (node, root):
        bench = Bench(node, root)
        figures = asyncio.run(bench.figures(wanted))
        if wanted.idle_pods:
            figures |= bench.resting_figures(wanted.idle_pods, wanted.settle_seconds, wanted.idle_seconds)
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))
        return 0
    for name, value in figures.items():
        print(f"{name:34} {value:10.3f}{_verdict(name, value)}")
    return 0


def _verdict(name: str, value: float) -> str:
    bar = BARS.get(name)
    if bar is None:
        return ""
    return f"   bar {bar:g}{'' if value <= bar else '   MISSED'}"


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
