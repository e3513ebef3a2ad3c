"""Running a command in a container for a probe or a hook: start it, collect what it says, learn how it ended.

The output goes straight from the command to the agent, stdout and stderr in one; what is more than is kept is read
and thrown away, so that no command hangs because nobody listens. The keeper watches the time; whoever stops waiting
ends it.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Final

from podkeeper.model.errors import RuntimeRefused, RuntimeUnavailable
from podkeeper.model.probing import CommandEnd, Exited, NotRun, TimedOut
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.links import Link

MAX_OUTPUT_BYTES: Final = 16 * 1024
_CHUNK_BYTES: Final = 65536
_LAST_CHUNKS: Final = 16  # who was left behind by a command may go on writing for ever
_LATE_SECONDS: Final = 5.0  # how long after its time is up a command must have ended


class _Output:
    """The first part of what a command says."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._file, self.end = os.pipe()
        os.set_blocking(self._file, False)
        self._text = bytearray()
        self._open = True
        self._loop.add_reader(self._file, self._read)

    def close(self) -> bytes:
        """All that was said until now."""
        left = _LAST_CHUNKS
        while self._open and left > 0 and self._read():
            left -= 1
        self._stop()
        os.close(self._file)
        return bytes(self._text)

    def _read(self) -> bool:
        try:
            data = os.read(self._file, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        self._text += data[: max(0, MAX_OUTPUT_BYTES - len(self._text))]
        if not data:
            self._stop()
        return bool(data)

    def _stop(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._file)


async def run_command(link: Link, container_id: str, command: Sequence[str], timeout_seconds: float) -> CommandEnd:
    """Run a command and wait for its end; a timeout of 0 is none. Never raises for what the command does."""
    output = _Output()
    files = (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), output.end, os.dup(output.end))
    try:
        request: Json = {"container": container_id, "argv": list(command), "timeout": max(0.0, timeout_seconds)}
        number, answer = link.begin("exec", request, files)
        try:
            async with asyncio.timeout(timeout_seconds + _LATE_SECONDS if timeout_seconds > 0 else None):
                end, _ = await asyncio.shield(answer)
        except (asyncio.CancelledError, TimeoutError):
            link.begin("kill_exec", {"request": number})
            raise
    except TimeoutError:
        return _timed_out(command, timeout_seconds)
    except (RuntimeRefused, RuntimeUnavailable) as error:
        return NotRun(str(error))
    finally:
        text = output.close()
    return _timed_out(command, timeout_seconds) if end["timed_out"] else Exited(int(end["code"]), text)


def _timed_out(command: Sequence[str], timeout_seconds: float) -> TimedOut:
    return TimedOut(f"command timed out: {json.dumps(' '.join(command))} timed out after {timeout_seconds:g}s")
