"""What real containers cost, beside what they must cost: `python -m bench.cri [--json] [--quick]`.

It starts a containerd of its own (root, and Debian's containerd, runc, containernetworking-plugins and busybox-static;
what is missing is said) and measures, by turns and in one run, so that whatever else the machine does hits both:

* the floor: the bare CRI calls with the same messages (`bench.cri_floor`), with as many at a time as serves it best;
* podkeeper: an agent wired as `podkeeper run --runtime cri` does it, with an API in memory, in this process;
* the node at rest: a real `podkeeper run --runtime cri` on a folder of manifests, seen from outside through /proc.

Pods have one container in a network of their own, and no probe. Compare ratios: machines are shared. A burst is
compared with the mean of the floors before and after it; of three bursts the median counts. The bars are in
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

from bench.cri_floor import Floor
from bench.user import NODE, Shape, User, burst_gone, burst_ready, crashed, created, deleted, done, living
from bench.watched import cpu_seconds, kib_of, quiet_node
from podkeeper.app.standalone import Standalone
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.runtimes.cri.containerd import BUSYBOX_IMAGE, Containerd, missing

ROUNDS = 20
BLOCK = 4  # rounds of the floor, then rounds of podkeeper, and so on
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
class Wanted:
    """What is to be measured."""

    rounds: int = ROUNDS
    bursts: tuple[int, ...] = BURSTS
    times: int = BURST_TIMES  # that each burst is made
    limits: tuple[int, ...] = LIMITS
    idle_pods: int = 100  # 0: no node at rest
    idle_seconds: float = IDLE_SECONDS
    settle_seconds: float = SETTLE_SECONDS


QUICK = Wanted(rounds=5, bursts=(10,), times=1, limits=(4,), idle_pods=0)

Floored = tuple[list[float], list[float]]  # seconds until each pod was ready, and until each was gone


@dataclass(frozen=True, slots=True)
class Burst:
    """What one burst took."""

    times: Mapping[str, float]  # seconds
    start_cpu_ms: float  # per pod
    delete_cpu_ms: float


def _floor_of(what: str) -> Callable[[Floored], float]:
    """What to compare with, of a burst of the floor."""
    if what == "all_ready":
        return lambda floored: floored[0][-1]
    if what == "median_pod":
        return lambda floored: statistics.median(floored[0])
    return lambda floored: floored[1][-1]


class Bench:
    """Floor and podkeeper, by turns, on one containerd."""

    def __init__(self, node: Containerd, root: Path) -> None:
        self._node = node
        self._root = root
        self._lives = 0

    async def figures(self, wanted: Wanted) -> Figures:
        """All that is measured from inside."""
        async with self._floor() as floor:
            figures = await self._one_at_a_time(floor, wanted.rounds)
            limit = await _best_limit(floor, wanted.limits)
            for count in wanted.bursts:
                _say(f"{count} pods at once, {wanted.times} times: floor ({limit} at a time), podkeeper, floor ...")
                figures |= await self._at_once(floor, count, limit, wanted.times)
            return figures | {"floor_at_a_time": limit}

    async def _one_at_a_time(self, floor: Floor, rounds: int) -> Figures:
        _say(f"{rounds} pods of each kind, one at a time ...")
        seen = defaultdict[str, list[float]](list)
        await floor.one()  # not counted: the first one finds nothing in any cache
        for first in range(0, rounds, BLOCK):
            block = range(first, min(first + BLOCK, rounds))
            for _ in block:
                create, remove = await floor.one()
                seen["floor_create"].append(create)
                seen["floor_delete"].append(remove)
            async with self._podkeeper(10) as user:
                await created(user, "first")  # not counted: this life of the agent has only begun
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
        """Floor and podkeeper by turns, floor last; each burst beside the floors before and after it. Medians."""
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
            # Of the largest burst, which comes last.
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
        """A real `podkeeper run` with quiet pods, watched."""
        _say(f"{count} quiet pods, watched for {settle_seconds + idle_seconds:.0f} s ...")
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
        """An agent. It lives only while it is measured: it would take the floor's pods for strays and end them."""
        self._lives += 1  # each with a root of its own: an API that begins anew is no API that was seen before
        root = self._root / f"agent-{self._lives}"
        wanted = Standalone(paths=(), root=root, node_name=NODE, runtime="cri", runtime_endpoint=self._node.socket)
        async with living(wanted, SHAPE, pods) as user:
            yield user
            await self._nothing_left()

    async def _nothing_left(self) -> None:
        """Wait until the runtime has nothing of any pod."""
        transport = GrpcTransport(self._node.socket)
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                while await Calls(transport).sandboxes():
                    await asyncio.sleep(0.05)
        finally:
            await transport.close()


async def _best_limit(floor: Floor, limits: tuple[int, ...]) -> int:
    """How many at a time serve the floor best."""
    if len(limits) == 1:
        return limits[0]
    _say(f"the floor with {', '.join(map(str, limits))} at a time ...")
    taken = dict.fromkeys(limits, 0.0)
    for limit in (*limits, *reversed(limits)):
        ready, gone = await floor.many(LIMITS_TRIED_WITH, limit)
        taken[limit] += ready[-1] + gone[-1]
    return min(limits, key=lambda limit: taken[limit])


@contextmanager
def _containerd() -> Iterator[tuple[Containerd, Path]]:
    """A containerd of our own, and a directory; gone in the end."""
    with tempfile.TemporaryDirectory(prefix="podkeeper-bench-", ignore_cleanup_errors=True) as place:
        home, root = Path(place, "c"), Path(place, "p")
        home.mkdir()
        root.mkdir()
        node = Containerd(home)
        try:
            node.start()
            with node.inside():
                yield node, root
        finally:
            node.stop()


# ---- the command ----


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.cri", description="Measure real containers.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="a few pods, ten at once, no node at rest: a minute")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"how often for a median [{ROUNDS}]")
    parser.add_argument("--idle-seconds", type=float, default=IDLE_SECONDS, help="how long the node is watched at rest")
    options = parser.parse_args(arguments)
    if (reason := missing()) is not None:
        print(f"cannot measure real containers: {reason}", file=sys.stderr)
        return 1
    wanted = QUICK if options.quick else Wanted(rounds=options.rounds, idle_seconds=options.idle_seconds)
    with _containerd() as (node, root):
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


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
