"""Execute the lifecycle hooks of containers (postStart, preStop).

In: a container and one of its hooks. Out: None, or the reason why the hook failed. A hook is a command in the
container, an HTTP request to it, or a sleep. The caller sets the timeout and handles a failure. Cancellation ends a
hook at once. `rules.container.hooks` interprets the result. Kubelet counterpart: pkg/kubelet/lifecycle/handlers.go.
"""

import asyncio
import logging

from podkeeper.engine.events import EventFunction
from podkeeper.model.errors import BadInput, TryLater
from podkeeper.model.k8s.core import Container, EphemeralContainer, HTTPGetAction, LifecycleHandler, Pod
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.probing import CommandEnd, NotRun
from podkeeper.ports.prober import Prober
from podkeeper.ports.runtime import Commands
from podkeeper.rules.container.events import EventReason
from podkeeper.rules.container.hooks import exec_failure, http_error_message, http_failure, http_fallback_request
from podkeeper.rules.probe.http import RequestPurpose, http_request

log = logging.getLogger(__name__)


class HookRunner:
    def __init__(
        self,
        *,
        commands: Commands,
        prober: Prober,
        record_event: EventFunction,
        version: str,
    ) -> None:
        """`version` is the agent's Kubernetes version (`1.36`) for the User-Agent header."""
        self._commands = commands
        self._prober = prober
        self._record_event = record_event
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
        """Execute a hook. Return the reason of a failure, or None."""
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
            return http_error_message(
                pod, container, path, "failed to find networking container: the pod has no address"
            )
        try:
            request = http_request(action, _with_ports_of(container), pod_ip, self._version, RequestPurpose.LIFECYCLE)
        except BadInput as error:
            return http_error_message(pod, container, path, str(error))
        end = await self._prober.http(request, timeout_seconds)
        # As in the kubelet: its older releases ignored the scheme HTTPS of a hook, so such hooks exist for plain HTTP
        # servers.
        plain = http_fallback_request(request, end)
        if plain is not None:
            end = await self._prober.http(plain, timeout_seconds)
            if http_failure(pod, container, path, end) is None:
                self._record_fallback(pod, plain.url)
        return http_failure(pod, container, path, end)

    def _record_fallback(self, pod: Pod, url: str) -> None:
        host = url.removeprefix("http://").partition("/")[0]
        text = f"request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
        log.info("hook of pod %s/%s: %s", pod.metadata.namespace, pod.metadata.name, text)
        self._record_event(PodEvent(EventType.WARNING, EventReason.HTTP_FALLBACK, text, pod.metadata.uid or ""), pod)


def _with_ports_of(container: Container | EphemeralContainer) -> Container:
    """Return a container with the ports of this one, for the lookup of named ports."""
    return container if isinstance(container, Container) else Container(name=container.name, ports=container.ports)
