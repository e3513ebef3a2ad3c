"""Exec, attach and port forwarding for CRI runtimes.

When a client disconnects, the process's stdin is closed. A process that ignores that keeps running, because the CRI
cannot stop it. The kubelet has the same limitation.
"""

from collections.abc import Sequence

from podkeeper.app.local.logs import LogFile
from podkeeper.app.local.streams import StreamSession
from podkeeper.runtimes.cri.stream_calls import StreamCalls
from podkeeper.runtimes.cri.transport import Transport


class CriStreams:
    def __init__(self, transport: Transport) -> None:
        self._calls = StreamCalls(transport)

    async def exec(self, container_id: str, command: Sequence[str], *, tty: bool, stdin: bool) -> StreamSession:
        return await self._calls.exec(container_id, command, tty=tty, stdin=stdin)

    async def attach(self, log: LogFile, *, tty: bool, stdin: bool) -> StreamSession:
        return await self._calls.attach(log.container_id, tty=tty, stdin=stdin)

    async def forward(self, sandbox_id: str, port: int) -> StreamSession:
        """Connect to a port of a pod."""
        # Use a separate stream connection for each TCP connection. kubectl shares one, and then a single connection
        # that is not read (or closed at the other end) blocks all others. The separate connection costs 4 ms.
        connection = await self._calls.port_forward(sandbox_id)
        try:
            return await connection.open(port, alone=True)
        except BaseException:
            await connection.close()
            raise
