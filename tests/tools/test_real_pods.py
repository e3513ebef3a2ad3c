"""The benchmarks and torture tools with real pods run to their end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cri import BARS as CONTAINER_BARS
from bench.process import BARS
from tests.e2e.kubelet_node import needs_kubelet
from tests.runtimes.cri.containerd import missing

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parent.parent.parent


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False
    )


def test_the_process_benchmark_prints_every_figure() -> None:
    few = ("--rounds", "2", "--pods", "3", "--idle-seconds", "1", "--settle-seconds", "0")
    done = run("bench.process", "--json", *few)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    expected = {*BARS, "delete_gone_p50_ms", "crash_restart_p50_ms", "job_done_p50_ms"}
    assert {name.replace("100", "3") for name in expected} <= figures.keys()
    assert all(value > 0 for name, value in figures.items() if "idle" not in name)


def test_the_keeper_benchmark_prints_both_kinds_and_the_shim_or_why_it_is_absent() -> None:
    done = run("bench.keepers", "--json", "--keepers", "2", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures.pop("shim_absent", None) == missing()
    expected = {f"{kind}_{figure}" for kind in ("forked", "new") for figure in ("start_ms", "pss_mib")}
    assert expected <= figures.keys()
    assert ("shim_pss_mib" in figures) == (missing() is None)
    assert all(value > 0 for value in figures.values())


def test_a_short_torture_succeeds_and_prints_its_seed() -> None:
    done = run("tools.torture", "--rounds", "3", "--seed", "11")
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first == "torture: seed 11, 3 rounds"
    assert "3 kills" in last
    assert "seed 11" in last


containers = pytest.mark.skipif(missing() is not None, reason=missing() or "")


@containers
def test_the_cri_benchmark_prints_floor_and_podkeeper() -> None:
    done = run("bench.cri", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    expected = {name.replace("100", "10") for name in CONTAINER_BARS if not name.startswith(("idle", "agent_rss"))}
    assert expected <= figures.keys()
    ratios = {name.removesuffix("_ratio"): value for name, value in figures.items() if name.endswith("_ratio")}
    assert {f"floor_{name}_s" for name in ratios if name.startswith("burst")} <= figures.keys()
    assert all(value > 0 for value in figures.values())


@containers
def test_the_stream_benchmark_prints_both_clients() -> None:
    done = run("bench.streams", "--json", "--rounds", "1", "--blocks", "50")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    measured = ("wall_s", "cpu_s", "import_bare_cpu_ms", "import_added_rss_mib")
    assert {f"{client}_{figure}" for client in ("spdy", "websocket") for figure in measured} <= figures.keys()
    assert all(value > 0 for value in figures.values())


@containers
@needs_kubelet
def test_the_kubelet_benchmark_prints_both_agents() -> None:
    done = run("bench.beside_kubelet", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    measured = {name.removesuffix("_ratio") for name in figures if name.endswith("_ratio")}
    assert {"start_all_ready_s", "add_ms", "crash_ms", "remove_ms", "rest_cpu_percent", "rss_mib"} <= measured
    assert all(figures[f"{agent}_{name}"] >= 0 for agent in ("kubelet", "podkeeper") for name in measured)


@containers
def test_a_short_runtime_torture_succeeds_and_prints_its_seed() -> None:
    done = run("tools.torture_runtime", "--rounds", "3", "--seed", "11")
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first == "torture-runtime: seed 11, 3 rounds"
    assert "seed 11" in last
    assert "Nothing was doubled or lost" in last
