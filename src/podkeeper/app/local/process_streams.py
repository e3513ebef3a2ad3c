"""Exec and attach for the process runtime."""

from collections.abc import AsyncIterator, Sequence

from podkeeper.app.local.logs import LogFile
from podkeeper.app.local.streams import StreamSession
from podkeeper.model.errors import RuntimeRefused, TryLater
from podkeeper.model.probing import CommandEnd, CommandExited, NotRun
from podkeeper.runtimes.process.runtime import ProcessRuntime
from podkeeper.runtimes.process.sessions import Session


class ProcessStreams:
    def __init__(self, runtime: ProcessRuntime) -> None:
        self._runtime = runtime

    async def exec(self, container_id: str, command: Sequence[str], *, tty: bool, stdin: bool) -> StreamSession:
        return _ProcessSession(
            await self._runtime.exec_stream(container_id, command, tty=tty, stdin=stdin), has_exit_code=True
        )

    async def attach(self, log: LogFile, *, tty: bool, stdin: bool) -> StreamSession:
        """Connect to a container's main process. `tty` is ignored, because the container has a TTY or not."""
        return _ProcessSession(await self._runtime.attach(log.container_id, stdin=stdin), has_exit_code=False)


class _ProcessSession:
    def __init__(self, session: Session, *, has_exit_code: bool) -> None:
        self._session = session
        self._has_exit_code = has_exit_code  # only if exec started the process

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        async for channel, data in self._session:
            yield channel, data

    async def send(self, data: bytes) -> None:
        try:
            await self._session.write(data)
        except RuntimeRefused:
            return  # the process has closed its stdin; continue, because its output and exit code are still needed

    async def close_input(self) -> None:
        self._session.close_stdin()

    async def resize(self, columns: int, rows: int) -> None:
        self._session.resize(rows, columns)

    async def wait(self) -> CommandEnd:
        if not self._has_exit_code:
            return CommandExited(0)
        try:
            return CommandExited(await self._session.wait())
        except TryLater as error:
            return NotRun(str(error))

    async def close(self) -> None:
        await self._session.aclose()
