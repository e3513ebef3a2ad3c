"""Lifecycle hooks: postStart and preStop.

The servers of HTTP hooks run in this process. The hooks reach them through `host` in the spec.
"""

import asyncio
from pathlib import Path

import pytest

from tests.e2e.node import Node, ScenarioRunner, pod
from tests.e2e.pod_queries import event_messages
from tests.e2e.scripts import LINGER, POLITE, EventLog, note, sh
from tests.host.loopback import recording, server, silent

pytestmark = pytest.mark.slow

# postStart.


def test_a_container_is_running_after_its_post_start_hook(
    run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog
) -> None:
    async def scenario(node: Node) -> None:
        hook = {"exec": {"command": ["sh", "-c", "until grep -q go /events/all; do sleep 0.02; done 2>/dev/null"]}}
        app = event_log.writes("app", f"echo app >>/events/all; {POLITE}", lifecycle={"postStart": hook})
        node.create(pod("app", containers=[app], volumes=event_log.volumes))
        await node.until(lambda: event_log.words == ["app"])
        await asyncio.sleep(0.1)
        assert not node.is_ready("app")
        event_log.add("go")
        await node.until_ready("app")

    run_on_node(scenario, tmp_path)


def test_a_failed_post_start_hook_kills_the_container(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        hook = {"exec": {"command": ["sh", "-c", "echo no luck; exit 4"]}}
        node.create(pod("app", container={**sh(POLITE), "lifecycle": {"postStart": hook}}, restartPolicy="Never"))
        await node.until_phase("app", "Succeeded")  # it exits with 0 on SIGTERM
        assert event_messages(node, "FailedPostStartHook") == ["PostStartHook failed"]
        assert event_messages(node, "Killing") == ["FailedPostStartHook"]

    run_on_node(scenario, tmp_path)


def test_a_post_start_sleep_delays_the_running_state(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        node.create(pod("app", container={**sh(POLITE), "lifecycle": {"postStart": {"sleep": {"seconds": 1}}}}))
        await node.until_ready("app")
        assert 1 <= loop.time() - began < 20

    run_on_node(scenario, tmp_path)


@pytest.mark.parametrize("when", ["postStart", "preStop"])
def test_http_post_start_hook(run_on_node: ScenarioRunner, when: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        requests: list[str] = []
        async with server(recording(requests)) as there:
            headers = [{"name": "X-Word", "value": "please"}]
            action = {"path": "/hook?a=1", "port": there.port, "host": there.host, "httpHeaders": headers}
            node.create(pod("app", container={**sh(POLITE), "lifecycle": {when: {"httpGet": action}}}))
            await node.until_ready("app")
            assert len(requests) == (1 if when == "postStart" else 0)
            node.delete("app")
            await node.until(lambda: node.is_gone("app"))
        assert len(requests) == 1
        assert requests[0].startswith("GET /hook?a=1 HTTP/1.1\r\n")
        assert "X-Word: please\r\n" in requests[0]

    run_on_node(scenario, tmp_path)


def test_a_tcp_hook_fails(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        async with server(silent) as there:
            hook = {"tcpSocket": {"port": there.port, "host": there.host}}
            node.create(pod("app", container={**sh(POLITE), "lifecycle": {"postStart": hook}}, restartPolicy="Never"))
            await node.until(lambda: bool(event_messages(node, "FailedPostStartHook")))

    run_on_node(scenario, tmp_path)


# preStop.


def test_the_pre_stop_hook_runs_before_sigterm(
    run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog
) -> None:
    async def scenario(node: Node) -> None:
        script = f"trap 'echo term >>/events/all; exit 0' TERM; {LINGER}"
        app = event_log.writes("app", script, lifecycle={"preStop": note("hook")})
        node.create(pod("app", containers=[app], volumes=event_log.volumes))
        await node.until_ready("app")
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        assert event_log.words == ["hook", "term"]

    run_on_node(scenario, tmp_path)


def test_a_container_that_exits_by_itself_skips_the_pre_stop_hook(
    run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog
) -> None:
    async def scenario(node: Node) -> None:
        app = event_log.writes("app", "sleep 0.1", lifecycle={"preStop": note("hook")})
        node.create(pod("app", containers=[app], volumes=event_log.volumes, restartPolicy="Never"))
        await node.until_phase("app", "Succeeded")
        assert event_log.words == []

    run_on_node(scenario, tmp_path)


def test_a_container_stops_after_a_failed_pre_stop_hook(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        hook = {"exec": {"command": ["false"]}}
        node.create(pod("app", container={**sh(POLITE), "lifecycle": {"preStop": hook}}))
        await node.until_ready("app")
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        assert event_messages(node, "FailedPreStopHook") == ["PreStopHook failed"]

    run_on_node(scenario, tmp_path)


def test_the_pre_stop_hook_counts_against_the_grace_period(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        hook = {"exec": {"command": ["sleep", "60"]}}
        node.create(
            pod("app", container={**sh(POLITE), "lifecycle": {"preStop": hook}}, terminationGracePeriodSeconds=1)
        )
        await node.until_ready("app")
        node.delete("app")
        await node.until(lambda: node.is_gone("app"), within=10)

    run_on_node(scenario, tmp_path)


def test_a_pre_stop_sleep_delays_sigterm(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        loop = asyncio.get_running_loop()
        fields = {**sh(POLITE), "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}
        node.create(pod("app", container=fields, terminationGracePeriodSeconds=30))
        await node.until_ready("app")
        began = loop.time()
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        assert 1 <= loop.time() - began < 20

    run_on_node(scenario, tmp_path)
