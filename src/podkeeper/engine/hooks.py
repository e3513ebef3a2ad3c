"""Lifecycle hooks: what a container's spec wants done right after its start and right before its end.

A container and one of its hooks come in; the hook is executed (a command in the container, a request to it, or just
time); what went wrong goes out, None when nothing did. Whoever calls decides what follows from a failure and how
long a hook may take; being cancelled ends it at once. The judgement is `rules.hooks`. The Go ancestor is
pkg/kubelet/lifecycle/handlers.go.
"""

import asyncio
import logging
from collections.abc import Callable

from podkeeper.model.errors import BadInput, TryLater
from podkeeper.model.k8s.core import Container, EphemeralContainer, HTTPGetAction, LifecycleHandler, Pod
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.probing import CommandEnd, NotRun
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.prober import Prober
from podkeeper.ports.runtime import Commands
from podkeeper.rules.container_events import Reason
from podkeeper.rules.hooks import exec_failure, http_failure, no_request, plain_request
from podkeeper.rules.probe.http import Purpose, http_request

log = logging.getLogger(__name__)


class HookRunner:
    """Executes lifecycle hooks."""

    def __init__(
        self,
        *,
        commands: Commands,
        prober: Prober,
        record: Callable[[PodEvent, Pod | PodRecord | None], None],
        version: str,
    ) -> None:
        """`version` is the agent's Kubernetes version (`1.36`); requests carry it."""
        self._commands = commands
        self._prober = prober
        self._record = record
        self._version = version

    async def execute(
        self,
        hook: LifecycleHandler,
        pod: Pod,
        container: Container | EphemeralContainer,
        container_id: str,
        pod_ip: str,
        timeout_seconds: float,
    ) -> str | None:
        """Execute a hook. Returns why it failed, None when it went well."""
        if hook.exec is not None:
            command = hook.exec.command or ()
            end: CommandEnd
            try:
                end = await self._commands.exec_sync(container_id, command, timeout_seconds)
            except TryLater as error:
                end = NotRun(str(error))
            return exec_failure(pod, container, command, end)
        if hook.http_get is not None:
            return await self._request(hook.http_get, pod, container, pod_ip, timeout_seconds)
        if hook.sleep is not None:
            await asyncio.sleep(hook.sleep.seconds)
            return None
        return "Cannot run handler: invalid handler: it names no exec, httpGet or sleep"

    async def _request(
        self,
        action: HTTPGetAction,
        pod: Pod,
        container: Container | EphemeralContainer,
        pod_ip: str,
        timeout_seconds: float,
    ) -> str | None:
        path = action.path or ""
        if not (action.host or pod_ip):
            return no_request(pod, container, path, "failed to find networking container: the pod has no address")
        try:
            request = http_request(action, _with_ports_of(container), pod_ip, self._version, Purpose.LIFECYCLE)
        except BadInput as error:
            return no_request(pod, container, path, str(error))
        end = await self._prober.http(request, timeout_seconds)
        plain = plain_request(request, end)
        if plain is not None:
            end = await self._prober.http(plain, timeout_seconds)
            if http_failure(pod, container, path, end) is None:
                self._tell_fallback(pod, plain.url)
        return http_failure(pod, container, path, end)

    def _tell_fallback(self, pod: Pod, url: str) -> None:
        host = url.removeprefix("http://").partition("/")[0]
        text = f"request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
        log.info("hook of pod %s/%s: %s", pod.metadata.namespace, pod.metadata.name, text)
        self._record(PodEvent(EventType.WARNING, Reason.HTTP_FALLBACK, text, pod.metadata.uid or ""), pod)


def _with_ports_of(container: Container | EphemeralContainer) -> Container:
    """A container to look up named ports in."""
    return container if isinstance(container, Container) else Container(name=container.name, ports=container.ports)
