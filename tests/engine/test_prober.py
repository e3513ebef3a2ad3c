"""One execution of a probe: the request that is made and the report."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from podkeeper.engine.prober import ProbeExecutor
from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.k8s.core import (
    Container,
    ContainerPort,
    EnvVar,
    ExecAction,
    GRPCAction,
    HTTPGetAction,
    Probe,
    TCPSocketAction,
)
from podkeeper.model.messages import ProbeKind
from podkeeper.model.probing import (
    CommandEnd,
    CommandExited,
    Endpoint,
    GrpcEnd,
    HealthAnswer,
    HttpAnswer,
    HttpEnd,
    HttpRequest,
)
from podkeeper.rules.probe.report import ProbeOutcome, Report
from podkeeper.rules.probe.worker import Target
from podkeeper.testing import build


class ProberHarness:
    """A runtime and a network that record requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[object, ...]] = []
        self.down = False

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> CommandEnd:
        if self.down:
            raise RuntimeUnavailable("cannot reach the runtime")
        self.requests.append(("exec", container_id, tuple(command), timeout_seconds))
        return CommandExited(0, b"fine")

    async def http(self, request: HttpRequest, timeout_seconds: float) -> HttpEnd:
        self.requests.append(("http", request.url, request.headers["User-Agent"], timeout_seconds))
        return HttpAnswer(200, b"fine")

    async def tcp(self, endpoint: Endpoint, timeout_seconds: float) -> str | None:
        self.requests.append(("tcp", str(endpoint), timeout_seconds))
        return None

    async def grpc(self, endpoint: Endpoint, service: str, timeout_seconds: float) -> GrpcEnd:
        self.requests.append(("grpc", str(endpoint), service, timeout_seconds))
        return HealthAnswer(1)


def execute(probe: Probe, node: ProberHarness) -> Report:
    web = Container(
        name="web",
        env=(EnvVar(name="MODE", value="quick"),),
        ports=(ContainerPort(container_port=8080, name="main"),),
        liveness_probe=probe,
    )
    pod = build.pod("web", web, namespace="ns", uid="u1")
    executor = ProbeExecutor(runtime=node, prober=node, version="1.36")
    return asyncio.run(executor.execute(pod, Target(web, ProbeKind.LIVENESS, probe), "10.0.0.1", "fake://c1"))


REQUESTS = {
    "a command runs in the container, with the variables of its spec": (
        Probe(exec=ExecAction(command=("check", "$(MODE)")), timeout_seconds=3),
        ("exec", "c1", ("check", "quick"), 3),
        Report(ProbeOutcome.SUCCESS, "fine"),
    ),
    "the default timeout is one second": (
        Probe(exec=ExecAction(command=("check",))),
        ("exec", "c1", ("check",), 1),
        Report(ProbeOutcome.SUCCESS, "fine"),
    ),
    "HTTP uses the pod's IP and named ports": (
        Probe(http_get=HTTPGetAction(port="main", path="/healthz"), timeout_seconds=2),
        ("http", "http://10.0.0.1:8080/healthz", ("kube-probe/1.36",), 2),
        Report(ProbeOutcome.SUCCESS, "fine"),
    ),
    "TCP only connects": (
        Probe(tcp_socket=TCPSocketAction(port=53, host="dns.example")),
        ("tcp", "dns.example:53", 1),
        Report(ProbeOutcome.SUCCESS),
    ),
    "gRPC calls the health service": (
        Probe(grpc=GRPCAction(port=9000, service="shop")),
        ("grpc", "10.0.0.1:9000", "shop", 1),
        Report(ProbeOutcome.SUCCESS, "service healthy"),
    ),
    "gRPC without a service checks the whole server, within the probe's timeout": (
        Probe(grpc=GRPCAction(port=9000), timeout_seconds=4),
        ("grpc", "10.0.0.1:9000", "", 4),
        Report(ProbeOutcome.SUCCESS, "service healthy"),
    ),
    "TCP uses the pod's IP, within the probe's timeout": (
        Probe(tcp_socket=TCPSocketAction(port="main"), timeout_seconds=5),
        ("tcp", "10.0.0.1:8080", 5),
        Report(ProbeOutcome.SUCCESS),
    ),
    "HTTP has a default timeout of one second": (
        Probe(http_get=HTTPGetAction(port=80, path="/", host="example.com")),
        ("http", "http://example.com:80/", ("kube-probe/1.36",), 1),
        Report(ProbeOutcome.SUCCESS, "fine"),
    ),
}


@pytest.mark.parametrize("probe, expected, report", REQUESTS.values(), ids=REQUESTS.keys())
def test_each_handler_makes_its_request(probe: Probe, expected: tuple[object, ...], report: Report) -> None:
    node = ProberHarness()
    assert execute(probe, node) == report
    assert node.requests == [expected]


EVERYTHING = Probe(
    exec=ExecAction(command=("check",)),
    http_get=HTTPGetAction(port=80),
    tcp_socket=TCPSocketAction(port=80),
    grpc=GRPCAction(port=80),
)


def test_of_several_handlers_the_first_of_exec_http_tcp_grpc_is_used() -> None:
    node = ProberHarness()
    for probe in (
        EVERYTHING,
        replace(EVERYTHING, exec=None),
        replace(EVERYTHING, exec=None, http_get=None),
        replace(EVERYTHING, exec=None, http_get=None, tcp_socket=None),
    ):
        execute(probe, node)
    assert [what for what, *_ in node.requests] == ["exec", "http", "tcp", "grpc"]


ERRORS = {
    "no handler": (Probe(), "missing probe handler for web_ns(u1):web"),
    "an unknown port name": (
        Probe(http_get=HTTPGetAction(port="other")),
        'strconv.Atoi: parsing "other": invalid syntax',
    ),
    "a port out of range": (Probe(tcp_socket=TCPSocketAction(port=70000)), "invalid port number: 70000"),
    "a runtime that does not answer": (Probe(exec=ExecAction(command=("check",))), "cannot reach the runtime"),
}


@pytest.mark.parametrize("probe, error", ERRORS.values(), ids=ERRORS.keys())
def test_an_execution_error_is_reported_and_not_raised(probe: Probe, error: str) -> None:
    node = ProberHarness()
    node.down = True
    assert execute(probe, node) == Report(ProbeOutcome.UNKNOWN, error=error)
