"""Execute one probe once: a command in the container or a network request.

In: the target, the pod's IP, the container ID. Out: a `Report`. If a probe cannot be executed (an unknown port name, a
runtime that does not answer), `execute` does not raise. The report then has the outcome UNKNOWN, and the probe is
retried. `rules.probe` computes the request and interprets the response. Kubelet counterpart: `runProbe` in
pkg/kubelet/prober/prober.go.
"""

from typing import Final

from podkeeper.model.errors import BadInput, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import bare_container_id
from podkeeper.ports.prober import Prober
from podkeeper.ports.runtime import Commands
from podkeeper.rules.probe.exec import exec_command, exec_report
from podkeeper.rules.probe.http import http_report, http_request
from podkeeper.rules.probe.net import grpc_endpoint, grpc_report, tcp_endpoint, tcp_report
from podkeeper.rules.probe.report import ProbeOutcome, Report
from podkeeper.rules.probe.worker import Target

DEFAULT_TIMEOUT_SECONDS: Final = 1


class ProbeExecutor:
    __slots__ = ("_prober", "_runtime", "_version")

    def __init__(self, *, runtime: Commands, prober: Prober, version: str) -> None:
        """`version` is the agent's Kubernetes version (`1.36`) for the User-Agent header."""
        self._runtime = runtime
        self._prober = prober
        self._version = version

    async def execute(self, pod: Pod, target: Target, pod_ip: str, container_id: str) -> Report:
        """Execute a probe. Report errors instead of raising them."""
        try:
            return await self._execute(pod, target, pod_ip, container_id)
        except BadInput as error:
            return Report(ProbeOutcome.UNKNOWN, error="; ".join(problem.message for problem in error.problems))
        except TryLater as error:
            return Report(ProbeOutcome.UNKNOWN, error=str(error))

    async def _execute(self, pod: Pod, target: Target, pod_ip: str, container_id: str) -> Report:
        container, probe = target.container, target.probe
        timeout_seconds = probe.timeout_seconds or DEFAULT_TIMEOUT_SECONDS
        if probe.exec is not None:
            command = exec_command(probe.exec, container)
            return exec_report(await self._runtime.exec_sync(bare_container_id(container_id), command, timeout_seconds))
        if probe.http_get is not None:
            request = http_request(probe.http_get, container, pod_ip, self._version)
            return http_report(await self._prober.http(request, timeout_seconds))
        if probe.tcp_socket is not None:
            return tcp_report(
                await self._prober.tcp(tcp_endpoint(probe.tcp_socket, container, pod_ip), timeout_seconds)
            )
        if probe.grpc is not None:
            endpoint = grpc_endpoint(probe.grpc, pod_ip)
            end = await self._prober.grpc(endpoint, probe.grpc.service or "", timeout_seconds)
            return grpc_report(endpoint, timeout_seconds, end)
        meta = pod.metadata
        where = f"{meta.name}_{meta.namespace}({meta.uid}):{container.name}"
        return Report(ProbeOutcome.UNKNOWN, error=f"missing probe handler for {where}")
