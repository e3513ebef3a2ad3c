"""CRI calls for streams: request a URL over gRPC and connect to it.

StreamCalls(transport).exec, .attach -> RemoteCommand     .port_forward -> PortForward
"""

import ssl
from collections.abc import Sequence
from typing import Final

from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import Transport
from podkeeper.streams import port_forward, remote_command
from podkeeper.streams.port_forward import PortForward
from podkeeper.streams.remote_command import RemoteCommand
from podkeeper.streams.upgrade import open_connection

CALL_SECONDS: Final = 120.0
"""Default of the kubelet's `runtimeRequestTimeout`."""
_SERVICE: Final = "/runtime.v1.RuntimeService/"


class StreamCalls:
    """All calls raise TryLater with the runtime's message."""

    def __init__(self, transport: Transport, *, tls: ssl.SSLContext | None = None) -> None:
        self._transport = transport
        self._tls = tls

    async def exec(self, container_id: str, command: Sequence[str], *, tty: bool, stdin: bool) -> RemoteCommand:
        """Start another process in a container."""
        request = cri.ExecRequest(
            container_id=container_id, cmd=command, tty=tty, stdin=stdin, stdout=True, stderr=not tty
        )
        answer = await self._transport.unary(_SERVICE + "Exec", request, cri.ExecResponse, CALL_SECONDS)
        connection = await open_connection(answer.url, remote_command.PROTOCOL, tls=self._tls)
        return await RemoteCommand.open(connection, tty=tty, stdin=stdin)

    async def attach(self, container_id: str, *, tty: bool, stdin: bool) -> RemoteCommand:
        """Attach to the main process of a container."""
        request = cri.AttachRequest(container_id=container_id, tty=tty, stdin=stdin, stdout=True, stderr=not tty)
        answer = await self._transport.unary(_SERVICE + "Attach", request, cri.AttachResponse, CALL_SECONDS)
        connection = await open_connection(answer.url, remote_command.PROTOCOL, tls=self._tls)
        return await RemoteCommand.open(connection, tty=tty, stdin=stdin)

    async def port_forward(self, sandbox_id: str) -> PortForward:
        request = cri.PortForwardRequest(pod_sandbox_id=sandbox_id)
        answer = await self._transport.unary(_SERVICE + "PortForward", request, cri.PortForwardResponse, CALL_SECONDS)
        return PortForward(await open_connection(answer.url, port_forward.PROTOCOL, tls=self._tls))
