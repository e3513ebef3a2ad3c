"""Executes one probe once: a command in the container, or a request over the network.

In: what to probe, the pod's address, the container. Out: a `Report`. What keeps a probe from being executed (a port
nobody named, a runtime that does not answer) is reported too, not raised: the probe is then tried again. What is
asked, and what an answer means, is said in `rules.probe`. The Go ancestor is `runProbe` in
pkg/kubelet/prober/prober.go.
"""

from typing import Final

from podkeeper.model.errors import BadInput, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import bare_container_id
from podkeeper.ports.prober import Prober
from podkeeper.ports.runtime import Commands
from podkeeper.rules.probe.exec import exec_command, judge_exec
from podkeeper.rules.probe.http import http_request, judge_http
from podkeeper.rules.probe.net import grpc_endpoint, judge_grpc, judge_tcp, tcp_endpoint
from podkeeper.rules.probe.report import Outcome, Report
from podkeeper.rules.probe.worker import Target

DEFAULT_TIMEOUT_SECONDS: Final = 1


class ProbeExecutor:
    """Executes a probe once: in a container, or over the network."""

    __slots__ = ("_prober", "_runtime", "_version")

    def __init__(self, *, runtime: Commands, prober: Prober, version: str) -> None:
        """`version` is the agent's Kubernetes version (`1.36`), for HTTP servers to see."""
        self._runtime = runtime
        self._prober = prober
        self._version = version

    async def execute(self, pod: Pod, target: Target, pod_ip: str, container_id: str) -> Report:
        """Execute once. What keeps a probe from being executed is reported, not raised."""
        try:
            return await self._execute(pod, target, pod_ip, container_id)
        except BadInput as error:
            return Report(Outcome.UNKNOWN, error="; ".join(problem.message for problem in error.problems))
        except TryLater as error:
            return Report(Outcome.UNKNOWN, error=str(error))

    async def _execute(self, pod: Pod, target: Target, pod_ip: str, container_id: str) -> Report:
        container, probe = target.container, target.probe
        timeout_seconds = probe.timeout_seconds or DEFAULT_TIMEOUT_SECONDS
        if probe.exec is not None:
            command = exec_command(probe.exec, container)
            return judge_exec(await self._runtime.exec_sync(bare_container_id(container_id), command, timeout_seconds))
        if probe.http_get is not None:
            request = http_request(probe.http_get, container, pod_ip, self._version)
            return judge_http(await self._prober.http(request, timeout_seconds))
        if probe.tcp_socket is not None:
            return judge_tcp(await self._prober.tcp(tcp_endpoint(probe.tcp_socket, container, pod_ip), timeout_seconds))
        if probe.grpc is not None:
            endpoint = grpc_endpoint(probe.grpc, pod_ip)
            end = await self._prober.grpc(endpoint, probe.grpc.service or "", timeout_seconds)
            return judge_grpc(endpoint, timeout_seconds, end)
        meta = pod.metadata
        where = f"{meta.name}_{meta.namespace}({meta.uid}):{container.name}"
        return Report(Outcome.UNKNOWN, error=f"missing probe handler for {where}")
