"""`podkeeper port-forward` to a pod with its own network namespace."""

import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.agent_process import TIMEOUT_SECONDS, AgentProcess, agent_with_pods, until
from tests.e2e.cli_runtimes import CliRuntime, cli_runtime
from tests.e2e.runtime_kinds import CONTAINERS
from tests.signals import usual_signals

pytestmark = pytest.mark.slow

SERVES = "mkdir /www; echo hello >/www/index.html; head -c 3000000 /dev/zero >/www/big; exec httpd -f -p 8080 -h /www"


@pytest.fixture(params=CONTAINERS)
def runtime(request: pytest.FixtureRequest) -> CliRuntime:
    return cli_runtime(request, request.param)


@pytest.fixture
def agent(runtime: CliRuntime, tmp_path: Path) -> Iterator[AgentProcess]:
    """Run an agent with a web server pod."""
    with agent_with_pods(tmp_path, runtime, {"web": {"command": ["sh", "-c", SERVES]}}) as agent:
        until(lambda: agent.container("web").get("ready"), "web is ready")
        yield agent


@contextmanager
def forwarded(agent: AgentProcess, runtime: CliRuntime) -> Iterator[int]:
    """Run `podkeeper port-forward` and yield the local port."""
    with runtime.in_network(), usual_signals():
        forwarding = subprocess.Popen(agent.argv("port-forward", "web", ":8080"), stdout=subprocess.PIPE, text=True)
    try:
        assert forwarding.stdout is not None
        line = forwarding.stdout.readline()
        found = re.fullmatch(r"Forwarding from 127\.0\.0\.1:(\d+) -> 8080\n", line)
        assert found, line
        yield int(found[1])
        forwarding.send_signal(signal.SIGINT)
        forwarding.wait(TIMEOUT_SECONDS)
    finally:
        forwarding.kill()
        forwarding.communicate()


def fetched(runtime: CliRuntime, port: int, path: str) -> bytes:
    with runtime.in_network(), socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as there:
        there.settimeout(TIMEOUT_SECONDS)
        there.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return b"".join(iter(lambda: there.recv(65536), b"")).partition(b"\r\n\r\n")[2]


def test_port_forward_handles_several_connections(agent: AgentProcess, runtime: CliRuntime) -> None:
    with forwarded(agent, runtime) as port:
        assert [fetched(runtime, port, "/") for _ in range(3)] == [b"hello\n"] * 3
        assert fetched(runtime, port, "/big") == bytes(3_000_000)
