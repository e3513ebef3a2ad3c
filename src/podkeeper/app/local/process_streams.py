"""Talking with the processes of the embedded runtime: its sessions, as conversations."""

from collections.abc import AsyncIterator, Sequence

from podkeeper.app.local.logs import LogFile
from podkeeper.app.local.streams import Conversation
from podkeeper.model.errors import RuntimeRefused, TryLater
from podkeeper.model.probing import CommandEnd, Exited, NotRun
from podkeeper.runtimes.process.runtime import ProcessRuntime
from podkeeper.runtimes.process.sessions import Session


class ProcessStreams:
    """Streams of the process runtime."""

    def __init__(self, runtime: ProcessRuntime) -> None:
        self._runtime = runtime

    async def exec(self, container_id: str, command: Sequence[str], *, tty: bool, stdin: bool) -> Conversation:
        """Start a process beside those of a container."""
        return _Spoken(await self._runtime.exec_stream(container_id, command, tty=tty, stdin=stdin), ends=True)

    async def attach(self, log: LogFile, *, tty: bool, stdin: bool) -> Conversation:
        """Join a container's first process; whether it has a terminal is its own affair."""
        return _Spoken(await self._runtime.attach(log.container_id, stdin=stdin), ends=False)


class _Spoken:
    """A session, as a conversation."""

    def __init__(self, session: Session, *, ends: bool) -> None:
        self._session = session
        self._ends = ends  # whether it is a command of ours, of which one can know how it ended

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        async for channel, data in self._session:
            yield channel, data

    async def send(self, data: bytes) -> None:
        try:
            await self._session.write(data)
        except RuntimeRefused:
            return  # it has closed its input; what it says and how it ends is still worth hearing

    async def close_input(self) -> None:
        self._session.close_stdin()

    async def resize(self, columns: int, rows: int) -> None:
        self._session.resize(rows, columns)

    async def wait(self) -> CommandEnd:
        if not self._ends:
            return Exited(0)
        try:
            return Exited(await self._session.wait())
        except TryLater as error:
            return NotRun(str(error))

    async def close(self) -> None:
        await self._session.aclose()
