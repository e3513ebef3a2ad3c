"""`podkeeper port-forward` to a pod with a network of its own."""

import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.house import PATIENCE_SECONDS, House, roots_house, until
from tests.e2e.kinds import CONTAINERS
from tests.e2e.ways import Way, way_of
from tests.signals import usual_signals

pytestmark = pytest.mark.slow

SERVES = "mkdir /www; echo hello >/www/index.html; head -c 3000000 /dev/zero >/www/big; exec httpd -f -p 8080 -h /www"


@pytest.fixture(params=CONTAINERS)
def way(request: pytest.FixtureRequest) -> Way:
    return way_of(request, request.param)


@pytest.fixture
def house(way: Way, tmp_path: Path) -> Iterator[House]:
    """An agent with a pod that serves pages."""
    with roots_house(tmp_path, way, {"web": {"command": ["sh", "-c", SERVES]}}) as house:
        until(lambda: house.container("web").get("ready"), "it runs")
        yield house


@contextmanager
def forwarded(house: House, way: Way) -> Iterator[int]:
    """A port of this host that leads to the pod."""
    with way.inside(), usual_signals():
        forwarding = subprocess.Popen(house.argv("port-forward", "web", ":8080"), stdout=subprocess.PIPE, text=True)
    try:
        assert forwarding.stdout is not None
        told = forwarding.stdout.readline()
        found = re.fullmatch(r"Forwarding from 127\.0\.0\.1:(\d+) -> 8080\n", told)
        assert found, told
        yield int(found[1])
        forwarding.send_signal(signal.SIGINT)
        forwarding.wait(PATIENCE_SECONDS)
    finally:
        forwarding.kill()
        forwarding.communicate()


def fetched(way: Way, port: int, path: str) -> bytes:
    """What is behind a port."""
    with way.inside(), socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as there:
        there.settimeout(PATIENCE_SECONDS)
        there.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return b"".join(iter(lambda: there.recv(65536), b"")).partition(b"\r\n\r\n")[2]


def test_a_port_of_a_pod_is_reached_from_here_again_and_again(house: House, way: Way) -> None:
    with forwarded(house, way) as port:
        assert [fetched(way, port, "/") for _ in range(3)] == [b"hello\n"] * 3
        assert fetched(way, port, "/big") == bytes(3_000_000)
