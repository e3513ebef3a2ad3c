"""Noisy neighbours: the misbehaviour of one pod is contained, reported, and does not disturb a quiet pod.

The quiet pod stays Ready, its probes succeed on time, and its containers do not restart. Another pod like it starts as
fast as before.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from podkeeper.model.k8s.core import Pod
from tests.e2e.backends import POD_PIDS
from tests.e2e.machine import needs_mounts, without_mounts
from tests.e2e.node import Node, ScenarioRunner, pod
from tests.e2e.oom import require_oom_report, retry_until_oom_reported
from tests.host.own_cgroups import needs

pytestmark = pytest.mark.slow

SERVE = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
NAP = f"60.{os.getpid():07}"  # unique, to find the processes of this test
# A shell that cannot fork exits. Its children and the first process stay.
BOMB = f"sh -c 'while :; do sleep {NAP} & done' 2>/dev/null; exec sleep 1000"
# As in the kubelet, an evicted pod whose containers all exit with 0 has succeeded. These do not exit with 0.
FILL = "trap 'exit 143' TERM; head -c 4000000 /dev/zero > /v/big; while :; do sleep 0.05; done"
LATEST_BEAT_SECONDS = 4.0  # between two probes, with a period of one second
SLOW_START_SECONDS = 15.0  # usually about 50 ms, but the machine may be busy


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def quiet(name: str, beats: Path) -> Pod:
    """Return a pod whose probes write a timestamp each time they run."""
    mounts = [{"name": "beats", "mountPath": "/beats"}]
    return pod(
        name,
        command=sh(SERVE),
        container={"readinessProbe": _beat("ready"), "livenessProbe": _beat("live"), "volumeMounts": mounts},
        volumes=[{"name": "beats", "hostPath": {"path": str(beats)}}],
    )


def _beat(name: str) -> dict[str, Any]:
    mark = {"command": ["sh", "-c", f"cut -d' ' -f1 /proc/uptime >> /beats/{name}"]}
    return {"exec": mark, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 1}


@asynccontextmanager
async def quiet_pod_undisturbed(node: Node, tmp_path: Path) -> AsyncIterator[None]:
    """Check that a quiet pod is not disturbed during the context, for at least 2.5 s."""
    beats = tmp_path / "beats"
    beats.mkdir()
    node.create(quiet("quiet", beats))
    await node.until_ready("quiet")
    before = node.status("quiet").container_id
    flaps: list[str] = []
    watching = asyncio.create_task(_watch(node, flaps))
    begun = _uptime()
    try:
        yield
        await asyncio.sleep(max(0.0, begun + 2.5 - _uptime()))
        starting = time.monotonic()
        node.create(pod("newcomer", command=sh(SERVE)))
        await node.until_ready("newcomer")
        took = time.monotonic() - starting
    finally:
        watching.cancel()
    assert flaps == []
    assert took < SLOW_START_SECONDS
    assert (node.status("quiet").container_id, node.status("quiet").restart_count) == (before, 0)
    assert [reason for kind, reason, _ in node.events("quiet") if kind == "Warning"] == []
    for name in ("ready", "live"):
        made = sorted(when for when in map(float, (beats / name).read_text().split()) if when >= begun)
        assert len(made) >= 2
        assert max(later - earlier for earlier, later in pairwise(made)) < LATEST_BEAT_SECONDS


def _uptime() -> float:
    """Return the uptime, a clock that containers can read, too."""
    return float(Path("/proc/uptime").read_text().split()[0])


async def _watch(node: Node, flaps: list[str]) -> None:
    while True:
        if not node.is_ready("quiet"):
            flaps.append("quiet was not ready")
            return
        await asyncio.sleep(0.02)


@pytest.mark.usefixtures("limited_processes")
def test_a_fork_bomb_is_contained(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        async with quiet_pod_undisturbed(node, tmp_path):
            node.create(pod("bomb", command=sh(BOMB), container={"resources": {"limits": {"cpu": "500m"}}}))
            await node.until(lambda: node.phase("bomb") == "Running")
            await node.until(lambda: _sleepers() > 400, "the fork bomb runs")
            await asyncio.sleep(0.5)
            assert _sleepers() <= POD_PIDS
        node.delete("bomb", grace_seconds=1)
        await node.until(lambda: node.is_gone("bomb"))
        await node.until(lambda: _sleepers() < 50, "the fork bomb is gone")

    run_on_node(scenario, tmp_path / "node")


def _sleepers() -> int:
    """Return the number of processes that sleep for NAP."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes() == f"sleep\0{NAP}\0".encode()
        except OSError:
            continue
    return found


@pytest.mark.usefixtures("limited_processes")
def test_a_fork_bomb_past_its_deadline_leaves_no_processes(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        limits = {"resources": {"limits": {"cpu": "500m"}}}
        node.create(pod("bomb", command=sh(BOMB), container=limits, activeDeadlineSeconds=2))
        await node.until_phase("bomb", "Failed")
        assert node.see("bomb").status.reason == "DeadlineExceeded"
        await node.until(lambda: _sleepers() < 50, "the fork bomb is gone")

    run_on_node(scenario, tmp_path)


def test_a_process_that_ignores_sigterm_is_killed_after_its_grace_period(
    run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        async with quiet_pod_undisturbed(node, tmp_path):
            node.create(pod("stubborn", command=sh("trap '' TERM; echo up; while :; do sleep 0.05; done")))
            await node.until(lambda: node.log("stubborn") == "up\n")
            begun = time.monotonic()
            node.delete("stubborn", grace_seconds=1)
            await node.until(lambda: node.is_gone("stubborn"))
            assert 0.9 < time.monotonic() - begun < 20
        assert any(reason == "Killing" for _, reason, _ in node.events("stubborn"))

    run_on_node(scenario, tmp_path / "node")


def test_children_that_ignore_sigterm_do_not_outlive_their_pod(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = f"setsid sh -c \"trap '' TERM; sleep {NAP}; sleep {NAP}\" & {SERVE}"
        node.create(pod("stubborn", command=sh(script)))
        await node.until_ready("stubborn")
        await node.until(lambda: _sleepers() > 0)
        node.delete("stubborn")
        await node.until(lambda: node.is_gone("stubborn"))
        assert _sleepers() == 0

    run_on_node(scenario, tmp_path)


def test_logging_at_full_speed_does_not_disturb_other_pods(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        async with quiet_pod_undisturbed(node, tmp_path):
            limits = {"resources": {"limits": {"cpu": "500m"}}}
            node.create(pod("loud", command=("yes", "0123456789" * 8), container=limits))
            await node.until_ready("loud")
        begun = time.monotonic()
        node.delete("loud", grace_seconds=1)
        await node.until(lambda: node.is_gone("loud"))
        assert time.monotonic() - begun < 20

    run_on_node(scenario, tmp_path / "node")


def test_a_pod_that_exceeds_the_size_limit_of_an_empty_dir_is_evicted(
    run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        async with quiet_pod_undisturbed(node, tmp_path):
            node.create(_with_directory("greedy", FILL, {"sizeLimit": "1Mi"}))
            await node.until_phase("greedy", "Failed")
        shown = node.see("greedy").status
        message = 'Usage of EmptyDir volume "v" exceeds the limit "1Mi". '
        assert (shown.reason, shown.message) == ("Evicted", message)
        assert [each for each in node.events("greedy") if each[1] == "Evicted"] == [("Warning", "Evicted", message)]
        await node.until(lambda: not (node.root / "pods" / node.uid("greedy") / "volumes").exists())

    run_on_node(scenario, tmp_path / "node", measure_seconds=0.2)


def _with_directory(name: str, script: str, source: dict[str, Any]) -> Pod:
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    return pod(name, command=sh(script), container=mounts, volumes=[{"name": "v", "emptyDir": source}])


def test_a_pod_within_its_limit_is_not_evicted(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(_with_directory("modest", f"head -c 500000 /dev/zero > /v/some; {SERVE}", {"sizeLimit": "1Mi"}))
        node.create(_with_directory("greedy", FILL, {"sizeLimit": "1Mi"}))
        await node.until_ready("modest")
        await node.until_phase("greedy", "Failed")
        assert node.is_ready("modest")
        assert node.status("modest").restart_count == 0

    run_on_node(scenario, tmp_path, measure_seconds=0.2)


@needs_mounts
def test_a_full_empty_dir_in_memory_returns_enospc(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        async with quiet_pod_undisturbed(node, tmp_path):
            fill = "until ! head -c 300000 /dev/zero >> /v/big; do :; done 2>/dev/null; echo full; " + SERVE
            node.create(_with_directory("greedy", fill, {"medium": "Memory", "sizeLimit": "1Mi"}))
            await node.until(lambda: node.log("greedy") == "full\n")
        assert node.is_ready("greedy")

    run_on_node(scenario, tmp_path / "node", measure_seconds=0.2)


@without_mounts
def test_without_tmpfs_sizes_a_pod_that_fills_memory_is_evicted(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        async with quiet_pod_undisturbed(node, tmp_path):
            node.create(_with_directory("greedy", FILL, {"medium": "Memory", "sizeLimit": "1Mi"}))
            await node.until_phase("greedy", "Failed")
        assert node.see("greedy").status.reason == "Evicted"
        await node.until(lambda: node.uid("greedy") not in node.mounted_pods())

    run_on_node(scenario, tmp_path / "node", measure_seconds=0.2)


def test_a_hanging_liveness_probe_times_out_and_restarts_its_container(
    run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        async with quiet_pod_undisturbed(node, tmp_path):
            probe = {
                "exec": {"command": ["sh", "-c", f"trap '' TERM; sleep {NAP}"]},
                "periodSeconds": 1,
                "timeoutSeconds": 1,
                "failureThreshold": 1,
            }
            node.create(pod("stuck", command=sh(SERVE), container={"livenessProbe": probe}))
            await node.until_ready("stuck")
            await node.until(lambda: node.status("stuck").restart_count >= 1)
        messages = [
            message for kind, reason, message in node.events("stuck") if (kind, reason) == ("Warning", "Unhealthy")
        ]
        assert any("Liveness probe" in message and "timed out" in message for message in messages), messages

    run_on_node(scenario, tmp_path / "node")


def test_a_hanging_readiness_probe_leaves_its_container_running_and_no_processes(
    run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        probe = {"exec": {"command": ["sleep", NAP]}, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 1}
        node.create(pod("stuck", command=sh(SERVE), container={"readinessProbe": probe}))
        await node.until(lambda: any(reason == "Unhealthy" for _, reason, _ in node.events("stuck")))
        assert not node.is_ready("stuck")
        assert node.status("stuck").restart_count == 0
        assert _sleepers() <= 1  # the next probe may already run
        node.delete("stuck")
        await node.until(lambda: node.is_gone("stuck"))
        assert _sleepers() == 0

    run_on_node(scenario, tmp_path)


def test_many_hanging_probes_do_not_delay_other_pods(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        async with quiet_pod_undisturbed(node, tmp_path):
            probe = {"exec": {"command": ["sleep", NAP]}, "periodSeconds": 1, "timeoutSeconds": 1}
            for number in range(10):
                node.create(pod(f"stuck-{number}", command=sh(SERVE), container={"readinessProbe": probe}))
            await node.until(
                lambda: all(
                    any(reason == "Unhealthy" for _, reason, _ in node.events(f"stuck-{number}"))
                    for number in range(10)
                )
            )

    run_on_node(scenario, tmp_path / "node")


def test_a_crash_loop_is_backed_off_without_delaying_other_pods(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        async with quiet_pod_undisturbed(node, tmp_path):
            node.create(pod("crashing", command=("false",)))
            await node.until(lambda: any(reason == "BackOff" for _, reason, _ in node.events("crashing")))
        waiting = node.status("crashing").state.waiting
        assert waiting is not None
        assert waiting.reason == "CrashLoopBackOff"
        assert node.status("crashing").restart_count <= 2

    run_on_node(scenario, tmp_path / "node")


@needs("memory")
def test_only_the_container_over_its_memory_limit_is_oom_killed(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        async with quiet_pod_undisturbed(node, node.root):
            limits = {"resources": {"limits": {"memory": "32Mi"}}}
            node.create(pod("hungry", command=("tail", "/dev/zero"), container=limits, restartPolicy="Never"))
            await node.until_phase("hungry", "Failed")
        await require_oom_report(node, "hungry")
        end = node.status("hungry").state.terminated
        assert end is not None
        assert (end.reason, end.exit_code) == ("OOMKilled", 137)

    retry_until_oom_reported(run_on_node, scenario, tmp_path)
