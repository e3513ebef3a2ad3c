"""Container termination: signals, grace periods, deadlines, OOM kills, termination messages."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.e2e.node import Node, ScenarioRunner, pod
from tests.e2e.oom import require_oom_report, retry_until_oom_reported
from tests.e2e.pod_queries import record_terminations, waiting_reason
from tests.e2e.runtime_kinds import not_on_containerd
from tests.e2e.scripts import LINGER, POLITE, Wire, sh
from tests.host.own_cgroups import needs

pytestmark = pytest.mark.slow

LISTEN = f"echo listening; {LINGER}"


async def until_it_listens(node: Node) -> None:
    """Wait until the shell has set its traps. Before that, the kernel drops the signal, because the shell is PID 1."""
    await node.until_ready("app")
    await node.until(lambda: node.log("app") == "listening\n")


# Termination.


def test_a_container_that_handles_sigterm_stops_before_its_grace_period_ends(
    run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        ends = record_terminations(node)
        script = f"trap 'exit 4' TERM; {LISTEN}"
        node.create(pod("app", container=sh(script), terminationGracePeriodSeconds=60))
        await until_it_listens(node)
        node.delete("app")
        await node.until(lambda: node.is_gone("app"), within=10)
        assert ends["app"].exit_code == 4
        assert ("Normal", "Killing", "Stopping container app") in node.events("app")

    run_on_node(scenario, tmp_path)


def test_a_container_that_ignores_sigterm_is_killed_after_its_grace_period(
    run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        ends, loop = record_terminations(node), asyncio.get_running_loop()
        node.create(pod("app", container=sh(f"trap '' TERM; {LINGER}"), terminationGracePeriodSeconds=1))
        await node.until_ready("app")
        node.delete("app")
        began = loop.time()
        await node.until(lambda: node.is_gone("app"))
        assert 0.9 < loop.time() - began < 20
        assert ends["app"].exit_code == 137

    run_on_node(scenario, tmp_path)


def test_a_second_delete_can_shorten_the_grace_period(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh(f"trap '' TERM; {LINGER}"), terminationGracePeriodSeconds=600))
        await node.until_ready("app")
        node.delete("app")
        await node.until(lambda: any(event[1] == "Killing" for event in node.events("app")))
        node.delete("app", grace_seconds=1)
        await node.until(lambda: node.is_gone("app"), within=10)

    run_on_node(scenario, tmp_path)


@not_on_containerd  # containerd 1.6 ignores the stop signal and sends SIGTERM
def test_a_container_is_stopped_with_its_stop_signal(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        ends = record_terminations(node)
        fields = {**sh(f"trap 'exit 5' USR1; trap 'exit 6' TERM; {LISTEN}"), "lifecycle": {"stopSignal": "SIGUSR1"}}
        node.create(pod("app", container=fields, os={"name": "linux"}, terminationGracePeriodSeconds=20))
        await until_it_listens(node)
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        assert ends["app"].exit_code == 5

    run_on_node(scenario, tmp_path)


def test_a_pod_fails_after_its_active_deadline(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh(POLITE), activeDeadlineSeconds=3))
        await node.until_ready("app")
        await node.until_phase("app", "Failed")
        assert node.see("app").status.reason == "DeadlineExceeded"
        await node.until(lambda: node.status("app").state.terminated is not None)
        assert ("Normal", "DeadlineExceeded") in [event[:2] for event in node.events("app")]

    run_on_node(scenario, tmp_path)


def test_a_pod_can_be_deleted_before_it_starts(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", image="podkeeper.invalid/missing:1"))
        await node.until(lambda: waiting_reason(node, "app") in ("ErrImagePull", "ImagePullBackOff"))
        node.delete("app", grace_seconds=30)
        await node.until(lambda: node.is_gone("app"), within=20)

    run_on_node(scenario, tmp_path)


def test_child_processes_end_with_their_container(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh("setsid sleep 4321 & sleep 0.1; exit 0"), restartPolicy="Never"))
        await node.until_phase("app", "Succeeded")
        await node.until(lambda: not _is_running("sleep\0004321\0"))

    run_on_node(scenario, tmp_path)


def _is_running(command: str) -> bool:
    """Return whether any process of this machine has this command line."""
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{number}/cmdline").read_text() == command:
                return True
        except OSError:
            continue
    return False


@needs("memory")
def test_a_container_over_its_memory_limit_is_reported_as_oom_killed(
    run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        fields = {
            "command": ["dd", "if=/dev/zero", "of=/dev/null", "bs=200M"],
            "resources": {"limits": {"memory": "24Mi"}},
        }
        node.create(pod("app", container=fields, restartPolicy="Never"))
        await node.until_phase("app", "Failed")
        await require_oom_report(node, "app")
        end = node.status("app").state.terminated
        assert end is not None
        assert (end.reason, end.exit_code) == ("OOMKilled", 137)

    retry_until_oom_reported(run_on_node, scenario, tmp_path)


# Termination messages.

LAST_WORDS: dict[str, tuple[Wire, int, str | None]] = {
    "the default file": (sh("echo -n bye >/dev/termination-log"), 0, "bye"),
    "terminationMessagePath": (
        {**sh("echo -n bye >/tmp/words"), "terminationMessagePath": "/tmp/words"}, 0, "bye"
    ),
    "the file after a failure": (sh("echo -n sorry >/dev/termination-log; exit 3"), 3, "sorry"),
    "no message if the file is empty": (sh("echo in the log; exit 3"), 3, None),
    "the end of the log after a failure, with FallbackToLogsOnError": (
        {
            **sh("echo one; sleep 0.1; echo two >&2; exit 3"),
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }, 3, "one\ntwo\n",
    ),
    "not the log after a success": (
        {**sh("echo one"), "terminationMessagePolicy": "FallbackToLogsOnError"}, 0, None
    ),
    "the file takes precedence over the log": (
        {
            **sh("echo one; echo -n two >/dev/termination-log; exit 3"),
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }, 3, "two",
    ),
    "the last 4 KiB of a long file": (
        sh("(printf %01000d 0; printf %04096d 1) >/dev/termination-log"), 0, f"{1:04096}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fields, code, expected", LAST_WORDS.values(), ids=LAST_WORDS.keys())
def test_termination_message(
    run_on_node: ScenarioRunner, fields: Wire, code: int, expected: str | None, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=fields, restartPolicy="Never"))
        await node.until(lambda: node.phase("app") in ("Succeeded", "Failed"))
        end = node.status("app").state.terminated
        assert end is not None
        assert end.exit_code == code
        assert end.message == expected

    run_on_node(scenario, tmp_path)
