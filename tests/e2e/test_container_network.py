"""The network of a pod: an address of its own, names that it knows, and who can reach it."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.asking import said, told
from tests.e2e.homes import Containers
from tests.e2e.kinds import containers_only
from tests.e2e.node import Node, OnANode, pod
from tests.e2e.scripts import POLITE, Diary, sh
from tests.runtimes.cri.cri_node import GATEWAY

pytestmark = [pytest.mark.slow, containers_only]

SERVES = "mkdir /www; echo hello >/www/index.html; exec httpd -f -p 8080 -h /www"
QUICK = {f"{kind}.probe-period-milliseconds.podkeeper.io/app": "100" for kind in ("readiness", "liveness")}


def web(name: str = "app", container: Any = None, **spec: Any) -> Any:
    """A pod that serves pages, and says so by HTTP; `container`: more about its container."""
    probe = {"httpGet": {"port": "web"}, "failureThreshold": 1, "timeoutSeconds": 1}
    fields = {**sh(SERVES), "ports": [{"name": "web", "containerPort": 8080}], "readinessProbe": probe}
    fields |= container or {}
    return pod(name, container=fields, annotations=QUICK, **spec)


async def page(address: str, path: str = "/", port: int = 8080) -> str:
    """What a web server says."""
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    try:
        return (await reader.read()).decode()
    finally:
        writer.close()


def test_pods_have_addresses_of_their_own_and_are_probed_there(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(web("one"))
        node.create(web("two"))
        await node.until_ready("one", "two")
        one, two = (node.see(name).status.pod_ip or "" for name in ("one", "two"))
        assert one != two
        assert (await page(one)).endswith("hello\n")
        there = await node.exec("one", "wget", "-q", "-O", "-", f"http://{two}:8080/")
        assert there.output == b"hello\n"

    on_a_node(scenario, tmp_path)


def test_who_stops_serving_is_found_dead_and_runs_again(on_a_node: OnANode, tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        probe = {"tcpSocket": {"port": 8080}, "failureThreshold": 1, "initialDelaySeconds": 1}
        serves = "echo run >>/diary/all; mkdir /www; httpd -p 8080 -h /www; " + POLITE
        app = diary.writes("app", serves, livenessProbe=probe)
        node.create(pod("app", containers=[app], volumes=diary.volumes, annotations=QUICK))
        await node.until_ready("app")
        await node.exec("app", "killall", "httpd")
        await node.until(lambda: diary.words == ["run", "run"])
        assert "connection refused" in told(node, "Unhealthy")[0]

    on_a_node(scenario, tmp_path)


def test_hooks_are_requests_to_the_pods_own_address(on_a_node: OnANode, tmp_path: Path) -> None:
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

    on_a_node(scenario, tmp_path / "node")


def test_names_are_looked_up_as_the_pod_says(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        own = {"nameservers": ["192.0.2.1"], "searches": ["a.example"], "options": [{"name": "ndots", "value": "3"}]}
        look = ("cat", "/etc/resolv.conf")
        node.create(pod("own", command=look, restartPolicy="Never", dnsPolicy="None", dnsConfig=own))
        node.create(pod("cluster", command=look, restartPolicy="Never"))
        assert (await said(node, "own")).splitlines() == [
            "search a.example", "nameserver 192.0.2.1", "options ndots:3"
        ]  # fmt: skip
        cluster = (await said(node, "cluster")).splitlines()
        assert cluster[0].startswith("search default.svc.cluster.local svc.cluster.local cluster.local")
        assert cluster[1:] == ["nameserver 10.96.0.10", "options ndots:5"]

    on_a_node(scenario, tmp_path)


def test_a_pod_knows_itself_and_its_aliases_by_name(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        aliases = [{"ip": "192.0.2.7", "hostnames": ["seven", "seven.example"]}]
        script = 'echo "$POD_IP"; cat /etc/hosts'
        env = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
        fields = {**sh(script), "env": env}
        node.create(
            pod("app", container=fields, restartPolicy="Never", hostname="front", subdomain="shop", hostAliases=aliases)
        )
        address, *lines = (await said(node)).splitlines()
        assert f"{address}\tfront.shop.default.svc.cluster.local\tfront" in lines
        assert lines[-1] == "192.0.2.7\tseven\tseven.example"

    on_a_node(scenario, tmp_path)


def test_a_pod_in_the_hosts_network_has_the_hosts_address(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(web(hostNetwork=True))
        await node.until_ready("app")
        shown = node.see("app").status
        assert shown.pod_ip == shown.host_ip
        assert (await page("127.0.0.1")).endswith("hello\n")

    on_a_node(scenario, tmp_path)


def test_a_port_of_the_host_leads_to_the_pod_as_long_as_it_is_there(on_a_node: OnANode, tmp_path: Path) -> None:
    assert isinstance(on_a_node.home, Containers)
    cri_node = on_a_node.home.cri_node
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
        on_a_node(scenario, tmp_path)
