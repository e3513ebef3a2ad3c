"""Probes of all kinds, and what follows from them: restarts, readiness, gates.

Servers that probes talk to live in this process: `host` in the spec, or the host's network, leads there.
"""

import asyncio
import ssl
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from podkeeper.model.k8s.core import Pod
from tests.e2e.asking import restarts, told
from tests.e2e.kinds import not_on_crio, processes_only
from tests.e2e.node import NAMESPACE, Node, OnANode, pod
from tests.e2e.scripts import LINGER, POLITE, Diary, note, sh
from tests.host.loopback import closed, grpc_server, saying, server, silence

pytestmark = pytest.mark.slow

OK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BROKEN = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\nhelp"


def every_tenth(*kinds: str) -> Mapping[str, str]:
    """Annotations that let the probes of `app` run ten times a second."""
    return {f"{kind}.probe-period-milliseconds.podkeeper.io/app": "100" for kind in kinds}


def test_a_container_that_is_found_dead_runs_again(on_a_node: OnANode, tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        probe = {"exec": {"command": ["sh", "-c", "! grep -q sick /diary/all"]}, "failureThreshold": 2}
        app = diary.writes("app", f"echo run >>/diary/all; {POLITE}", livenessProbe=probe)
        node.create(pod("app", containers=[app], volumes=diary.volumes, annotations=every_tenth("liveness")))
        await node.until_ready("app")
        await node.until(lambda: diary.words == ["run"])
        assert restarts(node) == 0
        diary.add("sick")
        await node.until(lambda: restarts(node) >= 1)
        assert diary.words[:3] == ["run", "sick", "run"]
        assert told(node, "Unhealthy")[0].startswith("Liveness probe failed: ")
        assert told(node, "Killing")[0] == "Container app failed liveness probe, will be restarted"

    on_a_node(scenario, tmp_path)


def test_readiness_comes_and_goes_without_a_restart(on_a_node: OnANode, tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        probe = {"exec": {"command": ["sh", "-c", "tail -n1 /diary/all | grep open"]}, "failureThreshold": 1}
        app = diary.writes("app", f"echo shut >>/diary/all; {POLITE}", readinessProbe=probe)
        node.create(pod("app", containers=[app], volumes=diary.volumes, annotations=every_tenth("readiness")))
        await node.until(lambda: bool(told(node, "Unhealthy")))
        assert node.phase("app") == "Running"
        assert not node.is_ready("app")
        diary.add("open")
        await node.until_ready("app")
        diary.add("shut")
        await node.until(lambda: not node.is_ready("app"))
        assert restarts(node) == 0
        assert told(node, "Unhealthy")[0].startswith("Readiness probe failed: ")

    on_a_node(scenario, tmp_path)


def test_the_other_probes_wait_for_the_startup_probe(on_a_node: OnANode, tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        startup = {"exec": {"command": ["grep", "-q", "started", "/diary/all"]}, "failureThreshold": 1000}
        app = diary.writes(
            "app", f"echo run >>/diary/all; {POLITE}", startupProbe=startup, livenessProbe=note("live"),
            readinessProbe=note("ready"),
        )  # fmt: skip
        quick = every_tenth("startup", "liveness", "readiness")
        node.create(pod("app", containers=[app], volumes=diary.volumes, annotations=quick))
        await node.until(lambda: bool(told(node, "Unhealthy")))
        assert told(node, "Unhealthy")[0].startswith("Startup probe failed: ")
        assert (diary.words, node.status("app").started, node.is_ready("app")) == (["run"], False, False)
        diary.add("started")
        await node.until_ready("app")
        await node.until(lambda: {"live", "ready"} <= set(diary.words))
        assert diary.words[:2] == ["run", "started"]
        assert node.status("app").started

    on_a_node(scenario, tmp_path)


def test_a_container_that_never_starts_up_runs_again(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        probe = {"exec": {"command": ["false"]}, "failureThreshold": 2}
        node.create(pod("app", container={**sh(POLITE), "startupProbe": probe}, annotations=every_tenth("startup")))
        await node.until(lambda: restarts(node) >= 1)
        assert told(node, "Killing")[0] == "Container app failed startup probe, will be restarted"

    on_a_node(scenario, tmp_path)


def test_a_probe_runs_as_often_as_its_annotation_says_but_not_more_than_ten_times_a_second(
    on_a_node: OnANode, tmp_path: Path, diary: Diary
) -> None:
    async def scenario(node: Node) -> None:
        app = diary.writes("app", POLITE, livenessProbe={**note("probe"), "periodSeconds": 10})
        greedy = {"liveness.probe-period-milliseconds.podkeeper.io/app": "1"}
        node.create(pod("app", containers=[app], volumes=diary.volumes, annotations=greedy))
        await node.until(lambda: bool(diary.words))
        await asyncio.sleep(1)  # time itself is the point
        assert 5 <= len(diary.words) <= 12

    on_a_node(scenario, tmp_path)


def test_a_probe_waits_for_its_initial_delay(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        loop = asyncio.get_running_loop()
        probe = {"exec": {"command": ["true"]}, "initialDelaySeconds": 2}
        began = loop.time()
        node.create(pod("app", container={**sh(POLITE), "readinessProbe": probe}, annotations=every_tenth("readiness")))
        await node.until_ready("app")
        assert 0.9 < loop.time() - began < 5  # it counts from the whole second in which the container started

    on_a_node(scenario, tmp_path)


def test_a_container_is_ready_after_as_many_successes_as_asked_for(
    on_a_node: OnANode, tmp_path: Path, diary: Diary
) -> None:
    async def scenario(node: Node) -> None:
        app = diary.writes("app", POLITE, readinessProbe={**note("probe"), "successThreshold": 3})
        node.create(pod("app", containers=[app], volumes=diary.volumes, annotations=every_tenth("readiness")))
        await node.until_ready("app")
        assert len(diary.words) >= 3

    on_a_node(scenario, tmp_path)


def test_a_probe_that_hangs_has_failed_when_its_time_is_up(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        probe = {"exec": {"command": ["sleep", "3600"]}, "timeoutSeconds": 1, "failureThreshold": 1}
        node.create(pod("app", container={**sh(POLITE), "readinessProbe": probe}, annotations=every_tenth("readiness")))
        await node.until(lambda: bool(told(node, "Unhealthy")))
        assert "timed out" in told(node, "Unhealthy")[0]
        assert node.phase("app") == "Running"
        left = await node.exec("app", "sh", "-c", "grep -ls 360[0] /proc/[0-9]*/cmdline | wc -l")
        assert int(left.output) <= 1  # the next one, perhaps

    on_a_node(scenario, tmp_path)


def test_a_dead_container_gets_the_grace_of_its_probe(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        probe = {"exec": {"command": ["false"]}, "failureThreshold": 1, "terminationGracePeriodSeconds": 1}
        fields = {**sh(f"trap '' TERM; {LINGER}"), "livenessProbe": probe}
        node.create(
            pod("app", container=fields, annotations=every_tenth("liveness"), terminationGracePeriodSeconds=600)
        )
        await node.until(lambda: restarts(node) >= 1, within=10)
        assert node.exit_code("app") == 137

    on_a_node(scenario, tmp_path)


def test_readiness_by_http_follows_the_answers(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        answers = [BROKEN]

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await saying(answers[0])(reader, writer)

        async with server(talk) as there:
            action = {"port": "web", "path": "/health"}
            fields = {
                **sh(POLITE),
                "ports": [{"name": "web", "containerPort": there.port}],
                "readinessProbe": {"httpGet": action, "failureThreshold": 1},
            }
            node.create(pod("app", container=fields, hostNetwork=True, annotations=every_tenth("readiness")))
            refusal = "Readiness probe failed: HTTP probe failed with statuscode: 500"
            await node.until(lambda: refusal in told(node, "Unhealthy"))
            assert not node.is_ready("app")
            answers[0] = OK
            await node.until_ready("app")
            answers[0] = BROKEN
            await node.until(lambda: not node.is_ready("app"))

    on_a_node(scenario, tmp_path)


def test_liveness_by_http_restarts_what_answers_badly(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        async with server(saying(BROKEN)) as there:
            probe = {"httpGet": {"port": there.port, "host": there.host}, "failureThreshold": 1}
            node.create(
                pod("app", container={**sh(POLITE), "livenessProbe": probe}, annotations=every_tenth("liveness"))
            )
            await node.until(lambda: restarts(node) >= 1)

    on_a_node(scenario, tmp_path)


def test_readiness_by_https_asks_for_no_certificate_in_particular(
    on_a_node: OnANode,
    tmp_path: Path,
    certificate: ssl.SSLContext,
) -> None:
    async def scenario(node: Node) -> None:
        async with server(saying(OK), tls=certificate) as there:
            probe = {"httpGet": {"port": there.port, "host": there.host, "scheme": "HTTPS"}}
            node.create(
                pod("app", container={**sh(POLITE), "readinessProbe": probe}, annotations=every_tenth("readiness"))
            )
            await node.until_ready("app")

    on_a_node(scenario, tmp_path)


def test_readiness_by_tcp_needs_somebody_who_listens(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        def probing(name: str, port: int) -> Any:
            probe = {"tcpSocket": {"port": port, "host": "127.0.0.1"}, "failureThreshold": 1}
            return pod(name, container={**sh(POLITE), "readinessProbe": probe}, annotations=every_tenth("readiness"))

        async with server(silence) as there:
            with closed() as nowhere:
                node.create(probing("heard", there.port))
                node.create(probing("unheard", nowhere.port))
                await node.until_ready("heard")
                await node.until(lambda: bool(told(node, "Unhealthy", "unheard")))
                assert "connection refused" in told(node, "Unhealthy", "unheard")[0]
                assert not node.is_ready("unheard")

    on_a_node(scenario, tmp_path)


@processes_only  # containers: test_grpc_probes.py
def test_readiness_by_grpc_follows_the_health_service(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        answers, asked = [b"\x08\x02"], []

        async def check(request: bytes, context: Any) -> bytes:
            asked.append(request)
            return answers[0]

        async with grpc_server(check) as there:
            probe = {"grpc": {"port": there.port, "service": "shop"}, "failureThreshold": 1}
            fields = {**sh(POLITE), "readinessProbe": probe}
            node.create(pod("app", container=fields, hostNetwork=True, annotations=every_tenth("readiness")))
            # Not the first that is told: on a busy machine that may be that nobody answered in time.
            await node.until(lambda: any("NOT_SERVING" in each for each in told(node, "Unhealthy")))
            assert asked[0] == b"\x0a\x04shop"
            answers[0] = b"\x08\x01"
            await node.until_ready("app")

    on_a_node(scenario, tmp_path)


@not_on_crio  # which runs no command any more in a container that is being stopped: what a probe would find is unknown
def test_a_pod_being_deleted_is_soon_not_ready(on_a_node: OnANode, tmp_path: Path) -> None:
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

    on_a_node(scenario, tmp_path)


def test_a_pod_with_a_gate_is_ready_once_others_say_so(on_a_node: OnANode, tmp_path: Path) -> None:
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

    on_a_node(scenario, tmp_path)
