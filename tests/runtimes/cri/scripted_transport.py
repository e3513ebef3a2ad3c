"""A transport without a runtime, for virtual time. Tests provide the answers, and it records every request."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

from google.protobuf.message import Message

from podkeeper.runtimes.cri.transport import Answer, ObjectNotFound, Unimplemented


class ScriptedTransport:
    """Answers each method with a function of the request. Without one, it raises ObjectNotFound."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Message, float]] = []  # method, request, deadline
        self.answers: dict[str, Callable[[Any], Message | Exception]] = {}  # by short method name
        self.streams: dict[str, asyncio.Queue[Message | Exception | None]] = {}  # None ends the stream
        self.opened: list[tuple[str, Message]] = []
        self.closed = 0

    async def unary(self, method: str, request: Message, answer: type[Answer], seconds: float) -> Answer:
        self.requests.append((method, request, seconds))
        await asyncio.sleep(0)
        script = self.answers.get(method.rpartition("/")[2])
        found = ObjectNotFound("nothing of that id") if script is None else script(request)
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, answer)
        return found

    async def stream(self, method: str, request: Message, answer: type[Answer]) -> AsyncIterator[Answer]:
        self.opened.append((method, request))
        queue = self.streams.get(method.rpartition("/")[2])
        if queue is None:
            raise Unimplemented("unknown method")
        while (message := await queue.get()) is not None:
            if isinstance(message, Exception):
                raise message
            yield cast(Answer, message)

    async def close(self) -> None:
        self.closed += 1
