"""One execution of a probe: what is asked of whom, and what comes back."""

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
    Pod,
    PodSpec,
    Probe,
    TCPSocketAction,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import ProbeKind
from podkeeper.model.probing import (
    Answered,
    CommandEnd,
    Endpoint,
    Exited,
    GrpcEnd,
    HttpAnswer,
    HttpEnd,
    HttpRequest,
)
from podkeeper.rules.probe.report import Outcome, Report
from podkeeper.rules.probe.worker import Target


class Node:
    """A runtime and a network that note what they are asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.down = False

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> CommandEnd:
        if self.down:
            raise RuntimeUnavailable("cannot reach the runtime")
        self.asked.append(("exec", container_id, tuple(command), timeout_seconds))
        return Exited(0, b"fine")

    async def http(self, request: HttpRequest, timeout_seconds: float) -> HttpEnd:
        self.asked.append(("http", request.url, request.headers["User-Agent"], timeout_seconds))
        return HttpAnswer(200, b"fine")

    async def tcp(self, endpoint: Endpoint, timeout_seconds: float) -> str | None:
        self.asked.append(("tcp", str(endpoint), timeout_seconds))
        return None

    async def grpc(self, endpoint: Endpoint, service: str, timeout_seconds: float) -> GrpcEnd:
        self.asked.append(("grpc", str(endpoint), service, timeout_seconds))
        return Answered(1)


def execute(probe: Probe, node: Node) -> Report:
    web = Container(
        name="web",
        env=(EnvVar(name="MODE", value="quick"),),
        ports=(ContainerPort(container_port=8080, name="main"),),
        liveness_probe=probe,
    )
    pod = Pod(metadata=ObjectMeta(name="web", namespace="ns", uid="u1"), spec=PodSpec(containers=(web,)))
    executor = ProbeExecutor(runtime=node, prober=node, version="1.36")
    return asyncio.run(executor.execute(pod, Target(web, ProbeKind.LIVENESS, probe), "10.0.0.1", "fake://c1"))


WELL = {
    "a command runs in the container, with the variables of its spec": (
        Probe(exec=ExecAction(command=("check", "$(MODE)")), timeout_seconds=3),
        ("exec", "c1", ("check", "quick"), 3),
        Report(Outcome.SUCCESS, "fine"),
    ),
    "without a timeout a second must do": (
        Probe(exec=ExecAction(command=("check",))),
        ("exec", "c1", ("check",), 1),
        Report(Outcome.SUCCESS, "fine"),
    ),
    "HTTP goes to the pod's address, ports have names": (
        Probe(http_get=HTTPGetAction(port="main", path="/healthz"), timeout_seconds=2),
        ("http", "http://10.0.0.1:8080/healthz", ("kube-probe/1.36",), 2),
        Report(Outcome.SUCCESS, "fine"),
    ),
    "TCP only connects": (
        Probe(tcp_socket=TCPSocketAction(port=53, host="dns.example")),
        ("tcp", "dns.example:53", 1),
        Report(Outcome.SUCCESS),
    ),
    "gRPC asks the health service": (
        Probe(grpc=GRPCAction(port=9000, service="shop")),
        ("grpc", "10.0.0.1:9000", "shop", 1),
        Report(Outcome.SUCCESS, "service healthy"),
    ),
    "gRPC without a service asks about the whole server, within the probe's timeout": (
        Probe(grpc=GRPCAction(port=9000), timeout_seconds=4),
        ("grpc", "10.0.0.1:9000", "", 4),
        Report(Outcome.SUCCESS, "service healthy"),
    ),
    "TCP goes to the pod's address, within the probe's timeout": (
        Probe(tcp_socket=TCPSocketAction(port="main"), timeout_seconds=5),
        ("tcp", "10.0.0.1:8080", 5),
        Report(Outcome.SUCCESS),
    ),
    "HTTP without a timeout has a second": (
        Probe(http_get=HTTPGetAction(port=80, path="/", host="example.com")),
        ("http", "http://example.com:80/", ("kube-probe/1.36",), 1),
        Report(Outcome.SUCCESS, "fine"),
    ),
}


@pytest.mark.parametrize("probe, asked, report", WELL.values(), ids=WELL.keys())
def test_what_is_asked(probe: Probe, asked: tuple[object, ...], report: Report) -> None:
    node = Node()
    assert execute(probe, node) == report
    assert node.asked == [asked]


EVERYTHING = Probe(
    exec=ExecAction(command=("check",)),
    http_get=HTTPGetAction(port=80),
    tcp_socket=TCPSocketAction(port=80),
    grpc=GRPCAction(port=80),
)


def test_of_several_handlers_exec_goes_before_http_before_tcp_before_grpc() -> None:
    node = Node()
    for probe in (
        EVERYTHING,
        replace(EVERYTHING, exec=None),
        replace(EVERYTHING, exec=None, http_get=None),
        replace(EVERYTHING, exec=None, http_get=None, tcp_socket=None),
    ):
        execute(probe, node)
    assert [what for what, *_ in node.asked] == ["exec", "http", "tcp", "grpc"]


ILL = {
    "no handler": (Probe(), "missing probe handler for web_ns(u1):web"),
    "a port nobody named": (
        Probe(http_get=HTTPGetAction(port="other")),
        'strconv.Atoi: parsing "other": invalid syntax',
    ),
    "a port beyond all ports": (Probe(tcp_socket=TCPSocketAction(port=70000)), "invalid port number: 70000"),
    "a runtime that does not answer": (Probe(exec=ExecAction(command=("check",))), "cannot reach the runtime"),
}


@pytest.mark.parametrize("probe, error", ILL.values(), ids=ILL.keys())
def test_what_cannot_be_executed_is_reported_not_raised(probe: Probe, error: str) -> None:
    node = Node()
    node.down = True
    assert execute(probe, node) == Report(Outcome.UNKNOWN, error=error)
