"""Conversations over the socket: in the channels of kubectl, with a real process at the other end, or a told one."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from podkeeper.app.local.channels import PROTOCOL, status_of, talk
from podkeeper.app.local.client import AskingFailed, LocalClient, Talk
from podkeeper.app.local.server import listen
from podkeeper.model.k8s.meta import Status
from podkeeper.model.probing import CommandEnd, Exited, NotRun, TimedOut
from tests.app.local.house import House, append, is_open, pod, speaking
from tests.app.local.test_logs import line

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255


def all_of(conversation: Talk) -> tuple[dict[int, bytes], dict[str, object]]:
    """What was said on each channel, and the end."""
    said: dict[int, bytes] = {}
    for channel, data in conversation.messages():
        said[channel] = said.get(channel, b"") + data
    return said, json.loads(said.pop(ERROR, b"{}"))


def test_a_command_is_run_and_its_exit_code_told(it: House) -> None:
    steps = [{"output": "hello\n", "exit_code": 3}]
    it.write("web.yaml", pod("web", lives={"app": {"exec": steps}}))
    it.until(lambda: it.status("web") == "Running")
    with it.client.talk("exec", "default", "web", "app", command=["greet", "me"], output=True) as conversation:
        said, end = all_of(conversation)
    assert said == {STDOUT: b"hello\n"}
    assert (end["status"], end["reason"]) == ("Failure", "NonZeroExitCode")
    assert end["details"] == {"causes": [{"message": "3", "reason": "ExitCode"}]}


REFUSALS: dict[str, tuple[tuple[str, ...], dict[str, object], str]] = {
    "no command": (("exec", "default", "web", "app"), {}, "command: Required value"),
    "an input that the runtime has not": (
        ("exec", "default", "web", "app"),
        {"command": ["sh"], "input": True},
        "cannot use stdin or a TTY",
    ),
    "a container that is not there": (("exec", "default", "web", "zz"), {"command": ["sh"]}, "it has: app"),
    "a container that does not run": (("exec", "default", "job", "app"), {"command": ["sh"]}, "is not running"),
    "an input of one that has none": (("attach", "default", "web", "app"), {"input": True}, "cannot use stdin"),
}


@pytest.mark.parametrize("parts, query, message", REFUSALS.values(), ids=REFUSALS.keys())
def test_why_there_is_no_conversation(
    it: House, parts: tuple[str, ...], query: dict[str, object], message: str
) -> None:
    it.write("pods.yaml", pod("web"), pod("job", lives={"app": {"after_seconds": 0.0}}, policy="Never"))
    it.until(lambda: it.status("web") == "Running" and it.status("job") == "Completed")
    with pytest.raises(AskingFailed, match=message) as refused:
        it.client.talk(*parts, **query)
    assert refused.value.code == 400


def test_who_attaches_hears_what_is_said_from_now_on_until_the_end(it: House) -> None:
    it.write("web.yaml", pod("web", policy="Never"))
    it.until(lambda: it.status("web") == "Running")
    log = it.log("web")
    log.write_bytes(line("before"))
    with it.client.talk("attach", "default", "web", "app", output=True) as conversation:
        messages = conversation.messages()
        it.until(lambda: is_open(log))
        append(log, line("after"))
        assert next(messages) == (STDOUT, b"after\n")
        it.end("web")
        assert [channel for channel, _ in messages] == [ERROR]


ENDS: dict[str, tuple[CommandEnd, Status]] = {
    "it succeeded": (Exited(0), Status(status="Success")),
    "it took too long": (
        TimedOut("took 5 s"),
        Status(status="Failure", reason="InternalError", message="took 5 s", code=500),
    ),
    "it was not run": (
        NotRun("no such file"),
        Status(status="Failure", reason="InternalError", message="no such file", code=500),
    ),
}


@pytest.mark.parametrize("end, expected", ENDS.values(), ids=ENDS.keys())
def test_how_an_end_is_told(end: CommandEnd, expected: Status) -> None:
    assert status_of(end) == expected


# ---- with a real process ----


class Real:
    """A real process, as a conversation."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.sizes: list[tuple[int, int]] = []
        self.closed = False

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(65536):
            yield "stdout", data

    async def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def resize(self, columns: int, rows: int) -> None:
        self.sizes.append((columns, rows))

    async def wait(self) -> CommandEnd:
        return Exited(await self._process.wait())

    async def close(self) -> None:
        self.closed = True
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def with_cat(path: Path, ask: Callable[[LocalClient], object]) -> Real:
    """Serve conversations with `cat` on a socket, and let somebody ask."""
    made: list[Real] = []

    async def serve() -> None:
        process = await asyncio.create_subprocess_exec(
            "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        made.append(Real(process))

        async def handle(request: web.Request) -> web.StreamResponse:
            answer = web.WebSocketResponse(protocols=(PROTOCOL,), max_msg_size=0)
            await answer.prepare(request)
            await talk(made[0], answer)
            return answer

        app = web.Application()
        app.router.add_get("/exec", handle)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        await web.SockSite(runner, listen(path)).start()
        asking: Awaitable[object] = asyncio.to_thread(ask, LocalClient(path))
        try:
            await asyncio.wait_for(asking, 10)
        finally:
            await made[0].close()
            await runner.cleanup()

    asyncio.run(serve())
    return made[0]


def test_much_goes_both_ways_unharmed(tmp_path: Path) -> None:
    sent = os.urandom(3_000_000)

    def ask(client: LocalClient) -> None:
        with client.talk("exec") as conversation:
            conversation.send(RESIZE, b'{"Width": 120, "Height": 40}')
            conversation.send(RESIZE, b"nonsense")
            with speaking(conversation, sent):
                said, end = all_of(conversation)
        assert said[STDOUT] == sent
        assert end["status"] == "Success"

    assert with_cat(tmp_path / "s", ask).sizes == [(120, 40)]


def test_who_hangs_up_ends_the_conversation(tmp_path: Path) -> None:
    def ask(client: LocalClient) -> None:
        with client.talk("exec") as conversation:
            conversation.send(STDIN, b"hello")
            assert next(conversation.messages()) == (STDOUT, b"hello")

    assert with_cat(tmp_path / "s", ask).closed
