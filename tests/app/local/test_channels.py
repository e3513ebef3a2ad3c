"""Who talks with a process and is gone: that is noticed, even while nobody takes what was said."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from podkeeper.app.local.channels import PROTOCOL, talk
from podkeeper.app.local.server import listen
from podkeeper.model.probing import CommandEnd, Exited

SPEAK = """
import sys
from pathlib import Path
from podkeeper.app.local.client import LocalClient
conversation = LocalClient(Path(sys.argv[1])).talk("exec")
print("begun", flush=True)
while True:
    conversation.send(0, bytes(65536))
"""


class Deaf:
    """A process that takes nothing in and says nothing."""

    def __init__(self) -> None:
        self.is_spoken_to = asyncio.Event()

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        await asyncio.Event().wait()
        yield "stdout", b""

    async def send(self, data: bytes) -> None:
        self.is_spoken_to.set()
        await asyncio.Event().wait()

    async def close_input(self) -> None:
        """It does not listen anyway."""

    async def resize(self, columns: int, rows: int) -> None:
        """It does not look either."""

    async def wait(self) -> CommandEnd:
        return Exited(0)

    async def close(self) -> None:
        """Nothing is open."""


def test_who_is_gone_with_half_a_word_said_is_noticed(tmp_path: Path) -> None:
    async def scenario() -> None:
        deaf, over = Deaf(), asyncio.Event()

        async def handle(request: web.Request) -> web.StreamResponse:
            answer = web.WebSocketResponse(protocols=(PROTOCOL,), max_msg_size=0)
            await answer.prepare(request)
            try:
                await talk(deaf, answer)
            finally:
                over.set()
            return answer

        app = web.Application()
        app.router.add_get("/exec", handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.SockSite(runner, listen(tmp_path / "s")).start()
        arguments = ("-c", SPEAK, str(tmp_path / "s"))
        speaking = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
        try:
            await asyncio.wait_for(deaf.is_spoken_to.wait(), 10)
            await asyncio.sleep(0.2)  # until the socket is full of what nobody takes
            assert not over.is_set()
            speaking.kill()
            await asyncio.wait_for(over.wait(), 10)
        finally:
            if speaking.returncode is None:
                speaking.kill()
            await speaking.communicate()
            await runner.cleanup()

    asyncio.run(scenario())
