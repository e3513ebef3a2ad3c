"""Pod networking: addresses, DNS, /etc/hosts, host network, host ports."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.backends import CriBackend
from tests.e2e.node import Node, ScenarioRunner, pod
from tests.e2e.pod_queries import event_messages, log_after_success
from tests.e2e.runtime_kinds import containers_only
from tests.e2e.scripts import POLITE, EventLog, sh
from tests.runtimes.cri.cri_node import GATEWAY

pytestmark = [pytest.mark.slow, containers_only]

SERVES = "mkdir /www; echo hello >/www/index.html; exec httpd -f -p 8080 -h /www"
QUICK = {f"{kind}.probe-period-milliseconds.podkeeper.io/app": "100" for kind in ("readiness", "liveness")}


def web(name: str = "app", container: Any = None, **spec: Any) -> Any:
    """Return a pod with a web server and an HTTP readiness probe. `container` has more fields of its container."""
    probe = {"httpGet": {"port": "web"}, "failureThreshold": 1, "timeoutSeconds": 1}
    fields = {**sh(SERVES), "ports": [{"name": "web", "containerPort": 8080}], "readinessProbe": probe}
    fields |= container or {}
    return pod(name, container=fields, annotations=QUICK, **spec)


async def page(address: str, path: str = "/", port: int = 8080) -> str:
    """Fetch a page from a web server."""
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    try:
        return (await reader.read()).decode()
    finally:
        writer.close()


def test_each_pod_has_its_own_address_and_is_probed_there(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(web("one"))
        node.create(web("two"))
        await node.until_ready("one", "two")
        one, two = (node.see(name).status.pod_ip or "" for name in ("one", "two"))
        assert one != two
        assert (await page(one)).endswith("hello\n")
        there = await node.exec("one", "wget", "-q", "-O", "-", f"http://{two}:8080/")
        assert there.output == b"hello\n"

    run_on_node(scenario, tmp_path)


def test_a_failed_tcp_liveness_probe_restarts_the_container(
    run_on_node: ScenarioRunner, tmp_path: Path, event_log: EventLog
) -> None:
    async def scenario(node: Node) -> None:
        probe = {"tcpSocket": {"port": 8080}, "failureThreshold": 1, "initialDelaySeconds": 1}
        serves = "echo run >>/events/all; mkdir /www; httpd -p 8080 -h /www; " + POLITE
        app = event_log.writes("app", serves, livenessProbe=probe)
        node.create(pod("app", containers=[app], volumes=event_log.volumes, annotations=QUICK))
        await node.until_ready("app")
        await node.exec("app", "killall", "httpd")
        await node.until(lambda: event_log.words == ["run", "run"])
        assert "connection refused" in event_messages(node, "Unhealthy")[0]

    run_on_node(scenario, tmp_path)


def test_http_hooks_use_the_pod_address(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        hook = {"httpGet": {"port": 8080, "path": "/cgi-bin/hook"}}
        answer = "#!/bin/sh\\necho called >>/v/all; echo; echo ok\\n"
        script = f"mkdir -p /www/cgi-bin; cd /www/cgi-bin; printf '{answer}' >hook; chmod +x hook; "
        script += f"httpd -p 8080 -h /www; {POLITE}"
        fields = {
            **sh(script),
            "lifecycle": {"preStop": hook},
            "readinessProbe": {"tcpSocket": {"port": 8080}},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        }
        shown = tmp_path / "v"
        shown.mkdir()
        volumes = [{"name": "v", "hostPath": {"path": str(shown)}}]
        node.create(pod("app", container=fields, volumes=volumes, annotations=QUICK))
        await node.until_ready("app")
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        assert (shown / "all").read_text() == "called\n"

    run_on_node(scenario, tmp_path / "node")


def test_dns_policy_and_dns_config_are_applied(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        own = {"nameservers": ["192.0.2.1"], "searches": ["a.example"], "options": [{"name": "ndots", "value": "3"}]}
        show = ("cat", "/etc/resolv.conf")
        node.create(pod("own", command=show, restartPolicy="Never", dnsPolicy="None", dnsConfig=own))
        node.create(pod("cluster", command=show, restartPolicy="Never"))
        assert (await log_after_success(node, "own")).splitlines() == [
            "search a.example", "nameserver 192.0.2.1", "options ndots:3"
        ]  # fmt: skip
        cluster = (await log_after_success(node, "cluster")).splitlines()
        assert cluster[0].startswith("search default.svc.cluster.local svc.cluster.local cluster.local")
        assert cluster[1:] == ["nameserver 10.96.0.10", "options ndots:5"]

    run_on_node(scenario, tmp_path)


def test_etc_hosts_has_the_pod_and_its_host_aliases(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        aliases = [{"ip": "192.0.2.7", "hostnames": ["seven", "seven.example"]}]
        script = 'echo "$POD_IP"; cat /etc/hosts'
        env = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
        fields = {**sh(script), "env": env}
        node.create(
            pod("app", container=fields, restartPolicy="Never", hostname="front", subdomain="shop", hostAliases=aliases)
        )
        address, *lines = (await log_after_success(node)).splitlines()
        assert f"{address}\tfront.shop.default.svc.cluster.local\tfront" in lines
        assert lines[-1] == "192.0.2.7\tseven\tseven.example"

    run_on_node(scenario, tmp_path)


def test_a_pod_with_host_network_has_the_host_address(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(web(hostNetwork=True))
        await node.until_ready("app")
        shown = node.see("app").status
        assert shown.pod_ip == shown.host_ip
        assert (await page("127.0.0.1")).endswith("hello\n")

    run_on_node(scenario, tmp_path)


def test_a_host_port_reaches_the_pod_until_its_removal(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    assert isinstance(run_on_node.backend, CriBackend)
    cri_node = run_on_node.backend.cri_node
    if cri_node.name == "cri-o" and shutil.which("nft") is None:
        pytest.skip("there is no nft, which CRI-O calls for ports of the host: install Debian's nftables")
    if shutil.which("iptables") is None:
        pytest.skip("there is no iptables, which the CNI plugin portmap calls: install Debian's iptables")

    async def scenario(node: Node) -> None:
        ports = [{"name": "web", "containerPort": 8080, "hostPort": 18080}]
        node.create(web(container={"ports": ports}))
        await node.until_ready("app")
        assert (await page(GATEWAY, port=18080)).endswith("hello\n")
        node.create(web("too-late", container={"ports": ports}))
        await node.until(lambda: node.see("too-late").status.phase == "Failed")
        assert node.see("too-late").status.reason == "NodePorts"
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        with pytest.raises(ConnectionRefusedError):
            await page(GATEWAY, port=18080)

    with cri_node.with_host_ports():
        run_on_node(scenario, tmp_path)
