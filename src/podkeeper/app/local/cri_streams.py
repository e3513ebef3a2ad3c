"""Talking with the containers of a CRI runtime, and reaching their ports: its streams, as conversations.

Whoever hangs up ends the input of what it started, and hears no more of it. A process that goes on without input goes
on: CRI has no way to end it (with the reference kubelet it is the same).
"""

from collections.abc import Sequence

from podkeeper.app.local.logs import LogFile
from podkeeper.app.local.streams import Conversation
from podkeeper.runtimes.cri.streaming.calls import StreamCalls
from podkeeper.runtimes.cri.transport import Transport


class CriStreams:
    """Streams and forwards of a CRI runtime."""

    def __init__(self, transport: Transport) -> None:
        self._calls = StreamCalls(transport)

    async def exec(self, container_id: str, command: Sequence[str], *, tty: bool, stdin: bool) -> Conversation:
        """Start a process beside those of a container."""
        return await self._calls.exec(container_id, command, tty=tty, stdin=stdin)

    async def attach(self, log: LogFile, *, tty: bool, stdin: bool) -> Conversation:
        """Join a container's first process."""
        return await self._calls.attach(log.container_id, tty=tty, stdin=stdin)

    async def forward(self, sandbox_id: str, port: int) -> Conversation:
        """Connect to a port of a pod, over streams of its own.

        Not over those of its neighbours, as kubectl does it: what one of them does not read, or a runtime cannot get
        rid of because the other end was closed, would stand in the way of all. It costs 4 ms.
        """
        way = await self._calls.port_forward(sandbox_id)
        try:
            return await way.open(port, alone=True)
        except BaseException:
            await way.close()
            raise
