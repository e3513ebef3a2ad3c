"""Probes of all kinds and their effects: restarts, readiness, readiness gates.

The probed servers run in this process. Probes reach them through `host` in the spec or through the host network.
"""

import asyncio
import ssl
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from podkeeper.model.k8s.core import Pod
from tests.e2e.node import NAMESPACE, Node, ScenarioRunner, pod
from tests.e2e.pod_queries import event_messages, restart_count
from tests.e2e.runtime_kinds import not_on_crio, processes_only
from tests.e2e.scripts import LINGER, POLITE, EventLog, note, sh
from tests.host.loopback import closed, grpc_server, replying, server, silent

pytestmark = pytest.mark.slow

OK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BROKEN = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\nhelp"


def every_tenth(*kinds: str) -> Mapping[str, str]:
    """Return annotations that let the probes of `app` run ten times a second."""
    return {f"{kind}.probe-period-milliseconds.podkeeper.io/app": "100" for kind in kinds}


def test_a_failed_liveness_probe_restarts_the_container(
    run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog
) -> None:
    async def scenario(node: Node) -> None:
        probe = {"exec": {"command": ["sh", "-c", "! grep -q sick /events/all"]}, "failureThreshold": 2}
        app = event_log.writes("app", f"echo run >>/events/all; {POLITE}", livenessProbe=probe)
        node.create(pod("app", containers=[app], volumes=event_log.volumes, annotations=every_tenth("liveness")))
        await node.until_ready("app")
        await node.until(lambda: event_log.words == ["run"])
        assert restart_count(node) == 0
        event_log.add("sick")
        await node.until(lambda: restart_count(node) >= 1)
        assert event_log.words[:3] == ["run", "sick", "run"]
        assert event_messages(node, "Unhealthy")[0].startswith("Liveness probe failed: ")
        assert event_messages(node, "Killing")[0] == "Container app failed liveness probe, will be restarted"

    run_on_node(scenario, tmp_path)


def test_readiness_changes_without_a_restart(run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog) -> None:
    async def scenario(node: Node) -> None:
        probe = {"exec": {"command": ["sh", "-c", "tail -n1 /events/all | grep open"]}, "failureThreshold": 1}
        app = event_log.writes("app", f"echo shut >>/events/all; {POLITE}", readinessProbe=probe)
        node.create(pod("app", containers=[app], volumes=event_log.volumes, annotations=every_tenth("readiness")))
        await node.until(lambda: bool(event_messages(node, "Unhealthy")))
        assert node.phase("app") == "Running"
        assert not node.is_ready("app")
        event_log.add("open")
        await node.until_ready("app")
        event_log.add("shut")
        await node.until(lambda: not node.is_ready("app"))
        assert restart_count(node) == 0
        assert event_messages(node, "Unhealthy")[0].startswith("Readiness probe failed: ")

    run_on_node(scenario, tmp_path)


def test_the_other_probes_wait_for_the_startup_probe(
    run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog
) -> None:
    async def scenario(node: Node) -> None:
        startup = {"exec": {"command": ["grep", "-q", "started", "/events/all"]}, "failureThreshold": 1000}
        app = event_log.writes(
            "app", f"echo run >>/events/all; {POLITE}", startupProbe=startup, livenessProbe=note("live"),
            readinessProbe=note("ready"),
        )  # fmt: skip
        quick = every_tenth("startup", "liveness", "readiness")
        node.create(pod("app", containers=[app], volumes=event_log.volumes, annotations=quick))
        await node.until(lambda: bool(event_messages(node, "Unhealthy")))
        assert event_messages(node, "Unhealthy")[0].startswith("Startup probe failed: ")
        assert (event_log.words, node.status("app").started, node.is_ready("app")) == (["run"], False, False)
        event_log.add("started")
        await node.until_ready("app")
        await node.until(lambda: {"live", "ready"} <= set(event_log.words))
        assert event_log.words[:2] == ["run", "started"]
        assert node.status("app").started

    run_on_node(scenario, tmp_path)


def test_a_failed_startup_probe_restarts_the_container(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        probe = {"exec": {"command": ["false"]}, "failureThreshold": 2}
        node.create(pod("app", container={**sh(POLITE), "startupProbe": probe}, annotations=every_tenth("startup")))
        await node.until(lambda: restart_count(node) >= 1)
        assert event_messages(node, "Killing")[0] == "Container app failed startup probe, will be restarted"

    run_on_node(scenario, tmp_path)


def test_the_probe_period_annotation_has_a_minimum_of_100_ms(
    run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog
) -> None:
    async def scenario(node: Node) -> None:
        app = event_log.writes("app", POLITE, livenessProbe={**note("probe"), "periodSeconds": 10})
        greedy = {"liveness.probe-period-milliseconds.podkeeper.io/app": "1"}
        node.create(pod("app", containers=[app], volumes=event_log.volumes, annotations=greedy))
        await node.until(lambda: bool(event_log.words))
        await asyncio.sleep(1)  # this test measures time
        assert 5 <= len(event_log.words) <= 12

    run_on_node(scenario, tmp_path)


def test_a_probe_waits_for_its_initial_delay(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        loop = asyncio.get_running_loop()
        probe = {"exec": {"command": ["true"]}, "initialDelaySeconds": 2}
        began = loop.time()
        node.create(pod("app", container={**sh(POLITE), "readinessProbe": probe}, annotations=every_tenth("readiness")))
        await node.until_ready("app")
        assert 0.9 < loop.time() - began < 5  # it counts from the start time, which has whole seconds

    run_on_node(scenario, tmp_path)


def test_a_container_is_ready_after_its_success_threshold(
    run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog
) -> None:
    async def scenario(node: Node) -> None:
        app = event_log.writes("app", POLITE, readinessProbe={**note("probe"), "successThreshold": 3})
        node.create(pod("app", containers=[app], volumes=event_log.volumes, annotations=every_tenth("readiness")))
        await node.until_ready("app")
        assert len(event_log.words) >= 3

    run_on_node(scenario, tmp_path)


def test_a_hanging_probe_fails_after_its_timeout(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        probe = {"exec": {"command": ["sleep", "3600"]}, "timeoutSeconds": 1, "failureThreshold": 1}
        node.create(pod("app", container={**sh(POLITE), "readinessProbe": probe}, annotations=every_tenth("readiness")))
        await node.until(lambda: bool(event_messages(node, "Unhealthy")))
        assert "timed out" in event_messages(node, "Unhealthy")[0]
        assert node.phase("app") == "Running"
        left = await node.exec("app", "sh", "-c", "grep -ls 360[0] /proc/[0-9]*/cmdline | wc -l")
        assert int(left.output) <= 1  # the next probe may already run

    run_on_node(scenario, tmp_path)


def test_a_failed_liveness_probe_applies_its_own_grace_period(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        probe = {"exec": {"command": ["false"]}, "failureThreshold": 1, "terminationGracePeriodSeconds": 1}
        fields = {**sh(f"trap '' TERM; {LINGER}"), "livenessProbe": probe}
        node.create(
            pod("app", container=fields, annotations=every_tenth("liveness"), terminationGracePeriodSeconds=600)
        )
        await node.until(lambda: restart_count(node) >= 1, within=10)
        assert node.exit_code("app") == 137

    run_on_node(scenario, tmp_path)


def test_http_readiness_follows_the_response_status(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        answers = [BROKEN]

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await replying(answers[0])(reader, writer)

        async with server(handle) as there:
            action = {"port": "web", "path": "/health"}
            fields = {
                **sh(POLITE),
                "ports": [{"name": "web", "containerPort": there.port}],
                "readinessProbe": {"httpGet": action, "failureThreshold": 1},
            }
            node.create(pod("app", container=fields, hostNetwork=True, annotations=every_tenth("readiness")))
            refusal = "Readiness probe failed: HTTP probe failed with statuscode: 500"
            await node.until(lambda: refusal in event_messages(node, "Unhealthy"))
            assert not node.is_ready("app")
            answers[0] = OK
            await node.until_ready("app")
            answers[0] = BROKEN
            await node.until(lambda: not node.is_ready("app"))

    run_on_node(scenario, tmp_path)


def test_failed_http_liveness_restarts_the_container(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        async with server(replying(BROKEN)) as there:
            probe = {"httpGet": {"port": there.port, "host": there.host}, "failureThreshold": 1}
            node.create(
                pod("app", container={**sh(POLITE), "livenessProbe": probe}, annotations=every_tenth("liveness"))
            )
            await node.until(lambda: restart_count(node) >= 1)

    run_on_node(scenario, tmp_path)


def test_https_readiness_accepts_any_certificate(
    run_on_node: ScenarioRunner,
    tmp_path: Path,
    certificate: ssl.SSLContext,
) -> None:
    async def scenario(node: Node) -> None:
        async with server(replying(OK), tls=certificate) as there:
            probe = {"httpGet": {"port": there.port, "host": there.host, "scheme": "HTTPS"}}
            node.create(
                pod("app", container={**sh(POLITE), "readinessProbe": probe}, annotations=every_tenth("readiness"))
            )
            await node.until_ready("app")

    run_on_node(scenario, tmp_path)


def test_tcp_readiness_needs_a_listening_port(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        def probing(name: str, port: int) -> Any:
            probe = {"tcpSocket": {"port": port, "host": "127.0.0.1"}, "failureThreshold": 1}
            return pod(name, container={**sh(POLITE), "readinessProbe": probe}, annotations=every_tenth("readiness"))

        async with server(silent) as there:
            with closed() as nowhere:
                node.create(probing("answered", there.port))
                node.create(probing("unheard", nowhere.port))
                await node.until_ready("answered")
                await node.until(lambda: bool(event_messages(node, "Unhealthy", "unheard")))
                assert "connection refused" in event_messages(node, "Unhealthy", "unheard")[0]
                assert not node.is_ready("unheard")

    run_on_node(scenario, tmp_path)


@processes_only  # containers: test_grpc_probes.py
def test_grpc_readiness_follows_the_health_service(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        answers, requests = [b"\x08\x02"], []

        async def check(request: bytes, context: Any) -> bytes:
            requests.append(request)
            return answers[0]

        async with grpc_server(check) as there:
            probe = {"grpc": {"port": there.port, "service": "shop"}, "failureThreshold": 1}
            fields = {**sh(POLITE), "readinessProbe": probe}
            node.create(pod("app", container=fields, hostNetwork=True, annotations=every_tenth("readiness")))
            # Any event, because on a busy machine the first may report a timeout.
            await node.until(lambda: any("NOT_SERVING" in each for each in event_messages(node, "Unhealthy")))
            assert requests[0] == b"\x0a\x04shop"
            answers[0] = b"\x08\x01"
            await node.until_ready("app")

    run_on_node(scenario, tmp_path)


@not_on_crio  # CRI-O runs no command in a container that is being stopped, so the probe result is unknown
def test_a_terminating_pod_becomes_not_ready(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        probe = {"exec": {"command": ["sh", "-c", "test ! -e /tmp/ending"]}, "failureThreshold": 1}
        script = f"trap 'touch /tmp/ending' TERM; {LINGER}"
        node.create(
            pod(
                "app",
                container={**sh(script), "readinessProbe": probe},
                annotations=every_tenth("readiness"),
                terminationGracePeriodSeconds=20,
            )
        )
        await node.until_ready("app")
        node.delete("app")
        await node.until(lambda: not node.is_ready("app"))
        assert not node.is_gone("app")
        node.delete("app", grace_seconds=1)
        await node.until(lambda: node.is_gone("app"), within=10)

    run_on_node(scenario, tmp_path)


def test_a_readiness_gate_holds_back_pod_readiness(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        def is_shown(ready: bool) -> bool:
            return node.is_ready("app") is ready

        node.create(pod("app", container=sh(POLITE), readinessGates=[{"conditionType": "example.com/open"}]))
        await node.until(lambda: node.phase("app") == "Running" and bool(node.status("app").ready))
        assert not node.is_ready("app")
        for status in ("True", "False"):
            gate = {"type": "example.com/open", "status": status}
            await node.api.patch_status(Pod, "app", {"status": {"conditions": [gate]}}, NAMESPACE)
            await node.until(partial(is_shown, ready=status == "True"))

    run_on_node(scenario, tmp_path)
