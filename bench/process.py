"""Cost of pods on the process runtime: `python -m bench.process [--json] [--rounds N] [--pods N] [--idle-seconds S]`.

Two agents with the process runtime, wired like `podkeeper run`, each in a separate process:

* the quick figures: an API in memory inside the agent's process gets the pods, one at a time and then all at once.
  Times are those that a user of the API observes: from a change in the API to the change that follows from it.
* the idle node: `podkeeper run` on a directory of manifests, measured from outside through /proc.

Pods have one container and no probe, so the start of a server does not count. Files are in a temporary directory on the
machine's disk, which is removed at the end. The bars are in `docs/performance.md`.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.agent_usage import cpu_seconds, kib_of, quiet_node
from bench.user import NODE, Shape, User, burst_gone, burst_ready, crashed, created, deleted, done, running_agent
from podkeeper.app.standalone import Standalone

ROUNDS = 20
PODS = 100
IDLE_SECONDS = 120.0
SETTLE_SECONDS = 10.0
SHAPE = Shape()


# ---- Quick figures, inside the agent's process ----


async def quick_figures(root: Path, rounds: int, count: int) -> dict[str, float]:
    """Measure one agent with pods one at a time, then many at once."""
    async with running_agent(Standalone(paths=(), root=root, node_name=NODE), SHAPE, count) as user:
        return await _figures_of(user, rounds, count)


async def _figures_of(user: User, rounds: int, count: int) -> dict[str, float]:
    create, delete, crash, job = [], [], [], []
    for number in range(-1, rounds):  # the first round does not count, because the fork server is starting
        create.append(await created(user, "web"))
        delete.append(await deleted(user, "web"))
        crash.append(await crashed(user, f"crash-{number}", 200_000 + number))
        job.append(await done(user, f"job-{number}"))
    names = [f"pod-{number}" for number in range(count)]
    return {
        "create_ready_p50_ms": statistics.median(create[1:]),
        "create_ready_p90_ms": sorted(create[1:])[int(0.9 * (len(create) - 1))],
        "delete_gone_p50_ms": statistics.median(delete[1:]),
        "crash_restart_p50_ms": statistics.median(crash[1:]),
        "job_done_p50_ms": statistics.median(job[1:]),
        f"burst{count}_all_ready_s": (await burst_ready(user, names))[-1],
        f"burst{count}_all_gone_s": (await burst_gone(user, names))[-1],
    }


# ---- Idle node, measured from outside ----


def resting_figures(root: Path, count: int, settle_seconds: float, idle_seconds: float) -> dict[str, float]:
    """Return the figures of `podkeeper run` with quiet pods."""
    pods = {f"pod-{number}": SHAPE.manifest(f"pod-{number}") for number in range(count)}
    with quiet_node(root, pods, "--node-name", NODE) as quiet:
        time.sleep(settle_seconds)
        keepers, agent = keepers_of(root), quiet.agent
        cpu, keepers_cpu, begun = cpu_seconds(agent), sum(map(cpu_seconds, keepers)), time.monotonic()
        time.sleep(idle_seconds)
        seconds = time.monotonic() - begun
        return {
            f"run{count}_all_ready_s": quiet.ready_seconds,
            f"idle_cpu_percent_{count}": (cpu_seconds(agent) - cpu) / seconds * 100,
            f"keepers_idle_cpu_percent_{count}": (sum(map(cpu_seconds, keepers)) - keepers_cpu) / seconds * 100,
            f"agent_rss_mib_{count}": kib_of(agent, "status", "VmRSS:") / 1024,
            "keeper_pss_kib": statistics.mean(kib_of(pid, "smaps_rollup", "Pss:") for pid in keepers),
        }


def keepers_of(root: Path) -> list[int]:
    """Return the keeper processes."""
    return [int(json.loads(path.read_text())["pid"]) for path in root.glob("r/runtime/sandboxes/*/keeper.json")]


# ---- Command ----

BARS = {
    "create_ready_p50_ms": 80.0,
    "burst100_all_ready_s": 6.0,
    "idle_cpu_percent_100": 1.0,
    "agent_rss_mib_100": 60.0,
    "keeper_pss_kib": 4096.0,
}


def in_own_process(root: Path, rounds: int, count: int) -> dict[str, float]:
    """Measure the quick figures in a separate process."""
    words = [sys.executable, "-m", "bench.process", "--quick", str(root), "--rounds", str(rounds), "--pods", str(count)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.process", description="Measure real pods.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measurements per median [default: {ROUNDS}]")
    parser.add_argument("--pods", type=int, default=PODS, help=f"pods at once and idle [default: {PODS}]")
    parser.add_argument(
        "--idle-seconds",
        type=float,
        default=IDLE_SECONDS,
        help=f"duration of the idle measurement [default: {IDLE_SECONDS:g}]",
    )
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
        print(f"{options.pods} quiet pods, measured for {wait:.0f} s ...", file=sys.stderr, flush=True)
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
