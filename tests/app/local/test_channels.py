"""The server notices a disconnected client, even while the process reads no input."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from podkeeper.app.local.channels import PROTOCOL, relay
from podkeeper.app.local.server import listen
from podkeeper.model.probing import CommandEnd, CommandExited

CLIENT = """
import sys
from pathlib import Path
from podkeeper.app.local.client import LocalClient
channels = LocalClient(Path(sys.argv[1])).open_channels("exec")
print("begun", flush=True)
while True:
    channels.send(0, bytes(65536))
"""


class BlockedSession:
    """A process that reads no input and writes no output."""

    def __init__(self) -> None:
        self.has_input = asyncio.Event()

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        await asyncio.Event().wait()
        yield "stdout", b""

    async def send(self, data: bytes) -> None:
        self.has_input.set()
        await asyncio.Event().wait()

    async def close_input(self) -> None:
        pass

    async def resize(self, columns: int, rows: int) -> None:
        pass

    async def wait(self) -> CommandEnd:
        return CommandExited(0)

    async def close(self) -> None:
        pass


def test_a_client_that_dies_while_it_sends_is_noticed(tmp_path: Path) -> None:
    async def scenario() -> None:
        session, over = BlockedSession(), asyncio.Event()

        async def handle(request: web.Request) -> web.StreamResponse:
            answer = web.WebSocketResponse(protocols=(PROTOCOL,), max_msg_size=0)
            await answer.prepare(request)
            try:
                await relay(session, answer)
            finally:
                over.set()
            return answer

        app = web.Application()
        app.router.add_get("/exec", handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.SockSite(runner, listen(tmp_path / "s")).start()
        arguments = ("-c", CLIENT, str(tmp_path / "s"))
        client = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
        try:
            await asyncio.wait_for(session.has_input.wait(), 10)
            await asyncio.sleep(0.2)  # until the buffer of the socket is full
            assert not over.is_set()
            client.kill()
            await asyncio.wait_for(over.wait(), 10)
        finally:
            if client.returncode is None:
                client.kill()
            await client.communicate()
            await runner.cleanup()

    asyncio.run(scenario())
