"""Run a command in a container for a probe or a hook, and collect its output.

The output goes directly from the command to the agent, with stdout and stderr in one pipe. Output beyond the limit is
read and dropped, so that the command never blocks. The keeper enforces the timeout. If the caller is cancelled, the
command is killed.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Final

from podkeeper.model.errors import RuntimeRefused, RuntimeUnavailable
from podkeeper.model.probing import CommandEnd, CommandExited, NotRun, TimedOut
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper_link import KeeperLink

# More than a probe reports (10 KiB, `rules.probe.report`).
MAX_OUTPUT_BYTES: Final = 16 * 1024
_CHUNK_BYTES: Final = 65536
_LAST_CHUNKS: Final = 16  # read at most this many chunks after the exit, because an orphaned process may write forever
_EXTRA_SECONDS: Final = 5.0  # wait this long after the command's timeout for the keeper's answer


class _OutputBuffer:
    """The first MAX_OUTPUT_BYTES of a command's output."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._file, self.end = os.pipe()
        os.set_blocking(self._file, False)
        self._text = bytearray()
        self._open = True
        self._loop.add_reader(self._file, self._read)

    def close(self) -> bytes:
        """Return the output up to now."""
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


async def run_command(
    link: KeeperLink, container_id: str, command: Sequence[str], timeout_seconds: float
) -> CommandEnd:
    """Run a command and wait for its end. A timeout of 0 means no timeout. Never raises for a failed command."""
    output = _OutputBuffer()
    files = (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), output.end, os.dup(output.end))
    try:
        request: Json = {"container": container_id, "argv": list(command), "timeout": max(0.0, timeout_seconds)}
        request_id, answer = link.send_request("exec", request, files)
        try:
            async with asyncio.timeout(timeout_seconds + _EXTRA_SECONDS if timeout_seconds > 0 else None):
                # Shield: a cancelled caller must not cancel the future that the link completes.
                end, _ = await asyncio.shield(answer)
        except (asyncio.CancelledError, TimeoutError):
            link.send_request("kill_exec", {"request": request_id})
            raise
    except TimeoutError:
        return _timed_out(command, timeout_seconds)
    except (RuntimeRefused, RuntimeUnavailable) as error:
        return NotRun(str(error))
    finally:
        text = output.close()
    return _timed_out(command, timeout_seconds) if end["timed_out"] else CommandExited(int(end["code"]), text)


def _timed_out(command: Sequence[str], timeout_seconds: float) -> TimedOut:
    return TimedOut(f"command timed out: {json.dumps(' '.join(command))} timed out after {timeout_seconds:g}s")
